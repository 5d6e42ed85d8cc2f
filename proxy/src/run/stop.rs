//! Signals, from the first SIGHUP to the last word.

use super::{RunError, logging, reload::Reloader, system};
use crate::{
    admin::Admin,
    cli::exit,
    server::{Shutdown, Stage},
};
use sd_notify::NotifyState;
use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often the certificate's files are looked at.
const CERTIFICATE: Duration = Duration::from_secs(5);

/// The signals that are followed.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on they are kept until they are followed. To be called within the runtime, and before there is anything that a
    /// signal's own way of ending the process would leave unclean.
    pub(super) fn catch() -> Result<Self, RunError> {
        let catch = |kind| signal(kind).map_err(system("catching signals"));
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }
}

/// Says that it is ready, follows signals, and ends the server in order.
pub(super) async fn until_told(
    signals: Signals,
    shutdown: &Shutdown,
    admin: &Arc<Admin>,
    reloader: Reloader,
    level: logging::LevelHandle,
) -> Result<(), RunError> {
    let Signals {
        mut terminate,
        mut interrupt,
        mut hangup,
    } = signals;
    let mut look = tokio::time::interval(CERTIFICATE);
    notify(&[NotifyState::Ready]);
    tokio::spawn(watchdog());
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {
                notify(&[NotifyState::Reloading, monotonic()]);
                reloader.reload(&level).await;
                notify(&[NotifyState::Ready]);
            }
            _ = look.tick() => reloader.look_at_certificate(),
        }
    }
    tracing::info!("stopping: requests under way may finish");
    notify(&[NotifyState::Stopping]);
    admin.stopping.store(true, Relaxed);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::warn!(
            "a second signal: ending at once. The next start will wait until older writes are settled"
        );
        logging::exit(exit::FAILED);
    });
    let (mut stage, gate) = (shutdown.stage(), Arc::clone(&admin.gate));
    tokio::spawn(async move {
        // Fails only when nobody is left who could move it on.
        if stage
            .wait_for(|stage| *stage > Stage::Serving)
            .await
            .is_ok()
        {
            gate.stop_waiting();
        }
    });
    let shutdown = shutdown.clone();
    tokio::spawn(async move { shutdown.orderly().await });
    Ok(())
}

fn monotonic() -> NotifyState<'static> {
    NotifyState::monotonic_usec_now().unwrap_or(NotifyState::Status("reloading"))
}

/// Tells systemd, if it asked to be told (sd_notify(3)).
fn notify(states: &[NotifyState<'_>]) {
    match sd_notify::notify(states) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(%error, "systemd was not notified"),
    }
}

/// Tells systemd that the control thread is alive, twice per watchdog interval.
async fn watchdog() {
    let Some(interval) = sd_notify::watchdog_enabled() else {
        return;
    };
    loop {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(interval / 2).await;
    }
}
