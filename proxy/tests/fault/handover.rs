//! The order between an old holder's writes and a new one's.

use crate::{
    client::{Call, Http2, get, put},
    stage::{applied, hold, stage, stage_with, wait_waiting},
};
use palisade_loadtest::{
    origin::{Sign, Step},
    servers::wait_for,
};

/// Kleppmann's fencing example has a hole: the storage service checks a token when a request comes, but what it checked
/// may be applied late. SCSI had the same choice to make (PREEMPT, or PREEMPT AND ABORT). Here the old holder's write is in a
/// slow datastore when the new holder's comes.
#[test]
fn f01_a_write_in_a_slow_upstream_is_not_overtaken() {
    let (origin, proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let old = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();

    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert!(!new.is_answered());
    assert_eq!(origin.arrivals().len(), 1, "only the old write");
    // A floor that is closed refuses already.
    let late = put("/x", 33, "late").send(&proxy);
    late.is_refused(412, "stale-token");
    assert_eq!(late.field("x-fence-highest"), Some("34"));

    sign.give();
    old.answer().is(204);
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 34]);
    assert_eq!(origin.value("/x").unwrap(), b"new");
}

/// The same where the new holder has less patience than the datastore: it is told to come again, nothing was forwarded, and
/// the handover goes on without it.
#[test]
fn f01_a_handover_that_takes_too_long_is_refused_and_goes_on() {
    let (origin, proxy) = stage_with(|proxy| {
        proxy
            .set("fence.drain_timeout", "200ms")
            .set("fence.abort_after", "100ms")
    });
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let old = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();

    let refused = put("/x", 34, "new").send(&proxy);
    refused.is_refused(503, "handover-pending");
    assert!(refused.field("retry-after").is_some(), "{refused:?}");
    assert_eq!(origin.arrivals().len(), 1);
    put("/x", 33, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");

    sign.give();
    old.answer().is(204);
    put("/x", 34, "new").send(&proxy).is(204);
    assert_eq!(applied(&origin), [33, 34]);
}

/// A new holder must not decide by what it read before the old holder's last write (BookKeeper's fencing reads for that
/// reason). Its read, with its token, waits until that write has been answered; a read without a token waits for nothing.
#[test]
fn f05_a_new_holders_read_sees_the_old_holders_write() {
    let (origin, proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let old = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();

    let claim = get("/x").token(34).begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    get("/x").send(&proxy).is(404);
    get("/x")
        .token(33)
        .send(&proxy)
        .is_refused(412, "stale-token");
    assert!(!claim.is_answered());

    sign.give();
    old.answer().is(204);
    let claim = claim.answer();
    claim.is(200);
    assert_eq!(claim.body, "old");
}

/// A write that was sent completely is waited for, however long upstream takes: its answer settles it without any assumption.
/// Only what is still being sent is cut when `abort_after` is over.
#[test]
fn what_was_sent_completely_is_not_cut() {
    let (origin, proxy) = stage_with(|proxy| {
        proxy
            .set("fence.abort_after", "100ms")
            .set("fence.settle", "manual")
    });
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let complete = put("/x", 33, "complete").begin(&proxy);
    sign.wait_reached();
    let mut stalled = Call::new("PUT", "/y")
        .token(33)
        .field("Content-Length: 1000000")
        .begin(&proxy);
    stalled.more(&[b'o'; 500_000]);
    origin.wait_arrivals("/y", 1);
    let new = put("/x", 34, "new").begin(&proxy);
    // By this one's cut it is known that the time is over.
    stalled.answer().is_unknown(502);
    let scope = proxy.scope("default").unwrap();
    assert_eq!((scope.in_flight, scope.settling), (1, 1), "{scope:?}");
    assert!(proxy.ask(&["settle", "default"]).unwrap().status.success());
    assert!(!new.is_answered() && !complete.is_answered());
    sign.give();
    complete.answer().is(204);
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 34]);
}

