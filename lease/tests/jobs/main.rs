//! `palisade-lease run` with real jobs: exit codes, and what has gone wrong for others (`L` numbers: the list of
//! incidents). Jobs write to a log opened for appending, so the order of its lines is the order in which they acted.
#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod exits;
mod lost;
mod race;
mod show;
