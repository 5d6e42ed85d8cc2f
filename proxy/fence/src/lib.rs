//! The fence, pure: no I/O, no clock, no locks, no dependencies. Events in, decisions out.
#![no_std]

mod time;
mod token;

pub use time::Time;
pub use token::{MalformedToken, Token};
