//! Logs, on stderr.

mod json;
mod lines;

use crate::config::{Log, LogFormat};
use json::JsonLines;
use lines::Lines;
use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};
use tracing_subscriber::{
    EnvFilter, Registry,
    fmt::{self, format::JsonFields},
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

/// Changes the log level at run time.
pub(super) type LevelHandle = reload::Handle<EnvFilter, Registry>;

/// The lines of this process.
static LINES: OnceLock<Lines> = OnceLock::new();

/// A filter from the setting `log.level`, which was checked when it was read.
pub(super) fn filter(log: &Log) -> EnvFilter {
    EnvFilter::builder().parse_lossy(&log.level)
}

/// Starts logging. A second start in one process changes nothing.
///
/// # Errors
/// If there can be no thread for it.
pub(super) fn start(log: &Log) -> io::Result<(LevelHandle, Flush)> {
    let (filter, handle) = reload::Layer::new(filter(log));
    let registry = tracing_subscriber::registry().with(filter);
    let lines = match LINES.get() {
        Some(lines) => lines.clone(),
        None => {
            let lines = Lines::start(io::stderr())?;
            LINES.get_or_init(|| lines).clone()
        }
    };
    let _ = match log.format {
        LogFormat::Json => registry
            .with(
                fmt::layer()
                    .fmt_fields(JsonFields::new())
                    .event_format(JsonLines::new())
                    .with_writer(lines),
            )
            .try_init(),
        LogFormat::Text => {
            let colours = io::stderr().is_terminal();
            registry
                .with(fmt::layer().with_ansi(colours).with_writer(lines))
                .try_init()
        }
    };
    Ok((handle, Flush))
}

/// Writes out what was logged when it is dropped.
#[derive(Debug)]
pub(super) struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        flush();
    }
}

/// Waits until what was logged is written, or its reader has stood still for a while.
fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush();
    }
}

/// Ends the process at once, but for the reason that stands in its log.
pub(super) fn exit(code: u8) -> ! {
    flush();
    std::process::exit(i32::from(code))
}
