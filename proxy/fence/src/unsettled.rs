//! The writes of one scope that upstream may still apply, by token.

use crate::{Time, Token};
use alloc::vec::Vec;

/// Writes with one token that are not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    token: Token,
    /// Started, and neither settled nor ambiguous.
    in_flight: u32,
    /// Ambiguous, and their settle time runs.
    settling: u32,
    /// When the last of `settling` is settled by time; [`Time::NEVER`] where an operator must say so.
    until: Time,
}

/// All of a scope's unsettled writes. Nearly always none or one token's, so a sorted vector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Unsettled(Vec<Entry>);

impl Unsettled {
    fn entry(&mut self, token: Token) -> &mut Entry {
        let at = match self.0.binary_search_by_key(&token, |e| e.token) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(
                    at,
                    Entry {
                        token,
                        in_flight: 0,
                        settling: 0,
                        until: Time::ZERO,
                    },
                );
                at
            }
        };
        &mut self.0[at]
    }

    pub(crate) fn start(&mut self, token: Token) {
        self.entry(token).in_flight += 1;
    }

    pub(crate) fn settle(&mut self, token: Token) {
        let entry = self.entry(token);
        assert!(
            entry.in_flight > 0,
            "a write is settled that was not in flight"
        );
        entry.in_flight -= 1;
        self.0.retain(|e| e.in_flight + e.settling > 0);
    }

    pub(crate) fn ambiguous(&mut self, token: Token, until: Time) {
        let entry = self.entry(token);
        assert!(
            entry.in_flight > 0,
            "a write is ambiguous that was not in flight"
        );
        entry.in_flight -= 1;
        entry.settling += 1;
        entry.until = entry.until.max(until);
    }

    /// Something from before the start that has this token or a smaller one.
    pub(crate) fn leftover(&mut self, token: Token, until: Time) {
        let entry = self.entry(token);
        entry.settling += 1;
        entry.until = entry.until.max(until);
    }

    /// Forgets what time has settled.
    pub(crate) fn pass(&mut self, now: Time) {
        if self.0.is_empty() {
            return;
        }
        for entry in &mut self.0 {
            if entry.until <= now {
                entry.settling = 0;
            }
        }
        self.0.retain(|e| e.in_flight + e.settling > 0);
    }

    /// An operator says that all that is ambiguous now is settled; how many that were.
    pub(crate) fn settle_ambiguous(&mut self) -> u32 {
        let settled = self.settling();
        for entry in &mut self.0 {
            entry.settling = 0;
        }
        self.0.retain(|e| e.in_flight > 0);
        settled
    }

    /// Whether a write with a token below this one may still be applied.
    pub(crate) fn below(&self, floor: Token) -> bool {
        self.0.first().is_some_and(|e| e.token < floor)
    }

    /// When time will have settled every write below `floor`: `None` while one is in flight, and [`Time::NEVER`] when an
    /// operator must say so.
    pub(crate) fn below_settles_at(&self, floor: Token) -> Option<Time> {
        let below = self.0.iter().take_while(|e| e.token < floor);
        below
            .map(|e| if e.in_flight > 0 { None } else { Some(e.until) })
            .try_fold(Time::ZERO, |a, b| b.map(|b| a.max(b)))
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.0.iter().map(|e| e.in_flight).sum()
    }

    pub(crate) fn settling(&self) -> u32 {
        self.0.iter().map(|e| e.settling).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
