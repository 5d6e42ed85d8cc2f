//! A request at the gate, and what is decided on it.

use super::{ReadId, Unreadable};
use crate::Token;

/// A request at the gate: its token, and what had happened when it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrival {
    pub(super) token: Token,
    /// How many reads had been sent. Only the "no" of a later one is for this request.
    pub(super) reads: ReadId,
    /// How many attempts to make a floor durable had failed. Only a later failure is for this request.
    pub(super) failures: u64,
    /// Whether its token was the floor once: then a newer one supersedes it, rather than finding it stale.
    pub(super) accepted: bool,
}

impl Arrival {
    /// The request's token.
    pub const fn token(&self) -> Token {
        self.token
    }
}

/// What is to be done with a request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// A read may be forwarded. A write calls [`Scope::start`](crate::Scope::start) when its first byte is about to leave.
    Admit,
    /// Ask again after the next event, or at [`Scope::opens_at`](crate::Scope::opens_at).
    Wait,
    /// It is not forwarded, and never will be.
    Refuse(Refused),
}

/// Why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// Its token is older than the floor.
    Stale {
        /// The floor.
        highest: Token,
    },
    /// Its token was accepted, and then a newer one closed the scope.
    Superseded {
        /// The floor.
        highest: Token,
    },
    /// Its token is above the floor, but not the lease's current grant.
    NotHolder {
        /// The floor, if there is one.
        highest: Option<Token>,
    },
    /// Its token is above the floor, and the lease store can't be asked.
    Unreadable(Unreadable),
    /// The floor can't be made durable.
    Storage,
}

/// A newer token closed the scope before anything was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Superseded {
    /// The floor.
    pub highest: Token,
}
