//! A worker: a process of its own, so that it can be frozen. It takes a lease by the real library, reads, writes for a
//! while, gives the lease back, and so on. It is careless on purpose: it does not look at its lease between writes, as a
//! process that is frozen between the look and the write can't either.
//!
//! It writes down what it does before it does it, and what came of it, on its standard output.

use super::store;
use crate::history::{Event, Kind, REQUESTS, What};
use bytes::Bytes;
use clap::Args;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use palisade_fence::Time;
use palisade_lease::{LeaseOptions, LeaseUrl, clock};
use std::{
    cell::{Cell, RefCell},
    io::{self, Read, Write},
    net::SocketAddr,
    time::{Duration, UNIX_EPOCH},
};
use tokio::net::TcpStream;

/// What a worker is told at its start.
#[derive(Clone, Debug, Args)]
pub struct Worker {
    /// The lease store
    #[arg(long)]
    pub leases: LeaseUrl,
    /// Where the datastore is reached; each connection goes to one of them
    #[arg(long, value_delimiter = ',')]
    pub to: Vec<SocketAddr>,
    /// The first segment of its paths
    #[arg(long)]
    pub scope: String,
    /// Its number among all processes of the run
    #[arg(long)]
    pub number: u64,
    /// When the run began, in nanoseconds on the boot-time clock
    #[arg(long)]
    pub epoch: u64,
}

