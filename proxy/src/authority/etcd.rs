//! etcd as the lease store.

use super::{
    Authority, ReadDone, Reports, Unreadable,
    connect::{EtcdOptions, Link},
    epoch::{self, EpochBegun, EpochError},
    health::Health,
    holders::{self, Holders},
    members::Member,
    reads::{Ask, Reads, Reply},
    trust::Trust,
    watch::Watch,
};
use crate::state::State;
use std::sync::{Arc, Mutex, PoisonError};
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
    options: Arc<EtcdOptions>,
    asks: mpsc::UnboundedSender<Ask>,
    /// Taken by the task that asks.
    queue: Mutex<Option<mpsc::UnboundedReceiver<Ask>>>,
    state: Arc<State>,
    member: Option<Arc<Member>>,
    trust: Arc<Trust>,
    health: Arc<Health>,
    /// For those who look, on a connection of their own: what they ask must not delay a verification.
    looking: tokio::sync::Mutex<Link>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl EtcdAuthority {
    /// An authority that does nothing yet: questions wait until [`EtcdAuthority::run`]. In two steps, since the gate
    /// needs the authority to ask, and the authority the gate to report to.
    pub fn new(options: EtcdOptions, state: Arc<State>) -> Arc<Self> {
        let (asks, queue) = mpsc::unbounded_channel();
        let member = options
            .registration
            .clone()
            .map(|registration| Arc::new(Member::new(&options, registration, state.clone())));
        let options = Arc::new(options);
        Arc::new(Self {
            looking: tokio::sync::Mutex::new(Link::new(options.clone())),
            options,
            member,
            asks,
            queue: Mutex::new(Some(queue)),
            trust: Arc::new(Trust::new(state.clone())),
            state,
            health: Arc::new(Health::default()),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Starts to ask and to watch, on a runtime. Does not wait for etcd: one that is away is tried until it is back. A
    /// freeze that an earlier run left is reported before this returns. A second call does nothing.
    pub fn run(&self, handle: &Handle, reports: Arc<dyn Reports>) {
        let queue = self
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(asks) = queue else { return };
        self.trust.report_to(reports.clone());
        let (options, trust, health) = (
            self.options.clone(),
            self.trust.clone(),
            self.health.clone(),
        );
        let reads = Reads {
            asks,
            member: self.member.clone(),
            options,
            trust,
            health,
            stop: self.stop.clone(),
        };
        let (options, trust, health) = (
            self.options.clone(),
            self.trust.clone(),
            self.health.clone(),
        );
        let watch = Watch {
            options,
            trust,
            reports,
            health,
            stop: self.stop.clone(),
        };
        self.tasks.spawn_on(reads.run(), handle);
        if self.options.watch {
            self.tasks.spawn_on(watch.run(), handle);
        }
        self.tasks.close();
    }

    /// What a group's task shares with the reads: how etcd is reached, whether it is trusted, and how it is doing.
    pub(crate) fn shared(&self) -> (Arc<EtcdOptions>, Arc<Trust>, Arc<Health>) {
        (
            self.options.clone(),
            self.trust.clone(),
            self.health.clone(),
        )
    }

    /// [`EtcdAuthority::new`] and [`EtcdAuthority::run`] at once.
    pub fn start(
        handle: &Handle,
        options: EtcdOptions,
        state: Arc<State>,
        reports: Arc<dyn Reports>,
    ) -> Arc<Self> {
        let authority = Self::new(options, state);
        authority.run(handle, reports);
        authority
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

    /// Who holds which lease, for people who look.
    pub async fn holders(&self) -> Result<Holders, String> {
        let mut link = self.looking.lock().await;
        let read = holders::read(&self.options, &mut link).await;
        read.map_err(|failure| failure.to_string())
    }

    /// An operator's `palisade new-epoch`: the store that answers now counts from here on, however it came to be there,
    /// and so does this proxy's state folder. Pushes the store's revision above the highest ever seen, by at most
    /// `advance` revisions; closes every scope below that; and ends the freeze. The other proxy of this name, if one is
    /// registered, must be gone for good.
    pub async fn new_epoch(&self, advance: u64) -> Result<EpochBegun, EpochError> {
        let mut link = Link::new(self.options.clone());
        let mut last = Err(EpochError::Unavailable(
            "no endpoint is configured".to_owned(),
        ));
        for _ in &self.options.endpoints {
            let whose = (&*self.state, &*self.trust, self.member.as_deref());
            last = epoch::begin(&self.options, &mut link, whose, advance).await;
            if !matches!(last, Err(EpochError::Unavailable(_))) {
                break;
            }
            link.rotate();
        }
        last
    }

    /// Ends both tasks and waits for that; every question still open is [`Unreadable::Unavailable`].
    pub async fn stop(&self) {
        self.stop.cancel();
        // If it never ran, its questions end with the queue.
        drop(
            self.queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        self.tasks.close();
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
