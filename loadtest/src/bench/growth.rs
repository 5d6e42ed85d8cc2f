//! What must not grow: the cost of a request with the number of scopes that there are, of connections, and of handovers that have
//! been. What is compared runs in turns on the same core.

use super::{
    Cores, Load, Pace, Work, load, measure,
    protocol::{Bare, Client, Exchange, Line},
    sink::{self, Sink},
    storm,
    subject::pin,
};
use crate::proxy::Palisade;
use palisade_fence::Time;
use palisade_lease::clock;
use std::{
    cell::Cell, fs, future::Future, io, net::SocketAddr, path::Path, rc::Rc, time::Duration,
};
use tokio::task::LocalSet;

/// Connections, where they are not what is looked at.
const CONNECTIONS: usize = 16;
/// Connections that raise floors: many, so that one sync serves many.
const RAISING: usize = 256;
/// Scopes of the row of handovers.
const HANDED: usize = 100;
/// Handovers of each: an hour with one each second.
const HOUR: u64 = 3_600;

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// The most scopes.
    pub scopes: usize,
    /// The most connections.
    pub connections: usize,
    /// Handovers of each of a hundred scopes.
    pub handovers: u64,
    /// How often each is measured.
    pub rounds: usize,
    /// How long.
    pub time: Duration,
}

impl Default for Growth {
    fn default() -> Self {
        Self {
            scopes: 1_000_000,
            connections: 5_000,
            handovers: HOUR,
            rounds: 5,
            time: Duration::from_secs(2),
        }
    }
}

/// One row: the medians of the rounds.
#[derive(Clone, Debug)]
pub struct Row {
    /// What there was much of.
    pub what: String,
    /// Microseconds of the proxy's processor time for a request.
    pub cpu: f64,
    /// Requests a second.
    pub rate: f64,
    /// Bytes of memory behind the last round.
    pub memory: u64,
    /// Bytes of the state folder.
    pub state: u64,
    /// Processor time over that of the first row of its kind, in the same round.
    pub ratio: f64,
}

/// A proxy, and how it is asked.
struct Grown {
    what: String,
    palisade: Palisade,
    scopes: usize,
    connections: usize,
    token: u64,
}

/// Measures all of it; `progress` is told what comes next.
///
/// # Errors
/// If something can't be started, or a request is not answered with 200.
pub fn run(growth: Growth, mut progress: impl FnMut(&str)) -> io::Result<Vec<Row>> {
    storm::many_files()?;
    let cores = Cores::Apart;
    pin(cores.load())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let sink = runtime.block_on(sink::start())?;
    let local = |work| -> io::Result<()> { runtime.block_on(LocalSet::new().run_until(work)) };
    let mut rows = Vec::new();
    let mut by_scopes = Vec::new();
    for scopes in [1, 1_000, growth.scopes] {
        progress(&format!("raises {scopes} scopes"));
        let palisade = start(&sink, cores)?;
        local(raise(palisade.address(), scopes, 5..6))?;
        by_scopes.push(Grown {
            what: format!("{scopes} scopes, written to by chance"),
            palisade,
            scopes,
            connections: CONNECTIONS,
            token: 5,
        });
    }
    rows.extend(compare(growth, &runtime, &by_scopes, &mut progress)?);
    drop(by_scopes);
    let mut by_handovers = Vec::new();
    for handovers in [1, growth.handovers] {
        progress(&format!("{handovers} handovers of {HANDED} scopes each"));
        let palisade = start(&sink, cores)?;
        local(raise(palisade.address(), HANDED, 5..5 + handovers))?;
        by_handovers.push(Grown {
            what: format!("{HANDED} scopes after {handovers} handovers each"),
            palisade,
            scopes: HANDED,
            connections: CONNECTIONS,
            token: 4 + handovers,
        });
    }
    rows.extend(compare(growth, &runtime, &by_handovers, &mut progress)?);
    drop(by_handovers);
    let mut by_connections = Vec::new();
    for connections in [10, growth.connections] {
        by_connections.push(Grown {
            what: format!("{connections} connections"),
            palisade: start(&sink, cores)?,
            scopes: 0,
            connections,
            token: 5,
        });
    }
    rows.extend(compare(growth, &runtime, &by_connections, &mut progress)?);
    Ok(rows)
}

fn start(sink: &Sink, cores: Cores) -> io::Result<Palisade> {
    pin(cores.proxy())?;
    let mut palisade = Palisade::new(&format!("http://{}", sink.tcp))?
        .set("threads", 1)
        .set("access_log", false)
        .set("limits.connections", 10_000)
        .routes(storm::ROUTES)?;
    palisade.start()?;
    pin(cores.load())?;
    Ok(palisade)
}