impl Worker {
    /// As a command line.
    pub fn arguments(&self) -> Vec<String> {
        let to: Vec<String> = self.to.iter().map(ToString::to_string).collect();
        let pairs = [
            ("--leases", self.leases.to_string()),
            ("--to", to.join(",")),
            ("--scope", self.scope.clone()),
            ("--number", self.number.to_string()),
            ("--epoch", self.epoch.to_string()),
        ];
        let words = pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]);
        std::iter::once("worker".to_owned()).chain(words).collect()
    }

    /// Works until the process ends, or whoever started it has.
    ///
    /// # Errors
    /// If the lease store's URL is none that can be opened.
    pub async fn work(self) -> Result<(), palisade_lease::StoreError> {
        std::thread::spawn(|| {
            let _ = io::stdin().read(&mut [0]);
            std::process::exit(0);
        });
        let leases = palisade_lease::open(&self.leases)?;
        let lease_name = format!("chaos/{}", self.scope);
        let session = Session {
            random: RefCell::new(fastrand::Rng::with_seed(self.number)),
            worker: self,
            requests: Cell::new(0),
            wall: Cell::new(None),
        };
        loop {
            let options = LeaseOptions {
                wait: Some(Duration::from_secs(4)),
                patience: Duration::from_secs(4),
                steal: session.dice(15),
                ..LeaseOptions::with_ttl(Duration::from_secs(2))
            };
            match leases.acquire(&lease_name, options).await {
                Ok(lease) => {
                    session.hold(lease.token().get()).await;
                    // With etcd away this would go on for long.
                    let _ = tokio::time::timeout(Duration::from_secs(1), lease.release()).await;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

struct Session {
    worker: Worker,
    random: RefCell<fastrand::Rng>,
    requests: Cell<u64>,
    /// How far its wall clock is ahead of the boot-time clock, in seconds.
    wall: Cell<Option<i64>>,
}

/// What is no jump, in seconds.
const JUMP: i64 = 60;

/// How it goes on after a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    /// On another connection, a little later.
    Again,
    /// The token is out of date.
    Over,
}

impl Session {
    fn dice(&self, percent: u8) -> bool {
        self.random.borrow_mut().u8(..100) < percent
    }

    fn milliseconds(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.borrow_mut().u64(range))
    }

    /// One line, in one write: what is killed or frozen in between has written it or not.
    fn tell(&self, what: What) {
        let epoch = Time::from_nanos(self.worker.epoch);
        let at = clock::boot().since(epoch).as_nanos() as u64;
        let mut line = serde_json::to_vec(&Event { at, what }).unwrap_or_default();
        line.push(b'\n');
        if io::stdout()
            .write_all(&line)
            .and_then(|()| io::stdout().flush())
            .is_err()
        {
            // Nobody writes the history any more.
            std::process::exit(0);
        }
    }

    /// Tells of its wall clock if that has jumped: nothing here goes by it.
    fn look_at_the_clock(&self) {
        let wall = clock::wall().duration_since(UNIX_EPOCH);
        let wall = wall.map_or(0, |time| time.as_secs() as i64);
        let now = wall - (clock::boot().as_nanos() / 1_000_000_000) as i64;
        let before = self.wall.replace(Some(now)).unwrap_or(now);
        if (now - before).abs() > JUMP {
            self.tell(What::Jumped {
                process: self.worker.number,
                seconds: now - before,
            });
        }
    }

    /// While it has, or believes to have, the lease.
    async fn hold(&self, token: u64) {
        let worker = &self.worker;
        self.tell(What::Granted {
            scope: worker.scope.clone(),
            token,
            process: worker.number,
        });
        let mut reading = None;
        while self.request(&mut reading, token, Kind::Read).await == Next::Again {}
        let (one, other) = (self.writes(token), self.writes(token));
        tokio::join!(one, other);
    }

    /// Some writes one after the other.
    async fn writes(&self, token: u64) {
        let mut connection = None;
        let count = self.random.borrow_mut().u8(2..25);
        for _ in 0..count {
            if self.request(&mut connection, token, Kind::Write).await == Next::Over {
                return;
            }
            tokio::time::sleep(self.milliseconds(0..15)).await;
        }
    }

    async fn request(
        &self,
        connection: &mut Option<SendRequest<Full<Bytes>>>,
        token: u64,
        kind: Kind,
    ) -> Next {
        self.look_at_the_clock();
        let count = self.requests.get();
        self.requests.set(count + 1);
        let id = self.worker.number * REQUESTS + count;
        self.tell(What::Invoke {
            id,
            scope: self.worker.scope.clone(),
            token,
            kind,
            process: self.worker.number,
        });
        let patience = self.milliseconds(200..2_500);
        let sent = tokio::time::timeout(patience, self.send(connection, id, token, kind)).await;
        let (what, next) = match sent {
            Ok(Ok((response, body))) => outcome(id, &response, &body),
            Ok(Err(error)) => (unknown(id, &*error), Next::Again),
            Err(elapsed) => (unknown(id, &elapsed), Next::Again),
        };
        self.tell(what);
        if next == Next::Again {
            *connection = None;
            tokio::time::sleep(self.milliseconds(10..60)).await;
        }
        next
    }

    async fn send(
        &self,
        connection: &mut Option<SendRequest<Full<Bytes>>>,
        id: u64,
        token: u64,
        kind: Kind,
    ) -> Result<(Response<()>, Bytes), Box<dyn std::error::Error>> {
        let sender = match connection {
            Some(sender) => sender,
            None => {
                let to = &self.worker.to;
                let to = to[self.random.borrow_mut().usize(..to.len())];
                let stream = TcpStream::connect(to).await?;
                stream.set_nodelay(true)?;
                let (sender, driving) = http1::handshake(TokioIo::new(stream)).await?;
                tokio::spawn(driving);
                connection.insert(sender)
            }
        };
        sender.ready().await?;
        let (method, body) = match kind {
            Kind::Read => (Method::GET, Bytes::new()),
            Kind::Write => (Method::PUT, self.body()),
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("/{}/value", self.worker.scope))
            .header(header::HOST, "store")
            .header(palisade_lease::TOKEN_HEADER, token)
            .header(store::ID, id)
            .header(store::SENT, clock::boot().as_nanos())
            .body(Full::new(body))?;
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Incoming::collect(body).await?.to_bytes();
        Ok((Response::from_parts(parts, ()), body))
    }

    /// Small ones mostly; some that the proxy streams.
    fn body(&self) -> Bytes {
        let mut random = self.random.borrow_mut();
        let length = match random.u8(..20) {
            0 => 200_000,
            1..4 => 8_000,
            _ => 40,
        };
        Bytes::from(vec![b'x'; length])
    }
}

fn unknown(id: u64, why: &dyn std::error::Error) -> What {
    let why = why.to_string();
    What::Unknown { id, why }
}

/// What the response says of the outcome. A proxy that does not say is taken at its status.
fn outcome(id: u64, response: &Response<()>, body: &[u8]) -> (What, Next) {
    let status = response.status().as_u16();
    let said = response
        .headers()
        .get("x-fence-outcome")
        .map(|value| value.as_bytes());
    let said = said.unwrap_or(match status {
        412 => b"refused",
        500.. => b"unknown",
        _ => b"answered",
    });
    match said {
        b"refused" => {
            let reason = reason(body).unwrap_or_default();
            let next = if status == 412 {
                Next::Over
            } else {
                Next::Again
            };
            (What::Refused { id, status, reason }, next)
        }
        b"answered" => {
            let seen = std::str::from_utf8(body)
                .ok()
                .and_then(|text| text.parse().ok());
            (What::Answered { id, status, seen }, Next::Go)
        }
        _ => {
            let why = format!("status {status}");
            (What::Unknown { id, why }, Next::Again)
        }
    }
}

/// The last part of the problem's type (RFC 9457, section 3.1.1).
fn reason(body: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    let kind = problem.get("type")?.as_str()?;
    kind.rsplit(':').next().map(str::to_owned)
}
