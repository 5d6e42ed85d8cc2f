//! etcd's bad days: away, frozen, restarted, cut off, compacted.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod authority_support;

use authority_support::{Asked, Relay, options, take};
use palisade::authority::Unreadable;
use palisade_loadtest::servers::Etcd;
use std::time::Duration;

#[test]
fn a_frozen_store_is_unavailable_and_back_again() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(etcd.address());
    options.timeout = Duration::from_secs(1);
    let asked = Asked::start(options, folder.path());
    let token = take(&etcd, "a");
    assert_eq!(asked.grant("a"), Some(token));
    asked.wait_watching();

    etcd.pause();
    assert_eq!(asked.read("a"), Err(Unreadable::Unavailable));
    let health = asked.authority.health();
    assert!(
        !health.up && health.failure.is_some() && health.changed.is_none(),
        "{health:?}"
    );
    etcd.resume();
    assert_eq!(asked.grant("a"), Some(token));
    assert!(asked.authority.health().up);
    asked.heard.wait_for("a", token);
    let newer = take(&etcd, "a");
    asked.heard.wait_for("a", newer);
    assert!(asked.heard.trusted.lock().unwrap().is_empty());
}

#[test]
fn a_restarted_store_is_asked_and_watched_again() {
    let mut etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(etcd.address()), folder.path());
    let token = take(&etcd, "a");
    asked.heard.wait_for("a", token);
    etcd.kill();
    assert_eq!(asked.read("a"), Err(Unreadable::Unavailable));
    etcd.start_again().unwrap();
    let newer = take(&etcd, "a");
    assert_eq!(asked.grant("a"), Some(newer));
    asked.heard.wait_for("a", newer);
}

#[test]
fn a_start_without_the_store() {
    let mut etcd = Etcd::start().unwrap();
    let token = take(&etcd, "a");
    etcd.kill();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(etcd.address()), folder.path());
    assert_eq!(asked.read("a"), Err(Unreadable::Unavailable));
    assert_eq!(asked.state.identity(), None);
    etcd.start_again().unwrap();
    assert_eq!(asked.grant("a"), Some(token));
    asked.heard.wait_for("a", token);
    assert!(asked.state.identity().unwrap().revision >= token);
}

/// What was granted while the watch was broken is reported when it is back, from where it broke off.
#[test]
fn a_broken_watch_goes_on_where_it_was() {
    let etcd = Etcd::start().unwrap();
    let relay = Relay::start(etcd.address());
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(relay.address), folder.path());
    let first = take(&etcd, "a");
    asked.heard.wait_for("a", first);
    relay.cut();
    let missed = take(&etcd, "a");
    let last = take(&etcd, "a");
    relay.mend();
    asked.heard.wait_for("a", last);
    // A re-read would have seen the last one only.
    asked.heard.wait_for("a", missed);
}

/// Where the history is gone, all keys are read again.
#[test]
fn a_compaction_costs_no_grant() {
    let etcd = Etcd::start().unwrap();
    let relay = Relay::start(etcd.address());
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(relay.address), folder.path());
    let first = take(&etcd, "a");
    asked.heard.wait_for("a", first);
    relay.cut();
    let missed = take(&etcd, "a");
    let last = take(&etcd, "a");
    let after = take(&etcd, "b");
    etcd.ctl(&["compact", &after.to_string()]);
    relay.mend();
    asked.heard.wait_for("a", last);
    asked.heard.wait_for("b", after);
    assert!(
        !asked
            .heard
            .granted
            .lock()
            .unwrap()
            .contains(&("a".into(), missed)),
        "it was compacted away"
    );
    let newest = take(&etcd, "a");
    asked.heard.wait_for("a", newest);
}

/// More keys than come in one page.
#[test]
fn all_keys_are_read_at_the_start() {
    let etcd = Etcd::start().unwrap();
    let lease = etcd
        .ctl(&["lease", "grant", "600"])
        .split(' ')
        .nth(1)
        .unwrap()
        .to_owned();
    let lease = i64::from_str_radix(&lease, 16).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        use etcd_client::{Client, PutOptions, Txn, TxnOp};
        let mut client = Client::connect([etcd.address().to_string()], None)
            .await
            .unwrap();
        for hundred in 0..101 {
            let on_lease = || Some(PutOptions::new().with_lease(lease));
            let put = |n| {
                TxnOp::put(
                    format!("/palisade/leases/{:05}", hundred * 100 + n),
                    "",
                    on_lease(),
                )
            };
            client
                .txn(Txn::new().and_then((0..100).map(put).collect::<Vec<_>>()))
                .await
                .unwrap();
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(etcd.address()), folder.path());
    asked.wait_watching();
    let granted = asked.heard.granted.lock().unwrap().clone();
    assert_eq!(granted.len(), 10_100);
    assert!(
        granted
            .iter()
            .enumerate()
            .all(|(n, (scope, _))| *scope == format!("{n:05}"))
    );
}
