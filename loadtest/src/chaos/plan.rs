//! Which fault comes when. Pure: the same seed gives the same plan.

use std::{fmt, str::FromStr, time::Duration};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "the names say it, and `about` says it in words"
)]
pub enum Fault {
    WorkerStop,
    WorkerKill,
    ProxyStop,
    ProxyKill,
    ProxyRestart,
    EtcdStop,
    EtcdKill,
    EtcdQuorum,
    EtcdCompact,
    FrontCut,
    FrontHold,
    FrontHalfOpen,
    FrontCutAfter,
    FrontEat,
    BackCut,
    BackHold,
    BackHalfOpen,
    BackCutAfter,
    BackEat,
    LeasesCut,
    LeasesHold,
    StoreSlow,
    StoreAmbiguous,
}

use Fault::*;

/// Two faults on the same thing do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum On {
    Worker,
    Proxy,
    Etcd,
    Front,
    Back,
    Leases,
    Slow,
    Ambiguous,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 23] = [
        WorkerStop,
        WorkerKill,
        ProxyStop,
        ProxyKill,
        ProxyRestart,
        EtcdStop,
        EtcdKill,
        EtcdQuorum,
        EtcdCompact,
        FrontCut,
        FrontHold,
        FrontHalfOpen,
        FrontCutAfter,
        FrontEat,
        BackCut,
        BackHold,
        BackHalfOpen,
        BackCutAfter,
        BackEat,
        LeasesCut,
        LeasesHold,
        StoreSlow,
        StoreAmbiguous,
    ];

    /// Its name, and what it does.
    pub fn about(self) -> (&'static str, &'static str) {
        match self {
            WorkerStop => (
                "worker-stop",
                "a worker is frozen for longer than its lease",
            ),
            WorkerKill => ("worker-kill", "a worker is killed, and another one started"),
            ProxyStop => ("proxy-stop", "the proxy is frozen"),
            ProxyKill => ("proxy-kill", "the proxy is killed and started again"),
            ProxyRestart => (
                "proxy-restart",
                "the proxy is stopped in order and started again",
            ),
            EtcdStop => (
                "etcd-stop",
                "etcd, or one of its members, is frozen: the leader mostly",
            ),
            EtcdKill => (
                "etcd-kill",
                "etcd, or one of its members, is killed and started again: the leader mostly",
            ),
            EtcdQuorum => ("etcd-quorum", "etcd has no majority"),
            EtcdCompact => ("etcd-compact", "etcd forgets its history"),
            FrontCut => (
                "front-cut",
                "connections between workers and proxy are reset",
            ),
            FrontHold => ("front-hold", "nothing passes between workers and proxy"),
            FrontHalfOpen => (
                "front-half-open",
                "workers' connections end, and the proxy is not told",
            ),
            FrontCutAfter => (
                "front-cut-after",
                "workers' connections are reset after some bytes",
            ),
            FrontEat => ("front-eat", "answers to the workers are lost"),
            BackCut => (
                "back-cut",
                "connections between proxy and datastore are reset",
            ),
            BackHold => ("back-hold", "nothing passes between proxy and datastore"),
            BackHalfOpen => (
                "back-half-open",
                "the proxy's connections end, and the datastore is not told",
            ),
            BackCutAfter => (
                "back-cut-after",
                "connections to the datastore are reset after some bytes",
            ),
            BackEat => ("back-eat", "the datastore's answers are lost"),
            LeasesCut => ("leases-cut", "connections between proxy and etcd are reset"),
            LeasesHold => ("leases-hold", "nothing passes between proxy and etcd"),
            StoreSlow => ("store-slow", "the datastore applies late"),
            StoreAmbiguous => (
                "store-ambiguous",
                "the datastore hangs up, answers 202 or 504, and applies later or never",
            ),
        }
    }

    fn on(self) -> On {
        match self {
            WorkerStop | WorkerKill => On::Worker,
            ProxyStop | ProxyKill | ProxyRestart => On::Proxy,
            EtcdStop | EtcdKill | EtcdQuorum | EtcdCompact => On::Etcd,
            FrontCut | FrontHold | FrontHalfOpen | FrontCutAfter | FrontEat => On::Front,
            BackCut | BackHold | BackHalfOpen | BackCutAfter | BackEat => On::Back,
            LeasesCut | LeasesHold => On::Leases,
            StoreSlow => On::Slow,
            StoreAmbiguous => On::Ambiguous,
        }
    }

    /// How long it may last, in milliseconds.
    fn lasts(self) -> std::ops::Range<u64> {
        match self {
            WorkerStop => 2_500..4_500,
            EtcdStop | EtcdQuorum | LeasesHold => 500..2_500,
            StoreSlow | StoreAmbiguous => 1_000..4_000,
            ProxyStop | FrontHold | FrontHalfOpen | FrontEat => 100..1_200,
            BackHold | BackHalfOpen | BackEat => 100..800,
            FrontCutAfter | BackCutAfter => 200..800,
            _ => 20..400,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.about().0)
    }
}

