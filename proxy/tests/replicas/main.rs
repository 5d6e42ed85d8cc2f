//! Several replicas in front of one datastore: real proxies in processes of their own, a real etcd, and a datastore that writes
//! down what reached it and what it applied.
//!
//! They need etcd 3.5.13 or newer, which `scripts/newer-etcd.sh` fetches; where it can't, they say so and pass over.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped or measured is for whoever runs it"
)]

#[path = "../fault/client.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod client;
mod crowd;
mod handover;
mod lost;
mod restored;
mod setup;
#[path = "../fault/stage.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod stage;
