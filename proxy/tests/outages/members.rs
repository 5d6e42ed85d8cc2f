//! A cluster of three members that loses some of them.

use crate::{
    client::put,
    nobody_new_gets_in,
    stage::{applied, proxy},
    the_next_holder_gets_in, the_open_floor_goes_on,
};
use palisade_loadtest::{cluster::Cluster, origin::Origin};

/// One member is left, which answers and has no majority: it knows the key, but not whether that is still so.
#[test]
fn etcd_without_a_majority() {
    let mut etcd = Cluster::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).set("leases", etcd.url());
    proxy.start().unwrap();
    let old = etcd.take("default");
    put("/x", old, "old").send(&proxy).is(204);
    let holder = etcd.take("default");
    put("/x", holder, "true").send(&proxy).is(204);

    etcd.kill(0);
    etcd.pause(1);
    the_open_floor_goes_on(&proxy, holder, old);
    nobody_new_gets_in(&proxy, holder + 100);
    etcd.resume(1);
    let next = etcd.take("default");
    the_next_holder_gets_in(&proxy, next);
    the_open_floor_goes_on(&proxy, next, holder);

    assert!(proxy.stop().success());
    etcd.pause(1);
    proxy.start().unwrap();
    the_open_floor_goes_on(&proxy, next, holder);
    nobody_new_gets_in(&proxy, next + 100);
    etcd.run(0).unwrap();
    let last = etcd.take("default");
    the_next_holder_gets_in(&proxy, last);
    assert!(applied(&origin).is_sorted());
}
