//! A queue that delivers each job at least once has delivered it twenty times.

use crate::{
    bench::{Bench, code, start},
    common::command,
};
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, wait_for},
};
use std::process::Stdio;

/// F20: ten copies that go away when somebody else runs, ten that wait for their turn, and the one that runs meets its end
/// by being frozen in the middle. Through the proxy, as a datastore would be used.
#[test]
fn f20_twenty_copies_of_a_job_race_for_one_lease() {
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = Palisade::new(&origin.url())
        .unwrap()
        .set("leases", etcd.url());
    proxy.start().unwrap();
    let bench = Bench::new();
    let job = format!(
        "echo begin $FENCE_TOKEN >> {log}; \
         for i in 1 2 3 4 5; do curl --silent --output /dev/null -X PUT --data x -H \"X-Fence-Token: $FENCE_TOKEN\" \
         http://{proxy}/value; done; echo end $FENCE_TOKEN >> {log}",
        log = bench.log().display(),
        proxy = proxy.address(),
    );
    let copy = |flags: &[&str]| {
        let arguments = [&["run"], flags, &["default", "sh", "-c", &job]].concat();
        let mut command = command(&etcd.url(), &arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    // One that stalls in the middle: its late writes come when others have long been there.
    let stalls = format!(
        "echo begin $FENCE_TOKEN >> {log}; curl --silent --output /dev/null -X PUT --data x -H \"X-Fence-Token: \
         $FENCE_TOKEN\" http://{proxy}/value; touch {go}; sleep 3600",
        log = bench.log().display(),
        proxy = proxy.address(),
        go = bench.folder.path().join("stalled").display()
    );
    let mut stalled = start(
        &etcd.url(),
        &[
            "run",
            "default",
            "--ttl",
            "2s",
            "--on-lost",
            "ignore",
            "sh",
            "-c",
            &stalls,
        ],
    );
    wait_for("the first one to stall", || {
        bench.folder.path().join("stalled").exists().then_some(())
    });
    stalled.signal(nix::sys::signal::Signal::SIGSTOP);
    let copies: Vec<_> = (0..20)
        .map(|number| copy(if number % 2 == 0 { &["-n"] } else { &[] }))
        .collect();
    let codes: Vec<i32> = copies
        .into_iter()
        .map(|copy| code(&copy.wait_with_output().unwrap()))
        .collect();
    let (patient, hasty): (Vec<_>, Vec<_>) = codes
        .iter()
        .enumerate()
        .partition(|(number, _)| number % 2 == 1);
    assert!(patient.iter().all(|(_, code)| **code == 0), "{codes:?}");
    assert!(
        hasty.iter().all(|(_, code)| [0, 75].contains(*code)),
        "{codes:?}"
    );
    // The stalled one's token, late.
    let first: u64 = bench.lines()[0].split(' ').nth(1).unwrap().parse().unwrap();
    let late = std::process::Command::new("curl")
        .args([
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ])
        .args([
            "-X",
            "PUT",
            "--data",
            "late",
            "-H",
            &format!("X-Fence-Token: {first}"),
        ])
        .arg(format!("http://{}/value", proxy.address()))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&late.stdout), "412");
    stalled.kill();
    // One at a time: each ends before the next begins.
    let lines = bench.lines();
    let turns: Vec<_> = lines[1..].chunks(2).collect();
    assert!(turns.len() >= 10, "{lines:?}");
    for turn in &turns {
        let token = turn[0].strip_prefix("begin ").expect("a beginning");
        assert_eq!(turn[1], format!("end {token}"), "{lines:?}");
    }
    let tokens: Vec<u64> = origin
        .applied()
        .into_iter()
        .map(|applied| applied.token.unwrap().parse().unwrap())
        .collect();
    assert!(tokens.is_sorted(), "{tokens:?}");
    assert_eq!(tokens.len(), 1 + 5 * turns.len());
}
