//! What must hold of a run, judged from its log alone. Pure: planted bad histories show that each rule is looked at.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

/// What happened, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The lease store granted the lease.
    Granted { token: u64 },
    /// The lease is free again.
    Freed { token: u64 },
    /// A worker began a request.
    Began {
        id: u32,
        write: bool,
        token: Option<u64>,
    },
    /// A worker read a response's head.
    Told {
        id: u32,
        outcome: String,
        status: u16,
        problem: Option<String>,
    },
    /// Upstream got a request's head.
    Arrived { id: u32 },
    /// Upstream applied a write.
    Applied { id: u32, token: u64 },
    /// Upstream looked at its data for a fenced read.
    Read { id: u32, token: u64 },
    /// Upstream began to answer.
    Answered { id: u32, status: u16 },
    /// After all faults had stopped: the current holder's write and read were answered.
    Through,
    /// A fault, for whoever reads the log.
    Fault(String),
}

/// An event and when it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at: Duration,
    pub event: Event,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} {:?}", self.at.as_secs_f64(), self.event)
    }
}

/// What a run can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// G2: applied tokens never go back.
    Order,
    /// G3: a fenced read sees every older write that will ever be applied.
    FencedRead,
    /// G4: what was refused never reaches upstream.
    RefusedArrived,
    /// A write is sent once. (A read may be sent once more, on another connection.)
    SentTwice,
    /// A write is applied once.
    AppliedTwice,
    /// G4: "answered" is upstream's own answer.
    NotUpstreams,
    /// G4: status and outcome say the same; unknown is no failure and no success.
    Dressed,
    /// Who holds the lease from the request to its refusal is not told to be stale.
    LockedOut,
    /// When the faults have stopped, the current holder gets through.
    Stuck,
}

/// A broken rule, and the entry at which it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub entry: usize,
}

#[derive(Default)]
struct Request {
    token: Option<u64>,
    read: bool,
    /// It came from the lease's holder, who has been that since.
    held: bool,
    refused: bool,
    arrived: bool,
    answered: Option<u16>,
}

/// The first rule that the log breaks.
pub fn check(log: &[Entry]) -> Result<(), Violation> {
    let mut history = History::default();
    for (entry, Entry { event, .. }) in log.iter().enumerate() {
        history
            .take(event)
            .map_err(|rule| Violation { rule, entry })?;
    }
    if history.through {
        Ok(())
    } else {
        Err(Violation {
            rule: Rule::Stuck,
            entry: log.len().saturating_sub(1),
        })
    }
}

#[derive(Default)]
struct History {
    requests: BTreeMap<u32, Request>,
    applied: BTreeSet<u32>,
    grant: Option<u64>,
    /// The highest token of an applied write.
    written: u64,
    /// The highest token of a fenced read.
    read: u64,
    through: bool,
}

impl History {
    fn take(&mut self, event: &Event) -> Result<(), Rule> {
        match event {
            Event::Granted { token } => self.granted(Some(*token)),
            Event::Freed { .. } => self.granted(None),
            Event::Began { id, token, write } => {
                let held = token.is_some() && *token == self.grant;
                let request = Request {
                    token: *token,
                    read: !write,
                    held,
                    ..Request::default()
                };
                self.requests.insert(*id, request);
            }
            Event::Told {
                id,
                outcome,
                status,
                problem,
            } => return self.told(*id, outcome, *status, problem.as_deref()),
            Event::Arrived { id } => return self.arrived(*id),
            Event::Applied { id, token } => return self.applied(*id, *token),
            Event::Read { token, .. } => {
                self.read = self.read.max(*token);
            }
            Event::Answered { id, status } => self.request(*id).answered = Some(*status),
            Event::Through => self.through = true,
            Event::Fault(_) => {}
        }
        Ok(())
    }

    fn request(&mut self, id: u32) -> &mut Request {
        self.requests.entry(id).or_default()
    }

    fn granted(&mut self, grant: Option<u64>) {
        self.grant = grant;
        for request in self.requests.values_mut() {
            request.held &= request.token == grant;
        }
    }

