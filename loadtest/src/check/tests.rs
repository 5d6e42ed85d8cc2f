//! A good history, and for each property a bad one that has to be caught.

use super::{Checker, Property, Verdict};
use crate::history::{Event, Kind, What};

/// Events a millisecond apart.
fn check(events: Vec<What>) -> Verdict {
    let mut checker = Checker::default();
    for (number, what) in (1..).zip(events) {
        let at = number * 1_000_000;
        checker.event(number, &Event { at, what });
    }
    checker.finish()
}

/// What is found, with the lines that are named for it.
fn found(events: Vec<What>) -> Vec<(u8, Vec<u64>)> {
    let told = |violation: super::Violation| (violation.property.number(), violation.lines);
    check(events).violations.into_iter().map(told).collect()
}

fn start() -> What {
    What::Start {
        seed: 1,
        proxy: "palisade".into(),
        recovers_within_ms: 2,
        scopes: vec!["s".into()],
        command: None,
    }
}

fn granted(token: u64) -> What {
    What::Granted {
        scope: "s".into(),
        token,
        process: token,
    }
}

fn invoke(id: u64, token: u64, kind: Kind) -> What {
    What::Invoke {
        id,
        scope: "s".into(),
        token,
        kind,
        process: token,
    }
}

fn write(id: u64, token: u64) -> What {
    invoke(id, token, Kind::Write)
}

fn applied(id: u64, token: u64, position: u64) -> What {
    What::Applied {
        id,
        scope: "s".into(),
        token,
        position,
        proxy: 1,
    }
}

fn answered(id: u64) -> What {
    What::Answered {
        id,
        status: 204,
        seen: None,
    }
}

fn saw(id: u64, seen: u64) -> What {
    What::Answered {
        id,
        status: 200,
        seen: Some(seen),
    }
}

fn refused(id: u64) -> What {
    What::Refused {
        id,
        status: 412,
        reason: "stale-token".into(),
    }
}

fn unknown(id: u64) -> What {
    What::Unknown {
        id,
        why: "cut".into(),
    }
}

fn floor(floor: u64) -> What {
    floor_at(1, floor)
}

fn floor_at(proxy: u64, floor: u64) -> What {
    What::Floor {
        scope: "s".into(),
        floor,
        proxy,
        open: true,
    }
}

#[test]
fn a_good_history_passes_and_is_counted() {
    let verdict = check(vec![
        start(),
        granted(5),
        write(1, 5),
        applied(1, 5, 1),
        answered(1),
        write(2, 5),
        unknown(2),
        floor(5),
        granted(9),
        // The unknown one comes through late, but before the new holder's read is served.
        applied(2, 5, 2),
        invoke(3, 9, Kind::Read),
        saw(3, 2),
        write(4, 5),
        refused(4),
        write(5, 9),
        applied(5, 9, 3),
        answered(5),
        floor(9),
        What::Calm,
        write(6, 9),
        applied(6, 9, 4),
        answered(6),
        write(7, 9),
        What::End,
    ]);
    assert_eq!(verdict.violations, []);
    let counts = verdict.counts;
    assert_eq!(
        (counts.requests, counts.answered, counts.refused),
        (7, 4, 1)
    );
    // One that was told so, and one that was never told anything.
    assert_eq!((counts.unknown, counts.applied), (2, 4));
    assert_eq!((counts.handovers, counts.floors), (1, 2));
}

#[test]
fn p1_a_token_that_goes_back() {
    let history = vec![
        granted(5),
        granted(9),
        write(1, 5),
        write(2, 9),
        applied(2, 9, 1),
        applied(1, 5, 2),
    ];
    assert_eq!(found(history), [(1, vec![3, 5, 6])]);
}

#[test]
fn p1_is_about_one_scope() {
    let other = What::Applied {
        id: 1,
        scope: "other".into(),
        token: 5,
        position: 1,
        proxy: 1,
    };
    let of_other = What::Granted {
        scope: "other".into(),
        token: 5,
        process: 1,
    };
    let history = vec![granted(9), of_other, applied(2, 9, 1), other];
    assert_eq!(found(history), []);
}

#[test]
fn p2_a_token_that_nobody_was_granted() {
    let history = vec![granted(5), write(1, 7), applied(1, 7, 1)];
    assert_eq!(found(history), [(2, vec![2, 3])]);
}

