//! The state on disk against the rule in plain words, over stops, crashes and new epochs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod state_support;

use palisade::state::{Floors, NewEpoch, State, Stored};
use palisade_fence::Token;
use proptest::prelude::*;
use state_support::{close, open, token, wait};
use std::{collections::BTreeMap, fs, sync::Arc};

const SCOPES: [&str; 3] = ["a", "b", "a/b"];

#[derive(Clone, Copy, Debug)]
enum Event {
    Close(usize, u64),
    /// With the floor that stands there, or with another one.
    Opened(usize, Option<u64>),
    Settled(usize),
    AllSettled,
    NewEpoch(u64),
    /// Ends without a word.
    Crash,
    /// What a crash leaves on disk at this moment, found by another process while the first one lives.
    Copy,
    /// Stops in order, with these scopes unsettled.
    Stop([bool; 3]),
}

fn event() -> impl Strategy<Value = Event> {
    let scope = 0..SCOPES.len();
    prop_oneof![
        6 => (scope.clone(), 1..40u64).prop_map(|(scope, floor)| Event::Close(scope, floor)),
        6 => (scope.clone(), proptest::option::weighted(0.3, 1..40u64)).prop_map(|(s, floor)| Event::Opened(s, floor)),
        1 => scope.prop_map(Event::Settled),
        1 => Just(Event::AllSettled),
        1 => (1..40u64).prop_map(Event::NewEpoch),
        2 => Just(Event::Crash),
        1 => Just(Event::Copy),
        2 => any::<[bool; 3]>().prop_map(Event::Stop),
    ]
}

/// The rule in plain words: no run numbers.
#[derive(Default)]
struct Plain {
    scopes: BTreeMap<&'static str, Stored>,
    /// What a scope has that nothing was ever said of.
    other: Option<Stored>,
}

impl Plain {
    fn of(&self, scope: &str) -> Option<Stored> {
        self.scopes.get(scope).copied().or(self.other)
    }

    fn close(&mut self, scope: &'static str, floor: Token) {
        let old = self.of(scope);
        if old.is_none_or(|old| floor > old.floor) {
            let unsettled = old.is_some_and(|old| old.unsettled);
            self.scopes.insert(
                scope,
                Stored {
                    floor,
                    opened: false,
                    unsettled,
                },
            );
        }
    }

    fn opened(&mut self, scope: &'static str, floor: Token) {
        if self.of(scope).is_some_and(|stored| stored.floor == floor) {
            let opened = Stored {
                floor,
                opened: true,
                unsettled: false,
            };
            self.scopes.insert(scope, opened);
        }
    }

    fn each(&mut self, mut change: impl FnMut(&str, &mut Stored)) {
        self.scopes
            .iter_mut()
            .for_each(|(scope, stored)| change(scope, stored));
        self.other.iter_mut().for_each(|stored| change("", stored));
    }

    /// A scope that nothing was ever said of has had no writes, so that only a new epoch makes it unsettled.
    fn crash(&mut self) {
        self.scopes
            .values_mut()
            .for_each(|stored| stored.unsettled = true);
    }

    fn new_epoch(&mut self, floor: Token) {
        let other = self.other.map_or(floor, |other| other.floor.max(floor));
        self.other = Some(Stored {
            floor: other,
            opened: false,
            unsettled: true,
        });
        self.scopes.values_mut().for_each(|stored| {
            stored.unsettled = true;
            if stored.floor < other {
                *stored = Stored {
                    floor: other,
                    opened: false,
                    unsettled: true,
                };
            }
        });
    }
}

fn check(state: &State, plain: &Plain) -> Result<(), TestCaseError> {
    for scope in SCOPES.into_iter().chain(["never named"]) {
        prop_assert_eq!(state.load(scope).unwrap(), plain.of(scope), "{}", scope);
    }
    let listed: Vec<_> = state
        .page(None, 10)
        .unwrap()
        .into_iter()
        .filter(|(scope, _)| &**scope != FLUSH)
        .collect();
    let known: Vec<_> = plain
        .scopes
        .iter()
        .map(|(&scope, &stored)| (Arc::from(scope), stored))
        .collect();
    prop_assert_eq!(listed, known);
    Ok(())
}

/// A scope that is only closed, to wait until all before it is on disk.
const FLUSH: &str = "flush";

fn flush(state: &State) {
    close(state, FLUSH, 1).unwrap();
}

