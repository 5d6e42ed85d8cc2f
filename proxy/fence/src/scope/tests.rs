//! The scope against a second version that is as dumb as can be: it keeps everything that ever happened and looks
//! through all of it for each answer.

mod verifying;

extern crate std;
use super::*;
use proptest::prelude::*;
use std::{collections::BTreeSet, vec, vec::Vec};

const SETTLE: u64 = 10;

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn at(time: u64) -> Time {
    Time::from_nanos(time)
}

/// Carries out everything at once, as a shell with an instant disk would; gives the reads that are asked for.
fn carry_out(scope: &mut Scope) -> Vec<ReadId> {
    let mut reads = vec![];
    while let Some(action) = scope.poll_action() {
        match action {
            Action::Read(id) => reads.push(id),
            Action::Close(floor) => scope.durable(floor),
            Action::RecordOpened(_) => {}
        }
    }
    reads
}

fn admit(scope: &mut Scope, number: u64, now: u64) -> Decision {
    let mut arrival = scope.arrive(token(number));
    scope.decide(&mut arrival, at(now));
    carry_out(scope);
    scope.decide(&mut arrival, at(now))
}

#[test]
fn a_newer_token_waits_for_the_older_write() {
    let mut scope = Scope::new(false);
    assert_eq!(admit(&mut scope, 33, 0), Decision::Admit);
    scope.start(token(33)).unwrap();
    assert_eq!(admit(&mut scope, 34, 1), Decision::Wait);
    assert_eq!(
        admit(&mut scope, 33, 1),
        Decision::Refuse(Refused::Stale { highest: token(34) })
    );
    assert_eq!(scope.opens_at(), None);
    scope.settled(token(33));
    assert_eq!(admit(&mut scope, 34, 2), Decision::Admit);
}

#[test]
fn an_ambiguous_write_is_waited_for_until_its_settle_time_is_over() {
    let mut scope = Scope::new(false);
    assert_eq!(admit(&mut scope, 33, 0), Decision::Admit);
    scope.start(token(33)).unwrap();
    scope.ambiguous(token(33), at(10));
    assert_eq!(admit(&mut scope, 34, 1), Decision::Wait);
    assert_eq!(scope.opens_at(), Some(at(10)));
    assert_eq!(admit(&mut scope, 34, 9), Decision::Wait);
    assert_eq!(admit(&mut scope, 34, 10), Decision::Admit);
}

#[test]
fn an_operator_settles_what_is_ambiguous_and_not_what_is_in_flight() {
    let mut scope = Scope::new(false);
    assert_eq!(admit(&mut scope, 33, 0), Decision::Admit);
    scope.start(token(33)).unwrap();
    scope.start(token(33)).unwrap();
    scope.ambiguous(token(33), Time::NEVER);
    assert_eq!(admit(&mut scope, 34, 1), Decision::Wait);
    assert_eq!(scope.settle_ambiguous(), 1);
    assert_eq!(admit(&mut scope, 34, u64::MAX - 1), Decision::Wait);
    scope.settled(token(33));
    assert_eq!(admit(&mut scope, 34, 2), Decision::Admit);
}

#[test]
fn a_write_that_has_sent_nothing_is_superseded() {
    let mut scope = Scope::new(false);
    assert_eq!(admit(&mut scope, 33, 0), Decision::Admit);
    let mut waiting = scope.arrive(token(33));
    assert_eq!(scope.decide(&mut waiting, at(0)), Decision::Admit);
    scope.granted(token(34), at(1));
    assert_eq!(
        scope.start(token(33)),
        Err(Superseded { highest: token(34) })
    );
    assert_eq!(
        scope.decide(&mut waiting, at(1)),
        Decision::Refuse(Refused::Superseded { highest: token(34) })
    );
}

#[test]
fn nothing_opens_before_it_is_durable_and_a_failed_attempt_is_told_to_those_who_wait() {
    let mut scope = Scope::new(false);
    let mut first = scope.arrive(token(7));
    assert_eq!(scope.decide(&mut first, at(0)), Decision::Wait);
    assert_eq!(scope.poll_action(), Some(Action::Close(token(7))));
    assert_eq!(scope.decide(&mut first, at(0)), Decision::Wait);
    scope.not_durable();
    assert_eq!(
        scope.decide(&mut first, at(0)),
        Decision::Refuse(Refused::Storage)
    );
    assert_eq!(
        scope.poll_action(),
        None,
        "nobody waits, so nothing is tried"
    );
    let mut second = scope.arrive(token(7));
    assert_eq!(scope.decide(&mut second, at(1)), Decision::Wait);
    assert_eq!(scope.poll_action(), Some(Action::Close(token(7))));
    scope.durable(token(7));
    assert_eq!(scope.decide(&mut second, at(1)), Decision::Admit);
    assert_eq!(
        admit(&mut scope, 6, 1),
        Decision::Refuse(Refused::Stale { highest: token(7) })
    );
}

