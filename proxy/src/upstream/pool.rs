//! The connections of one thread: open, idle, in use.

use super::{
    RequestBody,
    connect::Connect,
    http1::Http1,
    io::{Counted, Link, MaybeTls},
    sending::Sending,
    wire::{Deadline, Wire},
};
use http::{HeaderMap, Request, header};
use palisade_lease::clock::Clock;
use rustls_pki_types::ServerName;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsConnector;

/// An idle connection younger than this is used again without a look at it: upstream could hardly have closed it since.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// How to use a [`Pool`].
#[derive(Clone)]
pub struct PoolConfig {
    /// For the connection and, with TLS, its handshake together.
    pub connect_timeout: Duration,
    /// From the last byte sent to the answer's head.
    pub response_timeout: Duration,
    /// Idle connections are closed after this; must be less than upstream's own limit. Upstream's `Keep-Alive: timeout=` shortens it.
    pub idle_timeout: Duration,
    /// Idle connections kept at most, per thread.
    pub max_idle: usize,
    /// How much of an answer may be buffered for one connection, in bytes, and how long its head may be; at least 8192.
    pub max_buffer: usize,
    /// With TLS.
    pub tls: Option<TlsTarget>,
    /// Dates the writes.
    pub clock: Arc<dyn Clock>,
}

/// TLS to upstream.
#[derive(Clone)]
pub struct TlsTarget {
    /// Roots and client certificate. No ALPN, or `http/1.1`.
    pub config: Arc<rustls::ClientConfig>,
    /// The name in upstream's certificate.
    pub server_name: ServerName<'static>,
}

/// Why there is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The operating system's word.
    #[error("connecting to upstream: {0}")]
    Io(#[source] io::Error),
    /// Not within `connect_timeout`.
    #[error("connecting to upstream took too long")]
    Timeout,
}

/// Connections of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Open and unused.
    pub idle: usize,
    /// In use.
    pub busy: usize,
}

/// This thread's connections to one upstream. Cheap to clone. Needs a `LocalSet` (idle connections are closed by a local task).
///
/// `B` is the request bodies' type.
pub struct Pool<C: Connect, B: RequestBody>(Rc<Inner<C, B>>);

impl<C: Connect, B: RequestBody> Clone for Pool<C, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(super) struct Inner<C: Connect, B: RequestBody> {
    connector: C,
    config: PoolConfig,
    /// The newest at the back. Not in order of expiry where upstream gives some connections less time.
    idle: RefCell<VecDeque<Idle<C, B>>>,
    busy: Cell<usize>,
    reaping: Cell<bool>,
}

struct Idle<C: Connect, B: RequestBody> {
    conn: Conn<C, B>,
    since: Instant,
    until: Instant,
}

