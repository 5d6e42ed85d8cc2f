//! The alert rules of `docs/monitoring`: valid, tried by their own tests, about metrics that the programs really expose, and seen
//! firing in a real Prometheus that scrapes a real proxy.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, Process, free_port, get, program, wait_for},
};
use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring")
}

fn promtool(arguments: &[&str]) {
    let checked = Command::new("promtool")
        .args(arguments)
        .current_dir(folder())
        .output()
        .expect("promtool, of Debian's package prometheus (scripts/need.sh test)");
    assert!(
        checked.status.success(),
        "{}{}",
        String::from_utf8_lossy(&checked.stdout),
        String::from_utf8_lossy(&checked.stderr)
    );
}

#[test]
fn the_rules_are_valid_and_fire_on_what_they_are_for() {
    promtool(&["check", "rules", "alerts.yml"]);
    promtool(&["test", "rules", "alerts_test.yml"]);
}

/// A rule without a test of its own could be one that can't fire.
#[test]
fn each_rule_has_a_test() {
    let rules = fs::read_to_string(folder().join("alerts.yml")).unwrap();
    let tests = fs::read_to_string(folder().join("alerts_test.yml")).unwrap();
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        let fires = tests.split("alertname: ").skip(1).any(|test| {
            test.starts_with(alert)
                && test.contains("exp_labels")
                && test.find("exp_labels") < test.find("eval_time").or(Some(usize::MAX))
        });
        assert!(fires, "{alert} is not seen firing in alerts_test.yml");
    }
}

/// The names in the expressions that begin as ours do, and each `name="value"` beside them.
fn names(expressions: &str) -> BTreeSet<String> {
    expressions
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("palisade_"))
        .map(str::to_owned)
        .collect()
}

