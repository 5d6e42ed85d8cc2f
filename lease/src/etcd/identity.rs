//! Whether it still is the same etcd.

use crate::store::StoreError;
use etcd_client::ResponseHeader;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Which cluster this is, and the highest revision that it has shown (etcd restored from a snapshot, or replaced).
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// 0: not known yet.
    cluster: AtomicU64,
    highest: AtomicI64,
}

impl Identity {
    pub(super) fn highest(&self) -> i64 {
        self.highest.load(Ordering::Acquire)
    }

    pub(super) fn check_cluster(&self, header: Option<&ResponseHeader>) -> Result<(), StoreError> {
        let Some(header) = header else { return Ok(()) };
        let found = header.cluster_id();
        match self
            .cluster
            .compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire)
        {
            Err(known) if known != found => Err(StoreError::Changed(format!(
                "cluster {found:x} answered, and before it was cluster {known:x}"
            ))),
            _ => Ok(()),
        }
    }

    /// A linearizable answer is never older than what was known when it was asked for.
    pub(super) fn check_linearizable(
        &self,
        header: Option<&ResponseHeader>,
        known: i64,
    ) -> Result<(), StoreError> {
        self.check_cluster(header)?;
        let revision = header.map_or(0, ResponseHeader::revision);
        if revision < known {
            return Err(StoreError::Changed(format!(
                "its revision went back from {known} to {revision}"
            )));
        }
        self.highest.fetch_max(revision, Ordering::AcqRel);
        Ok(())
    }
}
