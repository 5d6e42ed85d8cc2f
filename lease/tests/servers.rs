//! The harness itself: a real etcd comes up, is stopped, and comes back with its data.

use palisade_loadtest::servers::Etcd;

#[test]
fn etcd_comes_back_with_its_data() {
    let mut etcd = Etcd::start().unwrap();
    etcd.ctl(&["put", "a", "1"]);
    etcd.kill();
    etcd.start_again().unwrap();
    assert_eq!(etcd.ctl(&["get", "a", "--print-value-only"]).trim(), "1");
}
