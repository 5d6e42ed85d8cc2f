//! The checker. Pure: events in, in the order of time and each with the number of its line; violations out. One pass.
//!
//! It knows nothing of how a fence works. It compares what the datastore wrote down with what the workers were told.

mod epoch;
mod property;
mod scope;
#[cfg(test)]
mod tests;

pub use property::{Property, Violation};

use crate::history::{Event, Kind, RequestId, What};
use epoch::{Epochs, Sent};
use scope::{Read, Scope, Write};
use std::collections::{BTreeMap, HashMap};

/// What came of checking a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Everything that broke a property, in the order in which it was found.
    pub violations: Vec<Violation>,
    /// What was in it.
    pub counts: Counts,
    /// What stood before the datastore, if the history says so.
    pub proxy: String,
}

impl Verdict {
    /// How often a property was broken; `None` if the history has nothing to see it by.
    pub fn broken(&self, property: Property) -> Option<usize> {
        let blind = match property {
            Property::FloorNeverFalls => self.counts.floors == 0,
            Property::EpochKept => self.counts.epochs == 0,
            _ => false,
        };
        let all = self.violations.iter().filter(|v| v.property == property);
        let count = all.count();
        (count > 0 || !blind).then_some(count)
    }
}

/// What a history has in it. One without handovers and faults shows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests sent.
    pub requests: u64,
    /// Answered by the datastore.
    pub answered: u64,
    /// Refused by the proxy.
    pub refused: u64,
    /// Unknown, or without any outcome since the process died.
    pub unknown: u64,
    /// Writes applied.
    pub applied: u64,
    /// Grants after a scope's first.
    pub handovers: u64,
    /// Faults that began.
    pub faults: u64,
    /// Floors looked at.
    pub floors: u64,
    /// Proxies whose floors were looked at.
    pub proxies: u64,
    /// Jumps of a wall clock that a worker has seen.
    pub jumps: u64,
    /// New epochs that an operator began, at one proxy each.
    pub epochs: u64,
}

/// Checks a history event by event.
#[derive(Debug, Default)]
pub struct Checker {
    scopes: Vec<Scope>,
    names: HashMap<String, usize>,
    requests: HashMap<RequestId, Request>,
    verdict: Verdict,
    /// The proxies whose floors were looked at.
    looked_at: Vec<u64>,
    /// By proxy.
    epochs: BTreeMap<u64, Epochs>,
    /// In nanoseconds.
    recovers_within: u64,
    /// When the faults stopped, and in which line that stands.
    calm: Option<(u64, u64)>,
}

/// A request, and in which lines it is spoken of.
#[derive(Clone, Copy, Debug)]
struct Request {
    scope: usize,
    kind: Kind,
    token: u64,
    invoked: u64,
    outcome: Option<(Outcome, u64)>,
    /// The lines of its first two applications.
    applied: [Option<u64>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    Refused,
    Unknown,
}

impl Checker {
    /// Takes the next event.
    pub fn event(&mut self, line: u64, event: &Event) {
        let counts = &mut self.verdict.counts;
        match &event.what {
            What::Start {
                recovers_within_ms,
                scopes,
                proxy,
                ..
            } => {
                self.verdict.proxy.clone_from(proxy);
                self.recovers_within = recovers_within_ms * 1_000_000;
                for scope in scopes {
                    self.scope(scope);
                }
            }
            What::Granted { scope, token, .. } => {
                let scope = self.scope(scope);
                let handover = self.scopes[scope].grant(*token);
                self.verdict.counts.handovers += u64::from(handover);
            }
            What::Invoke {
                id,
                scope,
                token,
                kind,
                ..
            } => {
                let request = Request {
                    scope: self.scope(scope),
                    kind: *kind,
                    token: *token,
                    invoked: line,
                    outcome: None,
                    applied: [None, None],
                };
                self.verdict.counts.requests += 1;
                self.requests.insert(*id, request);
            }
            What::Answered { id, status, seen } => {
                counts.answered += 1;
                self.answered(line, event.at, *id, *status, *seen);
            }
            What::Refused { id, .. } => {
                counts.refused += 1;
                self.refused(line, *id);
            }
            What::Unknown { id, .. } => {
                counts.unknown += 1;
                self.conclude(line, *id, Outcome::Unknown);
            }
            What::Applied {
                id,
                scope,
                token,
                position,
                proxy,
            } => {
                counts.applied += 1;
                let write = Write {
                    line,
                    id: *id,
                    token: *token,
                    position: *position,
                    proxy: *proxy,
                };
                let scope = self.scope(scope);
                self.applied(scope, write);
            }
            What::Floor {
                scope,
                floor,
                proxy,
                open,
            } => {
                counts.floors += 1;
                if !self.looked_at.contains(proxy) {
                    self.looked_at.push(*proxy);
                    counts.proxies += 1;
                }
                let scope = self.scope(scope);
                let found = self.scopes[scope].floor(line, *proxy, (*floor, *open));
                self.verdict.violations.extend(found);
            }
            What::Frozen { proxy } => self.epochs.entry(*proxy).or_default().frozen(line),
            What::Epoch { proxy, floor } => {
                counts.epochs += 1;
                let found = self.epochs.entry(*proxy).or_default().begun(line, *floor);
                self.verdict.violations.extend(found);
            }
            What::Jumped { .. } => counts.jumps += 1,
            What::Fault { begins, .. } => counts.faults += u64::from(*begins),
            What::Calm => self.calm = Some((event.at, line)),
            What::End => self.end(line, event.at),
            What::Arrived { .. } => {}
        }
    }

