//! Whom the lease store knows, and what holds while it can't be asked.

use crate::{
    client::{get, put},
    stage::{applied, proxy, put_key, take},
};
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, wait_for},
};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

fn stage() -> (Etcd, Origin, Palisade) {
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).set("leases", etcd.url());
    proxy.start().unwrap();
    (etcd, origin, proxy)
}

/// Garbage in the token's place, or a client that makes one up: a huge one would lock every true holder out for good, if the
/// floor believed it.
#[test]
fn f06_a_token_from_nowhere_moves_nothing() {
    let (etcd, origin, proxy) = stage();
    put("/x", 1 << 62, "forged")
        .send(&proxy)
        .is_refused(412, "not-holder");
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);
    for forged in [1 << 62, (1 << 63) - 1, holder + 1] {
        let refused = put("/x", forged, "forged").send(&proxy);
        refused.is_refused(412, "not-holder");
        put("/x", holder, "true").send(&proxy).is(204);
    }
    assert_eq!(applied(&origin), [holder; 4]);
}

/// A waiter in the queue has a genuine revision, higher than the holder's (etcd's own Mutex recipe hands it out). It is not the
/// lease's, and neither is another lease's, nor one with no deadline.
#[test]
fn f07_a_waiters_own_revision_is_no_token() {
    let (etcd, origin, proxy) = stage();
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);
    for other in ["waiters/default//1", "leases/other", "leases/default/x"] {
        let revision = put_key(&etcd, other);
        put("/x", revision, "not mine")
            .send(&proxy)
            .is_refused(412, "not-holder");
    }
    put("/x", holder, "true").send(&proxy).is(204);
    assert_eq!(applied(&origin), [holder; 2]);
}

/// The lease store is away: who has been let in goes on, nobody else is, and nobody is let in on trust. When it is back, the
/// next holder is let in.
#[test]
fn with_etcd_away_the_open_floor_goes_on() {
    let (mut etcd, origin, proxy) = stage();
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&proxy).is(204);
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);
    let next = take(&etcd, "default");
    // The watch closes the scope at once: the old holder is out, etcd or not.
    proxy.wait_scope("default", "the early close", |scope| {
        scope.floor == Some(next)
    });
    put("/x", holder, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    put("/x", next, "next").send(&proxy).is(204);

    etcd.kill();
    put("/x", next, "next").send(&proxy).is(204);
    get("/x").token(next).send(&proxy).is(200);
    let newer = put("/x", next + 1, "newer").send(&proxy);
    newer.is_refused(503, "authority-unavailable");
    assert!(newer.field("retry-after").is_some(), "{newer:?}");
    put("/x", holder, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    let ready: serde_json::Value = wait_for("it not to be ready", || {
        let ready: serde_json::Value = serde_json::from_str(&proxy.admin_get("/readyz")).unwrap();
        (ready["ready"] == false).then_some(ready)
    });
    assert!(
        ready["reasons"][0]
            .as_str()
            .unwrap()
            .contains("can't be asked"),
        "{ready}"
    );

    etcd.start_again().unwrap();
    let newer = take(&etcd, "default");
    wait_for("the lease store to be asked again", || {
        let answer = put("/x", newer, "newer").send(&proxy);
        (answer.status == 204).then_some(())
    });
    assert_eq!(applied(&origin), [old, holder, next, next, newer]);
}

/// A proxy starts with etcd away, too: floors that had opened go on, the rest waits for etcd.
#[test]
fn a_proxy_starts_with_etcd_away() {
    let (mut etcd, _origin, mut proxy) = stage();
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);
    assert!(proxy.stop().success());
    etcd.kill();
    proxy.start().unwrap();
    put("/x", holder, "true").send(&proxy).is(204);
    put("/x", holder + 1, "newer")
        .send(&proxy)
        .is_refused(503, "authority-unavailable");
}

/// Another cluster answers in etcd's place: its revisions mean nothing here. Everything stops until an operator has looked, over
/// a restart too.
#[test]
fn f12_another_cluster_stops_every_write() {
    let (etcd, origin, mut proxy) = stage();
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);
    drop(etcd);
    let other = Etcd::start().unwrap();
    proxy.change("leases", other.url());
    assert!(proxy.stop().success());
    proxy.start().unwrap();
    for round in 0..2 {
        wait_for("the other cluster to be noticed", || {
            proxy
                .admin_get("/readyz")
                .contains("not trusted")
                .then_some(())
        });
        for token in [holder, holder + 1] {
            put("/x", token, "any")
                .send(&proxy)
                .is_refused(503, "authority-changed");
        }
        get("/x").send(&proxy).is(200);
        if round == 0 {
            proxy.kill();
            proxy.start().unwrap();
        }
    }
    assert_eq!(applied(&origin), [holder]);
}

/// While the lease changes hands.
const NOBODY: u64 = 0;

/// A fence that protects too much is an outage of its own (ScyllaDB's barriers). A lease that changes hands a hundred times a
/// minute, under load: who holds it gets its writes through.
#[test]
fn f18_handovers_in_a_row_do_not_refuse_the_holder() {
    let (etcd, origin, proxy) = stage();
    let current = AtomicU64::new(take(&etcd, "default"));
    let (done, good, bad) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let write = |n: usize| {
        let target = format!("/{n}");
        while !done.load(Ordering::Relaxed) {
            let token = current.load(Ordering::SeqCst);
            if token == NOBODY {
                thread::yield_now();
                continue;
            }
            let answer = put(&target, token, "value").send(&proxy);
            // Who lost it meanwhile is not the holder.
            if current.load(Ordering::SeqCst) != token {
                continue;
            }
            if answer.status == 204 {
                good.fetch_add(1, Ordering::Relaxed);
            } else {
                println!("{answer:?}");
                bad.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3).map(|n| scope.spawn(move || write(n))).collect();
        for _ in 0..20 {
            let before = good.load(Ordering::Relaxed);
            wait_for("the holder's writes", || {
                (good.load(Ordering::Relaxed) >= before + 20).then_some(())
            });
            // From here on the old holder is not the holder any more, whatever it still believes.
            current.store(NOBODY, Ordering::SeqCst);
            current.store(take(&etcd, "default"), Ordering::SeqCst);
        }
        done.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
    let (good, bad) = (good.into_inner(), bad.into_inner());
    println!("{good} writes of the holder passed, {bad} did not");
    assert!(bad * 100 <= good + bad, "{bad} of {}", good + bad);
    assert!(applied(&origin).is_sorted());
}
