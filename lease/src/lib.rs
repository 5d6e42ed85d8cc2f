//! Leases with fencing tokens.

pub mod clock;
