//! The command line: as typed, then checked. Nothing else reads the environment.

use clap::{Args, Parser, Subcommand, ValueEnum};
use palisade_lease::{LeaseName, LeaseStore, LeaseUrl, etcd::EtcdOptions, etcd::EtcdStore};
use std::{ffi::OsString, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

/// Runs jobs under leases with fencing tokens.
#[derive(Debug, Parser)]
#[command(name = "palisade-lease", version, about, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes of `run`: CMD's own (128+n for a signal), 75 held elsewhere, 69 lease store unreachable,
76 the lease was lost while CMD ran, 64 usage, 127/126 CMD not found / not executable.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lease
    Run(Box<Run>),
    /// Show one lease: exit 0 if it is held, 1 if it is free
    Status {
        #[command(flatten)]
        store: Store,
        /// The lease
        name: LeaseName,
        /// JSON instead of text
        #[arg(long, env = "PALISADE_JSON")]
        json: bool,
    },
    /// Show all leases
    List {
        #[command(flatten)]
        store: Store,
        /// Only those whose names begin so
        #[arg(default_value = "")]
        prefix: String,
        /// JSON instead of text
        #[arg(long, env = "PALISADE_JSON")]
        json: bool,
    },
    /// Print a line for each grant, release and expiry of a lease
    Watch {
        #[command(flatten)]
        store: Store,
        /// The lease
        name: LeaseName,
        /// JSON instead of text, one object a line
        #[arg(long, env = "PALISADE_JSON")]
        json: bool,
    },
    /// Free a stuck lease, only if its token still is N
    Release {
        #[command(flatten)]
        store: Store,
        /// The lease
        name: LeaseName,
        /// The token that `status` shows
        #[arg(long, value_name = "N", value_parser = token)]
        token: palisade_lease::FencingToken,
        /// JSON instead of text
        #[arg(long, env = "PALISADE_JSON")]
        json: bool,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    Man {
        /// The folder to write them to
        dir: PathBuf,
    },
}

/// What happens to the job when its lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// SIGTERM shortly before the deadline, SIGKILL at the deadline
    Term,
    /// SIGKILL at the deadline
    Kill,
    /// Nothing: the job runs on, and only the fence stops its writes
    Ignore,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) store: Store,
    /// The lease
    pub(crate) name: LeaseName,
    /// How long the lease outlives a holder that has died
    #[arg(long, env = "PALISADE_TTL", value_name = "DUR", default_value = "15s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// How long before the end of the TTL the lease counts as lost [default: max(500ms, TTL/10)]
    #[arg(long, env = "PALISADE_MARGIN", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub(crate) margin: Option<Duration>,
    /// Write a JSON file with `outcome`, `token`, `exit` and `reason` at the end
    #[arg(long, env = "PALISADE_RESULT_FILE", value_name = "FILE")]
    pub(crate) result_file: Option<PathBuf>,
    /// Send a read with the token to this URL (the proxy) right after the grant, so that older tokens are closed before
    /// CMD starts
    #[arg(long, env = "PALISADE_ANNOUNCE", value_name = "URL")]
    pub(crate) announce: Option<http::Uri>,
    /// Serve metrics here while CMD runs
    #[arg(long, env = "PALISADE_METRICS", value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Wait this long at most [default: for ever]
    #[arg(long, env = "PALISADE_WAIT", value_name = "DUR", value_parser = humantime::parse_duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Like --wait, in seconds, as flock(1) has it
    #[arg(short = 'w', long = "timeout", value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["wait", "no_wait"])]
    pub(crate) wait_seconds: Option<Duration>,
    /// Don't wait
    #[arg(short = 'n', long, visible_aliases = ["nonblock", "nb"], env = "PALISADE_NO_WAIT")]
    pub(crate) no_wait: bool,
    /// The exit code when the lease is held elsewhere
    #[arg(
        short = 'E',
        long,
        env = "PALISADE_CONFLICT_EXIT_CODE",
        value_name = "CODE",
        default_value_t = 75
    )]
    pub(crate) conflict_exit_code: u8,
    /// Take the lease from whoever holds it
    #[arg(long, env = "PALISADE_STEAL")]
    pub(crate) steal: bool,
    /// What happens to CMD when the lease is lost
    #[arg(long, env = "PALISADE_ON_LOST", value_enum, default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// How long CMD may take to end after SIGTERM before it is killed
    #[arg(long, env = "PALISADE_GRACE", value_name = "DUR", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) grace: Duration,
    /// What the holder calls itself [default: host:pid]
    #[arg(long, env = "PALISADE_HOLDER", value_name = "TEXT")]
    pub(crate) holder: Option<String>,
    /// How long to try while the lease store has not answered at all
    #[arg(long, env = "PALISADE_PATIENCE", value_name = "DUR", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) patience: Duration,
    /// No progress messages, even on a terminal
    #[arg(short, long, env = "PALISADE_QUIET")]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// How long to wait; `None` is for ever.
    pub(crate) fn waiting_time(&self) -> Option<Duration> {
        self.wait.or(self.wait_seconds)
    }
}

