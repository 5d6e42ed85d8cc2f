//! Palisade in front of datastores that people have, with the routes of `examples/routes` and each store's usual client: the token
//! goes along in the client's own way, a stale worker is refused, and the store keeps what the newer one wrote. Where a store is
//! not installed, its test says so and passes over; `scripts/need.sh test` installs them on Debian.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

mod couchdb;
mod elasticsearch;
mod etcd;
mod influxdb;
mod redis;
mod s3;
mod support;
