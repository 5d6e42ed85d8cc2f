//! Connections to etcd. The client library neither reconnects streams nor looks after the health of its endpoints, so:
//! one client per endpoint, taken in turn, and whoever meets a failure moves on to the next.

use crate::{LeaseUrl, store::StoreError};
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tokio::sync::Mutex;

/// How often HTTP/2 asks whether the other side is there. etcd cuts connections that are asked more often than every
/// 5 s (`--grpc-keepalive-min-time`).
const PING_EVERY: Duration = Duration::from_secs(6);
/// How long such an answer may take.
const PING_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How to reach an etcd.
#[derive(Clone, Default)]
pub struct EtcdOptions {
    /// `host:port`, at least one.
    pub endpoints: Vec<String>,
    /// Whether to speak TLS.
    pub tls: bool,
    /// A user, if etcd asks for one.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// File with the certificates (PEM) that etcd's certificate must come from; the system's own when absent.
    pub ca: Option<PathBuf>,
    /// File with the own certificate (PEM), for mutual TLS.
    pub cert: Option<PathBuf>,
    /// File with the own private key (PEM).
    pub key: Option<PathBuf>,
    /// Prefix of all keys; [`super::DEFAULT_PREFIX`] when absent.
    pub prefix: Option<String>,
}

impl EtcdOptions {
    /// For the endpoints of a URL; `None` if it is not etcd's.
    pub fn from_url(url: &LeaseUrl) -> Option<Self> {
        match url {
            LeaseUrl::Etcd { endpoints, tls } => Some(Self {
                endpoints: endpoints.clone(),
                tls: *tls,
                ..Self::default()
            }),
            LeaseUrl::Sqlite(_) => None,
        }
    }

    fn url(&self, endpoint: &str) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{endpoint}")
    }

    /// Reads the certificates anew each time, so that renewed ones count from the next connection on.
    fn connect_options(&self) -> Result<ConnectOptions, Error> {
        let mut options = ConnectOptions::new()
            .with_keep_alive(PING_EVERY, PING_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_tcp_keepalive(Duration::from_secs(10))
            // A member that has lost its leader then says so instead of keeping a watch silent.
            .with_require_leader(true);
        if let Some(user) = &self.user {
            options = options
                .with_user(user, self.password.clone().unwrap_or_default())
                .with_auto_token_refresh(true);
        }
        if self.tls {
            let mut tls = match &self.ca {
                Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?)),
                None => TlsOptions::new().ca_certificates(system_roots()?),
            };
            if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
                tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
            }
            options = options.with_tls(tls);
        }
        Ok(options)
    }
}

impl fmt::Debug for EtcdOptions {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, io::Error> {
    fs::read(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// The system's own trusted certificates: Debian's and Red Hat's places, or where `SSL_CERT_FILE` says.
fn system_roots() -> Result<Vec<Certificate>, io::Error> {
    let places = [
        std::env::var_os("SSL_CERT_FILE").map(PathBuf::from),
        Some("/etc/ssl/certs/ca-certificates.crt".into()),
        Some("/etc/pki/tls/certs/ca-bundle.crt".into()),
    ];
    let found = places.into_iter().flatten().find(|place| place.is_file());
    let found = found.ok_or_else(|| {
        io::Error::other("no trusted certificates on this system: name a CA file")
    })?;
    Ok(vec![Certificate::from_pem(read(&found)?)])
}

/// A client for the first endpoint that answers. TLS, user, HTTP/2 keep-alive are set up as the options say; calls have
/// no time limit of their own.
///
/// # Errors
/// Of the last endpoint tried.
pub async fn connect(options: &EtcdOptions) -> Result<Client, StoreError> {
    let endpoints = Endpoints::new(options.clone());
    let mut last = StoreError::Unreachable("no endpoint".to_owned());
    for _ in &options.endpoints {
        let (client, at) = match endpoints.client().await {
            Ok(found) => found,
            Err(error) => {
                last = error;
                continue;
            }
        };
        let mut maintenance = client.maintenance_client();
        // Connecting is lazy: only an answer shows that somebody is there.
        let probe = tokio::time::timeout(CONNECT_TIMEOUT, maintenance.status());
        match probe.await {
            Ok(Ok(_)) => return Ok(client),
            Ok(Err(error)) => last = endpoints.failed(at, error).await.error,
            Err(_) => last = endpoints.gave_up(at),
        }
    }
    Err(last)
}

/// One client per endpoint, taken in turn.
pub struct Endpoints {
    options: EtcdOptions,
    clients: Vec<Mutex<Option<Client>>>,
    current: AtomicUsize,
}

/// What became of a failed call.
#[derive(Debug)]
pub struct Failed {
    /// The failure, in the terms of a lease store.
    pub error: StoreError,
}

/// A call given up half-way says of its endpoint what a failure says.
pub(super) struct Unanswered<'a> {
    endpoints: &'a Endpoints,
    at: usize,
    answered: bool,
}

impl<'a> Unanswered<'a> {
    pub(super) fn new(endpoints: &'a Endpoints, at: usize) -> Self {
        Self {
            endpoints,
            at,
            answered: false,
        }
    }

    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.endpoints.move_on(self.at);
        }
    }
}

