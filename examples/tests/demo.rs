//! The demo as a person runs it: the story comes out, and nothing is left behind, however it ends.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use palisade_loadtest::servers::wait_for;
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Output, Stdio},
};
use tempfile::TempDir;

/// The demo with a folder of its own for all its files, so that what it leaves behind can be seen.
struct Demo {
    files: TempDir,
}

impl Demo {
    fn new() -> Self {
        Self {
            // Short: the path of a unix socket has at most 107 bytes (unix(7)).
            files: TempDir::with_prefix("demo-").expect("a folder"),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
        command
            .args(arguments)
            .env("TMPDIR", self.files.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> (Output, String) {
        let output = self.command(arguments).output().expect("the demo runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output, said)
    }

    fn start(&self) -> Child {
        self.command(&[])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the demo runs")
    }

    /// The processes that were started by it, directly or not: they all have its folder in their environment.
    fn processes(&self) -> Vec<Pid> {
        let mark = format!("TMPDIR={}", self.files.path().display());
        let processes = fs::read_dir("/proc").expect("a folder").flatten();
        processes
            .filter(|process| {
                let environment = fs::read(process.path().join("environ")).unwrap_or_default();
                environment.split(|&b| b == 0).any(|v| v == mark.as_bytes())
            })
            .filter_map(|process| process.file_name().to_str()?.parse().ok())
            .map(Pid::from_raw)
            .collect()
    }

    fn assert_nothing_is_left(&self) {
        // A killed process is there for a moment more, until its parent or the system has taken note.
        wait_for("all processes to end", || {
            self.processes().is_empty().then_some(())
        });
        let files: Vec<_> = fs::read_dir(self.files.path())
            .expect("a folder")
            .flatten()
            .collect();
        assert!(files.is_empty(), "{files:?}");
    }
}

#[test]
fn the_story_comes_out_and_nothing_is_left() {
    let demo = Demo::new();
    let (output, said) = demo.run(&[]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for words in [
        "412 Precondition Failed",
        "X-Fence-Outcome: refused",
        "urn:palisade:problem:stale-token",
        "report.txt holds \"B's report\": A's late write was refused, B's work is safe.",
        "report.txt holds \"A's late draft\": A's late write was taken, B's work is destroyed.",
    ] {
        assert!(said.contains(words), "`{words}` is missing in:\n{said}");
    }
    assert!(!said.contains('\x1b'), "no colours in a pipe");
    demo.assert_nothing_is_left();
}

#[test]
fn the_story_comes_out_on_a_lease_file_without_a_server() {
    let demo = Demo::new();
    let (output, said) = demo.run(&["--leases", "sqlite"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("sqlite:"), "{said}");
    assert!(
        said.contains("A's late write was refused, B's work is safe."),
        "{said}"
    );
    demo.assert_nothing_is_left();
}

#[test]
fn ctrl_c_in_the_middle_ends_everything() {
    let demo = Demo::new();
    let mut running = demo.start();
    let mut said = BufReader::new(running.stdout.take().expect("a pipe"));
    let mut line = String::new();
    // A's processes are stopped then: the hardest moment to leave nothing behind.
    while !line.contains("stalls: SIGSTOP") {
        line.clear();
        let read = said.read_line(&mut line).expect("a line");
        assert!(read > 0, "the demo ended before A stalled");
    }
    kill(Pid::from_raw(running.id() as i32), Signal::SIGINT).expect("it runs");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("the rest");
    let status = running.wait().expect("its end");
    assert_eq!(status.code(), Some(1), "{rest}");
    assert!(rest.contains("interrupted"), "{rest}");
    demo.assert_nothing_is_left();
}

#[test]
fn keep_leaves_it_running_until_it_is_cleaned_up() {
    let demo = Demo::new();
    let (output, said) = demo.run(&["--keep"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for (line, status) in curl_lines(&said).into_iter().zip(["412", "204", "428"]) {
        let answer = Command::new("sh").args(["-c", &line]).output();
        let answer = String::from_utf8_lossy(&answer.expect("runs").stdout).into_owned();
        let first = answer.lines().next().unwrap_or_default();
        assert!(first.contains(status), "{line}\n{answer}");
    }
    let etcd = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("etcd://"))
        .expect("etcd's address");
    let etcd: SocketAddr = etcd.parse().expect("an address");
    assert!(TcpStream::connect(etcd).is_ok(), "etcd runs on");

    let (output, said) = demo.run(&["--clean"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    demo.assert_nothing_is_left();
}

/// The three lines to try, as printed.
fn curl_lines(said: &str) -> Vec<String> {
    let lines = said.lines().map(str::trim);
    let lines: Vec<String> = lines
        .filter(|line| line.starts_with("curl "))
        .map(str::to_owned)
        .collect();
    assert_eq!(lines.len(), 3, "{said}");
    lines
}
