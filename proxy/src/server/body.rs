//! A request's body as the client sends it, made safe: complete or an error, never something that only looks complete.

use super::watched::Busy;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep};

/// Why a request's body did not come whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Nothing came for `body_idle_timeout`.
    #[error("the body came too slowly")]
    TooSlow,
    /// The client reset the stream or closed the connection before the body's end.
    #[error("the client stopped before the body's end")]
    Cut,
    /// Bad framing, or the connection broke.
    #[error("the body can't be read: {0}")]
    Broken(#[source] hyper::Error),
}

/// A request's body. Ends only where the client ended it: an HTTP/2 stream that was reset with NO_ERROR looks to hyper like a body at its end
/// (hyperium/hyper#3681), so the end counts only if the stream says so too.
pub struct ClientBody {
    incoming: Incoming,
    http2: bool,
    /// The client waits for a 100 before it sends (RFC 9110, section 10.1.1), which hyper sends when the body is first polled.
    awaits_continue: bool,
    idle: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// The timer runs: nothing has come since the last look.
    waiting: bool,
    left: Option<u64>,
    failed: bool,
    /// While it is being read the connection is not idle, whether its response is done or not.
    _busy: Busy,
}

impl ClientBody {
    pub(super) fn wrap(request: Request<Incoming>, idle: Duration, busy: Busy) -> Request<Self> {
        let http2 = request.version() == Version::HTTP_2;
        let awaits_continue = request
            .headers()
            .get(header::EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        request.map(|incoming| Self {
            left: incoming.size_hint().exact(),
            incoming,
            http2,
            awaits_continue,
            idle,
            timer: None,
            waiting: false,
            failed: false,
            _busy: busy,
        })
    }

    /// Whether asking for the body is what makes the client send it.
    pub fn awaits_continue(&self) -> bool {
        self.awaits_continue
    }

    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.awaits_continue = false;
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending => match self.poll_idle(cx) {
                Poll::Ready(()) => Poll::Ready(Some(Err(BodyError::TooSlow))),
                Poll::Pending => Poll::Pending,
            },
            Poll::Ready(None) => Poll::Ready(self.end()),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(BodyError::Broken(error)))),
            Poll::Ready(Some(Ok(frame))) => {
                self.waiting = false;
                if let Some(data) = frame.data_ref() {
                    let length = data.len() as u64;
                    self.left = self.left.map(|left| left.saturating_sub(length));
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn end(&self) -> Option<Result<Frame<Bytes>, BodyError>> {
        let whole = if self.http2 {
            self.incoming.is_end_stream()
        } else {
            self.left.is_none_or(|left| left == 0)
        };
        (!whole).then_some(Err(BodyError::Cut))
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let idle = self.idle;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
        if !self.waiting {
            self.waiting = true;
            timer.as_mut().reset(Instant::now() + idle);
        }
        timer.as_mut().poll(cx)
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.poll_piece(cx);
        if let Poll::Ready(Some(Err(_))) = &polled {
            self.failed = true;
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

/// How much of an unwanted body is read, so that its sender gets to read the answer.
#[derive(Clone, Copy, Debug)]
pub struct DrainLimits {
    /// At most this many bytes.
    pub bytes: u64,
    /// At most this long.
    pub time: Duration,
    /// A body that is known to have no more than this is read beside the response, and the connection lives on.
    pub keep_alive: u64,
}

impl Default for DrainLimits {
    fn default() -> Self {
        Self {
            bytes: 256 * 1024 * 1024,
            time: Duration::from_secs(10),
            keep_alive: 64 * 1024,
        }
    }
}

/// Makes a response to a request whose body was not wanted readable. Many clients read nothing before they have sent everything, and
/// a close with unread bytes resets the connection under the answer (RFC 9112, section 9.6). So a local task reads on within the limits
/// and drops what comes, and unless that is known to be little, the response says `Connection: close` (HTTP/1.x). A body that was not asked for yet (`Expect: 100-continue`) is not asked for.
pub fn refuse_body<B>(response: &mut Response<B>, body: ClientBody, limits: DrainLimits) {
    if body.is_end_stream() {
        return;
    }
    let is_small = !body.awaits_continue
        && !body.failed
        && body
            .size_hint()
            .exact()
            .is_some_and(|length| length <= limits.keep_alive);
    if !body.http2 && !is_small {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    drain_rest(body, limits);
}

/// Reads what is left of a body within the limits, in a local task, and drops it. Not one that the client has not begun to send, and not
/// one that has ended in an error.
pub fn drain_rest(body: ClientBody, limits: DrainLimits) {
    if body.awaits_continue || body.failed {
        return;
    }
    tokio::task::spawn_local(async move {
        let _ = tokio::time::timeout(limits.time, drain(body, limits.bytes)).await;
    });
}

async fn drain(mut body: ClientBody, mut limit: u64) {
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
        if length > limit {
            return;
        }
        limit -= length;
    }
}
