//! What the checker knows of one scope.

use super::{Property, Violation};
use crate::history::RequestId;
use std::collections::{BTreeMap, HashSet};

#[derive(Debug)]
pub(super) struct Scope {
    pub(super) name: String,
    granted: HashSet<u64>,
    /// The applied write with the highest token, the last of those.
    newest: Option<Write>,
    /// By token: the last applied write with it.
    last: BTreeMap<u64, Write>,
    /// The answered read with the highest token.
    read: Option<Read>,
    /// By proxy.
    proxies: BTreeMap<u64, Floor>,
    /// When a request last succeeded.
    pub(super) last_success: Option<u64>,
}

/// What is known of a scope's floor at one proxy.
#[derive(Debug, Default)]
struct Floor {
    /// The highest that had opened, and the line of the last look at it.
    opened: Option<(u64, u64)>,
    /// The line of the last look.
    looked: Option<u64>,
    /// The write with the highest token that was applied through this proxy.
    newest: Option<Write>,
}

/// An applied write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) line: u64,
    pub(super) id: RequestId,
    pub(super) token: u64,
    pub(super) position: u64,
    pub(super) proxy: u64,
}

/// An answered read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) line: u64,
    pub(super) invoked: u64,
    pub(super) id: RequestId,
    pub(super) token: u64,
    pub(super) seen: u64,
}

impl Scope {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            granted: HashSet::new(),
            newest: None,
            last: BTreeMap::new(),
            read: None,
            proxies: BTreeMap::new(),
            last_success: None,
        }
    }

    /// Whether the grant is a handover: not the first one.
    pub(super) fn grant(&mut self, token: u64) -> bool {
        self.granted.insert(token);
        self.granted.len() > 1
    }

    pub(super) fn apply(&mut self, write: Write, invoked: Option<u64>) -> Vec<Violation> {
        let Write {
            line, id, token, ..
        } = write;
        let mut found = Vec::new();
        let mut say = |property, says, other: &[u64]| {
            let mut lines = Vec::from(other);
            lines.extend(invoked);
            lines.push(line);
            lines.sort_unstable();
            found.push(Violation {
                property,
                says,
                lines,
            });
        };
        let scope = &self.name;
        if !self.granted.contains(&token) {
            let says = format!(
                "write {id} was applied to `{scope}` with token {token}, which nobody was granted for it."
            );
            say(Property::Granted, says, &[]);
        }
        match self.newest {
            Some(newest) if token < newest.token => {
                let says = format!(
                    "write {id} with token {token} was applied to `{scope}` after write {} with token {}.",
                    newest.id, newest.token
                );
                say(Property::Order, says, &[newest.line]);
            }
            _ => self.newest = Some(write),
        }
        if let Some(read) = self.read
            && token < read.token
        {
            let says = format!(
                "write {id} with token {token} was applied to `{scope}` after read {} with token {} had been answered.",
                read.id, read.token
            );
            say(Property::ReadSeesAll, says, &[read.invoked, read.line]);
        }
        self.last.insert(token, write);
        let through = &mut self.proxies.entry(write.proxy).or_default().newest;
        if through.is_none_or(|newest| newest.token <= token) {
            *through = Some(write);
        }
        found
    }

    pub(super) fn read(&mut self, read: Read) -> Option<Violation> {
        if self.read.is_none_or(|known| known.token < read.token) {
            self.read = Some(read);
        }
        let missed = self
            .last
            .range(..read.token)
            .map(|(_, write)| write)
            .find(|write| write.position > read.seen)?;
        Some(Violation {
            property: Property::ReadSeesAll,
            says: format!(
                "read {} with token {} saw {} writes of `{}` and not write {} (number {}) with token {}.",
                read.id, read.token, read.seen, self.name, missed.id, missed.position, missed.token
            ),
            lines: vec![read.invoked, missed.line, read.line],
        })
    }

    pub(super) fn floor(
        &mut self,
        line: u64,
        proxy: u64,
        (floor, open): (u64, bool),
    ) -> Option<Violation> {
        let known = self.proxies.entry(proxy).or_default();
        let (opened, looked) = (known.opened, known.looked.replace(line));
        if open && opened.is_none_or(|(highest, _)| floor >= highest) {
            known.opened = Some((floor, line));
        }
        let scope = &self.name;
        let (says, other) = match (opened, known.newest) {
            (Some((highest, at)), _) if floor < highest => (
                format!(
                    "the floor of `{scope}` at proxy {proxy} had opened at {highest} and fell to {floor}."
                ),
                at,
            ),
            // This look began after the one before had ended: what had been applied by then must show in it.
            (_, Some(newest))
                if floor < newest.token && looked.is_some_and(|looked| looked > newest.line) =>
            {
                (
                    format!(
                        "the floor of `{scope}` at proxy {proxy} is {floor}, and write {} had been applied through it with \
                         token {}.",
                        newest.id, newest.token
                    ),
                    newest.line,
                )
            }
            _ => return None,
        };
        Some(Violation {
            property: Property::FloorNeverFalls,
            says,
            lines: vec![other, line],
        })
    }
}
