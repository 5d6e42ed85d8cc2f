//! Settings, in two steps: as typed ([`Sources`] to [`Typed`]), then checked ([`Settings`]).
//!
//! Every setting is a key of the file, a flag and a variable of the environment; a flag wins over the environment,
//! that over the file. No other file reads the environment, and no other file parses or checks a setting. Everything
//! that is wrong is told at once, each with its place and a remedy.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{headers::Forwarding, route::RouteTable};

mod check;
mod flags;
pub mod keys;
mod relations;
mod routes;
mod show;
mod source;
mod value;

pub use flags::{SettingsArgs, StateArgs};
pub use source::{ConfigError, ConfigErrors, Given, Place, Raw, RouteGiven, Sources, Typed};
pub use value::{Leases, Listen, Upstream, show_duration, show_size};

/// Everything that the proxy was told, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// This proxy's name among the proxies of one lease store; no slash.
    pub name: String,
    /// Where clients connect; at least one.
    pub listen: Vec<Listen>,
    /// The datastore.
    pub upstream: Upstream,
    /// Where metrics and health are served; `None`: nowhere.
    pub admin: Option<Listen>,
    /// The state folder.
    pub state: PathBuf,
    /// The lease store.
    pub leases: Leases,
    /// Threads that serve; 0: one per core.
    pub threads: usize,
    /// What maps a request to its scope; with no routes, everything to `scope`.
    pub routes: Arc<RouteTable>,
    /// Logs.
    pub log: Log,
    /// Which fields tell upstream where a request came from.
    pub forwarding: Forwarding,
    /// The fence's own times and sizes.
    pub fence: Fence,
    /// How etcd is reached, if it is the lease store.
    pub etcd: Etcd,
    /// TLS for clients, if any.
    pub tls: Option<Tls>,
    /// TLS to upstream; only with an `https` upstream.
    pub upstream_tls: UpstreamTls,
    /// Limits and timeouts.
    pub limits: Limits,
    /// Which scopes have metrics of their own.
    pub metric_scopes: MetricScopes,
    /// The group of replicas; `None`: a single proxy.
    pub replicas: Option<Replicas>,
    /// What is allowed but probably not meant; to be logged at the start.
    pub warnings: Vec<String>,
}

/// How log lines are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Text or JSON.
    pub format: LogFormat,
    /// Directives for the filter, such as `info` or `info,palisade::gate=debug`.
    pub level: String,
    /// Whether each request gets a line.
    pub access: bool,
}

/// The two forms of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs: one JSON object a line.
    Json,
}

/// `[fence]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// How long an unanswered write may still be applied (design, A6).
    pub settle: Settle,
    /// How long a handover lets older writes finish sending before it cuts them.
    pub abort_after: Duration,
    /// How long a request waits for a handover.
    pub drain_timeout: Duration,
    /// Bodies up to this many bytes are read whole before anything is sent.
    pub buffer_body: usize,
}

/// When an ambiguous write is settled without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// This long after the last byte or the connection's end; above zero.
    After(Duration),
    /// When an operator says so: `palisade settle SCOPE`.
    Manual,
}

/// `[etcd]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Etcd {
    /// The user, if etcd asks for one. Has a password file.
    pub user: Option<String>,
    /// The file that holds the user's password.
    pub password_file: Option<PathBuf>,
    /// Certificate authorities.
    pub ca: Option<PathBuf>,
    /// Client certificate; has a key.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// What every key begins with; ends with a slash.
    pub prefix: String,
}

/// `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate with its chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Authorities of client certificates: mutual TLS.
    pub client_ca: Option<PathBuf>,
}

/// `[upstream_tls]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Certificate authorities.
    pub ca: Option<PathBuf>,
    /// Client certificate; has a key.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// The name that the certificate must have, if it is not the host's.
    pub server_name: Option<String>,
}

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Client connections at once.
    pub connections: usize,
    /// Requests at upstream at once.
    pub inflight: usize,
    /// Requests waiting for a handover at once.
    pub waiting: usize,
    /// Bytes of a request's head; at least 8 KiB.
    pub header_bytes: usize,
    /// Header fields of a request.
    pub header_count: usize,
    /// Requests at once on one HTTP/2 connection.
    pub http2_streams: u32,
    /// Time for a request's head, from its first byte.
    pub header_timeout: Duration,
    /// Time for a TLS handshake.
    pub tls_handshake_timeout: Duration,
    /// Longest pause within a request's body.
    pub body_idle_timeout: Duration,
    /// How long a client may take nothing of its response.
    pub response_idle_timeout: Duration,
    /// Longest pause between a client's requests.
    pub keepalive_idle: Duration,
    /// Time for a whole request; `None`: as long as it takes.
    pub request_timeout: Option<Duration>,
    /// Time to connect to upstream.
    pub upstream_connect_timeout: Duration,
    /// Time for upstream's answer once the request is sent.
    pub upstream_response_timeout: Duration,
    /// How long an idle connection to upstream is kept; zero: not at all.
    pub upstream_idle_timeout: Duration,
    /// How long a stopping proxy goes on accepting.
    pub drain_delay: Duration,
    /// How long a stopping proxy waits for requests under way.
    pub shutdown_timeout: Duration,
}

/// `metrics.scopes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricScopes {
    /// These.
    Named(Vec<String>),
    /// The busiest so many.
    Busiest(usize),
}

/// `[replicas]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The group in front of one datastore; no slash.
    pub group: String,
    /// After how long a silent replica has lost its place; whole seconds.
    pub session_ttl: Duration,
    /// The longest that a replica may be paused unnoticed (design, A7).
    pub max_pause: Duration,
}

impl Settings {
    /// Reads and checks everything. Reads files; changes nothing.
    pub fn load(sources: &Sources) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let typed = sources.read(&mut errors);
        let mut settings = check::settings(&typed, errors)?;
        settings.warnings.extend_from_slice(&sources.unknown_env);
        Ok(settings)
    }

    /// Where a setting was given.
    pub fn place(sources: &Sources, key: &str) -> Place {
        let typed = sources.read(&mut Vec::new());
        let given = typed.values.get(key);
        given.map_or(Place::Default, |given| given.place.clone())
    }

    /// How long the kernel tries to get sent bytes acknowledged before it gives the connection up
    /// (`TCP_USER_TIMEOUT`, tcp(7)): below `settle`, so that the kernel sends nothing after it (design, A6).
    pub fn tcp_user_timeout(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(15);
        match self.fence.settle {
            Settle::After(settle) => LONGEST.min(settle / 2).max(Duration::from_millis(1)),
            Settle::Manual => LONGEST,
        }
    }

    /// Settings that only a restart can change and that differ in `new`, by their names in the file.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        [
            ("name", self.name != new.name),
            ("listen", self.listen != new.listen),
            ("admin", self.admin != new.admin),
            ("state", self.state != new.state),
            ("leases", self.leases != new.leases),
            ("etcd", self.etcd != new.etcd),
            ("threads", self.threads != new.threads),
            ("replicas", self.replicas != new.replicas),
            ("tls", self.tls.is_some() != new.tls.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect()
    }
}

/// Reads only the state folder, for the commands that talk to a running proxy.
pub fn state_folder(sources: &Sources) -> Result<PathBuf, ConfigErrors> {
    let mut errors = Vec::new();
    let typed = sources.read(&mut errors);
    check::state_folder(&typed, errors)
}

#[cfg(test)]
mod tests;
