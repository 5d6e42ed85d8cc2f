//! Bodies that stall, and bodies that are not wanted.

use crate::{
    client::Call,
    client::put,
    stage::{applied, stage_with, wait_waiting},
};
use palisade_loadtest::{
    origin::{Ended, Step},
    servers::wait_for,
};

fn upload(token: u64, length: u64) -> Call {
    Call::new("PUT", "/x")
        .token(token)
        .field(&format!("Content-Length: {length}"))
}

/// A worker that has slept over its lease wants to upload ten gigabytes, and asks first (RFC 9110, section 10.1.1). It is told
/// at once; not a byte of the body is asked for.
#[test]
fn f13_a_stale_upload_that_asks_first_sends_nothing() {
    let (origin, proxy) = stage_with(|proxy| proxy);
    put("/x", 34, "new").send(&proxy).is(204);
    let answer = upload(33, 10 << 30)
        .field("Expect: 100-continue")
        .send(&proxy);
    answer.is_refused(412, "stale-token");
    assert!(!answer.head.contains("100 Continue"), "{answer:?}");
    // One that may go on is asked for its body.
    let mut good = upload(34, 3).field("Expect: 100-continue").begin(&proxy);
    wait_for("the 100", || good.is_answered().then_some(()));
    good.more(b"abc");
    let good = good.answer();
    assert!(good.head.starts_with("HTTP/1.1 100"), "{good:?}");
    assert!(good.body.starts_with("HTTP/1.1 204"), "{good:?}");
    assert_eq!(applied(&origin), [34, 34]);
}

/// A worker stalls in the middle of a small upload and loses its lease. Nothing of it was sent: the new holder waits for
/// nothing, and upstream never hears of it, not even when the stalled worker goes on.
#[test]
fn f14_a_small_body_that_stalls_never_reaches_upstream() {
    let (origin, proxy) = stage_with(|proxy| proxy);
    let mut old = upload(33, 1000).begin(&proxy);
    old.more(&[b'o'; 500]);
    proxy.wait_scope("default", "33 past the gate", |scope| scope.requests == 1);
    put("/x", 34, "new").send(&proxy).is(204);
    old.more(&[b'o'; 500]);
    let old = old.answer();
    old.is_refused(412, "superseded");
    assert_eq!(old.field("x-fence-highest"), Some("34"));
    assert_eq!(applied(&origin), [34]);
    assert_eq!(origin.arrivals().len(), 1);
}

/// The same with a body that is too large to be read whole first: it has `abort_after` to finish, is then cut, and is waited out.
#[test]
fn f14_a_large_body_that_stalls_is_cut() {
    let (origin, proxy) = stage_with(|proxy| {
        proxy
            .set("fence.abort_after", "300ms")
            .set("fence.settle", "manual")
    });
    let mut old = upload(33, 1_000_000).begin(&proxy);
    old.more(&[b'o'; 500_000]);
    origin.wait_arrivals("/x", 1);
    let new = put("/x", 34, "new").begin(&proxy);
    old.answer().is_unknown(502);
    let ended = wait_for("the cut at upstream", || origin.ended(0));
    assert!(matches!(ended, Ended::Reset | Ended::CutShort), "{ended:?}");
    wait_waiting(&proxy, "default", 34);
    assert_eq!(proxy.scope("default").unwrap().settling, 1);
    assert!(!new.is_answered());
    assert!(proxy.ask(&["settle", "default"]).unwrap().status.success());
    new.answer().is(204);
    assert_eq!(applied(&origin), [34], "half a body was applied");
}

/// A large body that finishes within `abort_after` is let through, and its answer settles it.
#[test]
fn a_large_body_may_finish_within_its_time() {
    let (origin, proxy) = stage_with(|proxy| proxy.set("fence.abort_after", "60s"));
    let mut old = upload(33, 1_000_000).begin(&proxy);
    old.more(&[b'o'; 500_000]);
    origin.wait_arrivals("/x", 1);
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    old.more(&[b'o'; 500_000]);
    old.answer().is(204);
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 34]);
    assert!(
        origin
            .arrivals_at("/x")
            .iter()
            .all(|arrival| arrival.complete)
    );
}

/// Upstream has seen enough after the first bytes of a large upload (413): its answer is relayed as what it is. But a part was
/// sent, and nothing says that it is not acted on: the next holder waits.
#[test]
fn an_answer_before_the_bodys_end_is_relayed_and_waited_out() {
    let (origin, proxy) = stage_with(|proxy| proxy.set("fence.settle", "manual"));
    origin.once(
        "/x",
        vec![Step::ReadSome(1), Step::Answer(413, b"enough".to_vec())],
    );
    let mut old = upload(33, 1_000_000).begin(&proxy);
    old.more(&[b'o'; 200_000]);
    let old = old.answer();
    old.is(413);
    assert_eq!(old.body, "enough");
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert!(!new.is_answered());
    assert!(proxy.ask(&["settle", "default"]).unwrap().status.success());
    new.answer().is(204);
    assert_eq!(applied(&origin), [34]);
}
