//! What a state of the model consists of, and the steps that lead from one to the next.

use palisade_fence::{Ack, Arrival, Group, Outcome, Reading, Scope, Stored, Time, Token};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub(super) const SETTLE: u64 = 1;
pub(super) const SCOPE: &str = "s";

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) grants: u8,
    pub(crate) writes: u8,
    pub(crate) crashes: u8,
    /// Sessions that run out under a replica that lives.
    pub(crate) expiries: u8,
    /// Watches that lose their place and are read anew.
    pub(crate) gaps: u8,
    /// Answers that are lost.
    pub(crate) losses: u8,
    /// The replica to which all of that happens.
    pub(crate) victim: usize,
    /// Whether reads of the lease key may be answered late.
    pub(crate) slow_reads: bool,
    /// Whether the first replica has yet to join.
    pub(crate) late_join: bool,
    /// Whether each holder writes by way of either replica; if not, the first by the first, the second by the second.
    pub(crate) any_replica: bool,
}

/// What a watch tells, with the revision of its change.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Event {
    Grant(Token),
    Member(Arc<str>),
    MemberDeleted(Arc<str>),
    Replica(Arc<str>, Ack),
    ReplicaGone(Arc<str>),
}

/// etcd.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Etcd {
    pub(super) revision: u64,
    pub(super) grant: Option<Token>,
    pub(super) members: Vec<Arc<str>>,
    pub(super) replicas: BTreeMap<Arc<str>, Ack>,
    pub(super) log: Vec<(u64, Event)>,
}

impl Etcd {
    pub(super) fn change(&mut self, events: impl IntoIterator<Item = Event>) {
        self.revision += 1;
        self.log
            .extend(events.into_iter().map(|event| (self.revision, event)));
    }
}

/// How far a replica has come.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Stage {
    Down,
    /// Its keys are put, and everything is still to be read.
    Joining,
    Serving,
    /// Its deadline has passed.
    Expired,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) stage: Stage,
    pub(super) id: Arc<str>,
    pub(super) joins: u8,
    pub(super) scope: Scope,
    pub(super) group: Group,
    /// The place of its watch in etcd's log.
    pub(super) watch: usize,
    pub(super) acked: Ack,
    /// The newest grant that its watch has seen: what an ack is for.
    pub(super) granted: u64,
    pub(super) reading: Option<(u64, Option<Reading>)>,
    pub(super) disk: Option<Stored>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Place {
    Waiting(Arrival),
    Admitted,
    Sent,
    Over,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Upstream {
    Nothing,
    Pending(Time),
    Applied,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) token: Token,
    pub(super) at: usize,
    pub(super) place: Place,
    pub(super) upstream: Upstream,
    pub(super) told: Option<Outcome>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct State {
    pub(super) now: Time,
    pub(super) left: Bounds,
    pub(super) etcd: Etcd,
    pub(super) replicas: [Replica; 2],
    pub(super) holders: Vec<(Token, u8)>,
    pub(super) requests: Vec<Request>,
    pub(super) applied: Option<Token>,
    pub(super) out_of_order: bool,
    pub(super) locked_out: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Step {
    Grant,
    Release,
    Write(usize, usize),
    Start(usize),
    Apply(usize),
    Answer(usize),
    Lose(usize),
    Tick,
    Watch(usize),
    StoreReads(usize),
    StoreAnswers(usize),
    Remove(usize, Arc<str>),
    Expire(usize),
    SessionEnds(Arc<str>),
    Crash(usize),
    Join(usize),
    JoinReads(usize),
    Gap(usize),
}

pub(super) fn later(now: Time, ticks: u64) -> Time {
    now.after(Duration::from_nanos(ticks))
}