#[test]
fn garbage_moves_nothing_and_the_holder_passes() {
    let mut scope = Scope::new(true);
    let mut garbage = scope.arrive(token(1 << 62));
    assert_eq!(scope.decide(&mut garbage, at(0)), Decision::Wait);
    assert_eq!(carry_out(&mut scope), [1]);
    // The lease is granted after the read was sent, and its holder's first request comes before the read's answer.
    let mut holder = scope.arrive(token(34));
    assert_eq!(scope.decide(&mut holder, at(0)), Decision::Wait);
    scope.read(
        1,
        Ok(Reading {
            grant: None,
            revision: 33,
        }),
        at(1),
    );
    assert_eq!(
        scope.decide(&mut garbage, at(1)),
        Decision::Refuse(Refused::NotHolder { highest: None })
    );
    assert_eq!(
        scope.decide(&mut holder, at(1)),
        Decision::Wait,
        "an earlier read's no is not for it"
    );
    assert_eq!(carry_out(&mut scope), [2]);
    scope.read(
        2,
        Ok(Reading {
            grant: Some(token(34)),
            revision: 40,
        }),
        at(2),
    );
    carry_out(&mut scope);
    assert_eq!(scope.decide(&mut holder, at(2)), Decision::Admit);
    // Not above the last read's revision and not its grant: refused without another read.
    let mut old = scope.arrive(token(38));
    assert_eq!(
        scope.decide(&mut old, at(3)),
        Decision::Refuse(Refused::NotHolder {
            highest: Some(token(34))
        })
    );
    assert_eq!(carry_out(&mut scope), []);
}

#[test]
fn a_lease_store_that_cannot_be_asked_refuses_raises_and_nothing_else() {
    let mut scope = Scope::load(
        true,
        Stored {
            floor: token(34),
            opened: true,
        },
        None,
    );
    let mut newer = scope.arrive(token(35));
    assert_eq!(scope.decide(&mut newer, at(0)), Decision::Wait);
    assert_eq!(carry_out(&mut scope), [1]);
    scope.read(1, Err(Unreadable::Unavailable), at(1));
    assert_eq!(
        scope.decide(&mut newer, at(1)),
        Decision::Refuse(Refused::Unreadable(Unreadable::Unavailable))
    );
    assert_eq!(admit(&mut scope, 34, 1), Decision::Admit);
    assert_eq!(
        admit(&mut scope, 33, 1),
        Decision::Refuse(Refused::Stale { highest: token(34) })
    );
    let mut again = scope.arrive(token(35));
    assert_eq!(
        scope.decide(&mut again, at(2)),
        Decision::Wait,
        "a later request asks again"
    );
    assert_eq!(carry_out(&mut scope), [2]);
}

#[test]
fn the_store_names_a_newer_grant_and_the_request_is_stale() {
    let mut scope = Scope::load(
        true,
        Stored {
            floor: token(30),
            opened: true,
        },
        None,
    );
    let mut late = scope.arrive(token(33));
    scope.decide(&mut late, at(0));
    assert_eq!(carry_out(&mut scope), [1]);
    scope.read(
        1,
        Ok(Reading {
            grant: Some(token(34)),
            revision: 34,
        }),
        at(1),
    );
    assert_eq!(
        scope.decide(&mut late, at(1)),
        Decision::Refuse(Refused::Stale { highest: token(34) })
    );
    assert_eq!(scope.floor(), Some(token(34)));
}

