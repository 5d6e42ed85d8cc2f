//! A million scopes on disk.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped or measured is for whoever runs it"
)]

mod state_support;

use palisade::state::{Floors, Stored};
use palisade_lease::clock;
use state_support::{close, open, token};
use std::fs;

fn resident() -> u64 {
    let pages: u64 = fs::read_to_string("/proc/self/statm")
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    pages * 4096
}

#[test]
fn a_million_scopes_cost_a_start_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).stop_clean(Vec::new()).unwrap();
    let db = rusqlite::Connection::open(folder.path().join("state.db")).unwrap();
    db.execute_batch(
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
         INSERT INTO floors SELECT printf('tenants/%07d', i), i, 1, 1, 0 FROM n;
         PRAGMA wal_checkpoint(TRUNCATE);",
    )
    .unwrap();
    drop(db);

    let before = resident();
    let start = clock::boot();
    let state = open(folder.path());
    let opened = clock::boot();
    for n in (1..=1_000_000).step_by(9973) {
        let stored = state.load(&format!("tenants/{n:07}")).unwrap();
        assert_eq!(
            stored,
            Some(Stored {
                floor: token(n),
                opened: true,
                unsettled: false
            })
        );
    }
    let loaded = clock::boot();
    close(&state, "tenants/0500000", 2_000_000).unwrap();
    let grown = resident().saturating_sub(before);
    println!(
        "opened in {:?}, 101 scopes loaded in {:?}, one closed in {:?}, resident {} KiB more",
        opened.since(start),
        loaded.since(opened),
        clock::boot().since(loaded),
        grown >> 10
    );
    // 16 bytes a scope would be more than this.
    assert!(grown < 16 << 20, "{grown} bytes");
    assert_eq!(state.count().unwrap(), 1_000_000);

    // An unclean stop touches none of them.
    drop(state);
    let start = clock::boot();
    let state = open(folder.path());
    println!(
        "opened after an unclean stop in {:?}",
        clock::boot().since(start)
    );
    assert!(state.load("tenants/0000001").unwrap().unwrap().unsettled);
}
