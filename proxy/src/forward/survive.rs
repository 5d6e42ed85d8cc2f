//! A future that goes on when whoever awaited it has gone.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Polled in place while somebody awaits it, so that the common path needs no task of its own; moved to a local task when
/// it is dropped before its end: a client that goes away does not un-send a write.
pub(super) struct Survive<T: 'static>(Option<Pin<Box<dyn Future<Output = T>>>>);

impl<T: 'static> Survive<T> {
    pub(super) fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<T: 'static> Future for Survive<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else {
            panic!("polled after it was done");
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<T: 'static> Drop for Survive<T> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take() {
            tokio::task::spawn_local(async move { drop(future.await) });
        }
    }
}
