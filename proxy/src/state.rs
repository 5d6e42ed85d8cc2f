//! What is durable: floors, whether they had opened, the lease store's identity, whether the last stop was clean.

use palisade_fence::Token;
use std::sync::Arc;

/// A floor as it stands on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The highest token accepted.
    pub floor: Token,
    /// Whether it was recorded that every write with a smaller token was settled.
    pub opened: bool,
    /// Whether writes from before the last stop may still be applied: after an unclean stop every scope that has not
    /// been recorded as settled since, after a clean one those marked at the stop.
    pub unsettled: bool,
}

/// Why the state could not be read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StateError(pub Arc<str>);

/// Called once with the outcome of a durable write, on the state's own thread.
pub type Durable = Box<dyn FnOnce(Result<(), StateError>) + Send>;

/// The floors, as the gate sees them.
pub trait Floors: Send + Sync {
    /// What is stored for a scope. May read the disk.
    fn load(&self, scope: &str) -> Result<Option<Stored>, StateError>;
    /// Makes a floor durable as closed and not opened; one that is not above the stored floor changes nothing.
    fn close(&self, scope: &Arc<str>, floor: Token, done: Durable);
    /// Records, some time later, that this floor has opened and that nothing from before it is unsettled; only if the
    /// stored floor still is this one.
    fn opened(&self, scope: &Arc<str>, floor: Token);
}
