//! Whether the lease store still is the one that it was, and has not gone back.

use super::{Reports, Unreadable, connect::Failure};
use crate::state::{Identity, State};
use palisade_fence::Token;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;

/// What is known of the store. Every answer passes here before it counts.
pub(crate) struct Trust {
    state: Arc<State>,
    reports: OnceLock<Arc<dyn Reports>>,
    known: Mutex<Known>,
    /// Why the store is not trusted any more.
    frozen: watch::Sender<Option<Arc<str>>>,
}

#[derive(Clone, Copy)]
struct Known {
    identity: Option<Identity>,
    /// Counts the new epochs of this process: an answer to a question from before one says nothing.
    epoch: u64,
}

/// The highest revision known when a read was sent: its answer may not be below.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    highest: u64,
    epoch: u64,
}

/// Why an answer does not count.
#[derive(Debug)]
pub(crate) enum Doubt {
    /// It says nothing about the store.
    Failed(Failure),
    /// It is of another store, or of an earlier time.
    Changed,
}

impl From<Failure> for Doubt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Doubt> for Unreadable {
    fn from(doubt: Doubt) -> Self {
        match doubt {
            Doubt::Failed(_) => Self::Unavailable,
            Doubt::Changed => Self::Changed,
        }
    }
}

impl Trust {
    /// Goes on from what the state remembers, a freeze included.
    pub(crate) fn new(state: Arc<State>) -> Self {
        let frozen = state.frozen();
        gauge(frozen.is_none());
        Self {
            known: Mutex::new(Known {
                identity: state.identity(),
                epoch: 0,
            }),
            frozen: watch::Sender::new(frozen),
            state,
            reports: OnceLock::new(),
        }
    }

    /// Whom to tell; told at once of a freeze that an earlier run left.
    pub(crate) fn report_to(&self, reports: Arc<dyn Reports>) {
        if let Some(why) = self.frozen() {
            tracing::error!(
                "the lease store stays untrusted since an earlier run: {why}; {REMEDY}"
            );
            reports.trusted(false);
        }
        let _ = self.reports.set(reports);
    }

    /// To be asked right before a linearizable read is sent.
    pub(crate) fn sending(&self) -> Sent {
        let known = *self.lock();
        let highest = known.identity.map_or(0, |identity| identity.revision);
        Sent {
            highest,
            epoch: known.epoch,
        }
    }

    /// Whether the answer to a linearizable read counts, and its revision.
    pub(crate) fn answered(&self, sent: Sent, seen: Identity) -> Result<u64, Doubt> {
        if self.lock().epoch != sent.epoch {
            return Err(Doubt::Failed(Failure::Other(
                "asked before the new epoch".to_owned(),
            )));
        }
        if seen.revision < sent.highest {
            // Another cluster says more than a revision does.
            self.seen(seen)?;
            let why = format!(
                "its revision went back: {} was seen before, and now it is {}",
                sent.highest, seen.revision
            );
            return Err(self.freeze(&why));
        }
        self.seen(seen)?;
        Ok(seen.revision)
    }

    /// Whether something that a watch brought counts. Its revision may be behind that of a read on another member.
    pub(crate) fn watched(&self, seen: Identity) -> Result<u64, Doubt> {
        self.seen(seen)?;
        Ok(seen.revision)
    }

    /// Notes how far the store has come, if it still is the same one.
    fn seen(&self, seen: Identity) -> Result<(), Doubt> {
        if self.frozen().is_some() {
            return Err(Doubt::Changed);
        }
        let mut known = self.lock();
        let other = match &mut known.identity {
            Some(known) if known.cluster_id != seen.cluster_id => Some(known.cluster_id),
            Some(known) => {
                known.revision = known.revision.max(seen.revision);
                None
            }
            None => {
                known.identity = Some(seen);
                None
            }
        };
        drop(known);
        match other {
            None => {
                self.state.set_identity(seen);
                Ok(())
            }
            Some(before) => {
                let why = format!(
                    "it is another one: cluster id {before:x} before, and now {:x}",
                    seen.cluster_id
                );
                Err(self.freeze(&why))
            }
        }
    }

    /// From here on nothing that the store says counts, until a new epoch. Said once.
    pub(crate) fn freeze(&self, why: &str) -> Doubt {
        let first = self.frozen.send_if_modified(|frozen| match frozen {
            Some(_) => false,
            None => {
                *frozen = Some(why.into());
                true
            }
        });
        if first {
            tracing::error!("the lease store is not trusted any more: {why}; {REMEDY}");
            self.state.freeze(why);
            gauge(false);
            self.reports
                .get()
                .iter()
                .for_each(|reports| reports.trusted(false));
        }
        Doubt::Changed
    }

    /// Why the store is not trusted, if so.
    pub(crate) fn frozen(&self) -> Option<Arc<str>> {
        self.frozen.borrow().clone()
    }

    /// Waits until the store is trusted.
    pub(crate) async fn trusted(&self) {
        // Fails only when the sender is gone, which is `self`.
        let _ = self.frozen.subscribe().wait_for(Option::is_none).await;
    }

    /// What is known of the store.
    pub(crate) fn known(&self) -> Option<Identity> {
        self.lock().identity
    }

    /// Trusts the store that is there from now on. The new epoch is durable.
    pub(crate) fn renew(&self, identity: Identity, floor: Token) {
        let mut known = self.lock();
        *known = Known {
            identity: Some(identity),
            epoch: known.epoch + 1,
        };
        drop(known);
        let reports = self.reports.get();
        // Scopes are closed before anything is let in again.
        reports.iter().for_each(|reports| reports.new_epoch(floor));
        self.frozen.send_replace(None);
        gauge(true);
        tracing::warn!("a new epoch: every token below {floor} is refused, in every scope");
        reports.iter().for_each(|reports| reports.trusted(true));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const REMEDY: &str = "every write is refused until an operator runs `palisade new-epoch`";

fn gauge(trusted: bool) {
    metrics::gauge!("palisade_lease_store_trusted").set(f64::from(u8::from(trusted)));
}
