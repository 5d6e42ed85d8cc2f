//! The I/O between HTTP and the socket: a counter below TLS, which asks before each write whether it may still be made.

use super::wire::{Deadline, Wire};
use palisade_lease::clock::Clock;
use std::{
    cell::{Cell, RefCell},
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};
use tokio_rustls::client::TlsStream;

/// What the layers of one connection tell each other. Lives on one thread.
pub(super) struct Link {
    wire: RefCell<Option<Arc<Wire>>>,
    deadline: RefCell<Option<Arc<Deadline>>>,
    clock: Arc<dyn Clock>,
    /// Bytes read below TLS since the request began.
    pub(super) read: Cell<u64>,
    /// Since when the answer is overdue, more or less: the last byte was sent then, or the socket has taken nothing since.
    pub(super) waiting_since: Cell<Option<Instant>>,
}

impl Link {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Rc<Self> {
        Rc::new(Self {
            wire: RefCell::new(None),
            deadline: RefCell::new(None),
            clock,
            read: Cell::new(0),
            waiting_since: Cell::new(None),
        })
    }

    pub(super) fn begin(&self, wire: Arc<Wire>, deadline: Option<Arc<Deadline>>) {
        *self.wire.borrow_mut() = Some(wire);
        *self.deadline.borrow_mut() = deadline;
        self.read.set(0);
        self.waiting_since.set(None);
    }

    /// The request is over; what is written now belongs to none.
    pub(super) fn end(&self) {
        *self.wire.borrow_mut() = None;
        *self.deadline.borrow_mut() = None;
    }

    /// Whether all of the request was sent.
    pub(super) fn is_complete(&self) -> bool {
        let wire = self.wire.borrow();
        wire.as_ref()
            .is_some_and(|wire| wire.sent() == super::Sent::Completely && !wire.is_held())
    }

    /// The last byte of the request is in the socket.
    pub(super) fn complete(&self) {
        if let Some(wire) = &*self.wire.borrow() {
            wire.complete();
            self.waiting_since.set(Some(Instant::now()));
        }
    }

    /// Right before a write. Pending: nothing more is written, but reading goes on.
    fn before_write(&self) -> Poll<io::Result<()>> {
        let wire = self.wire.borrow();
        let Some(wire) = &*wire else {
            return Poll::Ready(Ok(()));
        };
        if wire.is_held() {
            return Poll::Pending;
        }
        if let Some(deadline) = &*self.deadline.borrow()
            && self.clock.now() >= deadline.get()
        {
            wire.cut();
        }
        // A complete request writes nothing more of its own; what TLS still says (a key update) may pass.
        if wire.may_write() || wire.sent() == super::Sent::Completely {
            Poll::Ready(Ok(()))
        } else {
            Poll::Ready(Err(io::Error::other("cut")))
        }
    }

    /// Right after a write.
    fn after_write(
        &self,
        result: Poll<io::Result<usize>>,
        cx: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let wire = self.wire.borrow();
        let Some(wire) = &*wire else { return result };
        match result {
            Poll::Ready(Ok(bytes)) => {
                wire.wrote(bytes, self.clock.now());
                self.waiting_since.set(None);
                Poll::Ready(Ok(bytes))
            }
            // Upstream may have answered before it closed: what it said is still in the receive buffer, and reading
            // tells the end of the connection as well. So the write just never ends.
            Poll::Ready(Err(error)) if is_gone(&error) => {
                wire.hold();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => {
                if self.waiting_since.get().is_none() {
                    self.waiting_since.set(Some(Instant::now()));
                }
                Poll::Pending
            }
            error => error,
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut
    )
}

/// The socket, with every byte counted.
pub(super) struct Counted<S> {
    pub(super) stream: S,
    pub(super) link: Rc<Link>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        let read = (buf.filled().len() - before) as u64;
        self.link.read.set(self.link.read.get() + read);
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.link.before_write())?;
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.link.after_write(result, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.link.before_write())?;
        let result = crate::flatten::poll_write_vectored(Pin::new(&mut self.stream), cx, bufs);
        self.link.after_write(result, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The counted socket, with TLS or without.
pub(super) enum MaybeTls<S> {
    Plain(Counted<S>),
    Tls(Box<TlsStream<Counted<S>>>),
}

impl<S> MaybeTls<S> {
    fn counted(&self) -> &Counted<S> {
        match self {
            Self::Plain(io) => io,
            Self::Tls(io) => io.get_ref().0,
        }
    }

    /// The socket below all of it.
    pub(super) fn socket(&self) -> &S {
        &self.counted().stream
    }

    /// What the layers tell each other.
    pub(super) fn link(&self) -> &Rc<Link> {
        &self.counted().link
    }
}

macro_rules! either {
    ($self:expr, $io:ident => $do:expr) => {
        match $self.get_mut() {
            MaybeTls::Plain($io) => $do,
            MaybeTls::Tls($io) => $do,
        }
    };
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MaybeTls<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, io => Pin::new(io).poll_read(cx, buf))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MaybeTls<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, io => Pin::new(io).poll_shutdown(cx))
    }
}
