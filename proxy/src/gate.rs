//! The gate: every write, and every read with a token, passes here. The shell round the pure scopes of
//! `palisade_fence`: it knows the scopes, wakes those who wait, and carries out what the core asks for.
//!
//! It does not know HTTP, nor which lease store or disk there is. A request that may go on holds a [`Pass`]; a write
//! that is being sent holds a [`Ticket`], and must say how it ended. A ticket that is dropped is ambiguous.

mod cell;
mod group;
mod inside;
mod place;
mod ticket;

pub use cell::ScopeView;
pub use group::Standing;
pub use place::{Place, Session};
pub use ticket::{Pass, Ticket};

use crate::{
    authority::{Authority, Reports},
    state::Floors,
};
use cell::Cell;
use dashmap::{DashMap, Entry};
use inside::Doors;
use palisade_fence::{Action, Arrival, Decision, Refused, Scope, Stored, Time, Token, Unreadable};
use palisade_lease::clock::Clock;
use std::{
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};
use tokio::sync::Notify;

/// How long an unanswered write may still be applied (A6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// This long after the proxy's last write to its socket or the end of the connection, or never.
    After(Duration),
    /// Nobody knows: an operator settles it with `palisade settle`.
    Manual,
}

/// The gate's settings.
#[derive(Clone, Copy, Debug)]
pub struct GateSettings {
    /// A6.
    pub settle: Settle,
    /// How long a handover lets older writes finish sending before it cuts them.
    pub abort_after: Duration,
    /// How long a request waits for a raise.
    pub drain_timeout: Duration,
    /// How many requests may wait at once, over all scopes.
    pub waiting: usize,
}

/// Why a request does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The scope's own decision.
    Refused(Refused),
    /// The raise could not finish within `drain_timeout`; it goes on in the background.
    HandoverPending,
    /// Too many requests wait.
    Overloaded,
    /// The proxy is on its way down, and the raise has not finished.
    ShuttingDown,
    /// This replica has lost its place among the replicas, or has not joined them yet.
    SessionExpired,
    /// The routes have changed: it must be looked at again in which scope it falls.
    Reloaded,
}

/// What may be left of writes from before this run.
#[derive(Clone, Copy, Debug)]
pub struct Leftovers {
    /// Until when it may be applied, where the state says that there is any.
    pub until: Time,
    /// How many new epochs have begun in this process: each counts everything from before as unsettled.
    pub epochs: u64,
}

/// All scopes of one proxy.
pub struct Gate {
    scopes: DashMap<Arc<str>, Arc<Cell>>,
    floors: Arc<dyn Floors>,
    /// `None`: the highest token seen is believed.
    authority: Option<Arc<dyn Authority>>,
    clock: Arc<dyn Clock>,
    settings: GateSettings,
    /// Until when writes from before this run may be applied, if the last stop left any.
    leftovers: Mutex<Leftovers>,
    /// The lease store is another one than before: nothing passes.
    frozen: AtomicBool,
    waiting: AtomicUsize,
    /// While a reload drains: nobody passes.
    held: AtomicBool,
    released: Notify,
    /// On the way down: nobody waits any more.
    stopping: AtomicBool,
    /// The number of the route table that counts.
    table: AtomicU64,
    /// Requests that have passed and not ended: with the writes in flight, all that a reload waits for.
    doors: Doors,
    /// For one of several replicas.
    place: OnceLock<Arc<Place>>,
}

impl Gate {
    /// A gate over the floors on disk. `authority` starts the lease store, if there is one, with the gate to report to.
    pub fn new(
        floors: Arc<dyn Floors>,
        clock: Arc<dyn Clock>,
        settings: GateSettings,
        authority: impl FnOnce(&Weak<Self>) -> Option<Arc<dyn Authority>>,
    ) -> Arc<Self> {
        let until = match settings.settle {
            Settle::After(settle) => clock.now().after(settle),
            Settle::Manual => Time::NEVER,
        };
        Arc::new_cyclic(|gate| Self {
            scopes: DashMap::new(),
            floors,
            authority: authority(gate),
            clock,
            settings,
            leftovers: Mutex::new(Leftovers { until, epochs: 0 }),
            frozen: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            held: AtomicBool::new(false),
            released: Notify::new(),
            stopping: AtomicBool::new(false),
            table: AtomicU64::new(0),
            doors: Doors::new(gate, settings.abort_after),
            place: OnceLock::new(),
        })
    }

