//! Handovers from one replica to the other.

use crate::{
    client::{get, put},
    setup::{etcd, join, keys, replica, two, wait_see},
    stage::{applied, hold, take, wait_waiting},
};
use palisade_loadtest::{
    origin::{Origin, Sign},
    servers::{Etcd, get as fetch, wait_for},
};

/// The old holder writes by way of one replica, the new one by way of the other; the old token is refused by both from then on.
#[test]
fn a_handover_from_one_replica_to_the_other() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let (a, b) = two(&origin, &etcd);
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&a).is(204);
    put("/x", old, "old").send(&b).is(204);
    let new = take(&etcd, "default");
    put("/x", new, "new").send(&b).is(204);
    put("/x", new, "new").send(&a).is(204);
    for replica in [&a, &b] {
        put("/x", old, "late")
            .send(replica)
            .is_refused(412, "stale-token");
        put("/x", new + 1, "forged")
            .send(replica)
            .is_refused(412, "not-holder");
        get("/x").send(replica).is(200);
    }
    assert_eq!(applied(&origin), [old, old, new, new]);
}

/// A write of the old holder that one replica is still waiting for is on its list: the other does not open before its answer,
/// and other scopes are not held up by it.
#[test]
fn a_slow_write_at_one_replica_holds_the_other_up_in_its_scope_only() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let routes = "[[route]]\npath = \"/{s}/x\"\nscope = \"{s}\"\n";
    let url = etcd.url();
    let mut a = replica(&origin, &url).routes(routes).unwrap();
    let mut b = replica(&origin, &url).routes(routes).unwrap();
    join(&mut a);
    join(&mut b);
    wait_see(&a, 2);

    let (old, other) = (take(&etcd, "one"), take(&etcd, "two"));
    let sign = Sign::new();
    origin.once("/one/x", hold(&sign));
    let slow = put("/one/x", old, "old").begin(&a);
    sign.wait_reached();
    put("/two/x", other, "old").send(&a).is(204);

    let new = take(&etcd, "one");
    let waiting = put("/one/x", new, "new").begin(&b);
    wait_waiting(&b, "one", new);
    // A says that it has closed up to there, with this scope on its list.
    wait_for("the ack with its list", || {
        let listed = etcd.ctl(&[
            "get",
            "--prefix",
            "--print-value-only",
            "/palisade/replicas/g/",
        ]);
        listed
            .lines()
            .any(|value| value.contains("\"one\"") && value.contains(&format!("\"ack\":{new}")))
            .then_some(())
    });
    let next = take(&etcd, "two");
    put("/two/x", next, "new").send(&b).is(204);
    assert!(!waiting.is_answered());
    assert_eq!(applied(&origin), [other, next]);

    sign.give();
    slow.answer().is(204);
    waiting.answer().is(204);
    assert_eq!(applied(&origin), [other, next, old, new]);
}

/// Nothing goes to etcd per write; a handover costs at most one read and two small puts a replica.
#[test]
fn what_a_handover_costs_etcd() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let (a, b) = two(&origin, &etcd);
    let first = take(&etcd, "default");
    put("/x", first, "old").send(&a).is(204);
    put("/x", first, "old").send(&b).is(204);

    let before = puts(&etcd);
    for _ in 0..50 {
        put("/x", first, "same").send(&a).is(204);
        put("/x", first, "same").send(&b).is(204);
    }
    assert_eq!(puts(&etcd), before, "a write cost a put");
    let (handovers, calls_before) = (20, calls(&etcd));
    for _ in 0..handovers {
        let token = take(&etcd, "default");
        put("/x", token, "new").send(&a).is(204);
        put("/x", token, "new").send(&b).is(204);
    }
    let each = (puts(&etcd) - before) / f64::from(handovers);
    println!("puts per handover: {each}, the grant's own included");
    assert!(each <= 1.0 + 2.0 * 2.0, "{each} puts per handover");
    // Acks go out as transactions, too: what is left is reads.
    let calls = (calls(&etcd) - calls_before) / f64::from(handovers);
    println!("reads and transactions per handover: {calls}");
    assert!(
        calls <= 2.0 * (1.0 + 2.0),
        "{calls} reads and transactions per handover"
    );
}

/// Ranges and transactions that etcd has answered, by its own count; `etcdctl` puts by neither.
fn calls(etcd: &Etcd) -> f64 {
    let metrics = fetch(etcd.address(), "/metrics").unwrap();
    let of_kv = |line: &&str| {
        line.starts_with("grpc_server_handled_total{")
            && (line.contains("\"Range\"") || line.contains("\"Txn\""))
    };
    let counts = metrics.lines().filter(of_kv);
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

fn puts(etcd: &Etcd) -> f64 {
    let metrics = fetch(etcd.address(), "/metrics").unwrap();
    let sum = ["etcd_mvcc_put_total ", "etcd_mvcc_delete_total "];
    metrics
        .lines()
        .filter_map(|line| sum.iter().find_map(|name| line.strip_prefix(name)))
        .filter_map(|count| count.trim().parse::<f64>().ok())
        .sum()
}

/// A replica that stops in order leaves nothing to wait for, and the other goes on at once.
#[test]
fn an_orderly_stop_leaves_the_group() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let (mut a, b) = two(&origin, &etcd);
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&a).is(204);
    assert_eq!(keys(&etcd, "members/g/").len(), 2);
    assert!(a.stop().success());
    assert_eq!(keys(&etcd, "members/g/").len(), 1);
    assert_eq!(keys(&etcd, "replicas/g/").len(), 1);
    wait_see(&b, 1);
    let new = take(&etcd, "default");
    // The settle time is one that no test outlives.
    put("/x", new, "new").send(&b).is(204);
    assert_eq!(applied(&origin), [old, new]);
}

/// An etcd that is too old is refused at the start, with words.
#[test]
fn an_older_etcd_is_refused() {
    let etcd = Etcd::start().unwrap();
    let version = fetch(etcd.address(), "/version").unwrap();
    if !version.contains("\"etcdserver\":\"3.4.") {
        println!("skipped: the etcd that is installed is not older: {version}");
        return;
    }
    let origin = Origin::tcp().unwrap();
    let mut a = replica(&origin, &etcd.url());
    let status = a.start_or_end().unwrap().expect("a start on an old etcd");
    assert_eq!(status.code(), Some(78));
    assert!(
        a.has_logged("is too old for several replicas"),
        "{:?}",
        a.log()
    );
}
