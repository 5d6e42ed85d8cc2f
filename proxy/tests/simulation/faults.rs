//! What is done to a run from outside: links held and cut, the proxy crashed or stopped, its disk full, its lease store away.

use crate::world::{World, between, ms, one_in};
use fastrand::Rng;
use palisade_fence::Time;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use turmoil::Sim;

/// How long there are faults.
pub const ACTIVE: Duration = ms(2_500);
/// How long after the last fault the current holder may take: an answer that came early is read for up to 5 s before its
/// connection is closed and its settle time begins.
pub const PATIENCE: Duration = ms(9_000);

#[derive(Clone, Copy, Debug)]
enum Change {
    Hold(&'static str, &'static str),
    Release(&'static str, &'static str),
    Cut(&'static str, &'static str),
    Mend(&'static str, &'static str),
    DiskFull(bool),
    StoreAway(bool),
}

/// Where the proxy stands.
enum Proxy {
    Up,
    Stopping { since: Time, down: Duration },
    Down { until: Time },
}

/// All that will happen, known before it begins.
pub struct Faults {
    world: Arc<World>,
    changes: VecDeque<(Duration, Change)>,
    ends: VecDeque<(Duration, End)>,
    proxy: Proxy,
}

#[derive(Clone, Copy)]
struct End {
    in_order: bool,
    down: Duration,
}

impl Faults {
    pub fn draw(world: &Arc<World>, workers: &[&'static str]) -> Self {
        let mut rng = world.rng();
        let mut changes = Vec::new();
        for (a, b) in std::iter::once(("proxy", "db")).chain(workers.iter().map(|w| (*w, "proxy")))
        {
            windows(&mut rng, 900, &mut changes, |rng| {
                if rng.bool() {
                    (Change::Hold(a, b), Change::Release(a, b))
                } else {
                    (Change::Cut(a, b), Change::Mend(a, b))
                }
            });
        }
        if one_in(&mut rng, 3) {
            windows(&mut rng, 1_000, &mut changes, |_| {
                (Change::DiskFull(true), Change::DiskFull(false))
            });
        }
        if one_in(&mut rng, 3) {
            windows(&mut rng, 1_000, &mut changes, |_| {
                (Change::StoreAway(true), Change::StoreAway(false))
            });
        }
        // A stable sort: the order of what happens at the same moment is the order in which it was drawn.
        changes.sort_by_key(|(at, _)| *at);
        let mut ends = VecDeque::new();
        let mut at = between(&mut rng, 100, 1_500);
        while at < ACTIVE && !one_in(&mut rng, 3) {
            let end = End {
                in_order: one_in(&mut rng, 3),
                down: between(&mut rng, 1, 200),
            };
            ends.push_back((at, end));
            at += end.down + between(&mut rng, 20, 1_200);
        }
        Self {
            world: Arc::clone(world),
            changes: changes.into(),
            ends,
            proxy: Proxy::Up,
        }
    }

    /// Carries out what is due; true once the faults are over and everything is repaired.
    pub fn step(&mut self, sim: &mut Sim<'_>) -> bool {
        let now = sim.elapsed();
        while self.changes.front().is_some_and(|(at, _)| *at <= now) {
            let (_, change) = self.changes.pop_front().unwrap();
            self.world.fault(format!("{change:?}"));
            self.apply(sim, change);
        }
        self.step_proxy(sim);
        now >= ACTIVE
            && self.changes.is_empty()
            && self.ends.is_empty()
            && matches!(self.proxy, Proxy::Up)
    }

    fn apply(&self, sim: &Sim<'_>, change: Change) {
        match change {
            Change::Hold(a, b) => sim.hold(a, b),
            Change::Release(a, b) => sim.release(a, b),
            Change::Cut(a, b) => sim.partition(a, b),
            Change::Mend(a, b) => sim.repair(a, b),
            Change::DiskFull(full) => self.world.disk_full.store(full, SeqCst),
            Change::StoreAway(away) => self.world.store_away.store(away, SeqCst),
        }
    }

    fn step_proxy(&mut self, sim: &mut Sim<'_>) {
        let now = self.world.now();
        match self.proxy {
            Proxy::Up => {
                let due = |(at, _): &&(Duration, End)| Time::ZERO.after(*at) <= now;
                let Some(&(_, end)) = self.ends.front().filter(due) else {
                    return;
                };
                self.ends.pop_front();
                if end.in_order {
                    self.world.fault("stop");
                    self.world.stop.store(true, SeqCst);
                    self.proxy = Proxy::Stopping {
                        since: now,
                        down: end.down,
                    };
                } else {
                    self.crash(sim, "crash", end.down);
                }
            }
            Proxy::Stopping { since, down } => {
                if take(&self.world.stopped) {
                    self.crash(sim, "stopped", down);
                } else if now.since(since) > ms(1_000) {
                    self.crash(sim, "killed", down);
                }
            }
            Proxy::Down { until } if now >= until => {
                self.world.fault("start");
                sim.bounce("proxy");
                self.proxy = Proxy::Up;
            }
            Proxy::Down { .. } => {}
        }
    }

    fn crash(&mut self, sim: &mut Sim<'_>, why: &str, down: Duration) {
        self.world.fault(why);
        sim.crash("proxy");
        self.world.stop.store(false, SeqCst);
        self.world.stopped.store(false, SeqCst);
        let until = self.world.now().after(down);
        self.proxy = Proxy::Down { until };
    }
}

fn take(flag: &AtomicBool) -> bool {
    flag.swap(false, SeqCst)
}

/// Times in which something is broken, one after the other.
fn windows(
    rng: &mut Rng,
    pause: u64,
    changes: &mut Vec<(Duration, Change)>,
    mut draw: impl FnMut(&mut Rng) -> (Change, Change),
) {
    let mut at = between(rng, 0, 2 * pause);
    while at < ACTIVE {
        let (begin, end) = draw(rng);
        changes.push((at, begin));
        at += between(rng, 10, 350);
        changes.push((at, end));
        at += between(rng, 50, 2 * pause);
    }
}
