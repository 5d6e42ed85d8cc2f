//! The route files of `examples/routes/`: each loads, and maps requests as its datastore needs it.

#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use http::{HeaderMap, HeaderValue, Method};
use palisade::{
    config::{Settings, Sources},
    route::RouteTable,
};
use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "examples", "routes"]
        .iter()
        .collect()
}

fn load(name: &str) -> Arc<RouteTable> {
    let file = folder().join(name);
    let mut sources = Sources::default();
    sources
        .flags
        .insert("upstream", "http://127.0.0.1:9000".into());
    sources
        .flags
        .insert("routes_file", file.to_str().unwrap().into());
    match Settings::load(&sources) {
        Ok(settings) => settings.routes,
        Err(errors) => panic!("{errors}"),
    }
}

/// `KIND SCOPE`, `read -` for a read in no scope, or the refusal's name.
fn falls(table: &RouteTable, request: &str) -> String {
    let mut words = request.split(' ');
    let method: Method = words.next().unwrap().parse().unwrap();
    let target = words.next().unwrap();
    let mut fields = HeaderMap::new();
    if let Some(destination) = words.next() {
        fields.insert("destination", HeaderValue::from_str(destination).unwrap());
    }
    match table.classify(&method, target, &fields) {
        Ok(class) => format!(
            "{} {}",
            class.kind.as_str(),
            class.scope.as_deref().unwrap_or("-")
        ),
        Err(refusal) => refusal.problem.name().to_owned(),
    }
}

fn check(name: &str, cases: &[(&str, &str)]) {
    let table = load(name);
    for (request, wanted) in cases {
        assert_eq!(falls(&table, request), *wanted, "{name}: {request}");
    }
}

#[test]
fn every_file_is_tested_here() {
    let files: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    let tested = [
        "couchdb.toml",
        "elasticsearch.toml",
        "etcd-gateway.toml",
        "influxdb.toml",
        "s3.toml",
        "webdav.toml",
        "webdis.toml",
    ];
    assert_eq!(files, tested.map(String::from).into());
}

#[test]
fn s3() {
    check(
        "s3.toml",
        &[
            ("GET /", "read -"),
            ("PUT /bkt", "write s3/bkt"),
            ("PUT /bkt/", "write s3/bkt"),
            ("DELETE /bkt", "write s3/bkt"),
            ("PUT /bkt/key", "write s3/bkt"),
            ("PUT /bkt/a//b", "write s3/bkt"),
            ("PUT /bkt//lead", "write s3/bkt"),
            ("PUT /bkt/a/../b", "write s3/bkt"),
            ("PUT /bkt/.", "write s3/bkt"),
            ("PUT /bkt/a%2Fb;v=1", "write s3/bkt"),
            ("PUT /%62kt/key", "write s3/bkt"),
            ("POST /bkt?delete", "write s3/bkt"),
            ("POST /bkt/key?uploads", "write s3/bkt"),
            ("PUT /bkt/key?partNumber=1&uploadId=x", "write s3/bkt"),
            ("DELETE /bkt/key?versionId=x", "write s3/bkt"),
            ("POST /bkt/key?select&select-type=2", "read s3/bkt"),
            ("POST /bkt/key?select", "write s3/bkt"),
            ("GET /bkt/key", "read s3/bkt"),
            ("HEAD /bkt?location", "read s3/bkt"),
            ("PUT //bkt/key", "ambiguous-path"),
            ("POST /", "no-scope"),
        ],
    );
}

#[test]
fn webdav() {
    check(
        "webdav.toml",
        &[
            ("PROPFIND /", "read -"),
            ("PROPFIND /docs/", "read webdav/docs"),
            ("OPTIONS *", "read -"),
            ("MKCOL /docs", "write webdav/docs"),
            ("MKCOL /docs/", "write webdav/docs"),
            ("PUT /docs/a/b.txt", "write webdav/docs"),
            ("PROPPATCH /docs/a", "write webdav/docs"),
            ("LOCK /docs/a", "write webdav/docs"),
            ("UNLOCK /docs/a", "write webdav/docs"),
            ("MOVE /docs/a http://db/docs/b", "write webdav/docs"),
            ("COPY /docs/a /docs/b/", "write webdav/docs"),
            ("MOVE /docs/a http://db/other/b", "crosses-scopes"),
            ("MOVE /docs/a http://db/", "crosses-scopes"),
            ("COPY /docs/a /docs/../other/b", "ambiguous-path"),
            ("PUT /docs/../other/x", "ambiguous-path"),
            ("DELETE /", "no-scope"),
        ],
    );
}

