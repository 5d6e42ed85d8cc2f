//! The measuring itself: what is counted, and from when.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use palisade_loadtest::bench::{self, Bench, Kind, Load, Pace, Work, load};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_run_gives_figures_for_each_load_and_round() {
    let load = |work| Load {
        work,
        connections: 4,
        pace: Pace::Closed,
        time: SHORT,
    };
    let bench = Bench {
        subjects: vec![Kind::Palisade],
        loads: vec![load(Work::Get), load(Work::Put(1)), load(Work::Put(256))],
        rounds: 2,
        syscalls: false,
        one_core: false,
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
    let measured = load::drive(server, load).await.unwrap();
    assert_eq!(measured.requests, 50, "all that were due in that time");
    let slow = measured.latency.count_between(100_000_000, u64::MAX);
    assert!(slow >= 19, "{slow} were due 100 ms before the stall's end");
}
