//! What the checker knows of freezes and new epochs at one proxy.

use super::{Property, Violation};
use crate::history::RequestId;

/// The epochs of a proxy.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// In the order of time.
    all: Vec<Epoch>,
}

#[derive(Debug)]
struct Epoch {
    /// The line from which on nothing of the time before is let in.
    frozen: u64,
    /// The floor with which it begins, and the line of that.
    begun: Option<(u64, u64)>,
    /// What was applied before it began, though it was sent after the freeze: new if the floor, once known, is not above it.
    doubtful: Vec<Sent>,
}

/// A write that was applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) id: RequestId,
    pub(super) token: u64,
    pub(super) proxy: u64,
    /// The line in which it was about to be sent.
    pub(super) invoked: u64,
    /// The line in which it was applied.
    pub(super) line: u64,
}

impl Epochs {
    /// The proxy says that it lets nothing in.
    pub(super) fn frozen(&mut self, line: u64) {
        // Frozen twice is frozen since the first time.
        if self.all.last().is_none_or(|epoch| epoch.begun.is_some()) {
            self.all.push(Epoch {
                frozen: line,
                begun: None,
                doubtful: Vec::new(),
            });
        }
    }

    /// An operator has begun a new epoch.
    pub(super) fn begun(&mut self, line: u64, floor: u64) -> Vec<Violation> {
        self.frozen(line);
        let Some(epoch) = self.all.last_mut() else {
            return Vec::new();
        };
        epoch.begun = Some((floor, line));
        let mut found = std::mem::take(&mut epoch.doubtful);
        found.retain(|sent| sent.token < floor);
        found.iter().map(|sent| epoch.violation(*sent)).collect()
    }

    /// A write has been applied through this proxy.
    pub(super) fn apply(&mut self, sent: Sent) -> Option<Violation> {
        let since = |epoch: &&mut Epoch| epoch.frozen < sent.invoked;
        let epoch = self.all.iter_mut().rev().find(since)?;
        match epoch.begun {
            Some((floor, _)) if sent.token >= floor => None,
            Some(_) => Some(epoch.violation(sent)),
            None => {
                epoch.doubtful.push(sent);
                None
            }
        }
    }

    /// What was let in by a proxy that was frozen to the end.
    pub(super) fn finish(&self) -> Vec<Violation> {
        let open = self.all.iter().filter(|epoch| epoch.begun.is_none());
        open.flat_map(|epoch| epoch.doubtful.iter().map(|sent| epoch.violation(*sent)))
            .collect()
    }
}

impl Epoch {
    fn violation(&self, sent: Sent) -> Violation {
        let Sent {
            id, token, proxy, ..
        } = sent;
        let mut lines = vec![self.frozen, sent.invoked, sent.line];
        let says = match self.begun {
            Some((floor, line)) => {
                lines.push(line);
                format!(
                    "write {id} with token {token}, sent after proxy {proxy} had frozen, was applied through it; the new epoch \
                     begins with {floor}."
                )
            }
            None => format!(
                "write {id} with token {token}, sent after proxy {proxy} had frozen, was applied through it, and no new epoch \
                 began."
            ),
        };
        lines.sort_unstable();
        lines.dedup();
        Violation {
            property: Property::EpochKept,
            says,
            lines,
        }
    }
}
