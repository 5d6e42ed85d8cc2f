//! The narrow trait between the algorithm and a place that keeps leases: what acquiring, keeping and giving back need,
//! and nothing else. Two backends implement it, [`crate::etcd`] and [`crate::sqlite`], and one conformance suite runs
//! against both.

use crate::{LeaseName, record::Record};
use palisade_fence::Token;
use std::{fmt, future::Future, pin::Pin, time::Duration};

/// The answer of a store that is still to come. Dropping it gives the call up; it may have had its effect all the same.
pub type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What a grant and a place in the queue hang on: an etcd lease, or a row with a deadline. When it ends, everything that
/// hangs on it is gone. Positive; chosen at random by the one who opens it, so that it is known even if the reply to
/// the opening is lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

impl fmt::Display for SessionId {
    /// In hex, as etcdctl prints etcd leases.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The lease's key as a read found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The key's `mod_revision`.
    pub token: Token,
    /// What it hangs on; `None` is a key on no session, which never goes by itself: nobody holds the lease.
    pub session: Option<SessionId>,
}

/// What one consistent read said, from the point of view of one session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The store's revision at the read; a watch goes on from the next one.
    pub revision: u64,
    /// The lease's key.
    pub holder: Option<Seen>,
    /// The revision at which the own place in the queue was made, if it is there.
    pub ticket: Option<u64>,
    /// The waiter right before the own place; without a place, the last in the queue.
    pub ahead: Option<SessionId>,
    /// What the key's value says of the holder, for people.
    pub record: Option<Record>,
}

/// On what condition a claim may succeed, besides its session being alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Nobody waits: one who does not wait, or not yet, does not overtake the queue.
    NobodyWaits,
    /// The own place in the queue is still there; it goes with the grant.
    Queued,
    /// Whatever the queue (`--steal`).
    Any,
}

/// What a claim came to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// Granted, with this token.
    Won(Token),
    /// Not granted; what stood in the way.
    Refused(View),
}

/// What a watch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Any change of the lease's key.
    Lease,
    /// The end of this waiter's place in the queue.
    Waiter(SessionId),
}

/// What a watch saw first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// What was watched was deleted.
    Deleted,
    /// The lease's key was written by somebody.
    Written(Token),
    /// The own place in the queue is gone, so the session is.
    PlaceLost,
    /// The store can't say what happened since (compaction): look.
    Unknown,
}

/// A lease for people: `status` and `list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The lease's name.
    pub name: LeaseName,
    /// The current grant.
    pub holder: Option<Seen>,
    /// What the holder wrote of itself.
    pub record: Option<Record>,
    /// How long it would last without another keep-alive.
    pub remaining: Option<Duration>,
    /// Who waits, first come first.
    pub waiters: Vec<Record>,
}

/// A grant, release or expiry, as `watch` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Granted.
    Granted(Token, Option<Record>),
    /// Given back, expired or revoked, at this revision.
    Freed(u64),
}

/// Why a store gave no answer, or not the one hoped for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StoreError {
    /// Nobody answered, or not in time. What was asked for may have been done all the same.
    #[error("the lease store can't be reached: {0}")]
    Unreachable(String),
    /// The session has ended: nothing hangs on it any more, and nothing will.
    #[error("the session has ended")]
    SessionGone,
    /// The store refuses: a wrong password, no permission, no space.
    #[error("the lease store refuses: {0}")]
    Denied(String),
    /// It is another store than before, or its revisions went back: tokens from before and after would mix.
    #[error("the lease store is not the one it was: {0}")]
    Changed(String),
}

/// Where leases are kept. `dyn LeaseStore` has [`acquire`](struct.Lease.html) and the other operations for users; the
/// trait's own methods are the steps that they are made of.
///
/// Each call is one try: nothing is repeated inside, so that whoever calls decides what is still worth doing.
pub trait LeaseStore: fmt::Debug + Send + Sync {
    /// Opens a session; gives the time to live that was granted, which may be longer than asked.
    fn open(&self, session: SessionId, ttl: Duration) -> Call<'_, Duration>;

    /// Lets the session live for its time to live from now.
    fn keep_alive(&self, session: SessionId) -> Call<'_, ()>;

    /// Ends the session and all that hangs on it. One that has ended already is no error.
    fn close(&self, session: SessionId) -> Call<'_, ()>;

    /// Writes the lease's key, if its revision is `expect` (0: there is none), the session is alive and the place
    /// allows it. In one atomic step.
    fn claim<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        expect: u64,
        place: Place,
        record: &'a Record,
    ) -> Call<'a, Claim>;

    /// Takes a place at the end of the queue; one that is there already stays where it is.
    fn enqueue<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        record: &'a Record,
    ) -> Call<'a, View>;

    /// Reads the lease's key and the own place in the queue. Linearizable.
    fn look<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        ticket: Option<u64>,
    ) -> Call<'a, View>;

    /// Waits for the first change of the target after a revision; with `place`, also for the end of the session's own
    /// place in the queue.
    fn changed<'a>(
        &'a self,
        name: &'a LeaseName,
        target: Target,
        place: Option<SessionId>,
        after: u64,
    ) -> Call<'a, Change>;

    /// Deletes the lease's key if its revision is `token`; says whether it did. Never anyone else's key.
    fn release<'a>(&'a self, name: &'a LeaseName, token: Token) -> Call<'a, bool>;

    /// One lease, for people.
    fn status<'a>(&'a self, name: &'a LeaseName) -> Call<'a, Status>;

    /// All leases whose names begin with `prefix`, for people.
    fn list<'a>(&'a self, prefix: &'a str) -> Call<'a, Vec<Status>>;

    /// Waits for the next grant or end of a lease after a revision; gives it with the revision to go on from.
    fn next_event<'a>(&'a self, name: &'a LeaseName, after: u64) -> Call<'a, (Event, u64)>;
}
