//! A future that goes on when whoever awaited it has gone.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tokio_util::task::TaskTracker;

/// Polled in place while somebody awaits it, so that the common path needs no task of its own; moved to a local task when
/// it is dropped before its end: a client that goes away does not un-send a write.
pub(super) struct Survive<T: 'static> {
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
    survivors: TaskTracker,
}

impl<T: 'static> Survive<T> {
    /// `survivors` counts those that go on alone.
    pub(super) fn new(future: impl Future<Output = T> + 'static, survivors: &TaskTracker) -> Self {
        Self {
            future: Some(Box::pin(future)),
            survivors: survivors.clone(),
        }
    }
}

impl<T: 'static> Future for Survive<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.future else {
            panic!("polled after it was done");
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<T: 'static> Drop for Survive<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.survivors
                .spawn_local(async move { drop(future.await) });
        }
    }
}
