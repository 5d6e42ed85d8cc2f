//! A tap on a client's connection: it follows HTTP/1.1 requests as their bytes stream by, because the parser behind it
//! forgets what a fence must know. A `#fragment` is cut off the target there, a second `Content-Length` and one beside
//! `Transfer-Encoding` disappear, and nobody can ask it how far a head or a body has come.
//!
//! The tap changes nothing. It follows exactly what hyper accepts (RFC 9112); where it can't follow, it says so, and
//! the request is refused. Heads are scanned line by line, bodies are only counted.

use http::{Method, Uri};
use palisade_fence::Time;
use palisade_lease::clock;
use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
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
    shared: Arc<Mutex<Shared>>,
}

/// What the tap has seen: for the handler of requests, and for timers.
#[derive(Clone, Debug)]
pub struct Heads(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    follower: Follower,
    head_since: Option<Time>,
    starving_since: Option<Time>,
    bytes: u64,
}

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

/// How far a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Where in a request.
    pub phase: Phase,
    /// When the head under way began, by its first byte; also when it turned out to be none.
    pub head_since: Option<Time>,
    /// Since when the server has wanted bytes and the client sent none; `None` while nobody wants any. A client is not
    /// slow when it is upstream that takes the body slowly.
    pub starving_since: Option<Time>,
    /// Heads that were complete so far.
    pub heads: u64,
    /// Bytes read so far.
    pub bytes: u64,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a head, from its first byte.
    pub head: Duration,
    /// For the next byte of a body.
    pub body: Duration,
    /// For the next request.
    pub idle: Duration,
}

impl Progress {
    /// When this client is too slow if it sends nothing more; `None` while it is not its turn.
    pub fn deadline(&self, patience: &Patience) -> Option<Time> {
        let (since, patience) = match self.phase {
            Phase::Head | Phase::Lost => (self.head_since, patience.head),
            Phase::Body => (self.starving_since, patience.body),
            Phase::Idle => (self.starving_since, patience.idle),
            Phase::Http2 => return None,
        };
        since.map(|since| since.after(patience))
    }
}

impl<T> Tap<T> {
    /// Puts a tap on a connection. A head above `max_head` bytes is not followed: the limit of the parser behind is to
    /// be below.
    pub fn new(inner: T, max_head: usize) -> (Self, Heads) {
        let shared = Arc::new(Mutex::new(Shared {
            follower: Follower::new(max_head),
            head_since: None,
            starving_since: Some(clock::boot()),
            bytes: 0,
        }));
        let heads = Heads(shared.clone());
        (Self { inner, shared }, heads)
    }

    /// The connection.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // A panic elsewhere leaves nothing half done here: every change is complete before the lock goes.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heads {
    /// Compares the next request with what the parser made of it. To be called once for each request, in their order.
    ///
    /// Refuses a fragment (RFC 9112, section 3.2: no form of a target has one), doubtful framing (section 6.3), and
    /// any difference in method or target.
    pub fn next(&self, method: &Method, uri: &Uri) -> Result<(), Refusal> {
        let mut shared = lock(&self.0);
        if shared.follower.phase() == Phase::Http2 {
            return Ok(());
        }
        let checked = match shared.follower.head() {
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
        shared.follower.pop_head();
        checked.map_err(|detail| Refusal::with_detail(Problem::BadRequest, detail))
    }

    /// How far the client has come.
    pub fn progress(&self) -> Progress {
        let shared = lock(&self.0);
        Progress {
            phase: shared.follower.phase(),
            head_since: shared.head_since,
            starving_since: shared.starving_since,
            heads: shared.follower.heads(),
            bytes: shared.bytes,
        }
    }
}

impl Shared {
    fn read(&mut self, bytes: &[u8]) {
        self.starving_since = None;
        self.bytes += bytes.len() as u64;
        let heads = self.follower.heads();
        self.follower.follow(bytes);
        match self.follower.phase() {
            Phase::Head | Phase::Lost => {
                if self.head_since.is_none() || self.follower.heads() != heads {
                    self.head_since = Some(clock::boot());
                }
            }
            Phase::Idle | Phase::Body | Phase::Http2 => self.head_since = None,
        }
    }

    fn nothing_to_read(&mut self) {
        if self.starving_since.is_none() {
            self.starving_since = Some(clock::boot());
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Tap<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if read.is_pending() {
            lock(&self.shared).nothing_to_read();
        }
        ready!(read)?;
        let bytes = &buf.filled()[before..];
        if !bytes.is_empty() {
            lock(&self.shared).read(bytes);
        }
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
