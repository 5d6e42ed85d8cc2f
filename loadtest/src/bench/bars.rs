//! What Palisade means to keep to: at most so many times the processor time that another proxy takes for the same request. They
//! are the project's own goals, for its defaults with metrics, limits and timeouts on, and for 16 connections and more.

/// At most this ratio. `work` and `versus` as the bench names them; `None`: there is no goal.
pub fn cpu(work: &str, versus: &str) -> Option<f64> {
    match (work, versus) {
        ("get", "nginx") => Some(1.10),
        ("put-1k", "nginx") => Some(0.90),
        ("put-1k", "haproxy") => Some(1.05),
        ("put-1k", "envoy") => Some(0.40),
        ("put-64k", "nginx") => Some(1.00),
        ("put-1024k", "nginx") => Some(0.90),
        _ => None,
    }
}

/// System calls for a request of up to 16 KiB.
pub const SYSCALLS: f64 = 4.4;
