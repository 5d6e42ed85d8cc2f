//! InfluxDB, by curl and by its client for version 1.

use crate::support::{
    Fenced, assert_good, assert_stale, curl, example, header, is_installed, serve, work,
};
use palisade_examples::brought::brought;
use palisade_loadtest::servers::{Process, free_port};
use std::{net::SocketAddr, process::Command};
use tempfile::TempDir;

/// A server with an empty folder, where one is installed.
fn influxdb() -> Option<(Process, SocketAddr, TempDir)> {
    if !is_installed("influxd") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (influx, store) = serve("influxd", |port| {
        let mut command = Command::new("influxd");
        let rpc = free_port().unwrap();
        command
            .args(["run", "-config", "/dev/null"])
            .env("INFLUXDB_REPORTING_DISABLED", "true")
            .env("INFLUXDB_BIND_ADDRESS", format!("127.0.0.1:{rpc}"))
            .env("INFLUXDB_HTTP_BIND_ADDRESS", format!("127.0.0.1:{port}"))
            .env("INFLUXDB_META_DIR", at("meta"))
            .env("INFLUXDB_DATA_DIR", at("data"))
            .env("INFLUXDB_DATA_WAL_DIR", at("wal"));
        command
    });
    Some((influx, store, folder))
}

/// What the store itself says, past the proxy.
fn stored(store: SocketAddr) -> String {
    let asked = [
        "-G",
        &format!("http://{store}/query?db=nightly"),
        "--data-urlencode",
        "q=SELECT value FROM report",
    ];
    curl(&asked).1
}

/// curl, as InfluxDB's own documents have it.
#[tokio::test(flavor = "multi_thread")]
async fn influxdb_by_its_api() {
    let Some((_influx, store, _folder)) = influxdb() else {
        return;
    };
    let fenced = Fenced::new(store, "influxdb.toml", "influxdb").await;
    let old = fenced.old.token().get();
    let made = curl(&[
        "-X",
        "POST",
        "-H",
        &header(old),
        "--data-urlencode",
        "q=CREATE DATABASE nightly",
        &fenced.url("/query"),
    ]);
    assert_good(&made);
    let write = |token: u64, value: u32| {
        let line = format!("report value={value} 1000000000");
        let url = fenced.url("/write?db=nightly");
        curl(&[
            "-X",
            "POST",
            "--data-binary",
            &line,
            "-H",
            &header(token),
            &url,
        ])
    };
    assert_good(&write(old, 1));
    let new = fenced.next().await;
    assert_good(&write(new.token().get(), 2));
    assert_stale(&write(old, 3));
    let stored = stored(store);
    assert!(stored.contains(",2]"), "{stored}");
    // By GET, version 1 takes statements that write, so a token is asked for.
    assert_eq!(curl(&[&fenced.url("/query?q=SHOW+DATABASES")]).0, "428");
}

/// The worker with the client, which writes by `headers`, and is refused for now and for good.
#[tokio::test(flavor = "multi_thread")]
async fn influxdb_by_its_client() {
    let Some((_influx, store, _folder)) = influxdb() else {
        return;
    };
    let Some(python) = brought("venv/bin/python") else {
        return;
    };
    let mut fenced = Fenced::away(store, "influxdb.toml", "influxdb").await;
    let address = fenced.proxy.address().to_string();
    let job = || {
        let mut command = Command::new(&python);
        command.arg(example("python/influxdb_worker.py"));
        command.args([&*address, "nightly"]);
        command
    };
    fenced.has_patience("report value=1 1000000000\n", job);
    let new = fenced.next().await.token().get();
    fenced.opens(new, "/write?db=nightly", "report value=2 1000000000");
    let old = fenced.old.token().get();
    let (code, said) = work(&mut job(), old, "report value=3 1000000000\n");
    assert_eq!(code, Some(76), "{said}");
    assert!(said.contains("stale-token"), "{said}");
    let stored = stored(store);
    assert!(stored.contains(",2]"), "{stored}");
}
