//! Requests that are past the door, counted by thread: threads whose requests are in distinct scopes then write to nothing that
//! they share, so that the gate scales over cores.

use super::Gate;
use std::{
    sync::{
        Arc, Weak,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

/// More than this many threads share counters, which is slower and still right.
const DOORS: usize = 64;

/// All counters of a gate.
pub(super) struct Doors(Box<[Arc<Door>]>);

/// A counter, on cache lines of its own.
#[repr(align(128))]
struct Door {
    inside: AtomicUsize,
    gate: Weak<Gate>,
    abort_after: Duration,
}

impl Doors {
    pub(super) fn new(gate: &Weak<Gate>, abort_after: Duration) -> Self {
        let door = |_| {
            Arc::new(Door {
                inside: AtomicUsize::new(0),
                gate: gate.clone(),
                abort_after,
            })
        };
        Self((0..DOORS).map(door).collect())
    }

    /// Counts a request that comes in. It leaves by the same door, whatever thread it is on by then.
    pub(super) fn enter(&self) -> Inside {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static THREAD: usize = THREADS.fetch_add(1, Relaxed));
        let door = Arc::clone(&self.0[THREAD.with(|thread| thread % DOORS)]);
        door.inside.fetch_add(1, SeqCst);
        Inside(door)
    }

    /// Whether nobody is inside, once nobody new is let in: each counter is looked at after that, and none counts what came in
    /// elsewhere.
    pub(super) fn nobody_inside(&self) -> bool {
        self.0.iter().all(|door| door.inside.load(SeqCst) == 0)
    }
}

/// A request that is past the door: a reload waits for it.
pub(super) struct Inside(Arc<Door>);

impl Inside {
    /// For when it has left.
    pub(super) fn way_back(&self) -> WayBack {
        WayBack(Arc::clone(&self.0))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

/// How a write that has started finds the gate at its end. Not a strong reference: all threads would count on one.
pub(super) struct WayBack(Arc<Door>);

impl WayBack {
    /// The gate. `None` once it is gone, and with it everyone who could wait for this write.
    pub(super) fn gate(&self) -> Option<Arc<Gate>> {
        self.0.gate.upgrade()
    }

    /// How long a handover lets older writes finish sending.
    pub(super) fn abort_after(&self) -> Duration {
        self.0.abort_after
    }
}
