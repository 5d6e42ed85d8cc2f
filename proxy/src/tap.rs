//! A tap on a client's connection: it follows HTTP/1.1 requests as their bytes stream by, because the parser behind it
//! forgets what a fence must know. A `#fragment` is cut off the target there, a second `Content-Length` and one beside
//! `Transfer-Encoding` disappear, and nobody can ask it how far a head or a body has come.
//!
//! The tap changes nothing. It follows exactly what hyper accepts (RFC 9112); where it can't follow, it says so, and
//! the request is refused. Heads are scanned line by line, bodies are only counted.

use http::{Method, Uri};
use std::{
    cell::RefCell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::refusal::{Problem, Refusal};

mod follow;
mod target;

use follow::Follower;

/// A connection with a tap on what is read from it.
#[derive(Debug)]
pub struct Tap<T> {
    inner: T,
    shared: Rc<RefCell<Follower>>,
}

/// What the tap has seen, for the handler of requests.
#[derive(Clone, Debug)]
pub struct Heads(Rc<RefCell<Follower>>);

/// Where in a request the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Between requests, or before the first.
    Idle,
    /// A head has begun and is not complete.
    Head,
    /// Within a body.
    Body,
    /// The client speaks HTTP/2: nothing is followed but the bytes' number.
    Http2,
    /// These are no requests that could be followed; the parser will refuse them, and if not, [`Heads::next`] will.
    Lost,
}

impl<T> Tap<T> {
    /// Puts a tap on a connection. A head above `max_head` bytes is not followed: the limit of the parser behind is to
    /// be below.
    pub fn new(inner: T, max_head: usize) -> (Self, Heads) {
        let shared = Rc::new(RefCell::new(Follower::new(max_head)));
        let heads = Heads(shared.clone());
        (Self { inner, shared }, heads)
    }

    /// The connection.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }
}

impl Heads {
    /// Compares the next request with what the parser made of it. To be called once for each request, in their order.
    ///
    /// Refuses a fragment (RFC 9112, section 3.2: no form of a target has one), doubtful framing (section 6.3), and
    /// any difference in method or target.
    pub fn next(&self, method: &Method, uri: &Uri) -> Result<(), Refusal> {
        let mut follower = self.0.borrow_mut();
        if follower.phase() == Phase::Http2 {
            return Ok(());
        }
        let checked = match follower.head() {
            None => Err("The request could not be followed on the wire."),
            Some(head) if head.target.contains(&b'#') => Err(
                "The target has a fragment (`#...`) in it. A client keeps that to itself; escape a `#` as %23.",
            ),
            Some(head) if head.doubtful_framing => Err(
                "Content-Length stands twice, or beside Transfer-Encoding. Send one of them, once.",
            ),
            Some(head)
                if head.method == method.as_str().as_bytes() && target::same(head.target, uri) =>
            {
                Ok(())
            }
            Some(_) => Err("Method and target could be read in two ways."),
        };
        follower.pop_head();
        checked.map_err(|detail| Refusal::with_detail(Problem::BadRequest, detail))
    }

    /// Where in a request the client is, and how many heads were complete so far.
    #[cfg(test)]
    fn progress(&self) -> (Phase, u64) {
        let follower = self.0.borrow();
        (follower.phase(), follower.heads())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Tap<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let bytes = &buf.filled()[before..];
        self.shared.borrow_mut().follow(bytes);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Tap<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
