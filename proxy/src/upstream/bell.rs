//! The waker of a connection. hyper's halves of one connection wake each other through channels; here the same task polls both,
//! one right after the other, and would be scheduled once more for nothing by each of those wakes.

use atomic_waker::AtomicWaker;
use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    task::{Context, Poll, Wake, Waker},
};

/// How often a poll goes round before it lets others have a turn.
const TURNS: usize = 4;

/// Passes a wake on to the task, unless the task is polling the connection just then: it looks again by itself.
pub(super) struct Bell {
    task: AtomicWaker,
    /// The task is polling.
    inside: AtomicBool,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Release);
        if !self.inside.load(Acquire) {
            self.task.wake();
        }
    }
}

/// A bell, and the waker that rings it.
pub(super) struct Ringer {
    bell: Arc<Bell>,
    waker: Waker,
}

impl Ringer {
    pub(super) fn new() -> Self {
        let bell = Arc::new(Bell {
            task: AtomicWaker::new(),
            inside: AtomicBool::new(false),
            rung: AtomicBool::new(false),
        });
        let waker = Waker::from(bell.clone());
        Self { bell, waker }
    }

    /// Polls with the bell's waker for as long as what is polled wakes itself; `cx` is woken by whatever rings after that.
    pub(super) fn poll<T>(
        &self,
        cx: &Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let bell = &self.bell;
        bell.task.register(cx.waker());
        bell.inside.store(true, Release);
        let mut turns = 0;
        let polled = loop {
            bell.rung.store(false, Release);
            let polled = poll(&mut Context::from_waker(&self.waker));
            turns += 1;
            if polled.is_ready() || turns == TURNS || !bell.rung.load(Acquire) {
                break polled;
            }
        };
        bell.inside.store(false, Release);
        // What rang last, or from another thread before it saw that nobody was inside.
        if bell.rung.swap(false, AcqRel) && polled.is_pending() {
            cx.waker().wake_by_ref();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Release);
        }
    }

    #[test]
    fn a_wake_from_within_is_a_turn_and_no_wake() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let cx = Context::from_waker(&waker);
        let ringer = Ringer::new();
        let mut turns = 0;
        let polled = ringer.poll(&cx, |cx| {
            turns += 1;
            if turns < 3 {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((turns, count.0.load(Acquire)), (3, 0));
    }

    #[test]
    fn who_never_stops_lets_others_have_a_turn() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let cx = Context::from_waker(&waker);
        let polled = Ringer::new().poll(&cx, |cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!(count.0.load(Acquire), 1);
    }

    #[test]
    fn a_wake_from_outside_is_passed_on() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let cx = Context::from_waker(&waker);
        let mut kept = None;
        let ringer = Ringer::new();
        let polled = ringer.poll(&cx, |cx| {
            kept = Some(cx.waker().clone());
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!(count.0.load(Acquire), 0);
        kept.unwrap().wake();
        assert_eq!(count.0.load(Acquire), 1);
    }
}
