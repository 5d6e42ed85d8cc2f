//! The only clocks in the workspace: the boot-time clock, which keeps running while the machine is suspended, and the
//! wall clock for what people read.

use palisade_fence::Time;
use std::time::{Duration, SystemTime};

/// Where the time comes from. A trait, so that a test can let it jump.
pub trait Clock: Send + Sync + 'static {
    /// The moment now. Never goes back.
    fn now(&self) -> Time;
}

/// `CLOCK_BOOTTIME`: monotonic, and it goes on while the machine is suspended, unlike [`std::time::Instant`]
/// (`clock_gettime(2)`; rust-lang/rust#87906).
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Time {
        boot()
    }
}

/// The moment now on the boot-time clock.
pub fn boot() -> Time {
    use nix::time::{ClockId, clock_gettime};
    // The call fails only for a clock that the kernel does not have; Linux has had this one since 2.6.39.
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(now) => Time::from_nanos(Duration::from(now).as_nanos() as u64),
        Err(error) => unreachable!("clock_gettime(CLOCK_BOOTTIME): {error}"),
    }
}

/// The wall clock, for logs and for what people read; nothing may be decided by it.
pub fn wall() -> SystemTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    SystemTime::now()
}
