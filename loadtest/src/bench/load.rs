//! The load: a number of connections, each with one request at a time, as fast as they are answered (closed loop) or at a
//! fixed rate (open loop). In the open loop a request's time counts from the moment when it was due, not from when it was
//! sent: what waits for a slow answer is not left out (Tene, "How NOT to Measure Latency").

use super::protocol::{Client, Exchange, Line};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::{Method, Request};
use palisade_fence::Time;
use palisade_lease::clock;
use std::{
    cell::{Cell, RefCell},
    fmt, io,
    net::SocketAddr,
    rc::Rc,
    str::FromStr,
    time::Duration,
};
use tokio::task::LocalSet;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A read without a token, answered with 100 bytes.
    Get,
    /// A write with a token and so many KiB.
    Put(usize),
}

impl Work {
    fn request(self) -> http::Result<Request<Bytes>> {
        let to = Request::builder().uri("https://store/value");
        match self {
            Self::Get => to.body(Bytes::new()),
            Self::Put(kib) => to
                .method(Method::PUT)
                .header("x-fence-token", "5")
                .body(Bytes::from(vec![b'x'; kib * 1024])),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get => f.write_str("get"),
            Self::Put(kib) => write!(f, "put-{kib}k"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kib = || text.strip_prefix("put-")?.strip_suffix('k')?.parse().ok();
        match text {
            "get" => Ok(Self::Get),
            _ => kib()
                .map(Self::Put)
                .ok_or_else(|| "there are: get, put-1k, put-64k, put-1024k, ...".to_owned()),
        }
    }
}

/// How fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The next one when the one before is answered.
    Closed,
    /// So many a second over all connections.
    Open(f64),
}

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// What each request does.
    pub work: Work,
    /// How many connections.
    pub connections: usize,
    /// How fast.
    pub pace: Pace,
    /// For how long.
    pub time: Duration,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Answered requests.
    pub requests: u64,
    /// Answered with another status than 200.
    pub failed: u64,
    /// How long it took in all.
    pub time: Duration,
    /// In nanoseconds.
    pub latency: Histogram<u64>,
}

struct Running {
    pace: Pace,
    request: Request<Bytes>,
    start: Time,
    end: Time,
    next: Cell<u64>,
    failed: Cell<u64>,
    latency: RefCell<Histogram<u64>>,
}

/// Sends it on the current thread, which must run a current-thread runtime.
///
/// # Errors
/// If a connection can't be made, or ends.
pub async fn drive(client: &Client, to: SocketAddr, load: Load) -> io::Result<Measured> {
    let tasks = LocalSet::new();
    tasks.run_until(drive_here(client, to, load)).await
}

async fn drive_here(client: &Client, to: SocketAddr, load: Load) -> io::Result<Measured> {
    // Up to a minute; what takes longer is counted as that.
    let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)?;
    let lines = client.lines(to, load.connections).await?;
    let start = clock::boot();
    let running = Rc::new(Running {
        pace: load.pace,
        request: load.work.request().map_err(io::Error::other)?,
        start,
        end: start.after(load.time),
        next: Cell::new(0),
        failed: Cell::new(0),
        latency: RefCell::new(latency),
    });
    let started: Vec<_> = lines
        .into_iter()
        .map(|line| {
            let running = running.clone();
            tokio::task::spawn_local(async move {
                match line {
                    Line::Plain(line) => running.connection(line).await,
                    Line::Tls(line) => running.connection(*line).await,
                    Line::Http2(line) => running.connection(line).await,
                }
            })
        })
        .collect();
    for task in started {
        task.await.map_err(io::Error::other)??;
    }
    let latency = running.latency.borrow().clone();
    Ok(Measured {
        requests: latency.len(),
        failed: running.failed.get(),
        time: clock::boot().since(start),
        latency,
    })
}

impl Running {
    async fn connection<L: Exchange>(self: Rc<Self>, mut line: L) -> io::Result<()> {
        let request = L::prepare(&self.request);
        loop {
            let due = self.due().await;
            if due >= self.end {
                return Ok(());
            }
            if line.exchange(&request).await? != 200 {
                self.failed.set(self.failed.get() + 1);
            }
            let took = clock::boot().since(due).as_nanos() as u64;
            self.latency.borrow_mut().saturating_record(took);
        }
    }

    /// Waits for the next request's moment, and gives it.
    async fn due(&self) -> Time {
        let Pace::Open(rate) = self.pace else {
            return clock::boot();
        };
        let number = self.next.get();
        self.next.set(number + 1);
        let due = self
            .start
            .after(Duration::from_secs_f64(number as f64 / rate));
        loop {
            let left = due.since(clock::boot());
            if left.is_zero() || due >= self.end {
                return due;
            }
            // tokio's timer counts in milliseconds: the rest is spent looking.
            match left.checked_sub(Duration::from_millis(2)) {
                Some(long) if !long.is_zero() => tokio::time::sleep(long).await,
                _ => tokio::task::yield_now().await,
            }
        }
    }
}
