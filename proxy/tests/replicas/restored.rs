//! etcd is restored from a snapshot in which a replica is missing, since that joined later.

use crate::{
    client::put,
    setup::{etcd, is_joined, join, replica, wait_see},
    stage::{applied, take, wait_waiting},
};
use palisade_lease::clock::boot;
use palisade_loadtest::{origin::Origin, relay::Relay, servers::wait_for};
use std::time::Duration;

/// As the replicas of this test are told: `max_pause` and `settle`.
const WAITS: Duration = Duration::from_millis(2_500);

/// The snapshot knows the one replica and not the other, which is cut off from etcd and knows nothing of the restore. The first
/// one once took it for a replica that had left in order, and let the new holder in while the old one's writes still went through
/// the other.
#[test]
fn a_replica_that_the_snapshot_does_not_know_is_waited_out() {
    let Some(mut etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let relay = Relay::to(etcd.address()).unwrap();
    let mut a = replica(&origin, &format!("etcd://{}", relay.address())).set("fence.settle", "2s");
    let mut b = replica(&origin, &etcd.url()).set("fence.settle", "2s");
    join(&mut b);
    let snapshot = etcd.snapshot();
    join(&mut a);
    wait_see(&b, 2);
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&a).is(204);

    relay.cut_and_refuse();
    let bump = ["--bump-revision", "1000000000", "--mark-compacted"];
    etcd.restore(&snapshot, &bump).unwrap();
    let cut_off = boot();
    wait_for("b to be alone", || {
        (b.metric("palisade_replicas") < 1.5 && is_joined(&b)).then_some(())
    });
    let new = take(&etcd, "default");
    let waiting = put("/x", new, "new").begin(&b);
    wait_waiting(&b, "default", new);
    // A does not know, and while its session lasts the old holder writes.
    let mut last = cut_off;
    while is_joined(&a) {
        let before = boot();
        if put("/x", old, "old").send(&a).status == 204 {
            last = before;
        }
    }
    waiting.answer().is(204);
    let waited = boot().since(last);
    assert!(waited >= WAITS, "{waited:?}");
    let applied = applied(&origin);
    assert!(applied.is_sorted(), "{applied:?}");
    assert_eq!(applied.last(), Some(&new));

    // It is not waited for once more.
    let next = take(&etcd, "default");
    put("/x", next, "next").send(&b).is(204);
}
