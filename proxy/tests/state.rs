//! The state folder: what is acknowledged survives, and what can't be believed is refused.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod state_support;

use palisade::state::{Floors, Identity, NewEpoch, OpenError, Options, State, Stored};
use palisade_loadtest::servers::{Process, wait_for};
use state_support::{child, child_folder, close, open, token, wait};
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Stdio,
    sync::{Arc, mpsc},
};

fn refused(folder: &Path) -> OpenError {
    State::open(folder, Options::default()).expect_err("it was opened")
}

#[test]
fn a_folder_is_made_for_this_user_alone() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("new/state");
    let state = open(&folder);
    for path in [
        folder.clone(),
        folder.join("state.db"),
        folder.join("state.db-wal"),
        folder.join("lock"),
    ] {
        assert_eq!(
            path.metadata().unwrap().permissions().mode() & 0o077,
            0,
            "{}",
            path.display()
        );
    }
    assert!(!state.started_unclean());
    assert_eq!(state.id().len(), 32);
    let id = state.id().clone();
    state.stop_clean(Vec::new()).unwrap();
    assert_eq!(*open(&folder).id(), id);
}

#[test]
fn a_second_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path());
    let error = refused(folder.path());
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    assert!(
        error.to_string().contains(folder.path().to_str().unwrap()),
        "{error}"
    );
    // By another name it is the same folder.
    let link = tempfile::tempdir().unwrap();
    symlink(folder.path(), link.path().join("link")).unwrap();
    assert!(matches!(
        refused(&link.path().join("link")),
        OpenError::InUse { .. }
    ));
    drop(first);
    open(folder.path());
}

/// In a child: closes floors one after another, several at a time, and says of each when it is durable.
#[test]
fn child_closes_floors() {
    let Some(folder) = child_folder() else { return };
    let state = State::open(&folder, Options::default()).unwrap();
    say("open");
    for floor in 1.. {
        let (send, durable) = mpsc::channel();
        for scope in ["a", "b", "c"] {
            let floor = floor
                + state
                    .load(scope)
                    .unwrap()
                    .map_or(0, |stored| stored.floor.get());
            let send = send.clone();
            state.close(
                &Arc::from(scope),
                token(floor),
                Box::new(move |result| {
                    result.unwrap();
                    say(&format!("{scope} {floor}"));
                    send.send(()).unwrap();
                }),
            );
        }
        durable.iter().take(3).for_each(drop);
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "\n> {line}")
        .and_then(|()| out.flush())
        .unwrap();
}

fn said(line: &str) -> Option<&str> {
    line.strip_prefix("> ")
}

#[test]
fn nothing_acknowledged_is_lost_by_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut durable: HashMap<String, u64> = HashMap::new();
    for round in 0..8 {
        let mut command = child("child_closes_floors", folder.path());
        let mut process = Process::start("child", command.stdout(Stdio::piped())).unwrap();
        let mut lines = BufReader::new(process.child().stdout.take().unwrap()).lines();
        let heard = lines
            .by_ref()
            .map(Result::unwrap)
            .filter(|line| said(line).is_some())
            .take(10 + 17 * round);
        let mut heard: Vec<String> = heard.collect();
        if round == 1 {
            assert!(
                matches!(refused(folder.path()), OpenError::InUse { .. }),
                "beside a living process"
            );
        }
        process.kill();
        // What it had said before the kill, but we had not read.
        heard.extend(lines.map_while(Result::ok));
        for (scope, floor) in heard.iter().filter_map(|line| said(line)?.split_once(' ')) {
            durable.insert(scope.to_owned(), floor.parse().unwrap());
        }
        assert!(durable.len() == 3, "{durable:?}");
        let state = open(folder.path());
        assert!(state.started_unclean());
        for (scope, &floor) in &durable {
            let stored = state.load(scope).unwrap().unwrap();
            assert!(
                stored.floor.get() >= floor && stored.unsettled && !stored.opened,
                "{scope} {floor}: {stored:?}"
            );
        }
    }
}

#[test]
fn what_is_damaged_is_never_an_empty_start() {
    let folder = tempfile::tempdir().unwrap();
    let state = open(folder.path());
    for floor in 1..2000 {
        state.close(
            &format!("scope {floor}").into(),
            token(floor),
            Box::new(|result| result.unwrap()),
        );
    }
    state.stop_clean(Vec::new()).unwrap();
    drop(state);
    let file = folder.path().join("state.db");
    let whole = fs::read(&file).unwrap();

    let middle = whole.len() / 2;
    let mut torn = whole.clone();
    torn[middle..middle + 8192].fill(0xa5);
    let other = {
        let path = folder.path().join("other.db");
        rusqlite::Connection::open(&path)
            .unwrap()
            .execute_batch("CREATE TABLE t (x)")
            .unwrap();
        fs::read(&path).unwrap()
    };
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("zeros", vec![0; whole.len()]),
        (
            "text",
            b"a text that was written over it, longer than a header of a hundred bytes. ".repeat(8),
        ),
        ("cut", whole[..middle].to_vec()),
        ("torn", torn),
        ("another program's", other),
    ] {
        fs::write(&file, &bytes).unwrap();
        let error = refused(folder.path());
        assert!(
            matches!(error, OpenError::Damaged { .. }),
            "{what}: {error:?}"
        );
        assert!(error.to_string().contains("new-epoch"), "{what}: {error}");
        assert_eq!(
            fs::read(&file).unwrap().len(),
            bytes.len(),
            "{what}: it was changed"
        );
    }
    for leftover in ["state.db-wal", "state.db-shm"] {
        let _ = fs::remove_file(folder.path().join(leftover));
    }
    fs::write(&file, &whole).unwrap();
    let floor = open(folder.path())
        .load("scope 1999")
        .unwrap()
        .unwrap()
        .floor;
    assert_eq!(floor, token(1999));
}

