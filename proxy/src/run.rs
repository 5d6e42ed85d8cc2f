//! `palisade run`: puts the parts together, and takes them down in order.

mod leases;
mod logging;
mod reload;
mod stop;

use crate::{
    admin::{self, Admin, AdminListener, CONTROL_SOCKET},
    cli::exit,
    config::{self, Listen, Settings, Sources, Upstream},
    forward::{AccessLog, Forwarder, Live, Shared, UpBody},
    gate::{Gate, GateSettings, Settle},
    metrics::{self, RequestMetrics},
    server::{self, Bound, ServerConfig},
    state::{OpenError, State},
    tls::{self, ServerTls},
    upstream::{Pool, PoolConfig, SocketConnector, Target, TlsTarget},
};
use arc_swap::ArcSwap;
use leases::LeaseStore;
use palisade_lease::clock::{BootClock, boot};
use std::{
    io,
    path::Path,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};
use tokio::net::{TcpListener, UnixListener};

/// How often idle scopes are looked for, to drop them from memory.
const SWEEP: Duration = Duration::from_secs(10);
/// How often the connections to upstream are counted.
const COUNT: Duration = Duration::from_secs(1);
/// How often what was measured is put into its buckets.
const FOLD: Duration = Duration::from_millis(500);
/// Idle connections to upstream, per thread.
const IDLE_CONNECTIONS: usize = 512;
/// The most that is buffered of one upstream response at a time.
const UPSTREAM_BUFFER: usize = 256 * 1024;

/// Why the proxy did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings are wrong.
    #[error("{0}")]
    Config(String),
    /// The state folder can't be used.
    #[error("{0}")]
    State(#[from] OpenError),
    /// Certificates or keys can't be used.
    #[error("{0}")]
    Tls(#[from] tls::TlsError),
    /// A socket can't be listened on.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl RunError {
    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Tls(_) => exit::CONFIG,
            Self::State(_) => exit::STATE,
            Self::Listen { .. } | Self::System { .. } => exit::FAILED,
        }
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::System { what, source }
}

/// Runs the proxy until it is told to end.
pub fn run(sources: &Sources) -> Result<(), RunError> {
    let settings = load(sources)?;
    let (log_level, _flush) =
        logging::start(&settings.log).map_err(system("starting the log's thread"))?;
    settings
        .warnings
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    // One provider for all of rustls, etcd's client included.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let prometheus = metrics::install().map_err(|error| RunError::Config(error.to_string()))?;
    let control = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(system("starting the control thread"))?;
    let signals = {
        let _runtime = control.enter();
        stop::Signals::catch()?
    };
    let threads = threads(settings.threads);
    // Sockets first: a second process on the same address must not touch the state.
    let bound = bind(&settings, threads)?;
    let state = Arc::new(State::open(
        &settings.state,
        crate::state::Options {
            fatal: |why| {
                tracing::error!("{why}");
                logging::exit(exit::STATE)
            },
        },
    )?);
    let front_tls = settings
        .tls
        .as_ref()
        .map(ServerTls::load)
        .transpose()?
        .map(Arc::new);
    let pool = pool_config(&settings)?;
    let addresses: Vec<String> = bound
        .iter()
        .map(|b| b.address().map_or_else(|| "unix".into(), |a| a.to_string()))
        .collect();
    let (gate, lease_store) = LeaseStore::with_gate(
        &settings,
        gate_settings(&settings),
        &state,
        &addresses.join(" "),
        control.handle(),
    )?;
    let shared = Arc::new(Shared {
        gate: Arc::clone(&gate),
        live: ArcSwap::from_pointee(live(&settings, 0)),
        in_flight: AtomicUsize::new(0),
        header_bytes: settings.limits.header_bytes,
        metrics: RequestMetrics::new(),
        refusals: Arc::default(),
    });
    let tls_switch = front_tls
        .as_ref()
        .map(|tls| Arc::new(ArcSwap::new(tls.config())));
    let connector = SocketConnector {
        target: target(&settings.upstream),
        user_timeout: settings.tcp_user_timeout(),
    };
    let make = {
        let shared = Arc::clone(&shared);
        move |_thread: usize| {
            let pool = Pool::new(connector.clone(), pool.clone());
            tokio::task::spawn_local(count_connections(pool.clone()));
            Rc::new(Forwarder::new(Arc::clone(&shared), pool))
        }
    };
    let running = server::start(
        bound,
        threads,
        server_config(&settings, tls_switch.clone()),
        make,
    )
    .map_err(system("starting the threads"))?;
    let admin = Arc::new(Admin {
        prometheus: prometheus.clone(),
        gate: Arc::clone(&gate),
        state: Arc::clone(&state),
        stopping: AtomicBool::new(false),
        upstream: settings.upstream.clone(),
        metric_scopes: settings.metric_scopes.clone(),
        lease_store: lease_store.probe(),
        new_epoch: lease_store.new_epoch(),
        holders: admin::Known::new(lease_store.holders()),
        connections: running.counts(),
        certificate: front_tls.clone(),
        refusals: Arc::clone(&shared.refusals),
        started: gate.now(),
        watchers: Arc::default(),
    });
    control.block_on(listen_admin(&settings, &admin))?;
    control.spawn(fold(prometheus));
    control.spawn(upkeep(
        Arc::clone(&gate),
        Arc::clone(&state),
        settings.fence.settle,
    ));
    let reloader = reload::Reloader {
        sources: sources.clone(),
        shared,
        settings: ArcSwap::from_pointee(settings),
        front_tls,
        tls_switch,
    };
    tracing::info!(
        listen = addresses.join(" "),
        threads,
        "palisade {} is running",
        env!("CARGO_PKG_VERSION")
    );
    control.block_on(stop::until_told(
        signals,
        &running.shutdown(),
        &admin,
        reloader,
        log_level,
    ))?;
    if !running.join() {
        tracing::error!("a thread has panicked; the stop counts as unclean");
        return Err(system("running")(io::Error::other("a thread has panicked")));
    }
    control.block_on(lease_store.stop());
    let unsettled = gate.unsettled();
    tracing::info!(unsettled = unsettled.len(), "stopped");
    state
        .stop_clean(unsettled)
        .map_err(|error| system("recording the stop")(io::Error::other(error.to_string())))
}

