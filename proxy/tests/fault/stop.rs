//! Ends in order, and ends that are not.

use crate::{
    client::{Http2, get, put},
    stage::{applied, hold, proxy, stage, wait_waiting},
};
use nix::sys::signal::Signal;
use palisade_lease::clock::boot;
use palisade_loadtest::{
    origin::{Origin, Sign},
    servers::wait_for,
};
use std::{net::TcpStream, time::Duration};

/// SIGTERM: what is under way is answered, the exit code is 0, and the next start waits for nothing.
#[test]
fn an_orderly_stop_answers_what_is_under_way() {
    let (origin, mut proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let held = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    proxy.signal(Signal::SIGTERM);
    let address = proxy.address();
    wait_for("the listening socket to close", || {
        TcpStream::connect(address).is_err().then_some(())
    });
    let ready: serde_json::Value = serde_json::from_str(&proxy.admin_get("/readyz")).unwrap();
    assert_eq!(ready["reasons"][0], "stopping", "{ready}");
    assert!(!held.is_answered());
    sign.give();
    held.answer().is(204);
    assert_eq!(proxy.wait().code(), Some(0));

    // Settle times are an hour here: a wait would not end.
    proxy.start().unwrap();
    put("/x", 34, "new").send(&proxy).is(204);
    put("/x", 33, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    assert_eq!(applied(&origin), [33, 34]);
}

/// A handover that can't finish before the end is no reason to wait with the end: those who wait are told to go elsewhere, and
/// nothing of theirs was forwarded.
#[test]
fn an_orderly_stop_refuses_who_waits_for_a_handover() {
    let (origin, mut proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let held = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    proxy.signal(Signal::SIGTERM);
    let new = new.answer();
    new.is_refused(503, "shutting-down");
    assert!(new.field("retry-after").is_some(), "{new:?}");
    sign.give();
    held.answer().is(204);
    assert_eq!(proxy.wait().code(), Some(0));
    // The raise was durable: it stands.
    proxy.start().unwrap();
    put("/x", 33, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    put("/x", 34, "new").send(&proxy).is(204);
    assert_eq!(applied(&origin), [33, 34]);
}

/// What does not finish within `shutdown_timeout` is dropped, and its scope is marked.
#[test]
fn an_orderly_stop_marks_what_it_did_not_wait_for() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("fence.settle", "manual")
        .set("limits.shutdown_timeout", "300ms");
    proxy.start().unwrap();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let held = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    assert_eq!(proxy.stop().code(), Some(0));
    held.wait_gone();
    proxy.start().unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    sign.give();
    wait_for("the old write", || (applied(&origin) == [33]).then_some(()));
    assert!(!new.is_answered());
    assert!(proxy.ask(&["settle", "default"]).unwrap().status.success());
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 34]);
}

/// Workers and the proxy are stopped together, as when a machine is drained: a write whose client has gone is under way like any
/// other, and its answer is waited for. So nothing is left to wait for at the next start.
#[test]
fn an_orderly_stop_waits_for_writes_whose_clients_have_gone() {
    let (origin, mut proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let mut client = Http2::connect(&proxy);
    let held = client.put("/x", 33);
    sign.wait_reached();
    drop((held, client));
    wait_for("the proxy to notice", || {
        (proxy.metric("palisade_connections") == 0.0).then_some(())
    });
    proxy.signal(Signal::SIGTERM);
    let address = proxy.address();
    wait_for("the listening socket to close", || {
        TcpStream::connect(address).is_err().then_some(())
    });
    assert_eq!(proxy.scope("default").unwrap().in_flight, 1);
    sign.give();
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(applied(&origin), [33]);
    proxy.start().unwrap();
    put("/x", 34, "new").send(&proxy).is(204);
}

/// What does not finish is dropped over HTTP/2 as well, with a client that is there and with one that has gone.
#[test]
fn an_orderly_stop_marks_what_streams_left() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("fence.settle", "manual")
        .set("limits.shutdown_timeout", "300ms");
    proxy.start().unwrap();
    let (there, gone) = (Sign::new(), Sign::new());
    origin.once("/there", hold(&there));
    origin.once("/gone", hold(&gone));
    let mut client = Http2::connect(&proxy);
    let stays = client.put("/there", 33);
    let goes = client.put("/gone", 33);
    there.wait_reached();
    gone.wait_reached();
    drop(goes);
    wait_for("the proxy to notice", || {
        let gone = |line: &palisade_loadtest::proxy::Line| {
            line.get("reason")
                .is_some_and(|reason| reason == "client-gone")
        };
        proxy.log().iter().any(gone).then_some(())
    });
    assert_eq!(proxy.stop().code(), Some(0));
    drop((stays, client));
    proxy.start().unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert!(!new.is_answered());
    assert!(proxy.ask(&["settle", "default"]).unwrap().status.success());
    new.answer().is(204);
}

/// A signal may come before the proxy serves: it is followed then as well, and the stop is a clean one.
#[test]
fn a_signal_right_at_the_start_is_an_orderly_stop() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin);
    for _ in 0..10 {
        proxy.start().unwrap();
        assert_eq!(proxy.stop().code(), Some(0));
    }
}

/// A second signal ends it at once, and the next start counts that as a crash.
#[test]
fn a_second_signal_ends_at_once() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).set("fence.settle", "2s");
    proxy.start().unwrap();
    let sign = Sign::new();
    put("/x", 32, "opened").send(&proxy).is(204);
    origin.once("/x", hold(&sign));
    let held = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    proxy.signal(Signal::SIGTERM);
    wait_for("the first signal to count", || {
        proxy.has_logged("stopping").then_some(())
    });
    assert!(!held.is_answered());
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(1));
    held.wait_gone();

    let begun = boot();
    proxy.start().unwrap();
    get("/x").send(&proxy).is(200);
    put("/x", 34, "new").send(&proxy).is(204);
    assert!(
        boot().since(begun) >= Duration::from_secs(2),
        "34 did not wait for what may be left of 33"
    );
}
