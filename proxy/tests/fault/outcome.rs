//! What is said of a write that upstream did not answer, and what the next holder waits for.

use crate::{
    client::put,
    stage::{applied, stage_with, wait_waiting},
};
use palisade_lease::clock::boot;
use palisade_loadtest::{
    origin::{Origin, Sign, Step},
    proxy::Palisade,
    servers::wait_for,
};
use std::time::Duration;

/// Iceberg and Delta commits were lost and doubled because a timeout was taken for a failure. Here the datastore applies the
/// old holder's write after the proxy has given up on it, within `settle`.
#[test]
fn f02_an_answer_that_is_late_is_not_a_failure() {
    let (origin, proxy) = stage_with(|proxy| {
        proxy
            .set("limits.upstream_response_timeout", "200ms")
            .set("fence.settle", "4s")
    });
    let sign = Sign::new();
    // As a datastore that has lost its client does: it applies all the same.
    origin.once(
        "/x",
        vec![Step::ReadBody, Step::Await(sign.clone()), Step::Apply],
    );
    let begun = boot();
    let old = put("/x", 33, "old").send(&proxy);
    old.is_unknown(504);
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert_eq!(proxy.scope("default").unwrap().settling, 1);
    sign.give();
    wait_for("the late write", || {
        (applied(&origin) == [33]).then_some(())
    });
    assert!(!new.is_answered(), "only time can settle it");
    new.answer().is(204);
    assert!(boot().since(begun) >= Duration::from_secs(4));
    assert_eq!(applied(&origin), [33, 34]);
    assert_eq!(origin.arrivals().len(), 2);
}

const SETTLE: Duration = Duration::from_secs(2);

/// How long the next holder waited, from the moment when the old one heard that its write's outcome is unknown.
fn waited(origin: &Origin, proxy: &Palisade, target: &str, token: u64) -> Duration {
    let begun = boot();
    let old = put(target, token, "old").send(proxy);
    old.is_unknown(502);
    let known = boot();
    let arrived = origin.arrivals_at(target).len();
    put("/next", token + 1, "new").send(proxy).is(204);
    assert!(
        boot().since(begun) >= SETTLE,
        "34 came before 33 was settled"
    );
    assert_eq!(arrived, 1);
    assert_eq!(
        origin.arrivals_at(target).len(),
        1,
        "a write was sent again"
    );
    boot().since(known)
}

/// HTTP clients that retry by themselves have doubled writes (hyper-util#150, urllib3). Upstream takes the whole request and
/// drops the connection, a fresh one or a kept one, politely or not: there is exactly one arrival, the outcome is unknown, and
/// the next holder waits out `settle`, and not much longer.
#[test]
fn f08_a_dropped_connection_is_one_arrival_and_an_unknown_outcome() {
    let (origin, proxy) = stage_with(|proxy| proxy.set("fence.settle", "2s"));
    let mut shortest = Duration::MAX;
    for (round, end) in [Step::Close, Step::Reset, Step::Close]
        .into_iter()
        .enumerate()
    {
        let token = 33 + 2 * round as u64;
        let target = format!("/{round}");
        // The first time on a fresh connection, then on one that has carried the round before.
        origin.once(&target, vec![Step::ReadBody, end]);
        shortest = shortest.min(waited(&origin, &proxy, &target, token));
    }
    // The machine may be slow once, but not three times.
    assert!(
        shortest <= SETTLE + Duration::from_secs(1),
        "34 waited for {shortest:?}"
    );
    assert_eq!(applied(&origin), [34, 36, 38]);
}

/// Upstream closes its connection right after each answer, just as the next write may be on its way. Whatever becomes of that
/// write, it arrives at most once, and its client is told the truth.
#[test]
fn f09_a_connection_that_closes_between_writes_doubles_none() {
    let (origin, proxy) = stage_with(|proxy| proxy.set("threads", 1));
    origin.otherwise(vec![
        Step::ReadBody,
        Step::Apply,
        Step::AnswerNaturally,
        Step::Close,
    ]);
    let mut unknown = 0;
    for n in 0..200 {
        let target = format!("/{n}");
        let answer = put(&target, 33, "once").send(&proxy);
        let arrivals = origin.arrivals_at(&target).len();
        let applied = origin.value(&target).is_some();
        match answer.outcome() {
            "answered" => assert_eq!((answer.status, arrivals, applied), (204, 1, true)),
            "refused" => assert_eq!((arrivals, applied), (0, false), "{answer:?}"),
            _ => {
                unknown += 1;
                assert!(arrivals <= 1, "{answer:?}");
            }
        }
    }
    assert_eq!(origin.arrivals().len(), origin.applied().len());
    println!("{unknown} of 200 writes crossed with a close");
    assert!(
        unknown < 100,
        "{unknown} of 200 writes crossed with a close"
    );
}

/// Nobody listens: not a byte was sent, so that is a refusal, and the next holder waits for nothing.
#[test]
fn an_upstream_that_is_not_there_refuses() {
    let gone = Origin::tcp().unwrap().url();
    let mut proxy = Palisade::new(&gone)
        .unwrap()
        .set("fence.settle", crate::stage::NEVER);
    proxy.start().unwrap();
    put("/x", 33, "old")
        .send(&proxy)
        .is_refused(502, "upstream-unreachable");
    let scope = proxy.scope("default").unwrap();
    assert_eq!((scope.in_flight, scope.settling), (0, 0), "{scope:?}");
}

/// Upstream says that it goes on working (202), or that a server behind it did not answer (502, 504): relayed as it is, and not
/// settled by it.
#[test]
fn an_answer_that_settles_nothing_is_relayed_and_waited_out() {
    let (origin, proxy) = stage_with(|proxy| proxy.set("fence.settle", "manual"));
    let mut token = 33;
    for status in [202, 502, 504] {
        let target = format!("/{status}");
        origin.once(
            &target,
            vec![Step::ReadBody, Step::Answer(status, b"later".to_vec())],
        );
        let old = put(&target, token, "old").send(&proxy);
        old.is(status);
        assert_eq!(old.body, "later");
        token += 1;
        let new = put("/next", token, "new").begin(&proxy);
        wait_waiting(&proxy, "default", token);
        assert!(!new.is_answered());
        assert!(proxy.ask(&["settle", "default"]).unwrap().status.success());
        new.answer().is(204);
    }
}
