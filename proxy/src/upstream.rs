//! Connections to the datastore, which know what was sent.
//!
//! HTTP/1.1, one request at a time per connection, no thread but the one that opened it. Below TLS every byte is
//! counted, so that "nothing was sent" is a fact and not a guess from an error's name. A write is sent once: nothing
//! here sends anything again.
//!
//! [`Pool::checkout`] gives a connection (its error means: nothing was sent), [`Conn::send`] gives a [`Sending`], and
//! that resolves to an [`Outcome`]. A [`Cutter`] stops it from any thread.
//!
//! Invariants of absence: no retry, no task per connection (the caller's own task drives it), no lock between threads
//! other than a request's own waker.

mod body;
mod connect;
mod http1;
mod io;
mod pool;
mod sending;
mod wire;

pub use body::AnswerBody;
pub use connect::{Connect, Socket, SocketConnector, Target};
pub use http1::{BrokenAnswer, NoHttp};
pub use pool::{Conn, ConnectError, Counts, Pool, PoolConfig, TlsTarget};
pub use sending::{AnswerError, Outcome, Sending};
pub use wire::{Cutter, Deadline, Sent};

/// An error of any kind, as `http_body` streams carry it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a request's body must be. Implemented by everything that fits. An error of it is the client's: the connection is closed, and
/// no final chunk is ever sent.
pub trait RequestBody:
    http_body::Body<Data = bytes::Bytes, Error = BoxError> + Unpin + 'static
{
}

impl<B> RequestBody for B where
    B: http_body::Body<Data = bytes::Bytes, Error = BoxError> + Unpin + 'static
{
}
