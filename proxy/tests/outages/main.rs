//! etcd's bad days, as the book's table of outages has them: what a write meets on each, in service and at the start, and that
//! the proxy needs no restart afterwards. The program itself, a real etcd, and a network in between that can be held.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

#[path = "../fault/client.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod client;
mod leader;
mod members;
mod network;
mod restore;
mod server;
#[path = "../fault/stage.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod stage;

use client::{get, put};
use palisade_loadtest::{proxy::Palisade, servers::wait_for};

/// What holds on every one of these days: a floor that has opened goes on, and what is older stays out.
#[track_caller]
fn the_open_floor_goes_on(proxy: &Palisade, floor: u64, old: u64) {
    put("/x", floor, "the holder's").send(proxy).is(204);
    put("/x", old, "late")
        .send(proxy)
        .is_refused(412, "stale-token");
    // Reads are nobody's to hold up; with a token they are fenced like writes.
    get("/x").send(proxy).is(200);
    get("/x")
        .token(old)
        .send(proxy)
        .is_refused(412, "stale-token");
}

/// Whoever can't be verified is told to come again, and nobody else is disturbed; readiness, metric and log say why.
#[track_caller]
fn nobody_new_gets_in(proxy: &Palisade, newer: u64) {
    let answer = put("/x", newer, "not verified").send(proxy);
    answer.is_refused(503, "authority-unavailable");
    assert!(answer.field("retry-after").is_some(), "{answer:?}");
    wait_for("it not to be ready", || {
        let ready = proxy.admin_get("/readyz");
        (ready.contains("\"ready\":false") && ready.contains("can't be asked")).then_some(())
    });
    assert!((proxy.metric("palisade_lease_store_up")).abs() < f64::EPSILON);
    assert!(proxy.has_logged("the lease store can't be asked"));
}

/// Back again, without a restart.
#[track_caller]
fn the_next_holder_gets_in(proxy: &Palisade, next: u64) {
    wait_for("the next holder to be let in", || {
        let answer = put("/x", next, "the next holder's").send(proxy);
        match answer.status {
            204 => Some(()),
            503 => None,
            _ => panic!("{answer:?}"),
        }
    });
    wait_for("it to be ready", || {
        proxy
            .admin_get("/readyz")
            .contains("\"ready\":true")
            .then_some(())
    });
    assert!((proxy.metric("palisade_lease_store_up") - 1.0).abs() < f64::EPSILON);
}
