//! Responses on their way back: what belongs to the other connection stays there, and nothing is made whole that was not.

use crate::support::{
    Answer, Palisade, answers, ask, connect, put, read_answer, read_to_end, send, upstream,
};
use palisade_loadtest::{
    origin::{Origin, Step},
    servers::{free_port, wait_for},
};
use std::{
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

fn proxy(origin: &Origin) -> Palisade {
    let proxy = Palisade::start(&origin.url(), "");
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    proxy
}

/// What a client gets when upstream says this to a read, or a write.
fn relayed(proxy: &Palisade, origin: &Origin, method: &str, steps: Vec<Step>) -> Answer {
    origin.once("/x", steps);
    let request = format!(
        "{method} /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let answer = send(proxy.address(), request.as_bytes());
    answers(&answer, method == "HEAD").remove(0)
}

fn raw(text: &str) -> Vec<Step> {
    vec![Step::ReadBody, Step::Raw(text.into())]
}

fn raw_and_close(text: &str) -> Vec<Step> {
    vec![Step::ReadBody, Step::Raw(text.into()), Step::Close]
}

/// RFC 9110, section 7.6.1; `X-Fence-*` are the proxy's to say.
#[test]
fn fields_of_the_other_connection_stay_there() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let fields = [
        "Connection: X-Secret, close",
        "X-Secret: 1",
        "Keep-Alive: timeout=5",
        "Proxy-Connection: keep-alive",
        "Upgrade: h2c",
        "Trailer: X-Sum",
        "X-Fence-Outcome: refused",
        "X-Fence-Highest: 999",
        "X_Fence_Outcome: refused",
        "Set-Cookie: a=1",
        "Set-Cookie: b=2; Expires=Wed, 21 Oct 2015 07:28:00 GMT",
        "Link: <a>",
        "Link: <b>",
        "ETag: \"x\"",
        "Server: store/1",
        "Via: 1.1 store",
    ];
    let steps = vec![
        Step::ReadBody,
        Step::AnswerWith(200, fields.map(String::from).to_vec(), b"ok".into()),
        Step::Close,
    ];
    origin.once("/x", steps);
    let mut client = connect(proxy.address());
    let request = "GET /x HTTP/1.1\r\nHost: db\r\n\r\n";
    let answer = ask(&mut client, request);
    for gone in [
        "connection",
        "x-secret",
        "keep-alive",
        "proxy-connection",
        "upgrade",
        "trailer",
        "x-fence-highest",
        "x_fence_outcome",
        "transfer-encoding",
    ] {
        assert_eq!(answer.field(gone), None, "{}", answer.head);
    }
    assert_eq!(answer.outcome(), Some("answered"));
    assert_eq!(
        answer.all("set-cookie"),
        ["a=1", "b=2; Expires=Wed, 21 Oct 2015 07:28:00 GMT"]
    );
    assert_eq!(answer.all("link"), ["<a>", "<b>"]);
    assert_eq!(answer.all("via"), ["1.1 store", "1.1 palisade"]);
    assert_eq!(answer.field("etag"), Some("\"x\""));
    assert_eq!(answer.field("server"), Some("store/1"));
    // RFC 9112, section 9.6: upstream's `close` is not the client's.
    assert_eq!(ask(&mut client, request).status, 200);
}

/// pingora#706: and the other way round.
#[test]
fn a_client_that_closes_does_not_close_upstreams_connection() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "threads = 1\n");
    for _ in 0..3 {
        assert_eq!(put(proxy.address(), "/x", 100).status, 200);
    }
    assert_eq!(origin.connections(), 1);
}

