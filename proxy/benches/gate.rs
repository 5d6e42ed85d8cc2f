//! What the gate costs a request whose token is the floor: alone, and with all cores at it, each on a scope of its own; and
//! what a scope costs in memory. Over a real state folder, without a lease store (which such a request does not ask).
//!
//! `cargo bench -p palisade --bench gate`
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use criterion::{Criterion, criterion_group, criterion_main};
use palisade::{
    gate::{Gate, GateSettings, Pass, Settle},
    state::{Options, State},
};
use palisade_fence::{Sent, Token, conclude};
use palisade_lease::clock::{BootClock, boot};
use std::{
    fs,
    hint::black_box,
    pin::pin,
    sync::{Arc, Barrier},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};
use tempfile::TempDir;

const SCOPES: u64 = 1_000_000;

fn gate(folder: &TempDir) -> Arc<Gate> {
    let state = State::open(folder.path(), Options::default()).unwrap();
    let settings = GateSettings {
        settle: Settle::After(Duration::from_secs(30)),
        abort_after: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(60),
        waiting: 1000,
    };
    Gate::new(Arc::new(state), Arc::new(BootClock), settings, |_| None)
}

fn token() -> Token {
    Token::new(33).unwrap()
}

/// Raises a scope's floor, so that it is open.
fn open(gate: &Arc<Gate>, scope: &Arc<str>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    drop(
        runtime
            .block_on(gate.pass(scope, token(), true, 0))
            .unwrap_or_else(|why| panic!("{why:?}")),
    );
}

/// The decision for a request that need not wait.
#[inline]
fn pass(gate: &Arc<Gate>, scope: &Arc<str>) -> Pass {
    let passing = pin!(gate.pass(scope, token(), true, 0));
    match passing.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(pass)) => pass,
        _ => panic!("the floor is not open"),
    }
}

/// The same with what a write adds: entered as in flight, and settled.
#[inline]
fn write(gate: &Arc<Gate>, scope: &Arc<str>) {
    let ticket = pass(gate, scope)
        .start()
        .unwrap_or_else(|_| panic!("superseded"));
    ticket.end(conclude(Sent::Completely, Some(204)));
}

fn decisions(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let gate = gate(&folder);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let scopes: Vec<Arc<str>> = (0..cores).map(|n| format!("tenants/{n}").into()).collect();
    scopes.iter().for_each(|scope| open(&gate, scope));
    criterion.bench_function("gate/read", |bencher| {
        bencher.iter(|| drop(pass(black_box(&gate), &scopes[0])));
    });
    criterion.bench_function("gate/write", |bencher| {
        bencher.iter(|| write(black_box(&gate), &scopes[0]));
    });
    // All cores at once, each with its own scope: the time per request of one core. The same as alone is perfect scaling.
    criterion.bench_function(&format!("gate/write on {cores} cores"), |bencher| {
        bencher.iter_custom(|rounds| on_all(&gate, &scopes, rounds));
    });
    let same = vec![scopes[0].clone(); cores];
    criterion.bench_function(
        &format!("gate/write on {cores} cores, one scope"),
        |bencher| {
            bencher.iter_custom(|rounds| on_all(&gate, &same, rounds));
        },
    );
}

fn on_all(gate: &Arc<Gate>, scopes: &[Arc<str>], rounds: u64) -> Duration {
    let start = Barrier::new(scopes.len());
    let run = |scope: &Arc<str>| {
        start.wait();
        let begun = boot();
        (0..rounds).for_each(|_| write(gate, scope));
        boot().since(begun)
    };
    thread::scope(|threads| {
        let run = &run;
        let running: Vec<_> = scopes
            .iter()
            .map(|scope| threads.spawn(move || run(scope)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .max()
            .unwrap()
    })
}

fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// A million scopes with a floor: on disk only, and then all in memory at once. Printed, since criterion measures time alone.
#[expect(clippy::print_stdout, reason = "the program's output")]
fn memory(_: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let state = State::open(folder.path(), Options::default()).unwrap();
    state.stop_clean(Vec::new()).unwrap();
    drop(state);
    let db = rusqlite::Connection::open(folder.path().join("state.db")).unwrap();
    db.execute_batch(&format!(
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {SCOPES})
         INSERT INTO floors SELECT printf('tenants/%07d', i), 33, 1, 1, 0 FROM n;
         PRAGMA wal_checkpoint(TRUNCATE);",
    ))
    .unwrap();
    drop(db);
    let (before, begun) = (resident(), boot());
    let gate = gate(&folder);
    println!(
        "start with {SCOPES} scopes on disk: {:?}, {} KiB",
        boot().since(begun),
        resident().saturating_sub(before) >> 10
    );
    let begun = boot();
    for n in 1..=SCOPES {
        drop(pass(&gate, &format!("tenants/{n:07}").into()));
    }
    println!(
        "all of them used at once: {} bytes each, {:?} each",
        resident().saturating_sub(before) / SCOPES,
        boot().since(begun) / u32::try_from(SCOPES).unwrap()
    );
    gate.sweep();
    gate.sweep();
    println!("in memory once they are idle: {}", gate.in_memory());
}

criterion_group!(benches, decisions, memory);
criterion_main!(benches);