#[test]
fn p2_a_token_of_another_scope_and_one_that_is_granted_later() {
    let other = What::Granted {
        scope: "other".into(),
        token: 7,
        process: 1,
    };
    let history = vec![other, applied(1, 7, 1), applied(2, 8, 2), granted(8)];
    assert_eq!(found(history), [(2, vec![2]), (2, vec![3])]);
}

#[test]
fn p3_a_refused_write_is_applied_after_or_before() {
    let after = vec![granted(5), write(1, 5), refused(1), applied(1, 5, 1)];
    assert_eq!(found(after), [(3, vec![2, 3, 4])]);
    let before = vec![granted(5), write(1, 5), applied(1, 5, 1), refused(1)];
    assert_eq!(found(before), [(3, vec![2, 3, 4])]);
}

#[test]
fn p4_an_answered_write_is_applied_twice() {
    let history = vec![
        granted(5),
        write(1, 5),
        applied(1, 5, 1),
        answered(1),
        applied(1, 5, 2),
    ];
    assert_eq!(found(history), [(4, vec![2, 3, 4, 5])]);
}

#[test]
fn p5_an_unknown_write_is_applied_twice() {
    let told = vec![
        granted(5),
        write(1, 5),
        applied(1, 5, 1),
        applied(1, 5, 2),
        unknown(1),
    ];
    assert_eq!(found(told), [(5, vec![2, 3, 4, 5])]);
    let never_told = vec![granted(5), write(1, 5), applied(1, 5, 1), applied(1, 5, 2)];
    assert_eq!(found(never_told), [(5, vec![2, 3, 4])]);
}

#[test]
fn p6_a_fenced_read_missed_an_older_write() {
    let history = vec![
        granted(5),
        granted(9),
        write(1, 5),
        invoke(2, 9, Kind::Read),
        applied(1, 5, 1),
        saw(2, 0),
    ];
    assert_eq!(found(history), [(6, vec![4, 5, 6])]);
}

#[test]
fn p6_an_older_write_is_applied_after_a_fenced_read() {
    let history = vec![
        granted(5),
        granted(9),
        write(1, 5),
        invoke(2, 9, Kind::Read),
        saw(2, 0),
        applied(1, 5, 1),
    ];
    assert_eq!(found(history), [(6, vec![3, 4, 5, 6])]);
}

#[test]
fn p7_a_floor_falls_or_is_below_what_was_applied() {
    assert_eq!(found(vec![floor(9), floor(5)]), [(7, vec![1, 2])]);
    let low = vec![
        granted(5),
        granted(9),
        applied(1, 9, 1),
        floor(9),
        // A proxy that has forgotten, as seen by a scraper that has too.
        floor(5),
    ];
    assert_eq!(found(low), [(7, vec![4, 5])]);
    let below = vec![granted(9), applied(1, 9, 1), floor(5), floor(5)];
    assert_eq!(found(below), [(7, vec![2, 4])]);
}

#[test]
fn p7_a_look_that_began_before_the_write_is_no_violation() {
    let history = vec![granted(9), floor(5), applied(1, 9, 1), floor(5)];
    assert_eq!(found(history), []);
}

/// A raise that a full disk has kept from being written down is taken back by a crash: nothing was let in by it.
#[test]
fn p7_what_has_not_opened_may_be_taken_back() {
    let raise = What::Floor {
        scope: "s".into(),
        floor: 9,
        proxy: 1,
        open: false,
    };
    assert_eq!(found(vec![floor(5), raise.clone(), floor(5)]), []);
    let below = vec![floor(5), raise, floor(4)];
    assert_eq!(found(below), [(7, vec![1, 3])]);
}

