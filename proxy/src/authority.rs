//! What the gate asks the lease store, and what the lease store tells the gate.

pub(crate) mod connect;
mod epoch;
mod etcd;
pub(crate) mod health;
mod holders;
mod members;
mod reads;
mod sqlite;
pub(crate) mod trust;
mod watch;

pub use connect::{EtcdOptions, EtcdTls};
pub use epoch::{EpochBegun, EpochError};
pub use etcd::{EtcdAuthority, StoreHealth};
pub use holders::{Holder, Holders};
pub use members::Registration;
pub use sqlite::{ReadGrant, SqliteAuthority};

use palisade_fence::Token;
use std::sync::Arc;

pub use palisade_fence::{Reading, Unreadable};

/// Called once with the outcome of a read, on any thread.
pub type ReadDone = Box<dyn FnOnce(Result<Reading, Unreadable>) + Send>;

/// The lease store, as the gate sees it.
pub trait Authority: Send + Sync {
    /// Reads a scope's lease key by a linearizable read *that is sent after this call*. Never blocks. `done` is always
    /// called, within a bounded time.
    fn read(&self, scope: &Arc<str>, done: ReadDone);
}

/// What the lease store reports by itself.
pub trait Reports: Send + Sync {
    /// A grant, seen by the watch. Only a scope that has state here takes note.
    fn granted(&self, scope: &str, token: Token);
    /// Whether the store can be trusted: `false` freezes every write with `authority-changed` until an operator runs
    /// `palisade new-epoch`.
    fn trusted(&self, trusted: bool);
    /// An operator began a new epoch, which is durable: every scope, in memory too, is closed below this floor, and its
    /// writes count as unsettled from now on. Called before [`Reports::trusted`] says `true`.
    fn new_epoch(&self, floor: Token) {
        let _ = floor;
    }
}

/// Stands for etcd's cluster id where the lease store is a file on this host.
pub const SQLITE_CLUSTER: u64 = u64::from_be_bytes(*b"sqlite\0\0");
