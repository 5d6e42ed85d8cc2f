//! What Palisade means to keep to: at most so many times the processor time that another proxy takes for the same request, and the
//! like. They are the project's own goals, for its defaults with metrics, limits and timeouts on, and for 16 connections and more.

use super::{Bench, Cores, Kind, Load, Pace, Protocol, Row, Work};
use crate::peers::Peer;
use hdrhistogram::Histogram;
use std::time::Duration;

/// At most this ratio. `work` and `versus` as the bench names them; `None`: there is no goal.
pub fn cpu(work: &str, versus: &str) -> Option<f64> {
    match (work, versus) {
        ("get", "nginx") => Some(1.10),
        ("put-1k", "nginx") => Some(0.90),
        ("put-1k", "haproxy") => Some(1.05),
        ("put-1k", "envoy") => Some(0.40),
        ("put-64k", "nginx") => Some(1.00),
        ("put-1024k", "nginx") => Some(0.90),
        _ => None,
    }
}

/// System calls for a request of up to 16 KiB.
pub const SYSCALLS: f64 = 4.4;
/// Of our own processor time with TCP to the datastore, with a unix socket in its place.
const UNIX: f64 = 0.88;
/// Microseconds of a request's line in the access log.
const LOG: f64 = 3.0;
/// Requests a second of nginx with two workers, with two threads on the same two cores.
const TWO_CORES: f64 = 1.05;
/// Of what nginx adds to the latency of one connection.
const ADDED: f64 = 1.0;
/// MiB of memory after uploads of 1 MiB on 64 connections.
const MEMORY: f64 = 24.0;
/// Milliseconds from a release to the answer of the next holder's first write: the median, and the 99th percentile.
const HANDOVER: (f64, f64) = (8.0, 25.0);
/// Seconds until 10,000 scopes that are handed over at once are all open.
const STORM: (usize, f64) = (10_000, 2.0);

/// A goal, and what was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Of what.
    pub what: String,
    /// The goal.
    pub goal: Goal,
    /// The figure.
    pub found: f64,
}

/// Which way a goal goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// No more than this.
    AtMost(f64),
    /// No less.
    AtLeast(f64),
}

impl Bar {
    fn at_most(what: impl Into<String>, most: f64, found: f64) -> Self {
        Self {
            what: what.into(),
            goal: Goal::AtMost(most),
            found,
        }
    }

    /// Whether it was reached. What is no number was not.
    pub fn is_kept(&self) -> bool {
        match self.goal {
            Goal::AtMost(most) => self.found <= most,
            Goal::AtLeast(least) => self.found >= least,
        }
    }
}

/// The goals that these rows can be held to.
pub fn judge(bench: &Bench, rows: &[Row]) -> Vec<Bar> {
    if bench.protocol != Protocol::Http1 {
        return Vec::new();
    }
    let mut bars = Vec::new();
    let own = rows.iter().filter(|row| row.kind == Kind::Palisade);
    for own in own {
        let beside = |kind| {
            let same = |row: &&Row| row.kind == kind && row.load == own.load;
            rows.iter().find(same)
        };
        let nginx = beside(Kind::Peer(Peer::Nginx));
        match bench.cores {
            Cores::Apart => apart(own, beside, &mut bars),
            Cores::Two if own.load.connections >= 64 => {
                bars.extend(nginx.map(|nginx| Bar {
                    what: format!("{}: requests/s on two cores, of nginx's", name(own.load)),
                    goal: Goal::AtLeast(TWO_CORES),
                    found: own.ratio(nginx, |figures| figures.rate).0,
                }));
            }
            Cores::One if own.load.connections == 1 => {
                if let (Some(direct), Some(nginx)) = (beside(Kind::Direct), nginx) {
                    bars.push(added("median", own, nginx, direct, |figures| figures.p50));
                    bars.push(added("p99", own, nginx, direct, |figures| figures.p99));
                }
            }
            _ => {}
        }
    }
    bars
}

fn apart<'a>(own: &Row, beside: impl Fn(Kind) -> Option<&'a Row>, bars: &mut Vec<Bar>) {
    let load = own.load;
    if load.pace != Pace::Closed || load.connections < 16 {
        return;
    }
    for peer in [Peer::Nginx, Peer::Haproxy, Peer::Envoy] {
        let kind = Kind::Peer(peer);
        let most = cpu(&load.work.to_string(), &kind.to_string());
        if let (Some(row), Some(most)) = (beside(kind), most) {
            let found = own.ratio(row, |figures| figures.cpu).0;
            bars.push(Bar::at_most(
                format!("{}: CPU, of {kind}'s", name(load)),
                most,
                found,
            ));
        }
    }
    if let Some(unix) = beside(Kind::PalisadeUnix) {
        let found = unix.ratio(own, |figures| figures.cpu).0;
        bars.push(Bar::at_most(
            format!("{}: CPU with a unix socket, of TCP's", name(load)),
            UNIX,
            found,
        ));
    }
    if let Some(logged) = beside(Kind::PalisadeLog) {
        let rounds = logged.rounds.iter().zip(&own.rounds);
        let more = rounds.map(|(logged, own)| logged.cpu - own.cpu).collect();
        bars.push(Bar::at_most(
            format!("{}: CPU of a line in the access log, us", name(load)),
            LOG,
            super::round::median(more),
        ));
    }
    let is_small = matches!(load.work, Work::Get | Work::Put(..=16));
    if let (Some(count), true, 16) = (own.syscalls, is_small, load.connections) {
        bars.push(Bar::at_most(
            format!("{}: system calls a request", name(load)),
            SYSCALLS,
            count.all,
        ));
    }
    if (load.work, load.connections) == (Work::Put(1024), 64) {
        let found = own.median(|figures| figures.memory as f64 / 1_048_576.0);
        bars.push(Bar::at_most(
            format!("{}: memory afterwards, MiB", name(load)),
            MEMORY,
            found,
        ));
    }
}

