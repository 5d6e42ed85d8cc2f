//! The two bodies of an exchange: the request's, watched for its end, and the answer's, which drives the connection.

use super::{BoxError, RequestBody, connect::Connect, io::Link, pool::Conn};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// A request body that tells the [`Link`] when hyper has got its last byte.
pub(super) struct Tracked<B> {
    body: B,
    link: Rc<Link>,
    /// Bytes still to come, where the length is known: hyper does not ask again once it has them all.
    left: Option<u64>,
}

impl<B: RequestBody> Tracked<B> {
    pub(super) fn new(body: B, link: Rc<Link>) -> Self {
        let left = body.size_hint().exact();
        if body.is_end_stream() || left == Some(0) {
            link.body_ended.set(true);
        }
        Self { body, link, left }
    }
}

impl<B: RequestBody> Body for Tracked<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let ended = match &polled {
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                Some(data) => {
                    let length = data.len() as u64;
                    if self.left.is_some_and(|left| left < length) {
                        // hyper would cut it to its length and call that complete.
                        return Poll::Ready(Some(Err("the body is longer than its length".into())));
                    }
                    self.left = self.left.map(|left| left - length);
                    self.left == Some(0) || self.body.is_end_stream()
                }
                None => frame.is_trailers(),
            },
            Poll::Ready(None) => self.left.is_none_or(|left| left == 0),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if ended {
            self.link.body_ended.set(true);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Upstream's answer as it comes in. A body that was cut short ends in an error, never as if it were whole. When its end was
/// reached the connection goes back to the pool; dropped before that, the connection is closed.
///
/// A body that upstream ends by closing (no length, no chunks) can't be told from a cut one (RFC 9112, section 6.3, rule 8).
pub struct AnswerBody<C: Connect, B: RequestBody> {
    incoming: Incoming,
    conn: Option<Conn<C, B>>,
}

impl<C, B> AnswerBody<C, B>
where
    C: Connect,
    B: RequestBody,
{
    pub(super) fn new(incoming: Incoming, conn: Conn<C, B>) -> Self {
        let mut body = Self {
            incoming,
            conn: Some(conn),
        };
        body.give_back_if_done();
        body
    }

    fn give_back_if_done(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(conn) = self.conn.take()
        {
            conn.give_back();
        }
    }
}

impl<C, B> Body for AnswerBody<C, B>
where
    C: Connect,
    B: RequestBody,
{
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        // Only the connection, which is polled in between, makes it ready.
        let mut nobody = Context::from_waker(Waker::noop());
        let mut incoming = Pin::new(&mut this.incoming);
        let polled = match &mut this.conn {
            None => incoming.poll_frame(cx),
            Some(conn) => {
                let ringer = conn.ringer.clone();
                ringer.poll(cx, |cx| match incoming.as_mut().poll_frame(&mut nobody) {
                    Poll::Pending => {
                        conn.drive(cx);
                        incoming.as_mut().poll_frame(&mut nobody)
                    }
                    ready => ready,
                })
            }
        };
        match &polled {
            Poll::Ready(Some(Ok(_))) => this.give_back_if_done(),
            Poll::Ready(None) => {
                if let Some(conn) = this.conn.take() {
                    conn.give_back();
                }
            }
            Poll::Ready(Some(Err(_))) => this.conn = None,
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
