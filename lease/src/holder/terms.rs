//! What goes into an acquisition and what comes out of it.

use crate::store::{Change, Claim, Place, SessionId, StoreError, Target, View};
use palisade_fence::{Time, Token};
use std::time::Duration;

/// The smallest margin by itself.
const MARGIN_MIN: Duration = Duration::from_millis(500);

/// What is asked of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Time to live asked for.
    pub ttl: Duration,
    /// How long before the session's end the lease counts as lost; `max(500 ms, TTL/10)` when absent.
    pub margin: Option<Duration>,
    /// Whether to wait while somebody else holds it.
    pub wait: bool,
    /// When to stop waiting.
    pub give_up: Time,
    /// How long to put up with a store that has not answered at all yet.
    pub patience: Duration,
    /// Take the lease from whoever has it.
    pub steal: bool,
}

/// A request to the store, which the driver carries out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Comes back with the answer; answers to older requests are ignored.
    pub id: u32,
    /// What to do.
    pub what: Do,
    /// How long the driver waits before it reports a failure; none for a watch.
    pub limit: Option<Duration>,
}

/// The kinds of request, each a method of [`crate::LeaseStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "each is a method of the trait, with its arguments"
)]
pub enum Do {
    Open(SessionId),
    KeepAlive(SessionId),
    Close(SessionId),
    Claim {
        session: SessionId,
        expect: u64,
        place: Place,
    },
    Enqueue(SessionId),
    Look {
        session: SessionId,
        ticket: Option<u64>,
    },
    Watch {
        target: Target,
        place: Option<SessionId>,
        after: u64,
    },
    Release(Token),
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is what the method of the trait gives")]
pub enum Answer {
    Opened(Duration),
    KeptAlive,
    Closed,
    Claimed(Claim),
    Seen(View),
    Changed(Change),
    Released,
    Failed(StoreError),
}

/// What the user is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum News {
    /// In the queue, or about to be: somebody else holds it.
    Waiting(View),
    /// Granted. [`Holder::deadline`](super::Holder::deadline) is set.
    #[expect(missing_docs, reason = "named for what they are")]
    Granted {
        token: Token,
        session: SessionId,
        ttl: Duration,
    },
    /// It was held, and is no more. The end of it: only giving back is left.
    Lost(Loss),
    /// It was never held, and won't be.
    Refused(Refusal),
    /// Given back, or given up; nothing is left to do.
    Ended,
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Loss {
    /// No keep-alive was answered in time.
    #[error("no keep-alive was answered before the deadline")]
    Expired,
    /// The session has ended at the store: revoked, or run out there.
    #[error("its session has ended: revoked, or run out at the lease store")]
    Revoked,
    /// The lease's key was deleted: released by hand, or its session was revoked.
    #[error("its key was deleted: released by hand, or its session was revoked")]
    Deleted,
    /// Somebody else took it, with this token.
    #[error("it was taken over, with token {0}")]
    Taken(Token),
    /// The lease store is not the one that granted it.
    #[error("the lease store was restored or replaced")]
    StoreChanged,
}

impl Loss {
    /// One word, for metrics and `--result-file`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Deleted => "deleted",
            Self::Taken(_) => "taken",
            Self::StoreChanged => "store-changed",
        }
    }
}

/// Why there was no grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Somebody else holds it, or others wait.
    Busy(View),
    /// Still somebody else's when the waiting time was over; the last that was seen.
    TimedOut(Option<View>),
    /// The store refuses or never answered.
    Store(StoreError),
}

/// `max(500 ms, TTL/10)`: time enough to stop a job, and for clocks that run a little apart.
pub fn default_margin(ttl: Duration) -> Duration {
    (ttl / 10).max(MARGIN_MIN)
}
