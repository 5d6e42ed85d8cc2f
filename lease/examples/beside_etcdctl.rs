//! Measures `palisade-lease` beside `etcdctl lock` on one etcd on loopback and prints a table:
//!
//! `cargo build --release -p palisade-lease && cargo run --release -p palisade-lease --example beside_etcdctl`
//!
//! Options in the environment: `RUNS` (20), `WAITERS` (`2,10,50`, processes), `LIBRARY_WAITERS` (`2,100,1000`), `PALISADE_ETCD_BIN`.

#![allow(
    clippy::unwrap_used,
    reason = "a measurement that can not go on has failed"
)]
#![expect(clippy::print_stdout, reason = "the table")]

use palisade_lease::{LeaseOptions, LeaseStore, clock::boot};
use palisade_loadtest::servers::{Etcd, Process, etcd_program, exchange, program, wait_for};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn numbers(name: &str, otherwise: &str) -> Vec<usize> {
    let text = std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    text.split(',')
        .filter_map(|word| word.trim().parse().ok())
        .collect()
}

/// The two programs under test.
#[derive(Clone, Copy)]
enum Tool {
    Etcdctl,
    Palisade,
}

impl Tool {
    const BOTH: [Self; 2] = [Self::Etcdctl, Self::Palisade];

    fn name(self) -> &'static str {
        match self {
            Self::Etcdctl => "etcdctl lock",
            Self::Palisade => "palisade-lease run",
        }
    }

    fn command(self, etcd: &Etcd, lock: &str, job: &[&str], ttl: u64) -> Command {
        let (mut command, ttl) = match self {
            Self::Etcdctl => {
                let mut command = Command::new(etcd_program("etcdctl"));
                command.env("ETCDCTL_API", "3").args([
                    "--endpoints",
                    &etcd.address().to_string(),
                    "lock",
                ]);
                (command, ttl.to_string())
            }
            Self::Palisade => {
                let mut command = Command::new(program("palisade-lease"));
                command.args(["run", "--leases", &etcd.url()]);
                (command, format!("{ttl}s"))
            }
        };
        command
            .args(["--ttl", &ttl, lock, "--"])
            .args(job)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

/// Percentiles in milliseconds.
fn row(what: &str, who: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
    println!(
        "| {what} | {who} | {} | {:.1} | {:.1} | {:.1} |",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn whole_process(etcd: &Etcd, runs: usize) {
    for tool in Tool::BOTH {
        let times = (0..runs)
            .map(|_| {
                let started = boot();
                assert!(
                    tool.command(etcd, "whole", &["true"], 10)
                        .status()
                        .unwrap()
                        .success()
                );
                milliseconds(boot().since(started))
            })
            .collect();
        row("`NAME true`, start to exit", tool.name(), times);
    }
}

/// Times that jobs wrote down: `s` at the start, `e` at the end, in seconds.
fn marks(log: &Path, kind: &str) -> Vec<f64> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let mut times: Vec<f64> = text
        .lines()
        .filter_map(|line| line.strip_prefix(kind)?.trim().parse().ok())
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Few waiters are measured several times, since each of them gives one figure; both tools take turns.
fn clean_handover(etcd: &Etcd, waiters: usize) {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..(20 / waiters).max(1) {
        for (tool, times) in Tool::BOTH.into_iter().zip(&mut times) {
            times.extend(chain(etcd, tool, waiters, round));
        }
    }
    for (tool, times) in Tool::BOTH.into_iter().zip(times) {
        let what = format!("handover, {waiters} waiting processes");
        row(&what, tool.name(), times);
    }
}

fn chain(etcd: &Etcd, tool: Tool, waiters: usize, round: usize) -> Vec<f64> {
    let log = etcd
        .folder()
        .join(format!("chain-{waiters}-{round}-{}", tool.name().len()));
    let job = format!(
        "echo s $(date +%s.%N) >> {log}; sleep 0.03; echo e $(date +%s.%N) >> {log}",
        log = log.display()
    );
    let all: Vec<Process> = (0..=waiters)
        .map(|_| {
            Process::start(
                "job",
                &mut tool.command(etcd, "chain", &["sh", "-c", &job], 60),
            )
            .unwrap()
        })
        .collect();
    wait_for("the chain", || {
        (marks(&log, "e").len() == all.len()).then_some(())
    });
    for mut process in all {
        process.wait();
    }
    let (starts, ends) = (marks(&log, "s"), marks(&log, "e"));
    ends.iter()
        .zip(&starts[1..])
        .map(|(end, start)| (start - end) * 1000.0)
        .collect()
}

fn crash_handover(etcd: &Etcd, runs: usize, ttl: u64) {
    for tool in Tool::BOTH {
        let times = (0..runs)
            .map(|run| {
                let log = etcd
                    .folder()
                    .join(format!("crash-{run}-{}", tool.name().len()));
                let lock = format!("crash-{run}");
                let hold = format!("echo s >> {}; exec sleep 20", log.display());
                let mut holder = Process::start(
                    "holder",
                    &mut tool.command(etcd, &lock, &["sh", "-c", &hold], ttl),
                )
                .unwrap();
                wait_for("the holder", || log.exists().then_some(()));
                let mut next =
                    Process::start("next", &mut tool.command(etcd, &lock, &["true"], ttl)).unwrap();
                holder.kill();
                let started = boot();
                next.wait();
                milliseconds(boot().since(started))
            })
            .collect();
        row(&format!("crash handover, TTL {ttl} s"), tool.name(), times);
    }
}

/// Requests that etcd has begun to answer.
fn requests(etcd: &Etcd) -> f64 {
    let metrics = exchange(etcd.address(), b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let counts = metrics
        .lines()
        .filter(|line| line.starts_with("grpc_server_started_total"));
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn library(etcd: &Etcd, runs: usize) {
    let store = palisade_lease::open(&etcd.url().parse().unwrap()).unwrap();
    let mut times = Vec::new();
    for _ in 0..runs * 10 {
        let started = boot();
        store
            .acquire("library", LeaseOptions::default())
            .await
            .unwrap()
            .release()
            .await;
        times.push(milliseconds(boot().since(started)));
    }
    row("acquire and release, uncontended", "library", times);
    for waiters in numbers("LIBRARY_WAITERS", "2,100,1000") {
        library_chain(etcd, &store, waiters).await;
    }
}

async fn library_chain(etcd: &Etcd, store: &Arc<dyn LeaseStore>, waiters: usize) {
    let options = || LeaseOptions::with_ttl(Duration::from_secs(300));
    let name = format!("chain-{waiters}");
    let first = store.acquire(&name, options()).await.unwrap();
    let (sender, mut times) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..waiters {
        let (store, sender, name) = (store.clone(), sender.clone(), name.clone());
        tokio::spawn(async move {
            let lease = store.acquire(&name, options()).await.unwrap();
            let start = boot();
            // Long enough for the one behind to have looked and to watch.
            tokio::time::sleep(Duration::from_millis(5)).await;
            sender.send((start, boot())).unwrap();
            drop(lease);
        });
    }
    let lease = name.parse().unwrap();
    while store.status(&lease).await.unwrap().waiters.len() < waiters {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = requests(etcd);
    let mut end = boot();
    drop(first);
    let mut handovers = Vec::new();
    for _ in 0..waiters {
        let (start, ended) = times.recv().await.unwrap();
        handovers.push(milliseconds(start.since(end)));
        end = ended;
    }
    palisade_lease::settled().await;
    let each = (requests(etcd) - before) / waiters as f64;
    row(
        &format!("handover, {waiters} waiters ({each:.1} requests each)"),
        "library",
        handovers,
    );
}

#[tokio::main]
async fn main() {
    let runs = number("RUNS", 20);
    let etcd = Etcd::start().unwrap();
    println!(
        "| what | who | n | p50 ms | p99 ms | max ms |\n| --- | --- | ---: | ---: | ---: | ---: |"
    );
    whole_process(&etcd, runs);
    for waiters in numbers("WAITERS", "2,10,50") {
        clean_handover(&etcd, waiters);
    }
    crash_handover(&etcd, runs.div_ceil(7), 2);
    library(&etcd, runs).await;
}
