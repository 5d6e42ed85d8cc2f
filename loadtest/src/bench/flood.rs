//! A flood of refused tokens beside a holder that writes: what it costs the holder, and what it costs etcd. Tokens from nowhere have
//! to be looked up; stale ones need not: the same load of those is the measure.

use super::sink::{self, Incoming};
use crate::{
    proxy::Palisade,
    servers::{Etcd, get},
};
use hdrhistogram::Histogram;
use palisade_fence::Time;
use palisade_lease::{LeaseOptions, LeaseUrl, clock};
use std::{
    cell::{Cell, RefCell},
    error::Error,
    io,
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::LocalSet};

/// Connections that carry the flood.
const CONNECTIONS: usize = 256;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One token, older than the floor.
    Stale,
    /// Random tokens above the floor.
    Garbage,
}

/// What one kind of flood did.
#[derive(Clone, Debug)]
pub struct Side {
    /// What was sent.
    pub kind: Kind,
    /// Refused requests a second.
    pub rate: f64,
    /// Of the flood, those that were answered with anything but 412.
    pub others: u64,
    /// The holder's times, in nanoseconds.
    pub holder: Histogram<u64>,
    /// The holder's writes that were not answered with 200.
    pub failed: u64,
    /// Transactions that etcd served, a second, by its own count.
    pub reads: f64,
}

/// Floods a proxy with either kind in turn, `rounds` times, each for `time` and with `rate` requests a second, as far as that is
/// reached.
///
/// # Errors
/// If something can't be started, or a connection ends.
pub fn run(rate: f64, time: Duration, rounds: usize) -> Result<Vec<Side>, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(LocalSet::new().run_until(flood(rate, time, rounds)))
}

async fn flood(rate: f64, time: Duration, rounds: usize) -> Result<Vec<Side>, Box<dyn Error>> {
    let etcd = Etcd::start()?;
    let sink = sink::start().await?;
    let mut palisade = Palisade::new(&format!("http://{}", sink.tcp))?
        .set("leases", etcd.url())
        .set("access_log", false);
    palisade.start()?;
    let url: LeaseUrl = etcd.url().parse()?;
    let leases = palisade_lease::open(&url)?;
    // A token that is older than the holder's.
    let before = leases.acquire("default", LeaseOptions::default()).await?;
    let stale = before.token().get();
    before.release().await;
    let lease = leases.acquire("default", LeaseOptions::default()).await?;
    let holder = lease.token().get();
    let mut sides = Vec::new();
    for _ in 0..rounds {
        for kind in [Kind::Stale, Kind::Garbage] {
            let tokens = match kind {
                Kind::Stale => stale..stale + 1,
                Kind::Garbage => holder + 1..1 << 62,
            };
            let before = transactions(&etcd)?;
            let running = Rc::new(Running {
                rate,
                begun: clock::boot(),
                end: clock::boot().after(time),
                next: Cell::new(0),
                answered: Cell::new(0),
                others: Cell::new(0),
                failed: Cell::new(0),
                holder: RefCell::new(Histogram::new_with_bounds(1, 60_000_000_000, 3)?),
            });
            let to = palisade.address();
            let mut tasks = vec![tokio::task::spawn_local(running.clone().hold(to, holder))];
            tasks.extend(
                (0..CONNECTIONS)
                    .map(|_| tokio::task::spawn_local(running.clone().send(to, tokens.clone()))),
            );
            for task in tasks {
                task.await??;
            }
            let took = clock::boot().since(running.begun).as_secs_f64();
            let holder = running.holder.borrow().clone();
            sides.push(Side {
                kind,
                rate: running.answered.get() as f64 / took,
                others: running.others.get(),
                holder,
                failed: running.failed.get(),
                reads: (transactions(&etcd)? - before) as f64 / took,
            });
        }
    }
    lease.release().await;
    Ok(sides)
}

struct Running {
    rate: f64,
    begun: Time,
    end: Time,
    next: Cell<u64>,
    answered: Cell<u64>,
    others: Cell<u64>,
    failed: Cell<u64>,
    holder: RefCell<Histogram<u64>>,
}

impl Running {
    /// The holder: 100 writes a second.
    async fn hold(self: Rc<Self>, to: SocketAddr, token: u64) -> io::Result<()> {
        let mut client = Client::connect(to).await?;
        while clock::boot() < self.end {
            let begun = clock::boot();
            if client.write(token).await? != 200 {
                self.failed.set(self.failed.get() + 1);
            }
            let took = clock::boot().since(begun).as_nanos() as u64;
            self.holder.borrow_mut().saturating_record(took);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// One connection of the flood. Its requests are due at fixed times; those that come too late are not made up for.
    async fn send(self: Rc<Self>, to: SocketAddr, tokens: std::ops::Range<u64>) -> io::Result<()> {
        let mut client = Client::connect(to).await?;
        loop {
            let number = self.next.get();
            self.next.set(number + 1);
            let due = self
                .begun
                .after(Duration::from_secs_f64(number as f64 / self.rate));
            if due >= self.end || clock::boot() >= self.end {
                return Ok(());
            }
            tokio::time::sleep(due.since(clock::boot())).await;
            if client.write(fastrand::u64(tokens.clone())).await? != 412 {
                self.others.set(self.others.get() + 1);
            }
            self.answered.set(self.answered.get() + 1);
        }
    }
}

struct Client {
    stream: TcpStream,
    incoming: Incoming,
}

impl Client {
    async fn connect(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let incoming = Incoming::default();
        Ok(Self { stream, incoming })
    }

    async fn write(&mut self, token: u64) -> io::Result<u16> {
        let request = format!(
            "PUT /value HTTP/1.1\r\nHost: store\r\nX-Fence-Token: {token}\r\nContent-Length: 1\r\n\r\nx"
        );
        self.stream.write_all(request.as_bytes()).await?;
        let status = self.incoming.message(&mut self.stream).await?;
        status.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// How many transactions etcd has answered since it started, by its own count.
fn transactions(etcd: &Etcd) -> io::Result<u64> {
    let metrics = get(etcd.address(), "/metrics")?;
    Ok(metrics
        .lines()
        .filter(|line| line.starts_with("grpc_server_handled_total{") && line.contains("\"Txn\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum())
}
