//! `palisade init`: with flags, without a terminal, and with somebody who answers at one.

use nix::pty::{OpenptyResult, openpty};
use std::{
    fs::{self, File},
    io::{BufReader, Read, Write},
    path::Path,
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

/// `timeout` guards against a question that nobody answers.
fn palisade(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--foreground", "60", env!("CARGO_BIN_EXE_palisade")])
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

fn output(folder: &Path, args: &[&str]) -> Output {
    palisade(folder, args).output().expect("timeout runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_checks(folder: &Path) {
    let checked = output(folder, &["check", "--config", "palisade.toml"]);
    assert_eq!(checked.status.code(), Some(0), "{}", stderr(&checked));
}

/// Which scope `palisade route` finds for a PUT.
fn route(folder: &Path, target: &str) -> String {
    let routed = output(
        folder,
        &["route", "PUT", target, "--config", "palisade.toml"],
    );
    assert_eq!(routed.status.code(), Some(0), "{}", stderr(&routed));
    let told = String::from_utf8(routed.stdout).expect("UTF-8");
    assert!(told.ends_with('\n') && !told.ends_with("\n\n"), "{told:?}");
    told
}

const ALL: [&str; 7] = [
    "init",
    "--upstream",
    "http://127.0.0.1:9000",
    "--leases",
    "etcd://127.0.0.1:2379",
    "--scope",
    "nightly/billing",
];

#[test]
fn flags_alone_write_a_good_file() {
    let folder = TempDir::new().unwrap();
    let written = output(folder.path(), &ALL);
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    assert_eq!(stderr(&written), "");
    assert_checks(folder.path());
    assert!(route(folder.path(), "/x").contains("nightly/billing"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a draft");
}

#[test]
fn routes_cover_a_path_and_all_below_it() {
    let folder = TempDir::new().unwrap();
    let written = output(
        folder.path(),
        &[
            "init",
            "--upstream=unix:/run/store.sock",
            "--leases=none",
            "--route=/reports=nightly/reports",
            "--route=/tenants/{t}/{*rest}=ingest/{t}",
        ],
    );
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    assert_checks(folder.path());
    for (target, scope) in [
        ("/reports", "nightly/reports"),
        ("/reports/a/b", "nightly/reports"),
        ("/tenants/acme/x", "ingest/acme"),
    ] {
        let routed = route(folder.path(), target);
        assert!(routed.contains(scope), "{target}: {routed}");
    }
}

#[test]
fn a_file_that_exists_is_kept_unless_forced() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("palisade.toml");
    fs::write(&file, "# mine\n").unwrap();
    let kept = output(folder.path(), &ALL);
    assert_eq!(kept.status.code(), Some(1));
    assert!(stderr(&kept).contains("--force"), "{}", stderr(&kept));
    assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\n");
    let forced = output(folder.path(), &[&ALL[..], &["--force"]].concat());
    assert_eq!(forced.status.code(), Some(0), "{}", stderr(&forced));
    assert_checks(folder.path());
}

#[test]
fn without_a_terminal_the_missing_flag_is_named() {
    let folder = TempDir::new().unwrap();
    for (given, missing) in [(1, "--upstream"), (3, "--leases"), (5, "--scope")] {
        let refused = output(folder.path(), &ALL[..given]);
        assert_eq!(refused.status.code(), Some(64));
        let said = stderr(&refused);
        assert!(said.contains(&format!("palisade: {missing}")), "{said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A quote in an answer stays in its string, and what `check` refuses is never written, `--force` or not.
#[test]
fn a_bad_answer_writes_nothing() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("palisade.toml");
    fs::write(&file, "# mine\n").unwrap();
    for upstream in ["ftp://store", "http://h:1\"\nthreads = \"2"] {
        let upstream = format!("--upstream={upstream}");
        let args = ["init", &upstream, "--leases=none", "--scope=a", "--force"];
        let refused = output(folder.path(), &args);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(78), "{said}");
        assert!(
            said.contains("upstream") && !said.contains("draft:"),
            "{said}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\n");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a draft");
}

/// Somebody at a terminal: an answer, Enter for what is proposed, and two routes.
#[test]
fn three_questions_at_a_terminal() {
    let folder = TempDir::new().unwrap();
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    // The terminal keeps what is typed until it is read, so all can be typed at once.
    let mut keys = File::from(master);
    keys.write_all(b"http://127.0.0.1:9001\n\n/a=jobs/a /b=jobs/b\n")
        .unwrap();
    let mut child = palisade(folder.path(), &["init"])
        .stdin(slave)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut asked = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_to_string(&mut asked)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{asked}");
    let questions: Vec<_> = asked.lines().filter(|l| l.contains('?')).collect();
    assert_eq!(questions.len(), 3, "{asked}");
    let written = fs::read_to_string(folder.path().join("palisade.toml")).unwrap();
    assert!(
        written.contains("upstream = \"http://127.0.0.1:9001\"\n"),
        "{written}"
    );
    assert!(
        written.contains("\nleases = \"etcd://127.0.0.1:2379\"\n"),
        "{written}"
    );
    assert_checks(folder.path());
    assert!(route(folder.path(), "/b/x").contains("jobs/b"));
}
