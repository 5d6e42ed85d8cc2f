//! The lease is lost under the job: cut off, revoked, killed, frozen.

use crate::{
    bench::{Bench, children, code, descendants, run, start, status, stderr, wait_queued},
    common::runs,
};
use nix::sys::signal::{Signal, kill};
use palisade_loadtest::{
    relay::Relay,
    servers::{Etcd, wait_for},
};
use serde_json::Value;
use std::fs;

/// L1: nothing passes any more between the program and etcd.
#[test]
fn l1_a_cut_off_job_is_stopped_before_its_successor_starts() {
    let etcd = Etcd::start().unwrap();
    for number in 0..runs(1) {
        let (relay, bench) = (Relay::to(etcd.address()).unwrap(), Bench::new());
        let name = format!("a{number}");
        let through = format!("etcd://{}", relay.address());
        let mut holder = start(
            &through,
            &["run", &name, "--ttl", "3s", "sh", "-c", &bench.busy_job()],
        );
        bench.wait_busy();
        let mut next = start(
            &etcd.url(),
            &["run", &name, "--ttl", "3s", "sh", "-c", &bench.quick_job()],
        );
        wait_queued(&etcd.url(), &name, 1);
        relay.hold_all();
        assert_eq!(next.wait().code(), Some(0));
        assert!(
            bench.marked().is_empty(),
            "no process of the old job is left when the successor has run"
        );
        bench.assert_no_overlap();
        assert_eq!(holder.wait().code(), Some(76));
        assert!(stderr(&mut holder).contains("is lost"));
    }
}

/// L2, L4: the etcd lease is revoked under the job.
#[test]
fn l2_a_revoked_lease_ends_the_whole_tree() {
    let etcd = Etcd::start().unwrap();
    for number in 0..runs(1) {
        let (url, bench, name) = (etcd.url(), Bench::new(), format!("a{number}"));
        let result = bench.folder.path().join("result").display().to_string();
        let mut holder = start(
            &url,
            &[
                "run",
                &name,
                "--result-file",
                &result,
                "sh",
                "-c",
                &bench.busy_job(),
            ],
        );
        bench.wait_busy();
        etcd.ctl(&[
            "lease",
            "revoke",
            status(&url, &name)["session"].as_str().unwrap(),
        ]);
        assert_eq!(holder.wait().code(), Some(76));
        assert!(bench.marked().is_empty());
        assert!(stderr(&mut holder).contains("revoked"));
        let result: Value = serde_json::from_str(&fs::read_to_string(result).unwrap()).unwrap();
        assert_eq!(result["outcome"], "lost");
        assert!(result["reason"].as_str().unwrap().contains("revoked"));
    }
}

/// A job that ignores SIGTERM is killed after the grace.
#[test]
fn a_deaf_job_is_killed_after_the_grace() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let job = format!("trap '' TERM; {}", bench.busy_job());
    let mut holder = start(&url, &["run", "a", "--grace", "300ms", "sh", "-c", &job]);
    bench.wait_busy();
    etcd.ctl(&[
        "lease",
        "revoke",
        status(&url, "a")["session"].as_str().unwrap(),
    ]);
    assert_eq!(holder.wait().code(), Some(76));
    assert!(bench.marked().is_empty());
}

/// L3: nobody is left to tell anybody anything.
#[test]
fn l3_a_killed_program_takes_its_job_with_it() {
    let etcd = Etcd::start().unwrap();
    for number in 0..runs(1) {
        let (url, bench, name) = (etcd.url(), Bench::new(), format!("a{number}"));
        let mut holder = start(
            &url,
            &["run", &name, "--ttl", "2s", "sh", "-c", &bench.busy_job()],
        );
        bench.wait_busy();
        let mut next = start(&url, &["run", &name, "sh", "-c", &bench.quick_job()]);
        wait_queued(&url, &name, 1);
        holder.kill();
        bench.wait_gone();
        assert_eq!(next.wait().code(), Some(0));
        bench.assert_no_overlap();
    }
}

