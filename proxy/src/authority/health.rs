//! How the lease store is doing, for readiness and metrics.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// What the tasks last saw of the store.
#[derive(Debug, Default)]
pub(crate) struct Health {
    up: AtomicBool,
    watching: AtomicBool,
    /// The last failure, until the next success.
    failure: Mutex<Option<Arc<str>>>,
}

impl Health {
    /// A read was answered.
    pub(crate) fn up(&self) {
        if !self.up.swap(true, Ordering::AcqRel) {
            tracing::info!("the lease store answers");
        }
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
        gauge(true);
    }

    /// A read was not answered.
    pub(crate) fn down(&self, why: &str) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let first = failure.is_none();
        *failure = Some(why.into());
        drop(failure);
        self.up.store(false, Ordering::Release);
        if first {
            tracing::warn!("the lease store can't be asked: {why}");
        }
        gauge(false);
    }

    /// Whether the watch is in place.
    pub(crate) fn watching(&self, watching: bool) {
        self.watching.store(watching, Ordering::Release);
    }

    /// Whether the last read was answered.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Whether the watch is in place.
    pub(crate) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    /// Why the last read was not answered.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

fn gauge(up: bool) {
    metrics::gauge!("palisade_lease_store_up").set(f64::from(u8::from(up)));
}
