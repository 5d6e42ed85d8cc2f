//! TLS on both sides, by curl.

use crate::support::{Palisade, put, upstream};
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

/// Certificates and keys as files.
struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join(format!("{name}.pem")), issuer.pem()).unwrap();
        Self {
            folder: folder.to_owned(),
            issuer,
        }
    }

    /// Writes `NAME.pem` and `NAME.key`.
    fn issue(&self, name: &str) {
        let params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

fn settings(folder: &Path, client_ca: bool) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    let mut settings = format!(
        "[tls]\ncert = \"{}\"\nkey = \"{}\"\n",
        path("front.pem"),
        path("front.key")
    );
    if client_ca {
        settings.push_str(&format!("client_ca = \"{}\"\n", path("clients.pem")));
    }
    settings
}

/// What curl says to a write: the status and the HTTP version, or why not.
fn curl(proxy: &Palisade, folder: &Path, ca: &str, more: &[&str]) -> Result<String, String> {
    let output = Command::new("curl")
        .current_dir(folder)
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--cacert",
            ca,
        ])
        .args([
            "--request",
            "PUT",
            "--data",
            "hi",
            "--header",
            "X-Fence-Token: 100",
        ])
        .args([
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code} %{http_version}",
        ])
        .args(more)
        .arg(format!("https://localhost:{}/x", proxy.address().port()))
        .output()
        .unwrap();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// rpxy 0.12 dropped a domain's certificate when a read failed.
#[test]
fn certificates_are_read_anew_and_bad_ones_are_not() {
    let origin = upstream();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Authority::new(folder, "one").issue("front");
    let proxy = Palisade::start(&origin.url(), &settings(folder, false));
    assert_eq!(curl(&proxy, folder, "one.pem", &[]).unwrap(), "200 2");
    assert_eq!(
        curl(&proxy, folder, "one.pem", &["--http1.1"]).unwrap(),
        "200 1.1"
    );
    assert!(proxy.metric("palisade_tls_certificate_expiry_seconds") > 1e9);
    let arrival = origin.arrivals_at("/x").remove(0);
    assert_eq!(arrival.field("x-forwarded-proto"), ["https"]);
    // hyper#3944: a refusal is read whole over TLS too, with a body that nobody wanted.
    fs::write(folder.join("body"), vec![b'a'; 65_536]).unwrap();
    for version in ["--http2", "--http1.1"] {
        let refused = curl(
            &proxy,
            folder,
            "one.pem",
            &[
                version,
                "--data-binary",
                "@body",
                "--header",
                "X-Fence-Token: 100",
                "--header",
                "Expect:",
            ],
        );
        assert!(refused.unwrap().starts_with("400 "), "two tokens");
    }
    // Half a file, as a careless copy leaves it.
    let good = fs::read(folder.join("front.pem")).unwrap();
    fs::write(folder.join("front.pem"), &good[..good.len() / 2]).unwrap();
    proxy.signal(Signal::SIGHUP);
    proxy.wait_line("was not reloaded");
    assert_eq!(curl(&proxy, folder, "one.pem", &[]).unwrap(), "200 2");
    // Without a signal: the files are looked at from time to time.
    Authority::new(folder, "two").issue("front");
    proxy.wait_line("the certificate was read anew");
    assert_eq!(curl(&proxy, folder, "two.pem", &[]).unwrap(), "200 2");
    assert!(curl(&proxy, folder, "one.pem", &[]).is_err());
}

#[test]
fn mutual_tls_wants_a_certificate_of_the_right_authority() {
    let origin = upstream();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Authority::new(folder, "one").issue("front");
    Authority::new(folder, "clients").issue("client");
    Authority::new(folder, "others").issue("other");
    let proxy = Palisade::start(&origin.url(), &settings(folder, true));
    let with = |name: &str| {
        let (cert, key) = (format!("{name}.pem"), format!("{name}.key"));
        curl(&proxy, folder, "one.pem", &["--cert", &cert, "--key", &key])
    };
    assert_eq!(with("client").unwrap(), "200 2");
    assert!(with("other").is_err());
    assert!(curl(&proxy, folder, "one.pem", &[]).is_err());
    assert_eq!(origin.arrivals_at("/x").len(), 1);
}

/// A handshake that does not come costs its connection, and holds up no other.
#[test]
fn a_slow_handshake_is_cut() {
    let origin = upstream();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Authority::new(folder, "one").issue("front");
    let limits = "[limits]\ntls_handshake_timeout = \"300ms\"\n";
    let proxy = Palisade::start(
        &origin.url(),
        &format!("{limits}{}", settings(folder, false)),
    );
    let mut silent: Vec<_> = (0..20)
        .map(|_| crate::support::connect(proxy.address()))
        .collect();
    assert_eq!(curl(&proxy, folder, "one.pem", &[]).unwrap(), "200 2");
    for client in &mut silent {
        assert!(crate::support::read_to_end(client).is_empty());
    }
    // Plain HTTP on the TLS port is no request.
    let answer = crate::support::send(proxy.address(), b"GET /x HTTP/1.1\r\nHost: db\r\n\r\n");
    assert!(!answer.starts_with(b"HTTP/1.1 2"));
}

/// A TLS end in front of the origin.
fn tls_front(folder: &Path, to: std::net::SocketAddr) -> std::net::SocketAddr {
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    let certificates = CertificateDer::pem_file_iter(folder.join("front.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("front.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates.map(Result::unwrap).collect(), key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(stream).await else {
                        return;
                    };
                    let mut plain = tokio::net::TcpStream::connect(to).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
                });
            }
        });
    });
    address
}

#[test]
fn upstream_over_tls_is_checked() {
    let origin = upstream();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Authority::new(folder, "one").issue("front");
    Authority::new(folder, "two");
    let store = tls_front(folder, origin.address());
    let settings = |ca: &str| format!("[upstream_tls]\nca = \"{}\"\n", folder.join(ca).display());
    let url = format!("https://localhost:{}", store.port());
    let proxy = Palisade::start(&url, &settings("one.pem"));
    assert_eq!(put(proxy.address(), "/x", 100).status, 200);
    assert_eq!(origin.arrivals_at("/x")[0].body, b"hi");
    let other = Palisade::start(&url, &settings("two.pem"));
    let answer = put(other.address(), "/y", 100);
    assert_eq!(answer.problem().as_deref(), Some("upstream-unreachable"));
    assert!(origin.arrivals_at("/y").is_empty());
}
