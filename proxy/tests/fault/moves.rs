//! A scope moves from one proxy to another, as the book's page "Operations" says.

use crate::{
    client::put,
    stage::{applied, hold, proxy, take},
};
use nix::sys::signal::Signal;
use palisade_loadtest::{
    origin::{Origin, Sign},
    proxy::Palisade,
    servers::{Etcd, wait_for},
};
use std::{fs, path::Path};

const HERE: &str = "[[route]]\npath = \"/a/{*rest}\"\nscope = \"a\"\n";
const DENIED: &str = "[[route]]\npath = \"/a/{*rest}\"\ndeny = true\n";
const ELSEWHERE: &str = "[[route]]\npath = \"/b/{*rest}\"\nscope = \"b\"\n";

fn start(name: &str, routes: &Path, origin: &Origin, etcd: &Etcd) -> Palisade {
    let mut proxy = proxy(origin)
        .set("name", name)
        .set("leases", etcd.url())
        .set("routes_file", routes.display());
    proxy.start().unwrap();
    proxy
}

fn wait_reloaded(proxy: &Palisade) {
    wait_for("the reload", || {
        proxy
            .has_logged("the configuration was reloaded")
            .then_some(())
    });
}

/// The old proxy lets its scope go only when everything of it is settled, and takes nothing after that. The old grant's
/// token passes at neither.
#[test]
fn a_scope_moves_to_another_proxy() {
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (
        folder.path().join("one.toml"),
        folder.path().join("two.toml"),
    );
    fs::write(&one, HERE).unwrap();
    fs::write(&two, ELSEWHERE).unwrap();
    let old_proxy = start("one", &one, &origin, &etcd);
    let new_proxy = start("two", &two, &origin, &etcd);

    let old = take(&etcd, "a");
    let sign = Sign::new();
    origin.once("/a/held", hold(&sign));
    let held = put("/a/held", old, "x").begin(&old_proxy);
    sign.wait_reached();

    fs::write(&one, DENIED).unwrap();
    old_proxy.signal(Signal::SIGHUP);
    // Either it comes before the reload begins, or it waits for it.
    let waits = put("/a/late", old, "late").begin(&old_proxy);
    assert!(!old_proxy.has_logged("the configuration was reloaded"));
    sign.give();
    held.answer().is(204);
    wait_reloaded(&old_proxy);
    let late = waits.answer();
    assert!(matches!(late.status, 204 | 403), "{late:?}");
    put("/a/x", old, "x")
        .send(&old_proxy)
        .is_refused(403, "no-scope");

    fs::write(&two, format!("{HERE}{ELSEWHERE}")).unwrap();
    new_proxy.signal(Signal::SIGHUP);
    wait_reloaded(&new_proxy);
    let new = take(&etcd, "a");
    put("/a/x", new, "new").send(&new_proxy).is(204);
    put("/a/x", old, "old")
        .send(&new_proxy)
        .is_refused(412, "stale-token");
    put("/a/x", old, "old")
        .send(&old_proxy)
        .is_refused(403, "no-scope");
    let applied = applied(&origin);
    assert!(applied.is_sorted(), "{applied:?}");
    assert_eq!(applied.last(), Some(&new));
}
