//! TLS on both sides: the certificates for clients, read anew when their files change, and the settings for upstream.
//! One provider, ring, in the whole program.

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    server::WebPkiClientVerifier,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::config::{Tls, Upstream, UpstreamTls};

mod expiry;

/// Why certificates can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read, or is not in PEM.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: rustls_pki_types::pem::Error,
    },
    /// A file has nothing in it that is of use here.
    #[error("{}: there is no certificate in it", .0.display())]
    Empty(PathBuf),
    /// A certificate authority's certificate is broken.
    #[error("{}: {source}", path.display())]
    Authority {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// Client certificates can't be asked for.
    #[error("{}: {source}", path.display())]
    Clients {
        /// The file with the authorities.
        path: PathBuf,
        /// Why.
        source: rustls::server::VerifierBuilderError,
    },
    /// Certificate and key don't go together, or are of no kind that is known.
    #[error("{}: {source}", path.display())]
    Pair {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The name that upstream's certificate should have is no name.
    #[error("{0:?} is no name that a certificate could have")]
    Name(String),
}

/// TLS for clients, with the last good certificate.
#[derive(Debug)]
pub struct ServerTls {
    files: Tls,
    current: ArcSwap<Loaded>,
    /// What the files looked like when they were last read, well or badly.
    seen: Mutex<Vec<Option<Stamp>>>,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    expiry: Option<i64>,
}

/// What tells a changed file: a new one under the name, another time or another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    seconds: i64,
    nanos: i64,
    size: u64,
}

impl ServerTls {
    /// Reads the files.
    pub fn load(files: &Tls) -> Result<Self, TlsError> {
        // Looked at before reading: a change in between is seen at the next look.
        let seen = stamps(files);
        let loaded = load(files)?;
        Ok(Self {
            files: files.clone(),
            current: ArcSwap::from_pointee(loaded),
            seen: Mutex::new(seen),
        })
    }

    /// For the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.load().config.clone()
    }

    /// For the next handshake, as an acceptor.
    pub fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        self.config().into()
    }

    /// When the certificate in use expires, in seconds since 1970; `None` if that can't be read.
    pub fn expiry(&self) -> Option<i64> {
        self.current.load().expiry
    }

    /// Reads the files again if they have changed since the last look. To be called every few seconds: it costs a stat
    /// of each file. On an error the last good pair stays, and the files are not read again before they change again.
    ///
    /// Says whether there is a new certificate.
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let now = stamps(&self.files);
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if *seen == now {
                return Ok(false);
            }
            *seen = now;
        }
        self.reload().map(|()| true)
    }

    /// Reads the files again. On an error the last good pair stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.current.store(Arc::new(load(&self.files)?));
        Ok(())
    }
}

fn stamps(files: &Tls) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let meta = fs::metadata(path).ok()?;
        Some(Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            seconds: meta.mtime(),
            nanos: meta.mtime_nsec(),
            size: meta.size(),
        })
    };
    [
        Some(&files.cert),
        Some(&files.key),
        files.client_ca.as_ref(),
    ]
    .into_iter()
    .flatten()
    .map(stamp)
    .collect()
}

fn load(files: &Tls) -> Result<Loaded, TlsError> {
    let chain = certificates(&files.cert)?;
    let expiry = chain.first().and_then(|leaf| expiry::not_after(leaf));
    let key = key(&files.key)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|source| pair(&files.cert, source))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(|source| TlsError::Clients {
                    path: path.clone(),
                    source,
                })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|source| pair(&files.cert, source))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // No early data (RFC 8470): whoever records it could replay a write.
    config.max_early_data_size = 0;
    Ok(Loaded {
        config: Arc::new(config),
        expiry,
    })
}

/// TLS to upstream. Trusts only the authorities of the settings.
pub fn client_config(settings: &UpstreamTls) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = match &settings.ca {
        Some(path) => authorities(path)?,
        None => RootCertStore::empty(),
    };
    let place = settings.cert.clone().unwrap_or_default();
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|source| pair(&place, source))?
        .with_root_certificates(roots);
    let mut config = match (&settings.cert, &settings.key) {
        (Some(cert), Some(key_file)) => builder
            .with_client_auth_cert(certificates(cert)?, key(key_file)?)
            .map_err(|source| pair(&place, source))?,
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The name that upstream's certificate must have: the settings' own, or the host's.
pub fn upstream_name(
    upstream: &Upstream,
    settings: &UpstreamTls,
) -> Result<ServerName<'static>, TlsError> {
    let host = match upstream {
        Upstream::Tcp { host, .. } => host.as_str(),
        Upstream::Unix(_) => "localhost",
    };
    let name = settings.server_name.as_deref().unwrap_or(host);
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn pair(path: &Path, source: rustls::Error) -> TlsError {
    TlsError::Pair {
        path: path.to_owned(),
        source,
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source| TlsError::File {
        path: path.to_owned(),
        source,
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(file)?
        .collect::<Result<_, _>>()
        .map_err(file)?;
    match chain.is_empty() {
        true => Err(TlsError::Empty(path.to_owned())),
        false => Ok(chain),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::File {
        path: path.to_owned(),
        source,
    })
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|source| TlsError::Authority {
                path: path.to_owned(),
                source,
            })?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests;
