//! Accepting clients: listeners, threads, connections, the end of them.
//!
//! One single-threaded runtime per core, each with its own end of every listening socket and its own [`Handler`], so that a
//! request never changes threads. A connection goes one way: accept, TLS, HTTP/1.1 or HTTP/2, the handler's tap, hyper, handler.
//!
//! Bytes that are no request get hyper's bare 400, 414 or 431 and a close. What a handler refuses while the client is
//! still uploading goes through [`refuse_body`], or ordinary clients would see a reset instead of the refusal.

mod accept;
mod body;
mod connection;
mod listen;
mod quiet;
mod threads;
mod watched;

pub use accept::{Accept, Counts, Listener, Peer, Stage, serve};
pub use body::{BodyError, ClientBody, DrainLimits, drain_rest, refuse_body};
pub use connection::{ClientInfo, TlsInfo};
pub use listen::{Bound, Listen, SocketListener, SocketStream, bind, inherited};
pub use threads::{Running, Shutdown, start};

use bytes::Bytes;
use http::{Request, Response};
use std::{future::Future, rc::Rc, sync::Arc, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};

/// What a byte stream from a client must be.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + 'static> Stream for S {}

/// What is done with requests. One per thread.
pub trait Handler: 'static {
    /// The responses' bodies. An error cuts the response short.
    type Body: http_body::Body<Data = Bytes, Error: Into<crate::upstream::BoxError>>
        + Unpin
        + 'static;
    /// The I/O of a connection with something in between that looks at it, e.g. to keep the raw targets; `S` where there is nothing.
    type Tapped<S: Stream>: Stream;
    /// The other end of that, one per connection; `()` where there is nothing.
    type Tap: Clone + 'static;

    /// Puts the tap between a connection (above TLS) and hyper. Called once per connection, for HTTP/1.1 only: HTTP/2 has
    /// no lines to look at.
    fn tap<S: Stream>(&self, io: S) -> (Self::Tapped<S>, Self::Tap);

    /// Answers one request. Over HTTP/2 and when a connection breaks the future may be dropped at any await: what must live on needs a
    /// local task of its own.
    fn handle(
        self: Rc<Self>,
        request: Request<ClientBody>,
        client: Rc<ClientInfo>,
        tap: Option<Self::Tap>,
    ) -> impl Future<Output = Response<Self::Body>>;

    /// Resolves when nothing goes on any more that has outlived its connection. Asked for once, after the last connection's end.
    fn finished(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// TLS in front: replaced as a whole when the certificate files change, for connections from then on.
pub type TlsSwitch = Arc<arc_swap::ArcSwap<rustls::ServerConfig>>;

/// Limits and times of connections.
#[derive(Clone)]
pub struct ServerConfig {
    /// On TCP sockets; unix sockets are always plain. ALPN must offer `h2` and `http/1.1`.
    pub tls: Option<TlsSwitch>,
    /// Connections at once, over all threads. More get a 503 and a close; over TLS, or when there are many more, just a close.
    pub connections: usize,
    /// Bytes of a request's head, and of an HTTP/2 header list; more get a 431. At least 8192.
    pub header_bytes: usize,
    /// Bytes of a request's target; more get a 414.
    pub target_bytes: usize,
    /// Fields of a request's head; more get a 431.
    pub header_count: usize,
    /// From a head's first byte (on a new connection: from the start) to its end; then 408 and a close.
    pub header_timeout: Duration,
    /// For the TLS handshake.
    pub tls_handshake_timeout: Duration,
    /// Between requests; then the connection is closed.
    pub keepalive_idle: Duration,
    /// Between two pieces of a request's body; then [`BodyError::TooSlow`].
    pub body_idle_timeout: Duration,
    /// How long a client may take nothing of its response (HTTP/1.x); then the connection is closed.
    pub response_idle_timeout: Duration,
    /// HTTP/2 streams per connection at once.
    pub h2_streams: u32,
    /// HTTP/2 streams that the client reset before they were looked at; more end the connection (CVE-2023-44487).
    pub h2_resets: usize,
    /// On the way down: how long connections are still accepted.
    pub drain_delay: Duration,
    /// On the way down: how long after that requests under way may take.
    pub shutdown_timeout: Duration,
}

impl Default for ServerConfig {
    /// The defaults of the `[limits]` table.
    fn default() -> Self {
        Self {
            tls: None,
            connections: 10_000,
            header_bytes: 64 * 1024,
            target_bytes: 32 * 1024,
            header_count: 100,
            header_timeout: Duration::from_secs(10),
            tls_handshake_timeout: Duration::from_secs(10),
            keepalive_idle: Duration::from_secs(75),
            body_idle_timeout: Duration::from_secs(30),
            response_idle_timeout: Duration::from_secs(60),
            h2_streams: 128,
            h2_resets: 20,
            drain_delay: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(25),
        }
    }
}