    /// Lets a request with this token through, when the scope says so; waits for a raise if need be. `write`: what is
    /// refused as stale is counted as a stale writer's. `table`: which route table said that it falls in this scope.
    pub async fn pass(
        self: &Arc<Self>,
        scope: &Arc<str>,
        token: Token,
        write: bool,
        table: u64,
    ) -> Result<Pass, Closed> {
        // Counted as inside before looking whether a reload drains: one of the two sees the other.
        let inside = self.doors.enter();
        if self.held.load(SeqCst) || self.table.load(SeqCst) != table {
            drop(inside);
            self.until_released().await?;
            return Err(Closed::Reloaded);
        }
        self.trusted()?;
        let session = self.session()?;
        let cell = self.cell(scope)?;
        let mut arrival = cell.lock().arrive(token);
        let decision = self.decide(&cell, &mut arrival, self.clock.now());
        let decided = match decision {
            Decision::Admit => Ok(()),
            Decision::Refuse(why) => Err(Closed::Refused(why)),
            Decision::Wait => self.wait(&cell, arrival, session.as_deref()).await,
        };
        match decided {
            Ok(()) => Ok(Pass::new(inside, cell, token, session)),
            Err(why) => {
                self.note_refusal(&cell, why, write);
                Err(why)
            }
        }
    }

    async fn wait(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        mut arrival: Arrival,
        session: Option<&Session>,
    ) -> Result<(), Closed> {
        let _waiting = Waiting::enter(self, cell)?;
        let deadline = self.clock.now().after(self.settings.drain_timeout);
        loop {
            let mut changed = pin!(cell.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if session.is_some_and(Session::is_over) {
                return Err(Closed::SessionExpired);
            }
            let now = self.clock.now();
            match self.decide(cell, &mut arrival, now) {
                Decision::Admit => return self.trusted(),
                Decision::Refuse(why) => return Err(Closed::Refused(why)),
                Decision::Wait if self.stopping.load(SeqCst) => return Err(Closed::ShuttingDown),
                Decision::Wait => {}
            }
            if now >= deadline {
                metrics::counter!("palisade_raises_total", "result" => "pending").increment(1);
                return Err(Closed::HandoverPending);
            }
            // Opening time that has passed is not this request's: it waits for something else, and an event says when.
            let opens_at = cell.lock().opens_at().filter(|&at| at > now);
            let ends_at = session.map_or(Time::NEVER, Session::deadline);
            let look_again = opens_at.unwrap_or(Time::NEVER).min(deadline).min(ends_at);
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(look_again.since(now)) => {}
            }
        }
    }

    /// Waits while a reload drains.
    async fn until_released(&self) -> Result<(), Closed> {
        if !self.held.load(SeqCst) {
            return Ok(());
        }
        let released = async {
            loop {
                let mut released = pin!(self.released.notified());
                released.as_mut().enable();
                if !self.held.load(SeqCst) {
                    return;
                }
                released.await;
            }
        };
        let waited = tokio::time::timeout(self.settings.drain_timeout, released).await;
        waited.map_err(|_| Closed::HandoverPending)
    }

    /// Holds every request back that comes from now on, so that a reload can wait until [`Gate::is_settled`].
    pub fn hold(&self) {
        self.held.store(true, SeqCst);
    }

    /// From now on nobody waits for a raise: on the way down there may be no time for one, and somebody who is told so can go
    /// elsewhere.
    pub fn stop_waiting(&self) {
        self.stopping.store(true, SeqCst);
        self.scopes
            .iter()
            .for_each(|cell| cell.changed.notify_waiters());
    }

    /// Lets them go on; `table` is the number of the route table that counts from now on.
    pub fn release(&self, table: u64) {
        self.table.store(table, SeqCst);
        self.held.store(false, SeqCst);
        self.released.notify_waiters();
    }

    /// The number of the route table that counts.
    pub fn table(&self) -> u64 {
        self.table.load(SeqCst)
    }

    /// Whether nothing that was let through can still change anything.
    pub fn is_settled(&self) -> bool {
        self.doors.nobody_inside() && self.waiting() == 0 && self.unsettled().is_empty()
    }

    /// How long after it was superseded a stale writer still writes is worth knowing: timeouts are set by it.
    fn note_refusal(&self, cell: &Cell, why: Closed, write: bool) {
        cell.refused.fetch_add(1, Relaxed);
        if let (Closed::Refused(Refused::Stale { .. }), true) = (why, write) {
            let closed_at = cell.lock().closed_at();
            if closed_at > Time::ZERO {
                let age = self.clock.now().since(closed_at);
                metrics::histogram!("palisade_stale_write_age_seconds").record(age);
            }
        }
    }

    fn trusted(&self) -> Result<(), Closed> {
        if self.frozen() {
            Err(Closed::Refused(Refused::Unreadable(Unreadable::Changed)))
        } else {
            Ok(())
        }
    }

    fn decide(self: &Arc<Self>, cell: &Arc<Cell>, arrival: &mut Arrival, now: Time) -> Decision {
        self.with(cell, |scope| scope.decide(arrival, now))
    }

