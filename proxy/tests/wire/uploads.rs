//! Bodies on their way up: asked for only after the gate, never completed for a client that did not complete them, and refusals
//! that ordinary clients can read while they upload.

use crate::support::{
    Palisade, answers, ask, connect, put, read_answer, read_to_end, send, upstream,
};
use palisade_loadtest::{
    origin::{Ended, Origin, Sign, Step},
    servers::wait_for,
};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr},
    process::{Command, Output},
};

fn proxy(origin: &Origin) -> Palisade {
    let proxy = Palisade::start(&origin.url(), "");
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    proxy
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// RFC 9110, section 10.1.1: a final status in place of 100, and no byte of the body is wanted.
#[test]
fn a_refusal_costs_no_upload_when_the_client_expects_100() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let mut client = connect(proxy.address());
    client.write_all(b"PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 99\r\nExpect: 100-continue\r\nContent-Length: 10737418240\r\n\r\n").unwrap();
    // To the end: the connection is closed although nothing of the body was sent.
    let got = answers(&read_to_end(&mut client), false);
    let [answer] = &got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(answer.status, 412);
    assert_eq!(answer.problem().as_deref(), Some("stale-token"));
    assert_eq!(answer.field("connection"), Some("close"));
    assert!(origin.arrivals_at("/x").is_empty());
}

/// The same section: 100 once, after the gate; upstream is not asked again.
#[test]
fn an_accepted_expectation_gets_100_once() {
    let origin = upstream();
    let proxy = proxy(&origin);
    for length in [3, 100_000] {
        let mut client = connect(proxy.address());
        write!(client, "PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n").unwrap();
        let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
        let mut got = vec![0; interim.len()];
        client.read_exact(&mut got).unwrap();
        assert_eq!(got, interim);
        client.write_all(&vec![b'a'; length]).unwrap();
        assert_eq!(read_answer(&mut client).status, 200);
        let arrival = origin.arrivals_at("/x").pop().unwrap();
        assert_eq!((arrival.length, arrival.complete), (length as u64, true));
        assert!(arrival.field("expect").is_empty());
    }
}

/// RFC 9112, section 9.3: a refusal is no reason to give up a connection when little is left to read.
#[test]
fn a_refused_small_body_leaves_the_connection_open() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let mut client = connect(proxy.address());
    for _ in 0..3 {
        for (token, status) in [("99", 412), ("abc", 400), ("100", 200)] {
            let body = "b".repeat(40_000);
            let request = format!(
                "PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: {token}\r\nContent-Length: 40000\r\n\r\n{body}"
            );
            let answer = ask(&mut client, &request);
            assert_eq!((answer.status, answer.field("connection")), (status, None));
        }
    }
    assert_eq!(origin.arrivals_at("/x").len(), 3);
}

/// The body that belongs to a refused request is never read as the next one, however it comes in pieces.
#[test]
fn what_a_refused_request_still_sends_is_no_request() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let mut client = connect(proxy.address());
    let inner =
        "PUT /inner HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 0\r\n\r\n";
    let head = format!(
        "PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 99\r\nContent-Length: {}\r\n\r\n",
        inner.len()
    );
    // The refusal comes before the body; the body then comes, and after it a good request.
    assert_eq!(ask(&mut client, &head).status, 412);
    client.write_all(inner.as_bytes()).unwrap();
    let next = "PUT /next HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(ask(&mut client, next).status, 200);
    assert!(origin.arrivals_at("/inner").is_empty());
    assert_eq!(origin.arrivals_at("/next").len(), 1);
}

/// hyper#2384, hyper#3078: an ordinary client sends everything before it reads anything.
#[test]
fn python_reads_the_refusal_of_20_mb_each_time() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let script = "
import http.client, sys
host, read = sys.argv[1], 0
for _ in range(20):
    client = http.client.HTTPConnection(host, timeout=60)
    client.request('PUT', '/x', body=bytes(20_000_000), headers={'X-Fence-Token': '99'})
    answer = client.getresponse()
    assert answer.status == 412 and b'stale-token' in answer.read()
    read += 1
print(read)
";
    let output = run(Command::new("python3").args(["-c", script, &proxy.address().to_string()]));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "20");
    assert!(origin.arrivals_at("/x").is_empty());
}

/// hyper#2729, h2#633: a stream that is reset under the upload hides the answer.
#[test]
fn curl_reads_the_refusal_of_60_mb_over_http2_and_http1() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(60_000_000).unwrap();
    for version in ["--http2-prior-knowledge", "--http1.1"] {
        let output = run(Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "60", version])
            // Without waiting for a 100, so that it really uploads.
            .args(["--header", "Expect:", "--header", "X-Fence-Token: 99"])
            .args(["--write-out", "%{http_code}", "--output", "/dev/null"])
            .arg("--upload-file")
            .arg(file.path())
            .arg(format!("http://{}/x", proxy.address())));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "412", "{version}");
    }
    assert!(origin.arrivals_at("/x").is_empty());
}