#[test]
fn after_a_crash_the_next_raise_waits_and_an_opened_floor_goes_on() {
    let mut scope = Scope::load(
        false,
        Stored {
            floor: token(33),
            opened: true,
        },
        Some(at(30)),
    );
    assert_eq!(admit(&mut scope, 33, 1), Decision::Admit);
    assert_eq!(admit(&mut scope, 34, 1), Decision::Wait);
    assert_eq!(admit(&mut scope, 34, 29), Decision::Wait);
    assert_eq!(admit(&mut scope, 34, 30), Decision::Admit);
    let mut closed = Scope::load(
        false,
        Stored {
            floor: token(33),
            opened: false,
        },
        Some(at(30)),
    );
    assert_eq!(admit(&mut closed, 33, 29), Decision::Wait);
    assert_eq!(admit(&mut closed, 33, 30), Decision::Admit);
    let mut clean = Scope::load(
        false,
        Stored {
            floor: token(33),
            opened: false,
        },
        None,
    );
    assert_eq!(admit(&mut clean, 33, 0), Decision::Admit);
}

#[test]
fn a_floor_that_nobody_holds_is_verified_when_it_comes() {
    // A new epoch, or a crash in mid-raise: the number of the floor alone lets nobody in.
    let stored = Stored {
        floor: token(1001),
        opened: false,
    };
    let mut scope = Scope::load(true, stored, None);
    assert!(scope.is_idle(), "it is on disk what it is here");
    let mut forged = scope.arrive(token(1001));
    assert_eq!(scope.decide(&mut forged, at(0)), Decision::Wait);
    assert_eq!(carry_out(&mut scope), [1]);
    let nobody = Reading {
        grant: None,
        revision: 900,
    };
    scope.read(1, Ok(nobody), at(1));
    let refused = Refused::NotHolder {
        highest: Some(token(1001)),
    };
    assert_eq!(scope.decide(&mut forged, at(1)), Decision::Refuse(refused));
    let mut true_one = scope.arrive(token(1001));
    assert_eq!(scope.decide(&mut true_one, at(2)), Decision::Wait);
    assert_eq!(carry_out(&mut scope), [2]);
    let held = Reading {
        grant: Some(token(1001)),
        revision: 1001,
    };
    scope.read(2, Ok(held), at(2));
    assert_eq!(scope.decide(&mut true_one, at(2)), Decision::Admit);
}

#[test]
fn a_new_epoch_closes_below_its_floor_and_counts_everything_as_unsettled() {
    let stored = Stored {
        floor: token(34),
        opened: true,
    };
    let mut scope = Scope::load(true, stored, None);
    assert_eq!(admit(&mut scope, 34, 0), Decision::Admit);
    scope.new_epoch(token(1001), at(30), at(0));
    assert_eq!(carry_out(&mut scope), [], "the floor is on disk already");
    let stale = Refused::Stale {
        highest: token(1001),
    };
    assert_eq!(admit(&mut scope, 34, 0), Decision::Refuse(stale));
    scope.granted(token(1005), at(1));
    carry_out(&mut scope);
    assert_eq!(admit(&mut scope, 1005, 29), Decision::Wait);
    assert_eq!(admit(&mut scope, 1005, 30), Decision::Admit);
}

#[test]
fn a_replica_that_joins_closes_to_everything_but_the_current_grant() {
    let stored = Stored {
        floor: token(33),
        opened: true,
    };
    let mut scope = Scope::load(true, stored, None).grouped();
    scope.joined(40, None, at(0));
    carry_out(&mut scope);
    for old in [33, 39] {
        let stale = Refused::Stale { highest: token(40) };
        assert_eq!(admit(&mut scope, old, 0), Decision::Refuse(stale));
    }
    let mut held = Scope::load(true, stored, None).grouped();
    held.joined(40, Some(token(33)), at(0));
    assert_eq!(admit(&mut held, 33, 0), Decision::Admit);
    held.joined(50, Some(token(45)), at(0));
    assert_eq!(held.wants_clearance(), Some(token(45)));
    assert_eq!(admit(&mut held, 45, 0), Decision::Wait);
    held.clear(token(45));
    assert_eq!(admit(&mut held, 45, 0), Decision::Admit);
}

#[test]
fn what_is_idle_may_leave_memory() {
    let mut scope = Scope::new(false);
    assert!(scope.is_idle());
    assert_eq!(admit(&mut scope, 33, 0), Decision::Admit);
    scope.start(token(33)).unwrap();
    carry_out(&mut scope);
    assert!(!scope.is_idle());
    scope.ambiguous(token(33), at(9));
    assert!(!scope.is_idle());
    scope.pass(at(9));
    assert!(scope.is_idle());
}

/// What the dumb version remembers of a write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    InFlight,
    Until(u64),
    Settled,
}

/// Everything that ever happened.
#[derive(Default)]
struct Dumb {
    accepted: BTreeSet<u64>,
    durable: BTreeSet<u64>,
    writes: Vec<(u64, Fate)>,
    now: u64,
}