fn run(events: &[Event]) -> Result<(), TestCaseError> {
    let folders = tempfile::tempdir().unwrap();
    let mut folder = folders.path().join("0");
    let mut state = open(&folder);
    let mut plain = Plain::default();
    for (at, &event) in events.iter().enumerate() {
        match event {
            Event::Close(scope, floor) => {
                close(&state, SCOPES[scope], floor).unwrap();
                plain.close(SCOPES[scope], token(floor));
            }
            Event::Opened(scope, floor) => {
                let standing = plain.of(SCOPES[scope]).map(|stored| stored.floor);
                let Some(floor) = floor.map(token).or(standing) else {
                    continue;
                };
                state.opened(&Arc::from(SCOPES[scope]), floor);
                flush(&state);
                plain.opened(SCOPES[scope], floor);
            }
            Event::Settled(scope) => {
                wait(|done| state.settled(&Arc::from(SCOPES[scope]), done)).unwrap();
                if let Some(stored) = plain.of(SCOPES[scope]) {
                    plain.scopes.insert(
                        SCOPES[scope],
                        Stored {
                            unsettled: false,
                            ..stored
                        },
                    );
                }
            }
            Event::AllSettled => {
                state.all_settled(state.run());
                flush(&state);
                plain.each(|_, stored| stored.unsettled = false);
            }
            Event::NewEpoch(floor) => {
                let epoch = NewEpoch {
                    floor: token(floor),
                    identity: None,
                };
                wait(|done| state.new_epoch(epoch, done)).unwrap();
                plain.new_epoch(token(floor));
            }
            Event::Crash => {
                drop(state);
                state = open(&folder);
                plain.crash();
                prop_assert!(state.started_unclean());
            }
            Event::Copy => {
                let copy = folders.path().join((at + 1).to_string());
                fs::create_dir(&copy).unwrap();
                for file in ["lock", "state.db", "state.db-wal"] {
                    fs::copy(folder.join(file), copy.join(file)).unwrap();
                }
                state = open(&copy);
                folder = copy;
                plain.crash();
            }
            Event::Stop(unsettled) => {
                let marked: Vec<&str> = SCOPES
                    .into_iter()
                    .zip(unsettled)
                    .filter(|m| m.1)
                    .map(|m| m.0)
                    .collect();
                state
                    .stop_clean(marked.iter().map(|&scope| scope.into()).collect())
                    .unwrap();
                drop(state);
                state = open(&folder);
                plain.each(|scope, stored| stored.unsettled |= marked.contains(&scope));
            }
        }
        check(&state, &plain)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200,
        failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_disk_keeps_the_rule(events in proptest::collection::vec(event(), 1..24)) {
        run(&events)?;
    }
}

/// A late "opened" of the old floor must not open the new one (the model's row "a late opened without its condition").
#[test]
fn a_late_opened_changes_nothing() {
    run(&[
        Event::Close(0, 33),
        Event::Close(0, 34),
        Event::Opened(0, Some(33)),
        Event::Crash,
    ])
    .unwrap();
}

/// Two crashes in a row, without the time to wait anything out, leave everything unsettled; so does a clean stop in
/// between.
#[test]
fn leftovers_outlive_further_stops() {
    run(&[
        Event::Close(0, 7),
        Event::Crash,
        Event::Stop([false; 3]),
        Event::Crash,
        Event::Stop([false; 3]),
    ])
    .unwrap();
}

/// What was waited out for the run before a new epoch says nothing of what is unsettled since.
#[test]
fn a_new_epoch_is_not_settled_by_an_earlier_wait() {
    let folder = tempfile::tempdir().unwrap();
    let state = open(folder.path());
    close(&state, "a", 7).unwrap();
    let before = state.run();
    wait(|done| {
        state.new_epoch(
            NewEpoch {
                floor: token(100),
                identity: None,
            },
            done,
        )
    })
    .unwrap();
    assert!(state.run() > before);
    state.all_settled(before);
    flush(&state);
    let closed = Some(Stored {
        floor: token(100),
        opened: false,
        unsettled: true,
    });
    assert_eq!(
        (state.load("a").unwrap(), state.load("other").unwrap()),
        (closed, closed)
    );
    state.all_settled(state.run());
    flush(&state);
    assert_eq!(
        state.load("a").unwrap(),
        closed.map(|stored| Stored {
            unsettled: false,
            ..stored
        })
    );
}