fn name(load: Load) -> String {
    format!("{}, {} connections", load.work, load.connections)
}

/// What a proxy adds to what it takes without one, of what another proxy adds, in the same round.
fn added(
    what: &str,
    own: &Row,
    other: &Row,
    direct: &Row,
    of: impl Fn(&super::Figures) -> f64,
) -> Bar {
    let rounds = own.rounds.iter().zip(&other.rounds).zip(&direct.rounds);
    let ratios = rounds.map(|((own, other), direct)| {
        let without = of(direct);
        (of(own) - without) / (of(other) - without)
    });
    Bar::at_most(
        format!("{}: added {what} on one core, of nginx's", name(own.load)),
        ADDED,
        super::round::median(ratios.collect()),
    )
}

/// The goals for handovers one by one; times in nanoseconds.
pub fn handovers(times: &Histogram<u64>) -> Vec<Bar> {
    let millis = |quantile| times.value_at_quantile(quantile) as f64 / 1e6;
    vec![
        Bar::at_most("handover: median, ms", HANDOVER.0, millis(0.5)),
        Bar::at_most("handover: p99, ms", HANDOVER.1, millis(0.99)),
    ]
}

/// The goal for so many scopes at once.
pub fn storm(scopes: usize, times: &[Duration]) -> Vec<Bar> {
    if scopes < STORM.0 {
        return Vec::new();
    }
    let seconds = times.iter().map(Duration::as_secs_f64).collect();
    let what = format!("{scopes} scopes handed over at once: all open, s");
    vec![Bar::at_most(what, STORM.1, super::round::median(seconds))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Figures;

    fn row(kind: Kind, work: Work, connections: usize, rounds: &[(f64, f64, f64)]) -> Row {
        let round = |&(cpu, p50, p99): &(f64, f64, f64)| Figures {
            cpu,
            rate: 1e6 / cpu,
            p50,
            p99,
            failed: 0,
            memory: 25 << 20,
        };
        Row {
            load: Load {
                work,
                connections,
                pace: Pace::Closed,
                time: Duration::from_secs(1),
            },
            kind,
            rounds: rounds.iter().map(round).collect(),
            syscalls: Some(crate::bench::Calls {
                all: 4.2,
                waits: 0.2,
            }),
            latency: Histogram::new(3).unwrap(),
        }
    }

    fn judged(cores: Cores, rows: &[Row]) -> Vec<(f64, bool)> {
        let bench = Bench {
            subjects: Vec::new(),
            loads: Vec::new(),
            rounds: 1,
            syscalls: false,
            cores,
            protocol: Protocol::Http1,
        };
        let bars = judge(&bench, rows);
        bars.iter().map(|bar| (bar.found, bar.is_kept())).collect()
    }

    const NGINX: Kind = Kind::Peer(Peer::Nginx);

    #[test]
    fn processor_time_is_compared_within_a_round() {
        // The second round ran while something else did.
        let own = row(
            Kind::Palisade,
            Work::Get,
            16,
            &[(11.0, 1.0, 1.0), (44.0, 1.0, 1.0)],
        );
        let nginx = row(NGINX, Work::Get, 16, &[(10.0, 1.0, 1.0), (40.0, 1.0, 1.0)]);
        assert_eq!(
            judged(Cores::Apart, &[own, nginx]),
            [(1.1, true), (4.2, true)]
        );
    }

    #[test]
    fn memory_has_its_goal_after_large_bodies() {
        let own = row(Kind::Palisade, Work::Put(1024), 64, &[(11.0, 1.0, 1.0)]);
        assert_eq!(judged(Cores::Apart, &[own]), [(25.0, false)]);
    }

    #[test]
    fn on_two_cores_more_requests_are_better() {
        let own = row(Kind::Palisade, Work::Put(1), 64, &[(10.0, 1.0, 1.0)]);
        let nginx = row(NGINX, Work::Put(1), 64, &[(10.0, 1.0, 1.0)]);
        assert_eq!(judged(Cores::Two, &[own, nginx]), [(1.0, false)]);
    }

    #[test]
    fn on_one_core_only_what_is_added_counts() {
        let own = row(Kind::Palisade, Work::Put(1), 1, &[(1.0, 30.0, 60.0)]);
        let nginx = row(NGINX, Work::Put(1), 1, &[(1.0, 40.0, 50.0)]);
        let direct = row(Kind::Direct, Work::Put(1), 1, &[(1.0, 20.0, 40.0)]);
        assert_eq!(
            judged(Cores::One, &[own, nginx, direct]),
            [(0.5, true), (2.0, false)]
        );
    }

    #[test]
    fn what_is_no_number_is_not_kept() {
        assert!(!Bar::at_most("", 1.0, f64::NAN).is_kept());
    }
}
