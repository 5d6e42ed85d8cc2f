//! HTTP/2 (RFC 9113): requests of every odd kind, streams that are reset, and the end of a connection. Through the low level of the
//! `h2` crate, or frame by frame where that would not send such a thing.

mod frames;

use crate::support::{Palisade, put, upstream};
use bytes::Bytes;
use h2::{Reason, SendStream, client::SendRequest};
use http::{HeaderMap, HeaderValue, Request, Response, header::HeaderName};
use nix::sys::signal::Signal;
use palisade_loadtest::{
    origin::{Ended, Origin, Sign, Step},
    servers::wait_for,
};
use std::net::SocketAddr;
use tokio::{net::TcpStream, task::JoinHandle};

fn proxy(origin: &Origin) -> Palisade {
    let proxy = Palisade::start(&origin.url(), "");
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    proxy
}

async fn connect(address: SocketAddr) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    (client.ready().await.unwrap(), tokio::spawn(connection))
}

/// A response, and its body.
async fn whole(response: h2::client::ResponseFuture) -> Result<Response<Vec<u8>>, h2::Error> {
    let (parts, mut stream) = response.await?.into_parts();
    let mut body = Vec::new();
    while let Some(part) = stream.data().await {
        let part = part?;
        stream.flow_control().release_capacity(part.len())?;
        body.extend_from_slice(&part);
    }
    Ok(Response::from_parts(parts, body))
}

fn problem(response: &Response<Vec<u8>>) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(response.body()).ok()?;
    Some(
        body["type"]
            .as_str()?
            .strip_prefix("urn:palisade:problem:")?
            .to_owned(),
    )
}

/// Sends as much as the other side takes.
async fn send_body(stream: &mut SendStream<Bytes>, length: usize) {
    let mut left = length;
    while left > 0 {
        stream.reserve_capacity(left);
        let granted = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let granted = granted.unwrap().unwrap().min(left);
        stream
            .send_data(Bytes::from(vec![b'a'; granted]), false)
            .unwrap();
        left -= granted;
    }
}

struct Row {
    name: &'static str,
    rule: &'static str,
    method: &'static str,
    uri: &'static str,
    fields: &'static [(&'static str, &'static str)],
    body: &'static str,
    trailers: &'static [(&'static str, &'static str)],
    want: Want,
}

