//! The last refusals, for people who look at the status page. Bounded; costs nothing but where something is refused.

use super::{Problem, Refusal};
use palisade_fence::Time;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, TryLockError},
};

/// How many are kept.
const KEPT: usize = 200;

/// A request that was refused, or whose fate is unknown. No path, no field, no body: they may carry secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recent {
    /// When, on the boot-time clock.
    pub at: Time,
    /// Why.
    pub problem: Problem,
    /// As it was answered.
    pub status: u16,
    /// Where it fell, if that was known by then.
    pub scope: Option<Arc<str>>,
    /// The token that it carried.
    pub token: Option<u64>,
}

/// The last ones, of all threads.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<VecDeque<Recent>>);

impl Refusals {
    /// Notes one. While another thread does the same this one is left out: no request waits for it, and metrics count all.
    pub fn note(&self, at: Time, refusal: &Refusal) {
        let mut kept = match self.0.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Recent {
            at,
            problem: refusal.problem,
            status: refusal.status().as_u16(),
            scope: refusal.scope.clone(),
            token: refusal.token.map(palisade_fence::Token::get),
        });
    }

    /// The last ones, the newest first.
    pub fn last(&self) -> Vec<Recent> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_come_first_and_old_ones_go() {
        let refusals = Refusals::default();
        for second in 0..KEPT as u64 + 3 {
            let at = Time::from_nanos(second);
            refusals.note(at, &Refusal::new(Problem::StaleToken));
        }
        let last = refusals.last();
        assert_eq!(last.len(), KEPT);
        assert_eq!(last[0].at, Time::from_nanos(KEPT as u64 + 2));
        assert_eq!(last[KEPT - 1].at, Time::from_nanos(3));
        assert_eq!(last[0].status, 412);
    }
}
