//! The proxy is killed at every step of a write and of a handover, and started again on what it left.
//!
//! Each step is held from outside: etcd stopped in mid-read, the state file locked by somebody else, an upstream that accepts
//! no connection, or that has read a part or all of a request.

use crate::{
    client::{Call, get, put},
    stage::{Frozen, NEVER, applied, hold, proxy, stored, take, wait_stored, wait_waiting},
};
use palisade_lease::clock::boot;
use palisade_loadtest::{
    origin::{Ended, Origin, Sign, Step},
    proxy::Palisade,
    servers::{Etcd, wait_for},
};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

/// A recording upstream and a proxy that runs and is to be killed; only an operator settles what that leaves.
fn stage() -> (Origin, Palisade) {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).set("fence.settle", "manual");
    proxy.start().unwrap();
    (origin, proxy)
}

fn again(proxy: &mut Palisade) {
    proxy.kill();
    proxy.start().unwrap();
}

fn settle(proxy: &Palisade) {
    let output = proxy.ask(&["settle", "default"]).unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Oxia once took an old leader's write after a restart, for its term was not on disk. The proxy is killed right after the new
/// holder's 2xx: the old holder's token is refused ever after, with etcd there and with etcd away.
#[test]
fn f03_a_kill_after_the_new_holders_write_forgets_nothing() {
    let mut etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("leases", etcd.url())
        .set("fence.settle", "1s");
    proxy.start().unwrap();
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&proxy).is(204);
    let new = take(&etcd, "default");
    put("/x", new, "new").send(&proxy).is(204);
    again(&mut proxy);
    let late = put("/x", old, "late").send(&proxy);
    late.is_refused(412, "stale-token");
    assert_eq!(late.field("x-fence-highest"), Some(&*new.to_string()));
    put("/x", new, "new").send(&proxy).is(204);

    wait_stored(&proxy, "default", new, true);
    etcd.kill();
    proxy.change("fence.settle", NEVER);
    again(&mut proxy);
    put("/x", old, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    // A floor that had opened goes on at once, whoever is away.
    put("/x", new, "new").send(&proxy).is(204);
    put("/x", new + 1, "newer")
        .send(&proxy)
        .is_refused(503, "authority-unavailable");
    assert_eq!(applied(&origin), [old, new, new, new]);
}

/// There is no journal of writes in flight: what a crash leaves at upstream is not known. So after the start every scope waits
/// out `settle` before it opens for the next holder, and what upstream applies within that comes first.
#[test]
fn f04_a_kill_while_upstream_works_is_waited_out() {
    let (origin, mut proxy) = stage();
    proxy.change("fence.settle", "4s");
    let sign = Sign::new();
    put("/x", 33, "opened").send(&proxy).is(204);
    wait_stored(&proxy, "default", 33, true);
    origin.once("/x", hold(&sign));
    let held = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    proxy.kill();
    held.wait_gone();

    let begun = boot();
    proxy.start().unwrap();
    // The floor that had opened goes on at once; a read without a token too.
    put("/y", 33, "same").send(&proxy).is(204);
    get("/y").send(&proxy).is(200);
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    sign.give();
    wait_for("the old write", || {
        (applied(&origin) == [33, 33, 33]).then_some(())
    });
    assert!(!new.is_answered());
    new.answer().is(204);
    assert!(boot().since(begun) >= Duration::from_secs(4));
    assert_eq!(applied(&origin), [33, 33, 33, 34]);
    assert_eq!(origin.value("/x").unwrap(), b"new");
}

/// Killed while etcd is being asked: nothing has changed, and nothing was sent.
#[test]
fn killed_in_the_middle_of_the_verification() {
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("leases", etcd.url())
        .set("fence.settle", "manual");
    proxy.start().unwrap();
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&proxy).is(204);
    wait_stored(&proxy, "default", old, true);
    etcd.pause();
    let forged = put("/x", 1 << 40, "forged").begin(&proxy);
    proxy.wait_scope("default", "a request that is verified", |scope| {
        scope.waiting == 1
    });
    proxy.kill();
    forged.wait_gone();
    assert_eq!(stored(&proxy, "default"), Some((old, true)));
    proxy.start().unwrap();
    put("/x", old, "old").send(&proxy).is(204);
    etcd.resume();
    put("/x", 1 << 40, "forged")
        .send(&proxy)
        .is_refused(412, "not-holder");
    assert_eq!(applied(&origin), [old, old]);
}

