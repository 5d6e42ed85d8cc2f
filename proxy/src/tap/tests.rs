use super::*;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use std::convert::Infallible;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

const MAX_HEAD: usize = 1 << 20;

/// One request as hyper's service sees it, and what the tap says of it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    method: String,
    target: String,
    body: Option<usize>,
    tap: Result<(), &'static str>,
}

/// Serves a connection by hyper with a tap on it, gives it these bytes in these pieces, half-closes, and says what was
/// seen: the requests, the head's state at the end, and the answer.
fn serve(pieces: &[&[u8]]) -> (Vec<Seen>, (Phase, u64), String) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut client, server) = UnixStream::pair().unwrap();
        let (tap, heads) = Tap::new(server, MAX_HEAD);
        let (sender, seen) = std::sync::mpsc::channel();
        let in_service = heads.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (heads, sender) = (in_service.clone(), sender.clone());
            async move {
                let tap = heads
                    .next(request.method(), request.uri())
                    .map_err(|refusal| refusal.problem.name());
                let (parts, body) = request.into_parts();
                let body = body.collect().await.ok().map(|body| body.to_bytes().len());
                let seen = Seen {
                    method: parts.method.to_string(),
                    target: parts.uri.to_string(),
                    body,
                    tap,
                };
                sender.send(seen).unwrap();
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        });
        let serving = async {
            // What hyper refuses it also reports; the answer on the wire is what counts here.
            let _ = hyper::server::conn::http1::Builder::new()
                .half_close(true)
                .serve_connection(TokioIo::new(tap), service)
                .await;
        };
        let sending = async {
            for piece in pieces {
                // The server may have closed already.
                if client.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let _ = client.shutdown().await;
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        };
        let ((), answer) = tokio::join!(serving, sending);
        (seen.try_iter().collect(), heads.progress(), answer)
    })
}

fn one(raw: &str) -> Seen {
    let (mut seen, _, answer) = serve(&[raw.as_bytes()]);
    assert_eq!(seen.len(), 1, "{raw:?} {answer}");
    seen.remove(0)
}

/// RFC 9112, section 3.2: no form of a target has a fragment. hyper cuts it off without a word, so that
/// `DELETE /coll#x` would delete `/coll` (hyperium/http#775).
#[test]
fn a_fragment_is_refused() {
    let seen = one("DELETE /coll#x HTTP/1.1\r\nHost: db\r\n\r\n");
    assert_eq!(seen.target, "/coll", "hyper has cut it off");
    assert_eq!(seen.tap, Err("bad-request"));
    assert_eq!(
        one("GET /a?b#c HTTP/1.1\r\nHost: db\r\n\r\n").tap,
        Err("bad-request")
    );
    assert_eq!(
        one("GET http://db/a#c HTTP/1.1\r\nHost: db\r\n\r\n").tap,
        Err("bad-request")
    );
    assert_eq!(
        one("GET /coll%23x HTTP/1.1\r\nHost: db\r\n\r\n").tap,
        Ok(())
    );
}

/// RFC 9112, section 6.3: hyper drops one of the two and goes on.
#[test]
fn doubtful_framing_is_refused() {
    for fields in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n0\r\n\r\n",
        "Content-Length: 3\r\ncontent-length:3\r\n\r\nabc",
    ] {
        let seen = one(&format!("PUT /x HTTP/1.1\r\nHost: db\r\n{fields}"));
        assert_eq!(seen.tap, Err("bad-request"), "{fields:?}");
    }
}

#[test]
fn every_form_of_target_is_compared() {
    for (line, tap) in [
        ("GET / HTTP/1.1", Ok(())),
        ("GET //lead?x=1&y HTTP/1.1", Ok(())),
        ("GET /a/../%2f%zz?? HTTP/1.1", Ok(())),
        ("OPTIONS * HTTP/1.1", Ok(())),
        ("GET http://db HTTP/1.1", Ok(())),
        ("GET HTTP://DB:80/x?y HTTP/1.1", Ok(())),
        ("GET http://db?x HTTP/1.1", Ok(())),
        ("CONNECT db:80 HTTP/1.1", Ok(())),
        ("frob /x HTTP/1.0", Ok(())),
    ] {
        assert_eq!(
            one(&format!("{line}\r\nHost: db\r\n\r\n")).tap,
            tap,
            "{line}"
        );
    }
}

/// RFC 9112, section 9.3.2: pipelined requests are each followed, whatever their framing.
#[test]
fn pipelined_requests() {
    let raw = "\r\nPUT /1 HTTP/1.1\r\nHost: db\r\nContent-Length: 5\r\n\r\nGET /POST /2#f HTTP/1.1\nHost: db\n\
               Transfer-Encoding: chunked\n\n3;a=b\r\nGET\r\n0\r\nX: GET /\r\n\r\nGET /3 HTTP/1.1\r\nHost: db\r\n\r\n";
    let all = |seen: Vec<Seen>| -> Vec<(String, String, Option<usize>, bool)> {
        seen.into_iter()
            .map(|s| (s.method, s.target, s.body, s.tap.is_ok()))
            .collect()
    };
    let want = [
        ("PUT".into(), "/1".into(), Some(5), true),
        ("POST".into(), "/2".into(), Some(3), false),
        ("GET".into(), "/3".into(), Some(0), true),
    ];
    let (seen, progress, _) = serve(&[raw.as_bytes()]);
    assert_eq!(all(seen), want);
    assert_eq!(progress, (Phase::Idle, 3));
    let bytes: Vec<&[u8]> = raw.as_bytes().chunks(1).collect();
    assert_eq!(all(serve(&bytes).0), want, "byte by byte");
}

