//! The fencing proxy. A request goes one way: accept, read the head, scope, gate, upstream, response. Layers that know
//! HTTP don't know etcd; the gate doesn't know HTTP; the core (`palisade_fence`) doesn't know tokio.

pub mod admin;
pub mod authority;
pub mod cli;
pub mod config;
mod flatten;
pub mod forward;
pub mod gate;
pub mod headers;
pub mod init;
pub mod metrics;
pub mod refusal;
pub mod replicas;
pub mod route;
pub mod run;
pub mod server;
pub mod state;
pub mod tap;
pub mod tls;
pub mod upstream;
