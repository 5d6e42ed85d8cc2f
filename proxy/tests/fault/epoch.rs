//! A lease store that is not the one it was, a state folder that is gone, and leases in a file: the real proxy.

use crate::{
    client::put,
    stage::{applied, proxy, take},
};
use palisade_lease::{LeaseOptions, LeaseUrl, record::Record};
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, wait_for},
};
use std::{path::Path, process::Command};

fn stage() -> (Etcd, Origin, Palisade) {
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    // A new epoch counts what came before as unsettled: short, since the last write waits for that.
    let mut proxy = proxy(&origin)
        .set("leases", etcd.url())
        .set("fence.settle", "200ms");
    proxy.start().unwrap();
    (etcd, origin, proxy)
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status()
        .unwrap();
    assert!(copied.success());
}

/// An etcd of a minute ago: same cluster, older revisions (etcd#16028).
fn go_back(etcd: &mut Etcd, old: &Path) {
    etcd.kill();
    std::fs::remove_dir_all(etcd.data()).unwrap();
    copy(old, &etcd.data());
    etcd.start_again().unwrap();
}

/// etcd is restored from an older copy without a bump of its revisions. Its next grants have numbers that were granted
/// before: nothing passes, a restart changes nothing, and after `new-epoch` the new holder writes while every older token
/// stays refused.
#[test]
fn f12_a_restored_etcd_freezes_until_a_new_epoch() {
    let (mut etcd, origin, mut proxy) = stage();
    let first = take(&etcd, "default");
    put("/x", first, "first").send(&proxy).is(204);
    etcd.kill();
    let old = etcd.folder().join("old");
    copy(&etcd.data(), &old);
    etcd.start_again().unwrap();
    for _ in 0..20 {
        etcd.ctl(&["put", "elsewhere", "x"]);
    }
    let second = take(&etcd, "default");
    put("/x", second, "second").send(&proxy).is(204);
    go_back(&mut etcd, &old);
    // It is noticed without a request.
    wait_for("the freeze", || {
        proxy.has_logged("not trusted").then_some(())
    });
    put("/x", second, "frozen")
        .send(&proxy)
        .is_refused(503, "authority-changed");
    assert!(proxy.admin_get("/readyz").contains("not trusted"));
    proxy.kill();
    proxy.start().unwrap();
    put("/x", second, "frozen")
        .send(&proxy)
        .is_refused(503, "authority-changed");
    // Too far behind to go on: it says by how much.
    let refused = proxy.ask(&["new-epoch", "--yes"]).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("--bump-revision"),
        "{said}"
    );
    let begun = proxy
        .ask(&["new-epoch", "--yes", "--advance", "1000"])
        .unwrap();
    assert!(
        begun.status.success(),
        "{}",
        String::from_utf8_lossy(&begun.stderr)
    );
    put("/x", second, "from before")
        .send(&proxy)
        .is_refused(412, "stale-token");
    let third = take(&etcd, "default");
    assert!(third > second, "{third} is granted after {second}");
    // What was sent before the epoch counts as unsettled until it has waited.
    put("/x", third, "third").send(&proxy).is(204);
    put("/x", second, "from before")
        .send(&proxy)
        .is_refused(412, "stale-token");
    assert_eq!(applied(&origin), [first, second, third]);
}

/// The floor of an epoch is a number that nobody holds: who sends just that one is nobody's holder.
#[test]
fn f12_the_epochs_own_number_lets_nobody_in() {
    let (etcd, origin, proxy) = stage();
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);
    let begun = proxy
        .ask(&["new-epoch", "--yes", "--advance", "10"])
        .unwrap();
    let said = String::from_utf8_lossy(&begun.stdout).into_owned();
    let floor = said
        .split_whitespace()
        .find_map(|word| word.parse::<u64>().ok())
        .unwrap();
    put("/x", floor, "forged")
        .send(&proxy)
        .is_refused(412, "not-holder");
    put("/other", holder, "old")
        .send(&proxy)
        .is_refused(412, "stale-token");
    assert_eq!(applied(&origin), [holder]);
}

/// Without a terminal and without --yes nothing happens.
#[test]
fn a_new_epoch_asks_first() {
    let (etcd, _origin, proxy) = stage();
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);
    let asked = proxy.ask(&["new-epoch"]).unwrap();
    assert!(!asked.status.success());
    put("/x", holder, "still").send(&proxy).is(204);
}

/// The state folder is gone, and with it every floor: etcd knows that there was one (a member key with its id), so this is
/// no "floor 0".
#[test]
fn f11_a_lost_state_folder_is_noticed() {
    let (etcd, origin, mut proxy) = stage();
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);
    assert!(proxy.stop().success());
    std::fs::remove_dir_all(proxy.state()).unwrap();
    proxy.start().unwrap();
    wait_for("the freeze", || {
        proxy.has_logged("state folder").then_some(())
    });
    put("/x", holder, "after")
        .send(&proxy)
        .is_refused(503, "authority-changed");
    assert_eq!(applied(&origin), [holder]);
}