enum Want {
    Refused(u16, &'static str),
    /// What is in the head that upstream saw.
    Saw(&'static str),
}

const fn row(
    name: &'static str,
    rule: &'static str,
    method: &'static str,
    uri: &'static str,
    fields: &'static [(&'static str, &'static str)],
    want: Want,
) -> Row {
    Row {
        name,
        rule,
        method,
        uri,
        fields,
        body: "abc",
        trailers: &[],
        want,
    }
}

const T: (&str, &str) = ("x-fence-token", "100");
const BAD: Want = Want::Refused(400, "bad-request");
const TOKEN: Want = Want::Refused(400, "malformed-token");
const MISSING: Want = Want::Refused(428, "missing-token");
const X: &str = "http://db/x";

#[rustfmt::skip]
static ROWS: &[Row] = &[
    row("plain", "RFC 9113 8.3.1", "PUT", "http://db:81/x?y=//", &[T], Want::Saw("put /x?y=// http/1.1\r\nx-fence-token: 100\r\n")),
    row("authority-is-host", "RFC 9113 8.3.1", "PUT", "http://db:81/x", &[T], Want::Saw("\r\nhost: db:81\r\n")),
    row("length-unknown-but-small", "RFC 9110 8.6", "PUT", X, &[T], Want::Saw("\r\ncontent-length: 3\r\n")),
    row("length-told", "RFC 9113 8.1.1", "PUT", X, &[T, ("content-length", "3")], Want::Saw("\r\ncontent-length: 3\r\n")),
    row("host-equal", "RFC 9113 8.3.1", "PUT", X, &[T, ("host", "db")], Want::Saw("\r\nhost: db\r\n")),
    row("host-other", "RFC 9113 8.3.1", "PUT", X, &[T, ("host", "evil")], BAD),
    row("host-twice", "RFC 9113 8.3.1", "PUT", X, &[T, ("host", "db"), ("host", "db")], BAD),
    row("authority-user", "RFC 9113 8.3.1", "PUT", "http://u:p@db/x", &[T], BAD),
    row("scheme-other", "RFC 9110 4.2", "PUT", "ftp://db/x", &[T], BAD),
    row("asterisk-put", "RFC 9110 7.1", "PUT", "http://db/*", &[T], Want::Saw("put /* ")),
    row("token-blank-before", "RFC 9113 8.2.1", "PUT", X, &[("x-fence-token", " 100")], TOKEN),
    row("token-blank-after", "RFC 9113 8.2.1", "PUT", X, &[("x-fence-token", "100 ")], TOKEN),
    row("token-tab-after", "RFC 9113 8.2.1", "PUT", X, &[("x-fence-token", "100\t")], TOKEN),
    row("token-twice-equal", "RFC 9110 5.3", "PUT", X, &[T, T], TOKEN),
    row("token-twice-different", "RFC 9110 5.3", "PUT", X, &[T, ("x-fence-token", "99")], TOKEN),
    row("token-list", "RFC 9110 5.3", "PUT", X, &[("x-fence-token", "100, 99")], TOKEN),
    row("token-empty", "RFC 9110 5.5", "PUT", X, &[("x-fence-token", "")], TOKEN),
    row("token-plus", "RFC 9110 5.5", "PUT", X, &[("x-fence-token", "+100")], TOKEN),
    row("token-stale", "RFC 9110 13.1", "PUT", X, &[("x-fence-token", "99")], Want::Refused(412, "stale-token")),
    row("token-none", "RFC 6585 3", "PUT", X, &[], MISSING),
    row("token-underscores", "RFC 9110 17.10", "PUT", X, &[T, ("x_fence_token", "101")], BAD),
    row("method-lower-case", "RFC 9110 9.1", "get", X, &[], MISSING),
    row("method-unknown", "RFC 9110 9.1", "FROBNICATE", X, &[], MISSING),
    row("method-trace", "RFC 9110 9.3.8", "TRACE", X, &[], Want::Refused(405, "method-refused")),
    row("override", "RFC 9110 9.1", "GET", X, &[("x-http-method-override", "DELETE")], MISSING),
    row("get-with-body", "RFC 9110 9.3.1", "GET", X, &[], Want::Saw("get /x ")),
    row("te-trailers", "RFC 9113 8.2.2", "PUT", X, &[T, ("te", "trailers")], Want::Saw("x-fence-token")),
    row("expect-unknown", "RFC 9110 10.1.1", "PUT", X, &[T, ("expect", "banana")], Want::Refused(417, "expectation-failed")),
    row("path-bytes", "RFC 3986 6.2.2", "PUT", "http://db/a%2Fb/../%2e//c;d", &[T], Want::Saw("put /a%2fb/../%2e//c;d ")),
    row("cookie-crumbs", "RFC 9113 8.2.3", "GET", X, &[("cookie", "a=1"), ("cookie", "b=2")], Want::Saw("\r\ncookie: a=1; b=2\r\n")),
    Row { trailers: &[("x-sum", "1")], ..row("trailers", "RFC 9110 6.5.1", "PUT", X, &[T], Want::Saw("content-length: 3")) },
    Row { trailers: &[("x-fence-token", "101")], ..row("trailer-another-token", "RFC 9110 6.5.1", "PUT", X, &[T], Want::Saw("x-fence-token: 100")) },
    Row { trailers: &[("x-fence-token", "100")], ..row("trailer-only-token", "RFC 9110 6.5.1", "PUT", X, &[], MISSING) },
];

async fn run(row: &Row, address: SocketAddr, origin: &Origin) -> Result<(), String> {
    let before = origin.arrivals().len();
    let (mut client, connection) = connect(address).await;
    let mut request = Request::builder().method(row.method).uri(row.uri);
    for (name, value) in row.fields {
        request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let (response, mut stream) = client
        .send_request(request.body(()).unwrap(), false)
        .map_err(|error| error.to_string())?;
    // A refusal may have ended the stream by now.
    let _ = stream.send_data(row.body.into(), row.trailers.is_empty());
    if !row.trailers.is_empty() {
        let each = row.trailers.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        let _ = stream.send_trailers(HeaderMap::from_iter(each));
    }
    let response = whole(response).await.map_err(|error| error.to_string())?;
    connection.abort();
    let outcome = response.headers()["x-fence-outcome"].to_str().unwrap();
    let arrived = &origin.arrivals()[before..];
    match row.want {
        Want::Refused(status, name) => {
            let got = (
                response.status().as_u16(),
                problem(&response),
                outcome,
                arrived.len(),
            );
            if got != (status, Some(name.to_owned()), "refused", 0) {
                return Err(format!("{got:?}"));
            }
        }
        Want::Saw(line) => {
            let [arrival] = arrived else {
                return Err(format!("{:?}: {arrived:?}", problem(&response)));
            };
            let head = String::from_utf8_lossy(&arrival.head).to_ascii_lowercase();
            if !head.contains(line) || head.matches("\r\nhost:").count() != 1 {
                return Err(format!("no {line:?}: {head:?}"));
            }
            if arrival.body != b"abc" || !arrival.complete || outcome != "answered" {
                return Err(format!("{outcome}: {arrival:?}"));
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_odd_request_is_refused_or_made_plain() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let mut wrong = Vec::new();
    for row in ROWS {
        if let Err(why) = run(row, proxy.address(), &origin).await {
            wrong.push(format!("{} ({}): {why}", row.name, row.rule));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn write_to(target: &str) -> Request<()> {
    Request::put(format!("http://db{target}"))
        .header("x-fence-token", "100")
        .body(())
        .unwrap()
}

/// hyper#3681: to hyper a stream that was reset with NO_ERROR is a body at its end. For a datastore that would be half an object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_reset_never_looks_complete() {
    let origin = upstream();
    let proxy = proxy(&origin);
    for reason in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
        for length in [None, Some("400000")] {
            let target = format!("/cut-{}-{}", u32::from(reason), length.is_some());
            let (mut client, connection) = connect(proxy.address()).await;
            let mut request = write_to(&target);
            if let Some(length) = length {
                let length = HeaderValue::from_static(length);
                request.headers_mut().insert("content-length", length);
            }
            let (response, mut stream) = client.send_request(request, false).unwrap();
            send_body(&mut stream, 200_000).await;
            let arrived = origin.wait_arrivals(&target, 1)[0].connection;
            stream.send_reset(reason);
            let ended = wait_for("the upload's end", || origin.ended(arrived));
            assert!(
                matches!(ended, Ended::CutShort | Ended::Reset),
                "{target}: {ended:?}"
            );
            assert!(!origin.arrivals_at(&target)[0].complete, "{target}");
            drop(response);
            connection.abort();
        }
    }
    assert!(
        origin
            .applied()
            .iter()
            .all(|a| !a.target.starts_with("/cut"))
    );
}

/// A small body is read whole first: a stream that is reset in it never reaches upstream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_upload_that_is_reset_never_begins() {
    let origin = upstream();
    let proxy = proxy(&origin);
    for reason in [Reason::CANCEL, Reason::NO_ERROR] {
        let (mut client, connection) = connect(proxy.address()).await;
        let (response, mut stream) = client.send_request(write_to("/x"), false).unwrap();
        send_body(&mut stream, 100).await;
        stream.send_reset(reason);
        assert!(response.await.is_err());
        // The connection goes on, and what comes after it on the same one has been looked at later.
        let (response, _) = client.send_request(write_to("/next"), true).unwrap();
        assert_eq!(whole(response).await.unwrap().status(), 200);
        connection.abort();
    }
    assert!(origin.arrivals_at("/x").is_empty());
}

/// hyper#2729: the refusal is readable on a stream that is still uploading, and the connection goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_leaves_the_connection_and_its_other_streams_alone() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let (mut client, connection) = connect(proxy.address()).await;
    let request = Request::put("http://db/x")
        .header("x-fence-token", "99")
        .body(())
        .unwrap();
    let (refused, mut stream) = client.send_request(request, false).unwrap();
    let (good, mut other) = client.send_request(write_to("/y"), false).unwrap();
    let refused = whole(refused).await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), problem(&refused).as_deref()),
        (412, Some("stale-token"))
    );
    let _ = stream.send_data(Bytes::from_static(b"more"), true);
    other.send_data(Bytes::from_static(b"abc"), true).unwrap();
    assert_eq!(whole(good).await.unwrap().status(), 200);
    connection.abort();
}

/// RFC 9113, section 8.5, and hyper#4049: no tunnel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_opens_no_tunnel() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let (mut client, connection) = connect(proxy.address()).await;
    let request = Request::connect("db:80").body(()).unwrap();
    let (response, _stream) = client.send_request(request, false).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 405);
    assert_eq!(response.headers()["x-fence-outcome"], "refused");
    assert_eq!(origin.arrivals().len(), 1);
    connection.abort();
}

