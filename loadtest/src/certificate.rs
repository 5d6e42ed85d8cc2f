//! A certificate for a measurement or a test: made on the spot, for loopback, trusted by the client that is made with it.

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Its files, PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Both in one file, as HAProxy wants them.
    pub both: PathBuf,
    der: CertificateDer<'static>,
}

impl Certificate {
    /// Makes one with its files in a folder.
    ///
    /// # Errors
    /// If it can't be made or written.
    pub fn make(folder: &Path) -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
            .map_err(io::Error::other)?;
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let certificate = Self {
            cert: folder.join("cert.pem"),
            key: folder.join("key.pem"),
            both: folder.join("both.pem"),
            der: made.cert.der().clone(),
        };
        fs::write(&certificate.both, format!("{cert}{key}"))?;
        fs::write(&certificate.cert, cert)?;
        fs::write(&certificate.key, key)?;
        Ok(certificate)
    }

    /// What a client needs that trusts it, and speaks this protocol (RFC 7301's name of it).
    ///
    /// # Errors
    /// If rustls does not take it.
    pub fn client(&self, alpn: &str) -> io::Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        Ok(Arc::new(config))
    }
}