/// `palisade scopes` says who holds the lease, in text and as JSON.
fn shows_holder(proxy: &Palisade, record: &Record, token: u64) {
    let json = proxy.ask(&["scopes", "--json"]).unwrap().stdout;
    let scopes: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(scopes[0]["granted"], token, "{scopes}");
    assert_eq!(scopes[0]["holder"], *record.holder, "{scopes}");
    assert_eq!(scopes[0]["host"], *record.host, "{scopes}");
    let text = proxy.ask(&["scopes"]).unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("HOLDER") && text.contains(&record.holder) && text.contains(&record.host),
        "{text}"
    );
    assert!(proxy.admin_get("/").contains(&record.holder));
}

/// The same with etcd; and a scope whose lease nobody holds has no holder.
#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_scope_is_shown() {
    let (etcd, _origin, proxy) = stage();
    let store = palisade_lease::open(&etcd.url().parse::<LeaseUrl>().unwrap()).unwrap();
    let options = LeaseOptions {
        holder: Some("the nightly <job>".to_owned()),
        ..LeaseOptions::default()
    };
    let lease = store.acquire("default", options).await.unwrap();
    put("/x", lease.token().get(), "mine").send(&proxy).is(204);
    let json = proxy.ask(&["scopes", "--json"]).unwrap().stdout;
    let scopes: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(scopes[0]["holder"], "the nightly <job>", "{scopes}");
    assert_eq!(scopes[0]["host"], *lease.record().host, "{scopes}");
    let page = proxy.admin_get("/");
    assert!(
        page.contains("the nightly &lt;job&gt;") && !page.contains("<job>"),
        "{page}"
    );
    lease.release().await;
    wait_for("the holder to have gone", || {
        let scopes: serde_json::Value = serde_json::from_str(&proxy.admin_get("/scopes")).unwrap();
        scopes[0]["holder"].is_null().then_some(())
    });
}

/// Leases in a file of this host: the proxy verifies against it, and no server is needed.
#[tokio::test(flavor = "multi_thread")]
async fn leases_in_a_file_are_verified() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("leases.db");
    let url = format!("sqlite:{}", file.display());
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).set("leases", &url);
    proxy.start().unwrap();
    put("/x", 1, "nobody")
        .send(&proxy)
        .is_refused(503, "authority-unavailable");
    let store = palisade_lease::open(&url.parse::<LeaseUrl>().unwrap()).unwrap();
    let first = store
        .acquire("default", LeaseOptions::default())
        .await
        .unwrap();
    put("/x", first.token().get(), "first").send(&proxy).is(204);
    let old = first.token().get();
    first.release().await;
    let second = store
        .acquire("default", LeaseOptions::default())
        .await
        .unwrap();
    put("/x", second.token().get(), "second")
        .send(&proxy)
        .is(204);
    put("/x", old, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    shows_holder(&proxy, second.record(), second.token().get());
    put("/x", second.token().get() + 7, "forged")
        .send(&proxy)
        .is_refused(412, "not-holder");
    assert_eq!(applied(&origin), [old, second.token().get()]);
}

/// A lease file that was put back from a copy gives numbers out a second time. It is noticed with the first grant that is looked at,
/// and a new epoch moves the file past all that was seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_file_put_back_freezes_until_a_new_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("leases.db");
    let url: LeaseUrl = format!("sqlite:{}", file.display()).parse().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("leases", format!("sqlite:{}", file.display()))
        .set("fence.settle", "200ms");
    proxy.start().unwrap();
    let grant = async || {
        let store = palisade_lease::open(&url).unwrap();
        let lease = store
            .acquire("default", LeaseOptions::default())
            .await
            .unwrap();
        let token = lease.token().get();
        lease.release().await;
        drop(store);
        token
    };
    let hold = async || {
        let store = palisade_lease::open(&url).unwrap();
        store
            .acquire("default", LeaseOptions::default())
            .await
            .unwrap()
    };
    let first = hold().await;
    put("/x", first.token().get(), "first").send(&proxy).is(204);
    let old = first.token().get();
    first.release().await;
    for suffix in ["", "-wal"] {
        let from = folder.path().join(format!("leases.db{suffix}"));
        if from.exists() {
            copy(&from, &folder.path().join(format!("copy.db{suffix}")));
        }
    }
    for _ in 0..20 {
        grant().await;
    }
    let second = hold().await;
    put("/x", second.token().get(), "second")
        .send(&proxy)
        .is(204);
    let seen = second.token().get();
    second.release().await;

    for suffix in ["", "-wal", "-shm"] {
        let to = folder.path().join(format!("leases.db{suffix}"));
        let _ = std::fs::remove_file(&to);
        let from = folder.path().join(format!("copy.db{suffix}"));
        if from.exists() {
            copy(&from, &to);
        }
    }
    let low = hold().await;
    assert!(low.token().get() < seen, "it did not go back");
    put("/x", low.token().get(), "low")
        .send(&proxy)
        .is_refused(412, "stale-token");
    // A number above the floor is looked up, and that shows it.
    put("/x", seen + 1, "forged")
        .send(&proxy)
        .is_refused(503, "authority-changed");
    put("/x", seen, "frozen")
        .send(&proxy)
        .is_refused(503, "authority-changed");
    low.release().await;

    let begun = proxy.ask(&["new-epoch", "--yes"]).unwrap();
    assert!(
        begun.status.success(),
        "{}",
        String::from_utf8_lossy(&begun.stderr)
    );
    let third = hold().await;
    assert!(third.token().get() > seen);
    put("/x", third.token().get(), "third").send(&proxy).is(204);
    put("/x", seen, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    assert_eq!(applied(&origin), [old, seen, third.token().get()]);
}