/// pingora#865: GOAWAY is no reason to drop what has been taken. RFC 9113, section 6.8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_all_fifty_streams() {
    let origin = upstream();
    let mut proxy = proxy(&origin);
    let sign = Sign::new();
    origin.otherwise(vec![
        Step::ReadBody,
        Step::Await(sign.clone()),
        Step::Answer(200, b"ok".into()),
    ]);
    let (client, connection) = connect(proxy.address()).await;
    let mut waiting = Vec::new();
    for number in 0..50 {
        let mut ready = client.clone().ready().await.unwrap();
        let (response, _) = ready
            .send_request(write_to(&format!("/{number}")), true)
            .unwrap();
        waiting.push(response);
    }
    wait_for("all to be at upstream", || {
        (sign.reached() == 50).then_some(())
    });
    proxy.signal(Signal::SIGTERM);
    proxy.wait_line("stopping");
    sign.give();
    for response in waiting {
        let response = whole(response).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.body()[..]),
            (200, &b"ok"[..])
        );
    }
    drop(client);
    // It ends by itself, in order.
    connection.await.unwrap().unwrap();
    assert_eq!(proxy.wait().code(), Some(0));
}

/// hyper#3050: an idle connection does not hold up the stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_an_idle_connection() {
    let origin = upstream();
    let mut proxy = proxy(&origin);
    let (mut client, connection) = connect(proxy.address()).await;
    let (response, _) = client.send_request(write_to("/x"), true).unwrap();
    assert_eq!(whole(response).await.unwrap().status(), 200);
    proxy.signal(Signal::SIGTERM);
    connection.await.unwrap().unwrap();
    assert_eq!(proxy.wait().code(), Some(0));
    assert!(proxy.lines().iter().all(|line| !line.contains("ERROR")));
}

