//! Somebody ends the program, or the job ends by itself.

use crate::bench::{Bench, code, descendants, run, start, status, wait_queued};
use nix::sys::signal::{Signal, kill};
use palisade_loadtest::servers::{Etcd, wait_for};
use serde_json::Value;

/// L5.
#[test]
fn l5_sigterm_reaches_the_job_and_the_lease_is_freed_after_its_end() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let log = bench.log().display().to_string();
    // On SIGTERM it takes a while, and says so, before it ends with a code of its own.
    let job = format!(
        "trap 'for i in 1 2 3 4 5; do echo ending >> {log}; sleep 0.05; done; exit 5' TERM; \
         echo ready >> {log}; while :; do sleep 0.02; done"
    );
    let mut holder = start(&url, &["run", "a", "sh", "-c", &job]);
    wait_for("the job", || (!bench.lines().is_empty()).then_some(()));
    let mut next = start(
        &url,
        &["run", "a", "sh", "-c", &format!("echo next >> {log}")],
    );
    wait_queued(&url, "a", 1);
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.wait().code(), Some(5));
    assert_eq!(next.wait().code(), Some(0));
    let expected = [&["ready"][..], &["ending"; 5], &["next"]].concat();
    assert_eq!(bench.lines(), expected);
}

/// Signals that ask for no end are passed on.
#[test]
fn other_signals_are_passed_on() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let log = bench.log().display().to_string();
    let job = format!(
        "trap 'echo usr1 >> {log}' USR1; trap 'echo hup >> {log}; exit 3' HUP; \
         echo ready >> {log}; while :; do sleep 0.02; done"
    );
    let mut holder = start(&url, &["run", "a", "sh", "-c", &job]);
    wait_for("the job", || (!bench.lines().is_empty()).then_some(()));
    holder.signal(Signal::SIGUSR1);
    wait_for("the first signal", || {
        (bench.lines().len() == 2).then_some(())
    });
    holder.signal(Signal::SIGHUP);
    assert_eq!(holder.wait().code(), Some(3));
    assert_eq!(bench.lines(), ["ready", "usr1", "hup"]);
}

/// L20.
#[test]
fn l20_with_etcd_down_sigterm_still_ends_it() {
    let mut etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let mut holder = start(
        &url,
        &[
            "run",
            "a",
            "--ttl",
            "60s",
            "--grace",
            "1s",
            "sh",
            "-c",
            &bench.busy_job(),
        ],
    );
    bench.wait_busy();
    etcd.kill();
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.wait().code(), Some(143));
    assert!(bench.marked().is_empty());
}

/// A signal while waiting ends the wait, and the place in the queue is left.
#[test]
fn a_waiter_leaves_on_sigterm() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let _holder = start(&url, &["run", "a", "sh", "-c", &bench.busy_job()]);
    bench.wait_busy();
    let mut waiter = start(&url, &["run", "a", "true"]);
    wait_queued(&url, "a", 1);
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.wait().code(), Some(143));
    assert_eq!(status(&url, "a")["waiters"], Value::Array(Vec::new()));
}

/// What the command leaves behind does not outlive the lease.
#[test]
fn leftovers_end_before_the_lease_is_given_back() {
    let etcd = Etcd::start().unwrap();
    let bench = Bench::new();
    let job = format!(
        "sleep {mark} & setsid sleep {mark} & exit 4",
        mark = bench.mark
    );
    let output = run(&etcd.url(), &["run", "a", "sh", "-c", &job]);
    assert_eq!(code(&output), 4);
    assert!(bench.marked().is_empty());
}

/// What is made ready while the lease is waited for does nothing before, and ends with the wait, however that ends.
#[test]
fn a_killed_waiter_leaves_nothing_behind() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let mut holder = start(&url, &["run", "a", "sh", "-c", &bench.busy_job()]);
    bench.wait_busy();
    let job = format!("echo 0 >> {}", bench.log().display());
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let mut waiter = start(&url, &["run", "a", "--ttl", "2s", "sh", "-c", &job]);
        wait_queued(&url, "a", 1);
        let below = wait_for("what is made ready", || {
            let below = descendants(waiter.pid());
            (below.len() == 2).then_some(below)
        });
        waiter.signal(signal);
        waiter.wait();
        wait_for("its end", || {
            below
                .iter()
                .all(|pid| kill(*pid, None).is_err())
                .then_some(())
        });
        wait_queued(&url, "a", 0);
    }
    holder.signal(Signal::SIGTERM);
    holder.wait();
    assert!(!bench.lines().contains(&"0".to_owned()), "the job ran");
}
