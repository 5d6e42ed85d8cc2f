//! What the tests play on: logs, real processes, and how to find those that a job has left behind.

use crate::common::command;
use nix::unistd::Pid;
use palisade_loadtest::servers::{Process, wait_for};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};
use tempfile::TempDir;

/// A folder for a test's logs, and a number that no other test's processes carry.
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) mark: String,
}

impl Bench {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        lines(&self.log())
    }

    /// Writes its token to the log again and again, after leaving a child, a daemon in a session of its own, and a
    /// daemon's child behind.
    pub(crate) fn busy_job(&self) -> String {
        let (log, mark) = (self.log(), &self.mark);
        let log = log.display();
        format!(
            "sleep {mark} & setsid sh -c 'sleep {mark} & sleep {mark}' & \
             while :; do echo $FENCE_TOKEN >> {log}; sleep 0.02; done"
        )
    }

    /// Writes its token once.
    pub(crate) fn quick_job(&self) -> String {
        format!("echo $FENCE_TOKEN >> {}", self.log().display())
    }

    /// Processes that carry this test's mark.
    pub(crate) fn marked(&self) -> Vec<Pid> {
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
    pub(crate) fn wait_busy(&self) {
        wait_for("the job's processes", || {
            (self.marked().len() == 3 && !self.lines().is_empty()).then_some(())
        });
    }

    pub(crate) fn wait_gone(&self) {
        wait_for("the end of the job's processes", || {
            self.marked().is_empty().then_some(())
        });
    }

    /// The successor's job has written its line; nobody with a smaller token wrote after it.
    pub(crate) fn assert_no_overlap(&self) {
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

pub(crate) fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may be half written.
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
        .map(str::to_owned)
        .collect()
}

pub(crate) fn start(url: &str, arguments: &[&str]) -> Process {
    let mut command = command(url, arguments);
    Process::start(
        "palisade-lease",
        command.stdout(Stdio::piped()).stderr(Stdio::piped()),
    )
    .unwrap()
}

pub(crate) fn run(url: &str, arguments: &[&str]) -> Output {
    command(url, arguments).output().unwrap()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

pub(crate) fn stderr(process: &mut Process) -> String {
    std::io::read_to_string(process.child().stderr.take().unwrap()).unwrap()
}

pub(crate) fn status(url: &str, name: &str) -> Value {
    let output = run(url, &["status", name, "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

pub(crate) fn wait_queued(url: &str, name: &str, count: usize) {
    wait_for("the queue", || {
        (status(url, name)["waiters"].as_array()?.len() == count).then_some(())
    });
}

/// Direct children of a process.
pub(crate) fn children(of: Pid) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    text.split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()))
        .collect()
}

/// Everything below a process, nearest first.
pub(crate) fn descendants(of: Pid) -> Vec<Pid> {
    let mut found = children(of);
    let mut at = 0;
    while at < found.len() {
        found.extend(children(found[at]));
        at += 1;
    }
    found
}