#[test]
fn phases() {
    let mut follower = Follower::new(MAX_HEAD);
    let mut at = |bytes: &[u8]| {
        follower.follow(bytes);
        (follower.phase(), follower.heads())
    };
    assert_eq!(at(b""), (Phase::Idle, 0));
    assert_eq!(at(b"\r\n"), (Phase::Idle, 0));
    assert_eq!(at(b"P"), (Phase::Head, 0));
    assert_eq!(at(b"UT / HTTP/1.1\r\nContent-Le"), (Phase::Head, 0));
    assert_eq!(at(b"ngth: 3\r\n\r\n"), (Phase::Body, 1));
    assert_eq!(at(b"ab"), (Phase::Body, 1));
    assert_eq!(at(b"c"), (Phase::Idle, 1));
    assert_eq!(
        at(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (Phase::Body, 2)
    );
    assert_eq!(at(b"0\r\n"), (Phase::Body, 2));
    assert_eq!(at(b"\r\nG"), (Phase::Head, 2));
    assert_eq!(at(b"ET nothing\r\n"), (Phase::Lost, 2));
}

#[test]
fn http2_and_long_heads_are_not_followed() {
    let mut follower = Follower::new(64);
    follower.follow(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(follower.phase(), Phase::Http2);
    let mut follower = Follower::new(64);
    follower.follow(&[b'a'; 65]);
    assert_eq!(follower.phase(), Phase::Lost);
}

/// A head of half a megabyte leaves nothing behind.
#[test]
fn a_large_head_is_forgotten() {
    let mut follower = Follower::new(MAX_HEAD);
    let target = vec![b'a'; 300_000];
    for part in [
        b"GET /",
        target.as_slice(),
        b" HTTP/1.1\r\nX: ",
        target.as_slice(),
        b"\r\n\r\n",
    ] {
        follower.follow(part);
    }
    assert_eq!(follower.head().map(|head| head.target.len()), Some(300_001));
    follower.pop_head();
    assert_eq!(follower.phase(), Phase::Idle);
    assert!(follower.memory() < 20_000, "{}", follower.memory());
}

/// Texts of taken heads don't pile up.
#[test]
fn memory_stays_bounded() {
    let mut follower = Follower::new(MAX_HEAD);
    for round in 0..10_000 {
        follower.follow(b"GET /some/long/target HTTP/1.1\r\n\r\nGET /next");
        follower.follow(b" HTTP/1.1\r\n\r\n");
        assert_eq!(
            follower.head().unwrap().target,
            b"/some/long/target",
            "{round}"
        );
        follower.pop_head();
        assert_eq!(follower.head().unwrap().target, b"/next");
        follower.pop_head();
    }
    assert!(follower.memory() < 20_000);
    assert_eq!(follower.head(), None);
}

fn head_piece() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => Just("\r\n".to_owned()),
        1 => Just("\n".to_owned()),
    ]
}

/// A framing field and the body; with doubtful framing as often as `both` says.
fn body(both: f64) -> impl Strategy<Value = (String, Vec<u8>)> {
    let data = prop::collection::vec(
        prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'G'), any::<u8>()],
        0..40,
    );
    prop_oneof![
        2 => Just((String::new(), Vec::new())),
        3 => data.clone().prop_map(|data| (format!("Content-Length: {}", data.len()), data)),
        1 => data.clone().prop_map(|data| (format!("content-length:\t00{} ", data.len()), data)),
        1 => data.clone().prop_map(|data| (format!("Content-Length: {0}\r\nContent-Length: {0}", data.len()), data)),
        4 => (prop::collection::vec(data, 0..4), "[;a-z \t\"=]{0,6}", prop::collection::vec("[A-Za-z-]{1,5}: [ -~]{0,8}", 0..3), prop::bool::weighted(both))
            .prop_map(|(chunks, extension, trailers, both)| {
                let mut raw = Vec::new();
                let extension = if extension.is_empty() { extension } else { format!(";{extension}") };
                for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                    raw.extend(format!("{:X}{extension}\r\n", chunk.len()).bytes());
                    raw.extend(chunk);
                    raw.extend(b"\r\n");
                }
                raw.extend(b"0\r\n");
                for trailer in trailers {
                    raw.extend(trailer.bytes().chain(*b"\r\n"));
                }
                raw.extend(b"\r\n");
                let length = if both { "\r\nContent-Length: 7" } else { "" };
                (format!("Transfer-Encoding: chunked{length}"), raw)
            }),
    ]
}

