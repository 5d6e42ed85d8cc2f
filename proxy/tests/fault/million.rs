//! A million scopes with a floor.

use crate::{
    client::put,
    stage::{applied, proxy},
};
use palisade_lease::clock::boot;
use palisade_loadtest::origin::Origin;
use std::time::Duration;

/// They are on disk, and come to memory one by one when they are asked for: a start takes no longer for them, and no more
/// memory.
#[test]
fn a_million_scopes_start_at_once() {
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .routes("[[route]]\npath = \"/{scope}\"\nscope = \"tenants/{scope}\"\n")
        .unwrap();
    proxy.start().unwrap();
    let before = proxy.peak_memory().unwrap();
    assert!(proxy.stop().success());
    let db = rusqlite::Connection::open(proxy.state().join("state.db")).unwrap();
    db.execute_batch(
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
         INSERT INTO floors SELECT printf('tenants/%07d', i), 100, 1, 1, 0 FROM n;
         PRAGMA wal_checkpoint(TRUNCATE);",
    )
    .unwrap();
    drop(db);

    let begun = boot();
    proxy.start().unwrap();
    let took = boot().since(begun);
    for n in (1..=1_000_000).step_by(99_991) {
        let target = format!("/{n:07}");
        put(&target, 99, "late")
            .send(&proxy)
            .is_refused(412, "stale-token");
        put(&target, 100, "same").send(&proxy).is(204);
        put(&target, 101, "new").send(&proxy).is(204);
    }
    let grown = proxy.peak_memory().unwrap().saturating_sub(before);
    println!("started in {took:?}, {} KiB more", grown >> 10);
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(grown < 200 << 20, "{grown} bytes");
    assert_eq!(applied(&origin).len(), 22);
}
