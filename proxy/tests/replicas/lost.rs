//! Replicas that lose their session, or their lives.

use crate::{
    client::{Call, get, put},
    setup::{etcd, is_joined, join, keys, replica, two, wait_joined, wait_see},
    stage::{applied, hold, take, wait_stored, wait_waiting},
};
use palisade_lease::clock::boot;
use palisade_loadtest::{
    origin::{Origin, Sign},
    relay::Relay,
    servers::wait_for,
};
use std::time::Duration;

const MARGIN: Duration = Duration::from_secs(2);
/// As the replicas of these tests are told.
const PAUSE: Duration = Duration::from_millis(500);
const SETTLE: Duration = Duration::from_secs(2);

/// libceph's clients once wrote on after they had been fenced off. One replica is cut off from etcd while a write of the old holder
/// is at upstream: the other opens only after that session's end and the waits; the one cut off refuses, and reads without a token
/// pass there. Once etcd is back it joins anew, under another id.
#[test]
fn f15_a_replica_that_is_cut_off_is_waited_out() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let relay = Relay::to(etcd.address()).unwrap();
    let mut a = replica(&origin, &format!("etcd://{}", relay.address())).set("fence.settle", "2s");
    let mut b = replica(&origin, &etcd.url()).set("fence.settle", "2s");
    join(&mut a);
    join(&mut b);
    wait_see(&b, 2);
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&a).is(204);
    let before = keys(&etcd, "members/g/");

    relay.cut_and_refuse();
    let new = take(&etcd, "default");
    let waiting = put("/x", new, "new").begin(&b);
    wait_waiting(&b, "default", new);
    // A does not know, and its session lasts: the old holder still writes.
    put("/x", old, "old").send(&a).is(204);
    let still_there = boot();
    wait_for("the session's end", || (!is_joined(&a)).then_some(()));
    let refused = put("/x", old, "late").send(&a);
    refused.is_refused(503, "session-expired");
    assert!(refused.field("retry-after").is_some());
    get("/x").send(&a).is(200);
    assert!(a.admin_get("/readyz").contains("not joined"));
    waiting.answer().is(204);
    // A's etcd lease outlives its session by two elections, and then come the waits.
    let waited = boot().since(still_there);
    assert!(waited >= MARGIN + PAUSE + SETTLE, "{waited:?}");

    relay.let_go();
    wait_joined(&a);
    put("/x", old, "late")
        .send(&a)
        .is_refused(412, "stale-token");
    put("/x", new, "new").send(&a).is(204);
    assert_eq!(applied(&origin), [old, old, new, new]);
    wait_for("the old member to be forgotten", || {
        let now = keys(&etcd, "members/g/");
        let kept = now.iter().filter(|key| before.contains(key)).count();
        (now.len() == 2 && kept == 1).then_some(())
    });
}

/// etcd stands still for all of them: opened floors go on until the sessions' deadlines, then every write is refused and reads
/// pass. Nothing has to be restarted once it is back.
#[test]
fn etcd_away_for_all_replicas_ends_their_sessions() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    // Each comes back under another id, and the one that it was is waited out by the other.
    let [mut a, mut b] = [(); 2].map(|()| replica(&origin, &etcd.url()).set("fence.settle", "2s"));
    join(&mut a);
    join(&mut b);
    wait_see(&a, 2);
    wait_see(&b, 2);
    let old = take(&etcd, "default");
    for replica in [&a, &b] {
        put("/x", old, "old").send(replica).is(204);
    }

    etcd.pause();
    for replica in [&a, &b] {
        let answer = put("/x", old, "still").send(replica);
        // Who still has a session had one when it answered.
        if is_joined(replica) {
            answer.is(204);
        }
    }
    for replica in [&a, &b] {
        wait_for("the session's end", || (!is_joined(replica)).then_some(()));
        let refused = put("/x", old, "late").send(replica);
        refused.is_refused(503, "session-expired");
        get("/x").send(replica).is(200);
    }

    etcd.resume();
    wait_joined(&a);
    wait_joined(&b);
    let new = take(&etcd, "default");
    put("/x", new, "new").send(&a).is(204);
    put("/x", old, "late")
        .send(&b)
        .is_refused(412, "stale-token");
    let applied = applied(&origin);
    assert!(applied.is_sorted(), "{applied:?}");
    assert_eq!(applied.last(), Some(&new));
}

/// What is being sent when the session ends is cut, and nothing of it is sent after that.
#[test]
fn an_upload_is_cut_at_the_sessions_end() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let relay = Relay::to(etcd.address()).unwrap();
    let mut a = replica(&origin, &format!("etcd://{}", relay.address()));
    join(&mut a);
    let token = take(&etcd, "default");
    let mut upload = Call::new("PUT", "/x")
        .token(token)
        .field("Content-Length: 1000000")
        .begin(&a);
    upload.more(&[b'o'; 500_000]);
    origin.wait_arrivals("/x", 1);
    relay.cut_and_refuse();
    upload.answer().is_unknown(502);
    assert!(!is_joined(&a));
    wait_for("the end at upstream", || origin.ended(0));
    assert!(applied(&origin).is_empty());
}

/// Ceph once took a message of a daemon's earlier life for one of its present life. A replica that is killed and started again is
/// another one: what it acked before does not count, and what it had sent is waited for.
#[test]
fn f16_a_restarted_replica_is_another_one() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let (mut a, b) = two(&origin, &etcd);
    let old = take(&etcd, "default");
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let slow = put("/x", old, "old").begin(&a);
    sign.wait_reached();
    wait_stored(&a, "default", old, true);
    let ids = keys(&etcd, "members/g/");
    a.kill();
    slow.wait_gone();
    a.start().unwrap();
    wait_joined(&a);
    let both = keys(&etcd, "members/g/");
    assert_eq!(both.len(), 3, "{both:?}");
    assert!(ids.iter().all(|id| both.contains(id)));

    let new = take(&etcd, "default");
    let waiting = put("/x", new, "new").begin(&b);
    wait_waiting(&b, "default", new);
    // The new life has acked, with what the old one may have left on its list or not: B waits for the old life all the same.
    wait_for("the old session's end", || {
        (keys(&etcd, "replicas/g/").len() == 2).then_some(())
    });
    assert!(!waiting.is_answered());
    sign.give();
    wait_for("the old write", || {
        (applied(&origin) == [old]).then_some(())
    });
    assert!(!waiting.is_answered());
    drop(waiting);
}

/// With `settle = "manual"` an operator says when nothing of a dead replica can be applied any more.
#[test]
fn an_operator_settles_what_a_dead_replica_left() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let mut a = replica(&origin, &etcd.url()).set("fence.settle", "manual");
    let mut b = replica(&origin, &etcd.url()).set("fence.settle", "manual");
    join(&mut a);
    join(&mut b);
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&a).is(204);
    put("/x", old, "old").send(&b).is(204);
    a.kill();
    wait_see(&b, 1);
    let new = take(&etcd, "default");
    let waiting = put("/x", new, "new").begin(&b);
    wait_waiting(&b, "default", new);
    assert!(!waiting.is_answered());
    let said = b.ask(&["settle", "default"]).unwrap();
    assert!(said.status.success(), "{said:?}");
    waiting.answer().is(204);
    assert_eq!(applied(&origin), [old, old, new]);
}
