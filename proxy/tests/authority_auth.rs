//! etcd that wants to know who asks: users, tokens that run out, TLS on both sides.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod authority_support;

use authority_support::{Asked, options, take};
use palisade::authority::{EtcdOptions, EtcdTls, Unreadable};
use palisade_loadtest::servers::{Etcd, wait_for};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::net::{TcpListener, TcpStream};

const ROOT: [&str; 2] = ["--user", "root:top secret"];

fn as_root(etcd: &Etcd, arguments: &[&str]) -> String {
    etcd.ctl(&[&ROOT, arguments].concat())
}

/// A proxy's user that may read below the prefix and nothing else, and then nobody without a password.
fn enable_users(etcd: &Etcd) {
    etcd.ctl(&["user", "add", "root:top secret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["role", "add", "reader"]);
    etcd.ctl(&[
        "role",
        "grant-permission",
        "reader",
        "--prefix=true",
        "read",
        "/palisade/",
    ]);
    etcd.ctl(&["user", "add", "proxy:right"]);
    etcd.ctl(&["user", "grant-role", "proxy", "reader"]);
    etcd.ctl(&["auth", "enable"]);
}

fn take_as_root(etcd: &Etcd, name: &str) -> u64 {
    let lease = as_root(etcd, &["lease", "grant", "600"])
        .split(' ')
        .nth(1)
        .unwrap()
        .to_owned();
    let key = format!("/palisade/leases/{name}");
    as_root(etcd, &["put", &key, "{}", "--lease", &lease]);
    let fields = as_root(etcd, &["get", &key, "-w", "fields"]);
    fields
        .lines()
        .find_map(|line| line.strip_prefix("\"ModRevision\" : "))
        .unwrap()
        .parse()
        .unwrap()
}

fn as_user(address: SocketAddr, folder: &Path) -> (EtcdOptions, PathBuf) {
    let file = folder.join("password");
    let mut options = options(address);
    options.user = Some(("proxy".to_owned(), file.clone()));
    (options, file)
}

#[test]
fn a_password_is_read_anew_and_a_token_renewed() {
    let mut etcd = Etcd::start().unwrap();
    enable_users(&etcd);
    let folder = tempfile::tempdir().unwrap();
    let (options, password) = as_user(etcd.address(), folder.path());
    let asked = Asked::start(options, &folder.path().join("state"));
    assert_eq!(
        asked.read("a"),
        Err(Unreadable::Unavailable),
        "no such file"
    );
    fs::write(&password, "wrong\n").unwrap();
    assert_eq!(asked.read("a"), Err(Unreadable::Unavailable));
    wait_for("the refusal", || {
        let why = asked.authority.health().failure?;
        why.contains("authentication failed").then_some(())
    });

    fs::write(&password, "right\n").unwrap();
    let token = take_as_root(&etcd, "a");
    assert_eq!(asked.grant("a"), Some(token));
    asked.heard.wait_for("a", token);

    // A restart forgets every token that was given out.
    etcd.kill();
    etcd.start_again().unwrap();
    let token = take_as_root(&etcd, "a");
    assert_eq!(asked.grant("a"), Some(token));
    asked.heard.wait_for("a", token);
}

/// With signed tokens, any change of any user makes all of them "old"; etcd-client renews on other errors only.
#[test]
fn a_change_of_users_costs_no_read() {
    let keys = tempfile::tempdir().unwrap();
    let (private, public) = (
        keys.path().join("private.pem"),
        keys.path().join("public.pem"),
    );
    let pair = KeyPair::generate().unwrap();
    fs::write(&private, pair.serialize_pem()).unwrap();
    fs::write(&public, pair.public_key_pem()).unwrap();
    let (private, public) = (private.display(), public.display());
    let signed = format!("jwt,pub-key={public},priv-key={private},sign-method=ES256,ttl=10m");
    let etcd = Etcd::start_with(&["--auth-token", &signed]).unwrap();
    enable_users(&etcd);
    let folder = tempfile::tempdir().unwrap();
    let (options, password) = as_user(etcd.address(), folder.path());
    fs::write(password, "right").unwrap();
    let asked = Asked::start(options, &folder.path().join("state"));
    let token = take_as_root(&etcd, "a");
    assert_eq!(asked.grant("a"), Some(token));
    for user in ["b", "c"] {
        as_root(&etcd, &["user", "add", &format!("{user}:x")]);
        assert_eq!(
            asked.read("a").unwrap().grant.map(|grant| grant.get()),
            Some(token)
        );
        let newer = take_as_root(&etcd, "watched");
        asked.heard.wait_for("watched", newer);
    }
}

/// Certificates in files: an authority, one for 127.0.0.1, one for the client, and a stranger's authority.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, pem: String| fs::write(folder.path().join(name), pem).unwrap();
        let authority = || {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
        };
        let (ours, stranger) = (authority(), authority());
        write("ca", ours.pem());
        write("stranger", stranger.pem());
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            write(name, params.signed_by(&key, &ours).unwrap().pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What etcd's side demands: our certificate from the client.
    fn server(&self) -> ServerConfig {
        let certificate = |name| CertificateDer::from_pem_file(self.file(name)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let key = PrivateKeyDer::from_pem_file(self.file("server.key")).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![certificate("server")], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }
}

/// TLS in front of an etcd that speaks plain text.
async fn terminate(listener: TcpListener, config: ServerConfig, etcd: SocketAddr) {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    while let Ok((client, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let Ok(mut client) = acceptor.accept(client).await else {
                return;
            };
            let mut server = TcpStream::connect(etcd).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

#[test]
fn tls_on_both_sides() {
    let etcd = Etcd::start().unwrap();
    let certificates = Certificates::make();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime
        .block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .unwrap();
    let mut options = options(listener.local_addr().unwrap());
    runtime.spawn(terminate(listener, certificates.server(), etcd.address()));
    let token = take(&etcd, "a");
    let ours = Some((certificates.file("client"), certificates.file("client.key")));

    for (what, ca, identity) in [
        ("a stranger's authority", "stranger", ours.clone()),
        ("no certificate", "ca", None),
    ] {
        options.tls = Some(EtcdTls {
            ca: Some(certificates.file(ca)),
            identity,
        });
        let folder = tempfile::tempdir().unwrap();
        let asked = Asked::start(options.clone(), folder.path());
        assert_eq!(asked.read("a"), Err(Unreadable::Unavailable), "{what}");
    }
    // The right authority comes into the file later.
    let ca = certificates.file("changed");
    fs::copy(certificates.file("stranger"), &ca).unwrap();
    options.tls = Some(EtcdTls {
        ca: Some(ca.clone()),
        identity: ours,
    });
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options, folder.path());
    assert_eq!(asked.read("a"), Err(Unreadable::Unavailable));
    fs::copy(certificates.file("ca"), &ca).unwrap();
    assert_eq!(asked.grant("a"), Some(token));
    asked.heard.wait_for("a", token);
}
