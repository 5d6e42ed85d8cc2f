//! What the tests play on.

use crate::stage::NEVER;
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, newer_etcd, wait_for},
};

/// An etcd that replicas accept, or `None` where there is none to be had.
pub(crate) fn etcd() -> Option<Etcd> {
    match newer_etcd() {
        Ok(programs) => Some(Etcd::start_of(Some(&programs), &[]).unwrap()),
        Err(why) => {
            println!("skipped: no etcd 3.5.13 or newer to be had: {why}");
            None
        }
    }
}

/// A replica of the group `g` that reaches etcd at this URL; not running yet.
pub(crate) fn replica(origin: &Origin, leases: &str) -> Palisade {
    Palisade::new(&origin.url())
        .unwrap()
        .set("leases", leases)
        .set("replicas.group", "g")
        .set("replicas.session_ttl", "5s")
        .set("replicas.max_pause", "500ms")
        .set("fence.settle", NEVER)
}

/// Starts it and waits until it has joined.
pub(crate) fn join(replica: &mut Palisade) {
    replica.start().unwrap();
    wait_joined(replica);
}

pub(crate) fn is_joined(replica: &Palisade) -> bool {
    replica.metric("palisade_replicas") > 0.0
        && replica.metric("palisade_replica_session_remaining_seconds") > 0.0
}

pub(crate) fn wait_joined(replica: &Palisade) {
    wait_for("a replica to join", || is_joined(replica).then_some(()));
}

/// Two that have joined and see each other.
pub(crate) fn two(origin: &Origin, etcd: &Etcd) -> (Palisade, Palisade) {
    let (mut a, mut b) = (replica(origin, &etcd.url()), replica(origin, &etcd.url()));
    join(&mut a);
    join(&mut b);
    wait_see(&a, 2);
    wait_see(&b, 2);
    (a, b)
}

/// Waits until a replica sees so many with a session, itself included.
pub(crate) fn wait_see(replica: &Palisade, count: usize) {
    wait_for("a replica to see the others", || {
        (replica.metric("palisade_replicas") == count as f64).then_some(())
    });
}

/// The names of the keys below this one.
pub(crate) fn keys(etcd: &Etcd, below: &str) -> Vec<String> {
    let listed = etcd.ctl(&[
        "get",
        "--prefix",
        "--keys-only",
        &format!("/palisade/{below}"),
    ]);
    let names = listed.lines().filter(|line| !line.is_empty());
    names.map(str::to_owned).collect()
}