/// A token newer than the one that waits takes its place, and what waited is told so.
#[test]
fn a_still_newer_token_supersedes_the_one_that_waits() {
    let (origin, proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let old = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    let overtaken = put("/x", 34, "overtaken").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    let new = put("/x", 35, "new").begin(&proxy);
    let overtaken = overtaken.answer();
    overtaken.is_refused(412, "superseded");
    assert_eq!(overtaken.field("x-fence-highest"), Some("35"));
    sign.give();
    old.answer().is(204);
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 35]);
}

/// Batch jobs retire in a data centre's log of incidents: an idle fence that forgets lets the first late write in (delta-rs,
/// SlateDB). A scope may leave memory; its floor stays.
#[test]
fn f17_an_idle_scope_keeps_its_floor() {
    let (origin, proxy) = stage();
    put("/x", 34, "new").send(&proxy).is(204);
    wait_for("the idle scope to leave memory", || {
        proxy.scope("default").is_none().then_some(())
    });
    let late = put("/x", 33, "old").send(&proxy);
    late.is_refused(412, "stale-token");
    assert_eq!(late.field("x-fence-highest"), Some("34"));
    put("/x", 34, "again").send(&proxy).is(204);
    assert_eq!(applied(&origin), [34, 34]);
}

/// A pod is killed in the middle of its last request: the request goes on without it. The write stays in flight until upstream has
/// answered, and only then does the next holder go on.
#[test]
fn f19_a_client_that_vanishes_does_not_unsend_its_write() {
    let (origin, proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let old = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    old.vanish();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    let scope = proxy.scope("default").unwrap();
    assert_eq!((scope.in_flight, scope.settling), (1, 0), "{scope:?}");
    assert!(!new.is_answered());
    sign.give();
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 34]);
}

/// The same over HTTP/2, where the proxy hears of it at once: a stream that is reset, and a connection that breaks.
#[test]
fn f19_a_stream_that_is_reset_does_not_unsend_its_write() {
    let (origin, proxy) = stage();
    let (sign, other) = (Sign::new(), Sign::new());
    origin.once("/x", hold(&sign));
    origin.once("/y", hold(&other));
    let mut client = Http2::connect(&proxy);
    let old = client.put("/x", 33);
    let second = client.put("/y", 33);
    sign.wait_reached();
    other.wait_reached();
    drop(old);
    let gone = |count| {
        let gone = |line: &&palisade_loadtest::proxy::Line| {
            line.get("reason")
                .is_some_and(|reason| reason == "client-gone")
        };
        wait_for("the proxy to notice", || {
            (proxy.log().iter().filter(gone).count() == count).then_some(())
        });
    };
    gone(1);
    drop((second, client));
    gone(2);
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    let scope = proxy.scope("default").unwrap();
    assert_eq!((scope.in_flight, scope.settling), (2, 0), "{scope:?}");
    sign.give();
    other.give();
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 33, 34]);
}

/// The same when the client vanishes in the middle of a large upload: that is a cut, never a completed body, and what was sent
/// of it may still be acted on until it has settled.
#[test]
fn f19_a_client_that_vanishes_in_mid_body_cuts_its_write() {
    let (origin, proxy) = stage_with(|proxy| proxy.set("fence.settle", "manual"));
    origin.once(
        "/x",
        vec![Step::ReadBody, Step::Apply, Step::AnswerNaturally],
    );
    let mut old = Call::new("PUT", "/x")
        .token(33)
        .field("Content-Length: 1000000")
        .begin(&proxy);
    old.more(&[b'o'; 500_000]);
    origin.wait_arrivals("/x", 1);
    old.vanish();
    let scope = proxy.wait_scope("default", "an ambiguous write", |scope| scope.settling == 1);
    assert_eq!(scope.in_flight, 0);
    wait_for("the end of the upload at upstream", || origin.ended(0));
    assert!(!origin.arrivals_at("/x")[0].complete);

    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert!(!new.is_answered());
    assert!(proxy.ask(&["settle", "default"]).unwrap().status.success());
    new.answer().is(204);
    assert_eq!(applied(&origin), [34]);
}
