//! One connection to one etcd endpoint at a time, the next endpoint after each failure.
//!
//! etcd-client can balance over endpoints, but does not notice which of them is dead, does not open a broken stream
//! again, and keeps credentials and certificates as they were at the connect. So a client that failed in any way is
//! thrown away, and the next one reads its password and certificates anew.

use super::members::Registration;
use crate::state as store;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, ResponseHeader, TlsOptions};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// HTTP/2 pings: without them a peer that is gone without a word is never noticed.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Where systems keep the certificates that they trust; the first that exists is used when no `ca` is set.
const SYSTEM_CA: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// How etcd is reached and asked.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// `host:port` of each endpoint; at least one.
    pub endpoints: Vec<String>,
    /// TLS to all of them; `None` for plain text.
    pub tls: Option<EtcdTls>,
    /// User and the file with its password, whose trailing line end is not part of it.
    pub user: Option<(String, PathBuf)>,
    /// What all keys begin with, `/palisade/` by default.
    pub prefix: String,
    /// How long one call may take, over all endpoints that are tried for it.
    pub timeout: Duration,
    /// The least time between two transactions.
    pub read_interval: Duration,
    /// How often the store's identity is checked when nothing else is read.
    pub check_interval: Duration,
    /// The member key to register, which a single proxy does; `None` where that is done elsewhere.
    pub registration: Option<Registration>,
    /// Whether to watch all leases; not where a group's task does that.
    pub watch: bool,
}

impl EtcdOptions {
    /// Plain text to these endpoints, and the usual values for the rest.
    pub fn new(endpoints: impl IntoIterator<Item = String>) -> Self {
        Self {
            endpoints: endpoints.into_iter().collect(),
            tls: None,
            user: None,
            prefix: "/palisade/".to_owned(),
            timeout: Duration::from_secs(5),
            read_interval: Duration::from_millis(10),
            check_interval: Duration::from_secs(5),
            registration: None,
            watch: true,
        }
    }

    /// The prefix of all lease keys.
    pub(crate) fn leases(&self) -> String {
        format!("{}leases/", self.prefix)
    }

    /// The key that a new epoch writes. Always readable, and nearly never there.
    pub(crate) fn epoch(&self) -> String {
        format!("{}epoch", self.prefix)
    }
}

/// Files for TLS to etcd; read at each connect, so that new ones count from the next connect on.
#[derive(Clone, Debug, Default)]
pub struct EtcdTls {
    /// The certificates that etcd's is checked against; the system's if absent.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key, where etcd wants one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why a call to etcd gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Etcd(#[from] etcd_client::Error),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("{0}")]
    Files(#[from] io::Error),
    #[error("{0}")]
    Other(String),
}

/// A client for one endpoint, made when it is needed.
pub(crate) struct Link {
    options: Arc<EtcdOptions>,
    at: usize,
    client: Option<Client>,
}

impl Link {
    /// Begins at a random endpoint, so that a fleet spreads over the members.
    pub(crate) fn new(options: Arc<EtcdOptions>) -> Self {
        let at = fastrand::usize(..options.endpoints.len().max(1));
        Self {
            options,
            at,
            client: None,
        }
    }

    /// The client; etcd-client connects lazily, so having one says nothing about etcd, except with a user, who is
    /// authenticated here.
    pub(crate) async fn client(&mut self) -> Result<&mut Client, Failure> {
        let client = match self.client.take() {
            Some(client) => client,
            None => connect(&self.options, self.at).await?,
        };
        Ok(self.client.insert(client))
    }

    /// Gives up on this client; the next one is for the next endpoint.
    pub(crate) fn rotate(&mut self) {
        self.client = None;
        self.at = (self.at + 1) % self.options.endpoints.len().max(1);
    }

    /// Where the next call goes, for messages.
    pub(crate) fn endpoint(&self) -> &str {
        self.options
            .endpoints
            .get(self.at)
            .map_or("no endpoint", String::as_str)
    }
}

async fn connect(options: &EtcdOptions, at: usize) -> Result<Client, Failure> {
    let endpoint = options
        .endpoints
        .get(at)
        .ok_or_else(|| Failure::Other("no endpoint is configured".to_owned()))?;
    let scheme = if options.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let client = Client::connect(
        [format!("{scheme}://{endpoint}")],
        Some(connect_options(options)?),
    );
    within(options.timeout, client).await
}

fn connect_options(options: &EtcdOptions) -> io::Result<ConnectOptions> {
    let mut connect = ConnectOptions::new()
        .with_keep_alive(PING_EVERY, PING_TIMEOUT)
        .with_keep_alive_while_idle(true)
        .with_connect_timeout(options.timeout)
        .with_tcp_keepalive(PING_EVERY)
        // A member that is cut off from its leader says so, rather than nothing.
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some(tls) = &options.tls {
        connect = connect.with_tls(tls_options(tls)?);
    }
    if let Some((user, password)) = &options.user {
        connect = connect.with_user(
            user,
            String::from_utf8_lossy(&read(password)?).trim_end_matches(['\r', '\n']),
        );
    }
    Ok(connect)
}

fn tls_options(tls: &EtcdTls) -> io::Result<TlsOptions> {
    let ca = match &tls.ca {
        Some(ca) => ca.clone(),
        None => SYSTEM_CA
            .iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .ok_or_else(|| {
                io::Error::other("this system has no list of trusted certificates: set `ca`")
            })?,
    };
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(read(&ca)?));
    if let Some((certificate, key)) = &tls.identity {
        options = options.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(options)
}

/// Which store answered, and how far it is.
pub(crate) fn identity(header: Option<&ResponseHeader>) -> Result<store::Identity, Failure> {
    let header = header.ok_or_else(|| Failure::Other("an answer without a header".to_owned()))?;
    Ok(store::Identity {
        cluster_id: header.cluster_id(),
        revision: u64::try_from(header.revision()).unwrap_or(0),
    })
}

/// A file's content, or an error that names it.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Bounds one call: etcd-client's own timeout covers streams as well and says "cancelled".
pub(crate) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::Late(limit)),
    }
}
