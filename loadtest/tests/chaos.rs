//! The attack in its short form: Palisade holds, and whatever only compares tokens is caught. And the links that the
//! attack is made with.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

use palisade_loadtest::{
    chaos::{
        self, Chaos,
        fault::Faults,
        link::{Link, Mode},
        target::Kind,
    },
    check::{Checker, Property, Verdict},
    cluster::Cluster,
    history::{Event, What},
    peers::Peer,
    servers::{newer_etcd, wait_for},
};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

fn attack(proxy: Kind, seed: u64, seconds: u64, faults: &str) -> Verdict {
    attack_several((proxy, 1), 1, seed, seconds, faults)
}

fn attack_several(
    (proxy, proxies): (Kind, usize),
    members: usize,
    seed: u64,
    seconds: u64,
    faults: &str,
) -> Verdict {
    let chaos = Chaos {
        proxies,
        members,
        ..of(proxy, seed, seconds, faults)
    };
    verdict(chaos::run(&chaos, |_, _| {}).unwrap())
}

fn of(proxy: Kind, seed: u64, seconds: u64, faults: &str) -> Chaos {
    Chaos {
        seed,
        time: Duration::from_secs(seconds),
        faults: faults.parse::<Faults>().unwrap().0,
        proxy,
        recovers_within: Duration::from_secs(60),
        ..Chaos::default()
    }
}

fn verdict(mut events: Vec<Event>) -> Verdict {
    events.sort_by_key(|event| event.at);
    let mut checker = Checker::default();
    for (line, event) in (1..).zip(&events) {
        checker.event(line, event);
    }
    checker.finish()
}

#[test]
fn palisade_holds_with_every_fault_on() {
    for seed in [1, 2] {
        let verdict = attack(Kind::Palisade, seed, 6, "all");
        assert_eq!(verdict.violations, [], "seed {seed}");
        let counts = verdict.counts;
        assert!(
            counts.applied > 0 && counts.faults > 5 && counts.floors > 0 && counts.handovers > 0,
            "{counts:?}"
        );
    }
}

/// etcd goes back to a snapshot, and an operator begins a new epoch while the jobs go on.
#[test]
fn palisade_holds_when_etcd_is_restored() {
    let verdict = attack(Kind::Palisade, 1, 3, "etcd-restore");
    assert_eq!(verdict.violations, []);
    let counts = verdict.counts;
    assert!(counts.epochs > 0 && counts.applied > 0, "{counts:?}");
}

/// One fault alone, with a new seed until it was felt: violations and the history of the last run.
fn one_fault(fault: &str, is_felt: impl Fn(&What) -> bool) {
    let felt = (1..=8).any(|seed| {
        let chaos = of(Kind::Palisade, seed, 3, fault);
        if let [(fault, why)] = chaos.applicable().1[..] {
            println!("skipped: {fault}, since {why}");
            return true;
        }
        let events = chaos::run(&chaos, |_, _| {}).unwrap();
        let felt = events.iter().any(|event| is_felt(&event.what));
        assert_eq!(verdict(events).violations, [], "seed {seed}");
        felt
    });
    assert!(felt, "{fault} was never felt");
}

#[test]
fn palisade_holds_with_a_full_disk() {
    one_fault(
        "disk-full",
        |what| matches!(what, What::Refused { reason, .. } if reason == "storage-unavailable"),
    );
}

#[test]
fn palisade_holds_when_wall_clocks_jump() {
    one_fault("clock-jump", |what| matches!(what, What::Jumped { .. }));
}

/// That its space was used up is what the fault itself makes sure of.
#[test]
fn palisade_holds_when_etcd_is_full() {
    one_fault(
        "etcd-full",
        |what| matches!(what, What::Fault { name, begins: false, .. } if name == "etcd-full"),
    );
}

/// Two replicas of one group and three members of etcd, each of them disturbed.
#[test]
fn replicas_hold_with_every_fault_on() {
    if let Err(why) = newer_etcd() {
        println!("skipped: no etcd 3.5.13 or newer to be had: {why}");
        return;
    }
    let verdict = attack_several((Kind::Palisade, 2), 3, 1, 12, "all");
    assert_eq!(verdict.violations, []);
    let counts = verdict.counts;
    assert!(
        counts.applied > 0 && counts.faults > 5 && counts.proxies == 2 && counts.handovers > 0,
        "{counts:?}"
    );
}