/// Writes to each scope with each of these tokens, one after the other.
async fn raise(to: SocketAddr, scopes: usize, tokens: std::ops::Range<u64>) -> io::Result<()> {
    let next = Rc::new(Cell::new(0));
    each_line(to, RAISING.min(scopes), move |mut line| {
        let (next, tokens) = (next.clone(), tokens.clone());
        async move {
            loop {
                let scope = next.get();
                if scope >= scopes {
                    return Ok(());
                }
                next.set(scope + 1);
                for token in tokens.clone() {
                    write(&mut line, scope, token).await?;
                }
            }
        }
    })
    .await
}

async fn write(line: &mut Bare<tokio::net::TcpStream>, scope: usize, token: u64) -> io::Result<()> {
    let request = storm::request(scope, token)?;
    match line
        .exchange(&Bare::<tokio::net::TcpStream>::prepare(&request))
        .await?
    {
        200 => Ok(()),
        other => Err(io::Error::other(format!(
            "a write to scope {scope} with token {token} was answered {other}"
        ))),
    }
}

async fn each_line<F>(
    to: SocketAddr,
    count: usize,
    work: impl Fn(Bare<tokio::net::TcpStream>) -> F,
) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let lines = Client::new(super::Protocol::Http1)?
        .lines(to, count)
        .await?;
    let mut tasks = Vec::new();
    for line in lines {
        if let Line::Plain(line) = line {
            tasks.push(tokio::task::spawn_local(work(line)));
        }
    }
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    Ok(())
}

fn compare(
    growth: Growth,
    runtime: &tokio::runtime::Runtime,
    grown: &[Grown],
    progress: &mut impl FnMut(&str),
) -> io::Result<Vec<Row>> {
    let mut found: Vec<Vec<(f64, f64)>> = vec![Vec::new(); grown.len()];
    for _ in 0..growth.rounds {
        let mut order: Vec<usize> = (0..grown.len()).collect();
        fastrand::shuffle(&mut order);
        for number in order {
            progress(&grown[number].what);
            let one = grown[number].measure(runtime, growth.time)?;
            found[number].push(one);
        }
    }
    let mut rows = Vec::new();
    for (number, grown) in grown.iter().enumerate() {
        let pairs = found[number].iter().zip(&found[0]);
        rows.push(Row {
            what: grown.what.clone(),
            cpu: super::round::median(found[number].iter().map(|one| one.0).collect()),
            rate: super::round::median(found[number].iter().map(|one| one.1).collect()),
            memory: measure::memory(grown.palisade.pid())?,
            state: size(grown.palisade.state())?,
            ratio: super::round::median(pairs.map(|(one, first)| one.0 / first.0).collect()),
        });
    }
    Ok(rows)
}

impl Grown {
    /// Processor time for a request in microseconds, and requests a second.
    fn measure(&self, runtime: &tokio::runtime::Runtime, time: Duration) -> io::Result<(f64, f64)> {
        let to = self.palisade.address();
        if self.scopes == 0 {
            let load = Load {
                work: Work::Get,
                connections: self.connections,
                pace: Pace::Closed,
                time,
            };
            let client = Client::new(super::Protocol::Http1)?;
            let before = measure::cpu(self.palisade.pid())?;
            let measured = runtime.block_on(load::drive(&client, to, load))?;
            let cpu = measure::cpu(self.palisade.pid())?.saturating_sub(before);
            return per_request(cpu, measured.requests, measured.time);
        }
        let (scopes, token) = (self.scopes, self.token);
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        let before = measure::cpu(self.palisade.pid())?;
        let begun: Time = clock::boot();
        let end = begun.after(time);
        let work = each_line(to, self.connections, move |mut line| {
            let count = counted.clone();
            async move {
                while clock::boot() < end {
                    write(&mut line, fastrand::usize(..scopes), token).await?;
                    count.set(count.get() + 1);
                }
                Ok(())
            }
        });
        runtime.block_on(LocalSet::new().run_until(work))?;
        let cpu = measure::cpu(self.palisade.pid())?.saturating_sub(before);
        per_request(cpu, count.get(), clock::boot().since(begun))
    }
}

fn per_request(cpu: Duration, requests: u64, time: Duration) -> io::Result<(f64, f64)> {
    let requests = requests.max(1) as f64;
    Ok((
        cpu.as_secs_f64() * 1e6 / requests,
        requests / time.as_secs_f64(),
    ))
}

/// All files of a folder, in bytes.
fn size(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
