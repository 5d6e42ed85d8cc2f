//! The faults: their names, what each hits and for how long.

use std::{fmt, ops::Range, str::FromStr};

/// The enum and the list of all that is in it, so that neither has what the other has not.
macro_rules! faults {
    ($($name:ident,)*) => {
        /// A fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(
            missing_docs,
            reason = "the names say it, and `about` says it in words"
        )]
        pub enum Fault {
            $($name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: [Self; [$($name),*].len()] = [$($name),*];
        }
    };
}

faults! {
    WorkerStop,
    WorkerKill,
    ProxyStop,
    ProxyKill,
    ProxyRestart,
    DiskFull,
    ClockJump,
    EtcdStop,
    EtcdKill,
    EtcdRestart,
    EtcdLeader,
    EtcdQuorum,
    EtcdCompact,
    EtcdFull,
    EtcdRestore,
    EtcdRestoreAhead,
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
    LeasesHalfOpen,
    LeasesCutAfter,
    LeasesEat,
    StoreSlow,
    StoreAmbiguous,
}

use Fault::*;

/// What a fault hits. Two on the same thing do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Worker,
    Proxy,
    Disk,
    Clock,
    Etcd,
    Front,
    Back,
    Leases,
    Slow,
    Ambiguous,
}

impl Fault {
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
            DiskFull => ("disk-full", "the disk of the proxy's state folder is full"),
            ClockJump => (
                "clock-jump",
                "the wall clock of a proxy, or of the workers, is up to two hours wrong",
            ),
            EtcdStop => (
                "etcd-stop",
                "etcd, or one of its members, is frozen: the leader mostly",
            ),
            EtcdKill => (
                "etcd-kill",
                "etcd, or one of its members, is killed and started again: the leader mostly",
            ),
            EtcdRestart => (
                "etcd-restart",
                "etcd, or one of its members, is stopped in order and started again",
            ),
            EtcdLeader => ("etcd-leader", "etcd's leader hands over to another member"),
            EtcdQuorum => ("etcd-quorum", "etcd has no majority"),
            EtcdCompact => ("etcd-compact", "etcd forgets its history"),
            EtcdFull => (
                "etcd-full",
                "etcd's space is used up, until an operator makes room",
            ),
            EtcdRestore => (
                "etcd-restore",
                "etcd goes back to a snapshot: the proxies freeze, and an operator begins a new epoch",
            ),
            EtcdRestoreAhead => (
                "etcd-restore-ahead",
                "etcd goes back to a snapshot, with its revision pushed ahead (etcd 3.5)",
            ),
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
            LeasesHalfOpen => (
                "leases-half-open",
                "the proxy's connections end, and etcd is not told",
            ),
            LeasesCutAfter => (
                "leases-cut-after",
                "connections to etcd are reset after some bytes",
            ),
            LeasesEat => ("leases-eat", "etcd's answers to the proxy are lost"),
            StoreSlow => ("store-slow", "the datastore applies late"),
            StoreAmbiguous => (
                "store-ambiguous",
                "the datastore hangs up, answers 202 or 504, and applies later or never",
            ),
        }
    }

    /// What it hits.
    pub(super) fn on(self) -> &'static [On] {
        match self {
            WorkerStop | WorkerKill => &[On::Worker],
            ProxyStop | ProxyKill | ProxyRestart => &[On::Proxy],
            DiskFull => &[On::Disk],
            ClockJump => &[On::Clock],
            EtcdStop | EtcdKill | EtcdRestart | EtcdLeader | EtcdQuorum | EtcdCompact
            | EtcdFull | EtcdRestoreAhead => &[On::Etcd],
            // What the operator makes sure of: that every proxy is there to see it and can write it down, and that no job runs
            // before they have.
            EtcdRestore => &[On::Etcd, On::Leases, On::Proxy, On::Disk, On::Worker],
            FrontCut | FrontHold | FrontHalfOpen | FrontCutAfter | FrontEat => &[On::Front],
            BackCut | BackHold | BackHalfOpen | BackCutAfter | BackEat => &[On::Back],
            LeasesCut | LeasesHold | LeasesHalfOpen | LeasesCutAfter | LeasesEat => &[On::Leases],
            StoreSlow => &[On::Slow],
            StoreAmbiguous => &[On::Ambiguous],
        }
    }

    /// Whether it hits etcd.
    pub(super) fn hits_etcd(self) -> bool {
        self.on().contains(&On::Etcd)
    }

    /// Whether both hit the same thing.
    pub(super) fn shares(self, other: Self) -> bool {
        self.on().iter().any(|on| other.on().contains(on))
    }

    /// Whether it hits one of several proxies.
    pub(super) fn hits_a_proxy(self) -> bool {
        matches!(
            self.on(),
            [On::Proxy | On::Disk | On::Front | On::Back | On::Leases]
        )
    }

    /// Whether it comes only sometimes when it is drawn: what stops everything for long leaves no time for the others.
    pub(super) fn is_rare(self) -> bool {
        matches!(self, EtcdRestore | EtcdRestoreAhead | EtcdFull)
    }

    /// How long it may last, in milliseconds.
    pub(super) fn lasts(self) -> Range<u64> {
        match self {
            WorkerStop => 2_500..4_500,
            EtcdStop | EtcdQuorum | EtcdRestore | EtcdFull | LeasesHold | LeasesHalfOpen
            | LeasesEat => 500..2_500,
            StoreSlow | StoreAmbiguous | DiskFull | ClockJump => 1_000..4_000,
            ProxyStop | FrontHold | FrontHalfOpen | FrontEat => 100..1_200,
            BackHold | BackHalfOpen | BackEat => 100..800,
            FrontCutAfter | BackCutAfter | LeasesCutAfter => 200..800,
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

#[cfg(test)]
mod tests {
    use super::*;

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
