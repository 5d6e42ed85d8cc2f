//! InfluxDB, by curl.

use crate::support::{Fenced, assert_good, assert_stale, curl, header, is_installed, serve};
use palisade_loadtest::servers::free_port;
use std::process::Command;

/// curl, as InfluxDB's own documents have it.
#[tokio::test(flavor = "multi_thread")]
async fn influxdb_by_its_api() {
    if !is_installed("influxd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (_influx, store) = serve("influxd", |port| {
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
    let asked = [
        "-G",
        &format!("http://{store}/query?db=nightly"),
        "--data-urlencode",
        "q=SELECT value FROM report",
    ];
    let stored = curl(&asked);
    assert!(stored.1.contains(",2]"), "{stored:?}");
    // By GET, version 1 takes statements that write, so a token is asked for.
    assert_eq!(curl(&[&fenced.url("/query?q=SHOW+DATABASES")]).0, "428");
}