    /// Runs an event on a scope and carries out what follows from it.
    fn with<T>(self: &Arc<Self>, cell: &Arc<Cell>, event: impl FnOnce(&mut Scope) -> T) -> T {
        let mut scope = cell.lock();
        let before = (scope.floor(), scope.is_open());
        let result = event(&mut scope);
        let rose = scope.floor() != before.0;
        let opened = scope.is_open() && (rose || !before.1);
        let touched = cell.place.is_some() && (rose || scope.wants_clearance().is_some());
        let (mut next, closed_at) = (scope.poll_action(), scope.closed_at());
        drop(scope);
        if opened {
            metrics::counter!("palisade_raises_total", "result" => "opened").increment(1);
            metrics::histogram!("palisade_handover_duration_seconds")
                .record(self.clock.now().since(closed_at));
        }
        if touched {
            cell.touch();
        }
        if rose {
            cell.closed.notify_waiters();
            cell.changed.notify_waiters();
        }
        while let Some(action) = next {
            self.carry_out(cell, action);
            next = cell.lock().poll_action();
        }
        result
    }

    /// The same, and wakes those who wait on the scope.
    fn event(self: &Arc<Self>, cell: &Arc<Cell>, event: impl FnOnce(&mut Scope)) {
        self.with(cell, event);
        cell.changed.notify_waiters();
        cell.touch_if_closed();
    }

    fn carry_out(self: &Arc<Self>, cell: &Arc<Cell>, action: Action) {
        let (gate, own) = (Arc::clone(self), Arc::clone(cell));
        match (action, &self.authority) {
            (Action::Read(id), Some(authority)) => authority.read(
                &cell.name,
                Box::new(move |answer| {
                    if answer.is_err() {
                        metrics::counter!("palisade_raises_total", "result" => "unavailable").increment(1);
                    }
                    let now = gate.clock.now();
                    gate.event(&own, |scope| scope.read(id, answer, now));
                }),
            ),
            (Action::Read(_), None) => unreachable!("a scope without a lease store asks for no read"),
            (Action::Close(floor), _) => self.floors.close(
                &cell.name,
                floor,
                Box::new(move |done| match done {
                    Ok(()) => gate.event(&own, |scope| scope.durable(floor)),
                    Err(error) => {
                        tracing::error!(scope = %own.name, %floor, %error, "the floor can't be made durable: the scope stays closed");
                        metrics::counter!("palisade_raises_total", "result" => "storage").increment(1);
                        gate.event(&own, Scope::not_durable);
                    }
                }),
            ),
            (Action::RecordOpened(floor), _) => self.floors.opened(&cell.name, floor),
        }
    }

    /// The scope with this name, from memory or from disk, or a new one.
    fn cell(self: &Arc<Self>, name: &Arc<str>) -> Result<Arc<Cell>, Closed> {
        if let Some(cell) = self.scopes.get(&**name) {
            return Ok(Arc::clone(&cell));
        }
        match self.scopes.entry(Arc::clone(name)) {
            Entry::Occupied(cell) => Ok(Arc::clone(cell.get())),
            Entry::Vacant(place) => {
                // The entry stays locked meanwhile, so that a scope is never loaded twice.
                let scope = self
                    .load(name)?
                    .unwrap_or_else(|| Scope::new(self.authority.is_some()));
                let scope = self.grouped(name, scope);
                let cell = Arc::new(Cell::new(
                    Arc::clone(name),
                    scope,
                    self.place.get().cloned(),
                ));
                drop(place.insert(Arc::clone(&cell)));
                if cell.place.is_some() {
                    // What closed it as it came is to be carried out.
                    self.event(&cell, |_| {});
                    cell.touch();
                }
                Ok(cell)
            }
        }
    }

    /// The scope as it stands on disk, if it does.
    fn load(&self, name: &str) -> Result<Option<Scope>, Closed> {
        let stored = self.floors.load(name).map_err(|error| {
            tracing::error!(scope = name, %error, "the floor can't be read");
            Closed::Refused(Refused::Storage)
        })?;
        Ok(stored.map(|stored| {
            let floor = Stored {
                floor: stored.floor,
                opened: stored.opened,
            };
            let leftovers = stored.unsettled.then(|| self.leftovers().until);
            Scope::load(self.authority.is_some(), floor, leftovers)
        }))
    }

    /// Until when a write that is ambiguous now may still be applied.
    fn settles_at(&self) -> Time {
        match self.settings.settle {
            Settle::After(settle) => self.clock.now().after(settle),
            Settle::Manual => Time::NEVER,
        }
    }

