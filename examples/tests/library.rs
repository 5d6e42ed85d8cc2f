//! The example of the library stops when its lease is lost, and follows the rule of the other workers (`rule.rs`).

#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

use palisade_lease::{LeaseOptions, LeaseUrl};
use palisade_loadtest::{
    origin::{Origin, Sign, Step},
    proxy::Palisade,
    servers::{Etcd, Process, exchange, program, wait_for},
};
use std::{
    process::{Command, Stdio},
    thread,
};

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

/// `stops_on_loss` for this target.
fn start(etcd: &Etcd, proxy: &Palisade, target: &str, patience: &str) -> Process {
    let mut command = Command::new(program("stops_on_loss"));
    command
        .args([
            &*etcd.url(),
            "default",
            &*proxy.address().to_string(),
            target,
        ])
        .env("FENCE_PATIENCE", patience)
        .stdout(Stdio::null());
    Process::start("stops_on_loss", &mut command).unwrap()
}

/// An older write under way keeps it waiting at the fence: refused for now.
#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_a_handover_and_not_for_ever() {
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let sign = Sign::new();
    let slow = Step::Await(sign.clone());
    let answer = Step::Answer(204, Vec::new());
    origin.once("/x", vec![Step::ReadBody, slow, Step::Apply, answer]);
    let mut proxy = Palisade::new(&origin.url())
        .unwrap()
        .set("leases", etcd.url())
        .set("fence.abort_after", "100ms")
        .set("fence.drain_timeout", "100ms")
        .set("fence.settle", "100ms");
    proxy.start().unwrap();
    let store = palisade_lease::open(&etcd.url().parse::<LeaseUrl>().unwrap()).unwrap();
    let old = store
        .acquire("default", LeaseOptions::default())
        .await
        .unwrap();
    let (front, token) = (proxy.address(), old.token());
    let older = thread::spawn(move || {
        let head = format!("PUT /x HTTP/1.1\r\nHost: x\r\nX-Fence-Token: {token}\r\n");
        let rest = "Connection: close\r\nContent-Length: 3\r\n\r\nold";
        loop {
            // Slow as the lease store may be to say whose the token is: it gets through at some time.
            let answer = exchange(front, format!("{head}{rest}").as_bytes()).unwrap();
            if !answer.starts_with("HTTP/1.1 503") {
                return answer;
            }
        }
    });
    sign.wait_reached();
    old.release().await;

    let mut hasty = start(&etcd, &proxy, "/x", "0");
    assert_eq!(hasty.wait().code(), Some(69));
    let refused = || {
        let log = proxy.log();
        log.iter()
            .filter(|line| line.get("outcome").is_some_and(|o| o == "refused"))
            .count()
    };
    let before = refused();
    let _patient = start(&etcd, &proxy, "/x", "600");
    wait_for("a refusal for now", || (refused() > before).then_some(()));
    assert_eq!(origin.arrivals_at("/x").len(), 1);
    sign.give();
    origin.wait_arrivals("/x", 3);
    assert!(older.join().unwrap().starts_with("HTTP/1.1 204"));
}

#[test]
fn it_sends_nothing_twice() {
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = Palisade::new(&origin.url())
        .unwrap()
        .set("leases", etcd.url());
    proxy.start().unwrap();
    let later = vec!["Retry-After: 1".to_owned()];
    let own = Step::AnswerWith(503, later, Vec::new());
    origin.always("/own", vec![Step::ReadBody, own]);
    origin.always("/gone", vec![Step::ReadBody, Step::Apply, Step::Reset]);
    for target in ["/own", "/gone"] {
        let mut worker = start(&etcd, &proxy, target, "600");
        assert_eq!(worker.wait().code(), Some(1), "{target}");
        assert_eq!(origin.arrivals_at(target).len(), 1, "{target}");
    }
}
