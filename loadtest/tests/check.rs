//! `palisade-loadtest check` as it is used: what it prints, and its exit code.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use palisade_loadtest::servers::program;
use std::{fs, process::Command};

const GOOD: &str = r#"{"at":1,"event":"granted","scope":"s","token":5,"process":1}
{"at":2,"event":"invoke","id":1,"scope":"s","token":5,"kind":"write","process":1}
{"at":3,"event":"granted","scope":"s","token":9,"process":2}
{"at":4,"event":"invoke","id":2,"scope":"s","token":9,"kind":"write","process":2}
{"at":5,"event":"applied","id":2,"scope":"s","token":9,"position":1}
"#;
const LATE: &str = r#"{"at":6,"event":"applied","id":1,"scope":"s","token":5,"position":2}"#;

fn check(history: &str) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    fs::write(&path, history).unwrap();
    let output = Command::new(program("palisade-loadtest"))
        .arg("check")
        .arg(&path)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_good_history_exits_with_0() {
    let (code, out, _) = check(GOOD);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("1 writes applied, 1 handovers"), "{out}");
}

#[test]
fn a_bad_one_exits_with_1_and_says_what_broke_what() {
    let (code, out, _) = check(&format!("{GOOD}{LATE}\n"));
    assert_eq!(code, Some(1), "{out}");
    let told = "write 1 with token 5 was applied to `s` after write 2 with token 9.";
    assert!(out.contains(told), "{out}");
    assert!(out.contains(&format!("       6: {LATE}")), "{out}");
}

#[test]
fn what_there_was_nothing_to_see_by_is_not_called_kept() {
    let (_, out, _) = check(GOOD);
    for property in ["P7 ", "P10 "] {
        let line = out.lines().find(|line| line.starts_with(property));
        assert!(line.unwrap().ends_with("not looked at"), "{out}");
    }
    let floor = r#"{"at":6,"event":"floor","scope":"s","floor":9}"#;
    let (_, out, _) = check(&format!("{GOOD}{floor}\n"));
    let line = out.lines().find(|line| line.starts_with("P7 "));
    assert!(line.unwrap().ends_with("0.0"), "{out}");
}

#[test]
fn several_histories_make_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let start = r#"{"at":0,"event":"start","seed":1,"proxy":"PROXY","recovers_within_ms":1,"scopes":["s"]}"#;
    let write = |name: &str, rest: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("{}\n{rest}", start.replace("PROXY", name))).unwrap();
        path
    };
    let output = Command::new(program("palisade-loadtest"))
        .arg("table")
        .arg(write("palisade", GOOD))
        .arg(write("naive", &format!("{GOOD}{LATE}\n")))
        .output()
        .unwrap();
    assert!(output.status.success());
    let out = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<&str> = out.lines().skip(2).collect();
    assert_eq!(
        rows,
        [
            "| palisade | 1 | 0 | 0 | 0 | 0 | 0 |",
            "| naive | 1 | 1 | 0 | 0 | 0 | 1000 |"
        ]
    );
}

#[test]
fn what_is_no_history_is_an_error_with_its_line() {
    let (code, out, error) = check(&format!("{GOOD}nothing\n"));
    assert_eq!((code, out.as_str()), (Some(74), ""));
    assert!(error.contains("line 6: "), "{error}");
}
