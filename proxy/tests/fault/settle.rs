//! What an operator sees and settles.

use crate::{
    client::put,
    stage::{applied, hold, proxy, stage, stage_with, wait_waiting},
};
use palisade_loadtest::{
    origin::{Origin, Sign, Step},
    proxy::{Palisade, ScopeState},
};

/// `palisade settle`, as an operator types it; gives what it said.
fn settle(proxy: &Palisade, scope: &str) -> String {
    let output = proxy.ask(&["settle", scope]).unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A write of this token that upstream takes and never answers.
fn ambiguous(origin: &Origin, proxy: &Palisade, token: u64) {
    origin.once("/x", vec![Step::ReadBody, Step::Close]);
    put("/x", token, "old").send(proxy).is_unknown(502);
}

/// With `settle = "manual"` no time settles anything; an operator who has looked at the datastore does.
#[test]
fn an_operator_settles_what_no_time_may() {
    let (origin, proxy) = stage_with(|proxy| proxy.set("fence.settle", "manual"));
    ambiguous(&origin, &proxy, 33);
    ambiguous(&origin, &proxy, 33);
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    let scope = proxy.scope("default").unwrap();
    assert_eq!((scope.settling, scope.opens_in), (2, None), "{scope:?}");
    assert!(!new.is_answered());
    assert_eq!(
        settle(&proxy, "default"),
        "default: 2 ambiguous writes settled\n"
    );
    new.answer().is(204);
    assert_eq!(applied(&origin), [34]);
    assert_eq!(
        settle(&proxy, "default"),
        "default: 0 ambiguous writes settled\n"
    );
}

/// Only what is ambiguous at that moment is settled: not a write that is in flight, of which the operator can know nothing.
#[test]
fn an_operator_settles_nothing_that_is_in_flight() {
    let (origin, proxy) = stage_with(|proxy| proxy.set("fence.settle", "manual"));
    let sign = Sign::new();
    origin.once("/held", hold(&sign));
    let held = put("/held", 33, "old").begin(&proxy);
    sign.wait_reached();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert_eq!(
        settle(&proxy, "default"),
        "default: 0 ambiguous writes settled\n"
    );
    assert_eq!(proxy.scope("default").unwrap().in_flight, 1);
    assert!(!new.is_answered());
    sign.give();
    held.answer().is(204);
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 34]);
}

/// After a crash nobody knows what was on its way: with "manual" every scope with a floor waits for the operator, and what was
/// settled stays so over the next stop.
#[test]
fn an_operator_settles_what_a_crash_left() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).set("fence.settle", "manual");
    proxy.start().unwrap();
    put("/x", 33, "old").send(&proxy).is(204);
    proxy.kill();

    proxy.start().unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert!(!new.is_answered());
    // The scope may be told as one more than it had: what a crash left is not known by number.
    settle(&proxy, "default");
    new.answer().is(204);

    assert!(proxy.stop().success());
    proxy.start().unwrap();
    put("/x", 35, "newer").send(&proxy).is(204);
    assert_eq!(applied(&origin), [33, 34, 35]);
}

/// The same before anybody has asked for the scope since the start.
#[test]
fn an_operator_settles_a_scope_that_is_only_on_disk() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).set("fence.settle", "manual");
    proxy.start().unwrap();
    put("/x", 33, "old").send(&proxy).is(204);
    proxy.kill();
    proxy.start().unwrap();
    assert!(proxy.scope("default").is_none());
    settle(&proxy, "default");
    put("/x", 34, "new").send(&proxy).is(204);
    let unknown = proxy.ask(&["settle", "no/such"]).unwrap();
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("there is no scope no/such"),
        "{unknown:?}"
    );
}

/// An orderly stop with an ambiguous write marks that scope, and no other.
#[test]
fn an_orderly_stop_remembers_what_was_ambiguous() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("fence.settle", "manual")
        .routes("[[route]]\npath = \"/{scope}\"\nscope = \"{scope}\"\n")
        .unwrap();
    proxy.start().unwrap();
    ambiguous(&origin, &proxy, 33);
    put("/y", 33, "old").send(&proxy).is(204);
    assert!(proxy.stop().success());

    proxy.start().unwrap();
    put("/y", 34, "new").send(&proxy).is(204);
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "x", 34);
    assert!(!new.is_answered());
    // Nor does one more orderly stop settle it; the one that waits is told that the proxy goes.
    let stopped = proxy.stop();
    new.answer().is_refused(503, "shutting-down");
    assert!(stopped.success());
    proxy.start().unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "x", 34);
    settle(&proxy, "x");
    new.answer().is(204);
}

/// `palisade scopes`, for people and for programs.
#[test]
fn the_scopes_can_be_listed() {
    let (origin, mut proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let old = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);

    let json = proxy.ask(&["scopes", "--json"]).unwrap();
    assert!(json.status.success(), "{json:?}");
    let scopes: Vec<ScopeState> = serde_json::from_slice(&json.stdout).unwrap();
    let scope = &scopes[0];
    assert_eq!(
        (
            scope.scope.as_str(),
            scope.floor,
            scope.open,
            scope.in_flight,
            scope.waiting
        ),
        ("default", Some(34), false, 1, 1)
    );
    let table = String::from_utf8(proxy.ask(&["scopes"]).unwrap().stdout).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0][..3], ["SCOPE", "FLOOR", "STATE"], "{table}");
    assert_eq!(rows[1][..3], ["default", "34", "closed"], "{table}");

    sign.give();
    old.answer().is(204);
    new.answer().is(204);
    assert!(proxy.stop().success());
    let away = proxy.ask(&["scopes"]).unwrap();
    assert_eq!(away.status.code(), Some(69), "{away:?}");
}
