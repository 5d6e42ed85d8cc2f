//! The table of raw requests in `cases/http.jsonl`, each on a connection of its own.

use crate::support::{Palisade, answers, put, send, upstream};
use palisade_loadtest::origin::Origin;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    setup: String,
    /// Bytes as Latin-1.
    request: String,
    status: Vec<u16>,
    forwarded: Option<bool>,
    problem: Option<String>,
}

const ROUTES: &str = "[[route]]\npath = \"/a/{*rest}\"\nscope = \"a\"\n[[route]]\npath = \"/b/{*rest}\"\nscope = \"b\"\n";

fn table() -> Vec<Case> {
    include_str!("../cases/http.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Sends a case's bytes; what is wrong with what came of it.
fn run(case: &Case, origin: &Origin, proxy: &Palisade) -> Result<(), String> {
    let raw: Vec<u8> = case
        .request
        .chars()
        .map(|c| u8::try_from(c as u32).unwrap())
        .collect();
    let before = origin.arrivals().len();
    let got = answers(&send(proxy.address(), &raw), false);
    let arrived = &origin.arrivals()[before..];
    let first = got.first().ok_or("no answer")?;
    if !case.status.contains(&first.status) {
        return Err(format!("status {}, not {:?}", first.status, case.status));
    }
    if case.forwarded.is_some_and(|f| f == arrived.is_empty()) {
        return Err(format!("arrived: {arrived:?}"));
    }
    if case.problem.is_some() && first.problem() != case.problem {
        return Err(format!("problem {:?}", first.problem()));
    }
    for answer in &got {
        let wanted = if answer.status == 200 {
            "answered"
        } else {
            "refused"
        };
        if answer.outcome().is_some_and(|outcome| outcome != wanted) {
            return Err(format!("outcome {:?}", answer.outcome()));
        }
    }
    // RFC 9112, section 11.2: what is left of a body never begins a request.
    if arrived.iter().any(|a| a.method.starts_with('X')) {
        return Err("a body was read as a request".into());
    }
    Ok(())
}

/// Runs the cases of one setup, and after each a good request.
fn run_all(setup: &str, settings: &str, floors: &[(&str, u64)]) {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), settings);
    for (target, token) in floors {
        assert_eq!(put(proxy.address(), target, *token).status, 200);
    }
    let mut wrong = Vec::new();
    for case in table().iter().filter(|case| case.setup == setup) {
        if let Err(why) = run(case, &origin, &proxy) {
            wrong.push(format!("{}: {why}", case.name));
        }
        for (target, token) in floors {
            let good = put(proxy.address(), target, *token);
            if good.status != 200 {
                wrong.push(format!("after {}: {}", case.name, good.head));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_case_with_one_scope() {
    assert!(table().len() >= 72, "the table has shrunk");
    run_all("default", "", &[("/good", 100)]);
}

#[test]
fn every_case_with_routes() {
    run_all("routes", ROUTES, &[("/a/good", 100), ("/b/good", 200)]);
}

/// RFC 9112, section 9.3.2: each pipelined request is judged for itself.
#[test]
fn the_second_of_two_pipelined_requests_is_refused_for_itself() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "");
    put(proxy.address(), "/good", 100);
    let case = table()
        .into_iter()
        .find(|case| case.name == "pipelined-second-stale")
        .unwrap();
    let got = answers(&send(proxy.address(), case.request.as_bytes()), false);
    let statuses: Vec<_> = got.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 412]);
    assert_eq!(got[1].problem().as_deref(), Some("stale-token"));
    assert!(origin.arrivals_at("/y").is_empty());
}
