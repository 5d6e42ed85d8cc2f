//! Time as the pure state machines see it: a number that comes in with each event.

use core::{fmt, time::Duration};

/// A moment on a clock that keeps running while the machine is suspended, in nanoseconds since that clock's start
/// (the boot, for `CLOCK_BOOTTIME`). Nothing in this crate reads a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The clock's start.
    pub const ZERO: Self = Self(0);
    /// Later than every other moment: "never by itself".
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment this many nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This much later; [`Time::NEVER`] if that is past the end of time.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        let nanos = duration.as_nanos();
        if nanos >= u64::MAX as u128 {
            Self::NEVER
        } else {
            Self(self.0.saturating_add(nanos as u64))
        }
    }

    /// This much earlier; the clock's start if that is before it.
    #[must_use]
    pub const fn before(self, duration: Duration) -> Self {
        let nanos = duration.as_nanos();
        if nanos >= self.0 as u128 {
            Self::ZERO
        } else {
            Self(self.0 - nanos as u64)
        }
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            f.write_str("never")
        } else {
            Duration::from_nanos(self.0).fmt(f)
        }
    }
}
