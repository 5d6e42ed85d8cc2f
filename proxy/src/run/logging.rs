//! Logs, on stderr.

use crate::config::{Log, LogFormat};
use tracing_subscriber::{
    EnvFilter, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

/// Changes the log level at run time.
pub(super) type LevelHandle = reload::Handle<EnvFilter, Registry>;

/// A filter from the setting `log.level`, which was checked when it was read.
pub(super) fn filter(log: &Log) -> EnvFilter {
    EnvFilter::builder().parse_lossy(&log.level)
}

/// Starts logging. A second start in one process changes nothing.
pub(super) fn start(log: &Log) -> LevelHandle {
    let (filter, handle) = reload::Layer::new(filter(log));
    let registry = tracing_subscriber::registry().with(filter);
    let stderr = std::io::stderr;
    let _ = match log.format {
        LogFormat::Json => registry
            .with(fmt::layer().json().flatten_event(true).with_writer(stderr))
            .try_init(),
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&stderr());
            registry
                .with(fmt::layer().with_ansi(colours).with_writer(stderr))
                .try_init()
        }
    };
    handle
}
