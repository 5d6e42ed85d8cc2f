//! etcd itself is there, and does not do what is asked of it.

use crate::{
    client::put,
    nobody_new_gets_in,
    stage::{applied, proxy, take},
    the_next_holder_gets_in, the_open_floor_goes_on,
};
use palisade_loadtest::{origin::Origin, servers::Etcd};
use std::fs;

const ROOT: [&str; 2] = ["--user", "root:root"];

fn as_root(etcd: &Etcd, arguments: &[&str]) -> String {
    etcd.ctl(&[&ROOT, arguments].concat())
}

fn take_as_root(etcd: &Etcd) -> u64 {
    let granted = as_root(etcd, &["lease", "grant", "600"]);
    let lease = granted.split(' ').nth(1).unwrap();
    let key = "/palisade/leases/default";
    let put = ["put", key, "{}", "--lease", lease, "-w", "json"];
    let put: serde_json::Value = serde_json::from_str(&as_root(etcd, &put)).unwrap();
    put["header"]["revision"].as_u64().unwrap()
}

/// The password is changed in etcd and not in the proxy's file; then in the file, too.
#[test]
fn auth_is_refused() {
    let etcd = Etcd::start().unwrap();
    etcd.ctl(&["user", "add", "root:root"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["role", "add", "proxy"]);
    let below = ["--prefix=true", "readwrite", "/palisade/"];
    etcd.ctl(&[&["role", "grant-permission", "proxy"], &below[..]].concat());
    etcd.ctl(&["user", "add", "proxy:first"]);
    etcd.ctl(&["user", "grant-role", "proxy", "proxy"]);
    etcd.ctl(&["auth", "enable"]);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "first\n").unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("leases", etcd.url())
        .set("etcd.user", "proxy")
        .set("etcd.password_file", file.display());
    proxy.start().unwrap();
    let old = take_as_root(&etcd);
    put("/x", old, "old").send(&proxy).is(204);
    let mut holder = take_as_root(&etcd);
    put("/x", holder, "true").send(&proxy).is(204);

    // A change of password ends what was given out under the old one. etcdctl reads the new one from its input.
    let change = |password: &str| {
        as_root(&etcd, &["user", "delete", "proxy"]);
        as_root(&etcd, &["user", "add", &format!("proxy:{password}")]);
        as_root(&etcd, &["user", "grant-role", "proxy", "proxy"]);
    };
    change("second");
    the_open_floor_goes_on(&proxy, holder, old);
    nobody_new_gets_in(&proxy, holder + 100);
    fs::write(&file, "second\n").unwrap();
    let next = take_as_root(&etcd);
    the_next_holder_gets_in(&proxy, next);
    the_open_floor_goes_on(&proxy, next, holder);
    holder = next;

    assert!(proxy.stop().success());
    change("third");
    proxy.start().unwrap();
    the_open_floor_goes_on(&proxy, holder, old);
    nobody_new_gets_in(&proxy, holder + 100);
    fs::write(&file, "third\n").unwrap();
    the_next_holder_gets_in(&proxy, take_as_root(&etcd));
    assert!(applied(&origin).is_sorted());
}

/// The quota is used up: etcd answers reads and refuses every put, so there are no new grants, and those from before are
/// verified as ever.
#[test]
fn etcd_has_no_space() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes", "1000000"]).unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).set("leases", etcd.url());
    proxy.start().unwrap();
    let old = take(&etcd, "default");
    put("/x", old, "old").send(&proxy).is(204);
    let holder = take(&etcd, "default");
    put("/x", holder, "true").send(&proxy).is(204);

    let much = "x".repeat(100_000);
    while etcd.try_ctl(&["put", "filler", &much]).is_ok() {}
    assert!(etcd.ctl(&["alarm", "list"]).contains("NOSPACE"));
    the_open_floor_goes_on(&proxy, holder, old);
    put("/x", holder + 100, "forged")
        .send(&proxy)
        .is_refused(412, "not-holder");
    assert!(proxy.admin_get("/readyz").contains("\"ready\":true"));

    // Its member key is there from before: a start needs no put either.
    assert!(proxy.stop().success());
    proxy.start().unwrap();
    the_open_floor_goes_on(&proxy, holder, old);
    put("/x", holder + 100, "forged")
        .send(&proxy)
        .is_refused(412, "not-holder");

    let revision = etcd.ctl(&["get", "filler", "-w", "json"]);
    let revision: serde_json::Value = serde_json::from_str(&revision).unwrap();
    let revision = revision["header"]["revision"].to_string();
    etcd.ctl(&["compact", &revision]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    the_next_holder_gets_in(&proxy, take(&etcd, "default"));
    assert!(applied(&origin).is_sorted());
}