/// The same two without the barrier between them: each fences by itself, and that is not enough.
#[test]
fn replicas_without_the_barrier_are_caught() {
    let caught = (1..=8).any(|seed| {
        let verdict = attack_several((Kind::NoBarrier, 2), 1, seed, 6, "store,front");
        let all = verdict.violations.iter();
        all.map(|violation| violation.property)
            .any(|property| property == Property::Order)
    });
    assert!(
        caught,
        "two proxies that know nothing of each other were taken for a fence"
    );
}

/// What the fault `etcd-leader` relies on.
#[test]
fn the_leader_moves() {
    let cluster = Cluster::start().unwrap();
    let before = cluster.leader();
    let next = (before + 1) % 3;
    wait_for("another leader", || {
        cluster.move_leader(next);
        (cluster.leader() == next).then_some(())
    });
}

/// Several seeds, since what a slow machine gets done in a few seconds may be too little for one.
fn is_caught(proxy: Kind) {
    let caught = (1..=8).any(|seed| {
        let verdict = attack(proxy, seed, 4, "store,front");
        let all = verdict.violations.iter();
        all.map(|violation| violation.property)
            .any(|property| property == Property::Order)
    });
    assert!(caught, "{proxy} is no fence, and was taken for one");
}

#[test]
fn a_comparison_in_memory_is_caught() {
    is_caught(Kind::Naive);
}

#[test]
fn a_comparison_with_a_file_is_caught() {
    is_caught(Kind::NaiveDurable);
}

#[test]
fn no_proxy_at_all_is_caught() {
    is_caught(Kind::None);
}

#[test]
fn nginx_and_haproxy_are_caught_where_they_are_installed() {
    for peer in [Peer::Nginx, Peer::Haproxy] {
        if peer.installed() {
            is_caught(Kind::Peer(peer));
        }
    }
}

/// A link to a server that says everything back.
async fn link_to_echo() -> Link {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let link = Link::to(listener.local_addr().unwrap()).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    link
}

async fn say(stream: &mut TcpStream, word: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(word).await?;
    let mut answer = vec![0; word.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn a_link_passes_and_cuts() {
    let link = link_to_echo().await;
    let mut stream = TcpStream::connect(link.address()).await.unwrap();
    assert_eq!(say(&mut stream, b"one").await.unwrap(), b"one");
    link.cut();
    assert!(stream.read(&mut [0]).await.is_err(), "a reset");
    let mut stream = TcpStream::connect(link.address()).await.unwrap();
    assert_eq!(say(&mut stream, b"two").await.unwrap(), b"two");
}

#[tokio::test]
async fn what_is_held_comes_later() {
    let link = link_to_echo().await;
    let mut stream = TcpStream::connect(link.address()).await.unwrap();
    assert_eq!(say(&mut stream, b"one").await.unwrap(), b"one");
    link.set(Mode::Hold);
    stream.write_all(b"two").await.unwrap();
    link.set(Mode::Pass);
    let mut answer = [0; 3];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"two");
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_bytes() {
    let link = link_to_echo().await;
    link.set(Mode::CutAfter(5));
    let mut stream = TcpStream::connect(link.address()).await.unwrap();
    assert_eq!(say(&mut stream, b"four").await.unwrap(), b"four");
    assert!(say(&mut stream, b"more").await.is_err());
}

#[tokio::test]
async fn an_answer_is_eaten_and_the_connection_ends_with_the_fault() {
    let link = link_to_echo().await;
    let mut stream = TcpStream::connect(link.address()).await.unwrap();
    assert_eq!(say(&mut stream, b"one").await.unwrap(), b"one");
    link.set(Mode::Eat);
    stream.write_all(b"two").await.unwrap();
    link.set(Mode::Pass);
    // The answer is lost, or the reset comes before it: in no case does it come.
    assert!(stream.read_exact(&mut [0; 3]).await.is_err());
}
