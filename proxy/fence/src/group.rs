//! Several replicas in front of one datastore: when one of them may open a floor that others may still be writing below
//! (design, section 6). Pure like the rest: what etcd says comes in, in the order of its revisions.
//!
//! Every replica follows one watch over leases, members and replicas. Having closed its scopes to everything up to a
//! revision, it says so (its *ack*), with the list of scopes that have older writes unsettled. A floor `t` opens here once
//! this replica's own watch is at `t`, and each other member either has acked `t` without this scope on its list, or has
//! lost its session long enough ago that nothing of it can still be applied.

use crate::{
    Time, Token,
    rules::{Rule, Rules},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};
use core::time::Duration;

/// What a replica's key says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ack {
    /// It has closed its scopes to every token up to this revision, except current grants.
    pub revision: u64,
    /// Scopes that had writes with older tokens unsettled at that moment.
    pub unsettled: BTreeSet<Arc<str>>,
}

/// How a member stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Standing {
    /// Its session lives.
    Present(Ack),
    /// Its session key has gone: seen at this moment, by this replica's own clock.
    Gone(Time),
}

/// Whether a floor may open as far as the other replicas are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clearance {
    /// It may.
    Clear,
    /// Not yet: ask again after the next event, or at this moment ([`Time::NEVER`]: only an event changes it).
    NotBefore(Time),
}

/// The members of one group, as one of them sees them.
///
/// Invariant I5: `watched` never falls, and every event up to it has been taken in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    rules: Rules,
    own: Arc<str>,
    /// How long after its session has gone a member's writes may still be applied: `max_pause` + `settle`. `None`: nobody
    /// knows, an operator must say so.
    wait_out: Option<Duration>,
    /// I5.
    watched: u64,
    others: BTreeMap<Arc<str>, Standing>,
}

impl Group {
    /// A replica that is about to join under this id, fresh at each join.
    pub fn new(own: Arc<str>, wait_out: Option<Duration>) -> Self {
        Self {
            rules: Rules::default(),
            own,
            wait_out,
            watched: 0,
            others: BTreeMap::new(),
        }
    }

    /// [`Group::new`] with a rule taken out.
    #[cfg(feature = "sabotage")]
    pub fn new_without(without: Option<Rule>, own: Arc<str>, wait_out: Option<Duration>) -> Self {
        Self {
            rules: Rules { without },
            ..Self::new(own, wait_out)
        }
    }

    /// All member and replica keys at one revision, read after this replica's own keys were put: at a join, and after
    /// any gap in the watch.
    pub fn read(
        &mut self,
        revision: u64,
        members: &[Arc<str>],
        replicas: &[(Arc<str>, Ack)],
        now: Time,
    ) {
        let mut others = BTreeMap::new();
        let present = replicas
            .iter()
            .map(|(id, ack)| (id, Standing::Present(ack.clone())));
        let gone = members
            .iter()
            .filter(|id| !replicas.iter().any(|(present, _)| present == *id))
            .map(|id| {
                // Ids are fresh at each join, so one that was gone before has been gone since.
                let since = match self.others.get(id) {
                    Some(&Standing::Gone(since)) => since,
                    _ => now,
                };
                (id, Standing::Gone(since))
            });
        let gone = gone.filter(|_| self.rules.hold(Rule::MemberKeys));
        others.extend(
            present
                .chain(gone)
                .filter(|(id, _)| **id != self.own)
                .map(|(id, s)| (Arc::clone(id), s)),
        );
        self.others = others;
        self.progress(revision);
    }

    /// A member's key was put: it joins.
    pub fn member_put(&mut self, id: &Arc<str>) {
        if *id != self.own {
            self.others
                .entry(Arc::clone(id))
                .or_insert_with(|| Standing::Present(Ack::default()));
        }
    }

    /// A member's key was deleted: it has left in order, or was waited out.
    pub fn member_deleted(&mut self, id: &str) {
        self.others.remove(id);
    }

    /// A replica's key was put.
    pub fn acked(&mut self, id: &Arc<str>, ack: Ack) {
        if *id != self.own {
            self.others.insert(Arc::clone(id), Standing::Present(ack));
        }
    }

    /// A replica's key has gone: its session ended.
    pub fn session_gone(&mut self, id: &Arc<str>, now: Time) {
        if !self.rules.hold(Rule::MemberKeys) {
            self.others.remove(id);
        } else if let Some(standing @ Standing::Present(_)) = self.others.get_mut(id) {
            *standing = Standing::Gone(now);
        }
    }

    /// Every event up to this revision has been taken in.
    pub fn progress(&mut self, revision: u64) {
        self.watched = self.watched.max(revision);
    }

    /// Up to which revision events have been taken in.
    pub fn watched(&self) -> u64 {
        self.watched
    }

    /// How many other members there are, those that are waited out included.
    pub fn others(&self) -> usize {
        self.others.len()
    }

    /// Whether this floor of this scope may open here.
    pub fn clearance(&self, scope: &str, floor: Token, now: Time) -> Clearance {
        if self.watched < floor.get() && self.rules.hold(Rule::OwnWatch) {
            return Clearance::NotBefore(Time::NEVER);
        }
        let waits = self
            .others
            .values()
            .map(|standing| self.blocks_until(standing, scope, floor));
        match waits.max() {
            Some(until) if until > now => Clearance::NotBefore(until),
            _ => Clearance::Clear,
        }
    }

    fn blocks_until(&self, standing: &Standing, scope: &str, floor: Token) -> Time {
        match standing {
            Standing::Present(_) if !self.rules.hold(Rule::Acks) => Time::ZERO,
            Standing::Present(ack) if ack.revision < floor.get() => Time::NEVER,
            Standing::Present(ack)
                if ack.unsettled.contains(scope) && self.rules.hold(Rule::UnsettledList) =>
            {
                Time::NEVER
            }
            Standing::Present(_) => Time::ZERO,
            Standing::Gone(since) => self.over(*since),
        }
    }

    /// When nothing of a member that lost its session at this moment can be applied any more.
    fn over(&self, since: Time) -> Time {
        match self.wait_out {
            _ if !self.rules.hold(Rule::WaitAfterRemoval) => since,
            Some(wait) => since.after(wait),
            None => Time::NEVER,
        }
    }

    /// Members that have been waited out: their keys may be deleted.
    pub fn waited_out(&self, now: Time) -> Vec<Arc<str>> {
        let over = |standing: &Standing| matches!(standing, Standing::Gone(since) if self.over(*since) <= now);
        self.others
            .iter()
            .filter(|(_, standing)| over(standing))
            .map(|(id, _)| Arc::clone(id))
            .collect()
    }

    /// An operator says that nothing of the members that are gone now can be applied any more; their keys may be deleted.
    pub fn settle_gone(&mut self) -> Vec<Arc<str>> {
        let gone = |standing: &Standing| matches!(standing, Standing::Gone(_));
        let gone: Vec<_> = self
            .others
            .iter()
            .filter(|(_, s)| gone(s))
            .map(|(id, _)| Arc::clone(id))
            .collect();
        gone.iter().for_each(|id| drop(self.others.remove(id)));
        gone
    }
}
