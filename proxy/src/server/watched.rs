//! What a connection is doing, as far as its timers need it: between requests, reading a head, or busy with a request.

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use std::{
    cell::Cell,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// Shared by a connection's I/O, its requests and its timer.
pub(super) struct Activity {
    /// Requests that are not answered to the end.
    busy: Cell<usize>,
    /// Whether there was a request at all.
    asked: Cell<bool>,
    /// Whether the next answer is the last one.
    ends: Cell<bool>,
    /// Since when none is.
    idle_since: Cell<Instant>,
    /// When the first byte after that came.
    head_since: Cell<Option<Instant>>,
    /// Bytes of the request line so far; `None` once it is complete.
    line: Cell<Option<usize>>,
    line_limit: usize,
    /// Since when the client takes nothing of what is written.
    blocked_since: Cell<Option<Instant>>,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    /// For a request, since then.
    Idle(Instant),
    /// For the rest of a head, since then.
    Head(Instant),
    /// Not for the client's next request.
    No,
}

impl Activity {
    /// A new connection owes us a head from its start. A request line may have up to `line_limit` bytes.
    pub(super) fn new(begun: Instant, line_limit: usize) -> Rc<Self> {
        Rc::new(Self {
            busy: Cell::new(0),
            asked: Cell::new(false),
            ends: Cell::new(false),
            idle_since: Cell::new(begun),
            head_since: Cell::new(Some(begun)),
            line: Cell::new(Some(0)),
            line_limit,
            blocked_since: Cell::new(None),
        })
    }

    /// Whether there was a request at all.
    pub(super) fn was_asked(&self) -> bool {
        self.asked.get()
    }

    /// The next answer is the last one, and says so.
    pub(super) fn end_after_answer(&self) {
        self.ends.set(true);
    }

    /// Whether the next answer is the last one.
    pub(super) fn ends_after_answer(&self) -> bool {
        self.ends.get()
    }

    /// Since when the client takes nothing of what is written to it; `None` while it does, or nothing is.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since.get()
    }

    /// Takes note of a write.
    fn wrote<T>(&self, polled: Poll<T>) -> Poll<T> {
        match &polled {
            Poll::Ready(_) => self.blocked_since.set(None),
            Poll::Pending if self.blocked_since.get().is_none() => {
                self.blocked_since.set(Some(Instant::now()));
            }
            Poll::Pending => {}
        }
        polled
    }

    /// Whether the client sent a longer request line than it may.
    pub(super) fn line_is_too_long(&self) -> bool {
        self.line.get().is_some_and(|line| line >= self.line_limit)
    }

    /// Takes note of bytes that came between requests, or within a head. Pending: the request line is too long, and hyper gets no more.
    fn read(&self, bytes: &[u8]) -> Poll<io::Result<()>> {
        if self.head_since.get().is_none() && !bytes.is_empty() {
            self.head_since.set(Some(Instant::now()));
        }
        if let Some(line) = self.line.get() {
            let end = memchr::memchr(b'\n', bytes);
            let line = line + end.unwrap_or(bytes.len());
            // One that is too long stays so, even if it came in one piece with its end.
            let complete = end.is_some() && line < self.line_limit;
            self.line.set((!complete).then_some(line));
        }
        if self.line_is_too_long() {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// What still comes is nobody's request.
    pub(super) fn reads_no_more_requests(&self) {
        self.line.set(None);
    }

    pub(super) fn waiting(&self) -> Waiting {
        match (self.busy.get(), self.head_since.get()) {
            (0, Some(since)) => Waiting::Head(since),
            (0, None) => Waiting::Idle(self.idle_since.get()),
            _ => Waiting::No,
        }
    }

    /// For HTTP/2, whose frames between requests are no heads.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.busy.get() == 0).then(|| self.idle_since.get())
    }
}

/// A request under way, from its head to the end of its response.
pub(super) struct Busy(Rc<Activity>);

impl Busy {
    pub(super) fn new(activity: &Rc<Activity>) -> Self {
        activity.busy.set(activity.busy.get() + 1);
        activity.asked.set(true);
        activity.head_since.set(None);
        activity.line.set(Some(0));
        Self(activity.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let left = self.0.busy.get() - 1;
        self.0.busy.set(left);
        if left == 0 {
            self.0.idle_since.set(Instant::now());
        }
    }
}

/// The client's I/O, watched for the first byte of a head and the end of its first line.
pub(super) struct Watched<S> {
    pub(super) io: S,
    pub(super) activity: Rc<Activity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        if self.activity.busy.get() > 0 {
            return Poll::Ready(Ok(()));
        }
        self.activity.read(&buf.filled()[before..])
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.activity.wrote(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = crate::flatten::poll_write_vectored(Pin::new(&mut self.io), cx, bufs);
        self.activity.wrote(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Bytes that were read already, then the rest.
pub(super) struct Prefixed<S> {
    pub(super) prefix: Bytes,
    pub(super) io: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let length = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix[..length]);
        self.prefix.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A response's body that keeps its request [`Busy`] until it was sent or given up.
pub(super) struct BusyBody<B> {
    /// `None`: empty.
    pub(super) body: Option<B>,
    pub(super) _busy: Busy,
}

impl<B: Body + Unpin> Body for BusyBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}
