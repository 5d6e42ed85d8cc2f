//! `status`, `list`, `watch`, `release`.

use crate::{
    bench::{Bench, code, run, start, status},
    common::command,
};
use nix::sys::signal::Signal;
use palisade_loadtest::servers::{Etcd, Process, wait_for};
use serde_json::Value;
use std::fs;

#[test]
fn status_list_release_for_people_and_scripts() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let output = run(&url, &["status", "a"]);
    assert_eq!(code(&output), 1);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("a: free\n"));
    let mut holder = start(
        &url,
        &[
            "run",
            "a",
            "--holder",
            "somebody",
            "sh",
            "-c",
            &bench.busy_job(),
        ],
    );
    bench.wait_busy();
    let output = run(&url, &["status", "a"]);
    assert_eq!(code(&output), 0);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("somebody") && text.contains("time left"),
        "{text}"
    );
    let token = status(&url, "a")["token"].as_u64().unwrap();
    let list = run(&url, &["list"]);
    assert!(
        String::from_utf8_lossy(&list.stdout).starts_with(&format!("a\theld\t{token}\tsomebody\t"))
    );
    let list: Value = serde_json::from_slice(&run(&url, &["list", "--json"]).stdout).unwrap();
    assert_eq!(list[0]["token"], token);
    assert_eq!(
        code(&run(
            &url,
            &["release", "a", "--token", &(token + 1).to_string()]
        )),
        1
    );
    assert_eq!(
        code(&run(&url, &["release", "a", "--token", &token.to_string()])),
        0
    );
    assert_eq!(holder.wait().code(), Some(76));
    // A key on no etcd lease never goes by itself: shown as stuck, and taken over by the next one.
    etcd.ctl(&["put", "/palisade/leases/s", "left over"]);
    assert_eq!(status(&url, "s")["state"], "stuck");
    assert_eq!(code(&run(&url, &["run", "s", "true"])), 0);
}

#[test]
fn watch_tells_of_grants_and_releases() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let log = fs::File::create(bench.log()).unwrap();
    let mut command = command(&url, &["watch", "a", "--json"]);
    let _watch = Process::start("watch", command.stdout(log)).unwrap();
    // It tells how things stand, so it is begun with something that stands.
    let mut holder = start(&url, &["run", "a", "sleep", &bench.mark]);
    wait_for("the grant", || (bench.lines().len() == 1).then_some(()));
    holder.signal(Signal::SIGTERM);
    holder.wait();
    wait_for("the release", || (bench.lines().len() == 2).then_some(()));
    let events: Vec<Value> = bench
        .lines()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&events[0]["event"], &events[1]["event"]),
        (&Value::from("granted"), &Value::from("freed"))
    );
}
