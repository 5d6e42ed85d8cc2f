//! The measuring itself: what is counted, and from when.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use palisade_loadtest::bench::{
    self, Bench, Client, Cores, Kind, Load, Pace, Protocol, Work, growth::Growth,
};
use std::{
    process::{Command, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const SHORT: Duration = Duration::from_millis(300);

fn load(work: Work, connections: usize) -> Load {
    Load {
        work,
        connections,
        pace: Pace::Closed,
        time: SHORT,
    }
}

fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    let quiet = command
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[test]
fn a_run_gives_figures_for_each_load_and_round() {
    let bench = Bench {
        subjects: vec![Kind::Palisade],
        loads: vec![
            load(Work::Get, 4),
            load(Work::Put(1), 4),
            load(Work::Put(256), 4),
        ],
        rounds: 2,
        syscalls: false,
        cores: Cores::Apart,
        protocol: Protocol::Http1,
    };
    let rows = bench::run(&bench, |_, _, _| {}).unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(row.rounds.len(), 2);
        for figures in row.rounds {
            assert_eq!(figures.failed, 0, "{}", row.load.work);
            assert!(figures.cpu > 0.0 && figures.rate > 0.0);
            assert!(figures.p50 > 0.0 && figures.p50 <= figures.p99);
            assert!(figures.memory > 1 << 20);
        }
    }
}

/// What a request costs the proxy does not depend on what the clients speak for what is counted here.
#[test]
fn clients_speak_tls_and_http2_too() {
    for protocol in [Protocol::Tls, Protocol::Http2] {
        let bench = Bench {
            subjects: vec![Kind::Palisade],
            loads: vec![load(Work::Get, 20), load(Work::Put(256), 20)],
            rounds: 1,
            syscalls: false,
            cores: Cores::Two,
            protocol,
        };
        for row in bench::run(&bench, |_, _, _| {}).unwrap() {
            let figures = row.rounds[0];
            assert_eq!(figures.failed, 0, "{protocol} {}", row.load.work);
            assert!(figures.rate > 0.0);
        }
    }
}

/// The most expensive thing that a proxy does for a small request: each call is a microsecond or four, and nobody sees one too many
/// until the figures are bad. Reads and writes are counted, not waits: how many of those there are depends on how busy the machine is.
#[test]
fn a_small_request_takes_two_reads_and_two_writes() {
    if !runs("strace") {
        println!("skipped: strace is not installed");
        return;
    }
    // Few connections for long: to make them takes calls, too.
    let load = |work| Load {
        time: Duration::from_secs(1),
        ..load(work, 4)
    };
    let bench = Bench {
        subjects: vec![Kind::Palisade],
        loads: vec![load(Work::Get), load(Work::Put(1))],
        rounds: 1,
        syscalls: true,
        cores: Cores::Apart,
        protocol: Protocol::Http1,
    };
    for row in bench::run(&bench, |_, _, _| {}).unwrap() {
        let calls = row.syscalls.unwrap();
        let other = calls.all - calls.waits;
        // One more would make five. On a busy machine some reads find nothing.
        assert!(other < 4.5, "{}: {calls:?}", row.load.work);
    }
}

#[test]
fn a_storm_opens_all_scopes_in_each_round() {
    let times = bench::storm::run(50, 2).unwrap();
    assert_eq!(times.len(), 2);
    assert!(times.iter().all(|time| !time.is_zero()));
}

#[test]
fn growth_has_a_row_for_each_size() {
    let growth = Growth {
        scopes: 2_000,
        connections: 50,
        handovers: 3,
        rounds: 1,
        time: SHORT,
    };
    let rows = bench::growth::run(growth, |_| {}).unwrap();
    let what: Vec<_> = rows.iter().map(|row| row.what.as_str()).collect();
    assert_eq!(
        what,
        [
            "1 scopes, written to by chance",
            "1000 scopes, written to by chance",
            "2000 scopes, written to by chance",
            "100 scopes after 1 handovers each",
            "100 scopes after 3 handovers each",
            "10 connections",
            "50 connections",
        ]
    );
    for row in rows {
        assert!(
            row.cpu > 0.0 && row.rate > 0.0 && row.memory > 1 << 20,
            "{row:?}"
        );
    }
}

#[test]
fn handovers_are_timed_one_by_one() {
    let times = bench::handover::run(3).unwrap();
    assert_eq!(times.len(), 3);
    assert!(times.min() > 0);
}

/// Tokens from nowhere are refused, the holder's writes pass, and etcd is asked a hundred times a second at most.
#[test]
fn a_flood_costs_the_holder_no_write_and_etcd_few_reads() {
    let sides = bench::flood::run(2000.0, Duration::from_secs(2), 1).unwrap();
    assert_eq!(sides.len(), 2);
    for side in sides {
        assert_eq!((side.others, side.failed), (0, 0), "{side:?}");
        assert!(!side.holder.is_empty() && side.rate > 0.0);
        // A hundred, and what a count from outside may be off by.
        assert!(side.reads <= 105.0, "{} reads a second", side.reads);
    }
}

/// A server that lets its first request wait.
async fn stalls_once(stall: Duration) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 1024];
        let mut wait = stall;
        while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {
            tokio::time::sleep(wait).await;
            wait = Duration::ZERO;
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        }
    });
    address
}

/// With the time counted from the sending, only the first of these would be slow: coordinated omission.
#[tokio::test]
async fn what_was_due_during_a_stall_counts_as_slow() {
    let server = stalls_once(Duration::from_millis(300)).await;
    let load = Load {
        work: Work::Get,
        connections: 1,
        pace: Pace::Open(100.0),
        time: Duration::from_millis(500),
    };
    let measured = bench::load::drive(&Client::new(Protocol::Http1).unwrap(), server, load)
        .await
        .unwrap();
    assert_eq!(measured.requests, 50, "all that were due in that time");
    let slow = measured.latency.count_between(100_000_000, u64::MAX);
    assert!(slow >= 19, "{slow} were due 100 ms before the stall's end");
}