impl<C, B> Pool<C, B>
where
    C: Connect,
    B: RequestBody,
{
    /// An empty pool.
    pub fn new(connector: C, config: PoolConfig) -> Self {
        Self(Rc::new(Inner {
            connector,
            config,
            idle: RefCell::default(),
            busy: Cell::new(0),
            reaping: Cell::new(false),
        }))
    }

    /// A connection that is open as far as one can see: an idle one, or else a new one. An error means that nothing was sent.
    pub async fn checkout(&self) -> Result<Conn<C, B>, ConnectError> {
        match self.take_idle() {
            Some(conn) => Ok(conn),
            None => self.fresh().await,
        }
    }

    /// A new connection. For the one retry of a read; see [`super::Outcome::read_may_be_retried`].
    pub async fn fresh(&self) -> Result<Conn<C, B>, ConnectError> {
        // Counted before the wait, so that those being opened show as busy.
        let seat = Seat::take(&self.0);
        tokio::time::timeout(self.0.config.connect_timeout, self.open(seat))
            .await
            .unwrap_or(Err(ConnectError::Timeout))
    }

    /// How many there are now.
    pub fn counts(&self) -> Counts {
        Counts {
            idle: self.0.idle.borrow().len(),
            busy: self.0.busy.get(),
        }
    }

    /// Closes what is idle, e.g. when upstream was changed. Those in use still come back.
    pub fn close_idle(&self) {
        for idle in self.0.idle.take() {
            idle.conn.end_politely();
        }
    }

    /// An idle connection that is open as far as one can see, if there is one.
    pub fn take_idle(&self) -> Option<Conn<C, B>> {
        let now = Instant::now();
        loop {
            let idle = self.0.idle.borrow_mut().pop_back()?;
            let mut conn = idle.conn;
            if now >= idle.until {
                conn.end_politely();
            } else if now - idle.since < LOOK_AFTER || !C::is_gone(conn.http().socket()) {
                conn.0.seat = Some(Seat::take(&self.0));
                conn.0.reused = true;
                return Some(conn);
            }
        }
    }

    async fn open(&self, seat: Seat<C, B>) -> Result<Conn<C, B>, ConnectError> {
        let config = &self.0.config;
        let stream = self.0.connector.connect().await.map_err(ConnectError::Io)?;
        let link = Link::new(config.clock.clone());
        let counted = Counted {
            stream,
            link: link.clone(),
        };
        let io = match &config.tls {
            None => MaybeTls::Plain(counted),
            Some(tls) => TlsConnector::from(tls.config.clone())
                .connect(tls.server_name.clone(), counted)
                .await
                .map(|stream| MaybeTls::Tls(Box::new(stream)))
                .map_err(ConnectError::Io)?,
        };
        Ok(Conn(Box::new(Parts {
            http: Http1::new(io, config.max_buffer),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            link,
            response_timeout: config.response_timeout,
            seat: Some(seat),
            reused: false,
            keep_for: config.idle_timeout,
        })))
    }
}

impl<C, B> Inner<C, B>
where
    C: Connect,
    B: RequestBody,
{
    fn put(self: &Rc<Self>, conn: Conn<C, B>) {
        if self.config.max_idle == 0 {
            return conn.end_politely();
        }
        let now = Instant::now();
        let oldest = {
            let mut idle = self.idle.borrow_mut();
            idle.push_back(Idle {
                since: now,
                until: now + conn.0.keep_for,
                conn,
            });
            if idle.len() > self.config.max_idle {
                idle.pop_front()
            } else {
                None
            }
        };
        if let Some(oldest) = oldest {
            oldest.conn.end_politely();
        }
        if !self.reaping.replace(true) {
            let pool = Rc::downgrade(self);
            let pause = self.config.idle_timeout / 4;
            tokio::task::spawn_local(async move {
                loop {
                    tokio::time::sleep(pause).await;
                    let Some(pool) = pool.upgrade() else { return };
                    if !pool.reap() {
                        return;
                    }
                }
            });
        }
    }

    /// Closes what has been idle for too long, or was closed by upstream. False: none is left to look after.
    fn reap(&self) -> bool {
        let now = Instant::now();
        let all = self.idle.take();
        let (keep, ended): (VecDeque<_>, VecDeque<_>) = all
            .into_iter()
            .partition(|idle| now < idle.until && !C::is_gone(idle.conn.http().socket()));
        *self.idle.borrow_mut() = keep;
        ended.into_iter().for_each(|idle| idle.conn.end_politely());
        let go_on = !self.idle.borrow().is_empty();
        self.reaping.set(go_on);
        go_on
    }
}

/// One in use, as long as it lives.
struct Seat<C: Connect, B: RequestBody>(Rc<Inner<C, B>>);

impl<C: Connect, B: RequestBody> Seat<C, B> {
    fn take(pool: &Rc<Inner<C, B>>) -> Self {
        pool.busy.set(pool.busy.get() + 1);
        Self(pool.clone())
    }
}

impl<C: Connect, B: RequestBody> Drop for Seat<C, B> {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}

/// A connection that carries no request. Dropping it closes it.
pub struct Conn<C: Connect, B: RequestBody>(Box<Parts<C, B>>);