/// The settings, or everything that is wrong with them.
fn load(sources: &Sources) -> Result<Settings, RunError> {
    Settings::load(sources).map_err(|errors| RunError::Config(errors.to_string()))
}

fn threads(wanted: usize) -> usize {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        wanted => wanted,
    }
}

fn bind(settings: &Settings, threads: usize) -> Result<Vec<Bound>, RunError> {
    let inherited = server::inherited(threads).map_err(system("taking over systemd's sockets"))?;
    if !inherited.is_empty() {
        return Ok(inherited);
    }
    let each = settings.listen.iter().map(|listen| {
        let wanted = match listen {
            Listen::Tcp(address) => server::Listen::Tcp(*address),
            Listen::Unix(path) => server::Listen::Unix(path.clone()),
        };
        server::bind(&wanted, threads).map_err(|source| RunError::Listen {
            address: listen.to_string(),
            source,
        })
    });
    each.collect()
}

fn target(upstream: &Upstream) -> Target {
    match upstream {
        Upstream::Tcp { host, port, .. } => Target::Tcp(host.clone(), *port),
        Upstream::Unix(path) => Target::Unix(path.clone()),
    }
}

fn pool_config(settings: &Settings) -> Result<PoolConfig, RunError> {
    let tls = match &settings.upstream {
        Upstream::Tcp { tls: true, .. } => Some(TlsTarget {
            config: tls::client_config(&settings.upstream_tls)?,
            server_name: tls::upstream_name(&settings.upstream, &settings.upstream_tls)?,
        }),
        _ => None,
    };
    Ok(PoolConfig {
        connect_timeout: settings.limits.upstream_connect_timeout,
        response_timeout: settings.limits.upstream_response_timeout,
        idle_timeout: settings.limits.upstream_idle_timeout,
        max_idle: IDLE_CONNECTIONS,
        max_buffer: UPSTREAM_BUFFER,
        tls,
        clock: Arc::new(BootClock),
    })
}

