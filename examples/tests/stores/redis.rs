//! Redis behind webdis, by curl.

use crate::support::{Fenced, assert_good, assert_stale, curl, header, is_installed, serve};
use std::{fs, process::Command};

/// curl, with Redis behind webdis.
#[tokio::test(flavor = "multi_thread")]
async fn redis_by_webdis() {
    if !is_installed("webdis") || !is_installed("redis-server") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (_redis, redis) = serve("redis-server", |port| {
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--dir"])
            .arg(folder.path());
        command
    });
    let (_webdis, store) = serve("webdis", |port| {
        let settings = folder.path().join("webdis.json");
        let text = format!(
            "{{\"redis_host\":\"127.0.0.1\",\"redis_port\":{},\"http_host\":\"127.0.0.1\",\"http_port\":{port},\
             \"threads\":1,\"daemonize\":false,\"verbosity\":0,\"logfile\":\"{}\"}}",
            redis.port(),
            folder.path().join("webdis.log").display()
        );
        fs::write(&settings, text).unwrap();
        let mut command = Command::new("webdis");
        command.arg(settings);
        command
    });
    let fenced = Fenced::new(store, "webdis.toml", "redis").await;
    let set = |token: u64, value: &str| {
        let url = fenced.url("/SET/nightly");
        curl(&["-X", "PUT", "-d", value, "-H", &header(token), &url])
    };
    let old = fenced.old.token().get();
    assert_good(&set(old, "first"));
    let new = fenced.next().await;
    assert_good(&set(new.token().get(), "second"));
    assert_stale(&set(old, "late"));
    // A GET that would write is a write here.
    let url = fenced.url("/SET/nightly/late");
    assert_stale(&curl(&["-H", &header(old), &url]));
    assert_eq!(curl(&[&url]).0, "428");
    let (_, read) = curl(&[&fenced.url("/GET/nightly")]);
    assert!(read.contains("second"), "{read}");
}
