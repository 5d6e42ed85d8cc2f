//! Attacks, checks and measures the fence. The library half holds what tests of the other crates use too: real servers
//! in real processes on free loopback ports.

pub mod bench;
pub mod certificate;
pub mod chaos;
pub mod check;
pub mod cluster;
pub mod history;
pub mod html;
pub mod origin;
pub mod peers;
mod ports;
pub mod proxy;
pub mod relay;
pub mod servers;
mod snapshot;
