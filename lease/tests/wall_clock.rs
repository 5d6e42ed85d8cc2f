//! The wall clock jumps an hour ahead, and two back: nothing of a lease goes by it. The program runs under libfaketime, which
//! Debian's package `faketime` has; without it these tests say so and pass over.

#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

mod common;

use common::Place;
use palisade_loadtest::servers::{Process, wait_for};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// The library that lies about the time, as the dynamic linker is told of it.
fn library() -> Option<String> {
    let shown = Command::new("faketime")
        .args(["-f", "+1h", "printenv", "LD_PRELOAD"])
        .output()
        .ok()?;
    let name = String::from_utf8(shown.stdout).ok()?.trim().to_owned();
    (shown.status.success() && !name.is_empty()).then_some(name)
}

/// A command whose wall clock is what the file says, and whose other clocks are the machine's.
fn under(library: &str, clock: &Path, mut command: Command) -> Command {
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1");
    command
}

fn the_wall_clock_jumps(place: &Place) {
    let Some(library) = library() else {
        println!("skipped: libfaketime is not installed (apt-get install faketime)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Put in place at once: it is read all the time.
    let set = |to: &str| {
        fs::write(path("next"), to).unwrap();
        fs::rename(path("next"), path("clock")).unwrap();
    };
    set("+0");
    // It writes its token and what time it believes it is, for several heartbeats after each jump.
    let (log, go) = (path("log"), path("go"));
    let job = format!(
        "until [ -e {} ]; do echo $FENCE_TOKEN $(date +%s) >> {}; sleep 0.05; done",
        go.display(),
        log.display()
    );
    let run = ["run", "a", "--ttl", "10s", "sh", "-c", &job];
    let mut holder = under(&library, &path("clock"), place.command(&run));
    let mut holder = Process::start(
        "palisade-lease",
        holder.stdout(Stdio::null()).stderr(Stdio::piped()),
    )
    .unwrap();
    let lines = || -> Vec<(u64, i64)> {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let parsed = text.lines().filter_map(|line| {
            let (token, time) = line.split_once(' ')?;
            Some((token.parse().ok()?, time.parse().ok()?))
        });
        parsed.collect()
    };
    let after = |count: usize| {
        let begun = lines().len();
        wait_for("the job to go on", || {
            (lines().len() >= begun + count).then_some(())
        });
    };
    after(3);
    let next_job = format!("echo $FENCE_TOKEN 0 >> {}", log.display());
    let next = ["run", "a", "--ttl", "10s", "sh", "-c", &next_job];
    let mut next = under(&library, &path("clock"), place.command(&next));
    let mut next = Process::start("palisade-lease", &mut next).unwrap();
    for jump in ["+3600", "-3600", "+3600"] {
        set(jump);
        // Longer than from one heartbeat to the next.
        after(70);
    }
    let before = lines();
    assert!(
        before.windows(2).any(|pair| pair[1].1 > pair[0].1 + 3000)
            && before.windows(2).any(|pair| pair[1].1 + 3000 < pair[0].1),
        "the job's clock has not jumped: {before:?}"
    );
    assert!(
        before.iter().all(|(token, _)| *token == before[0].0),
        "the next one started: {before:?}"
    );
    assert_eq!(next.ended(), None);
    fs::write(&go, "").unwrap();
    assert_eq!(holder.wait().code(), Some(0), "the lease was not lost");
    assert_eq!(next.wait().code(), Some(0));
    let all = lines();
    assert!(all.last().unwrap().0 > before[0].0);
}

#[test]
fn jumps_change_nothing_with_etcd() {
    the_wall_clock_jumps(&Place::etcd());
}

#[test]
fn jumps_change_nothing_with_a_file() {
    the_wall_clock_jumps(&Place::sqlite());
}