impl Endpoints {
    /// Connects to nothing yet.
    pub fn new(options: EtcdOptions) -> Self {
        Self {
            clients: options.endpoints.iter().map(|_| Mutex::default()).collect(),
            options,
            current: AtomicUsize::new(0),
        }
    }

    /// What it was made of.
    pub fn options(&self) -> &EtcdOptions {
        &self.options
    }

    /// The client of the current endpoint, and which one that is.
    ///
    /// # Errors
    /// If there can be none: certificates that can't be read, a refused password, nobody there to check it.
    pub async fn client(&self) -> Result<(Client, usize), StoreError> {
        let count = self.clients.len();
        if count == 0 {
            return Err(StoreError::Denied(
                "no etcd endpoint is configured".to_owned(),
            ));
        }
        let at = self.current.load(Ordering::Relaxed) % count;
        let mut slot = self.clients[at].lock().await;
        if let Some(client) = &*slot {
            return Ok((client.clone(), at));
        }
        let made = match self.options.connect_options() {
            Ok(options) => {
                let url = self.options.url(&self.options.endpoints[at]);
                // With a user it asks etcd for a token at once, which may hang.
                let unanswered = Unanswered::new(self, at);
                let made =
                    tokio::time::timeout(CONNECT_TIMEOUT, Client::connect([url], Some(options)))
                        .await;
                unanswered.answered();
                made
            }
            Err(error) => return Err(StoreError::Denied(error.to_string())),
        };
        match made {
            Ok(Ok(client)) => {
                *slot = Some(client.clone());
                Ok((client, at))
            }
            Ok(Err(error)) => {
                self.move_on(at);
                Err(translate(&error))
            }
            Err(_) => Err(self.gave_up(at)),
        }
    }

    /// Takes note that a call on this endpoint failed: the next call goes to the next one, and what makes a client
    /// useless (an outdated token that the library does not renew) drops it.
    pub async fn failed(&self, at: usize, error: Error) -> Failed {
        let translated = translate(&error);
        if let StoreError::Unreachable(_) = translated {
            self.move_on(at);
            // "revision of auth store is old" comes as InvalidArgument, which the library does not renew the token for.
            if error.to_string().contains("auth") {
                *self.clients[at].lock().await = None;
            }
        }
        Failed { error: translated }
    }

    /// Takes note that a call on this endpoint was given up without an answer.
    pub fn gave_up(&self, at: usize) -> StoreError {
        self.move_on(at);
        let name = self.options.endpoints.get(at).map_or("", String::as_str);
        StoreError::Unreachable(format!("{name}: no answer in time"))
    }

    /// Only if nobody else has moved on already: many calls fail at once when an endpoint does.
    fn move_on(&self, from: usize) {
        let next = (from + 1) % self.clients.len().max(1);
        let _ = self
            .current
            .compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoints")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// gRPC status codes (grpc.io, "Status codes").
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
}

/// An error of the client library in the terms of a lease store.
fn translate(error: &Error) -> StoreError {
    match error {
        Error::GRpcStatus(status) => {
            let message = status.message();
            match i32::from(status.code()) {
                code::NOT_FOUND if message.contains("lease") => StoreError::SessionGone,
                // Passes once the token is renewed: a user was changed.
                code::INVALID_ARGUMENT if message.contains("auth store is old") => {
                    StoreError::Unreachable(message.to_owned())
                }
                code::INVALID_ARGUMENT | code::PERMISSION_DENIED => {
                    StoreError::Denied(message.to_owned())
                }
                // Too many requests pass, a full database does not.
                code::RESOURCE_EXHAUSTED if message.contains("space exceeded") => {
                    StoreError::Denied(message.to_owned())
                }
                _ => StoreError::Unreachable(reason(error)),
            }
        }
        Error::LeaseKeepAliveError(message) if message.contains("not found") => {
            StoreError::SessionGone
        }
        Error::InvalidArgs(_) | Error::InvalidUri(_) => StoreError::Denied(error.to_string()),
        _ => StoreError::Unreachable(reason(error)),
    }
}

/// The error with its causes: the status alone often says no more than "transport error".
fn reason(error: &Error) -> String {
    let mut text = match error {
        Error::GRpcStatus(status) => status.message().to_owned(),
        _ => error.to_string(),
    };
    let mut cause = match error {
        Error::GRpcStatus(status) => std::error::Error::source(status),
        Error::TransportError(error) => std::error::Error::source(error),
        _ => None,
    };
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
