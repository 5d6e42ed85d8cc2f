//! What a history tells, in the order in which it is drawn. Pure: events in, each with the number of its line.

use crate::{
    check::{Checker, Verdict},
    history::{Event, Kind, RequestId, What},
};
use std::collections::{BTreeMap, HashMap};

/// Everything of a run that a report shows.
#[derive(Debug, Default)]
pub struct Timeline {
    pub(super) seed: Option<u64>,
    pub(super) proxy: String,
    pub(super) command: Option<String>,
    pub(super) scopes: BTreeMap<String, Lane>,
    pub(super) faults: Vec<Fault>,
    pub(super) calm: Option<f64>,
    /// Its last line was there.
    pub(super) ended: bool,
    /// Seconds.
    pub(super) end: f64,
    /// How often each reason refused: writes and reads.
    pub(super) reasons: BTreeMap<(String, u16), (u64, u64)>,
    /// Where the history stops being readable, in words.
    pub(super) damage: Option<String>,
    pub(super) verdict: Verdict,
    checker: Checker,
    requests: HashMap<RequestId, (String, u64, Kind)>,
    /// When each line was, and of which scope and token it speaks: violations name lines.
    lines: Vec<(f64, Option<(u32, u64)>)>,
    names: Vec<String>,
}

/// One scope.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// In the order in which they were given.
    pub(super) grants: Vec<Grant>,
    pub(super) dots: Vec<Dot>,
}

/// A lease that was given.
#[derive(Debug, PartialEq)]
pub(super) struct Grant {
    pub(super) at: f64,
    pub(super) token: u64,
    pub(super) process: u64,
}

/// A write, when its fate was known.
#[derive(Debug, PartialEq)]
pub(super) struct Dot {
    pub(super) at: f64,
    pub(super) token: u64,
    pub(super) fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    Applied,
    Refused,
    Unknown,
}

/// A fault, from its beginning to its end.
#[derive(Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) name: String,
    pub(super) target: String,
    pub(super) from: f64,
    /// `None`: it did not end before the run did.
    pub(super) to: Option<f64>,
}

/// A violation in the picture.
#[derive(Debug, PartialEq)]
pub(super) struct Mark {
    pub(super) at: f64,
    pub(super) scope: Option<String>,
    pub(super) token: Option<u64>,
    pub(super) says: String,
}

impl Timeline {
    /// From a whole history. One that stops in the middle is shown as far as it goes, and that is said.
    pub fn read(events: impl Iterator<Item = std::io::Result<(u64, Event)>>) -> Self {
        let mut timeline = Self::default();
        for event in events {
            match event {
                Ok((line, event)) => timeline.event(line, &event),
                Err(error) => {
                    timeline.damage = Some(error.to_string());
                    break;
                }
            }
        }
        timeline.finish()
    }

    fn event(&mut self, line: u64, event: &Event) {
        self.checker.event(line, event);
        let at = event.at as f64 / 1e9;
        self.end = self.end.max(at);
        let about = self.about(&event.what);
        let index = line.saturating_sub(1) as usize;
        if self.lines.len() <= index {
            self.lines.resize(index + 1, (at, None));
        }
        self.lines[index] = (at, about);
        match &event.what {
            What::Start {
                seed,
                proxy,
                scopes,
                command,
                ..
            } => {
                self.seed = Some(*seed);
                proxy.clone_into(&mut self.proxy);
                self.command.clone_from(command);
                for scope in scopes {
                    self.scopes.entry(scope.clone()).or_default();
                }
            }
            What::Granted {
                scope,
                token,
                process,
            } => self.lane(scope).grants.push(Grant {
                at,
                token: *token,
                process: *process,
            }),
            What::Invoke {
                id,
                scope,
                token,
                kind,
                ..
            } => {
                self.requests.insert(*id, (scope.clone(), *token, *kind));
            }
            What::Applied { scope, token, .. } => {
                self.dot(scope, at, *token, Fate::Applied);
            }
            What::Refused { id, status, reason } => {
                let request = self.requests.remove(id);
                let count = self
                    .reasons
                    .entry((reason.clone(), *status))
                    .or_insert((0, 0));
                match request {
                    Some((scope, token, Kind::Write)) => {
                        count.0 += 1;
                        self.dot(&scope, at, token, Fate::Refused);
                    }
                    _ => count.1 += 1,
                }
            }
            What::Unknown { id, .. } => {
                if let Some((scope, token, Kind::Write)) = self.requests.remove(id) {
                    self.dot(&scope, at, token, Fate::Unknown);
                }
            }
            What::Answered { id, .. } => {
                self.requests.remove(id);
            }
            What::Fault {
                name,
                target,
                begins,
            } => self.fault(name, target, *begins, at),
            What::Calm => self.calm = Some(at),
            What::End => self.ended = true,
            _ => {}
        }
    }

