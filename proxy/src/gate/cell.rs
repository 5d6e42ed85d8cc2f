//! One scope in memory: the pure core, behind a lock that is held for a decision's length and never across an await.

use super::Place;
use palisade_fence::{Scope, Time, Token};
use palisade_lease::clock::Clock;
use serde::Serialize;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;

pub(super) struct Cell {
    pub(super) name: Arc<str>,
    scope: Mutex<Scope>,
    /// Woken after every event that may let a waiting request go on.
    pub(super) changed: Notify,
    /// Woken when the floor rises: those who are in the middle of sending look whether they are cut. Apart from `changed`,
    /// so that the end of each write does not wake every other writer.
    pub(super) closed: Notify,
    pub(super) waiting: AtomicUsize,
    /// How many requests were refused here, in this process.
    pub(super) refused: AtomicU64,
    /// How many passed.
    pub(super) requests: AtomicU64,
    /// Whether somebody came since the last sweep.
    pub(super) used: AtomicBool,
    /// For one of several replicas.
    pub(super) place: Option<Arc<Place>>,
}

impl Cell {
    pub(super) fn new(name: Arc<str>, scope: Scope, place: Option<Arc<Place>>) -> Self {
        Self {
            name,
            scope: Mutex::new(scope),
            changed: Notify::new(),
            closed: Notify::new(),
            waiting: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            used: AtomicBool::new(true),
            place,
        }
    }

    /// The scope, locked.
    ///
    /// A panic while it was locked is an invariant that broke: going on could let an older write pass, so it is passed on
    /// to whoever comes next.
    pub(super) fn lock(&self) -> MutexGuard<'_, Scope> {
        self.scope
            .lock()
            .unwrap_or_else(|poisoned: PoisonError<_>| panic!("scope {}: {poisoned}", self.name))
    }

    /// A write has ended for good. Nothing is to be carried out after it; that comes with the next decision of those who
    /// wait, and who are woken if there are any: each of them was counted before it looked at the scope.
    pub(super) fn settled(&self, token: Token) {
        let older = {
            let mut scope = self.lock();
            scope.settled(token);
            scope.floor() > Some(token)
        };
        if older {
            self.touch();
        }
        if self.waiting.load(Relaxed) > 0 {
            self.changed.notify_waiters();
        }
    }

    pub(super) fn view(&self, clock: &Arc<dyn Clock>) -> ScopeView {
        let now = clock.now();
        let mut scope = self.lock();
        scope.pass(now);
        let raised = scope.closed_at() > Time::ZERO;
        ScopeView {
            scope: Arc::clone(&self.name),
            floor: scope.floor().map(Token::get),
            open: scope.is_open(),
            since: raised.then(|| now.since(scope.closed_at())),
            in_flight: scope.in_flight(),
            settling: scope.settling(),
            waiting: self.waiting.load(Relaxed),
            refused: self.refused.load(Relaxed),
            requests: self.requests.load(Relaxed),
            opens_in: scope
                .opens_at()
                .filter(|&at| at != Time::NEVER)
                .map(|at| at.since(now)),
        }
    }
}

/// A scope as operators see it.
#[derive(Clone, Debug, Serialize)]
pub struct ScopeView {
    /// Its name: that of its lease.
    pub scope: Arc<str>,
    /// The highest token accepted.
    pub floor: Option<u64>,
    /// Whether the floor has opened, or a raise is under way.
    pub open: bool,
    /// How long ago the floor last rose, if it did in this process.
    #[serde(serialize_with = "seconds")]
    pub since: Option<Duration>,
    /// Writes on their way.
    pub in_flight: u32,
    /// Ambiguous writes that may still be applied.
    pub settling: u32,
    /// Requests that wait for the raise.
    pub waiting: usize,
    /// Requests that passed, likewise.
    pub requests: u64,
    /// Requests that were refused, since this process started or the scope last came from disk.
    pub refused: u64,
    /// When the raise can finish by time alone.
    #[serde(serialize_with = "seconds")]
    pub opens_in: Option<Duration>,
}

fn seconds<S: serde::Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(|d| d.as_secs_f64()).serialize(serializer)
}