/// hyper#3944: a GET's body is easily forgotten.
#[test]
fn the_refusal_of_a_get_with_a_body_is_readable() {
    let origin = upstream();
    let proxy = proxy(&origin);
    for length in [65_536, 5_000_000] {
        let mut request = format!(
            "GET /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 99\r\nContent-Length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend(vec![b'a'; length]);
        let answer = answers(&send(proxy.address(), &request), false).remove(0);
        assert_eq!(answer.problem().as_deref(), Some("stale-token"));
    }
}

/// Sends a head and so much of a body, waits until upstream has that, and then ends in some way.
fn abandoned(
    origin: &Origin,
    address: SocketAddr,
    head: &str,
    body: &[u8],
    end: impl FnOnce(std::net::TcpStream),
) {
    let before = origin.arrivals_at("/cut").len();
    let mut client = connect(address);
    let head = format!("PUT /cut HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\n{head}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(body).unwrap();
    let connection = origin.wait_arrivals("/cut", before + 1)[before].connection;
    end(client);
    let ended = wait_for("the upload's end at upstream", || origin.ended(connection));
    assert!(
        matches!(ended, Ended::CutShort | Ended::Reset),
        "{head}: {ended:?}"
    );
    let arrival = origin.arrivals_at("/cut").pop().unwrap();
    assert!(!arrival.complete, "{head}");
}

/// hyper#4017, RFC 9112, section 8: what was not complete never looks complete. Larger than what is read whole, so that upstream
/// has seen part of it.
#[test]
fn an_upload_that_its_client_abandons_is_cut_never_completed() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let half = vec![b'a'; 200_000];
    let mut chunk = format!("{:x}\r\n", half.len()).into_bytes();
    chunk.extend_from_slice(&half);
    let chunk_and_nonsense = [&chunk[..], b"\r\nzz\r\n"].concat();
    let (length, coding) = ("Content-Length: 400000", "Transfer-Encoding: chunked");
    let ways: [(&str, &[u8]); 3] = [
        (length, &half),
        (coding, &chunk),
        (coding, &chunk_and_nonsense),
    ];
    for (head, body) in ways {
        abandoned(&origin, proxy.address(), head, body, drop);
        abandoned(&origin, proxy.address(), head, body, |client| {
            client.shutdown(Shutdown::Write).unwrap();
            // It still reads: it may have been applied, as far as anyone can know.
            let mut client = client;
            let answer = answers(&read_to_end(&mut client), false).remove(0);
            assert_eq!(answer.outcome(), Some("unknown"), "{}", answer.head);
        });
    }
    assert!(
        origin
            .applied()
            .iter()
            .all(|applied| applied.target != "/cut")
    );
}

/// sozu#899: trailers are read to their end, so that the next request begins where it should.
#[test]
fn uploads_with_trailers_follow_each_other_on_one_connection() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let mut client = connect(proxy.address());
    for length in [3, 100_000, 3] {
        let body = "a".repeat(length);
        let request = format!(
            "PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
             {length:x}\r\n{body}\r\n0\r\nX-Sum: 1\r\nX-Fence-Token: 7\r\n\r\n"
        );
        assert_eq!(ask(&mut client, &request).status, 200);
        let arrival = origin.arrivals_at("/x").pop().unwrap();
        assert_eq!((arrival.length, arrival.complete), (length as u64, true));
        assert!(!String::from_utf8_lossy(&arrival.wire).contains("X-Sum"));
    }
}

/// A small body is read whole before anything is sent: a client that stops in it never reaches upstream.
#[test]
fn a_small_upload_that_is_abandoned_never_begins() {
    let origin = upstream();
    let proxy = proxy(&origin);
    for body in [
        "Content-Length: 9\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nab",
    ] {
        let request = format!("PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\n{body}");
        let answer = answers(&send(proxy.address(), request.as_bytes()), false).remove(0);
        assert_eq!(answer.problem().as_deref(), Some("bad-request"));
    }
    assert!(origin.arrivals_at("/x").is_empty());
}

/// caddy#4922: a client that leaves does not take back what was sent.
#[test]
fn a_write_outlives_its_client() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let sign = Sign::new();
    origin.once(
        "/x",
        vec![
            Step::ReadBody,
            Step::Await(sign.clone()),
            Step::Apply,
            Step::Answer(200, b"ok".into()),
        ],
    );
    let mut client = connect(proxy.address());
    client
        .write_all(
            b"PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc",
        )
        .unwrap();
    sign.wait_reached();
    drop(client);
    sign.give();
    wait_for("the write to be applied", || origin.value("/x"));
    // Its connection comes back to the pool: it was answered, not cut.
    wait_for("the write to be counted", || {
        (proxy.metric("palisade_in_flight{kind=\"write\"}") == 0.0).then_some(())
    });
    assert_eq!(put(proxy.address(), "/good", 101).status, 200);
}

/// RFC 9112, section 9.6: the half-closed client is still there to read.
#[test]
fn a_client_that_half_closes_gets_its_answer() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let sign = Sign::new();
    origin.once(
        "/x",
        vec![
            Step::ReadBody,
            Step::Await(sign.clone()),
            Step::Answer(200, b"late".into()),
        ],
    );
    let mut client = connect(proxy.address());
    client
        .write_all(
            b"PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc",
        )
        .unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    sign.wait_reached();
    sign.give();
    let answer = answers(&read_to_end(&mut client), false).remove(0);
    assert_eq!((answer.status, &answer.body[..]), (200, &b"late"[..]));
}

/// haproxy#3316, istio#36278: upstream says no before it has read the body.
#[test]
fn an_early_answer_from_upstream_is_relayed() {
    let origin = upstream();
    let proxy = proxy(&origin);
    origin.once(
        "/x",
        vec![Step::Answer(413, b"too large".into()), Step::Close],
    );
    let mut request =
        b"PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 20000000\r\n\r\n"
            .to_vec();
    request.extend(vec![b'a'; 20_000_000]);
    let answer = answers(&send(proxy.address(), &request), false).remove(0);
    assert_eq!((answer.status, answer.outcome()), (413, Some("answered")));
    assert_eq!(answer.body, b"too large");
    assert!(!origin.arrivals_at("/x")[0].complete);
}
