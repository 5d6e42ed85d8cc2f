//! A run of chaos: etcd, a proxy, a recording datastore and workers under leases, all real, disturbed by a seed.
//!
//! What is disturbed when is a pure function of the seed ([`plan()`]); what then happens is the machine's business and is
//! written down in the history, which [`crate::check`] reads.

mod clock;
mod disk;
mod disturb;
pub mod fault;
mod gateway;
mod leases;
pub mod link;
pub mod naive;
mod node;
pub mod plan;
mod record;
mod restore;
mod run;
mod scrape;
pub mod store;
pub mod target;
pub mod worker;

pub use disk::enter_namespace;
pub use fault::Fault;
pub use plan::plan;
pub use record::Recorder;
pub use run::{Chaos, run};