    /// An operator says that all writes of a scope that are ambiguous now are settled; how many that were, or `None` if
    /// there is no such scope.
    pub fn settle(self: &Arc<Self>, name: &Arc<str>) -> Result<Option<u32>, Closed> {
        let known = self.scopes.contains_key(&**name) || self.load(name)?.is_some();
        if !known {
            return Ok(None);
        }
        let cell = self.cell(name)?;
        let mut settled = 0;
        self.event(&cell, |scope| settled = scope.settle_ambiguous());
        if let Some(place) = &cell.place {
            place.settle(name);
        }
        Ok(Some(settled))
    }

    /// Drops from memory what can be loaded again without a loss: scopes that are open, idle, equal to disk, and that
    /// nobody has used since the last sweep. Nothing leaves the disk.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.scopes.retain(|_, cell| {
            let used = cell.used.swap(false, Relaxed);
            let mut scope = cell.lock();
            scope.pass(now);
            // The map's own reference alone: nobody is in the middle of anything, and nobody can come in meanwhile.
            used || !scope.is_idle() || Arc::strong_count(cell) > 1
        });
    }

    /// Every scope in memory, as operators see it.
    pub fn scopes(&self) -> Vec<ScopeView> {
        self.scopes
            .iter()
            .map(|cell| cell.view(&self.clock))
            .collect()
    }

    /// The names of the scopes that have writes which are not settled.
    pub fn unsettled(&self) -> Vec<Arc<str>> {
        let now = self.clock.now();
        let unsettled = |cell: &Cell| {
            let mut scope = cell.lock();
            scope.pass(now);
            scope.in_flight() + scope.settling() > 0
        };
        self.scopes
            .iter()
            .filter(|cell| unsettled(cell))
            .map(|cell| Arc::clone(&cell.name))
            .collect()
    }

    /// What may be left of earlier runs.
    pub fn leftovers(&self) -> Leftovers {
        *self
            .leftovers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// An operator has begun a new epoch, which is durable: every scope is closed below this floor, and whatever was
    /// sent before may still be applied until it has settled.
    fn new_epoch(self: &Arc<Self>, floor: Token) {
        let (now, until) = (self.clock.now(), self.settles_at());
        {
            let mut leftovers = self
                .leftovers
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *leftovers = Leftovers {
                until,
                epochs: leftovers.epochs + 1,
            };
        }
        // Those that come to memory from now on are loaded as the epoch left them on disk.
        let cells: Vec<_> = self.scopes.iter().map(|cell| Arc::clone(&cell)).collect();
        for cell in cells {
            self.event(&cell, |scope| scope.new_epoch(floor, until, now));
        }
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// How many scopes are in memory.
    pub fn in_memory(&self) -> usize {
        self.scopes.len()
    }

    /// Whether the lease store is another one than before, so that nothing passes.
    pub fn frozen(&self) -> bool {
        self.frozen.load(Relaxed)
    }

    /// The moment now, on the gate's own clock: what is decided about a request is decided by one clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }
}

/// The lease store's news, taken to the gate. A value of its own, since the gate and the lease store know each other.
pub struct News(pub Weak<Gate>);

impl Reports for News {
    /// A grant: closes the scope early, before the new holder's first request. A scope without state here takes no note:
    /// a million leases are not a million rows.
    fn granted(&self, scope: &str, token: Token) {
        let Some(gate) = self.0.upgrade() else { return };
        let name: Arc<str> = scope.into();
        let in_memory = gate.scopes.contains_key(scope);
        if !in_memory && !gate.floors.has_own(scope).unwrap_or(false) {
            return;
        }
        if let Ok(cell) = gate.cell(&name) {
            let now = gate.clock.now();
            gate.event(&cell, |scope| {
                if scope.takes_note() {
                    scope.granted(token, now);
                }
            });
        }
    }

    fn new_epoch(&self, floor: Token) {
        if let Some(gate) = self.0.upgrade() {
            gate.new_epoch(floor);
        }
    }

    fn trusted(&self, trusted: bool) {
        if let Some(gate) = self.0.upgrade() {
            gate.frozen.store(!trusted, Relaxed);
        }
    }
}

/// One request that waits, counted.
struct Waiting<'a> {
    gate: &'a Gate,
    cell: &'a Cell,
}

impl<'a> Waiting<'a> {
    fn enter(gate: &'a Gate, cell: &'a Cell) -> Result<Self, Closed> {
        let before = gate.waiting.fetch_add(1, Relaxed);
        cell.waiting.fetch_add(1, Relaxed);
        let entered = Self { gate, cell };
        if before < gate.settings.waiting {
            Ok(entered)
        } else {
            Err(Closed::Overloaded)
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.gate.waiting.fetch_sub(1, Relaxed);
        self.cell.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
