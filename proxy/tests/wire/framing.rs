//! HTTP/1.1 input of every odd kind: what the client is told, and the bytes that upstream saw, or that it saw none.
//! Each row names the section that it stands on.

mod rows;

use crate::support::{Palisade, answers, put, send, upstream};
use palisade_loadtest::origin::{Arrival, Origin};
use rows::{Row, Want, rows};

/// Fields that concern the client's connection, or that the proxy has answered itself.
const NEVER: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "http2-settings",
    "expect",
    "x-hop",
];

/// What every head must be, whatever it came from: RFC 9112, sections 2.2, 3.2 and 6.3; RFC 9110, section 7.6.1.
fn check_head(arrival: &Arrival) -> Result<(), String> {
    let head = String::from_utf8_lossy(&arrival.head);
    let plain = head.replace("\r\n", "");
    if plain.contains(['\r', '\n', '\0']) {
        return Err(format!("a bare line end went up: {head:?}"));
    }
    if !head
        .split("\r\n")
        .next()
        .unwrap_or_default()
        .ends_with(" HTTP/1.1")
    {
        return Err(format!("another version went up: {head:?}"));
    }
    let (length, coding) = (
        arrival.field("content-length"),
        arrival.field("transfer-encoding"),
    );
    if length.len() + coding.len() > 1 || coding.iter().any(|&coding| coding != "chunked") {
        return Err(format!("doubtful framing went up: {head:?}"));
    }
    if arrival.field("host").len() != 1 {
        return Err(format!("not one Host: {head:?}"));
    }
    match NEVER.iter().find(|&&name| !arrival.field(name).is_empty()) {
        Some(name) => Err(format!("{name} went up: {head:?}")),
        None => Ok(()),
    }
}

fn run(row: &Row, origin: &Origin, proxy: &Palisade) -> Result<(), String> {
    let before = origin.arrivals().len();
    let got = answers(&send(proxy.address(), &row.request), false);
    let arrived = &origin.arrivals()[before..];
    arrived.iter().try_for_each(check_head)?;
    let first = got.first().ok_or("no answer")?;
    let outcome = first.outcome();
    match &row.want {
        Want::Refused(status, problem) => {
            if first.status != *status || first.problem().as_deref() != *problem {
                return Err(format!("{}{:?}", first.head, first.problem()));
            }
            if !arrived.is_empty() || outcome.is_some_and(|outcome| outcome != "refused") {
                return Err(format!("outcome {outcome:?}, arrived {arrived:?}"));
            }
        }
        Want::Saw { target, body, line } => {
            let [arrival] = arrived else {
                return Err(format!("{}arrived: {arrived:?}", first.head));
            };
            if (first.status, outcome) != (200, Some("answered")) {
                return Err(first.head.clone());
            }
            if arrival.target != *target || arrival.body != body.as_bytes() || !arrival.complete {
                return Err(format!("arrived: {arrival:?}"));
            }
            let head = String::from_utf8_lossy(&arrival.head).to_ascii_lowercase();
            if !head.contains(&line.to_ascii_lowercase()) {
                return Err(format!("no {line:?}: {head:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn every_odd_input_is_refused_or_made_plain() {
    let rows = rows();
    assert!(rows.len() >= 130, "the table has shrunk: {}", rows.len());
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "");
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    let mut wrong = Vec::new();
    for row in &rows {
        assert!(row.rule.starts_with("RFC "), "{}: no rule", row.name);
        if let Err(why) = run(row, &origin, &proxy) {
            wrong.push(format!("{} ({}): {why}", row.name, row.rule));
        }
        assert_eq!(
            put(proxy.address(), "/good", 100).status,
            200,
            "after {}",
            row.name
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
