//! One replica's place in its group, as the gate and the task that keeps the place share it (design, section 6).

use super::Cell;
use crate::upstream::Deadline;
use arc_swap::ArcSwapOption;
use palisade_fence::{Time, Token};
use palisade_lease::clock::boot;
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// How often somebody who waits for a session's end looks whether it was ended early.
const LOOK: Duration = Duration::from_millis(250);

/// One session. A replica that joins anew gets another: what was let through under the old one is never sent under the new
/// one, since the other replicas have waited for the old one only.
#[derive(Debug)]
pub struct Session {
    deadline: Arc<Deadline>,
    /// Held while the deadline moves, so that one that has ended stays so.
    turn: Mutex<()>,
}

impl Session {
    /// One that lasts until then, unless it is kept alive.
    pub fn until(deadline: Time) -> Self {
        Self {
            deadline: Arc::new(Deadline::new(deadline)),
            turn: Mutex::new(()),
        }
    }

    /// A keep-alive was answered. One that has ended stays so.
    pub fn extend(&self, deadline: Time) {
        let _turn = lock(&self.turn);
        if !self.is_over() {
            self.deadline.set(deadline);
        }
    }

    /// Ends it now.
    pub fn end(&self) {
        let _turn = lock(&self.turn);
        self.deadline.set(Time::ZERO);
    }

    /// Until when anything may be sent.
    pub fn deadline(&self) -> Time {
        self.deadline.get()
    }

    /// For the sockets.
    pub fn shared_deadline(&self) -> Arc<Deadline> {
        Arc::clone(&self.deadline)
    }

    /// Whether its deadline has passed.
    pub fn is_over(&self) -> bool {
        boot() >= self.deadline()
    }

    /// Waits for its end.
    pub async fn over(&self) {
        loop {
            let left = self.deadline().since(boot());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }
}

/// What was last read of all leases, and what the watch has changed since.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Everything was read at this revision.
    pub(super) revision: u64,
    /// The current grants.
    pub(super) grants: HashMap<Arc<str>, Token>,
}

/// This replica's place.
#[derive(Debug, Default)]
pub struct Place {
    session: ArcSwapOption<Session>,
    known: Mutex<Known>,
    /// Scopes whose floor has not opened, or may be unsettled or not durable: what acks and openings are about.
    touched: Mutex<HashSet<Arc<str>>>,
    /// Scopes of which an operator said that whatever is ambiguous is settled.
    settled: Mutex<Vec<Arc<str>>>,
    /// Why it is not joined.
    away: Mutex<Option<Arc<str>>>,
    /// Replicas in the group, for people who look.
    present: AtomicUsize,
    changed: Notify,
}

impl Place {
    /// One that has not joined.
    pub fn new() -> Arc<Self> {
        let place = Self::default();
        place.is_away("it has not joined yet");
        Arc::new(place)
    }

    /// The session, while it lasts.
    pub fn session(&self) -> Option<Arc<Session>> {
        self.session
            .load_full()
            .filter(|session| !session.is_over())
    }

    /// It has joined: from now on requests pass.
    pub fn joined(&self, session: Arc<Session>) {
        *lock(&self.away) = None;
        self.session.store(Some(session));
    }

    /// It has not, or no more.
    pub fn is_away(&self, why: &str) {
        *lock(&self.away) = Some(why.into());
        if let Some(session) = self.session.swap(None) {
            session.end();
        }
    }

    /// Why it is not joined, if so.
    pub fn away(&self) -> Option<Arc<str>> {
        let late = || self.session().is_none().then(|| "its session ended".into());
        lock(&self.away).clone().or_else(late)
    }

    /// How many replicas the group has.
    pub fn present(&self) -> usize {
        self.present.load(Relaxed)
    }

    /// Says how many there are.
    pub fn set_present(&self, present: usize) {
        self.present.store(present, Relaxed);
    }

    /// What is left of its session; zero without one.
    pub fn remaining(&self) -> Duration {
        let session = self.session.load_full();
        session.map_or(Duration::ZERO, |session| session.deadline().since(boot()))
    }

    /// Waits until something has happened to a scope that others may wait for, or that waits for others.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn touch(&self, scope: &Arc<str>) {
        lock(&self.touched).insert(Arc::clone(scope));
        self.changed.notify_one();
    }

    pub(super) fn touch_again(&self, scopes: Vec<Arc<str>>) {
        lock(&self.touched).extend(scopes);
    }

    pub(super) fn take_touched(&self) -> HashSet<Arc<str>> {
        std::mem::take(&mut lock(&self.touched))
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// An operator's word on a scope.
    pub(super) fn settle(&self, scope: &Arc<str>) {
        lock(&self.settled).push(Arc::clone(scope));
        self.touch(scope);
    }

    /// The scopes that an operator spoke of since this was asked last.
    pub fn take_settled(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut lock(&self.settled))
    }
}

impl Cell {
    /// Tells the group's task, if there is one, to look at this scope.
    pub(super) fn touch(&self) {
        if let Some(place) = &self.place {
            place.touch(&self.name);
        }
    }

    /// The same after an event on a scope that has not opened: what is on disk or settled now may be what others wait for.
    pub(super) fn touch_if_closed(&self) {
        if self.place.is_some() && !self.lock().is_open() {
            self.touch();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