/// RFC 9112, section 6.3: an answer that can be read in two ways is not relayed, and its reason is told.
#[test]
fn an_answer_that_cannot_be_relayed_is_a_502_with_a_reason() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let cases = [
        (
            "Content-Length",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        (
            "Content-Length",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        (
            "not valid",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        ),
        (
            "not valid",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nok",
        ),
        (
            "not valid",
            "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nX Y: 1\r\n\r\n",
        ),
        ("not valid", "nonsense\r\n\r\n"),
        ("not valid", "HTTP/2.0 200 OK\r\n\r\n"),
        (
            "101",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: foo\r\nConnection: upgrade\r\n\r\n",
        ),
        ("closed", ""),
        ("closed", "HTTP/1.1 200 OK\r\nContent-Le"),
    ];
    for (reason, answer) in cases {
        for method in ["GET", "PUT"] {
            let got = relayed(&proxy, &origin, method, raw_and_close(answer));
            let body = String::from_utf8_lossy(&got.body);
            assert_eq!(got.status, 502, "{answer:?}: {}", got.head);
            assert_eq!(got.problem().as_deref(), Some("outcome-unknown"));
            assert_eq!(got.outcome(), Some("unknown"));
            assert!(body.contains(reason), "{answer:?}: {body}");
        }
    }
    // None of those was sent twice (RFC 9110, section 9.2.2).
    assert_eq!(origin.arrivals_at("/x").len(), cases.len() * 2);
}

/// RFC 9112, section 8: a body cut short is cut short for the client too.
#[test]
fn a_body_cut_short_is_not_completed() {
    let origin = upstream();
    let proxy = proxy(&origin);
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
    ] {
        for method in ["GET", "PUT"] {
            let got = relayed(&proxy, &origin, method, raw_and_close(answer));
            assert_eq!((got.status, got.whole), (200, false), "{answer:?}");
            assert_eq!(got.body, b"abc", "{answer:?}");
        }
    }
}

#[test]
fn bodies_of_every_framing_come_whole() {
    let origin = upstream();
    let proxy = proxy(&origin);
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\nX-Sum: 1\r\n\r\n",
        // RFC 9112, section 6.3, rule 8: to the end of the connection.
        "HTTP/1.1 200 OK\r\n\r\nabc",
        "HTTP/1.0 200 OK\r\n\r\nabc",
        // RFC 9110, section 15.2: interim responses are not relayed, and the final one is.
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    ] {
        // Only what ends with the connection: else the next write might meet a connection that upstream is just closing.
        let steps = if answer.ends_with("OK\r\n\r\nabc") {
            raw_and_close(answer)
        } else {
            raw(answer)
        };
        let got = relayed(&proxy, &origin, "PUT", steps);
        assert_eq!((got.status, got.whole), (200, true), "{answer:?}");
        assert_eq!(got.body, b"abc", "{answer:?}");
        assert!(got.head.starts_with("HTTP/1.1 200 "), "{}", got.head);
    }
}

/// linkerd2#8539; RFC 9110, sections 9.3.2, 15.3.5 and 15.4.5: a length that announces no body.
#[test]
fn answers_without_a_body_keep_their_length() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let head = relayed(
        &proxy,
        &origin,
        "HEAD",
        raw("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\nContent-Type: text/x\r\n\r\n"),
    );
    assert_eq!(
        (head.status, head.field("content-length")),
        (200, Some("12345"))
    );
    let refused = send(
        proxy.address(),
        b"HEAD /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 99\r\n\r\n",
    );
    let refused = answers(&refused, true).remove(0);
    assert_eq!(refused.status, 412);
    assert_ne!(refused.field("content-length"), Some("0"));
    let not_modified = relayed(
        &proxy,
        &origin,
        "GET",
        raw("HTTP/1.1 304 Not Modified\r\nContent-Length: 12345\r\nETag: \"x\"\r\n\r\n"),
    );
    assert_eq!(
        (not_modified.status, not_modified.field("etag")),
        (304, Some("\"x\""))
    );
    let nothing = relayed(
        &proxy,
        &origin,
        "PUT",
        raw("HTTP/1.1 204 No Content\r\n\r\n"),
    );
    assert_eq!(
        (nothing.status, nothing.field("content-length")),
        (204, None)
    );
    // RFC 9110, section 8.6: 204 has no Content-Length; some stores send one all the same.
    let zero = relayed(
        &proxy,
        &origin,
        "PUT",
        raw("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"),
    );
    assert_eq!(zero.status, 204);
    assert!(zero.body.is_empty());
    for method in ["GET", "HEAD", "PUT"] {
        assert_eq!(
            relayed(
                &proxy,
                &origin,
                method,
                raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            )
            .status,
            200
        );
    }
}

