//! What the job is told, and what the exit code tells.

use crate::{
    bench::{Bench, code, run, start, status, stderr},
    common::command,
};
use palisade_loadtest::servers::Etcd;
use serde_json::Value;
use std::{
    fs,
    process::{Command, Stdio},
};

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
        // A wait this short may be over, on a busy machine, before it is known by whom.
        let waited = !["-n", "--no-wait"].contains(&flags[0]);
        let told = if waited {
            "the waiting time is over"
        } else {
            "held by"
        };
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(told),
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
