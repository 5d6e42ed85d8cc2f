//! The rounds, and what comes of them.

use super::{
    Kind, Load, Protocol, Work,
    load::{self, Measured},
    measure::{self, Syscalls},
    protocol::Client,
    sink,
    subject::{Subject, pin},
};
use hdrhistogram::Histogram;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    time::Duration,
};
use tokio::runtime::Runtime;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Palisade, and what it is compared with.
    pub subjects: Vec<Kind>,
    /// The loads; each is run against each subject in each round.
    pub loads: Vec<Load>,
    /// How often.
    pub rounds: usize,
    /// Count system calls as well, in a run of its own.
    pub syscalls: bool,
    /// Who runs where.
    pub cores: Cores,
    /// What the clients speak.
    pub protocol: Protocol,
}

/// Who runs where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// The proxy on one, with one thread; load and datastore on another.
    Apart,
    /// All on one: at one connection, what a second one costs is mostly to be woken up.
    One,
    /// The proxy on two, with two threads; load and datastore on the same two.
    Two,
}

impl Cores {
    pub(super) fn proxy(self) -> &'static [usize] {
        match self {
            Self::Apart | Self::One => &[0],
            Self::Two => &[0, 1],
        }
    }

    pub(super) fn load(self) -> &'static [usize] {
        match self {
            Self::Apart => &[1],
            Self::One => &[0],
            Self::Two => &[0, 1],
        }
    }
}

/// What one run gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Microseconds of processor time of the proxy for a request.
    pub cpu: f64,
    /// Requests a second.
    pub rate: f64,
    /// Microseconds.
    pub p50: f64,
    /// Microseconds.
    pub p99: f64,
    /// Answered with another status than 200.
    pub failed: u64,
    /// Bytes of memory after the run.
    pub memory: u64,
}

/// System calls for a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calls {
    /// All.
    pub all: f64,
    /// Of these, waits for something to happen: the busier, the fewer.
    pub waits: f64,
}

/// All rounds of one load against one subject.
#[derive(Clone, Debug)]
pub struct Row {
    /// The load.
    pub load: Load,
    /// The subject.
    pub kind: Kind,
    /// One for each round, in order.
    pub rounds: Vec<Figures>,
    /// System calls for a request, if they were counted.
    pub syscalls: Option<Calls>,
    /// The latencies of all rounds, in nanoseconds.
    pub latency: Histogram<u64>,
}

/// Measures; `progress` is told what is run next.
///
/// # Errors
/// If something can't be started, or breaks off.
pub fn run(bench: &Bench, mut progress: impl FnMut(usize, &Load, Kind)) -> io::Result<Vec<Row>> {
    pin(bench.cores.load())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let sink = runtime.block_on(sink::start())?;
    let client = Client::new(bench.protocol)?;
    let subjects = bench
        .subjects
        .iter()
        .map(|&kind| Subject::start(kind, &sink, bench.cores, client.certificate()));
    let mut subjects = subjects.collect::<io::Result<Vec<_>>>()?;
    let mut figures: BTreeMap<(usize, String), (Vec<Figures>, Histogram<u64>)> = BTreeMap::new();
    for round in 1..=bench.rounds {
        for (number, load) in bench.loads.iter().enumerate() {
            fastrand::shuffle(&mut subjects);
            for subject in &subjects {
                progress(round, load, subject.kind);
                let (found, latency) = once(&runtime, subject, &client, *load)?;
                match figures.entry((number, subject.kind.to_string())) {
                    Entry::Vacant(first) => {
                        first.insert((vec![found], latency));
                    }
                    Entry::Occupied(mut rounds) => {
                        let (rounds, all) = rounds.get_mut();
                        rounds.push(found);
                        all.add(latency).map_err(io::Error::other)?;
                    }
                }
            }
        }
    }
    let mut rows = Vec::new();
    for (number, load) in bench.loads.iter().enumerate() {
        for &kind in &bench.subjects {
            let subject = subjects.iter().find(|subject| subject.kind == kind);
            let syscalls = match subject {
                Some(subject) if bench.syscalls => {
                    Some(syscalls(&runtime, subject, &client, *load)?)
                }
                _ => None,
            };
            let Some((rounds, latency)) = figures.remove(&(number, kind.to_string())) else {
                continue;
            };
            rows.push(Row {
                load: *load,
                kind,
                rounds,
                syscalls,
                latency,
            });
        }
    }
    Ok(rows)
}

fn once(
    runtime: &Runtime,
    subject: &Subject,
    client: &Client,
    load: Load,
) -> io::Result<(Figures, Histogram<u64>)> {
    let warm = Load {
        time: load.time / 5,
        ..load
    };
    drive(runtime, subject, client, warm)?;
    let before = measure::cpu(subject.pid)?;
    let measured = drive(runtime, subject, client, load)?;
    let cpu = measure::cpu(subject.pid)?.saturating_sub(before);
    let micros = |quantile| measured.latency.value_at_quantile(quantile) as f64 / 1000.0;
    let figures = Figures {
        cpu: micros_each(cpu, measured.requests),
        rate: measured.requests as f64 / measured.time.as_secs_f64(),
        p50: micros(0.5),
        p99: micros(0.99),
        failed: measured.failed,
        memory: measure::memory(subject.pid)?,
    };
    Ok((figures, measured.latency))
}

fn drive(
    runtime: &Runtime,
    subject: &Subject,
    client: &Client,
    load: Load,
) -> io::Result<Measured> {
    let to = match load.work {
        Work::Get => subject.plain,
        Work::Put(_) => subject.fence,
    };
    runtime.block_on(load::drive(client, to, load))
}

fn syscalls(
    runtime: &Runtime,
    subject: &Subject,
    client: &Client,
    load: Load,
) -> io::Result<Calls> {
    // Connections are made before.
    let counting: Pid = subject.pid;
    let strace = Syscalls::count(counting)?;
    let measured = drive(runtime, subject, client, load)?;
    let (all, waits) = strace.end()?;
    let requests = measured.requests.max(1) as f64;
    Ok(Calls {
        all: all as f64 / requests,
        waits: waits as f64 / requests,
    })
}

fn micros_each(time: Duration, requests: u64) -> f64 {
    time.as_secs_f64() * 1e6 / requests.max(1) as f64
}

impl Row {
    /// The middle one of some figure over the rounds.
    pub fn median(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }

    /// The ratio to another subject, round by round: the middle one, the smallest and the largest.
    pub fn ratio(&self, other: &Self, of: impl Fn(&Figures) -> f64) -> (f64, f64, f64) {
        let pairs = self.rounds.iter().zip(&other.rounds);
        let ratios: Vec<f64> = pairs.map(|(one, other)| of(one) / of(other)).collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        (median(ratios), least, most)
    }
}

pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
