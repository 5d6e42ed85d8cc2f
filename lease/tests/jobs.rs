//! `palisade-lease run` with real jobs: exit codes, and what has gone wrong for others (`L` numbers: the list of
//! incidents). Jobs write to a log opened for appending, so the order of its lines is the order in which they acted.

#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

mod common;

use common::{command, runs};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use palisade_loadtest::{
    relay::Relay,
    servers::{Etcd, Process, wait_for},
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

/// A folder for a test's logs, and a number that no other test's processes carry.
struct Bench {
    folder: TempDir,
    mark: String,
}

impl Bench {
    fn new() -> Self {
        let mark = format!(
            "7{}.{}",
            fastrand::u32(100_000..1_000_000),
            fastrand::u32(100_000..1_000_000)
        );
        Self {
            folder: TempDir::with_prefix("palisade-jobs-").unwrap(),
            mark,
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn lines(&self) -> Vec<String> {
        lines(&self.log())
    }

    /// Writes its token to the log again and again, after leaving a child, a daemon in a session of its own, and a
    /// daemon's child behind.
    fn busy_job(&self) -> String {
        let (log, mark) = (self.log(), &self.mark);
        let log = log.display();
        format!(
            "sleep {mark} & setsid sh -c 'sleep {mark} & sleep {mark}' & \
             while :; do echo $FENCE_TOKEN >> {log}; sleep 0.02; done"
        )
    }

    /// Writes its token once.
    fn quick_job(&self) -> String {
        format!("echo $FENCE_TOKEN >> {}", self.log().display())
    }

    /// Processes that carry this test's mark.
    fn marked(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // The job's own shells, not the programs around them.
            line.starts_with(b"sleep\0") && String::from_utf8_lossy(&line).contains(&self.mark)
        })
        .map(Pid::from_raw)
        .collect()
    }

    /// Waits until the busy job and all it leaves behind are there.
    fn wait_busy(&self) {
        wait_for("the job's processes", || {
            (self.marked().len() == 3 && !self.lines().is_empty()).then_some(())
        });
    }

    fn wait_gone(&self) {
        wait_for("the end of the job's processes", || {
            self.marked().is_empty().then_some(())
        });
    }

    /// The successor's job has written its line; nobody with a smaller token wrote after it.
    fn assert_no_overlap(&self) {
        let tokens: Vec<u64> = self
            .lines()
            .iter()
            .map(|line| line.parse().unwrap())
            .collect();
        assert!(
            tokens.is_sorted(),
            "a job wrote after its successor: {tokens:?}"
        );
    }
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may be half written.
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
        .map(str::to_owned)
        .collect()
}

fn start(url: &str, arguments: &[&str]) -> Process {
    let mut command = command(url, arguments);
    Process::start(
        "palisade-lease",
        command.stdout(Stdio::piped()).stderr(Stdio::piped()),
    )
    .unwrap()
}

fn run(url: &str, arguments: &[&str]) -> Output {
    command(url, arguments).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn stderr(process: &mut Process) -> String {
    std::io::read_to_string(process.child().stderr.take().unwrap()).unwrap()
}

fn status(url: &str, name: &str) -> Value {
    let output = run(url, &["status", name, "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn wait_queued(url: &str, name: &str, count: usize) {
    wait_for("the queue", || {
        (status(url, name)["waiters"].as_array()?.len() == count).then_some(())
    });
}

/// Direct children of a process.
fn children(of: Pid) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    text.split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()))
        .collect()
}

#[test]
fn the_job_knows_its_lease() {
    let etcd = Etcd::start().unwrap();
    let script = "echo $FENCE_TOKEN; echo $FENCE_LEASE; echo $FENCE_HOLDER; echo $ETCD_LOCK_KEY; echo $ETCD_LOCK_REV; cat";
    let mut command = command(
        &etcd.url(),
        &["run", "x/y", "--holder", "me", "sh", "-c", script],
    );
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its standard input is the program's own.
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"from stdin\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let token: u64 = lines[0].parse().unwrap();
    assert!(token > 0);
    assert_eq!(
        &lines[1..],
        ["x/y", "me", "/palisade/leases/x/y", lines[0], "from stdin"]
    );
    // Given back, and nothing left over.
    assert_eq!(etcd.ctl(&["lease", "list"]).trim(), "found 0 leases");
    assert_eq!(
        etcd.ctl(&["get", "--prefix", "/palisade/", "--keys-only"])
            .trim(),
        ""
    );
}

#[test]
fn exit_codes() {
    let etcd = Etcd::start().unwrap();
    let url = etcd.url();
    let bench = Bench::new();
    let result = bench.folder.path().join("result").display().to_string();
    let outcome = || serde_json::from_str::<Value>(&fs::read_to_string(&result).unwrap()).unwrap();
    for (arguments, expected, word) in [
        (&["a", "true"][..], 0, "ended"),
        (&["a", "--", "sh", "-c", "exit 7"], 7, "ended"),
        (&["a", "--", "sh", "-c", "kill -TERM $$"], 143, "ended"),
        (&["a", "--", "no-such-program"], 127, "not-executed"),
        (&["a", "--", "/etc/passwd"], 126, "not-executed"),
    ] {
        let output = run(
            &url,
            &[&["run", "--result-file", &result], arguments].concat(),
        );
        assert_eq!(code(&output), expected, "{arguments:?}: {output:?}");
        assert_eq!(outcome()["outcome"], word);
        assert!(outcome()["token"].is_u64());
    }
    assert_eq!(outcome()["exit"], Value::Null);
    for wrong in [
        &["run", "a//b", "true"][..],
        &["run", "a"],
        &["run", "a", "--ttl", "x", "true"],
        &["nothing"],
    ] {
        assert_eq!(code(&run(&url, wrong)), 64, "{wrong:?}");
    }
    assert_eq!(code(&run(&url, &["run", "a", "--ttl", "1ms", "true"])), 64);
    let output = run(
        "etcd://127.0.0.1:1",
        &[
            "run",
            "--patience",
            "200ms",
            "--result-file",
            &result,
            "a",
            "true",
        ],
    );
    assert_eq!(
        (code(&output), &outcome()["outcome"]),
        (69, &Value::from("unreachable"))
    );
    let output = Command::new(palisade_loadtest::servers::program("palisade-lease"))
        .args(["run", "a", "true"])
        .output();
    assert_eq!(
        code(&output.unwrap()),
        64,
        "there is no default place for leases"
    );
}

#[test]
fn held_elsewhere() {
    let etcd = Etcd::start().unwrap();
    let (url, bench) = (etcd.url(), Bench::new());
    let mut holder = start(&url, &["run", "a", "sh", "-c", &bench.busy_job()]);
    bench.wait_busy();
    for (flags, expected) in [
        (&["-n"][..], 75),
        (&["--no-wait"], 75),
        (&["--wait", "50ms"], 75),
        (&["-w", "0.05"], 75),
        (&["-n", "-E", "0"], 0),
        (&["-w", "0.05", "--conflict-exit-code", "9"], 9),
    ] {
        let output = run(&url, &[&["run"], flags, &["a", "true"]].concat());
        assert_eq!(code(&output), expected, "{flags:?}: {output:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("held by"),
            "{output:?}"
        );
    }
    assert_eq!(status(&url, "a")["waiters"], Value::Array(Vec::new()));
    // Stealing works, and the old job dies of it.
    let output = run(&url, &["run", "--steal", "a", "true"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(holder.wait().code(), Some(76));
    assert!(stderr(&mut holder).contains("taken over"));
    bench.wait_gone();
}

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

/// Everything below a process, nearest first.
fn descendants(of: Pid) -> Vec<Pid> {
    let mut found = children(of);
    let mut at = 0;
    while at < found.len() {
        found.extend(children(found[at]));
        at += 1;
    }
    found
}
