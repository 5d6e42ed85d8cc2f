use super::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;

/// An authority, and files with certificates from it.
struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.pem` and `NAME.key` for this host, expiring in this year.
    fn issue(&self, name: &str, host: &str, year: i32) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 2, 3);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.replace(&format!("{name}.pem"), &certificate.pem());
        self.replace(&format!("{name}.key"), &key.serialize_pem());
    }

    /// As certificate managers do it: another file takes the name.
    fn replace(&self, name: &str, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    fn server(&self, client_ca: bool) -> Tls {
        Tls {
            cert: self.path("server.pem"),
            key: self.path("server.key"),
            client_ca: client_ca.then(|| self.path("ca.pem")),
        }
    }

    fn client(&self, certificate: bool) -> UpstreamTls {
        UpstreamTls {
            ca: Some(self.path("ca.pem")),
            cert: certificate.then(|| self.path("client.pem")),
            key: certificate.then(|| self.path("client.key")),
            server_name: None,
        }
    }
}

/// One connection over loopback: a byte there and back, and the protocol that was agreed on.
async fn connect(
    server: &ServerTls,
    client: ClientConfig,
    host: &str,
) -> Result<Option<Vec<u8>>, std::io::Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let acceptor = server.acceptor();
    let serving = async {
        let (socket, _) = listener.accept().await?;
        let mut stream = acceptor.accept(socket).await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        stream.write_all(&byte).await?;
        stream.shutdown().await
    };
    let asking = async {
        let socket = TcpStream::connect(address).await?;
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut stream = TlsConnector::from(Arc::new(client))
            .connect(name, socket)
            .await?;
        stream.write_all(b"x").await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        Ok(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    let (_, asked) = tokio::join!(serving, asking);
    asked
}

fn client(authority: &Authority, certificate: bool) -> ClientConfig {
    ClientConfig::clone(&client_config(&authority.client(certificate)).unwrap())
}

#[tokio::test]
async fn clients_agree_on_a_protocol() {
    let authority = Authority::new();
    authority.issue("server", "localhost", 2099);
    let server = ServerTls::load(&authority.server(false)).unwrap();
    let agreed = connect(&server, client(&authority, false), "localhost")
        .await
        .unwrap();
    assert_eq!(agreed.as_deref(), Some(&b"http/1.1"[..]));
    let mut http2 = client(&authority, false);
    http2.alpn_protocols = vec![b"h2".to_vec()];
    let agreed = connect(&server, http2, "localhost").await.unwrap();
    assert_eq!(agreed.as_deref(), Some(&b"h2"[..]));
    assert!(
        connect(&server, client(&authority, false), "elsewhere")
            .await
            .is_err()
    );
    let stranger = Authority::new();
    assert!(
        connect(&server, client(&stranger, false), "localhost")
            .await
            .is_err()
    );
}

#[tokio::test]
async fn mutual_tls() {
    let authority = Authority::new();
    authority.issue("server", "localhost", 2099);
    authority.issue("client", "worker", 2099);
    let server = ServerTls::load(&authority.server(true)).unwrap();
    assert!(
        connect(&server, client(&authority, true), "localhost")
            .await
            .is_ok()
    );
    assert!(
        connect(&server, client(&authority, false), "localhost")
            .await
            .is_err()
    );
    let stranger = Authority::new();
    stranger.issue("client", "worker", 2099);
    let mut settings = stranger.client(true);
    settings.ca = authority.client(false).ca;
    let client = ClientConfig::clone(&client_config(&settings).unwrap());
    assert!(connect(&server, client, "localhost").await.is_err());
}

#[tokio::test]
async fn a_changed_certificate_is_taken_and_a_bad_one_is_not() {
    let authority = Authority::new();
    authority.issue("server", "localhost", 2040);
    let server = ServerTls::load(&authority.server(false)).unwrap();
    // 3 February 2040 and 2041, 0:00 UTC.
    assert_eq!(server.expiry(), Some(2_211_840_000));
    assert!(!server.reload_if_changed().unwrap(), "nothing has changed");
    authority.issue("server", "other", 2041);
    assert!(server.reload_if_changed().unwrap());
    assert_eq!(server.expiry(), Some(2_243_462_400));
    assert!(
        connect(&server, client(&authority, false), "other")
            .await
            .is_ok()
    );
    assert!(
        connect(&server, client(&authority, false), "localhost")
            .await
            .is_err()
    );

    // Cut short, of another pair, gone: the last good pair stays, and each is told once.
    authority.replace("server.pem", "-----BEGIN CERTIFICATE-----\nMIIB");
    assert!(matches!(
        server.reload_if_changed(),
        Err(TlsError::File { .. } | TlsError::Empty(_))
    ));
    assert!(!server.reload_if_changed().unwrap());
    authority.issue("mixed", "other", 2042);
    let mixed = fs::read_to_string(authority.path("mixed.pem")).unwrap();
    authority.replace("server.pem", &mixed);
    assert!(matches!(
        server.reload_if_changed(),
        Err(TlsError::Pair { .. })
    ));
    fs::remove_file(authority.path("server.pem")).unwrap();
    assert!(matches!(
        server.reload_if_changed(),
        Err(TlsError::File { .. })
    ));
    assert_eq!(server.expiry(), Some(2_243_462_400));
    assert!(
        connect(&server, client(&authority, false), "other")
            .await
            .is_ok()
    );

    // And a good one is taken again.
    authority.issue("server", "third", 2043);
    assert!(server.reload_if_changed().unwrap());
    assert!(
        connect(&server, client(&authority, false), "third")
            .await
            .is_ok()
    );
}

#[test]
fn faults_name_the_file() {
    let authority = Authority::new();
    let message = ServerTls::load(&authority.server(false))
        .unwrap_err()
        .to_string();
    assert!(message.contains("server.pem"), "{message}");
    authority.issue("server", "localhost", 2099);
    fs::write(authority.path("server.key"), "nothing").unwrap();
    let message = ServerTls::load(&authority.server(false))
        .unwrap_err()
        .to_string();
    assert!(message.contains("server.key"), "{message}");
    fs::write(authority.path("ca.pem"), "nothing").unwrap();
    let message = client_config(&authority.client(false))
        .unwrap_err()
        .to_string();
    assert!(message.contains("ca.pem"), "{message}");
}

#[test]
fn names_of_upstream() {
    let upstream = |host: &str| Upstream::Tcp {
        host: host.into(),
        port: 1,
        tls: true,
    };
    let own = UpstreamTls {
        server_name: Some("db.internal".into()),
        ..UpstreamTls::default()
    };
    let none = UpstreamTls::default();
    assert_eq!(
        upstream_name(&upstream("db"), &none).unwrap().to_str(),
        "db"
    );
    assert_eq!(
        upstream_name(&upstream("::1"), &none).unwrap().to_str(),
        "::1"
    );
    assert_eq!(
        upstream_name(&upstream("db"), &own).unwrap().to_str(),
        "db.internal"
    );
    assert!(upstream_name(&upstream("d b"), &none).is_err());
}

/// RFC 5280, section 4.1.2.5: years below 2050 are written with two digits, later ones with four.
#[test]
fn expiry_in_both_forms() {
    for (year, seconds) in [
        (1999, 918_000_000),
        (2024, 1_706_918_400),
        (2049, 2_495_923_200),
        (2050, 2_527_459_200),
        (2100, 4_105_296_000),
    ] {
        let mut params = CertificateParams::new(vec!["x".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(1990, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 2, 3);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(
            expiry::not_after(certificate.der()),
            Some(seconds),
            "{year}"
        );
    }
    for cut in 0..40 {
        assert_eq!(expiry::not_after(&[0x30; 40][..cut]), None);
    }
}
