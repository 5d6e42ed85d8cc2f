//! A timer that keeps counting while the machine is suspended: tokio's own follows `CLOCK_MONOTONIC`, which does not.

use crate::clock::{Clock, boot};
use nix::{
    errno::Errno,
    sys::{
        time::{TimeSpec, TimeValLike},
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
};
use palisade_fence::Time;
use std::{
    future::pending,
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};
use tokio::io::unix::AsyncFd;

/// A `timerfd` on `CLOCK_BOOTTIME` (`timerfd_create(2)`).
#[derive(Debug)]
pub struct BootTimer(AsyncFd<Inner>);

#[derive(Debug)]
struct Inner(TimerFd);

impl AsRawFd for Inner {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl BootTimer {
    /// A timer of the runtime that this is called in.
    pub fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = Inner(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?);
        #[expect(
            deprecated,
            reason = "its successor is unsafe for types that change their descriptor; `Inner` never does"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self(timer))
    }

    /// Waits until `at` on the given clock; for ever for [`Time::NEVER`]. Dropping it is harmless.
    pub async fn until(&self, clock: &dyn Clock, at: Time) {
        if at == Time::NEVER {
            return pending().await;
        }
        while clock.now() < at {
            if arm(&self.0.get_ref().0, boot().after(at.since(clock.now()))).is_err() {
                return;
            }
            let Ok(mut ready) = self.0.readable().await else {
                return;
            };
            ready.clear_ready();
        }
    }
}

/// Sets a timer to a moment of the boot-time clock; whatever it was set to before is forgotten.
pub fn arm(timer: &TimerFd, at: Time) -> Result<(), Errno> {
    // Zero would disarm it.
    let nanos = i64::try_from(at.as_nanos().max(1)).unwrap_or(i64::MAX);
    timer.set(
        Expiration::OneShot(TimeSpec::nanoseconds(nanos)),
        TimerSetTimeFlags::TFD_TIMER_ABSTIME,
    )
}
