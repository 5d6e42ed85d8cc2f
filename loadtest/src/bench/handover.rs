//! How long a handover takes: from the moment when a holder begins to give its lease back, to the answer of the next
//! holder's first write, with a real etcd.

use super::sink::{self, Incoming};
use crate::{proxy::Palisade, servers::Etcd};
use hdrhistogram::Histogram;
use palisade_lease::{AcquireError, Lease, LeaseOptions, LeaseStore, LeaseUrl, clock};
use std::{error::Error, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::Notify, task::JoinHandle};

/// The scope of a proxy without routes.
const LEASE: &str = "default";

/// How long the next one has waited when the lease is given back.
const SETTLED_IN: Duration = Duration::from_millis(50);

/// Hands a lease over so often, and gives the times in nanoseconds.
///
/// # Errors
/// If something can't be started, or a write is not answered with 200.
pub fn run(count: u64) -> Result<Histogram<u64>, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(hand_over(count))
}

async fn hand_over(count: u64) -> Result<Histogram<u64>, Box<dyn Error>> {
    let etcd = Etcd::start()?;
    let sink = sink::start().await?;
    let mut palisade = Palisade::new(&format!("http://{}", sink.tcp))?
        .set("leases", etcd.url())
        .set("access_log", false);
    palisade.start()?;
    let url: LeaseUrl = etcd.url().parse()?;
    let leases = palisade_lease::open(&url)?;
    let mut writer = Writer::connect(palisade.address()).await?;
    let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut holder = leases.acquire(LEASE, LeaseOptions::default()).await?;
    for _ in 0..count {
        writer.write(&holder).await?;
        let next = wait_in_line(&leases).await;
        let begun = clock::boot();
        let releasing = tokio::spawn(holder.release());
        holder = next.await??;
        writer.write(&holder).await?;
        times.saturating_record(clock::boot().since(begun).as_nanos() as u64);
        releasing.await?;
    }
    holder.release().await;
    Ok(times)
}

/// Somebody who waits for the lease; comes back once the wait has begun.
async fn wait_in_line(leases: &Arc<dyn LeaseStore>) -> JoinHandle<Result<Lease, AcquireError>> {
    let waiting = Arc::new(Notify::new());
    let told = waiting.clone();
    let options = LeaseOptions {
        on_waiting: Some(Arc::new(move |_| told.notify_one())),
        ..LeaseOptions::default()
    };
    let leases = leases.clone();
    let next = tokio::spawn(async move { leases.acquire(LEASE, options).await });
    waiting.notified().await;
    // Its watch is on its way. One that reaches etcd after the release looks back, and etcd serves those every 100 ms
    // (`syncWatchersLoop` in its mvcc package): a delay of its own kind, that who has waited for a while does not see.
    tokio::time::sleep(SETTLED_IN).await;
    next
}

struct Writer {
    stream: TcpStream,
    incoming: Incoming,
}

impl Writer {
    async fn connect(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let incoming = Incoming::default();
        Ok(Self { stream, incoming })
    }

    async fn write(&mut self, lease: &Lease) -> io::Result<()> {
        let request = format!(
            "PUT /value HTTP/1.1\r\nHost: store\r\nX-Fence-Token: {}\r\nContent-Length: 1\r\n\r\nx",
            lease.token()
        );
        self.stream.write_all(request.as_bytes()).await?;
        match self.incoming.message(&mut self.stream).await? {
            Some(200) => Ok(()),
            other => Err(io::Error::other(format!("a write was answered {other:?}"))),
        }
    }
}