    fn told(
        &mut self,
        id: u32,
        outcome: &str,
        status: u16,
        problem: Option<&str>,
    ) -> Result<(), Rule> {
        let request = self.request(id);
        match outcome {
            "refused" if request.arrived => Err(Rule::RefusedArrived),
            "refused" if status < 400 => Err(Rule::Dressed),
            "refused" => {
                request.refused = true;
                let stale = matches!(problem, Some("stale-token" | "superseded" | "not-holder"));
                if request.held && stale {
                    return Err(Rule::LockedOut);
                }
                Ok(())
            }
            "answered" if request.answered == Some(status) => Ok(()),
            "answered" => Err(Rule::NotUpstreams),
            "unknown" if matches!(status, 502 | 504) => Ok(()),
            _ => Err(Rule::Dressed),
        }
    }

    fn arrived(&mut self, id: u32) -> Result<(), Rule> {
        let request = self.request(id);
        if request.refused {
            return Err(Rule::RefusedArrived);
        }
        if std::mem::replace(&mut request.arrived, true) && !request.read {
            return Err(Rule::SentTwice);
        }
        Ok(())
    }

    fn applied(&mut self, id: u32, token: u64) -> Result<(), Rule> {
        if !self.applied.insert(id) {
            return Err(Rule::AppliedTwice);
        }
        if token < self.written {
            return Err(Rule::Order);
        }
        if token < self.read {
            return Err(Rule::FencedRead);
        }
        self.written = token;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::{Answered, Applied, Arrived, Freed, Granted, Read, Through};

    fn broken(events: impl IntoIterator<Item = Event>) -> Option<Rule> {
        let log: Vec<_> = events
            .into_iter()
            .map(|event| Entry {
                at: Duration::ZERO,
                event,
            })
            .collect();
        check(&log).err().map(|violation| violation.rule)
    }

    fn began(id: u32, token: u64) -> Event {
        Event::Began {
            id,
            write: true,
            token: Some(token),
        }
    }

    fn told(id: u32, outcome: &str, status: u16, problem: Option<&str>) -> Event {
        Event::Told {
            id,
            outcome: outcome.into(),
            status,
            problem: problem.map(Into::into),
        }
    }

    #[test]
    fn an_ordinary_handover_is_fine() {
        let story = [
            Granted { token: 33 },
            began(1, 33),
            Arrived { id: 1 },
            Applied { id: 1, token: 33 },
            Freed { token: 33 },
            Granted { token: 34 },
            told(1, "unknown", 504, Some("outcome-unknown")),
            Read { id: 2, token: 34 },
            began(3, 33),
            told(3, "refused", 412, Some("stale-token")),
            began(4, 34),
            Arrived { id: 4 },
            Applied { id: 4, token: 34 },
            Answered { id: 4, status: 200 },
            told(4, "answered", 200, None),
            Through,
        ];
        assert_eq!(broken(story), None);
    }

    #[test]
    fn each_rule_is_looked_at() {
        let of = |id, token| Applied { id, token };
        let cases: [(Rule, Vec<Event>); 11] = [
            (Rule::Order, vec![of(1, 34), of(2, 33)]),
            (Rule::FencedRead, vec![Read { id: 1, token: 34 }, of(2, 33)]),
            (Rule::AppliedTwice, vec![of(1, 34), of(1, 34)]),
            (Rule::SentTwice, vec![Arrived { id: 1 }, Arrived { id: 1 }]),
            (
                Rule::RefusedArrived,
                vec![told(1, "refused", 412, None), Arrived { id: 1 }],
            ),
            (
                Rule::RefusedArrived,
                vec![Arrived { id: 1 }, told(1, "refused", 502, None)],
            ),
            (Rule::NotUpstreams, vec![told(1, "answered", 200, None)]),
            (Rule::Dressed, vec![told(1, "unknown", 500, None)]),
            (Rule::Dressed, vec![told(1, "refused", 200, None)]),
            (
                Rule::LockedOut,
                vec![
                    Granted { token: 33 },
                    began(1, 33),
                    told(1, "refused", 412, Some("not-holder")),
                ],
            ),
            (Rule::Stuck, vec![]),
        ];
        for (rule, story) in cases {
            assert_eq!(broken(story.clone()), Some(rule), "{story:?}");
        }
    }
}