/// Where the leases are, and how to get in.
#[derive(Debug, Args)]
#[command(next_help_heading = "Lease store")]
pub(crate) struct Store {
    /// etcd://host:port,host:port, etcds:// for TLS, or sqlite:/path for the processes of one host
    #[arg(long, env = "PALISADE_LEASES", value_name = "URL")]
    leases: Option<LeaseUrl>,
    /// etcd's endpoints, where --leases is absent
    #[arg(long, env = "ETCDCTL_ENDPOINTS", value_name = "LIST", hide = true)]
    etcdctl_endpoints: Option<String>,
    /// etcd: user
    #[arg(long, env = "PALISADE_ETCD_USER", value_name = "NAME")]
    etcd_user: Option<String>,
    /// etcd: file with the user's password
    #[arg(long, env = "PALISADE_ETCD_PASSWORD_FILE", value_name = "FILE")]
    etcd_password_file: Option<PathBuf>,
    /// `name:password` or `name`, as etcdctl takes it
    #[arg(
        long,
        env = "ETCDCTL_USER",
        value_name = "USER",
        hide = true,
        hide_env_values = true
    )]
    etcdctl_user: Option<String>,
    /// The password for that
    #[arg(
        long,
        env = "ETCDCTL_PASSWORD",
        value_name = "PASSWORD",
        hide = true,
        hide_env_values = true
    )]
    etcdctl_password: Option<String>,
    /// etcd: certificates to trust (PEM) [default: the system's]
    #[arg(long, env = "PALISADE_ETCD_CA", value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// etcd: own certificate (PEM)
    #[arg(
        long,
        env = "PALISADE_ETCD_CERT",
        value_name = "FILE",
        requires = "etcd_key"
    )]
    etcd_cert: Option<PathBuf>,
    /// etcd: own private key (PEM)
    #[arg(long, env = "PALISADE_ETCD_KEY", value_name = "FILE")]
    etcd_key: Option<PathBuf>,
    #[arg(long, env = "ETCDCTL_CACERT", hide = true)]
    etcdctl_cacert: Option<PathBuf>,
    #[arg(long, env = "ETCDCTL_CERT", hide = true)]
    etcdctl_cert: Option<PathBuf>,
    #[arg(long, env = "ETCDCTL_KEY", hide = true)]
    etcdctl_key: Option<PathBuf>,
    /// etcd: prefix of all keys [default: /palisade/]
    #[arg(long, env = "PALISADE_ETCD_PREFIX", value_name = "PREFIX")]
    etcd_prefix: Option<String>,
}

impl Store {
    /// The lease store, not connected yet.
    pub(crate) fn open(&self) -> Result<Arc<dyn LeaseStore>, String> {
        let url = match (&self.leases, &self.etcdctl_endpoints) {
            (Some(url), _) => url.clone(),
            (None, Some(list)) => {
                LeaseUrl::from_etcdctl_endpoints(list).map_err(|e| e.to_string())?
            }
            (None, None) => {
                return Err("where are the leases? --leases URL or PALISADE_LEASES, e.g. etcd://127.0.0.1:2379".to_owned());
            }
        };
        match EtcdOptions::from_url(&url) {
            Some(options) => Ok(Arc::new(EtcdStore::new(self.etcd_options(options)?))),
            None => palisade_lease::open(&url).map_err(|e| e.to_string()),
        }
    }

    fn etcd_options(&self, mut options: EtcdOptions) -> Result<EtcdOptions, String> {
        options.user.clone_from(&self.etcd_user);
        if let Some(file) = &self.etcd_password_file {
            let password =
                std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
            options.password = Some(password.trim_end_matches(['\r', '\n']).to_owned());
        }
        if let (None, Some(user)) = (&options.user, &self.etcdctl_user) {
            let (name, password) = user.split_once(':').unzip();
            options.user = Some(name.unwrap_or(user).to_owned());
            options.password = options.password.or(password.map(str::to_owned));
        }
        options.password = options.password.or(self.etcdctl_password.clone());
        options.ca = self.etcd_ca.clone().or(self.etcdctl_cacert.clone());
        options.cert = self.etcd_cert.clone().or(self.etcdctl_cert.clone());
        options.key = self.etcd_key.clone().or(self.etcdctl_key.clone());
        options.prefix.clone_from(&self.etcd_prefix);
        Ok(options)
    }

    /// The key of a lease in etcd, for `ETCD_LOCK_KEY`.
    pub(crate) fn key(&self, name: &LeaseName) -> String {
        let prefix = self
            .etcd_prefix
            .as_deref()
            .unwrap_or(palisade_lease::etcd::DEFAULT_PREFIX);
        palisade_lease::etcd::Keys::new(prefix).lease(name)
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

fn token(text: &str) -> Result<palisade_lease::FencingToken, String> {
    palisade_lease::FencingToken::parse(text.as_bytes()).map_err(|e| e.to_string())
}
