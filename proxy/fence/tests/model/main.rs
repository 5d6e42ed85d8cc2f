//! The core under a model checker: workers that stall anywhere, a proxy that crashes anywhere, a disk, a lease store that
//! grants and expires, an upstream that delays, drops, answers late and loses answers. Breadth first, so that a
//! counter-example is a shortest one.
//!
//! Each rule of the design is then taken out, and the model must find what goes wrong without it.

mod group;
mod world;

use palisade_fence::Rule;
use stateright::{Checker, HasDiscoveries, Model};
use std::hash::Hash;
use world::{Bounds, Shell, World};

/// Checks a world to its end. Every property must hold, and as many states as this must have been visited: a search space
/// that shrank unnoticed proves nothing.
fn holds(bounds: Bounds, states: usize) {
    let checker = World {
        bounds,
        ..World::default()
    }
    .checker()
    .threads(2)
    .spawn_bfs()
    .join();
    checker.assert_properties();
    assert_eq!(
        checker.unique_state_count(),
        states,
        "the number of states has changed"
    );
}

/// The same for two replicas.
fn holds_in_a_group(bounds: group::Bounds, states: usize) {
    let world = group::World {
        bounds,
        without: None,
        deadline: true,
    };
    let checker = world.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert_eq!(
        checker.unique_state_count(),
        states,
        "the number of states has changed"
    );
}

