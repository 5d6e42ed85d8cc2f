//! What Prometheus is told. Every metric is described and exists from the start, so that its first increment is seen.
//!
//! The hot path holds handles: looking a metric up by its name costs more than the fence itself.

use crate::{
    refusal::{Outcome, Problem},
    route::Kind,
};
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::time::Duration;

/// What a histogram of this size is for decides its buckets, in seconds.
const FAST: &[f64] = &[
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0,
];
const REQUEST: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0,
];
const AGE: &[f64] = &[0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 86_400.0];

const HISTOGRAMS: [(&str, &[f64], &str); 7] = [
    (
        "palisade_request_duration_seconds",
        REQUEST,
        "From a request's head to the end of its response.",
    ),
    (
        "palisade_gate_duration_seconds",
        FAST,
        "From a request's arrival at the gate to its decision, waiting included.",
    ),
    (
        "palisade_upstream_duration_seconds",
        REQUEST,
        "From the start of sending to upstream to the head of its response.",
    ),
    (
        "palisade_handover_duration_seconds",
        REQUEST,
        "From the moment a scope was closed to a newer token until it opened.",
    ),
    (
        "palisade_stale_write_age_seconds",
        AGE,
        "How long after it was superseded a stale writer still wrote.",
    ),
    (
        "palisade_lease_store_duration_seconds",
        REQUEST,
        "Calls of the lease store.",
    ),
    (
        "palisade_state_sync_duration_seconds",
        REQUEST,
        "Commits of the state file, sync included.",
    ),
];

const COUNTERS: [(&str, &str); 8] = [
    (
        "palisade_requests_total",
        "Requests by kind, by what their clients were told, and why.",
    ),
    ("palisade_raises_total", "Raises of a floor by result."),
    (
        "palisade_ambiguous_total",
        "Writes that ended without an answer that settles them.",
    ),
    (
        "palisade_late_answers_total",
        "Answers that came later than `settle` after the last byte: they disprove assumption A6.",
    ),
    (
        "palisade_config_reloads_total",
        "Reloads of the configuration by result.",
    ),
    (
        "palisade_lease_store_errors_total",
        "Calls of the lease store that failed.",
    ),
    (
        "palisade_lease_store_watch_restarts_total",
        "Watches of the lease store that ended and were begun anew, by reason.",
    ),
    (
        "palisade_log_lines_lost_total",
        "Lines of the log that nobody read in time.",
    ),
];

const GAUGES: [(&str, &str); 13] = [
    ("palisade_in_flight", "Requests under way by kind."),
    (
        "palisade_waiting",
        "Requests that wait at the gate for a raise.",
    ),
    ("palisade_scopes", "Scopes in memory."),
    (
        "palisade_settling",
        "Ambiguous writes whose settle time runs.",
    ),
    (
        "palisade_lease_store_up",
        "1 while the lease store answers; 0 also when there is none.",
    ),
    (
        "palisade_lease_store_trusted",
        "1 while the lease store is the one that it was; 0 also when there is none.",
    ),
    (
        "palisade_lease_store_watch_revision",
        "The newest revision that the watch has seen.",
    ),
    (
        "palisade_replicas",
        "Members of the group that hold a session; 0 for a single proxy.",
    ),
    (
        "palisade_replica_session_remaining_seconds",
        "Time left of this replica's session; 0 for a single proxy.",
    ),
    ("palisade_connections", "Clients' connections."),
    (
        "palisade_upstream_connections",
        "Connections to upstream by state.",
    ),
    (
        "palisade_tls_certificate_expiry_seconds",
        "When the certificate in front runs out, in seconds since 1970; 0 without TLS.",
    ),
    ("palisade_build_info", "1, with the version as a label."),
];