#[test]
fn couchdb() {
    check(
        "couchdb.toml",
        &[
            ("GET /", "read -"),
            ("GET /_all_dbs", "read couchdb/_all_dbs"),
            ("POST /_session", "read couchdb/_session"),
            ("DELETE /_session", "read couchdb/_session"),
            ("POST /_replicate", "no-scope"),
            ("PUT /_replicator/job", "write couchdb/_replicator"),
            ("POST /_replicator/_bulk_docs", "write couchdb/_replicator"),
            ("PUT /db", "write couchdb/db"),
            ("DELETE /db/", "write couchdb/db"),
            ("POST /db", "write couchdb/db"),
            ("PUT /db/doc", "write couchdb/db"),
            ("PUT /db/a%2Fb", "write couchdb/db"),
            ("PUT /db%2Fx/doc", "write couchdb/db%2Fx"),
            ("PUT /db/doc/picture.png", "write couchdb/db"),
            ("POST /db/_bulk_docs", "write couchdb/db"),
            ("POST /db/_purge", "write couchdb/db"),
            ("POST /db/_find", "read couchdb/db"),
            ("POST /db/_all_docs", "read couchdb/db"),
            ("POST /db/_bulk_get", "read couchdb/db"),
            ("POST /db/_changes?filter=_doc_ids", "read couchdb/db"),
            ("POST /db/_design/d/_view/v", "read couchdb/db"),
            ("PUT /db/_design/d", "write couchdb/db"),
            ("POST /db/_design/d/_update/f/doc", "write couchdb/db"),
            ("GET /db/_design/d/_rewrite/x", "no-scope"),
            ("GET /db/_design/d/_rewrite", "no-scope"),
            ("GET /db/_design//d/_rewrite/x", "ambiguous-path"),
            ("COPY /db/doc other", "write couchdb/db"),
            ("COPY /db/doc other?rev=1-a", "write couchdb/db"),
            ("COPY /db/doc /db2/other", "crosses-scopes"),
            ("PUT /_node/_local/_config/x/y", "write couchdb/_node"),
            ("PUT /_users/org.couchdb.user:x", "write couchdb/_users"),
            ("PUT //db/doc", "ambiguous-path"),
            ("PUT /db//doc", "ambiguous-path"),
        ],
    );
}

#[test]
fn elasticsearch() {
    let write = "write elasticsearch";
    let read = "read elasticsearch";
    check(
        "elasticsearch.toml",
        &[
            ("GET /", "read -"),
            ("GET /_cat/indices", read),
            ("POST /_search", read),
            ("POST /i/_search?scroll=1m", read),
            ("POST /a,b*/_msearch", read),
            ("POST /i/_count", read),
            ("POST /_mget", read),
            ("POST /_search/scroll", read),
            ("DELETE /_search/scroll", read),
            ("POST /i/_explain/7", read),
            ("PUT /i", write),
            ("DELETE /i", write),
            ("DELETE /a,b", write),
            ("DELETE /_all", write),
            ("PUT /i/_doc/a%2Fb", write),
            ("POST /i/_doc", write),
            ("POST /_bulk", write),
            ("POST /i/_bulk", write),
            ("POST /i/_update_by_query", write),
            ("POST /i/_delete_by_query", write),
            ("POST /_reindex", write),
            ("POST /_aliases", write),
            ("POST /i/_delete_by_query/../_search", write),
            ("DELETE /i/_search", write),
            ("PUT /_search", write),
        ],
    );
}

#[test]
fn influxdb() {
    let write = "write influxdb";
    let read = "read influxdb";
    check(
        "influxdb.toml",
        &[
            ("GET /ping", read),
            ("HEAD /ping", read),
            ("POST /write?db=metrics", write),
            ("GET /query?q=SELECT+1", write),
            ("HEAD /query", write),
            ("POST /query", write),
            ("POST /api/v2/query", write),
            ("POST /api/v2/write?bucket=b", write),
            ("POST /api/v2/delete", write),
            ("GET /api/v2/buckets", read),
            ("POST /api/v3/query_sql", read),
            ("POST /api/v3/write_lp?db=x", write),
            ("GET /%71uery", write),
            ("GET //query", "ambiguous-path"),
            ("GET /x/../query", "ambiguous-path"),
        ],
    );
}

#[test]
fn etcd_gateway() {
    let write = "write etcd";
    let read = "read etcd";
    check(
        "etcd-gateway.toml",
        &[
            ("POST /v3/kv/range", read),
            ("POST /v3/watch", read),
            ("POST /v3/cluster/member/list", read),
            ("POST /v3/maintenance/status", read),
            ("GET /version", read),
            ("GET /v2/keys/a", read),
            ("POST /v3/kv/put", write),
            ("POST /v3/kv/deleterange", write),
            ("POST /v3/kv/txn", write),
            ("POST /v3beta/kv/range", write),
            ("POST /v3/kv/range/", write),
            ("POST /v3/lease/grant", write),
            ("POST /v3/lease/keepalive", write),
            ("POST /v3/cluster/member/remove", write),
            ("PUT /v2/keys/a", write),
        ],
    );
}

#[test]
fn webdis() {
    let write = "write redis";
    let read = "read redis";
    check(
        "webdis.toml",
        &[
            ("GET /GET/a", read),
            ("HEAD /GET/a", read),
            ("GET /MGET/a/b", read),
            ("GET /PING", read),
            ("GET /SET/a/b", write),
            ("HEAD /SET/a/b", write),
            ("GET /get/a", write),
            ("POST /GET/a", write),
            ("PUT /SET/a", write),
            ("POST /", write),
            ("GET /GET/a/../../SET/a/b", "ambiguous-path"),
            ("GET /%47ET/a", read),
        ],
    );
}