/// A metric that was given another name would make an alert that never fires.
#[test]
fn every_metric_in_the_rules_is_exposed() {
    let rules = fs::read_to_string(folder().join("alerts.yml")).unwrap();
    let expressions: String = rules
        .lines()
        .filter(|line| line.trim().starts_with("expr:"))
        .collect();
    let dashboard = fs::read_to_string(folder().join("dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let asked: Vec<&str> = panels
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(asked.len() > 20);
    let etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = Palisade::new(&origin.url())
        .unwrap()
        .set("leases", etcd.url());
    proxy.start().unwrap();
    // A scope, for its series.
    let _ = Command::new("curl")
        .args(["--silent", "--noproxy", "*", "--output", "/dev/null"])
        .args(["-X", "PUT", "-H", "X-Fence-Token: 1"])
        .arg(format!("http://{}/x", proxy.address()))
        .status();
    let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    let mut job = Command::new(program("palisade-lease"));
    job.args(["run", "a", "--leases", &etcd.url()])
        .args(["--metrics", &metrics.to_string(), "--", "sleep", "600"])
        .stdin(Stdio::null());
    let _job = Process::start("palisade-lease", &mut job).unwrap();
    let of_job = wait_for("the job's metrics", || {
        get(metrics, "/metrics")
            .ok()
            .filter(|page| page.contains("palisade_lease_held"))
    });
    let exposed = format!("{}{of_job}", proxy.admin_get("/metrics"));
    for name in names(&format!("{expressions} {}", asked.join(" "))) {
        let there = exposed.lines().any(|line| {
            line.strip_prefix(&*name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        assert!(
            there,
            "{name} is in a rule or a panel, and no program exposes it"
        );
    }
    for label in [
        "reason=\"stale-token\"",
        "reason=\"handover-pending\"",
        "reason=\"storage-unavailable\"",
        "kind=\"write\"",
        "op=\"read\"",
    ] {
        assert!(
            expressions.contains(label) && exposed.contains(label),
            "{label}"
        );
    }
}

/// A real Prometheus, which scrapes the proxy and evaluates the rules, with what takes time in them taken out.
#[test]
fn alerts_fire_in_a_real_prometheus() {
    let mut etcd = Etcd::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = Palisade::new(&origin.url())
        .unwrap()
        .set("leases", etcd.url());
    proxy.start().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    let rules = fs::read_to_string(folder().join("alerts.yml")).unwrap();
    let rules: Vec<&str> = rules
        .lines()
        .filter(|line| !line.trim().starts_with("for:"))
        .collect();
    fs::write(at("alerts.yml"), rules.join("\n")).unwrap();
    let settings = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [alerts.yml]\nscrape_configs:\n  - job_name: palisade\n    static_configs: [{{ targets: [\"{}\"] }}]\n",
        proxy.admin()
    );
    fs::write(at("prometheus.yml"), settings).unwrap();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", at("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", at("data").display()))
        .arg(format!("--web.listen-address={listen}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _prometheus = Process::start("prometheus", &mut command).unwrap();
    let firing = || -> BTreeSet<String> {
        let alerts = get(listen, "/api/v1/alerts").unwrap_or_default();
        let body = alerts.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        // The body may come in chunks: the names stand in it all the same.
        body.split("\"alertname\":\"")
            .skip(1)
            .filter_map(|rest| rest.split_once('"').map(|(name, _)| name.to_owned()))
            .collect()
    };
    wait_for("Prometheus to scrape the proxy", || {
        let query = "/api/v1/query?query=palisade_lease_store_up";
        get(listen, query)
            .ok()
            .filter(|answer| answer.contains("\"1\""))
    });
    assert_eq!(firing(), BTreeSet::new(), "on a good day");

    // A stale writer that does not stop, and etcd that is away.
    let token = |name: &str| {
        let lease = etcd.ctl(&["lease", "grant", "600"]);
        let lease = lease.split(' ').nth(1).unwrap().to_owned();
        let key = format!("/palisade/leases/{name}");
        let put = etcd.ctl(&["put", &key, "{}", "--lease", &lease, "-w", "json"]);
        let put: serde_json::Value = serde_json::from_str(&put).unwrap();
        put["header"]["revision"].as_u64().unwrap()
    };
    let write = |token: u64| {
        let curl = Command::new("curl")
            .args(["--silent", "--noproxy", "*", "--output", "/dev/null"])
            .args(["--write-out", "%{http_code}", "-X", "PUT", "--data", "x"])
            .args(["-H", &format!("X-Fence-Token: {token}")])
            .arg(format!("http://{}/x", proxy.address()))
            .output()
            .unwrap();
        String::from_utf8(curl.stdout).unwrap()
    };
    let (old, new) = (token("default"), token("default"));
    assert_eq!(write(new), "204");
    wait_for("the alert on stale writes", || {
        assert_eq!(write(old), "412");
        firing().contains("PalisadeStaleWrites").then_some(())
    });
    // Every panel's query is one that Prometheus takes, and those that have something to show show it.
    let picture = at("dashboard.svg");
    let drawn = Command::new("python3")
        .arg(folder().join("draw.py"))
        .args([
            &format!("http://{listen}"),
            &picture.display().to_string(),
            "1",
        ])
        .env("no_proxy", "*")
        .output()
        .unwrap();
    assert!(drawn.status.success(), "{drawn:?}");
    let empty = String::from_utf8(drawn.stdout).unwrap();
    let has = |panel: &str| !empty.contains(&format!("no data: {panel}\n"));
    for panel in [
        "Lease store answers",
        "Requests by outcome",
        "Refused and unknown, by reason",
        "Stale writers: how long after they were superseded, p99",
        "Connections and requests",
        "State file: commits, p99",
    ] {
        assert!(has(panel), "{panel}: {empty}");
    }
    assert!(!has("Certificate left"), "there is none");
    let picture = fs::read_to_string(picture).unwrap();
    assert!(picture.contains("stale-token") && picture.contains("<polyline"));
    etcd.kill();
    wait_for("the alert on the lease store", || {
        let _ = write(new + 1);
        firing().contains("PalisadeLeaseStoreDown").then_some(())
    });
}
