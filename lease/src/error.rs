//! What can go wrong, by what a caller would do about it.

use crate::{
    BadName, LeaseName,
    holder::{Loss, Refusal},
    record::Record,
    store::StoreError,
};
use palisade_fence::Token;
use std::fmt;

/// Why a lease was not granted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AcquireError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The options contradict each other.
    #[error("{0}")]
    Options(&'static str),
    /// Somebody else holds it, and one did not want to wait, or not any longer.
    #[error(transparent)]
    Held(Box<Held>),
    /// The lease store refuses, or can't be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A lease that somebody else holds.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Held {
    /// The lease.
    pub name: LeaseName,
    /// The holder's token; `None` when it is free at this moment but others wait for it.
    pub token: Option<Token>,
    /// What the holder wrote of itself.
    pub by: Option<Record>,
    /// Whether one waited for it in vain.
    pub waited: bool,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lease {} is ", self.name)?;
        match (&self.by, self.token) {
            (Some(by), _) => write!(f, "held by {} since {}", by.holder, by.acquired_at)?,
            (None, Some(token)) => write!(f, "held with token {token}")?,
            (None, None) => f.write_str("waited for by others")?,
        }
        if self.waited {
            f.write_str(", and the waiting time is over")
        } else {
            Ok(())
        }
    }
}

/// A lease that is no longer held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease {name} (token {token}) is lost: {loss}")]
pub struct Lost {
    /// The lease.
    pub name: LeaseName,
    /// The token that is good for nothing any more.
    pub token: Token,
    /// Why.
    pub loss: Loss,
}

impl AcquireError {
    pub(crate) fn from_refusal(name: &LeaseName, refusal: Refusal) -> Self {
        let (view, waited) = match refusal {
            Refusal::Busy(view) => (Some(view), false),
            Refusal::TimedOut(view) => (view, true),
            Refusal::Store(error) => return Self::Store(error),
        };
        let view = view.as_ref();
        Self::Held(Box::new(Held {
            name: name.clone(),
            token: view.and_then(|v| v.holder).map(|seen| seen.token),
            by: view.and_then(|v| v.record.clone()),
            waited,
        }))
    }
}
