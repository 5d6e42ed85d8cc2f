//! The load: a number of connections, each with one request at a time, as fast as they are answered (closed loop) or at a
//! fixed rate (open loop). In the open loop a request's time counts from the moment when it was due, not from when it was
//! sent: what waits for a slow answer is not left out (Tene, "How NOT to Measure Latency").

use super::sink::Incoming;
use hdrhistogram::Histogram;
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
use tokio::{io::AsyncWriteExt, net::TcpStream, task::LocalSet};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A read without a token, answered with 100 bytes.
    Get,
    /// A write with a token and so many KiB.
    Put(usize),
}

impl Work {
    fn request(self) -> Vec<u8> {
        match self {
            Self::Get => b"GET /value HTTP/1.1\r\nHost: store\r\n\r\n".to_vec(),
            Self::Put(kib) => {
                let length = kib * 1024;
                let head = format!(
                    "PUT /value HTTP/1.1\r\nHost: store\r\nX-Fence-Token: 5\r\nContent-Length: {length}\r\n\r\n"
                );
                let mut request = head.into_bytes();
                request.resize(request.len() + length, b'x');
                request
            }
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
#[derive(Clone, Copy, Debug)]
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
    load: Load,
    request: Vec<u8>,
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
pub async fn drive(to: SocketAddr, load: Load) -> io::Result<Measured> {
    // Up to a minute; what takes longer is counted as that.
    let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)?;
    let mut streams = Vec::new();
    for _ in 0..load.connections {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let start = clock::boot();
    let running = Rc::new(Running {
        load,
        request: load.work.request(),
        start,
        end: start.after(load.time),
        next: Cell::new(0),
        failed: Cell::new(0),
        latency: RefCell::new(latency),
    });
    let tasks = LocalSet::new();
    let started: Vec<_> = streams
        .into_iter()
        .map(|stream| tasks.spawn_local(running.clone().connection(stream)))
        .collect();
    tasks
        .run_until(async {
            for task in started {
                task.await.map_err(io::Error::other)??;
            }
            io::Result::Ok(())
        })
        .await?;
    let latency = running.latency.borrow().clone();
    Ok(Measured {
        requests: latency.len(),
        failed: running.failed.get(),
        time: clock::boot().since(start),
        latency,
    })
}

impl Running {
    async fn connection(self: Rc<Self>, mut stream: TcpStream) -> io::Result<()> {
        let mut incoming = Incoming::default();
        loop {
            let due = self.due().await;
            if due >= self.end {
                return Ok(());
            }
            stream.write_all(&self.request).await?;
            let status = incoming.message(&mut stream).await?;
            let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
            if status != 200 {
                self.failed.set(self.failed.get() + 1);
            }
            let took = clock::boot().since(due).as_nanos() as u64;
            self.latency.borrow_mut().saturating_record(took);
        }
    }

    /// Waits for the next request's moment, and gives it.
    async fn due(&self) -> Time {
        let Pace::Open(rate) = self.load.pace else {
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
