//! SIGHUP: reads settings and certificates anew. What is wrong changes nothing.

use super::{live, load, logging};
use crate::{
    config::{Settings, Sources},
    forward::Shared,
    server::TlsSwitch,
    tls::ServerTls,
};
use arc_swap::ArcSwap;
use palisade_lease::clock::boot;
use std::{sync::Arc, time::Duration};

/// How often it is looked whether older writes have settled.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What a reload needs.
pub(super) struct Reloader {
    pub(super) sources: Sources,
    pub(super) shared: Arc<Shared>,
    pub(super) settings: ArcSwap<Settings>,
    pub(super) front_tls: Option<Arc<ServerTls>>,
    pub(super) tls_switch: Option<TlsSwitch>,
}

impl Reloader {
    /// Reads everything anew.
    pub(super) async fn reload(&self, level: &logging::LevelHandle) {
        let result = match self.apply(level).await {
            Ok(()) => "done",
            Err(error) => {
                tracing::error!("the configuration was not reloaded, the old one goes on: {error}");
                "failed"
            }
        };
        metrics::counter!("palisade_config_reloads_total", "result" => result).increment(1);
    }

    async fn apply(&self, level: &logging::LevelHandle) -> Result<(), String> {
        let new = load(&self.sources).map_err(|error| error.to_string())?;
        let old = self.settings.load_full();
        if let Some(tls) = &self.front_tls {
            tls.reload().map_err(|error| error.to_string())?;
            self.switch_certificate(tls);
        }
        let mut later = old.needs_restart(&new);
        later.extend((old.upstream != new.upstream).then_some("upstream"));
        if !later.is_empty() {
            tracing::warn!(
                "changed, but only a restart can apply it: {}",
                later.join(", ")
            );
        }
        if old.routes != new.routes {
            self.drain(old.fence.drain_timeout).await?;
        }
        let table = self.shared.gate.table() + 1;
        self.shared.live.store(Arc::new(live(&new, table)));
        self.shared.gate.release(table);
        let _ = level.reload(logging::filter(&new.log));
        self.settings.store(Arc::new(new));
        tracing::info!("the configuration was reloaded");
        Ok(())
    }

    /// A request may fall in another scope from now on, so what was let through under the old routes is settled first.
    /// Those who come meanwhile wait.
    async fn drain(&self, limit: Duration) -> Result<(), String> {
        let gate = &self.shared.gate;
        gate.hold();
        let until = boot().after(limit);
        while !gate.is_settled() {
            if boot() >= until {
                gate.release(gate.table());
                let scopes: Vec<_> = gate
                    .unsettled()
                    .iter()
                    .take(5)
                    .map(ToString::to_string)
                    .collect();
                return Err(format!(
                    "the routes have changed, and writes under the old ones are not settled after {limit:?}: {}. Try again later",
                    scopes.join(", ")
                ));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// Looks whether the certificate's files have changed.
    pub(super) fn look_at_certificate(&self) {
        let Some(tls) = &self.front_tls else { return };
        match tls.reload_if_changed() {
            Ok(true) => self.switch_certificate(tls),
            Ok(false) => {}
            Err(error) => tracing::error!(
                "the new certificate can't be used, the last good one stays: {error}"
            ),
        }
    }

    fn switch_certificate(&self, tls: &ServerTls) {
        self.tls_switch
            .iter()
            .for_each(|switch| switch.store(tls.config()));
        tracing::info!("the certificate was read anew");
    }
}
