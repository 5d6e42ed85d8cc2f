//! A lease store that is another one, or that went back, is not believed (incident F12).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod authority_support;

use authority_support::{Asked, copy_folder, options, take};
use palisade::{
    authority::{EpochBegun, EpochError, Unreadable},
    state::{Floors, Stored},
};
use palisade_loadtest::servers::Etcd;
use std::{fs, time::Duration};

/// How etcd comes back as something else.
enum Fault {
    /// With the data of another cluster, which has come further.
    Another,
    /// Empty. The cluster id follows from the flags, so it is the same one.
    Empty,
    /// With an earlier copy of its own data.
    Earlier,
}

struct Store {
    etcd: Etcd,
    earlier: tempfile::TempDir,
}

impl Store {
    fn start() -> Self {
        let mut etcd = Etcd::start().unwrap();
        take(&etcd, "a");
        etcd.kill();
        let earlier = tempfile::tempdir().unwrap();
        copy_folder(&etcd.data(), &earlier.path().join("data"));
        etcd.start_again().unwrap();
        Self { etcd, earlier }
    }

    fn suffer(&mut self, fault: &Fault) {
        self.etcd.kill();
        match fault {
            Fault::Another => {
                let mut other = Etcd::start().unwrap();
                for _ in 0..20 {
                    take(&other, "a");
                }
                other.kill();
                copy_folder(&other.data(), &self.etcd.data());
            }
            Fault::Empty => fs::remove_dir_all(self.etcd.data()).unwrap(),
            Fault::Earlier => copy_folder(&self.earlier.path().join("data"), &self.etcd.data()),
        }
        self.etcd.start_again().unwrap();
    }
}

fn is_frozen(asked: &Asked, fault: &Fault) {
    let why = asked.wait_changed();
    let expected = match fault {
        Fault::Another => "cluster id",
        Fault::Empty | Fault::Earlier => "went back",
    };
    assert!(why.contains(expected), "{why}");
    assert_eq!(asked.read("a"), Err(Unreadable::Changed));
    assert_eq!(*asked.heard.trusted.lock().unwrap(), [false], "said once");
}

fn noticed(fault: &Fault, while_running: bool) {
    let mut store = Store::start();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(store.etcd.address());
    // Nobody asks here: the authority finds it by its own check.
    options.check_interval = Duration::from_millis(200);
    let asked = Asked::start(options.clone(), folder.path());
    let token = take(&store.etcd, "a");
    asked.heard.wait_for("a", token);
    assert_eq!(asked.grant("a"), Some(token));
    let asked = if while_running {
        store.suffer(fault);
        asked
    } else {
        asked.state.stop_clean(Vec::new()).unwrap();
        drop(asked);
        store.suffer(fault);
        Asked::start(options.clone(), folder.path())
    };
    is_frozen(&asked, fault);
    let reported = asked.heard.granted.lock().unwrap().len();
    // Grants of a store that is not believed are not reported.
    take(&store.etcd, "a");
    assert_eq!(asked.read("a"), Err(Unreadable::Changed));

    // It does not thaw by itself: not by a restart, and not when the store has come past what was seen.
    while take(&store.etcd, "a") <= token {}
    assert_eq!(asked.read("a"), Err(Unreadable::Changed));
    assert_eq!(asked.heard.granted.lock().unwrap().len(), reported);
    drop(asked);
    let asked = Asked::start(options, folder.path());
    assert_eq!(asked.read("a"), Err(Unreadable::Changed));
    assert_eq!(*asked.heard.trusted.lock().unwrap(), [false]);
}

#[test]
fn another_cluster_is_noticed() {
    noticed(&Fault::Another, true);
}

#[test]
fn another_cluster_is_noticed_at_the_start() {
    noticed(&Fault::Another, false);
}

#[test]
fn an_emptied_store_is_noticed() {
    noticed(&Fault::Empty, true);
}

#[test]
fn an_emptied_store_is_noticed_at_the_start() {
    noticed(&Fault::Empty, false);
}

#[test]
fn an_earlier_snapshot_is_noticed() {
    noticed(&Fault::Earlier, true);
}

