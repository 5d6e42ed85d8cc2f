//! CouchDB's protocol, as express-pouchdb speaks it, by PouchDB, nano and curl.

use crate::support::{Fenced, assert_good, assert_stale, curl, example, header, serve, work};
use palisade_examples::brought::brought;
use palisade_loadtest::{proxy::Line, servers::Process};
use std::{fs, net::SocketAddr, os::unix::fs::symlink, process::Command};
use tempfile::TempDir;

/// The examples in Node beside the packages that they import.
struct Node {
    folder: TempDir,
}

impl Node {
    fn new() -> Option<Self> {
        let packages = brought("npm/node_modules")?;
        let folder = tempfile::tempdir().unwrap();
        symlink(packages, folder.path().join("node_modules")).unwrap();
        for file in fs::read_dir(example("node")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        Some(Self { folder })
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("node");
        command.arg(self.folder.path().join(script));
        command
    }

    fn store(&self) -> (Process, SocketAddr) {
        serve("the document store", |port| {
            let mut command = self.command("document_store.cjs");
            command.args(["127.0.0.1", &port.to_string()]);
            command.current_dir(self.folder.path());
            command
        })
    }
}

/// curl with a JSON body.
fn send(method: &str, url: &str, token: u64, body: &str) -> (String, String) {
    let token = header(token);
    let json = "Content-Type: application/json";
    curl(&["-X", method, "-H", &token, "-H", json, "-d", body, url])
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What the store itself says, past the proxy.
fn stored(store: SocketAddr, path: &str) -> serde_json::Value {
    json(&curl(&[&format!("http://{store}{path}")]).1)
}

/// The worker with PouchDB. The late one has nothing old in its hands: it asks for the newest revision first, as clients do after a
/// conflict. So `_rev` would not have stopped it.
#[tokio::test(flavor = "multi_thread")]
async fn couchdb_by_pouchdb() {
    let Some(node) = Node::new() else { return };
    let (_process, store) = node.store();
    let fenced = Fenced::new(store, "couchdb.toml", "couchdb/reports").await;
    let run = |token: u64, line: &str| {
        let mut command = node.command("couchdb_worker.mjs");
        command.args([&*fenced.url("/reports"), "nightly"]);
        work(&mut command, token, line)
    };
    let old = fenced.old.token().get();
    let (code, said) = run(old, "first\n");
    assert_eq!(code, Some(0), "{said}");
    let new = fenced.next().await.token().get();
    let (code, said) = run(new, "second\n");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(old, "late\n");
    assert_eq!(code, Some(76), "{said}");
    assert!(said.contains("stale-token"), "{said}");

    let newest = stored(store, "/reports/nightly");
    assert_eq!(newest["text"], "second");
    let late = format!("{{\"_rev\":{},\"text\":\"late\"}}", newest["_rev"]);
    let url = fenced.url("/reports/nightly");
    assert_stale(&send("PUT", &url, old, &late));
    assert_eq!(stored(store, "/reports/nightly"), newest);
    // The same body is what the store would take.
    assert_good(&send("PUT", &url, new, &late));
}

#[tokio::test(flavor = "multi_thread")]
async fn pouchdb_has_patience() {
    let Some(node) = Node::new() else { return };
    let (_process, store) = node.store();
    let mut fenced = Fenced::away(store, "couchdb.toml", "couchdb/reports").await;
    let url = fenced.url("/reports");
    fenced.has_patience("first\n", || {
        let mut command = node.command("couchdb_worker.mjs");
        command.args([&*url, "nightly"]);
        command
    });
    assert_eq!(stored(store, "/reports/nightly")["text"], "first");
}

/// What the store itself refuses comes through as its own, 412 among it, and is never taken for the fence's.
#[tokio::test(flavor = "multi_thread")]
async fn couchdbs_own_conflicts() {
    let Some(node) = Node::new() else { return };
    let (_process, store) = node.store();
    let fenced = Fenced::new(store, "couchdb.toml", "couchdb/reports").await;
    let token = fenced.old.token().get();
    let url = fenced.url("/reports");
    assert_good(&send("PUT", &url, token, ""));
    let answered = |(status, text): (String, String), wanted: &str| {
        assert_eq!(status, wanted, "{text}");
        assert!(text.contains("x-fence-outcome: answered"), "{text}");
        text
    };
    let head = |method: &str, url: &str, body: &str| {
        let token = header(token);
        let json = "Content-Type: application/json";
        let headers = ["-H", &token, "-H", json];
        curl(&[&headers[..], &["-i", "-X", method, "-d", body, url]].concat())
    };
    let exists = answered(head("PUT", &url, ""), "412");
    assert!(exists.contains("file_exists"), "{exists}");
    let document = fenced.url("/reports/nightly");
    answered(head("PUT", &document, "{}"), "201");
    let conflict = answered(head("PUT", &document, "{}"), "409");
    assert!(conflict.contains("conflict"), "{conflict}");
    // Many at once: the request succeeds, one of its documents does not.
    let bulk = r#"{"docs":[{"_id":"other"},{"_id":"nightly"}]}"#;
    let many = answered(
        head("POST", &fenced.url("/reports/_bulk_docs"), bulk),
        "201",
    );
    let results = json(
        many.rsplit("\n\n")
            .next()
            .unwrap()
            .rsplit("\r\n")
            .next()
            .unwrap(),
    );
    assert_eq!(results[0]["ok"], true, "{many}");
    assert_eq!(results[1]["error"], "conflict", "{many}");
}

/// Each way to change a database is fenced, and asking is not.
#[tokio::test(flavor = "multi_thread")]
async fn couchdbs_ways_to_write() {
    let Some(node) = Node::new() else { return };
    let (_process, store) = node.store();
    let fenced = Fenced::new(store, "couchdb.toml", "couchdb/reports").await;
    let old = fenced.old.token().get();
    let at = |path: &str| fenced.url(&format!("/reports{path}"));
    assert_good(&send("PUT", &at(""), old, ""));
    assert_good(&send("PUT", &at("/nightly"), old, r#"{"text":"first"}"#));
    let new = fenced.next().await.token().get();
    assert_good(&send("PUT", &at("/_local/mark"), new, "{}"));
    let before = stored(store, "/reports");
    let revision = stored(store, "/reports/nightly")["_rev"].clone();
    let revision = revision.as_str().unwrap();
    // `new_edits` is what a replication sends: the store takes it whatever revision is there.
    let replicated = r#"{"new_edits":false,"docs":[{"_id":"nightly","_rev":"9-f","text":"late"}]}"#;
    let attachment = format!("/nightly/page.html?rev={revision}");
    let gone = format!("/nightly?rev={revision}");
    for (method, path, body) in [
        ("PUT", "/other", "{}"),
        ("POST", "", "{}"),
        ("POST", "/_bulk_docs", r#"{"docs":[{"_id":"other"}]}"#),
        ("POST", "/_bulk_docs", replicated),
        ("PUT", "/_local/mark", "{}"),
        ("PUT", "/_design/views", r#"{"views":{}}"#),
        ("PUT", &attachment, "late"),
        ("DELETE", &gone, ""),
        ("POST", "/_compact", ""),
        ("DELETE", "", ""),
    ] {
        assert_stale(&send(method, &at(path), old, body));
        let json = "Content-Type: application/json";
        let without = curl(&["-X", method, "-H", json, "-d", body, &at(path)]);
        assert_eq!(without.0, "428", "{method} {path}: {}", without.1);
    }
    let after = stored(store, "/reports");
    assert_eq!(after["update_seq"], before["update_seq"]);
    assert_eq!(stored(store, "/reports/nightly")["text"], "first");
    for (path, body) in [
        ("/_find", r#"{"selector":{"text":"first"}}"#),
        ("/_all_docs", r#"{"keys":["nightly"]}"#),
        ("/_bulk_get", r#"{"docs":[{"id":"nightly"}]}"#),
        ("/_revs_diff", r#"{"nightly":["1-a"]}"#),
    ] {
        let json = "Content-Type: application/json";
        let asked = curl(&["-X", "POST", "-H", json, "-d", body, &at(path)]);
        assert_good(&asked);
        assert!(asked.1.contains("nightly"), "{path}: {}", asked.1);
    }
    // Writes into whatever database its body names.
    let body = r#"{"source":"drafts","target":"reports"}"#;
    let replicate = send("POST", &fenced.url("/_replicate"), new, body);
    assert_eq!(replicate.0, "403", "{}", replicate.1);
}

/// The proxy has seen no write in this scope, refused ones included.
#[track_caller]
fn assert_only_read(fenced: &Fenced, scope: &str) {
    let log = fenced.proxy.log();
    let is = |name: &str, value: &str, line: &Line| line.get(name).is_some_and(|v| v == value);
    let written = log
        .iter()
        .find(|line| is("kind", "write", line) && is("scope", scope, line));
    assert!(written.is_none(), "{written:?}");
}

/// A replication writes documents and what it remembers, both under the target's lease.
#[tokio::test(flavor = "multi_thread")]
async fn couchdb_by_replication() {
    let Some(node) = Node::new() else { return };
    let (_process, store) = node.store();
    let direct = |path: &str| format!("http://{store}{path}");
    assert_good(&send("PUT", &direct("/drafts"), 1, ""));
    assert_good(&send("PUT", &direct("/drafts/a"), 1, r#"{"text":"a"}"#));
    let fenced = Fenced::new(store, "couchdb.toml", "couchdb/reports").await;
    let run = |token: u64| {
        let mut command = node.command("replicate.mjs");
        command.args([fenced.url("/drafts"), fenced.url("/reports")]);
        work(&mut command, token, "")
    };
    let old = fenced.old.token().get();
    let (code, said) = run(old);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1 documents written"), "{said}");
    assert_only_read(&fenced, "couchdb/drafts");
    let new = fenced.next().await.token().get();
    assert_good(&send("PUT", &direct("/drafts/b"), 1, r#"{"text":"b"}"#));
    // Nothing of the new lease has come by yet: its first request is what closes the old one's.
    assert_good(&send("PUT", &fenced.url("/reports/c"), new, "{}"));
    let (code, said) = run(old);
    assert_eq!(code, Some(76), "{said}");
    assert_eq!(stored(store, "/reports/b")["error"], "not_found");
    let (code, said) = run(new);
    assert_eq!(code, Some(0), "{said}");
    // It goes on where the first one has stopped.
    assert!(said.contains("1 documents written"), "{said}");
    assert_eq!(stored(store, "/reports/b")["text"], "b");
}

/// nano, whose setting `headers` goes along with every request.
#[tokio::test(flavor = "multi_thread")]
async fn couchdb_by_nano() {
    let Some(node) = Node::new() else { return };
    let (_process, store) = node.store();
    let fenced = Fenced::new(store, "couchdb.toml", "couchdb/reports").await;
    let script = node.folder.path().join("nano.mjs");
    let text = r#"
        import nano from "nano";
        const [url, text] = process.argv.slice(2);
        const server = nano({ url, headers: { "X-Fence-Token": process.env.FENCE_TOKEN } });
        try {
            await server.db.create("reports").catch((error) => { if (error.error !== "file_exists") throw error; });
            await server.use("reports").insert({ text });
            await server.use("reports").attachment.insert("page", "page.txt", text, "text/plain");
        } catch (error) {
            console.log(error.statusCode, error.type);
            process.exit(1);
        }
    "#;
    fs::write(&script, text).unwrap();
    let run = |token: u64, text: &str| {
        let mut command = Command::new("node");
        command.arg(&script).args([&*fenced.url(""), text]);
        work(&mut command, token, "")
    };
    let old = fenced.old.token().get();
    let (code, said) = run(old, "first");
    assert_eq!(code, Some(0), "{said}");
    let new = fenced.next().await.token().get();
    let made = send("PUT", &fenced.url("/reports/second"), new, "{}");
    assert_good(&made);
    let (code, said) = run(old, "late");
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.trim(), "412 urn:palisade:problem:stale-token");
    let all = stored(store, "/reports");
    assert_eq!(all["doc_count"], 3, "{all}");
}
