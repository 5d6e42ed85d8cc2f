//! etcd is restored from a snapshot with its own tool, as the runbook in the book has it. Needs etcd 3.5, which
//! `scripts/newer-etcd.sh` fetches; where it can't, the tests say so and pass over.

use crate::{
    client::{get, put},
    stage::{applied, proxy, take},
};
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, newer_etcd, wait_for},
};
use std::path::PathBuf;

struct Stage {
    etcd: Etcd,
    snapshot: PathBuf,
    origin: Origin,
    proxy: Palisade,
    /// Its grant is in the snapshot.
    first: u64,
    /// This one's is not.
    second: u64,
}

fn stage() -> Option<Stage> {
    let programs = match newer_etcd() {
        Ok(programs) => programs,
        Err(why) => {
            println!("skipped: no etcd 3.5 to be had: {why}");
            return None;
        }
    };
    let etcd = Etcd::start_of(Some(&programs), &[]).unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("leases", etcd.url())
        .set("fence.settle", "200ms");
    proxy.start().unwrap();
    let first = take(&etcd, "default");
    put("/x", first, "first").send(&proxy).is(204);
    let snapshot = etcd.snapshot();
    for _ in 0..10 {
        etcd.ctl(&["put", "elsewhere", "x"]);
    }
    let second = take(&etcd, "default");
    put("/x", second, "second").send(&proxy).is(204);
    Some(Stage {
        etcd,
        snapshot,
        origin,
        proxy,
        first,
        second,
    })
}

/// With the bump every grant to come is above all that were ever given out: it goes on by itself, and hears of grants as before.
fn with_a_bump(stopped: bool) {
    let Some(mut stage) = stage() else { return };
    if stopped {
        assert!(stage.proxy.stop().success());
    }
    let bump = ["--bump-revision", "1000000000", "--mark-compacted"];
    stage.etcd.restore(&stage.snapshot, &bump).unwrap();
    if stopped {
        stage.proxy.start().unwrap();
    }
    // The floor goes on until somebody else has the lease, and the snapshot's own holder does not come back.
    put("/x", stage.second, "second").send(&stage.proxy).is(204);
    put("/x", stage.first, "from the snapshot")
        .send(&stage.proxy)
        .is_refused(412, "stale-token");
    let third = take(&stage.etcd, "default");
    assert!(third > 1_000_000_000, "{third}");
    stage
        .proxy
        .wait_scope("default", "the early close", |scope| {
            scope.floor == Some(third)
        });
    put("/x", third, "third").send(&stage.proxy).is(204);
    for old in [stage.first, stage.second] {
        put("/x", old, "late")
            .send(&stage.proxy)
            .is_refused(412, "stale-token");
    }
    assert_eq!(
        applied(&stage.origin),
        [stage.first, stage.second, stage.second, third]
    );
    assert!((stage.proxy.metric("palisade_lease_store_trusted") - 1.0).abs() < f64::EPSILON);
}

#[test]
fn restored_with_a_bump_while_the_proxy_runs() {
    with_a_bump(false);
}

#[test]
fn restored_with_a_bump_while_the_proxy_is_stopped() {
    with_a_bump(true);
}

/// Without it numbers would be given out a second time: nothing passes until an operator begins a new epoch.
fn without_a_bump(stopped: bool) {
    let Some(mut stage) = stage() else { return };
    if stopped {
        assert!(stage.proxy.stop().success());
    }
    stage.etcd.restore(&stage.snapshot, &[]).unwrap();
    if stopped {
        stage.proxy.start().unwrap();
    }
    wait_for("the freeze", || {
        stage.proxy.has_logged("not trusted any more").then_some(())
    });
    for token in [stage.first, stage.second, stage.second + 100] {
        put("/x", token, "frozen")
            .send(&stage.proxy)
            .is_refused(503, "authority-changed");
    }
    get("/x").send(&stage.proxy).is(200);
    assert!(stage.proxy.admin_get("/readyz").contains("not trusted"));
    assert!(stage.proxy.metric("palisade_lease_store_trusted").abs() < f64::EPSILON);

    let epoch = ["new-epoch", "--yes", "--advance", "1000"];
    let begun = stage.proxy.ask(&epoch).unwrap();
    assert!(
        begun.status.success(),
        "{}",
        String::from_utf8_lossy(&begun.stderr)
    );
    let third = take(&stage.etcd, "default");
    assert!(third > stage.second);
    put("/x", third, "third").send(&stage.proxy).is(204);
    for old in [stage.first, stage.second] {
        put("/x", old, "late")
            .send(&stage.proxy)
            .is_refused(412, "stale-token");
    }
    assert_eq!(applied(&stage.origin), [stage.first, stage.second, third]);
}

#[test]
fn restored_without_a_bump_while_the_proxy_runs() {
    without_a_bump(false);
}

#[test]
fn restored_without_a_bump_while_the_proxy_is_stopped() {
    without_a_bump(true);
}