/// RFC 9110, sections 9.3.2, 15.3.5 and 15.4.5; RFC 9113, section 8.2.2: no content where none may be, no field of a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_what_http2_allows() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let (client, connection) = connect(proxy.address()).await;
    let rows = [
        (
            "GET",
            "100",
            "HTTP/1.1 200 OK\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            200,
            "abc",
        ),
        (
            "GET",
            "100",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 12345\r\n\r\n",
            304,
            "",
        ),
        ("PUT", "100", "HTTP/1.1 204 No Content\r\n\r\n", 204, ""),
        (
            "HEAD",
            "100",
            "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n",
            200,
            "",
        ),
        ("HEAD", "99", "", 412, ""),
    ];
    for (method, token, answer, status, body) in rows {
        if !answer.is_empty() {
            origin.once("/x", vec![Step::ReadBody, Step::Raw(answer.into())]);
        }
        let request = Request::builder()
            .method(method)
            .uri("http://db/x")
            .header("x-fence-token", token)
            .body(())
            .unwrap();
        let mut client = client.clone().ready().await.unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let response = whole(response).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{method} {answer}");
        assert_eq!(response.body(), body.as_bytes(), "{method} {answer}");
        for gone in ["connection", "x-hop", "keep-alive", "transfer-encoding"] {
            assert!(!response.headers().contains_key(gone), "{gone}");
        }
        assert!(response.headers().contains_key("x-fence-outcome"));
    }
    connection.abort();
}

/// RFC 9113, section 8.1: what upstream did not complete is a reset stream, not an ended one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_cut_short_is_reset() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let (client, connection) = connect(proxy.address()).await;
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        origin.once(
            "/x",
            vec![Step::ReadBody, Step::Raw(answer.into()), Step::Close],
        );
        let mut client = client.clone().ready().await.unwrap();
        let (response, _) = client.send_request(write_to("/x"), true).unwrap();
        assert!(whole(response).await.is_err(), "{answer}");
    }
    // The connection and its other streams are none the worse.
    let mut client = client.clone().ready().await.unwrap();
    let (response, _) = client.send_request(write_to("/y"), true).unwrap();
    assert_eq!(whole(response).await.unwrap().status(), 200);
    connection.abort();
}

/// RFC 9110, section 10.1.1: a refusal costs no upload here either; hyper sends no 100 over HTTP/2, and the client may not wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expectation_is_met_or_refused_without_the_body() {
    let origin = upstream();
    let proxy = proxy(&origin);
    for (token, status) in [("99", 412), ("100", 200)] {
        let (mut client, connection) = connect(proxy.address()).await;
        let request = Request::put("http://db/x")
            .header("x-fence-token", token)
            .header("expect", "100-continue")
            .body(())
            .unwrap();
        let (response, mut stream) = client.send_request(request, false).unwrap();
        if status == 200 {
            send_body(&mut stream, 1000).await;
            stream.send_data(Bytes::new(), true).unwrap();
        }
        assert_eq!(whole(response).await.unwrap().status().as_u16(), status);
        connection.abort();
    }
    assert_eq!(origin.arrivals_at("/x").len(), 1);
}

/// RFC 6585, section 5; RFC 9110, section 15.5.15; RFC 9113, section 10.5.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_too_large_is_told_so() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let head = |fields: usize, size: usize, target: usize| {
        let mut request = write_to(&format!("/{}", "a".repeat(target)));
        for number in 0..fields {
            let name = HeaderName::try_from(format!("x-{number}")).unwrap();
            let value = HeaderValue::try_from("b".repeat(size)).unwrap();
            request.headers_mut().insert(name, value);
        }
        request
    };
    for (request, status) in [
        (head(50, 100, 1000), 200),
        (head(110, 1, 1), 431),
        (head(40, 2000, 1), 431),
        (head(1, 1, 33 * 1024), 414),
    ] {
        let (mut client, connection) = connect(proxy.address()).await;
        let (response, _) = client.send_request(request, true).unwrap();
        assert_eq!(response.await.unwrap().status().as_u16(), status);
        connection.abort();
    }
    assert_eq!(origin.arrivals().len(), 2);
}
