//! The library's metrics, through the `metrics` facade: whoever installs a recorder gets them, nobody else pays.

use crate::{LeaseName, holder::Loss};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use palisade_fence::Token;
use std::time::Duration;

/// Bucket bounds for `palisade_lease_acquire_duration_seconds`, from one round trip to a long wait.
pub const ACQUIRE_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0, 3600.0,
];
/// The name of that histogram.
pub const ACQUIRE_DURATION: &str = "palisade_lease_acquire_duration_seconds";

/// Describes every metric, and makes those of this lease and the counters exist at 0, so that their first increase is seen.
pub fn describe(name: &LeaseName) {
    describe_gauge!(
        "palisade_lease_held",
        "Whether this process holds the lease (1) or not (0)."
    );
    describe_gauge!(
        "palisade_lease_remaining_seconds",
        "Time until the lease counts as lost unless a keep-alive is answered."
    );
    describe_histogram!(
        ACQUIRE_DURATION,
        "Time from asking for a lease to its grant."
    );
    describe_counter!(
        "palisade_lease_heartbeat_failures_total",
        "Keep-alives that failed or were not answered in time."
    );
    describe_counter!(
        "palisade_lease_lost_total",
        "Leases lost while held, by reason."
    );
    held(name, false);
    remaining(name, Duration::ZERO);
    counter!("palisade_lease_heartbeat_failures_total").absolute(0);
    let token = Token::MIN;
    for loss in [
        Loss::Expired,
        Loss::Revoked,
        Loss::Deleted,
        Loss::Taken(token),
        Loss::StoreChanged,
    ] {
        counter!("palisade_lease_lost_total", "reason" => loss.word()).absolute(0);
    }
}

pub(crate) fn heartbeat_failed() {
    counter!("palisade_lease_heartbeat_failures_total").increment(1);
}

pub(crate) fn lost(loss: Loss) {
    counter!("palisade_lease_lost_total", "reason" => loss.word()).increment(1);
}

pub(crate) fn acquired(name: &LeaseName, took: Duration) {
    histogram!(ACQUIRE_DURATION).record(took.as_secs_f64());
    held(name, true);
}

pub(crate) fn held(name: &LeaseName, held: bool) {
    gauge!("palisade_lease_held", "lease" => name.to_string()).set(if held { 1.0 } else { 0.0 });
}

/// Sets the time left; to be called before the metrics are read out.
pub fn remaining(name: &LeaseName, left: Duration) {
    gauge!("palisade_lease_remaining_seconds", "lease" => name.to_string()).set(left.as_secs_f64());
}
