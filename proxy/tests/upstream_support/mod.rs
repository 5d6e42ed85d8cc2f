//! What the tests of upstream share.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "test code; each test file uses a part of it"
)]

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use palisade::upstream::{BoxError, Outcome, Pool, PoolConfig, SocketConnector, Target};
use palisade_lease::clock::BootClock;
use palisade_loadtest::origin::Origin;
use std::{
    future::Future,
    net::ToSocketAddrs,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::mpsc, task::LocalSet};

/// Runs on one thread, as the proxy does.
pub fn local<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// Timeouts that only a test that has failed runs into.
pub fn config() -> PoolConfig {
    PoolConfig {
        connect_timeout: Duration::from_secs(30),
        response_timeout: Duration::from_secs(30),
        idle_timeout: Duration::from_secs(30),
        max_idle: 16,
        max_buffer: 256 * 1024,
        tls: None,
        clock: Arc::new(BootClock),
    }
}

pub fn tcp(address: impl ToSocketAddrs) -> SocketConnector {
    let address = address.to_socket_addrs().unwrap().next().unwrap();
    SocketConnector {
        target: Target::Tcp(address.ip().to_string(), address.port()),
        user_timeout: Duration::from_secs(10),
    }
}

pub fn pool(origin: &Origin) -> Pool<SocketConnector, Body> {
    Pool::new(tcp(origin.address()), config())
}

pub fn put(target: &str, body: Body) -> Request<Body> {
    Request::put(target)
        .header("host", "db")
        .body(body)
        .unwrap()
}

pub fn get(target: &str) -> Request<Body> {
    Request::get(target)
        .header("host", "db")
        .body(Body::whole(""))
        .unwrap()
}

/// The body of an answer.
pub async fn text(outcome: Outcome<SocketConnector, Body>) -> String {
    let body = outcome.answer.unwrap().into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

/// Blocks the thread until an idle connection is old enough to be looked at: no condition to wait for, the age is the point.
pub fn settle_idle() {
    std::thread::sleep(Duration::from_millis(11));
}

/// A body that is there, or comes as the test sends it.
pub struct Body {
    ready: Option<Bytes>,
    feed: Option<mpsc::UnboundedReceiver<Result<Bytes, BoxError>>>,
    length: Option<u64>,
}

impl Body {
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            length: Some(bytes.len() as u64),
            ready: (!bytes.is_empty()).then_some(bytes),
            feed: None,
        }
    }

    pub fn fed(length: Option<u64>) -> (Self, mpsc::UnboundedSender<Result<Bytes, BoxError>>) {
        let (sender, feed) = mpsc::unbounded_channel();
        let body = Self {
            ready: None,
            feed: Some(feed),
            length,
        };
        (body, sender)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(ready) = self.ready.take() {
            return Poll::Ready(Some(Ok(Frame::data(ready))));
        }
        match &mut self.feed {
            Some(feed) => feed.poll_recv(cx).map(|data| Some(data?.map(Frame::data))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.feed.is_none() && self.ready.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // What is left, as a well-behaved body says.
        match (&self.feed, self.length) {
            (None, _) => SizeHint::with_exact(self.ready.as_ref().map_or(0, |r| r.len() as u64)),
            (Some(_), Some(length)) => SizeHint::with_exact(length),
            (Some(_), None) => SizeHint::default(),
        }
    }
}
