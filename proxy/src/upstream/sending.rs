//! A request on its way, and what became of it.

use super::{
    BoxError, RequestBody,
    body::AnswerBody,
    connect::Connect,
    http1::{Failed, NoHttp},
    pool::Conn,
    wire::{Cutter, Sent, Wire},
};
use http::Response;
use palisade_fence::Time;
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Why there is no answer to relay. Whether the request may have been applied is told by [`Outcome::sent`], not by this.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// A [`Cutter`] or the deadline stopped it.
    #[error("cut while it was being sent")]
    Cut,
    /// Nothing came within the response timeout, counted from the last byte sent, or upstream took no bytes for as long.
    #[error("upstream did not answer in time")]
    Timeout,
    /// The connection ended without an answer.
    #[error("upstream closed the connection without an answer")]
    Closed(#[source] Option<io::Error>),
    /// The request's body ended in an error: the client went away, was too slow, or broke the framing.
    #[error("the request's body ended in an error: {0}")]
    RequestBody(#[source] BoxError),
    /// What came can't be relayed.
    #[error("upstream's answer is not valid: {0}")]
    Invalid(&'static str),
    /// What came is no HTTP.
    #[error("upstream's answer is not valid: {0}")]
    NoHttp(#[source] NoHttp),
}

/// What became of a request.
pub struct Outcome<C: Connect, B: RequestBody> {
    /// How much left. With an answer that came before this was [`Sent::Completely`], sending was stopped and the
    /// connection will be closed: the write is ambiguous even so.
    pub sent: Sent,
    /// When the socket last took bytes of it, on the boot-time clock: its settle time counts from here.
    pub last_write: Option<Time>,
    /// Upstream's final response: never a 1xx.
    pub answer: Result<Response<AnswerBody<C, B>>, AnswerError>,
    reused: bool,
    read_any: bool,
}

impl<C: Connect, B: RequestBody> Outcome<C, B> {
    /// True if a kept-alive connection turned out to be dead: it closed without one byte of an answer. A *read without a body* may then
    /// be sent once more, on a fresh connection (RFC 9110, section 9.2.2). A write never.
    pub fn read_may_be_retried(&self) -> bool {
        self.reused && !self.read_any && matches!(self.answer, Err(AnswerError::Closed(_)))
    }
}

/// A request that is being sent and answered. Makes progress only while it is polled; may be moved to another task of the same thread at any
/// time. Dropping it closes the connection at once (in mid-body that is a cut): whoever must know what became of a write keeps polling.
#[must_use = "nothing is sent unless it is polled"]
pub struct Sending<C: Connect, B: RequestBody> {
    conn: Option<Conn<C, B>>,
    wire: Arc<Wire>,
}

impl<C, B> Sending<C, B>
where
    C: Connect,
    B: RequestBody,
{
    pub(super) fn new(conn: Conn<C, B>, wire: Arc<Wire>) -> Self {
        Self {
            conn: Some(conn),
            wire,
        }
    }

    /// The switch that stops it.
    pub fn cutter(&self) -> Cutter {
        Cutter(self.wire.clone())
    }

    /// How much has left so far.
    pub fn sent(&self) -> Sent {
        self.wire.sent()
    }

    /// When the socket last took bytes of it.
    pub fn last_write(&self) -> Option<Time> {
        self.wire.last_write()
    }
}

fn poll_answer<C, B>(
    wire: &Wire,
    conn: &mut Conn<C, B>,
    cx: &mut Context<'_>,
) -> Poll<Result<Response<()>, AnswerError>>
where
    C: Connect,
    B: RequestBody,
{
    let polled = if wire.is_cut() {
        Poll::Pending
    } else {
        conn.http_mut().poll_answer(cx)
    };
    // Before or meanwhile, from another thread or by the deadline.
    if wire.is_cut() {
        return Poll::Ready(Err(AnswerError::Cut));
    }
    match polled {
        Poll::Ready(answer) => Poll::Ready(answer.map_err(AnswerError::from)),
        Poll::Pending => conn.poll_overdue(cx).map(|()| Err(AnswerError::Timeout)),
    }
}

impl<C, B> Future for Sending<C, B>
where
    C: Connect,
    B: RequestBody,
{
    type Output = Outcome<C, B>;

    /// # Panics
    /// When polled after it has resolved.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(conn) = &mut this.conn else {
            panic!("polled after it was done");
        };
        this.wire.register(cx.waker());
        let Poll::Ready(answer) = poll_answer(&this.wire, conn, cx) else {
            return Poll::Pending;
        };
        let Some(mut conn) = this.conn.take() else {
            panic!("polled after it was done");
        };
        let sent = this.wire.sent();
        if sent != Sent::Completely {
            // An early answer, or none: not a byte more.
            this.wire.hold();
        }
        let (reused, read_any) = (conn.is_reused(), conn.read() > 0);
        let last_write = this.wire.last_write();
        let answer = answer.map(|response| {
            conn.honour_keep_alive(response.headers());
            response.map(|()| AnswerBody::new(conn))
        });
        Poll::Ready(Outcome {
            sent,
            last_write,
            answer,
            reused,
            read_any,
        })
    }
}

impl From<Failed> for AnswerError {
    fn from(why: Failed) -> Self {
        match why {
            Failed::Closed(error) => Self::Closed(error),
            Failed::RequestBody(error) => Self::RequestBody(error),
            Failed::NoHttp(what) => Self::NoHttp(what),
            Failed::Invalid(what) => Self::Invalid(what),
        }
    }
}