#[test]
fn a_deleted_database_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let id = open(folder.path()).id().clone();
    for file in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = fs::remove_file(folder.path().join(file));
    }
    let error = refused(folder.path());
    assert!(
        matches!(&error, OpenError::Missing { id: missing, .. } if **missing == *id),
        "{error:?}"
    );
}

#[test]
fn a_newer_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).stop_clean(Vec::new()).unwrap();
    let db = rusqlite::Connection::open(folder.path().join("state.db")).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    drop(db);
    let error = refused(folder.path());
    assert!(
        matches!(error, OpenError::Newer { found: 99, .. }),
        "{error:?}"
    );
}

/// Closes that come while a commit is under way share the next one.
#[test]
fn many_closes_share_a_commit() {
    let folder = tempfile::tempdir().unwrap();
    let state = Arc::new(open(folder.path()));
    let before = state.commits();
    let (send, durable) = mpsc::channel();
    let (held, hold) = mpsc::channel::<()>();
    // The first one's caller keeps the writer busy until all others are in the queue.
    state.close(
        &"first".into(),
        token(1),
        Box::new(move |result| {
            result.unwrap();
            hold.recv().unwrap();
        }),
    );
    for n in 0..1000 {
        let send = send.clone();
        state.close(
            &format!("scope {n}").into(),
            token(7),
            Box::new(move |result| send.send(result).unwrap()),
        );
    }
    held.send(()).unwrap();
    durable.iter().take(1000).for_each(|result| result.unwrap());
    assert!(
        state.commits() - before <= 2,
        "{} commits",
        state.commits() - before
    );
    assert_eq!(state.count().unwrap(), 1001);
}

#[test]
fn opened_needs_no_commit_of_its_own_when_another_comes() {
    let folder = tempfile::tempdir().unwrap();
    let state = open(folder.path());
    close(&state, "a", 5).unwrap();
    let before = state.commits();
    state.opened(&"a".into(), token(5));
    close(&state, "b", 6).unwrap();
    assert_eq!(state.commits() - before, 1);
    assert!(state.load("a").unwrap().unwrap().opened);
    // And without another one it does not wait for ever.
    state.opened(&"b".into(), token(6));
    wait_for("the record", || {
        state.load("b").unwrap().unwrap().opened.then_some(())
    });
}

#[test]
fn a_panicking_caller_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let state = open(folder.path());
    state.close(&"a".into(), token(1), Box::new(|_| panic!("on purpose")));
    close(&state, "b", 1).unwrap();
    assert!(state.load("a").unwrap().is_some());
}

#[test]
fn after_the_stop_everything_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = open(folder.path());
    state.stop_clean(Vec::new()).unwrap();
    assert!(close(&state, "a", 1).is_err());
    assert!(state.stop_clean(Vec::new()).is_err());
    // The lock is free, though the value lives.
    assert!(open(folder.path()).load("a").unwrap().is_none());
}

#[test]
fn the_lease_store_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let state = open(folder.path());
    assert_eq!(state.identity(), None);
    // Floors of a time without a lease store are no revisions.
    close(&state, "a", 1 << 40).unwrap();
    let cluster_id = 0xdead_beef_dead_beef;
    let at = |revision| Identity {
        cluster_id,
        revision,
    };
    state.set_identity(at(10));
    close(&state, "b", 20).unwrap();
    drop(state);

    let state = open(folder.path());
    assert_eq!(
        state.identity(),
        Some(at(20)),
        "a floor is a revision that was seen"
    );
    state.set_identity(at(15));
    state.set_identity(Identity {
        cluster_id: 1,
        revision: 99,
    });
    assert_eq!(state.identity(), Some(at(20)));
    state.set_identity(at(30));
    state.set_identity(at(31));
    state.freeze("gone back");
    drop(state);

    let state = open(folder.path());
    assert_eq!(state.identity(), Some(at(31)));
    assert_eq!(state.frozen().as_deref(), Some("gone back"));
    let identity = Identity {
        cluster_id: 2,
        revision: 5,
    };
    wait(|done| {
        state.new_epoch(
            NewEpoch {
                floor: token(32),
                identity: Some(identity),
            },
            done,
        )
    })
    .unwrap();
    assert_eq!((state.identity(), state.frozen()), (Some(identity), None));
    drop(state);

    let state = open(folder.path());
    assert_eq!((state.identity(), state.frozen()), (Some(identity), None));
    let closed = Stored {
        floor: token(32),
        opened: false,
        unsettled: true,
    };
    assert_eq!(
        (state.load("b").unwrap(), state.load("new").unwrap()),
        (Some(closed), Some(closed))
    );
    assert_eq!(state.load("a").unwrap().unwrap().floor, token(1 << 40));
}

#[test]
fn scopes_come_in_pages() {
    let folder = tempfile::tempdir().unwrap();
    let state = open(folder.path());
    let mut names: Vec<String> = (0..25)
        .map(|n| format!("scope/{n}"))
        .chain(["ß".into(), "Z".into()])
        .collect();
    for name in &names {
        close(&state, name, 3).unwrap();
    }
    names.sort_unstable();
    let mut seen: Vec<String> = Vec::new();
    loop {
        let page = state.page(seen.last().map(String::as_str), 10).unwrap();
        assert!(page.len() <= 10);
        let Some(_) = page.last() else { break };
        seen.extend(page.iter().map(|(scope, _)| scope.to_string()));
    }
    assert_eq!(seen, names);
}
