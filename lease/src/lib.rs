//! Leases with fencing tokens, in etcd or, for the processes of one host, in a file.
//!
//! A lease is a named lock with a deadline. Each grant comes with a [`FencingToken`], a number larger than every earlier
//! grant's. Send it with every write: the proxy `palisade` lets a write through only if no newer token has been seen, so
//! that a holder which has stalled and does not know that its lease is over does no harm.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_lease::{LeaseOptions, LeaseUrl};
//!
//! let url: LeaseUrl = "etcd://127.0.0.1:2379".parse()?;
//! let store = palisade_lease::open(&url)?;
//! let lease = store.acquire("nightly/billing", LeaseOptions::default()).await?;
//! let mut request = http::Request::put("http://127.0.0.1:8080/invoices/7").body("{}")?;
//! lease.stamp(request.headers_mut())?;
//! // ... send it, and stop when `lease.lost()` resolves ...
//! lease.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! From the inside out: [`holder`] is one acquisition as a pure state machine; [`store`] is the narrow trait between it
//! and a lease store; [`etcd`] and [`sqlite`] implement that; `driver` carries out what the machine asks for; [`Lease`] is the handle.

pub mod clock;
mod driver;
pub mod error;
pub mod etcd;
pub mod holder;
mod lease;
pub mod metrics;
pub mod name;
pub mod record;
pub mod sqlite;
pub mod store;
pub mod timer;
pub mod url;

pub use driver::Standing;
pub use error::{AcquireError, Held, Lost};
pub use holder::Loss;
pub use lease::{Lease, LeaseOptions, OnWaiting, TOKEN_HEADER, settled};
pub use name::{BadName, LeaseName};
pub use palisade_fence::Token as FencingToken;
pub use store::{LeaseStore, StoreError};
pub use url::{BadUrl, LeaseUrl};

use std::sync::Arc;

/// Opens the lease store of a URL. Connects to nothing yet: with etcd, each call does when it must.
///
/// For TLS with an own certificate, a user or another prefix, see [`etcd::EtcdOptions`].
///
/// # Errors
/// If the file of a `sqlite:` URL can't be opened.
pub fn open(url: &LeaseUrl) -> Result<Arc<dyn LeaseStore>, StoreError> {
    match url {
        LeaseUrl::Etcd { endpoints, tls } => {
            Ok(Arc::new(etcd::EtcdStore::new(etcd::EtcdOptions {
                endpoints: endpoints.clone(),
                tls: *tls,
                ..etcd::EtcdOptions::default()
            })))
        }
        LeaseUrl::Sqlite(path) => Ok(Arc::new(sqlite::SqliteStore::open(path)?)),
    }
}
