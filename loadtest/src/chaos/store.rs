//! The recording datastore of a chaos run: counts writes, writes down each arrival and application, and misbehaves when told.
//!
//! It keeps assumption A6 by itself, by construction and not by luck: what the worker sent longer ago than `settle` it
//! does not apply any more. The proxy has sent it later than the worker has, so this is stricter than A6 asks for.

use super::Recorder;
use crate::history::{RequestId, What};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use palisade_fence::Time;
use palisade_lease::clock;
use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::net::TcpListener;

/// The field with the number of a request.
pub const ID: &str = "x-loadtest-id";
/// The field with the moment when the worker sent it: nanoseconds on the boot-time clock.
pub const SENT: &str = "x-loadtest-sent";

/// The datastore.
#[derive(Debug)]
pub struct Store {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    recorder: Arc<Recorder>,
    settle: Duration,
    /// By scope: how many writes were applied.
    positions: Mutex<HashMap<String, u64>>,
    random: Mutex<fastrand::Rng>,
    slow: AtomicBool,
    ambiguous: AtomicBool,
}

/// A request as the datastore needs it.
#[derive(Clone, Debug)]
struct Asked {
    id: RequestId,
    scope: String,
    token: u64,
    sent: Time,
    proxy: u64,
}

/// What becomes of a write.
enum Fate {
    Now,
    /// Answered once it was applied.
    Later(Duration),
    /// Answered with this status or hung up on, and applied after it, or never.
    Apart(Option<StatusCode>, Option<Duration>),
}

impl Store {
    /// Starts it, with an address for each proxy: so it knows through which one a write came.
    ///
    /// # Errors
    /// If there is no port for it.
    pub async fn start(
        recorder: Arc<Recorder>,
        settle: Duration,
        seed: u64,
        proxies: usize,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            recorder,
            settle,
            positions: Mutex::default(),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            slow: AtomicBool::new(false),
            ambiguous: AtomicBool::new(false),
        });
        let mut addresses = Vec::new();
        for proxy in 1..=proxies as u64 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.push(listener.local_addr()?);
            tokio::spawn(serve(listener, shared.clone(), proxy));
        }
        Ok(Self { addresses, shared })
    }

    /// Where it listens, for each proxy.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Whether it applies late.
    pub fn slow(&self, slow: bool) {
        self.shared.slow.store(slow, Relaxed);
    }

    /// Whether it hangs up, or answers what settles nothing.
    pub fn ambiguous(&self, ambiguous: bool) {
        self.shared.ambiguous.store(ambiguous, Relaxed);
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, proxy: u64) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        let service = service_fn(move |request| answer(shared.clone(), proxy, request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // A connection that fails is what all this is about.
        tokio::spawn(async move { connection.await.ok() });
    }
}

async fn answer(
    shared: Arc<Shared>,
    proxy: u64,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    // A body that was cut short is never applied.
    body.collect().await.map_err(io::Error::other)?;
    let number = |name: &str| number(&parts.headers, name);
    let asked = Asked {
        id: number(ID).unwrap_or(0),
        scope: parts
            .uri
            .path()
            .split('/')
            .nth(1)
            .unwrap_or_default()
            .to_owned(),
        token: number("x-fence-token").unwrap_or(0),
        sent: Time::from_nanos(number(SENT).unwrap_or(0)),
        proxy,
    };
    shared.recorder.record(What::Arrived { id: asked.id });
    if parts.method == Method::GET {
        let seen = shared.seen(&asked.scope);
        return Ok(Response::new(Full::from(seen.to_string())));
    }
    match shared.fate() {
        Fate::Now => Ok(status(shared.apply(&asked))),
        Fate::Later(delay) => {
            // In a task of its own: it goes on when the connection is gone.
            let applying = tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                shared.apply(&asked)
            });
            applying.await.map(status).map_err(io::Error::other)
        }
        Fate::Apart(answer, delay) => {
            if let Some(delay) = delay {
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    shared.apply(&asked);
                });
            }
            answer
                .map(status)
                .ok_or_else(|| io::Error::other("hung up"))
        }
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

impl Shared {
    fn seen(&self, scope: &str) -> u64 {
        let positions = self
            .positions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        positions.get(scope).copied().unwrap_or(0)
    }

    /// Applies a write, unless it is too old.
    fn apply(&self, asked: &Asked) -> StatusCode {
        let mut positions = self
            .positions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Under the lock: whatever is applied next has looked at the clock later.
        if clock::boot().since(asked.sent) >= self.settle {
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        let position = positions.entry(asked.scope.clone()).or_default();
        *position += 1;
        self.recorder.record(What::Applied {
            id: asked.id,
            scope: asked.scope.clone(),
            token: asked.token,
            position: *position,
            proxy: asked.proxy,
        });
        StatusCode::NO_CONTENT
    }

    fn fate(&self) -> Fate {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let delay = Duration::from_millis(random.u64(20..700));
        let dice = random.u8(..100);
        if self.ambiguous.load(Relaxed) && dice < 30 {
            let answer = [
                None,
                Some(StatusCode::ACCEPTED),
                Some(StatusCode::GATEWAY_TIMEOUT),
                Some(StatusCode::BAD_GATEWAY),
            ];
            return Fate::Apart(answer[random.usize(..4)], (dice < 24).then_some(delay));
        }
        if self.slow.load(Relaxed) && dice < 70 {
            return Fate::Later(delay);
        }
        Fate::Now
    }
}