/// A request that hyper serves on a connection that it keeps.
fn good_request() -> impl Strategy<Value = Vec<u8>> {
    (
        Just("PUT"),
        "/[a-z%?;/.]{0,12}",
        Just(Vec::new()),
        body(0.0),
        head_piece(),
        Just(""),
    )
        .prop_map(assemble)
}

/// A request that hyper may refuse.
fn request() -> impl Strategy<Value = Vec<u8>> {
    (
        prop_oneof![Just("GET"), Just("PUT"), Just("frob"), Just("OPTIONS")],
        prop_oneof![
            4 => "/[a-z%#?;/.]{0,12}",
            1 => Just("*".to_owned()),
            1 => "http://[a-z]{1,5}(/[a-z#?]{0,5})?",
            1 => "[ -~]{1,10}",
        ],
        prop::collection::vec("[A-Za-z-]{1,20}: ?[ -~]{0,20}", 0..4),
        body(0.1),
        head_piece(),
        prop_oneof![8 => Just(""), 1 => Just("\r\n"), 1 => Just("\n")],
    )
        .prop_map(assemble)
}

type Parts = (
    &'static str,
    String,
    Vec<String>,
    (String, Vec<u8>),
    String,
    &'static str,
);

fn assemble((method, target, fields, (framing, body), end, before): Parts) -> Vec<u8> {
    let mut raw = format!("{before}{method} {target} HTTP/1.1{end}Host: db{end}");
    for field in fields
        .iter()
        .chain([&framing])
        .filter(|field| !field.is_empty())
    {
        raw.push_str(field);
        raw.push_str(&end);
    }
    raw.push_str(&end);
    let mut raw = raw.into_bytes();
    raw.extend(body);
    raw
}

/// Bytes changed here and there, so that hyper has something to refuse in the middle.
fn damaged(mut raw: Vec<u8>, damage: Vec<(prop::sample::Index, u8)>) -> Vec<u8> {
    for (at, byte) in damage {
        let at = at.index(raw.len());
        raw[at] = byte;
    }
    raw
}

fn split<'a>(raw: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(raw.len())).collect();
    cuts.extend([0, raw.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &raw[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Whatever hyper accepts, the tap has seen the same requests: method and target agree but for a fragment, and it
    /// is not lost at any of them.
    #[test]
    fn follows_whatever_hyper_accepts(
        requests in prop::collection::vec(request(), 1..5),
        damage in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![
            Just(b'\r'), Just(b'\n'), Just(b' '), Just(b';'), Just(b':'), Just(b'0'), any::<u8>()]), 0..3),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let raw = damaged(requests.concat(), damage);
        let (seen, progress, answer) = serve(&split(&raw, &cuts));
        prop_assert!(progress.1 >= seen.len() as u64, "{seen:?} {answer}");
        // A second follower, fed at once, is the tap's own record of the wire.
        let mut follower = Follower::new(MAX_HEAD);
        follower.follow(&raw);
        for seen in seen {
            let head = follower.head();
            prop_assert!(head.is_some(), "{seen:?} was not followed in {:?}", String::from_utf8_lossy(&raw));
            let head = head.unwrap();
            let fragment = head.target.contains(&b'#');
            prop_assert_eq!(seen.method.as_bytes(), head.method);
            let agrees = !fragment && !head.doubtful_framing;
            prop_assert_eq!(seen.tap.is_ok(), agrees, "{:?} {:?}", seen, head);
            follower.pop_head();
        }
    }

    /// The property above is not empty: hyper serves these, and the tap has nothing against any but those with a
    /// second Content-Length.
    #[test]
    fn good_requests_are_all_served(
        requests in prop::collection::vec(good_request(), 1..5),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let raw = requests.concat();
        let (seen, progress, answer) = serve(&split(&raw, &cuts));
        prop_assert_eq!(seen.len(), requests.len(), "{}", answer);
        prop_assert_eq!(progress, (Phase::Idle, requests.len() as u64));
        for (seen, request) in seen.iter().zip(&requests) {
            let twice = String::from_utf8_lossy(request).matches("Content-Length").count() == 2;
            prop_assert_eq!(seen.tap.is_err(), twice);
            prop_assert!(seen.body.is_some());
        }
    }

    /// However the bytes are split, the follower sees the same.
    #[test]
    fn splits_make_no_difference(
        requests in prop::collection::vec(request(), 1..5),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let raw = requests.concat();
        let mut whole = Follower::new(MAX_HEAD);
        whole.follow(&raw);
        let mut parts = Follower::new(MAX_HEAD);
        for part in split(&raw, &cuts) {
            parts.follow(part);
        }
        prop_assert_eq!(whole.phase(), parts.phase());
        while let Some(head) = whole.head() {
            prop_assert_eq!(Some(head), parts.head());
            whole.pop_head();
            parts.pop_head();
        }
        prop_assert_eq!(parts.head(), None);
    }
}