#[test]
fn an_earlier_snapshot_is_noticed_at_the_start() {
    noticed(&Fault::Earlier, false);
}

/// A restart that loses nothing is no change.
#[test]
fn the_same_store_is_the_same() {
    let mut etcd = Etcd::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(etcd.address());
    options.check_interval = Duration::from_millis(50);
    let asked = Asked::start(options.clone(), folder.path());
    let mut token = 0;
    for _ in 0..3 {
        etcd.kill();
        etcd.start_again().unwrap();
        token = take(&etcd, "a");
        assert_eq!(asked.grant("a"), Some(token));
    }
    drop(asked);
    let asked = Asked::start(options, folder.path());
    assert_eq!(asked.grant("a"), Some(token));
    assert!(asked.heard.trusted.lock().unwrap().is_empty());
}

fn new_epoch(asked: &Asked, advance: u64) -> Result<EpochBegun, EpochError> {
    asked.runtime.block_on(asked.authority.new_epoch(advance))
}

/// What went back is believed again once it is past all that was seen, and not before.
#[test]
fn a_new_epoch_pushes_an_earlier_store() {
    let mut store = Store::start();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(store.etcd.address());
    options.check_interval = Duration::from_millis(50);
    let asked = Asked::start(options.clone(), folder.path());
    let mut old = 0;
    for _ in 0..100 {
        old = take(&store.etcd, "a");
    }
    asked.heard.wait_for("a", old);
    store.suffer(&Fault::Earlier);
    asked.wait_changed();
    let token = take(&store.etcd, "a");
    assert!(token < old);

    let error = new_epoch(&asked, 50).unwrap_err();
    let EpochError::Behind {
        needed, highest, ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert!(error.to_string().contains("--bump-revision"), "{error}");
    assert!(highest >= old);
    assert_eq!(asked.read("a"), Err(Unreadable::Changed), "nothing began");

    let begun = new_epoch(&asked, needed).unwrap();
    assert_eq!(begun.floor.get(), highest + 1);
    assert!(
        begun.revision > highest && begun.pushed >= needed,
        "{begun:?}"
    );
    assert_eq!(*asked.heard.epochs.lock().unwrap(), [begun.floor.get()]);
    assert_eq!(*asked.heard.trusted.lock().unwrap(), [false, true]);
    let closed = Some(Stored {
        floor: begun.floor,
        opened: false,
        unsettled: true,
    });
    assert_eq!(asked.state.load("a").unwrap(), closed);

    let token = take(&store.etcd, "a");
    assert!(token > begun.floor.get());
    assert_eq!(asked.grant("a"), Some(token));
    asked.heard.wait_for("a", token);
    drop(asked);
    let asked = Asked::start(options, folder.path());
    assert_eq!(asked.grant("a"), Some(token));
    assert!(asked.heard.trusted.lock().unwrap().is_empty());
}

#[test]
fn a_new_epoch_takes_another_store() {
    let mut store = Store::start();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(store.etcd.address());
    options.check_interval = Duration::from_millis(50);
    let asked = Asked::start(options, folder.path());
    let token = take(&store.etcd, "a");
    asked.heard.wait_for("a", token);
    let before = asked.state.identity().unwrap();
    store.suffer(&Fault::Another);
    asked.wait_changed();
    let begun = new_epoch(&asked, 0).unwrap();
    assert_eq!(
        (begun.floor.get(), begun.pushed),
        (before.revision + 1, 1),
        "it was ahead already"
    );
    let after = asked.state.identity().unwrap();
    assert!(after.cluster_id != before.cluster_id && after.revision >= begun.revision);
    let token = take(&store.etcd, "a");
    assert_eq!(asked.grant("a"), Some(token));
    asked.heard.wait_for("a", token);
}

#[test]
fn no_new_epoch_without_the_store() {
    let mut store = Store::start();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(options(store.etcd.address()), folder.path());
    asked.wait_up();
    store.etcd.kill();
    let error = new_epoch(&asked, 1000).unwrap_err();
    assert!(matches!(error, EpochError::Unavailable(_)), "{error:?}");
    assert!(asked.heard.epochs.lock().unwrap().is_empty());
}
