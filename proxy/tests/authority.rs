//! Asking a real etcd who holds a lease, on its good days.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod authority_support;

use authority_support::{Asked, Relay, options, put, take, transactions};
use palisade::authority::{Authority, Unreadable};
use palisade_lease::clock;
use palisade_loadtest::servers::{Etcd, free_port, wait_for};
use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

#[test]
fn only_the_current_grant_is_a_grant() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(etcd.address()), folder.path());
    assert_eq!(asked.grant("nightly/billing"), None, "absent");

    let first = take(&etcd, "nightly/billing");
    let other = take(&etcd, "nightly/billing/b");
    assert_eq!(asked.grant("nightly/billing"), Some(first));
    assert_eq!(asked.grant("nightly/billing/b"), Some(other));
    assert_eq!(
        asked.grant("nightly"),
        None,
        "what a key begins with is no key"
    );

    let second = take(&etcd, "nightly/billing");
    assert!(second > first);
    assert_eq!(asked.grant("nightly/billing"), Some(second));

    put(&etcd, "nightly/billing", &[]);
    assert_eq!(
        asked.grant("nightly/billing"),
        None,
        "a key without an etcd lease"
    );

    take(&etcd, "nightly/billing");
    etcd.ctl(&["del", "/palisade/leases/nightly/billing"]);
    assert_eq!(asked.grant("nightly/billing"), None, "released");
}

#[test]
fn an_expired_lease_is_no_grant() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(etcd.address()), folder.path());
    let lease = etcd
        .ctl(&["lease", "grant", "600"])
        .split(' ')
        .nth(1)
        .unwrap()
        .to_owned();
    let token = put(&etcd, "a", &["--lease", &lease]);
    assert_eq!(asked.grant("a"), Some(token));
    etcd.ctl(&["lease", "revoke", &lease]);
    assert_eq!(asked.grant("a"), None);
    let reading = asked.read("a").unwrap();
    assert!(
        reading.revision > token,
        "no later grant can have this token"
    );
}

/// Names that no lease can have, and names that etcd would choke on, cost nobody else an answer.
#[test]
fn strange_scopes_have_no_grant() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(etcd.address()), folder.path());
    let token = take(&etcd, "a");
    let long = "x".repeat(2 << 20);
    let asks = ["", &long, "a\0b", "../epoch", "a"].map(|scope| asked.ask(scope));
    let answers = asks.map(|ask| ask.recv().unwrap().unwrap().grant);
    assert_eq!(answers[..4], [None; 4]);
    assert_eq!(answers[4].unwrap().get(), token);
}

/// A "no" serves only those who asked before the read was sent: the new holder's first request must not get the answer
/// to a question from before its grant.
#[test]
fn a_later_question_has_a_later_answer() {
    let etcd = Etcd::start().unwrap();
    let relay = Relay::start(etcd.address());
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(relay.address);
    options.timeout = Duration::from_secs(60);
    options.check_interval = Duration::from_secs(3600);
    let asked = Asked::start(options, folder.path());
    asked.wait_up();

    relay.hold(true);
    let before = transactions(&etcd);
    let early = asked.ask("a");
    wait_for("etcd to have answered", || {
        (transactions(&etcd) > before).then_some(())
    });
    let token = take(&etcd, "a");
    let late = asked.ask("a");
    relay.hold(false);
    assert_eq!(early.recv().unwrap().unwrap().grant, None);
    assert_eq!(
        late.recv().unwrap().unwrap().grant.map(|grant| grant.get()),
        Some(token)
    );
    assert_eq!(transactions(&etcd) - before, 2);
}

/// A flood of questions costs etcd a bounded number of reads.
#[test]
fn a_flood_costs_a_hundred_reads_a_second() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(etcd.address()), folder.path());
    asked.wait_up();
    let token = take(&etcd, "scope 7");
    let (send, answers) = mpsc::channel();
    let (before, start) = (transactions(&etcd), clock::boot());
    let mut questions = 0;
    for burst in 0..200 {
        for n in 0..100 {
            let send = send.clone();
            let scope = format!("scope {}", (burst * 100 + n) % 300);
            let done = move |answer| send.send((n, answer)).unwrap();
            asked
                .authority
                .read(&Arc::from(scope.as_str()), Box::new(done));
            questions += 1;
        }
        // Not a wait for anything: this is the rate of the flood.
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(send);
    let answers: Vec<_> = answers.iter().map(|(_, answer)| answer.unwrap()).collect();
    let (reads, took) = (transactions(&etcd) - before, clock::boot().since(start));
    assert_eq!(answers.len(), questions);
    assert!(
        answers
            .iter()
            .filter_map(|reading| reading.grant)
            .all(|grant| grant.get() == token)
    );
    assert!(answers.iter().any(|reading| reading.grant.is_some()));
    let most = took.as_millis() as u64 / 10 + 2;
    assert!(reads <= most, "{reads} reads in {took:?}");
}

#[test]
fn the_next_endpoint_answers_for_a_dead_one() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(etcd.address());
    options
        .endpoints
        .insert(0, format!("127.0.0.1:{}", free_port().unwrap()));
    options
        .endpoints
        .push(format!("127.0.0.1:{}", free_port().unwrap()));
    let asked = Asked::start(options, folder.path());
    let token = take(&etcd, "a");
    for _ in 0..5 {
        assert_eq!(
            asked.read("a").unwrap().grant.map(|grant| grant.get()),
            Some(token)
        );
    }
    asked.wait_watching();
}

/// Nobody waits for ever, whatever ends the authority.
#[test]
fn stopped_in_the_middle_of_a_question() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(etcd.address()), folder.path());
    asked.wait_up();
    etcd.pause();
    let open = asked.ask("a");
    asked.runtime.block_on(asked.authority.stop());
    assert_eq!(open.recv().unwrap(), Err(Unreadable::Unavailable));
    assert_eq!(asked.read("a"), Err(Unreadable::Unavailable));
    etcd.resume();
}
