//! HTTP/1.1 towards the datastore: one request, one answer, one after the other, on one connection.
//!
//! A path of our own, since each request pays for it: with hyper's, two halves of one connection talk to each other through
//! channels. [`httparse`] reads the head; framing is by RFC 9112, section 6, strictly: an answer that two parsers could read as
//! different ones is not relayed.
//!
//! Invariants of absence: nothing is sent twice; nothing is written once an answer has begun before the request was sent (see
//! [`super::wire`]); a body that ended early never looks whole.

mod chunks;
mod framing;
mod head;
mod out;

#[cfg(test)]
mod tests;

use super::{BoxError, RequestBody, io::MaybeTls};
use bytes::{Bytes, BytesMut};
use framing::Framing;
use head::Fields;
use http::{HeaderMap, Method, Request, Response};
use http_body::SizeHint;
use out::{Out, SendError};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite};

/// The least and the first size of a read, in bytes; it doubles while reads fill it.
const READ: usize = 8 * 1024;

/// An idle connection keeps no larger buffer than this.
const KEEP: usize = 64 * 1024;

/// Why an exchange ended without an answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// The connection ended, or broke.
    Closed(Option<io::Error>),
    /// The request's body did.
    RequestBody(BoxError),
    /// What came is no HTTP/1.
    NoHttp(NoHttp),
    /// What came is HTTP, and can't be relayed.
    Invalid(&'static str),
}

/// Why bytes are no HTTP/1 answer.
#[derive(Debug, thiserror::Error)]
pub enum NoHttp {
    /// The parser's word.
    #[error("{0}")]
    Head(#[from] httparse::Error),
    /// More than may be buffered.
    #[error("its head is longer than {0} bytes")]
    TooLong(usize),
    /// Anything else.
    #[error("{0}")]
    Other(&'static str),
}

/// Why an answer's body has no end.
#[derive(Debug, thiserror::Error)]
pub enum BrokenAnswer {
    /// The connection ended within it.
    #[error("upstream's answer was cut short")]
    Cut,
    /// The connection broke within it.
    #[error("upstream's answer was cut short: {0}")]
    Io(#[source] io::Error),
    /// Its chunks are not as RFC 9112, section 7.1, has them.
    #[error("upstream's answer is not valid: {0}")]
    Chunks(&'static str),
}

/// One connection.
pub(super) struct Http1<S, B> {
    io: MaybeTls<S>,
    /// Read and not used yet.
    input: BytesMut,
    /// The size of the next read.
    read: usize,
    max_buffer: usize,
    out: Out<B>,
    fields: Fields,
    /// The map of the request's fields, emptied, for those of the answer: a map that grows into its size costs more than all that is
    /// put into it. hyper takes the answer's map for its next request in turn.
    spare: HeaderMap,
    /// How much of `input` was seen to hold no whole head.
    seen: usize,
    asked: Asked,
    body: Framing,
    keep_alive: bool,
}

/// How far the request in hand is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// There is none.
    Nothing,
    /// It waits for its first poll.
    New { head: bool },
    /// It is being sent, or waits for its answer.
    Sent { head: bool },
    /// Its answer's head has come.
    Answered,
}

impl<S, B> Http1<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: RequestBody,
{
    pub(super) fn new(io: MaybeTls<S>, max_buffer: usize) -> Self {
        Self {
            io,
            input: BytesMut::new(),
            read: READ,
            max_buffer: max_buffer.max(READ),
            out: Out::new(),
            fields: Fields::default(),
            spare: HeaderMap::new(),
            seen: 0,
            asked: Asked::Nothing,
            body: Framing::Ended,
            keep_alive: true,
        }
    }

    /// The socket.
    pub(super) fn socket(&self) -> &S {
        self.io.socket()
    }

    /// Takes a request. Nothing is written before [`Self::poll_answer`].
    pub(super) fn begin(&mut self, request: Request<B>) {
        self.asked = Asked::New {
            head: request.method() == Method::HEAD,
        };
        self.seen = 0;
        self.body = Framing::Ended;
        self.keep_alive = true;
        self.spare = self.out.begin(request);
        self.spare.clear();
    }

    /// Sends on, and reads until the head of the final answer has come.
    pub(super) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<()>, Failed>> {
        let head = match self.asked {
            Asked::New { head } => {
                // What an idle connection has heard: its end, mostly. Then nothing of the request was sent.
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(Failed::Closed(None))),
                    Poll::Ready(Ok(_)) => {
                        return Poll::Ready(Err(Failed::Invalid("an answer before its request")));
                    }
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err(Failed::Closed(Some(error))));
                    }
                    Poll::Pending => {}
                }
                self.asked = Asked::Sent { head };
                head
            }
            Asked::Sent { head } => head,
            Asked::Nothing | Asked::Answered => return Poll::Pending,
        };
        match self.out.poll_send(&mut self.io, cx) {
            Poll::Ready(Err(SendError::Body(error))) => {
                return Poll::Ready(Err(Failed::RequestBody(error)));
            }
            Poll::Ready(Err(SendError::Io(error))) => {
                return Poll::Ready(Err(Failed::Closed(Some(error))));
            }
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        loop {
            match ready!(self.poll_fill(cx)) {
                Ok(0) => return Poll::Ready(Err(Failed::Closed(None))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(Failed::Closed(Some(error)))),
            }
            if let Some(answer) = self.take_head(head)? {
                self.asked = Asked::Answered;
                return Poll::Ready(Ok(answer));
            }
        }
    }

