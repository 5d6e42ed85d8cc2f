//! Where everybody's events come together.

use crate::history::{Event, What};
use palisade_fence::Time;
use palisade_lease::clock;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Collects the events of a run.
#[derive(Debug)]
pub struct Recorder {
    epoch: Time,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    /// One whose run begins now.
    pub fn new() -> Self {
        Self {
            epoch: clock::boot(),
            events: Mutex::default(),
        }
    }

    /// When the run began, on the boot-time clock.
    pub fn epoch(&self) -> Time {
        self.epoch
    }

    /// Writes down what happens now.
    pub fn record(&self, what: What) {
        let mut events = self.events();
        let at = clock::boot().since(self.epoch).as_nanos() as u64;
        events.push(Event { at, what });
    }

    /// Adds what somebody else has written down.
    pub fn add(&self, event: Event) {
        self.events().push(event);
    }

    /// All that there is; not in the order of time.
    pub fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}
