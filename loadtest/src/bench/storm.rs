//! A storm of handovers: the leases of thousands of scopes go to others at the same time, and the first writes of all new holders
//! come at once. Each has a floor to raise, a token to verify with etcd, and a sync of the disk to wait for.

use super::{
    protocol::{Bare, Client, Exchange, Line},
    sink,
};
use crate::{proxy::Palisade, servers::Etcd};
use bytes::Bytes;
use http::{Method, Request};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use palisade_lease::{Lease, LeaseOptions, LeaseStore, LeaseUrl, clock};
use std::{
    cell::{Cell, RefCell},
    error::Error,
    io,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpStream, task::LocalSet};

/// A scope for each name.
pub(super) const ROUTES: &str = "[[route]]\npath = \"/storm/{name}\"\nscope = \"storm/{name}\"\n";

/// The most connections; each sends its next write once the one before is answered.
const CONNECTIONS: usize = 1_000;

/// How many are asking etcd for a lease at the same time.
const ASKING: usize = 64;

/// Long enough for all to be granted before the first one has to be renewed.
const TTL: Duration = Duration::from_secs(300);

/// A write to a scope.
pub(super) fn request(scope: usize, token: u64) -> io::Result<Request<Bytes>> {
    Request::builder()
        .method(Method::PUT)
        .uri(format!("/storm/{scope}"))
        .header("x-fence-token", token)
        .body(Bytes::from_static(b"x"))
        .map_err(io::Error::other)
}

/// As many open files as this process may have.
pub(super) fn many_files() -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Hands over so many scopes at once, so often. Gives for each time how long it took from the first write's sending until all were
/// answered.
///
/// # Errors
/// If something can't be started, or a write is not answered with 200.
pub fn run(scopes: usize, rounds: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    many_files()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(LocalSet::new().run_until(storm(scopes, rounds)))
}

async fn storm(scopes: usize, rounds: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    let etcd = Etcd::start()?;
    let sink = sink::start().await?;
    let mut palisade = Palisade::new(&format!("http://{}", sink.tcp))?
        .set("leases", etcd.url())
        .set("access_log", false)
        .routes(ROUTES)?;
    palisade.start()?;
    let url: LeaseUrl = etcd.url().parse()?;
    let leases = palisade_lease::open(&url)?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let held = Rc::new(acquire(&leases, scopes).await?);
        let client = Client::new(super::Protocol::Http1)?;
        let lines = client
            .lines(palisade.address(), CONNECTIONS.min(scopes))
            .await?;
        let next = Rc::new(Cell::new(0));
        let begun = clock::boot();
        let mut tasks = Vec::new();
        for line in lines {
            if let Line::Plain(line) = line {
                tasks.push(tokio::task::spawn_local(write_next(
                    line,
                    next.clone(),
                    held.clone(),
                )));
            }
        }
        for task in tasks {
            task.await??;
        }
        times.push(clock::boot().since(begun));
        release(Rc::into_inner(held).unwrap_or_default()).await?;
    }
    Ok(times)
}

async fn write_next(
    mut line: Bare<TcpStream>,
    next: Rc<Cell<usize>>,
    held: Rc<Vec<Lease>>,
) -> io::Result<()> {
    loop {
        let scope = next.get();
        next.set(scope + 1);
        let Some(lease) = held.get(scope) else {
            return Ok(());
        };
        let request = request(scope, lease.token().get())?;
        let status = line.exchange(&Bare::<TcpStream>::prepare(&request)).await?;
        if status != 200 {
            return Err(io::Error::other(format!(
                "the first write of the new holder of scope {scope} was answered {status}"
            )));
        }
    }
}

/// A lease for each scope.
async fn acquire(
    leases: &Arc<dyn LeaseStore>,
    scopes: usize,
) -> Result<Vec<Lease>, Box<dyn Error>> {
    let next = Rc::new(Cell::new(0));
    let held = Rc::new(RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    for _ in 0..ASKING {
        let (leases, next, held) = (leases.clone(), next.clone(), held.clone());
        tasks.push(tokio::task::spawn_local(async move {
            loop {
                let scope = next.get();
                if scope >= scopes {
                    return Ok::<(), palisade_lease::AcquireError>(());
                }
                next.set(scope + 1);
                let options = LeaseOptions {
                    ttl: TTL,
                    ..LeaseOptions::default()
                };
                let lease = leases.acquire(&format!("storm/{scope}"), options).await?;
                held.borrow_mut().push((scope, lease));
            }
        }));
    }
    for task in tasks {
        task.await??;
    }
    let mut held = held.take();
    held.sort_by_key(|(scope, _)| *scope);
    Ok(held.into_iter().map(|(_, lease)| lease).collect())
}

async fn release(held: Vec<Lease>) -> io::Result<()> {
    let left = Rc::new(RefCell::new(held));
    let mut tasks = Vec::new();
    for _ in 0..ASKING {
        let left = left.clone();
        tasks.push(tokio::task::spawn_local(async move {
            loop {
                let Some(lease) = left.borrow_mut().pop() else {
                    return;
                };
                lease.release().await;
            }
        }));
    }
    for task in tasks {
        task.await.map_err(io::Error::other)?;
    }
    Ok(())
}