impl Dumb {
    fn floor(&self) -> Option<u64> {
        self.accepted.iter().max().copied()
    }

    fn settled(&self, fate: Fate) -> bool {
        match fate {
            Fate::InFlight => false,
            Fate::Until(until) => until <= self.now,
            Fate::Settled => true,
        }
    }

    fn open(&self) -> bool {
        let Some(floor) = self.floor() else {
            return false;
        };
        self.durable.contains(&floor)
            && self
                .writes
                .iter()
                .all(|&(token, fate)| token >= floor || self.settled(fate))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(u64),
    Granted(u64),
    Durable,
    NotDurable,
    Settle(prop::sample::Index),
    Ambiguous(prop::sample::Index),
    Operator,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u64..12).prop_map(Step::Request),
        1 => (1u64..12).prop_map(Step::Granted),
        4 => Just(Step::Durable),
        1 => Just(Step::NotDurable),
        3 => any::<prop::sample::Index>().prop_map(Step::Settle),
        2 => any::<prop::sample::Index>().prop_map(Step::Ambiguous),
        1 => Just(Step::Operator),
        2 => (1u64..SETTLE).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Without a lease store: each decision is what the whole history says, and a write that is started is never older
    /// than one that was started before, nor starts while an older one may still be applied.
    #[test]
    fn decides_as_the_whole_history_says(steps in proptest::collection::vec(step(), 1..80)) {
        let mut scope = Scope::new(false);
        let mut dumb = Dumb::default();
        let mut closing: Option<u64> = None;
        for step in steps {
            match step {
                Step::Request(number) => {
                    let mut arrival = scope.arrive(token(number));
                    let decision = scope.decide(&mut arrival, at(dumb.now));
                    let before = dumb.floor();
                    dumb.accepted.insert(number);
                    let floor = dumb.floor().unwrap();
                    let expected = if before.is_some_and(|floor| number < floor) {
                        Decision::Refuse(Refused::Stale { highest: token(floor) })
                    } else if dumb.open() {
                        Decision::Admit
                    } else {
                        Decision::Wait
                    };
                    prop_assert_eq!(decision, expected);
                    if decision == Decision::Admit {
                        prop_assert!(dumb.writes.iter().all(|&(t, fate)| t <= number && (t == number || dumb.settled(fate))));
                        scope.start(token(number)).unwrap();
                        dumb.writes.push((number, Fate::InFlight));
                    }
                }
                Step::Granted(number) => {
                    scope.granted(token(number), at(dumb.now));
                    dumb.accepted.insert(number);
                }
                Step::Durable | Step::NotDurable => {
                    while let Some(action) = scope.poll_action() {
                        match action {
                            Action::Close(floor) => closing = Some(floor.get()),
                            Action::RecordOpened(floor) => prop_assert_eq!(Some(floor.get()), dumb.floor()),
                            Action::Read(_) => prop_assert!(false, "a read without a lease store"),
                        }
                    }
                    if let Some(floor) = closing.take() {
                        if matches!(step, Step::Durable) {
                            dumb.durable.insert(floor);
                            scope.durable(token(floor));
                        } else {
                            scope.not_durable();
                        }
                    }
                }
                Step::Settle(which) | Step::Ambiguous(which) => {
                    let in_flight: Vec<usize> =
                        (0..dumb.writes.len()).filter(|&w| dumb.writes[w].1 == Fate::InFlight).collect();
                    if !in_flight.is_empty() {
                        let write = &mut dumb.writes[*which.get(&in_flight)];
                        if matches!(step, Step::Settle(_)) {
                            write.1 = Fate::Settled;
                            scope.settled(token(write.0));
                        } else {
                            write.1 = Fate::Until(dumb.now + SETTLE);
                            scope.ambiguous(token(write.0), at(dumb.now + SETTLE));
                        }
                    }
                }
                Step::Operator => {
                    scope.settle_ambiguous();
                    for write in &mut dumb.writes {
                        if let Fate::Until(_) = write.1 {
                            write.1 = Fate::Settled;
                        }
                    }
                }
                Step::Wait(time) => dumb.now += time,
            }
            prop_assert_eq!(scope.floor().map(Token::get), dumb.floor());
            prop_assert_eq!(scope.in_flight() as usize, dumb.writes.iter().filter(|w| w.1 == Fate::InFlight).count());
        }
    }
}
