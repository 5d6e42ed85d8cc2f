//! A single proxy's member key: a lost state folder, an old copy of one, a second proxy of the same name (incident F11).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod authority_support;

use authority_support::{Asked, copy_folder, options, take};
use palisade::authority::{EtcdOptions, Registration, Unreadable};
use palisade_loadtest::servers::{Etcd, etcd_program, wait_for};
use std::{process::Command, time::Duration};

fn named(etcd: &Etcd, name: &str) -> EtcdOptions {
    let mut options = options(etcd.address());
    options.check_interval = Duration::from_millis(100);
    options.registration = Some(Registration {
        name: name.to_owned(),
        address: "127.0.0.1:8080".to_owned(),
    });
    options
}

fn members(etcd: &Etcd, name: &str) -> Vec<String> {
    let keys = etcd.ctl(&[
        "get",
        "--prefix",
        "--keys-only",
        &format!("/palisade/members/{name}/"),
    ]);
    keys.lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_same_folder_comes_back() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let asked = Asked::start(named(&etcd, "front"), folder.path());
        let token = take(&etcd, "a");
        assert_eq!(asked.grant("a"), Some(token));
        assert_eq!(
            members(&etcd, "front"),
            [format!("/palisade/members/front/{}", asked.state.id())]
        );
    }
}

#[test]
fn a_lost_folder_is_missed() {
    let etcd = Etcd::start().unwrap();
    let (lost, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = Asked::start(named(&etcd, "front"), lost.path());
    before.wait_up();
    let id = before.state.id().to_string();
    drop(before);

    let asked = Asked::start(named(&etcd, "front"), new.path());
    let why = asked.wait_changed();
    assert!(why.contains(&id) && why.contains("lost"), "{why}");
    take(&etcd, "a");
    assert_eq!(asked.read("a"), Err(Unreadable::Changed));
    // On an operator's word it takes the place.
    asked
        .runtime
        .block_on(asked.authority.new_epoch(0))
        .unwrap();
    let token = take(&etcd, "a");
    assert_eq!(asked.grant("a"), Some(token));
    assert_eq!(
        members(&etcd, "front"),
        [format!("/palisade/members/front/{}", asked.state.id())]
    );
}

#[test]
fn a_second_one_of_the_same_name_is_found() {
    let etcd = Etcd::start().unwrap();
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let first = Asked::start(named(&etcd, "front"), folders[0].path());
    first.wait_up();
    let second = Asked::start(named(&etcd, "front"), folders[1].path());
    let why = second.wait_changed();
    assert!(why.contains("second proxy"), "{why}");
    let other = Asked::start(named(&etcd, "another"), folders[2].path());
    let token = take(&etcd, "a");
    assert_eq!(
        (first.grant("a"), other.grant("a")),
        (Some(token), Some(token))
    );

    // Told that the first one was gone, though it lives: now that one stops.
    second
        .runtime
        .block_on(second.authority.new_epoch(0))
        .unwrap();
    let token = take(&etcd, "a");
    assert_eq!(second.grant("a"), Some(token));
    first.wait_changed();
    assert_eq!(first.read("a"), Err(Unreadable::Changed));
}

#[test]
fn an_older_copy_of_the_folder_is_found() {
    let etcd = Etcd::start().unwrap();
    let folders = tempfile::tempdir().unwrap();
    let (folder, copy) = (folders.path().join("state"), folders.path().join("copy"));
    let run = || {
        let asked = Asked::start(named(&etcd, "front"), &folder);
        asked.wait_up();
        asked.state.stop_clean(Vec::new()).unwrap();
    };
    run();
    copy_folder(&folder, &copy);
    run();
    copy_folder(&copy, &folder);
    let asked = Asked::start(named(&etcd, "front"), &folder);
    let why = asked.wait_changed();
    assert!(why.contains("older copy"), "{why}");
}

/// A store that forgot the key, but is ahead of all that was seen (restored with a bumped revision), is no reason to stop.
#[test]
fn a_forgotten_key_is_put_again() {
    let etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(named(&etcd, "front"), folder.path());
    asked.wait_up();
    let key = members(&etcd, "front").remove(0);
    etcd.ctl(&["del", &key]);
    wait_for("the key", || {
        members(&etcd, "front").contains(&key).then_some(())
    });
    let token = take(&etcd, "a");
    assert_eq!(asked.grant("a"), Some(token));
}

/// etcd without room answers reads, so holders that have their lease pass; a restart of the proxy changes nothing in that.
#[test]
fn a_full_store_still_verifies() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes", "400000"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(named(&etcd, "front"), folder.path());
    let token = take(&etcd, "a");
    assert_eq!(asked.grant("a"), Some(token));
    drop(asked);
    let big = "x".repeat(50_000);
    wait_for("the alarm", || {
        let full = Command::new(etcd_program("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args([
                "--endpoints",
                &etcd.address().to_string(),
                "put",
                "filler",
                &big,
            ])
            .output();
        let said = String::from_utf8(full.unwrap().stderr).unwrap();
        said.contains("space exceeded").then_some(())
    });
    let asked = Asked::start(named(&etcd, "front"), folder.path());
    assert_eq!(
        asked.read("a").unwrap().grant.map(|grant| grant.get()),
        Some(token)
    );
}