    /// The number of the scope that an event speaks of, and the token.
    fn about(&mut self, what: &What) -> Option<(u32, u64)> {
        let (scope, token) = match what {
            What::Granted { scope, token, .. }
            | What::Invoke { scope, token, .. }
            | What::Applied { scope, token, .. }
            | What::Floor {
                scope,
                floor: token,
                ..
            } => (scope, *token),
            What::Answered { id, .. } | What::Refused { id, .. } | What::Unknown { id, .. } => {
                let (scope, token, _) = self.requests.get(id)?;
                (scope, *token)
            }
            _ => return None,
        };
        let known = self.names.iter().position(|name| name == scope);
        let number = known.unwrap_or_else(|| {
            self.names.push(scope.clone());
            self.names.len() - 1
        });
        Some((u32::try_from(number).ok()?, token))
    }

    fn fault(&mut self, name: &str, target: &str, begins: bool, at: f64) {
        if begins {
            self.faults.push(Fault {
                name: name.to_owned(),
                target: target.to_owned(),
                from: at,
                to: None,
            });
            return;
        }
        let open = self
            .faults
            .iter_mut()
            .rev()
            .find(|fault| fault.to.is_none() && fault.name == name && fault.target == target);
        if let Some(fault) = open {
            fault.to = Some(at);
        }
    }

    fn dot(&mut self, scope: &str, at: f64, token: u64, fate: Fate) {
        self.lane(scope).dots.push(Dot { at, token, fate });
    }

    fn lane(&mut self, scope: &str) -> &mut Lane {
        self.scopes.entry(scope.to_owned()).or_default()
    }

    fn finish(mut self) -> Self {
        self.verdict = std::mem::take(&mut self.checker).finish();
        self
    }

    /// The violations, each at its last line.
    pub(super) fn marks(&self) -> Vec<Mark> {
        let line = |number: u64| self.lines.get(number.saturating_sub(1) as usize);
        let violations = self.verdict.violations.iter();
        violations
            .map(|violation| {
                let lines = || violation.lines.iter().filter_map(|number| line(*number));
                let about = lines().rev().find_map(|(_, about)| *about);
                Mark {
                    at: lines().next_back().map_or(self.end, |(at, _)| *at),
                    scope: about.and_then(|(scope, _)| self.names.get(scope as usize).cloned()),
                    token: about.map(|(_, token)| token),
                    says: format!("P{}", violation.property.number()),
                }
            })
            .collect()
    }

    /// The moment that is worth a closer look, of a length in seconds: around the first violation, else where the most writes were
    /// refused or unknown.
    pub(super) fn moment(&self, length: f64) -> f64 {
        if let Some(mark) = self.marks().first() {
            return (mark.at - length / 2.0).clamp(0.0, (self.end - length).max(0.0));
        }
        let mut best = (0, 0.0);
        let mut from = 0.0;
        while from < self.end {
            let late = self
                .scopes
                .values()
                .flat_map(|lane| &lane.dots)
                .filter(|dot| dot.fate != Fate::Applied && (from..from + length).contains(&dot.at))
                .count();
            if late > best.0 {
                best = (late, from);
            }
            from += length / 2.0;
        }
        best.1
    }
}