struct Parts<C: Connect, B: RequestBody> {
    http: Http1<C::Stream, B>,
    /// For the answer; kept here so that a request costs no allocation for it.
    timer: Pin<Box<Sleep>>,
    link: Rc<Link>,
    /// `None` while idle: then the pool owns it, and nothing owns the pool.
    seat: Option<Seat<C, B>>,
    reused: bool,
    response_timeout: Duration,
    keep_for: Duration,
}

impl<C, B> Conn<C, B>
where
    C: Connect,
    B: RequestBody,
{
    /// Whether it has carried a request before.
    pub fn is_reused(&self) -> bool {
        self.0.reused
    }

    /// Begins to send. The head must be as upstream shall get it: target in origin form, `Host`. How the body is framed is told by
    /// the body: one of known length has a `Content-Length`, any other goes out in chunks. Nothing is written before the
    /// [`Sending`] is polled. After `deadline` no byte is written.
    pub fn send(mut self, request: Request<B>, deadline: Option<Arc<Deadline>>) -> Sending<C, B> {
        let wire = Wire::new();
        self.0.link.begin(wire.clone(), deadline);
        self.0.http.begin(request);
        Sending::new(self, wire)
    }

    /// Back to the pool, without having been used.
    pub fn unused(mut self) {
        if let Some(seat) = self.0.seat.take() {
            seat.0.clone().put(self);
        }
    }

    pub(super) fn http(&self) -> &Http1<C::Stream, B> {
        &self.0.http
    }

    pub(super) fn http_mut(&mut self) -> &mut Http1<C::Stream, B> {
        &mut self.0.http
    }

    /// Bytes read for the request in hand.
    pub(super) fn read(&self) -> u64 {
        self.0.link.read.get()
    }

    /// Ready when the answer is overdue.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let parts = &mut *self.0;
        loop {
            let Some(since) = parts.link.waiting_since.get() else {
                return Poll::Pending;
            };
            let at = since + parts.response_timeout;
            // One that is due earlier is left as it is, and looked at again then: to set it anew for each request costs more.
            let armed = !parts.timer.is_elapsed() && parts.timer.deadline() <= at;
            if !armed {
                parts.timer.as_mut().reset(at);
            }
            ready!(parts.timer.as_mut().poll(cx));
            if parts.timer.deadline() >= at {
                return Poll::Ready(());
            }
        }
    }

    /// Upstream's own limit, if it names one: shortly before that the connection is closed on our side, since a request that
    /// crosses with a close would be ambiguous.
    pub(super) fn honour_keep_alive(&mut self, headers: &HeaderMap) {
        if let Some(limit) = headers
            .get_all(header::HeaderName::from_static("keep-alive"))
            .iter()
            .filter_map(|value| keep_alive_timeout(value.to_str().ok()?))
            .min()
        {
            let margin = (limit / 2).min(Duration::from_secs(1));
            self.0.keep_for = self.0.keep_for.min(limit - margin);
        }
    }

    /// After an answer was read to its end: back to the pool, if the connection is still good for another request.
    pub(super) fn give_back(mut self) {
        let complete = self.0.link.is_complete();
        let good = complete && self.0.http.is_reusable() && !self.0.keep_for.is_zero();
        if good && let Some(seat) = self.0.seat.take() {
            self.0.link.end();
            self.0.http.rest();
            seat.0.clone().put(self);
        } else if complete {
            self.end_politely();
        }
    }

    fn end_politely(self) {
        C::end_politely(self.http().socket());
    }
}

/// The `timeout` of a `Keep-Alive` field (RFC 2068, section 19.7.1.1; still what servers send).
fn keep_alive_timeout(value: &str) -> Option<Duration> {
    value.split(',').find_map(|part| {
        let (name, seconds) = part.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("timeout")
            .then(|| seconds.trim().trim_matches('"').parse().ok())?
            .map(Duration::from_secs)
    })
}
