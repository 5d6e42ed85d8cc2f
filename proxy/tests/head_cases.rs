//! The table of raw requests, as far as a head alone decides: hyper's parser, the tap and the routes, without a gate.
//! What a floor decides is decided here by comparing the token with the table's floors.

#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use palisade::{
    refusal::{Problem, Refusal},
    route::{RouteTable, Rule},
    tap::{Heads, Tap},
};
use serde::Deserialize;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

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

fn routes(setup: &str) -> RouteTable {
    let rule = |path: &str, scope: &str| Rule {
        path: path.into(),
        scope: Some(scope.into()),
        ..Rule::default()
    };
    match setup {
        "default" => RouteTable::single("default"),
        "routes" => {
            RouteTable::new(vec![rule("/a/{*rest}", "a"), rule("/b/{*rest}", "b")]).unwrap()
        }
        other => panic!("no such setup: {other}"),
    }
}

fn floor(scope: Option<&str>) -> u64 {
    match scope {
        Some("b") => 200,
        _ => 100,
    }
}

/// What the proxy would do at the gate's door; `Ok` is forwarded.
async fn decide(
    table: &RouteTable,
    heads: &Heads,
    request: Request<Incoming>,
) -> Result<Method, Refusal> {
    heads.next(request.method(), request.uri())?;
    let (parts, body) = request.into_parts();
    let judged = table.judge(&parts)?;
    let floor = floor(judged.class.scope.as_deref());
    if judged.token.is_some_and(|token| token.get() < floor) {
        return Err(Problem::StaleToken.into());
    }
    match body.collect().await {
        Ok(_) => Ok(parts.method),
        Err(_) => Err(Problem::BadRequest.into()),
    }
}

/// Sends one case's bytes on a connection of its own, and returns the answer and the methods that were forwarded.
async fn run(case: &Case) -> (String, Vec<Method>) {
    let (mut client, server) = UnixStream::pair().unwrap();
    let (tap, heads) = Tap::new(server, 1 << 20);
    let table = Arc::new(routes(&case.setup));
    let forwarded = Arc::new(Mutex::new(Vec::new()));
    let service = service_fn(|request| {
        let (table, heads, forwarded) = (table.clone(), heads.clone(), forwarded.clone());
        async move {
            Ok::<_, Infallible>(match decide(&table, &heads, request).await {
                Ok(method) => {
                    forwarded.lock().unwrap().push(method);
                    Response::new(Full::new(Bytes::new()))
                }
                Err(refusal) => refusal.into_response(),
            })
        }
    });
    let serving = async {
        let _ = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(tap), service)
            .await;
    };
    let asking = async {
        let raw: Vec<u8> = case
            .request
            .chars()
            .map(|c| u8::try_from(c as u32).unwrap())
            .collect();
        let _ = client.write_all(&raw).await;
        let _ = client.shutdown().await;
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    let ((), answer) = tokio::join!(serving, asking);
    let forwarded = forwarded.lock().unwrap().clone();
    (answer, forwarded)
}

fn status(answer: &str) -> u16 {
    answer
        .strip_prefix("HTTP/1.1 ")
        .or(answer.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|status| status.parse().ok())
        .unwrap_or(0)
}

#[tokio::test]
async fn every_case_of_the_table() {
    let cases = read(include_str!("cases/http.jsonl"));
    assert!(cases.len() >= 72, "the table has shrunk");
    check(&cases).await;
}

/// Each stands on the section of an RFC that its line names.
#[tokio::test]
async fn every_kind_of_head() {
    let cases = read(include_str!("cases/heads.jsonl"));
    assert!(cases.len() >= 190, "the table has shrunk");
    check(&cases).await;
}

fn read(lines: &str) -> Vec<Case> {
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

async fn check(cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let (answer, forwarded) = run(case).await;
        let got = status(&answer);
        if !case.status.contains(&got) {
            wrong.push(format!(
                "{}: status {got}, not {:?}",
                case.name, case.status
            ));
        }
        if case
            .forwarded
            .is_some_and(|wanted| wanted == forwarded.is_empty())
        {
            wrong.push(format!("{}: forwarded {forwarded:?}", case.name));
        }
        if let Some(problem) = &case.problem
            && !answer.contains(&format!("\"urn:palisade:problem:{problem}\""))
        {
            wrong.push(format!("{}: not {problem}: {answer}", case.name));
        }
        // RFC 9112, section 11.2: what is left of a body never begins a request.
        if forwarded
            .iter()
            .any(|method| method.as_str().starts_with('X'))
        {
            wrong.push(format!("{}: a body was read as a request", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// RFC 9112, section 9.3.2: each pipelined request is judged for itself.
#[tokio::test]
async fn the_second_of_two_pipelined_requests_is_refused_for_itself() {
    let cases = read(include_str!("cases/http.jsonl"));
    let case = cases
        .iter()
        .find(|case| case.name == "pipelined-second-stale")
        .unwrap();
    let (answer, forwarded) = run(case).await;
    assert_eq!(forwarded, [Method::PUT]);
    let second = answer.rfind("HTTP/1.1 ").unwrap();
    assert_eq!(
        status(&answer[second..]),
        StatusCode::PRECONDITION_FAILED.as_u16()
    );
}
