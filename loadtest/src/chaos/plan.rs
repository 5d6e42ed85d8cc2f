//! Which fault comes when. Pure: the same seed gives the same plan.

use super::fault::Fault;
use std::time::Duration;

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

/// One time in so many a rare fault that is drawn does come.
const RARE: u64 = 4;

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
        let busy = |p: &Planned| p.until >= at && p.fault.shares(fault);
        let passed_over = fault.is_rare() && faults.len() > 1 && !pick.is_multiple_of(RARE);
        if !passed_over && !planned.iter().rev().take(64).any(busy) {
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
                .find(|other| other.fault.shares(one.fault) && other.at <= one.until);
            assert_eq!(overlap, None, "{one:?}");
        }
    }
}