/// Killed when the token is verified and its floor not yet on disk: nothing of it was sent, so the raise may never have been.
#[test]
fn killed_before_the_floor_is_durable() {
    let (origin, mut proxy) = stage();
    put("/x", 33, "old").send(&proxy).is(204);
    wait_stored(&proxy, "default", 33, true);
    let disk = Frozen::freeze(&proxy);
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    put("/x", 33, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    proxy.kill();
    disk.thaw();
    new.wait_gone();
    assert_eq!(stored(&proxy, "default"), Some((33, true)));
    assert_eq!(applied(&origin), [33]);

    proxy.start().unwrap();
    put("/x", 33, "old").send(&proxy).is(204);
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    settle(&proxy);
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 33, 34]);
}

/// A listener whose queue is full: who connects waits.
struct Clogged {
    _listener: socket2::Socket,
    _queued: Vec<TcpStream>,
    address: SocketAddr,
}

impl Clogged {
    fn new() -> Self {
        let listener =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            queued.push(stream);
            assert!(queued.len() < 100, "the queue never fills");
        }
        Self {
            _listener: listener,
            _queued: queued,
            address,
        }
    }
}

/// Killed when the floor is on disk and open, before a byte was sent.
#[test]
fn killed_after_the_floor_is_durable_and_before_the_send() {
    let (origin, mut proxy) = stage();
    put("/x", 33, "old").send(&proxy).is(204);
    assert!(proxy.stop().success());
    let clogged = Clogged::new();
    proxy.change("upstream", format!("http://{}", clogged.address));
    proxy.change("limits.upstream_connect_timeout", "60s");
    proxy.start().unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    proxy.wait_scope("default", "34 past the gate", |scope| scope.requests == 1);
    wait_stored(&proxy, "default", 34, true);
    assert_eq!(proxy.scope("default").unwrap().in_flight, 0);
    proxy.kill();
    new.wait_gone();

    proxy.change("upstream", origin.url());
    proxy.start().unwrap();
    put("/x", 33, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    put("/x", 34, "new").send(&proxy).is(204);
    assert_eq!(applied(&origin), [33, 34]);
}

/// Killed in the middle of a large body: upstream sees a cut, never an end, and the next holder waits.
#[test]
fn killed_in_mid_body() {
    let (origin, mut proxy) = stage();
    let mut old = Call::new("PUT", "/x")
        .token(33)
        .field("Content-Length: 1000000")
        .begin(&proxy);
    old.more(&[b'o'; 500_000]);
    origin.wait_arrivals("/x", 1);
    proxy.kill();
    old.wait_gone();
    let ended = wait_for("the end at upstream", || origin.ended(0));
    assert!(matches!(ended, Ended::Reset | Ended::CutShort), "{ended:?}");

    proxy.start().unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert!(!new.is_answered());
    settle(&proxy);
    new.answer().is(204);
    assert_eq!(applied(&origin), [34], "half a body was applied");
}

/// Killed when a new floor has opened and its first write was answered, but "opened" is not on disk. Without that record the
/// next start can't know that the older writes were settled: it waits, for the same token too, and loses nothing.
#[test]
fn killed_before_opened_is_recorded() {
    let (origin, mut proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let old = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    wait_stored(&proxy, "default", 34, false);
    let disk = Frozen::freeze(&proxy);
    sign.give();
    old.answer().is(204);
    new.answer().is(204);
    proxy.kill();
    disk.thaw();
    assert_eq!(stored(&proxy, "default"), Some((34, false)));

    proxy.start().unwrap();
    put("/x", 33, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    let new = put("/x", 34, "again").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert!(!new.is_answered());
    settle(&proxy);
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 34, 34]);
}

/// Killed in the middle of a handover, while the old holder's write is still at upstream: the floor is on disk as closed. After
/// the start the new holder's token waits, and the old one's is refused.
#[test]
fn killed_while_draining() {
    let (origin, mut proxy) = stage();
    let sign = Sign::new();
    origin.once("/x", hold(&sign));
    let old = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    wait_stored(&proxy, "default", 34, false);
    proxy.kill();
    old.wait_gone();
    new.wait_gone();

    proxy.start().unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    put("/x", 33, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    sign.give();
    wait_for("the old write", || (applied(&origin) == [33]).then_some(()));
    assert!(!new.is_answered());
    settle(&proxy);
    new.answer().is(204);
    assert_eq!(applied(&origin), [33, 34]);
}

/// An orderly stop is no reason to forget a crash before it that was not waited out; one that was, is forgotten.
#[test]
fn an_orderly_stop_does_not_settle_an_earlier_crash() {
    let (origin, mut proxy) = stage();
    put("/x", 33, "old").send(&proxy).is(204);
    again(&mut proxy);
    assert!(proxy.stop().success());
    proxy.start().unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    wait_waiting(&proxy, "default", 34);
    assert!(!new.is_answered());
    assert!(proxy.stop().success());
    new.answer().is_refused(503, "shutting-down");

    // Now with a time that settles it, and once that is recorded, again without.
    proxy.change("fence.settle", "100ms");
    proxy.start().unwrap();
    put("/x", 34, "new").send(&proxy).is(204);
    wait_for("the record that all is settled", || {
        let db = rusqlite::Connection::open(proxy.state().join("state.db")).unwrap();
        let settled = "SELECT settled_run >= unclean_run FROM meta";
        db.query_row(settled, [], |row| row.get::<_, bool>(0))
            .unwrap()
            .then_some(())
    });
    assert!(proxy.stop().success());
    proxy.change("fence.settle", "manual");
    proxy.start().unwrap();
    put("/x", 35, "newer").send(&proxy).is(204);
    assert_eq!(applied(&origin), [33, 34, 35]);
}

/// A folder that has held a state and does not any more is no reason to begin anew: old tokens would pass. Nor may two proxies
/// share one.
#[test]
fn f11_a_lost_state_file_is_no_empty_start() {
    let (origin, mut proxy) = stage();
    put("/x", 34, "new").send(&proxy).is(204);
    let mut second = Palisade::new(&origin.url())
        .unwrap()
        .state_at(proxy.state());
    let status = second
        .start_or_end()
        .unwrap()
        .expect("two proxies on one state");
    assert_eq!(status.code(), Some(74));
    assert!(second.has_logged("in use by another process"));

    proxy.kill();
    std::fs::remove_file(proxy.state().join("state.db")).unwrap();
    let status = proxy.start_or_end().unwrap().expect("an empty start");
    assert_eq!(status.code(), Some(74));
    assert!(proxy.has_logged("Put it back together with its -wal file"));
    // Nor is a file that is not what was written.
    std::fs::write(proxy.state().join("state.db"), vec![b'x'; 8192]).unwrap();
    let status = proxy.start_or_end().unwrap().expect("a start on rubbish");
    assert_eq!(status.code(), Some(74));
    assert!(proxy.has_logged("is damaged"));
    assert_eq!(applied(&origin), [34]);
}

/// Upstream never says a word and the proxy is killed: one arrival, and none after the start.
#[test]
fn a_start_sends_nothing_again() {
    let (origin, mut proxy) = stage();
    put("/y", 33, "first").send(&proxy).is(204);
    wait_stored(&proxy, "default", 33, true);
    let sign = Sign::new();
    origin.once(
        "/x",
        vec![Step::ReadBody, Step::Await(sign.clone()), Step::Close],
    );
    let held = put("/x", 33, "old").begin(&proxy);
    sign.wait_reached();
    again(&mut proxy);
    held.wait_gone();
    sign.give();
    put("/y", 33, "same").send(&proxy).is(204);
    assert_eq!(origin.arrivals_at("/x").len(), 1);
}
