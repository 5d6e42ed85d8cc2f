//! What a row and the run numbers mean together. Pure.
//!
//! A row's writes are unsettled when they may have been under way at a stop and nothing has settled them since:
//!
//! `max(row.settled, runs.all_settled) < max(runs.unclean, row.marked)`
//!
//! - `runs.unclean`: the latest run that began after an unclean stop. Writes from before it may be alive.
//! - `row.marked`: the run after the clean stop at which this scope was marked.
//! - `row.settled`, `runs.all_settled`: everything from before that run began is settled, in this scope or in all.

use super::Stored;
use palisade_fence::Token;

/// A scope's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) floor: u64,
    pub(super) opened: bool,
    pub(super) settled: u64,
    pub(super) marked: u64,
}

/// The run numbers, and the floor below which a new epoch closed every scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    /// The run that is under way.
    pub(super) run: u64,
    /// The latest run that began after an unclean stop; 0 if none.
    pub(super) unclean: u64,
    /// Everything from before this run is settled.
    pub(super) all_settled: u64,
    /// The least floor of every scope, with or without a row; 0 if there was no new epoch.
    pub(super) base: u64,
    /// The run that the latest new epoch began.
    pub(super) base_run: u64,
}

impl Runs {
    /// Whether something from before this run may be unsettled in every scope.
    pub(super) fn leftovers(&self) -> bool {
        self.all_settled < self.unclean
    }

    /// What a scope without a row counts as having settled. Nothing was ever written there by this proxy, except by
    /// one whose state was lost: a new epoch is the remedy for that, so there it is unsettled until that is waited out.
    pub(super) fn untouched(&self) -> u64 {
        if self.base == 0 || self.all_settled >= self.base_run {
            self.run
        } else {
            0
        }
    }
}

/// What stands on disk for a scope; `None` if nothing does. `Err` for a floor that no token can be.
pub(super) fn stored(row: Option<Row>, runs: &Runs) -> Result<Option<Stored>, u64> {
    let row = match row {
        Some(row) => row,
        None if runs.base == 0 => return Ok(None),
        None => Row {
            floor: 0,
            opened: false,
            settled: runs.untouched(),
            marked: 0,
        },
    };
    let floor = row.floor.max(runs.base);
    Ok(Some(Stored {
        floor: Token::new(floor).ok_or(floor)?,
        opened: row.opened && row.floor == floor,
        unsettled: row.settled.max(runs.all_settled) < runs.unclean.max(row.marked),
    }))
}