/// A fault, a group of them (`worker`, `back`), `all` or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl FromStr for Faults {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut faults = Vec::new();
        for word in list
            .split(',')
            .map(str::trim)
            .filter(|word| *word != "none")
        {
            let before = faults.len();
            // A fault's own name means that fault, even where it begins another's (`back-cut`, `back-cut-after`).
            let named = Fault::ALL.iter().any(|fault| fault.about().0 == word);
            let meant = Fault::ALL.into_iter().filter(|fault| {
                let name = fault.about().0;
                let in_group = || {
                    name.strip_prefix(word)
                        .is_some_and(|rest| rest.starts_with('-'))
                };
                word == "all" || name == word || (!named && in_group())
            });
            faults.extend(meant);
            if faults.len() == before {
                let known = Fault::ALL.map(|fault| fault.about().0).join(", ");
                return Err(format!(
                    "no fault is called `{word}`. There are: all, none, {known}"
                ));
            }
        }
        faults.sort_unstable();
        faults.dedup();
        Ok(Self(faults))
    }
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When it begins.
    pub at: Duration,
    /// When it ends.
    pub until: Duration,
    /// Which it is.
    pub fault: Fault,
    /// A number from which it takes whom it hits, and where.
    pub pick: u64,
}

/// The faults of a run, in the order of their beginning.
pub fn plan(seed: u64, time: Duration, faults: &[Fault]) -> Vec<Planned> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut planned: Vec<Planned> = Vec::new();
    let mut at = Duration::from_millis(500);
    while !faults.is_empty() {
        at += Duration::from_millis(random.u64(50..500));
        if at >= time {
            break;
        }
        let fault = faults[random.usize(..faults.len())];
        let until = at + Duration::from_millis(random.u64(fault.lasts()));
        let pick = random.u64(..);
        let busy = |p: &Planned| p.fault.on() == fault.on() && p.until >= at;
        if !planned.iter().rev().take(64).any(busy) {
            planned.push(Planned {
                at,
                until: until.min(time),
                fault,
                pick,
            });
        }
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        let first = plan(7, MINUTE, &Fault::ALL);
        assert_eq!(first, plan(7, MINUTE, &Fault::ALL));
        assert_ne!(first, plan(8, MINUTE, &Fault::ALL));
    }

    #[test]
    fn every_fault_comes_and_none_outlasts_the_run() {
        let planned = plan(1, MINUTE * 10, &Fault::ALL);
        for fault in Fault::ALL {
            assert!(planned.iter().any(|p| p.fault == fault), "{fault}");
        }
        assert!(planned.iter().all(|p| p.until <= MINUTE * 10));
        assert_eq!(plan(1, MINUTE, &[]), []);
    }

    #[test]
    fn two_faults_on_one_thing_do_not_overlap() {
        let planned = plan(3, MINUTE * 5, &Fault::ALL);
        for (index, one) in planned.iter().enumerate() {
            let later = &planned[index + 1..];
            let overlap = later
                .iter()
                .find(|other| other.fault.on() == one.fault.on() && other.at <= one.until);
            assert_eq!(overlap, None, "{one:?}");
        }
    }

    #[test]
    fn faults_are_named_one_by_one_or_as_a_group() {
        assert_eq!("worker".parse(), Ok(Faults(vec![WorkerStop, WorkerKill])));
        assert_eq!("back-cut,none".parse(), Ok(Faults(vec![BackCut])));
        assert_eq!(
            "all".parse::<Faults>().map(|f| f.0.len()),
            Ok(Fault::ALL.len())
        );
        assert!("work".parse::<Faults>().is_err());
    }
}