    /// The final answer's head, if it is all there. Interim ones are passed over (RFC 9110, section 15.2).
    fn take_head(&mut self, to_head: bool) -> Result<Option<Response<()>>, Failed> {
        loop {
            let whole = if head::may_be_whole(&self.input, self.seen) {
                head::take(&mut self.input, &mut self.fields, &mut self.spare)?
            } else {
                None
            };
            let Some(answer) = whole else {
                self.seen = self.input.len();
                if self.seen >= self.max_buffer {
                    return Err(Failed::NoHttp(NoHttp::TooLong(self.max_buffer)));
                }
                return Ok(None);
            };
            self.seen = 0;
            if answer.status().is_informational() {
                if answer.status() == http::StatusCode::SWITCHING_PROTOCOLS {
                    // No request of ours asks for it (RFC 9110, section 15.2.2); what follows would be an unfenced tunnel.
                    return Err(Failed::Invalid("101 without a request for an upgrade"));
                }
                continue;
            }
            self.body = framing::of(&answer, to_head)?;
            self.keep_alive = framing::keeps_alive(&answer) && self.body != Framing::UntilClose;
            return Ok(Some(answer));
        }
    }

    /// More of the answer's body; `None` at its end.
    pub(super) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BrokenAnswer>>> {
        loop {
            match self.body.take(&mut self.input) {
                Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(None) if self.body == Framing::Ended => return Poll::Ready(None),
                Ok(None) => {}
                Err(why) => {
                    return Poll::Ready(Some(Err(self.broken(BrokenAnswer::Chunks(why)))));
                }
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) if self.body == Framing::UntilClose => self.body = Framing::Ended,
                Ok(0) => return Poll::Ready(Some(Err(self.broken(BrokenAnswer::Cut)))),
                Ok(_) => {}
                Err(error) => {
                    return Poll::Ready(Some(Err(self.broken(BrokenAnswer::Io(error)))));
                }
            }
        }
    }

    /// Whether the answer's body is known to have ended.
    pub(super) fn is_ended(&self) -> bool {
        self.body == Framing::Ended
    }

    /// What is left of the answer's body.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    /// After an exchange: whether another may follow (RFC 9112, section 9.3). What belongs to no answer makes the connection unfit.
    pub(super) fn is_reusable(&self) -> bool {
        self.asked == Asked::Answered
            && self.is_ended()
            && self.keep_alive
            && self.input.is_empty()
            && self.out.is_done()
    }

    /// Makes it fit to lie idle.
    pub(super) fn rest(&mut self) {
        self.asked = Asked::Nothing;
        if self.input.capacity() > KEEP {
            self.input = BytesMut::new();
            self.read = READ;
        }
        self.out.rest();
    }

    fn broken(&mut self, why: BrokenAnswer) -> BrokenAnswer {
        self.keep_alive = false;
        why
    }

    /// Reads once, into `input`. 0: the connection has ended.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Looked for in what is left of the buffer first: a new one is asked for when that would be a small read.
        if self.input.capacity() - self.input.len() < self.read / 2 {
            self.input.reserve(self.read);
        }
        let room = self.input.capacity() - self.input.len();
        let bytes = ready!(tokio_util::io::poll_read_buf(
            Pin::new(&mut self.io),
            cx,
            &mut self.input
        ))?;
        if bytes == room {
            self.read = (self.read * 2).min(self.max_buffer);
        }
        Poll::Ready(Ok(bytes))
    }
}
