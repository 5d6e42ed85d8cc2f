//! The log, and who reads it.

use crate::{client::get, stage::stage};
use nix::sys::{
    signal::Signal,
    wait::{Id, WaitPidFlag, waitid},
};
use palisade_loadtest::servers::wait_for;

/// nginx, and Palisade once: what reads the log stands still (a full disk behind a pager, a frozen journal), and soon so does whoever logs.
#[test]
fn who_reads_the_log_and_stands_still_holds_up_nobody() {
    let (_origin, mut proxy) = stage();
    // Few lines fill what waits for the reader.
    let long = format!("/{}", "x".repeat(30_000));
    let lost = {
        // Who reads it here stops at the next line.
        let _still = proxy.log();
        wait_for("the log to be full", || {
            get(&long).send(&proxy).is(404);
            (proxy.metric("palisade_log_lines_lost_total") > 0.0).then_some(())
        });
        proxy.metric("palisade_log_lines_lost_total")
    };
    let told = wait_for("a word of what was lost", || {
        let log = proxy.log();
        log.iter().find_map(|line| line.get("lost")?.as_f64())
    });
    assert_eq!(told, lost);
    get("/after").send(&proxy).is(404);
    wait_for("the line of what came then", || {
        let log = proxy.log();
        log.iter()
            .any(|line| line.get("path").is_some_and(|path| path == "/after"))
            .then_some(())
    });
    // Whole lines were lost and no others.
    for line in proxy.log().iter() {
        assert!(line.contains_key("timestamp"), "{line:?}");
    }

    // Nor is a stop held up.
    {
        let _still = proxy.log();
        for _ in 0..10 {
            get(&long).send(&proxy).is(404);
        }
        proxy.signal(Signal::SIGTERM);
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(proxy.pid()), ended).unwrap();
    }
    assert_eq!(proxy.wait().code(), Some(0));
}

/// A stop loses nothing of the log, although its lines are written late.
#[test]
fn the_last_lines_are_written_before_the_end() {
    let (_origin, mut proxy) = stage();
    get("/last").send(&proxy).is(404);
    assert_eq!(proxy.stop().code(), Some(0));
    let log = proxy.log();
    let last = log
        .iter()
        .any(|line| line.get("path").is_some_and(|path| path == "/last"));
    assert!(last, "{log:?}");
    drop(log);
    assert!(proxy.has_logged("stopped"));
}
