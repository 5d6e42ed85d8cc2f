//! Three etcd members: one of them gone, and too many of them gone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod authority_support;

use authority_support::Asked;
use palisade::authority::{EtcdOptions, Unreadable};
use palisade_loadtest::{cluster::Cluster, servers::wait_for};
use std::time::Duration;

fn options(trio: &Cluster) -> EtcdOptions {
    EtcdOptions::new(trio.clients().map(|address| address.to_string()))
}

#[test]
fn any_member_may_go() {
    let mut trio = Cluster::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(&trio), folder.path());
    for member in 0..3 {
        trio.kill(member);
        let token = trio.take("a");
        assert_eq!(asked.grant("a"), Some(token), "without member {member}");
        asked.heard.wait_for("a", token);
        trio.run(member).unwrap();
        trio.wait_healthy(member);
    }
    assert!(asked.heard.trusted.lock().unwrap().is_empty());
}

#[test]
fn without_a_majority_nothing_is_believed() {
    let mut trio = Cluster::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&trio);
    options.timeout = Duration::from_secs(2);
    let asked = Asked::start(options, folder.path());
    let token = trio.take("a");
    assert_eq!(asked.grant("a"), Some(token));
    trio.kill(0);
    trio.kill(1);
    // The member that is left knows the key, but not whether that is still so. It may answer until it misses the others.
    wait_for("the refusal", || {
        (asked.read("a") == Err(Unreadable::Unavailable)).then_some(())
    });
    for _ in 0..3 {
        assert_eq!(asked.read("a"), Err(Unreadable::Unavailable));
    }
    trio.run(0).unwrap();
    assert_eq!(asked.grant("a"), Some(token));
    let newer = trio.take("a");
    asked.heard.wait_for("a", newer);
}
