//! The fence, pure: no I/O, no clock, no locks, no dependencies. Events in, decisions out. The server, the model checker
//! and the property tests run this same code.
//!
//! # The algorithm on one page
//!
//! Each [`Scope`] has a *floor*: the highest token accepted so far. It only moves up. A floor is *closed* at first (every
//! smaller token is refused) and has *opened* once every write with a smaller token is settled.
//!
//! ```text
//! request with token t            the scope decides
//! ----------------------------    ------------------------------------------------------------------
//! t < floor                       refuse: stale, or superseded if it had been accepted before
//! t = floor, opened               admit; a write then calls `start` right before its first byte leaves
//! t = floor, closed               wait
//! t > floor                       raise, in four steps:
//!                                   1 verify  `Action::Read`: is t the lease's current grant?
//!                                   2 close   floor = t; `Action::Close`: made durable, as not opened
//!                                   3 drain   wait until each smaller token's writes are settled
//!                                   4 open    admit t; `Action::RecordOpened`, some time later
//! ```
//!
//! A write is *settled* by an answer (see [`conclude`]) or when its settle time has passed. One that may still be applied
//! although nobody will say so is *ambiguous*, and its settle time runs.
//!
//! The shell round it feeds events in and carries the [`Action`]s out; each change may let waiting requests go on, so
//! they are asked again ([`Scope::decide`]) after every event, and at [`Scope::opens_at`].
#![no_std]

extern crate alloc;

mod group;
mod outcome;
mod rules;
mod scope;
mod stored;
mod time;
mod token;
mod unsettled;

pub use group::{Ack, Clearance, Group};
pub use outcome::{End, Outcome, Sent, conclude};
pub use scope::{
    Action, Arrival, Decision, ReadId, Reading, Refused, Scope, Superseded, Unreadable,
};
pub use stored::Stored;
pub use time::Time;
pub use token::{MalformedToken, Token};
#[cfg(feature = "sabotage")]
pub use {outcome::conclude_without, rules::Rule};
