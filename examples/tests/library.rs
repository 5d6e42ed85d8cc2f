//! The example of the library stops when its lease is lost.

#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, Process, program, wait_for},
};
use std::process::{Command, Stdio};

#[test]
fn it_sends_nothing_once_the_lease_is_lost() {
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = Palisade::new(&origin.url())
        .unwrap()
        .set("leases", etcd.url());
    proxy.start().unwrap();
    let mut command = Command::new(program("stops_on_loss"));
    command
        .args([&etcd.url(), "default", &proxy.address().to_string(), "/x"])
        .stdout(Stdio::piped());
    let mut worker = Process::start("stops_on_loss", &mut command).unwrap();
    origin.wait_arrivals("/x", 3);
    let key = etcd.ctl(&["get", "/palisade/leases/default", "-w", "json"]);
    let key: serde_json::Value = serde_json::from_str(&key).unwrap();
    let session = key["kvs"][0]["lease"].as_i64().unwrap();
    etcd.ctl(&["lease", "revoke", &format!("{session:x}")]);
    assert_eq!(worker.wait().code(), Some(76));
    let said = std::io::read_to_string(worker.child().stdout.take().unwrap()).unwrap();
    assert!(said.contains("token ") && said.contains("lost: "), "{said}");
    // Its last write was that of the line before.
    let writes = said.lines().filter(|line| line.contains(": 204")).count();
    wait_for("the last write", || {
        (origin.arrivals_at("/x").len() >= writes).then_some(())
    });
    assert!(origin.arrivals_at("/x").len() <= writes + 1, "{said}");
}
