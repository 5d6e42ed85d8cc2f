//! A request on its way, and what became of it.

use super::{
    BoxError, RequestBody,
    body::{AnswerBody, Tracked},
    connect::Connect,
    pool::Conn,
    wire::{Cutter, Sent, Wire},
};
use http::{Request, Response, StatusCode, header};
use hyper::{body::Incoming, client::conn::TrySendError};
use palisade_fence::Time;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
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
    Closed(#[source] Option<hyper::Error>),
    /// The request's body ended in an error: the client went away, was too slow, or broke the framing.
    #[error("the request's body ended in an error: {0}")]
    RequestBody(#[source] BoxError),
    /// What came can't be relayed.
    #[error("upstream's answer is not valid: {0}")]
    Invalid(&'static str),
    /// What came is no HTTP.
    #[error("upstream's answer is not valid: {0}")]
    NoHttp(#[source] hyper::Error),
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

type Answering<B> =
    dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Tracked<B>>>>>;

/// A request that is being sent and answered. Makes progress only while it is polled; may be moved to another task of the same thread at any
/// time. Dropping it closes the connection at once (in mid-body that is a cut): whoever must know what became of a write keeps polling.
#[must_use = "nothing is sent unless it is polled"]
pub struct Sending<C: Connect, B: RequestBody> {
    conn: Option<Conn<C, B>>,
    wire: Arc<Wire>,
    answer: Pin<Box<Answering<B>>>,
}

impl<C, B> Sending<C, B>
where
    C: Connect,
    B: RequestBody,
{
    pub(super) fn new(conn: Conn<C, B>, wire: Arc<Wire>, answer: Pin<Box<Answering<B>>>) -> Self {
        Self {
            conn: Some(conn),
            wire,
            answer,
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
    answer: &mut Pin<Box<Answering<B>>>,
    conn: &mut Conn<C, B>,
    cx: &mut Context<'_>,
) -> Poll<Result<Response<Incoming>, AnswerError>>
where
    C: Connect,
    B: RequestBody,
{
    let ended = if wire.is_cut() { None } else { conn.drive(cx) };
    if wire.is_cut() {
        return Poll::Ready(Err(AnswerError::Cut));
    }
    // Only the connection, which was polled just now, makes it ready.
    let mut nobody = Context::from_waker(Waker::noop());
    if let Poll::Ready(answer) = answer.as_mut().poll(&mut nobody) {
        return Poll::Ready(match answer {
            Ok(response) => check(response),
            Err(error) => Err(classify(error.into_error())),
        });
    }
    match ended {
        Some(Err(error)) => return Poll::Ready(Err(classify(error))),
        Some(Ok(())) => return Poll::Ready(Err(AnswerError::Closed(None))),
        None => {}
    }
    poll_timeout(conn, cx).map(|()| Err(AnswerError::Timeout))
}

/// Ready when the answer is overdue.
fn poll_timeout<C, B>(conn: &mut Conn<C, B>, cx: &mut Context<'_>) -> Poll<()>
where
    C: Connect,
    B: RequestBody,
{
    let Some(since) = conn.link.waiting_since.get() else {
        return Poll::Pending;
    };
    let at = since + conn.response_timeout();
    if conn.timer.deadline() != at {
        conn.timer.as_mut().reset(at);
    }
    conn.timer.as_mut().poll(cx)
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
        let ringer = conn.ringer.clone();
        let polled = ringer.poll(cx, |cx| poll_answer(&this.wire, &mut this.answer, conn, cx));
        let Poll::Ready(answer) = polled else {
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
        let (reused, read_any) = (conn.is_reused(), conn.link.read.get() > 0);
        let last_write = this.wire.last_write();
        let answer = answer.map(|response| {
            conn.honour_keep_alive(response.headers());
            response.map(|incoming| AnswerBody::new(incoming, conn))
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

/// What hyper lets through and a fence must not relay.
fn check(response: Response<Incoming>) -> Result<Response<Incoming>, AnswerError> {
    let headers = response.headers();
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // No request of ours asks for it (RFC 9110, section 15.2.2); what follows would be an unfenced tunnel.
        return Err(AnswerError::Invalid("101 without a request for an upgrade"));
    }
    if response.status().is_informational() {
        return Err(AnswerError::Invalid("an interim response as the last one"));
    }
    if headers.contains_key(header::CONTENT_LENGTH)
        && headers.contains_key(header::TRANSFER_ENCODING)
    {
        // RFC 9112, section 6.3: may be an attempt at response splitting.
        return Err(AnswerError::Invalid(
            "both Content-Length and Transfer-Encoding",
        ));
    }
    Ok(response)
}

fn classify(error: hyper::Error) -> AnswerError {
    use std::error::Error;
    if error.is_user() {
        // The only thing of ours that hyper can complain about after the checks in front of it is the body.
        AnswerError::RequestBody(Box::new(error))
    } else if error.is_parse() {
        AnswerError::NoHttp(error)
    } else if error.is_incomplete_message()
        || error.is_closed()
        || error.is_canceled()
        || error.source().is_some_and(|s| s.is::<std::io::Error>())
    {
        AnswerError::Closed(Some(error))
    } else {
        AnswerError::NoHttp(error)
    }
}
