//! Everything that can happen to two holders, within bounds: requests and replies that are late, lost or come twice,
//! sessions that end or are revoked, holders whose timers fire late.

use super::{world::*, *};
use stateright::{Checker, HasDiscoveries, Model, Property};

#[derive(Clone)]
struct Race {
    terms: Vec<Terms>,
    faults: u8,
    last_tick: Time,
    planted: Planted,
    /// Begins with the first holding it and the second waiting.
    settled: bool,
}

impl Model for Race {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(&self.terms, self.faults, self.planted);
        if self.settled {
            (0..self.terms.len()).for_each(|who| world.run_alone(who));
        }
        vec![world]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Step>) {
        actions.extend(state.steps(self.last_tick));
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut next = last.clone();
        next.take(step);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "whoever believes to hold it is right",
                |_, world: &World| world.beliefs_are_true(),
            ),
            Property::always("tokens are told once", |_, world: &World| {
                world.tokens_are_unique()
            }),
            Property::always("what is over stays over", |_, world: &World| {
                !world.held_again
            }),
            Property::always("one at a time", |_, world: &World| {
                world
                    .believers()
                    .filter(|holder| !world.revoked.contains(&holder.session()))
                    .count()
                    <= 1
            }),
            Property::sometimes("one after the other", |_, world: &World| {
                world.granted.len() == 2
            }),
        ]
    }
}

fn terms(wait: bool, steal: bool) -> Terms {
    Terms {
        ttl: 3 * TICK,
        margin: Some(TICK),
        wait,
        give_up: Time::NEVER,
        patience: Duration::from_secs(1000),
        steal,
    }
}

fn race(second: Terms, faults: u8, ticks: u32) -> Race {
    Race {
        terms: vec![terms(true, false), second],
        faults,
        last_tick: Time::ZERO.after(TICK * ticks),
        planted: Planted::Nothing,
        settled: false,
    }
}

/// From the moment at which the first holds it and the second has gone as far as it gets.
fn handover(second: Terms, faults: u8, ticks: u32) -> Race {
    Race {
        settled: true,
        ..race(second, faults, ticks)
    }
}

/// The number of states is pinned, so that a search that has become smaller is noticed.
fn check(race: Race, states: usize) {
    let checker = race.checker().spawn_bfs().join();
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states);
}

fn must_be_caught(race: Race) {
    let planted = race.planted;
    let checker = race
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let found = checker
        .discoveries()
        .keys()
        .any(|name| *name != "one after the other");
    assert!(found, "{planted:?} was not caught");
}

#[test]
fn two_begin_and_time_passes() {
    check(race(terms(true, false), 0, 1), 19_412);
}

#[test]
fn two_begin_and_one_thing_goes_wrong() {
    check(race(terms(true, false), 1, 0), 4_090);
}

#[test]
fn a_handover_and_time_passes() {
    check(handover(terms(true, false), 0, 2), 64_722);
}

#[test]
fn a_handover_and_one_thing_goes_wrong() {
    check(handover(terms(true, false), 1, 1), 38_908);
}

#[test]
fn one_steals_and_one_thing_goes_wrong() {
    check(race(terms(false, true), 1, 0), 4_866);
}

/// The whole search, for `PALISADE_DEEP=1`: minutes. It found that a keep-alive answered after the lease was given back
/// began a new acquisition.
#[test]
fn two_begin_time_passes_and_one_thing_goes_wrong() {
    if std::env::var_os("PALISADE_DEEP").is_some() {
        check(race(terms(true, false), 1, 1), 928_739);
    }
}

#[test]
fn planted_faults_are_caught() {
    for planted in [Planted::EndsEarly, Planted::GrantsTwice] {
        let race = race(terms(true, false), 1, 1);
        must_be_caught(Race { planted, ..race });
    }
}

/// The fault that the deep search found, as the shortest way to it.
#[test]
fn a_late_keep_alive_starts_nothing_anew() {
    let mut world = World::new(&[terms(true, false)], 1, Planted::Nothing);
    world.run_alone(0);
    let session = world.holders[0].session();
    world.take(Step::Tick);
    world.take(Step::Wake(0));
    assert!(world.holders[0].beating().is_some());
    world.take(Step::Revoke(session));
    world.holders[0].give_back();
    world.run_alone(0);
    assert_eq!(world.holders[0].session(), session, "no second attempt");
    assert!(world.holders[0].is_over());
}
