//! Elasticsearch's routes and its usual client. There was no Elasticsearch to try it with: the datastore is the tests' own, which
//! takes what comes and answers what this client wants to see.

use crate::support::{Fenced, curl, example, work};
use palisade_examples::brought::brought;
use palisade_loadtest::origin::{Origin, Step};
use std::process::Command;

/// By `headers` the client sends the token, a late write is refused, and what may have been applied is not sent again: by default it
/// would be, three times.
#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_by_its_client() {
    let Some(python) = brought("venv/bin/python") else {
        return;
    };
    let origin = Origin::tcp().unwrap();
    let fields = [
        "X-Elastic-Product: Elasticsearch",
        "Content-Type: application/json",
    ];
    let fields = fields.map(str::to_owned).to_vec();
    let made = Step::AnswerWith(201, fields, br#"{"result":"created"}"#.to_vec());
    let target = "/reports/_doc/nightly";
    origin.always(target, vec![Step::ReadBody, Step::Apply, made]);
    let gone = "/reports/_doc/gone";
    origin.always(gone, vec![Step::ReadBody, Step::Apply, Step::Reset]);
    let mut fenced = Fenced::away(origin.address(), "elasticsearch.toml", "elasticsearch").await;
    let url = fenced.url("");
    let worker = |document: &str| {
        let mut command = Command::new(&python);
        command.arg(example("python/elasticsearch_worker.py"));
        command.args([&*url, "reports", document]);
        command
    };
    fenced.has_patience("first\n", || worker("nightly"));
    assert_eq!(origin.arrivals_at(target).len(), 1);

    let old = fenced.old.token().get();
    let (code, said) = work(&mut worker("gone"), old, "unknown\n");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("outcome-unknown"), "{said}");
    assert_eq!(origin.arrivals_at(gone).len(), 1);

    let new = fenced.next().await.token().get();
    fenced.opens(new, "/_bulk", "");
    let (code, said) = work(&mut worker("nightly"), old, "late\n");
    assert_eq!(code, Some(76), "{said}");
    assert!(said.contains("stale-token"), "{said}");
    assert_eq!(origin.arrivals_at(target).len(), 1);
    // Without a token it asks, and no more.
    let search = fenced.url("/reports/_search");
    assert_eq!(curl(&["-X", "POST", "-d", "{}", &search]).0, "204");
    assert_eq!(
        curl(&["-X", "POST", "-d", "{}", &fenced.url("/_reindex")]).0,
        "428"
    );
}
