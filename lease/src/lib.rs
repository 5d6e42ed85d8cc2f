//! Leases with fencing tokens.

pub mod clock;
pub mod etcd;
pub mod name;
pub mod record;
pub mod store;
pub mod url;

pub use name::{BadName, LeaseName};
pub use palisade_fence::Token as FencingToken;
pub use url::{BadUrl, LeaseUrl};