    /// What it comes to at the end of the history.
    pub fn finish(mut self) -> Verdict {
        let mut twice: Vec<_> = self.requests.iter().collect();
        twice.retain(|(_, request)| request.applied[1].is_some());
        twice.sort_by_key(|(_, request)| request.applied[1]);
        for (id, request) in twice {
            let told = request.outcome.map(|(outcome, _)| outcome);
            let (property, told) = match told {
                Some(Outcome::Answered) => (Property::AppliedOnce, "answered"),
                Some(Outcome::Refused) => (Property::AppliedOnce, "refused"),
                Some(Outcome::Unknown) => (Property::UnknownAtMostOnce, "unknown"),
                None => (Property::UnknownAtMostOnce, "open: its process died"),
            };
            let says =
                format!("write {id} was sent once and applied twice; its outcome is {told}.");
            let found = request.violation(property, says, None);
            self.verdict.violations.push(found);
        }
        let late = self.epochs.values().flat_map(Epochs::finish);
        self.verdict.violations.extend(late);
        let silent = self.requests.values().filter(|r| r.outcome.is_none());
        self.verdict.counts.unknown += silent.count() as u64;
        self.verdict
    }

    /// The number of a scope.
    fn scope(&mut self, name: &str) -> usize {
        if let Some(&number) = self.names.get(name) {
            return number;
        }
        self.scopes.push(Scope::new(name));
        self.names.insert(name.to_owned(), self.scopes.len() - 1);
        self.scopes.len() - 1
    }

    fn conclude(&mut self, line: u64, id: RequestId, outcome: Outcome) -> Option<Request> {
        let request = self.requests.get_mut(&id)?;
        request.outcome = Some((outcome, line));
        Some(*request)
    }

    fn answered(&mut self, line: u64, at: u64, id: RequestId, status: u16, seen: Option<u64>) {
        let Some(request) = self.conclude(line, id, Outcome::Answered) else {
            return;
        };
        // 202 promises nothing yet.
        if !(200..300).contains(&status) || status == 202 {
            return;
        }
        let scope = &mut self.scopes[request.scope];
        scope.last_success = Some(at);
        let found = match (request.kind, seen) {
            (Kind::Write, _) if request.applied[0].is_none() => {
                let says = format!("write {id} was answered {status} and had not been applied.");
                Some(request.violation(Property::AnsweredIsApplied, says, None))
            }
            (Kind::Read, Some(seen)) => scope.read(Read {
                line,
                invoked: request.invoked,
                id,
                token: request.token,
                seen,
            }),
            _ => None,
        };
        self.verdict.violations.extend(found);
    }

    fn refused(&mut self, line: u64, id: RequestId) {
        let request = self.conclude(line, id, Outcome::Refused);
        if let Some(request) = request
            && request.applied[0].is_some()
        {
            let says = format!("write {id} had been applied, and was then said to be refused.");
            let found = request.violation(Property::RefusedNeverApplied, says, None);
            self.verdict.violations.push(found);
        }
    }

    fn applied(&mut self, scope: usize, write: Write) {
        let id = write.id;
        let request = self.requests.get_mut(&id);
        if let Some(request) = request {
            let first_free = request.applied.iter_mut().find(|line| line.is_none());
            first_free.into_iter().for_each(|l| *l = Some(write.line));
            if let Some((Outcome::Refused, _)) = request.outcome {
                let says = format!("write {id} was refused, and was applied all the same.");
                let found = request.violation(Property::RefusedNeverApplied, says, None);
                self.verdict.violations.push(found);
            }
        }
        let invoked = self.requests.get(&id).map(|request| request.invoked);
        let found = self.scopes[scope].apply(write, invoked);
        self.verdict.violations.extend(found);
        if let (Some(invoked), Some(epochs)) = (invoked, self.epochs.get_mut(&write.proxy)) {
            let found = epochs.apply(Sent {
                id,
                token: write.token,
                proxy: write.proxy,
                invoked,
                line: write.line,
            });
            self.verdict.violations.extend(found);
        }
    }

    fn end(&mut self, line: u64, at: u64) {
        let Some((calm, calm_line)) = self.calm else {
            return;
        };
        for scope in &self.scopes {
            // A run that ended before the time was over can't say that it was not kept.
            let late = at.saturating_sub(calm) >= self.recovers_within;
            if late && scope.last_success.is_none_or(|success| success < calm) {
                self.verdict.violations.push(Violation {
                    property: Property::Recovers,
                    says: format!(
                        "no request for `{}` succeeded within {} s after the faults had stopped.",
                        scope.name,
                        self.recovers_within / 1_000_000_000
                    ),
                    lines: vec![calm_line, line],
                });
            }
        }
    }
}

impl Request {
    /// A violation with all lines that speak of this request.
    fn violation(&self, property: Property, says: String, more: Option<u64>) -> Violation {
        let mut lines = vec![self.invoked];
        lines.extend(self.applied.into_iter().flatten());
        lines.extend(self.outcome.map(|(_, line)| line));
        lines.extend(more);
        lines.sort_unstable();
        Violation {
            property,
            says,
            lines,
        }
    }
}
