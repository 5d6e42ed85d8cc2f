//! One line of requests to the store, of which one is under way at a time.

use palisade_fence::Time;
use std::time::Duration;

/// The first pause before something is tried again; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest pause before something is tried again.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// One slot for requests that must not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    /// The request under way.
    pub(super) busy: Option<u32>,
    /// When it was sent.
    pub(super) sent: Time,
    /// Nothing is sent before this.
    pub(super) not_before: Time,
    /// Failures in a row.
    pub(super) failures: u32,
}

impl Slot {
    pub(super) fn ready(&self, now: Time) -> bool {
        self.busy.is_none() && now >= self.not_before
    }

    pub(super) fn start(&mut self, id: u32, now: Time) {
        self.busy = Some(id);
        self.sent = now;
    }

    /// When to look at it next, if something is to be sent.
    pub(super) fn wake(&self) -> Time {
        if self.busy.is_some() {
            Time::NEVER
        } else {
            self.not_before
        }
    }

    pub(super) fn done(&mut self) {
        self.busy = None;
        self.failures = 0;
    }

    pub(super) fn failed(&mut self, now: Time) {
        self.busy = None;
        let pause = RETRY_MIN
            .saturating_mul(1 << self.failures.min(10))
            .min(RETRY_MAX);
        self.failures += 1;
        self.not_before = now.after(pause);
    }

    /// Whatever is under way no longer matters.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}