/// RFC 9112, section 9.2: what upstream says without being asked belongs to nobody.
#[test]
fn a_second_answer_is_not_the_next_requests() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "threads = 1\n");
    put(proxy.address(), "/good", 100);
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let mut client = connect(proxy.address());
    origin.once("/x", raw(two));
    let request = "GET /x HTTP/1.1\r\nHost: db\r\n\r\n";
    assert_eq!(ask(&mut client, request).body, b"abc");
    assert_eq!(ask(&mut client, request).body, b"ok");
    let arrivals = origin.arrivals_at("/x");
    assert_ne!(arrivals[0].connection, arrivals[1].connection);
}

/// hyper-util#150, sozu#420: a store that accepts and closes is given up at once; one that is not there as well.
#[test]
fn a_store_that_is_not_there_is_a_502_and_nothing_was_sent() {
    let proxy = Palisade::start(&format!("http://127.0.0.1:{}", free_port().unwrap()), "");
    let answer = put(proxy.address(), "/x", 100);
    assert_eq!(answer.status, 502);
    assert_eq!(answer.problem().as_deref(), Some("upstream-unreachable"));
    assert_eq!(answer.outcome(), Some("refused"));
}

/// hyper-util#150: a store that accepts and closes at once is given up at once, for a write as for a read.
#[test]
fn a_store_that_closes_at_once_is_not_dialled_again_and_again() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&accepted);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            counter.fetch_add(1, Ordering::SeqCst);
            drop(connection);
        }
    });
    let proxy = Palisade::start(&format!("http://{address}"), "");
    for method in ["GET", "PUT"] {
        let before = accepted.load(Ordering::SeqCst);
        let request = format!(
            "{method} /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 0\r\n\r\n"
        );
        let answer = answers(&send(proxy.address(), request.as_bytes()), false).remove(0);
        assert_eq!(answer.status, 502, "{}", answer.head);
        assert_eq!(accepted.load(Ordering::SeqCst), before + 1, "{method}");
    }
}

/// rust-rpxy#596: a slow reader must not make the proxy hold the whole response.
#[test]
fn a_slow_reader_costs_no_memory() {
    const SIZE: usize = 64 << 20;
    let origin = upstream();
    let proxy = proxy(&origin);
    origin.once("/x", vec![Step::Answer(200, vec![b'a'; SIZE])]);
    let mut client = connect(proxy.address());
    client
        .write_all(b"GET /x HTTP/1.1\r\nHost: db\r\nConnection: close\r\n\r\n")
        .unwrap();
    let (mut length, mut part) = (0, [0; 4096]);
    loop {
        match client.read(&mut part).unwrap() {
            0 => break,
            read => length += read,
        }
    }
    assert!(length > SIZE);
    assert!(proxy.peak() < 48 << 10, "{} KiB at the peak", proxy.peak());
}

/// hyper#1716: nobody reads any more, so upstream need not go on. The client's system says so as soon as something comes
/// for it; a client that is gone and one that has only half closed look alike till then.
#[test]
fn a_reader_that_leaves_ends_upstreams_answer() {
    let origin = upstream();
    let proxy = proxy(&origin);
    origin.once("/x", vec![Step::Answer(200, vec![b'a'; 64 << 20])]);
    let mut client = connect(proxy.address());
    client
        .write_all(b"GET /x HTTP/1.1\r\nHost: db\r\n\r\n")
        .unwrap();
    let mut part = [0; 1024];
    assert!(client.read(&mut part).unwrap() > 0);
    let connection = origin.arrivals_at("/x")[0].connection;
    drop(client);
    wait_for("upstream's connection to end", || origin.ended(connection));
}

/// RFC 9112, section 9.3: HTTP/1.0 clients get a closed connection, or keep it when they ask to.
#[test]
fn http_1_0_clients_are_served() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let mut client = connect(proxy.address());
    client
        .write_all(b"GET /x HTTP/1.0\r\nHost: db\r\n\r\n")
        .unwrap();
    let answer = answers(&read_to_end(&mut client), false).remove(0);
    assert_eq!((answer.status, &answer.body[..]), (200, &b"ok"[..]));
    let mut client = connect(proxy.address());
    for _ in 0..2 {
        client
            .write_all(b"GET /x HTTP/1.0\r\nHost: db\r\nConnection: keep-alive\r\n\r\n")
            .unwrap();
        assert_eq!(read_answer(&mut client).status, 200);
    }
}
