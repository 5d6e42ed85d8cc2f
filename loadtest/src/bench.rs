//! Measuring: what a request costs the proxy, and how long it takes, beside other proxies on the same machine.
//!
//! The proxy has one core, and the load with the datastore another one. What is compared runs in turns, in an order by
//! chance, and only figures of the same round are divided by each other.

pub mod bars;
pub mod flood;
pub mod growth;
pub mod handover;
pub mod load;
pub mod measure;
mod protocol;
pub mod record;
mod round;
pub mod sink;
pub mod storm;
mod subject;

pub use load::{Load, Pace, Work};
pub use protocol::{Client, Protocol};
pub use round::{Bench, Calls, Cores, Figures, Row, run};
pub use subject::Kind;
