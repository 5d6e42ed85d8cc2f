//! What Prometheus is told: all of it, described, from the start.

use crate::support::{Palisade, put, upstream};
use palisade_loadtest::{
    origin::{Sign, Step},
    servers::wait_for,
};
use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

/// The names that users hold on to.
const NAMES: [(&str, &str); 24] = [
    ("palisade_requests_total", "counter"),
    ("palisade_request_duration_seconds", "histogram"),
    ("palisade_gate_duration_seconds", "histogram"),
    ("palisade_upstream_duration_seconds", "histogram"),
    ("palisade_in_flight", "gauge"),
    ("palisade_waiting", "gauge"),
    ("palisade_scopes", "gauge"),
    ("palisade_raises_total", "counter"),
    ("palisade_handover_duration_seconds", "histogram"),
    ("palisade_ambiguous_total", "counter"),
    ("palisade_settling", "gauge"),
    ("palisade_scope_floor", "gauge"),
    ("palisade_scope_refused_total", "counter"),
    ("palisade_stale_write_age_seconds", "histogram"),
    ("palisade_lease_store_up", "gauge"),
    ("palisade_lease_store_duration_seconds", "histogram"),
    ("palisade_lease_store_watch_revision", "gauge"),
    ("palisade_state_sync_duration_seconds", "histogram"),
    ("palisade_replicas", "gauge"),
    ("palisade_replica_session_remaining_seconds", "gauge"),
    ("palisade_connections", "gauge"),
    ("palisade_upstream_connections", "gauge"),
    ("palisade_config_reloads_total", "counter"),
    ("palisade_build_info", "gauge"),
];

/// Prometheus' own opinion of a page.
fn promtool(page: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, of Debian's package prometheus (scripts/need.sh test)");
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(page.as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

/// The labels of a page's series, without their values.
fn series(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
        .collect()
}

#[test]
fn every_metric_is_there_from_the_start_and_its_labels_are_bounded() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "[metrics]\nscopes = [\"default\"]\n");
    let fresh = proxy.metrics();
    promtool(&fresh);
    for (name, kind) in NAMES {
        assert!(fresh.contains(&format!("# TYPE {name} {kind}\n")), "{name}");
        assert!(fresh.contains(&format!("# HELP {name} ")), "{name}");
        if !name.starts_with("palisade_scope_") {
            let there = fresh.lines().any(|line| line.starts_with(name));
            assert!(there, "{name} has no series at the start");
        }
        if kind == "histogram" {
            assert!(
                fresh.contains(&format!("{name}_bucket{{")),
                "{name} has no buckets"
            );
        }
    }
    assert!(
        fresh
            .contains("palisade_gate_duration_seconds_bucket{result=\"passed\",le=\"0.000001\"} 0")
    );
    assert!(fresh.contains("process_open_fds "));
    // Whatever clients send, no further series come of it.
    for number in 0..20 {
        put(
            proxy.address(),
            &format!("/x{number}?q={number}"),
            100 + number,
        );
        put(proxy.address(), "/stale", 50 + number);
    }
    let used = proxy.metrics();
    promtool(&used);
    let new: Vec<String> = series(&used)
        .difference(&series(&fresh))
        .filter(|one| !one.starts_with("palisade_scope_"))
        .cloned()
        .collect();
    assert!(new.is_empty(), "{new:?}");
    assert_eq!(
        proxy.metric("palisade_scope_floor{scope=\"default\"}"),
        119.0
    );
    assert_eq!(
        proxy.metric(
            "palisade_requests_total{kind=\"write\",outcome=\"refused\",reason=\"stale-token\"}"
        ),
        20.0
    );
    assert_eq!(
        proxy.metric(
            "palisade_requests_total{kind=\"write\",outcome=\"answered\",reason=\"answered\"}"
        ),
        20.0
    );
}

#[test]
fn what_is_under_way_is_told() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "");
    let sign = Sign::new();
    origin.once(
        "/held",
        vec![
            Step::ReadBody,
            Step::Await(sign.clone()),
            Step::Answer(200, b"ok".into()),
        ],
    );
    let address = proxy.address();
    let held = std::thread::spawn(move || put(address, "/held", 100));
    sign.wait_reached();
    let is = |series: &str, value: f64| {
        wait_for(series, || (proxy.metric(series) == value).then_some(()));
    };
    is("palisade_in_flight{kind=\"write\"}", 1.0);
    is("palisade_connections", 1.0);
    is("palisade_upstream_connections{state=\"busy\"}", 1.0);
    sign.give();
    assert_eq!(held.join().unwrap().status, 200);
    is("palisade_in_flight{kind=\"write\"}", 0.0);
    is("palisade_upstream_connections{state=\"busy\"}", 0.0);
}
