//! What has gone wrong for people who lock, lease and fence, tried on real processes: the program `palisade`, a real etcd where
//! leases matter, and a datastore that writes down what reached it and what it applied.
//!
//! Tests that begin with `f` and a number are the incidents of the book's page of that name. Settle times are long wherever a
//! handover must wait for an event, and short only where the waiting itself is the point: so a slow machine changes no result.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped or measured is for whoever runs it"
)]

mod client;
mod crash;
mod disk;
mod epoch;
mod handover;
mod holder;
mod large;
mod logs;
mod million;
mod moves;
mod outcome;
mod settle;
mod stage;
mod stop;
mod upload;