fn server_config(settings: &Settings, tls: Option<server::TlsSwitch>) -> ServerConfig {
    let limits = &settings.limits;
    ServerConfig {
        tls,
        connections: limits.connections,
        header_bytes: limits.header_bytes,
        header_count: limits.header_count,
        header_timeout: limits.header_timeout,
        tls_handshake_timeout: limits.tls_handshake_timeout,
        keepalive_idle: limits.keepalive_idle,
        body_idle_timeout: limits.body_idle_timeout,
        response_idle_timeout: limits.response_idle_timeout,
        h2_streams: limits.http2_streams,
        drain_delay: limits.drain_delay,
        shutdown_timeout: limits.shutdown_timeout,
        ..ServerConfig::default()
    }
}

/// What a reload may change.
fn live(settings: &Settings, table: u64) -> Live {
    Live {
        table,
        routes: Arc::clone(&settings.routes),
        forwarding: settings.forwarding,
        buffer_body: settings.fence.buffer_body,
        in_flight: settings.limits.inflight,
        request_timeout: settings.limits.request_timeout,
        settle: match settings.fence.settle {
            config::Settle::After(settle) => Some(settle),
            config::Settle::Manual => None,
        },
        access: if settings.log.access {
            AccessLog::On
        } else {
            AccessLog::Off
        },
    }
}

fn gate_settings(settings: &Settings) -> GateSettings {
    let fence = &settings.fence;
    GateSettings {
        settle: match fence.settle {
            config::Settle::After(settle) => Settle::After(settle),
            config::Settle::Manual => Settle::Manual,
        },
        abort_after: fence.abort_after,
        drain_timeout: fence.drain_timeout,
        waiting: settings.limits.waiting,
    }
}

async fn listen_admin(settings: &Settings, admin: &Arc<Admin>) -> Result<(), RunError> {
    let control = settings.state.join(CONTROL_SOCKET);
    let listener = AdminListener::Control(bind_unix(&control)?);
    tokio::spawn(admin::serve(listener, Arc::clone(admin)));
    let listener = match &settings.admin {
        None => return Ok(()),
        Some(Listen::Unix(path)) => AdminListener::Unix(bind_unix(path)?),
        Some(Listen::Tcp(address)) => {
            let failed = |source| RunError::Listen {
                address: address.to_string(),
                source,
            };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            tracing::info!(admin = %listener.local_addr().map_err(failed)?, "admin");
            AdminListener::Tcp(listener)
        }
    };
    tokio::spawn(admin::serve(listener, Arc::clone(admin)));
    Ok(())
}

/// Takes over a socket file that was left behind. Nobody else can be using it: the state folder is locked.
fn bind_unix(path: &Path) -> Result<UnixListener, RunError> {
    let failed = |source| RunError::Listen {
        address: format!("unix:{}", path.display()),
        source,
    };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    UnixListener::bind(path).map_err(failed)
}

/// Tells this thread's part of the connections to upstream. From time to time, so that a request does not pay for it.
async fn count_connections(pool: Pool<SocketConnector, UpBody>) {
    let gauge =
        |state: &'static str| ::metrics::gauge!("palisade_upstream_connections", "state" => state);
    let (idle, busy) = (gauge("idle"), gauge("busy"));
    let mut told = (0.0, 0.0);
    loop {
        let counts = pool.counts();
        let now = (counts.idle as f64, counts.busy as f64);
        idle.increment(now.0 - told.0);
        busy.increment(now.1 - told.1);
        told = now;
        tokio::time::sleep(COUNT).await;
    }
}

/// What has to be done from time to time.
async fn upkeep(gate: Arc<Gate>, state: Arc<State>, settle: config::Settle) {
    // Leftovers of the run that is under way, until that was said to be settled. A new epoch begins another run.
    let by_time = matches!(settle, config::Settle::After(_));
    let (mut run, mut epochs, mut left) = (state.run(), 0, by_time);
    loop {
        let leftovers = gate.leftovers();
        if leftovers.epochs != epochs {
            (run, epochs, left) = (state.run(), leftovers.epochs, by_time);
        }
        let wait = leftovers.until.since(boot());
        if left && wait.is_zero() {
            left = false;
            state.all_settled(run);
        }
        tokio::time::sleep(if left { SWEEP.min(wait) } else { SWEEP }).await;
        gate.sweep();
    }
}

/// The exporter keeps each time that was taken until it is told to put them into their buckets: some megabytes a second.
async fn fold(prometheus: metrics_exporter_prometheus::PrometheusHandle) {
    loop {
        tokio::time::sleep(FOLD).await;
        prometheus.run_upkeep();
    }
}
