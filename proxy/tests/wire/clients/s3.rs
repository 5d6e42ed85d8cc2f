//! S3: boto3, with moto behind, and with signatures that are checked as a store would.

use super::{script, serve, venv};
use crate::support::{Palisade, put, upstream};
use palisade_loadtest::origin::Step;
use std::process::Command;

/// minio-js#1344, aws-s3-reverse-proxy#3, haproxy#2076: keys are bytes, and stores want a length.
#[test]
fn boto3_stores_every_odd_key() {
    let Some(venv) = venv() else { return };
    let (_moto, store) = serve("moto", |port| {
        let mut command = Command::new(venv.join("moto_server"));
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command
    });
    let proxy = Palisade::start(&format!("http://{store}"), "");
    let (through, direct) = (
        format!("http://{}", proxy.address()),
        format!("http://{store}"),
    );
    script(
        venv.join("python"),
        include_str!("s3.py"),
        &[&through, &direct],
    );
}

/// minio#6320: a signature covers host, path, query and fields, so it holds only if the store gets them as they were sent.
#[test]
fn signatures_hold_behind_the_proxy() {
    let Some(venv) = venv() else { return };
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "");
    put(proxy.address(), "/good", 100);
    // boto3 takes another body for an error.
    origin.otherwise(vec![Step::ReadBody, Step::Answer(200, Vec::new())]);
    script(
        venv.join("python"),
        include_str!("sign.py"),
        &[&format!("http://{}", proxy.address())],
    );
    let arrivals = &origin.arrivals()[1..];
    assert_eq!(arrivals.len(), 17);
    for arrival in arrivals {
        assert_eq!(arrival.field("host"), [proxy.address().to_string()]);
        assert!(arrival.complete && arrival.field("transfer-encoding").is_empty());
    }
    let heads: Vec<String> = arrivals
        .iter()
        .map(|arrival| String::from_utf8(arrival.head.clone()).unwrap())
        .collect();
    let heads = serde_json::to_string(&heads).unwrap();
    let checked = script(venv.join("python"), include_str!("verify.py"), &[&heads]);
    assert_eq!(checked.trim(), "17");
}