/// Checks a broken world until this property is seen to be violated, and prints the shortest way there.
#[expect(
    clippy::print_stdout,
    reason = "what was found is worth reading: `cargo test -- --nocapture`"
)]
fn breaks<M>(world: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: std::fmt::Debug + Clone + PartialEq + Hash + Send + Sync,
    M::Action: std::fmt::Debug + Clone + PartialEq + Send + Sync,
{
    let only = HasDiscoveries::AnyOf([property].into());
    let checker = world
        .checker()
        .threads(2)
        .finish_when(only)
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let path = found
        .get(property)
        .unwrap_or_else(|| panic!("{property} was not violated; found {:?}", found.keys()));
    let steps = path.clone().into_actions();
    println!("{property}, {} steps:\n{steps:#?}", steps.len());
}

fn without(rule: Rule) -> World {
    World {
        without: Some(rule),
        ..World::default()
    }
}

#[test]
fn two_workers_a_crash_and_ambiguous_writes() {
    holds(
        Bounds {
            writes: 2,
            lates: 0,
            watch: false,
            ..Bounds::default()
        },
        618_368,
    );
}

#[test]
fn two_workers_a_crash_and_early_closing() {
    holds(
        Bounds {
            losses: 2,
            ..Bounds::default()
        },
        45_421,
    );
}

#[test]
fn two_workers_two_crashes_and_every_kind_of_end() {
    holds(
        Bounds {
            crashes: 2,
            losses: 2,
            watch: false,
            ..Bounds::default()
        },
        6_039,
    );
}

#[test]
fn two_workers_and_fenced_reads() {
    holds(
        Bounds {
            reads: 1,
            crashes: 0,
            losses: 1,
            lates: 0,
            ..Bounds::default()
        },
        1_983_426,
    );
}

#[test]
fn a_forged_token_and_a_lease_store_that_fails() {
    holds(
        Bounds {
            forgeries: 1,
            read_failures: 1,
            disk_failures: 1,
            crashes: 0,
            losses: 0,
            ..Bounds::default()
        },
        441_013,
    );
}

#[test]
fn three_workers_and_a_newer_token_in_mid_raise() {
    holds(
        Bounds {
            grants: 3,
            crashes: 0,
            losses: 1,
            lates: 0,
            ..Bounds::default()
        },
        846_247,
    );
}

#[test]
fn three_workers_and_a_crash() {
    holds(
        Bounds {
            grants: 3,
            crashes: 1,
            losses: 1,
            lates: 0,
            ..Bounds::default()
        },
        1_834_409,
    );
}

#[test]
fn without_the_drain_g2_breaks() {
    breaks(without(Rule::Drain), "G2 order of application");
}

#[test]
fn with_no_answer_taken_for_settled_g2_breaks() {
    breaks(
        without(Rule::NoAnswerIsAmbiguous),
        "G2 order of application",
    );
}

#[test]
fn with_writes_forgotten_in_a_crash_g2_breaks() {
    breaks(
        without(Rule::CrashRemembersWrites),
        "G2 order of application",
    );
}

#[test]
fn with_closed_taken_for_opened_after_a_crash_g2_breaks() {
    breaks(without(Rule::ClosedIsNotOpened), "G2 order of application");
}

#[test]
fn open_before_the_floor_is_durable_and_g2_breaks() {
    breaks(without(Rule::DurableBeforeOpen), "G2 order of application");
}

#[test]
fn with_a_late_verification_that_lowers_the_floor_g2_breaks() {
    let bounds = Bounds {
        crashes: 0,
        losses: 0,
        lates: 0,
        writes: 2,
        forgeries: 1,
        ..Bounds::default()
    };
    breaks(
        World {
            bounds,
            ..without(Rule::FloorOnlyRises)
        },
        "G2 order of application",
    );
}

#[test]
fn with_a_late_opened_without_its_condition_g2_breaks() {
    breaks(
        without(Rule::LateOpenedIsConditional),
        "G2 order of application",
    );
}

#[test]
fn with_a_write_that_starts_without_looking_again_g2_breaks() {
    breaks(without(Rule::StartLooksAgain), "G1 order of forwarding");
}

#[test]
fn with_a_floor_that_is_not_durable_and_no_holder_check_g1_breaks() {
    let shell = Shell {
        disk_forgets: true,
        ..Shell::default()
    };
    breaks(
        World {
            shell,
            ..without(Rule::HolderCheck)
        },
        "G1 order of forwarding",
    );
}

#[test]
fn without_the_holder_check_a_forged_token_locks_the_holder_out() {
    let bounds = Bounds {
        forgeries: 1,
        crashes: 0,
        ..Bounds::default()
    };
    breaks(
        World {
            bounds,
            ..without(Rule::HolderCheck)
        },
        "the holder is never locked out",
    );
}

#[test]
fn with_a_no_shared_with_a_later_request_the_holder_is_locked_out() {
    let bounds = Bounds {
        forgeries: 1,
        crashes: 0,
        ..Bounds::default()
    };
    breaks(
        World {
            bounds,
            ..without(Rule::SharedNoOnlyForEarlier)
        },
        "the holder is never locked out",
    );
}

#[test]
fn with_a_write_sent_again_it_is_applied_twice() {
    let shell = Shell {
        sends_again: true,
        ..Shell::default()
    };
    breaks(
        World {
            shell,
            ..World::default()
        },
        "nothing is applied twice",
    );
}

#[test]
fn with_refused_said_of_a_sent_write_g4_breaks() {
    breaks(
        without(Rule::RefusedMeansNothingSent),
        "G4 refused is never applied",
    );
}

#[test]
fn with_a_fenced_read_that_does_not_wait_g3_breaks() {
    let bounds = Bounds {
        reads: 1,
        crashes: 0,
        ..Bounds::default()
    };
    let shell = Shell {
        reads_pass: true,
        ..Shell::default()
    };
    breaks(
        World {
            bounds,
            shell,
            ..World::default()
        },
        "G3 a fenced read sees all that is older",
    );
}

const GROUP: group::Bounds = group::Bounds {
    grants: 2,
    writes: 1,
    crashes: 0,
    expiries: 0,
    gaps: 0,
    losses: 0,
    victim: 0,
    slow_reads: false,
    late_join: false,
    any_replica: false,
};

fn group_without(rule: Rule, bounds: group::Bounds) -> group::World {
    group::World {
        bounds,
        without: Some(rule),
        deadline: true,
    }
}

#[test]
fn two_replicas_and_a_lost_answer() {
    holds_in_a_group(
        group::Bounds {
            losses: 1,
            any_replica: true,
            ..GROUP
        },
        9_919,
    );
}

#[test]
fn two_replicas_and_late_readings() {
    holds_in_a_group(
        group::Bounds {
            slow_reads: true,
            any_replica: true,
            ..GROUP
        },
        80_625,
    );
}

#[test]
fn two_replicas_and_one_that_joins_late() {
    holds_in_a_group(
        group::Bounds {
            late_join: true,
            any_replica: true,
            ..GROUP
        },
        31_017,
    );
}

#[test]
fn two_replicas_and_a_crash_of_the_old_holders() {
    holds_in_a_group(
        group::Bounds {
            crashes: 1,
            victim: 0,
            ..GROUP
        },
        296_397,
    );
}

#[test]
fn two_replicas_and_a_crash_of_the_new_holders() {
    holds_in_a_group(
        group::Bounds {
            crashes: 1,
            victim: 1,
            ..GROUP
        },
        96_890,
    );
}

#[test]
fn two_replicas_and_a_session_that_ends() {
    holds_in_a_group(
        group::Bounds {
            expiries: 1,
            ..GROUP
        },
        211_505,
    );
}

#[test]
fn two_replicas_and_a_gap_in_the_old_holders_watch() {
    holds_in_a_group(
        group::Bounds {
            gaps: 1,
            victim: 0,
            ..GROUP
        },
        1_499,
    );
}

#[test]
fn two_replicas_and_a_gap_in_the_new_holders_watch() {
    holds_in_a_group(
        group::Bounds {
            gaps: 1,
            victim: 1,
            ..GROUP
        },
        1_977,
    );
}

#[test]
fn replicas_without_acks_break_g2() {
    breaks(group_without(Rule::Acks, GROUP), "G2 order of application");
}

#[test]
fn replicas_without_the_unsettled_list_break_g2() {
    breaks(
        group_without(Rule::UnsettledList, GROUP),
        "G2 order of application",
    );
}

#[test]
fn a_replica_that_does_not_wait_for_its_own_watch_breaks_g2() {
    breaks(
        group_without(
            Rule::OwnWatch,
            group::Bounds {
                late_join: true,
                any_replica: true,
                ..GROUP
            },
        ),
        "G2 order of application",
    );
}

#[test]
fn replicas_without_member_keys_break_g2() {
    breaks(
        group_without(
            Rule::MemberKeys,
            group::Bounds {
                crashes: 1,
                ..GROUP
            },
        ),
        "G2 order of application",
    );
}

#[test]
fn replicas_that_do_not_wait_after_a_removal_break_g2() {
    breaks(
        group_without(
            Rule::WaitAfterRemoval,
            group::Bounds {
                crashes: 1,
                ..GROUP
            },
        ),
        "G2 order of application",
    );
}

#[test]
fn a_replica_that_does_not_look_at_its_deadline_breaks_g2() {
    let world = group::World {
        bounds: group::Bounds {
            expiries: 1,
            ..GROUP
        },
        without: None,
        deadline: false,
    };
    breaks(world, "G2 order of application");
}

#[test]
fn a_replica_that_does_not_close_up_to_its_reading_breaks_g2() {
    breaks(
        group_without(Rule::ClosedAtJoin, group::Bounds { gaps: 1, ..GROUP }),
        "G2 order of application",
    );
}
