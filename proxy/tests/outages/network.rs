//! What lies between the proxy and etcd fails.

use crate::{
    client::put,
    nobody_new_gets_in,
    stage::{applied, proxy, take},
    the_next_holder_gets_in, the_open_floor_goes_on,
};
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    relay::Relay,
    servers::{Etcd, wait_for},
};
use std::time::Duration;

/// `/etcdserverpb.KV/Txn` and `/etcdserverpb.Watch/Watch` as gRPC clients send them (RFC 7541, section 5.2): by these the
/// connection of the reads and that of the watch are told apart.
const READS: [u8; 15] = [
    0x60, 0xa9, 0x24, 0x88, 0x2d, 0x9d, 0xcb, 0x65, 0x71, 0xaf, 0x9b, 0x8b, 0x1b, 0xfc, 0xd5,
];
const WATCH: [u8; 18] = [
    0x60, 0xa9, 0x24, 0x88, 0x2d, 0x9d, 0xcb, 0x65, 0x71, 0xaf, 0xc8, 0x69, 0x24, 0xec, 0x72, 0x1a,
    0x49, 0x3f,
];

struct Stage {
    etcd: Etcd,
    relay: Relay,
    origin: Origin,
    proxy: Palisade,
    old: u64,
    holder: u64,
}

impl Stage {
    /// A holder that has written, one from before, and a relay that marks connections by these words.
    fn new(mark: &[u8]) -> Self {
        let etcd = Etcd::start().unwrap();
        let relay = Relay::to(etcd.address()).unwrap();
        relay.mark(mark);
        let origin = Origin::tcp().unwrap();
        let mut proxy = proxy(&origin).set("leases", format!("etcd://{}", relay.address()));
        proxy.start().unwrap();
        let old = take(&etcd, "default");
        put("/x", old, "old").send(&proxy).is(204);
        let holder = take(&etcd, "default");
        put("/x", holder, "true").send(&proxy).is(204);
        Self {
            etcd,
            relay,
            origin,
            proxy,
            old,
            holder,
        }
    }

    /// The floor's token is known to the disk; then the proxy stops, the day turns bad, and it starts.
    fn start_on(&mut self, break_it: impl FnOnce(&Relay)) {
        assert!(self.proxy.stop().success());
        break_it(&self.relay);
        self.proxy.start().unwrap();
    }

    fn next_holder(&mut self) {
        let next = take(&self.etcd, "default");
        self.relay.let_go();
        the_next_holder_gets_in(&self.proxy, next);
        self.holder_is(next);
    }

    fn holder_is(&mut self, next: u64) {
        self.old = self.holder;
        self.holder = next;
        the_open_floor_goes_on(&self.proxy, self.holder, self.old);
    }

    fn nothing_went_back(self) {
        let tokens = applied(&self.origin);
        assert!(tokens.is_sorted(), "{tokens:?}");
    }
}

/// The whole of a day on which no question is answered, in service and at the start.
fn no_answers(break_it: impl Fn(&Relay)) {
    let mut stage = Stage::new(&READS);
    break_it(&stage.relay);
    the_open_floor_goes_on(&stage.proxy, stage.holder, stage.old);
    nobody_new_gets_in(&stage.proxy, stage.holder + 100);
    the_open_floor_goes_on(&stage.proxy, stage.holder, stage.old);
    stage.next_holder();

    stage.start_on(break_it);
    the_open_floor_goes_on(&stage.proxy, stage.holder, stage.old);
    nobody_new_gets_in(&stage.proxy, stage.holder + 100);
    stage.next_holder();
    stage.nothing_went_back();
}

#[test]
fn etcd_unreachable() {
    no_answers(Relay::cut_and_refuse);
}

#[test]
fn etcd_silent_with_open_sockets() {
    no_answers(Relay::hold_all);
}

/// 2.5 s each way: no call is answered within its 5 s.
#[test]
fn etcd_answers_after_five_seconds() {
    no_answers(|relay| relay.delay(Duration::from_millis(2600)));
}

/// Slow but within the limit of a call: the next holder waits that long and is let in.
#[test]
fn etcd_answers_slowly_but_in_time() {
    let mut stage = Stage::new(&READS);
    stage.relay.delay(Duration::from_millis(300));
    the_open_floor_goes_on(&stage.proxy, stage.holder, stage.old);
    let next = take(&stage.etcd, "default");
    put("/x", next, "slow").send(&stage.proxy).is(204);
    stage.holder_is(next);
    stage.nothing_went_back();
}

/// Reads live: each new holder is verified with its first request. What is missing is the early close: the old holder goes on
/// until then.
#[test]
fn the_watch_is_dead_and_reads_are_answered() {
    let mut stage = Stage::new(&WATCH);
    stage.relay.hold_marked();
    watchless(&mut stage);
    // Noticed, told, and tried again.
    wait_for("the watch to be given up", || {
        (stage
            .proxy
            .metric("palisade_lease_store_watch_restarts_total")
            > 0.0)
            .then_some(())
    });
    watchless(&mut stage);
    stage.relay.let_go();
    closes_early(&mut stage);

    stage.start_on(Relay::hold_marked);
    watchless(&mut stage);
    stage.relay.let_go();
    closes_early(&mut stage);
    stage.nothing_went_back();
}

fn watchless(stage: &mut Stage) {
    let next = take(&stage.etcd, "default");
    the_open_floor_goes_on(&stage.proxy, stage.holder, stage.old);
    put("/x", next, "next").send(&stage.proxy).is(204);
    stage.holder_is(next);
    assert!(stage.proxy.admin_get("/readyz").contains("\"ready\":true"));
}

fn closes_early(stage: &mut Stage) {
    let next = take(&stage.etcd, "default");
    stage
        .proxy
        .wait_scope("default", "the early close", |scope| {
            scope.floor == Some(next)
        });
    put("/x", stage.holder, "late")
        .send(&stage.proxy)
        .is_refused(412, "stale-token");
    put("/x", next, "next").send(&stage.proxy).is(204);
    stage.holder_is(next);
}

/// The watch lives: it tells of each new grant, which closes the scope to older tokens and lets the new holder in. Only tokens of
/// which it has told nothing can't be verified.
#[test]
fn reads_are_dead_and_the_watch_lives() {
    let mut stage = Stage::new(&READS);
    stage.relay.hold_marked();
    the_open_floor_goes_on(&stage.proxy, stage.holder, stage.old);
    nobody_new_gets_in(&stage.proxy, stage.holder + 100);
    closes_early(&mut stage);
    stage.next_holder();

    stage.start_on(Relay::hold_marked);
    the_open_floor_goes_on(&stage.proxy, stage.holder, stage.old);
    nobody_new_gets_in(&stage.proxy, stage.holder + 100);
    closes_early(&mut stage);
    stage.next_holder();
    stage.nothing_went_back();
}