/// Each replica has its own floors: one that is behind is no violation, one that falls is, whichever it is.
#[test]
fn p7_is_about_each_proxy() {
    let behind = vec![
        granted(9),
        applied(1, 9, 1),
        floor_at(1, 9),
        floor_at(2, 5),
        floor_at(2, 5),
    ];
    assert_eq!(found(behind.clone()), []);
    assert_eq!(check(behind).counts.proxies, 2);
    let falls = vec![
        floor_at(2, 9),
        floor_at(1, 5),
        floor_at(2, 8),
        floor_at(1, 5),
    ];
    let verdict = check(falls);
    assert_eq!(verdict.violations[0].lines, [1, 3]);
    assert!(
        verdict.violations[0]
            .says
            .contains("at proxy 2 had opened at 9 and fell to 8")
    );
    let through_the_second = What::Applied {
        id: 1,
        scope: "s".into(),
        token: 9,
        position: 1,
        proxy: 2,
    };
    let below = vec![
        granted(9),
        through_the_second,
        floor_at(1, 5),
        floor_at(2, 5),
        floor_at(1, 5),
        floor_at(2, 5),
    ];
    assert_eq!(found(below), [(7, vec![2, 6])]);
}

#[test]
fn p8_nobody_succeeds_once_the_faults_have_stopped() {
    let with = |in_between: Vec<What>| {
        let early = vec![
            start(),
            granted(5),
            write(1, 5),
            applied(1, 5, 1),
            answered(1),
        ];
        let end = vec![granted(6), granted(7), What::End];
        [early, vec![What::Calm], in_between, end].concat()
    };
    assert_eq!(found(with(vec![])), [(8, vec![6, 9])]);
    let failed = What::Answered {
        id: 2,
        status: 503,
        seen: None,
    };
    assert_eq!(found(with(vec![write(2, 5), failed])), [(8, vec![6, 11])]);
    let done = vec![write(2, 5), applied(2, 5, 2), answered(2)];
    assert_eq!(found(with(done)), []);
}

#[test]
fn p9_an_answer_of_success_without_an_application() {
    let history = vec![granted(5), write(1, 5), answered(1), applied(1, 5, 1)];
    assert_eq!(found(history), [(9, vec![2, 3])]);
    let accepted = What::Answered {
        id: 1,
        status: 202,
        seen: None,
    };
    assert_eq!(found(vec![granted(5), write(1, 5), accepted]), []);
}

const FROZEN: What = What::Frozen { proxy: 1 };

fn epoch(floor: u64) -> What {
    What::Epoch { proxy: 1, floor }
}

#[test]
fn p10_a_new_epoch_that_is_kept() {
    let history = vec![
        granted(5),
        write(1, 5),
        FROZEN,
        // Sent before.
        applied(1, 5, 1),
        write(2, 5),
        refused(2),
        // The lease store is past the floor before the operator is told so.
        granted(12),
        write(3, 12),
        applied(3, 12, 2),
        epoch(10),
        granted(15),
        write(4, 15),
        applied(4, 15, 3),
    ];
    assert_eq!(found(history.clone()), []);
    assert_eq!(check(history).counts.epochs, 1);
}

#[test]
fn p10_something_older_is_let_in_while_frozen_or_after() {
    let begin = || vec![granted(5), FROZEN, write(1, 5)];
    let frozen = [begin(), vec![applied(1, 5, 1)]].concat();
    assert_eq!(found(frozen), [(10, vec![2, 3, 4])]);
    let before = [begin(), vec![applied(1, 5, 1), epoch(10)]].concat();
    assert_eq!(found(before), [(10, vec![2, 3, 4, 5])]);
    let after = [begin(), vec![epoch(10), applied(1, 5, 1)]].concat();
    assert_eq!(found(after), [(10, vec![2, 3, 4, 5])]);
    let sent_after = vec![granted(5), FROZEN, epoch(10), write(1, 5), applied(1, 5, 1)];
    assert_eq!(found(sent_after), [(10, vec![2, 3, 4, 5])]);
}

#[test]
fn p10_is_about_the_proxy_that_froze() {
    let other = What::Applied {
        id: 1,
        scope: "s".into(),
        token: 5,
        position: 1,
        proxy: 2,
    };
    let history = vec![granted(5), FROZEN, write(1, 5), other, epoch(10)];
    assert_eq!(found(history), []);
}

/// Numbers are compared across epochs, too: one that comes again in a later life of the lease store goes back.
#[test]
fn p1_holds_across_epochs() {
    let history = vec![
        granted(5),
        granted(9),
        applied(1, 9, 1),
        FROZEN,
        granted(7),
        applied(2, 7, 2),
        epoch(10),
    ];
    assert_eq!(found(history), [(1, vec![3, 6])]);
}

#[test]
fn every_property_has_its_number() {
    let numbers = Property::ALL.map(Property::number);
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
}
