//! The proxy on the wire: the real program over real sockets, with a recording upstream or a real datastore behind it.
//! One test program, so that it is linked once.

#![expect(
    clippy::unwrap_used,
    reason = "a test that can't get this far has failed"
)]

mod cases;
mod clients;
mod framing;
mod http2;
mod life;
mod limits;
mod metrics;
mod responses;
mod support;
mod uploads;
