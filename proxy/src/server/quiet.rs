//! Futures that wait beside a busy one in the same task. That one wakes the task at every step; to poll the others each time, only to
//! be told again that nothing has happened, costs a request more than its way through the fence. Each is polled once, to leave its
//! waker, and then only when a cheap look says that it is worth it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

/// Whose waker is left with a future.
#[derive(Debug, Default)]
pub(super) struct Quiet(Option<Waker>);

impl Quiet {
    /// Polls it if that is worth it: when `due`, or when it does not know this task's waker yet. `due` has to be true from the moment
    /// on when the future would be ready.
    pub(super) fn poll<F: Future>(
        &mut self,
        future: Pin<&mut F>,
        due: bool,
        cx: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let known = self
            .0
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()));
        if known && !due {
            return Poll::Pending;
        }
        let polled = future.poll(cx);
        self.0 = polled.is_pending().then(|| cx.waker().clone());
        polled
    }

    /// The future is another one now, or was set anew.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, future::poll_fn, pin::pin};

    /// In a task of tokio's, as in the server: a `Waker` of std's own may not know its clone again, as its table of functions can be in
    /// the program more than once (`Waker::will_wake`).
    #[tokio::test]
    async fn it_is_polled_once_and_then_when_it_is_due() {
        let task = poll_fn(|cx| {
            let polls = Cell::new(0);
            let mut future = pin!(poll_fn(|_| {
                polls.set(polls.get() + 1);
                Poll::<()>::Pending
            }));
            let mut quiet = Quiet::default();
            for (due, expected) in [(false, 1), (false, 1), (true, 2), (false, 2)] {
                assert!(quiet.poll(future.as_mut(), due, cx).is_pending());
                assert_eq!(polls.get(), expected);
            }
            quiet.forget();
            assert!(quiet.poll(future.as_mut(), false, cx).is_pending());
            assert_eq!(polls.get(), 3);
            Poll::Ready(())
        });
        tokio::spawn(task).await.unwrap();
    }

    #[test]
    fn another_task_gets_to_leave_its_waker() {
        struct Other;
        impl std::task::Wake for Other {
            fn wake(self: std::sync::Arc<Self>) {}
        }
        let polls = Cell::new(0);
        let mut future = pin!(poll_fn(|_| {
            polls.set(polls.get() + 1);
            Poll::<()>::Pending
        }));
        let mut quiet = Quiet::default();
        let other = Waker::from(std::sync::Arc::new(Other));
        for waker in [Waker::noop(), &other] {
            let mut cx = Context::from_waker(waker);
            assert!(quiet.poll(future.as_mut(), false, &mut cx).is_pending());
        }
        assert_eq!(polls.get(), 2);
    }
}
