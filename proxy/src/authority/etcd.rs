//! etcd as the lease store.

use super::{
    Authority, ReadDone, Reports, Unreadable,
    connect::EtcdOptions,
    health::Health,
    reads::{Ask, Reads, Reply},
    trust::Trust,
    watch::Watch,
};
use crate::state::State;
use std::sync::Arc;
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How the lease store is doing, for readiness and the status page.
#[derive(Clone, Debug)]
pub struct StoreHealth {
    /// Whether the last read was answered. False until the first one is.
    pub up: bool,
    /// Whether newer grants are heard of before their first request.
    pub watching: bool,
    /// Why the last read was not answered.
    pub failure: Option<Arc<str>>,
    /// Why the store is not trusted any more (`authority-changed`).
    pub changed: Option<Arc<str>>,
}

/// Asks etcd who holds a lease, and hears of new grants.
pub struct EtcdAuthority {
    asks: mpsc::UnboundedSender<Ask>,
    trust: Arc<Trust>,
    health: Arc<Health>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl EtcdAuthority {
    /// Starts to ask and to watch, on a runtime. Does not wait for etcd: one that is away is tried until it is back.
    pub fn start(
        handle: &Handle,
        options: EtcdOptions,
        state: Arc<State>,
        reports: Arc<dyn Reports>,
    ) -> Arc<Self> {
        let options = Arc::new(options);
        let trust = Arc::new(Trust::new(state, reports.clone()));
        let health = Arc::new(Health::default());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (asks, queue) = mpsc::unbounded_channel();
        let reads = Reads {
            asks: queue,
            options: options.clone(),
            trust: trust.clone(),
            health: health.clone(),
            stop: stop.clone(),
        };
        let watch = Watch {
            options,
            trust: trust.clone(),
            reports,
            health: health.clone(),
            stop: stop.clone(),
        };
        tasks.spawn_on(reads.run(), handle);
        tasks.spawn_on(watch.run(), handle);
        tasks.close();
        Arc::new(Self {
            asks,
            trust,
            health,
            stop,
            tasks,
        })
    }

    /// How the store is doing.
    pub fn health(&self) -> StoreHealth {
        StoreHealth {
            up: self.health.is_up(),
            watching: self.health.is_watching(),
            failure: self.health.failure(),
            changed: self.trust.frozen(),
        }
    }

    /// Ends both tasks and waits for that; every question still open is [`Unreadable::Unavailable`].
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Authority for EtcdAuthority {
    fn read(&self, scope: &Arc<str>, done: ReadDone) {
        if self.trust.frozen().is_some() {
            return done(Err(Unreadable::Changed));
        }
        let reply = Reply::new(done);
        // Once stopped, the question comes back and its reply is dropped, which says "unavailable".
        let _ = self.asks.send(Ask {
            scope: scope.clone(),
            reply,
        });
    }
}

impl Drop for EtcdAuthority {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
