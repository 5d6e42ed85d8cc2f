//! The gate of one of several replicas: what its group's task asks of it (design, section 6).

use super::{Cell, Closed, Gate, Place, place::Session};
use palisade_fence::{Action, Clearance, Scope, Time, Token};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// How the scopes stand that others may wait for, or that wait for others.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Scopes whose floor is not on disk: nothing is acked before.
    pub undurable: Vec<Arc<str>>,
    /// Scopes with writes below their floor that are not settled.
    pub unsettled: BTreeSet<Arc<str>>,
    /// When to look again, if nothing happens before.
    pub next: Time,
}

impl Gate {
    /// Makes it the gate of one of several replicas. Before it is asked anything.
    pub fn group(&self, place: Arc<Place>) {
        let first = self.place.set(place);
        debug_assert!(first.is_ok() && self.scopes.is_empty());
    }

    /// The place in the group, for a replica.
    pub fn place(&self) -> Option<&Arc<Place>> {
        self.place.get()
    }

    /// Under which session a request passes: none for a single proxy.
    pub(super) fn session(&self) -> Result<Option<Arc<Session>>, Closed> {
        match self.place.get() {
            None => Ok(None),
            Some(place) => place.session().map(Some).ok_or(Closed::SessionExpired),
        }
    }

    /// A scope of a replica, as it comes to memory: closed as all were at the last join or re-read.
    pub(super) fn grouped(&self, name: &str, scope: Scope) -> Scope {
        let Some(place) = self.place.get() else {
            return scope;
        };
        let mut scope = scope.grouped();
        let known = place.known();
        scope.joined(
            known.revision,
            known.grants.get(name).copied(),
            self.clock.now(),
        );
        scope
    }

    /// Everything was read at this revision: closes every scope to all tokens up to it except the current grants. Those in
    /// memory now, those on disk when they come to memory.
    pub fn joined(self: &Arc<Self>, revision: u64, grants: HashMap<Arc<str>, Token>) {
        let Some(place) = self.place.get() else {
            return;
        };
        {
            let mut known = place.known();
            known.revision = revision;
            known.grants = grants;
        }
        // A scope that comes to memory meanwhile holds its shard of the map: it is seen here, or sees what is known now.
        let cells: Vec<_> = self.scopes.iter().map(|cell| Arc::clone(&cell)).collect();
        for cell in cells {
            let grant = place.known().grants.get(&cell.name).copied();
            let now = self.clock.now();
            self.event(&cell, |scope| scope.joined(revision, grant, now));
            cell.touch();
        }
    }

    /// The watch saw a grant.
    pub fn granted(self: &Arc<Self>, name: &Arc<str>, token: Token) {
        if let Some(place) = self.place.get() {
            place.known().grants.insert(Arc::clone(name), token);
        }
        // A scope without state here takes no note. One that can't be read is closed when it comes to memory.
        if !self.scopes.contains_key(&**name) && !self.floors.has_own(name).unwrap_or(false) {
            return;
        }
        if let Ok(cell) = self.cell(name) {
            let now = self.clock.now();
            self.event(&cell, |scope| {
                if scope.takes_note() {
                    scope.granted(token, now);
                }
            });
        }
    }

    /// The watch saw the end of a grant.
    pub fn released(&self, name: &str) {
        if let Some(place) = self.place.get() {
            place.known().grants.remove(name);
        }
    }

    /// Lets everyone who waits look again: the session has ended.
    pub fn wake_all(&self) {
        self.scopes
            .iter()
            .for_each(|cell| cell.changed.notify_waiters());
    }

    /// Opens what may open as far as the others are concerned, and says how it stands.
    pub fn look(
        self: &Arc<Self>,
        mut clearance: impl FnMut(&str, Token, Time) -> Clearance,
    ) -> Standing {
        let mut standing = Standing {
            undurable: Vec::new(),
            unsettled: BTreeSet::new(),
            next: Time::NEVER,
        };
        let Some(place) = self.place.get() else {
            return standing;
        };
        let mut again = Vec::new();
        for name in place.take_touched() {
            let cell = self.scopes.get(&*name).map(|cell| Arc::clone(&cell));
            if cell.is_some_and(|cell| self.look_at(&cell, &mut clearance, &mut standing)) {
                again.push(name);
            }
        }
        place.touch_again(again);
        standing
    }

    /// Whether it is to be looked at again.
    fn look_at(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        clearance: &mut impl FnMut(&str, Token, Time) -> Clearance,
        standing: &mut Standing,
    ) -> bool {
        let now = self.clock.now();
        let mut scope = cell.lock();
        let older = scope.has_older_unsettled(now);
        let durable = scope.is_durable();
        let mut wants = scope.wants_clearance();
        let settles = scope.opens_at().filter(|_| older);
        drop(scope);
        if let Some(floor) = wants {
            match clearance(&cell.name, floor, now) {
                Clearance::Clear => {
                    self.event(cell, |scope| scope.clear(floor));
                    wants = None;
                }
                Clearance::NotBefore(at) => standing.next = standing.next.min(at),
            }
        }
        if older {
            standing.unsettled.insert(Arc::clone(&cell.name));
        }
        standing.next = standing.next.min(settles.unwrap_or(Time::NEVER));
        if !durable {
            standing.undurable.push(Arc::clone(&cell.name));
        }
        older || !durable || wants.is_some()
    }

    /// Tries once more to make a scope's floor durable, which has failed.
    pub fn close_again(self: &Arc<Self>, name: &str) {
        let cell = self.scopes.get(name).map(|cell| Arc::clone(&cell));
        let Some(cell) = cell else { return };
        let floor = {
            let scope = cell.lock();
            scope.floor().filter(|_| !scope.is_durable())
        };
        if let Some(floor) = floor {
            self.carry_out(&cell, Action::Close(floor));
        }
    }
}
