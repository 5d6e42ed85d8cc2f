//! etcd as the lease store: the backend for fleets.
//!
//! One key per lease; its `mod_revision` is the token; everything that changes it is one transaction that compares
//! `mod_revision` (etcd's "why" page on locks and the API guarantees: a transaction is atomic, revisions only grow).

mod connect;
mod identity;
mod keys;
mod store;
mod watch;

pub use connect::{Endpoints, EtcdOptions, Failed, connect};
pub use keys::{DEFAULT_PREFIX, Keys};
pub use store::EtcdStore;