/// Installs the recorder, describes everything, and brings every series to life.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets, _) in HISTOGRAMS {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
    }
    let handle = builder.install_recorder()?;
    HISTOGRAMS
        .iter()
        .for_each(|&(name, _, help)| describe_histogram!(name, Unit::Seconds, help));
    COUNTERS
        .iter()
        .for_each(|&(name, help)| describe_counter!(name, help));
    GAUGES
        .iter()
        .for_each(|&(name, help)| describe_gauge!(name, help));
    gauge!("palisade_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    for name in [
        "palisade_ambiguous_total",
        "palisade_late_answers_total",
        "palisade_log_lines_lost_total",
    ] {
        counter!(name).increment(0);
    }
    for result in ["opened", "pending", "storage", "unavailable"] {
        counter!("palisade_raises_total", "result" => result).increment(0);
    }
    for result in ["done", "failed"] {
        counter!("palisade_config_reloads_total", "result" => result).increment(0);
    }
    for name in [
        "palisade_waiting",
        "palisade_scopes",
        "palisade_settling",
        "palisade_lease_store_up",
        "palisade_lease_store_trusted",
        "palisade_lease_store_watch_revision",
        "palisade_replicas",
        "palisade_replica_session_remaining_seconds",
        "palisade_connections",
        "palisade_tls_certificate_expiry_seconds",
    ] {
        gauge!(name).set(0.0);
    }
    for state in ["idle", "busy"] {
        gauge!("palisade_upstream_connections", "state" => state).set(0.0);
    }
    // To ask for a handle is enough to make a series.
    for name in [
        "palisade_handover_duration_seconds",
        "palisade_stale_write_age_seconds",
        "palisade_state_sync_duration_seconds",
    ] {
        drop(histogram!(name));
    }
    drop(histogram!("palisade_lease_store_duration_seconds", "op" => "read"));
    for op in ["read", "keep-alive", "ack"] {
        counter!("palisade_lease_store_errors_total", "op" => op).increment(0);
    }
    for reason in ["changed", "compacted", "failed"] {
        counter!("palisade_lease_store_watch_restarts_total", "reason" => reason).increment(0);
    }
    metrics_process::Collector::default().describe();
    Ok(handle)
}

/// The metrics of requests, by handle.
pub struct RequestMetrics {
    reads: KindMetrics,
    writes: KindMetrics,
    passed: Histogram,
    refused: Histogram,
}

struct KindMetrics {
    answered: Counter,
    gone_before: Counter,
    gone_after: Counter,
    problems: [Counter; Problem::ALL.len()],
    duration: Histogram,
    upstream: Histogram,
    in_flight: Gauge,
}

/// Requests whose client left before there was a response, by whether something may have been sent by then.
fn gone(kind: &'static str, outcome: Outcome) -> Counter {
    counter!("palisade_requests_total", "kind" => kind, "outcome" => outcome.as_str(), "reason" => "client-gone")
}

impl KindMetrics {
    fn new(kind: Kind) -> Self {
        let kind = kind.as_str();
        let answered = Outcome::Answered.as_str();
        Self {
            gone_before: gone(kind, Outcome::Refused),
            gone_after: gone(kind, Outcome::Unknown),
            answered: counter!("palisade_requests_total", "kind" => kind, "outcome" => answered, "reason" => answered),
            problems: Problem::ALL.map(|problem| {
                let outcome = problem.outcome().as_str();
                counter!("palisade_requests_total", "kind" => kind, "outcome" => outcome, "reason" => problem.name())
            }),
            duration: histogram!("palisade_request_duration_seconds", "kind" => kind),
            upstream: histogram!("palisade_upstream_duration_seconds", "kind" => kind),
            in_flight: gauge!("palisade_in_flight", "kind" => kind),
        }
    }
}

impl RequestMetrics {
    /// Handles of the installed recorder.
    pub fn new() -> Self {
        let gate =
            |result: &'static str| histogram!("palisade_gate_duration_seconds", "result" => result);
        let (reads, writes) = (KindMetrics::new(Kind::Read), KindMetrics::new(Kind::Write));
        Self {
            reads,
            writes,
            passed: gate("passed"),
            refused: gate("refused"),
        }
    }

    fn of(&self, kind: Kind) -> &KindMetrics {
        match kind {
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
        }
    }

    /// A request has arrived.
    pub fn begun(&self, kind: Kind) {
        self.of(kind).in_flight.increment(1.0);
    }

    /// A request's response has been sent, or its client has gone. `problem`: unless upstream's own answer was relayed.
    pub fn ended(&self, kind: Kind, problem: Option<Problem>, took: Duration) {
        let of = self.of(kind);
        of.in_flight.decrement(1.0);
        of.duration.record(took);
        match problem.and_then(|problem| Problem::ALL.iter().position(|&p| p == problem)) {
            Some(at) => of.problems[at].increment(1),
            None => of.answered.increment(1),
        }
    }

    /// Its client went away before there was a response. `started`: something of it may have been sent.
    pub fn client_gone(&self, kind: Kind, started: bool, took: Duration) {
        let of = self.of(kind);
        of.in_flight.decrement(1.0);
        of.duration.record(took);
        if started {
            of.gone_after.increment(1)
        } else {
            of.gone_before.increment(1)
        }
    }

    /// A request under way turned out to be of the other kind.
    pub fn turned(&self, from: Kind, to: Kind) {
        self.of(from).in_flight.decrement(1.0);
        self.of(to).in_flight.increment(1.0);
    }

    /// The gate has decided.
    pub fn gate(&self, passed: bool, took: Duration) {
        let result = if passed { &self.passed } else { &self.refused };
        result.record(took);
    }

    /// Upstream's response head came.
    pub fn upstream(&self, kind: Kind, took: Duration) {
        self.of(kind).upstream.record(took);
    }
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self::new()
    }
}