/// The supervisor killed: the program sees it, and kills what comes to it. Both killed by name: the supervisor has
/// another one.
#[test]
fn l3_a_killed_supervisor_takes_the_job_with_it() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let mut holder = start(&url, &["run", "a", "sh", "-c", &bench.busy_job()]);
    bench.wait_busy();
    let supervisor = children(holder.pid())[0];
    let name = fs::read_to_string(format!("/proc/{supervisor}/comm")).unwrap();
    assert_ne!(name.trim(), "palisade-lease");
    kill(supervisor, Signal::SIGKILL).unwrap();
    assert_ne!(holder.wait().code(), Some(0));
    assert!(bench.marked().is_empty());
    // And the lease was given back: nobody acts under it any more.
    assert_eq!(code(&run(&url, &["run", "-n", "a", "true"])), 0);
}

/// L6: everything stopped past the time to live, as by a suspended virtual machine.
#[test]
fn l6_after_a_long_stop_the_job_is_ended_first_of_all() {
    let etcd = Etcd::start().unwrap();
    for number in 0..runs(1) {
        let (url, bench, name) = (etcd.url(), Bench::new(), format!("a{number}"));
        let mut holder = start(
            &url,
            &["run", &name, "--ttl", "2s", "sh", "-c", &bench.busy_job()],
        );
        bench.wait_busy();
        let everything = descendants(holder.pid());
        let all = || {
            everything
                .iter()
                .chain([holder.pid()].iter())
                .copied()
                .collect::<Vec<_>>()
        };
        let stopped = all();
        stopped
            .iter()
            .for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap());
        let output = run(&url, &["run", &name, "sh", "-c", &bench.quick_job()]);
        assert_eq!(code(&output), 0);
        // The program and its supervisor first: they have a moment before the job goes on.
        stopped.iter().rev().for_each(|pid| {
            let _ = kill(*pid, Signal::SIGCONT);
        });
        assert_eq!(holder.wait().code(), Some(76));
        assert!(bench.marked().is_empty());
    }
}

/// Only the program is stopped, or hangs: the supervisor has the deadline itself.
#[test]
fn l6_a_stopped_program_does_not_keep_its_job_alive() {
    let etcd = Etcd::start().unwrap();
    for number in 0..runs(1) {
        let (url, bench, name) = (etcd.url(), Bench::new(), format!("a{number}"));
        let mut holder = start(
            &url,
            &["run", &name, "--ttl", "3s", "sh", "-c", &bench.busy_job()],
        );
        bench.wait_busy();
        let mut next = start(&url, &["run", &name, "sh", "-c", &bench.quick_job()]);
        wait_queued(&url, &name, 1);
        holder.signal(Signal::SIGSTOP);
        assert_eq!(next.wait().code(), Some(0));
        assert!(bench.marked().is_empty());
        bench.assert_no_overlap();
        holder.signal(Signal::SIGCONT);
        assert_eq!(holder.wait().code(), Some(76));
    }
}

/// L12: a waiter that was frozen past its time to live gets no token for the session that is gone.
#[test]
fn l12_a_frozen_waiter_gets_a_token_of_a_living_session() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let mut holder = start(&url, &["run", "a", "sh", "-c", &bench.busy_job()]);
    bench.wait_busy();
    let mut waiter = start(
        &url,
        &["run", "a", "--ttl", "2s", "sh", "-c", &bench.quick_job()],
    );
    wait_queued(&url, "a", 1);
    waiter.signal(Signal::SIGSTOP);
    wait_queued(&url, "a", 0);
    holder.signal(Signal::SIGTERM);
    holder.wait();
    waiter.signal(Signal::SIGCONT);
    assert_eq!(waiter.wait().code(), Some(0));
    bench.assert_no_overlap();
    assert_eq!(etcd.ctl(&["lease", "list"]).trim(), "found 0 leases");
}

/// `--on-lost ignore`: the job runs to its end, and the exit code tells.
#[test]
fn on_lost_ignore_lets_the_job_end_by_itself() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let go = bench.folder.path().join("go");
    let job = format!(
        "echo x >> {}; until [ -e {} ]; do sleep 0.02; done",
        bench.log().display(),
        go.display()
    );
    let mut holder = start(&url, &["run", "a", "--on-lost", "ignore", "sh", "-c", &job]);
    wait_for("the job", || (!bench.lines().is_empty()).then_some(()));
    etcd.ctl(&[
        "lease",
        "revoke",
        status(&url, "a")["session"].as_str().unwrap(),
    ]);
    assert_eq!(code(&run(&url, &["run", "a", "true"])), 0);
    assert_eq!(holder.ended(), None);
    fs::write(go, "").unwrap();
    assert_eq!(holder.wait().code(), Some(76));
}
