//! A request on its way out: its head, and its body as that comes.

use super::{RequestBody, head};
use crate::{
    flatten::FLATTEN,
    upstream::{BoxError, io::MaybeTls},
};
use bytes::{Buf, Bytes};
use http::{HeaderMap, Request};
use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite};

/// Pieces of a body are gathered up to this many bytes for one write.
const GATHER: usize = 64 * 1024;
/// And up to this many pieces.
const PIECES: usize = 32;
/// An idle connection keeps no larger buffer for heads than this.
const KEEP: usize = 16 * 1024;

/// Why not all of it went.
pub(super) enum SendError {
    /// The body ended in an error, or is not as long as it said.
    Body(BoxError),
    /// The socket's word.
    Io(io::Error),
}

/// What is to be written.
pub(super) struct Out<B> {
    /// The head, and behind it what is small enough to be copied.
    head: Vec<u8>,
    /// How much of it has gone.
    gone: usize,
    /// What comes behind.
    pieces: VecDeque<Bytes>,
    bytes: usize,
    body: Option<B>,
    /// Bytes that the body still owes, where its length was told; else it goes out in chunks.
    owes: Option<u64>,
    /// The last byte of the body is among what is to be written.
    whole: bool,
    done: bool,
}

impl<B: RequestBody> Out<B> {
    pub(super) fn new() -> Self {
        Self {
            head: Vec::new(),
            gone: 0,
            pieces: VecDeque::new(),
            bytes: 0,
            body: None,
            owes: None,
            whole: true,
            done: true,
        }
    }

    /// Takes a request, and gives back the map that its fields were in.
    pub(super) fn begin(&mut self, request: Request<B>) -> HeaderMap {
        self.rest();
        self.owes = request.body().size_hint().exact();
        head::write(&request, self.owes, &mut self.head);
        let (parts, body) = request.into_parts();
        self.done = false;
        self.whole = self.owes == Some(0);
        self.body = (!self.whole).then_some(body);
        parts.headers
    }

    /// All of it has gone.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Forgets it.
    pub(super) fn rest(&mut self) {
        self.head.clear();
        if self.head.capacity() > KEEP {
            self.head = Vec::new();
        }
        self.gone = 0;
        self.pieces.clear();
        self.bytes = 0;
        self.body = None;
    }

    /// Writes what is there, and asks the body for more. Ready once all has been handed to the socket.
    pub(super) fn poll_send<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        io: &mut MaybeTls<S>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        while !self.done {
            self.gather(cx).map_err(SendError::Body)?;
            if self.bytes == 0 && self.gone == self.head.len() {
                // TLS has a buffer of its own.
                ready!(Pin::new(&mut *io).poll_flush(cx)).map_err(SendError::Io)?;
                if !self.whole {
                    return Poll::Pending;
                }
                io.link().complete();
                self.done = true;
                break;
            }
            let written = ready!(self.poll_write(io, cx)).map_err(SendError::Io)?;
            if written == 0 {
                return Poll::Ready(Err(SendError::Io(io::ErrorKind::WriteZero.into())));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Asks the body for as much as makes a good write.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), BoxError> {
        while !self.whole && self.bytes < GATHER && self.pieces.len() < PIECES {
            let Some(body) = &mut self.body else {
                return Ok(());
            };
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Err(error))) => return Err(error),
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers: nobody has judged them.
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    let ended = body.is_end_stream();
                    self.take(data)?;
                    if self.owes == Some(0) || (ended && self.owes.is_none()) {
                        self.end()?;
                    }
                }
                Poll::Ready(None) => self.end()?,
            }
        }
        Ok(())
    }

    fn take(&mut self, data: Bytes) -> Result<(), BoxError> {
        if data.is_empty() {
            return Ok(());
        }
        if let Some(owes) = self.owes {
            let Some(left) = owes.checked_sub(data.len() as u64) else {
                return Err("the body is longer than its length".into());
            };
            self.owes = Some(left);
            self.push(data);
            return Ok(());
        }
        let mut line = [0; 20];
        let mut rest = &mut line[..];
        // 16 digits and two bytes: it can't be full.
        let _ = write!(rest, "{:x}\r\n", data.len());
        let length = 20 - rest.len();
        self.push_copy(&line[..length]);
        self.push(data);
        self.push(Bytes::from_static(b"\r\n"));
        Ok(())
    }

    /// The body has given all that it has.
    fn end(&mut self) -> Result<(), BoxError> {
        match self.owes {
            Some(0) => {}
            Some(_) => return Err("the body is shorter than its length".into()),
            None => self.push(Bytes::from_static(b"0\r\n\r\n")),
        }
        self.whole = true;
        self.body = None;
        Ok(())
    }

    /// What is small is copied behind the head: one plain write is cheaper than a vectored one there.
    fn push(&mut self, piece: Bytes) {
        if self.fits(piece.len()) {
            self.head.extend_from_slice(&piece);
        } else {
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }

    fn push_copy(&mut self, piece: &[u8]) {
        if self.fits(piece.len()) {
            self.head.extend_from_slice(piece);
        } else {
            self.bytes += piece.len();
            self.pieces.push_back(Bytes::copy_from_slice(piece));
        }
    }

    fn fits(&mut self, length: usize) -> bool {
        if self.pieces.is_empty() && self.gone == self.head.len() {
            self.head.clear();
            self.gone = 0;
        }
        self.pieces.is_empty() && self.head.len() + length <= FLATTEN
    }

    fn poll_write<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: &mut MaybeTls<S>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let head = &self.head[self.gone..];
        let io = Pin::new(io);
        if self.pieces.is_empty() {
            return io.poll_write(cx, head);
        }
        let mut slices = [IoSlice::new(&[]); PIECES + 3];
        let mut count = 0;
        let filled = std::iter::once(head).chain(self.pieces.iter().map(|piece| &piece[..]));
        for (slot, piece) in slices
            .iter_mut()
            .zip(filled.filter(|piece| !piece.is_empty()))
        {
            *slot = IoSlice::new(piece);
            count += 1;
        }
        io.poll_write_vectored(cx, &slices[..count])
    }

    fn advance(&mut self, mut written: usize) {
        let head = written.min(self.head.len() - self.gone);
        self.gone += head;
        written -= head;
        self.bytes -= written;
        while written > 0 {
            let Some(first) = self.pieces.front_mut() else {
                return;
            };
            let part = written.min(first.len());
            first.advance(part);
            written -= part;
            if first.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}
