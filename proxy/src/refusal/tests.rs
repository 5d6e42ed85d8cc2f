use super::*;
use http_body_util::BodyExt;
use std::collections::HashSet;

fn sent(refusal: Refusal) -> (http::response::Parts, serde_json::Value) {
    let (parts, body) = refusal.into_response().into_parts();
    let body = whole(body);
    (parts, serde_json::from_slice(&body).unwrap())
}

fn whole(body: Full<Bytes>) -> Bytes {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(body.collect())
        .unwrap()
        .to_bytes()
}

/// The table of the interface: name, status, outcome, whether Retry-After goes with it.
#[test]
fn the_whole_table() {
    let table = [
        ("missing-token", 428, false),
        ("malformed-token", 400, false),
        ("ambiguous-path", 400, false),
        ("stale-token", 412, false),
        ("not-holder", 412, false),
        ("superseded", 412, false),
        ("scope-mismatch", 412, false),
        ("crosses-scopes", 403, false),
        ("no-scope", 403, false),
        ("bad-request", 400, false),
        ("method-refused", 405, false),
        ("expectation-failed", 417, false),
        ("request-timeout", 408, false),
        ("shutting-down", 503, true),
        ("handover-pending", 503, true),
        ("authority-unavailable", 503, true),
        ("authority-changed", 503, false),
        ("storage-unavailable", 503, false),
        ("session-expired", 503, true),
        ("overloaded", 503, true),
        ("upstream-unreachable", 502, false),
        ("outcome-unknown", 502, false),
    ];
    assert_eq!(table.len(), Problem::ALL.len());
    for (problem, (name, status, retry)) in Problem::ALL.into_iter().zip(table) {
        let (parts, body) = sent(problem.into());
        assert_eq!(problem.name(), name);
        assert_eq!(parts.status, status, "{name}");
        assert_eq!(body["status"], status, "{name}");
        assert_eq!(body["type"], format!("urn:palisade:problem:{name}"));
        assert!(!body["title"].as_str().unwrap().is_empty());
        assert!(!body["detail"].as_str().unwrap().is_empty());
        assert_eq!(
            parts.headers[header::CONTENT_TYPE],
            "application/problem+json"
        );
        assert_eq!(
            parts.headers.contains_key(header::RETRY_AFTER),
            retry,
            "{name}"
        );
        let outcome = if name == "outcome-unknown" {
            "unknown"
        } else {
            "refused"
        };
        assert_eq!(parts.headers[headers::OUTCOME], outcome, "{name}");
    }
    let names: HashSet<_> = Problem::ALL.iter().map(|p| p.name()).collect();
    assert_eq!(names.len(), Problem::ALL.len());
}

#[test]
fn members_and_highest() {
    let refusal = Refusal::new(Problem::StaleToken)
        .in_scope(Some("a/ü".into()))
        .with_token(Token::new(99))
        .with_highest(Token::new(100));
    let (parts, body) = sent(refusal.clone());
    assert_eq!(parts.headers[headers::HIGHEST], "100");
    assert_eq!(
        (&body["scope"], &body["token"], &body["highest"]),
        (&"a/ü".into(), &99.into(), &100.into())
    );
    // The header belongs to stale-token and superseded only; the member goes where it is known.
    let (parts, body) = sent(Refusal::new(Problem::NotHolder).with_highest(Token::new(100)));
    assert!(!parts.headers.contains_key(headers::HIGHEST));
    assert_eq!(body["highest"], 100);
    assert!(body.get("scope").is_none() && body.get("token").is_none());
}

/// RFC 9110, section 15.6.5: time ran out.
#[test]
fn unknown_by_timeout_is_504() {
    let (parts, body) = sent(Refusal::timed_out());
    assert_eq!(parts.status, 504);
    assert_eq!(body["status"], 504);
    assert_eq!(parts.headers[headers::OUTCOME], "unknown");
}

/// RFC 9110, section 15.5.6: a 405 carries Allow.
#[test]
fn method_refused_says_what_is_allowed() {
    let (parts, _) = sent(Problem::MethodRefused.into());
    assert!(
        parts.headers[header::ALLOW]
            .to_str()
            .unwrap()
            .contains("PUT")
    );
}
