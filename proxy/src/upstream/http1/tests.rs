use super::*;
use crate::upstream::{
    io::{Counted, Link},
    wire::Wire,
};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use palisade_lease::clock::BootClock;
use proptest::prelude::*;
use std::{future::poll_fn, sync::Arc};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

type Body =
    http_body_util::combinators::MapErr<Full<Bytes>, fn(std::convert::Infallible) -> BoxError>;

fn body(bytes: &'static [u8]) -> Body {
    Full::new(Bytes::from_static(bytes)).map_err(|never| match never {})
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(test)
}

fn over(stream: DuplexStream) -> Http1<DuplexStream, Body> {
    let link = Link::new(Arc::new(BootClock));
    link.begin(Wire::new(), None);
    Http1::new(MaybeTls::Plain(Counted { stream, link }), 16 * 1024)
}

/// An answer as it was understood.
#[derive(Debug, PartialEq)]
struct Read {
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    content: Vec<u8>,
}

fn fields(from: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    from.iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

/// What becomes of an answer that comes in these pieces, each of them read before the next, and then ends. Second: whether
/// another request might follow.
async fn ours(method: &Method, pieces: &[&[u8]]) -> Result<(Read, bool), String> {
    let (near, mut far) = duplex(1 << 20);
    let mut http = over(near);
    http.begin(
        Request::builder()
            .method(method)
            .uri("/x")
            // The answer's fields come in the same map, and this must not be among them.
            .header("x-asked", "y")
            .body(body(b""))
            .unwrap(),
    );
    let mut pieces = pieces.iter();
    // Its first poll looks whether the connection said something before: so nothing is there yet.
    let early = poll_fn(|cx| Poll::Ready(http.poll_answer(cx).is_ready())).await;
    assert!(!early);
    let (mut head, mut content, mut waits) = (None, Vec::new(), 0);
    loop {
        let step = poll_fn(|cx| {
            Poll::Ready(match &head {
                None => http.poll_answer(cx).map(|answer| {
                    head = Some(answer.map_err(|why| format!("{why:?}"))?);
                    Ok(false)
                }),
                Some(_) => http.poll_data(cx).map(|data| match data {
                    None => Ok(true),
                    Some(data) => {
                        content.extend_from_slice(&data.map_err(|why| why.to_string())?);
                        Ok(false)
                    }
                }),
            })
        })
        .await;
        match step {
            Poll::Ready(Ok(false)) => {}
            Poll::Ready(Ok(true)) => break,
            Poll::Ready(Err(why)) => return Err(why),
            Poll::Pending => {
                match pieces.next() {
                    Some(piece) => far.write_all(piece).await.unwrap(),
                    None => {
                        waits += 1;
                        assert!(waits < 10, "it waits for more than the end");
                        far.shutdown().await.unwrap();
                    }
                }
                // tokio makes a task that never stops wait for nothing.
                tokio::task::yield_now().await;
            }
        }
    }
    let head: Response<()> = head.unwrap();
    let read = Read {
        status: head.status().as_u16(),
        fields: fields(head.headers()),
        content,
    };
    Ok((read, http.is_reusable() && pieces.next().is_none()))
}

/// The same as hyper understands it.
async fn hypers(method: &Method, answer: &[u8]) -> Result<Read, String> {
    let (near, mut far) = duplex(1 << 20);
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(16 * 1024)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(near))
        .await
        .unwrap();
    let request = Request::builder()
        .method(method)
        .uri("/x")
        .body(Empty::new())
        .unwrap();
    let talk = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|why| why.to_string())?;
        let (head, content) = answer.into_parts();
        Ok(Read {
            status: head.status.as_u16(),
            fields: fields(&head.headers),
            content: content
                .collect()
                .await
                .map_err(|why| why.to_string())?
                .to_bytes()
                .to_vec(),
        })
    };
    let other = async {
        let mut asked = [0; 1];
        far.read_exact(&mut asked).await.unwrap();
        // It may have hung up.
        let _ = far.write_all(answer).await;
        let _ = far.shutdown().await;
    };
    let (read, _, ()) = tokio::join!(talk, connection, other);
    read
}

fn whole(method: &Method, answer: &[u8]) -> Result<(Read, bool), String> {
    run(ours(method, &[answer]))
}

const GOOD: &[&str] = &[
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: 1\r\nx-a: 2\r\nX-Empty:\r\n\r\nabc",
    "HTTP/1.1 200 Well enough\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\nContent-Length: 12\r\nETag: \"x\"\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nX-Sum: 1\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n000a\r\n0123456789\r\n0\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx",
    "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nhi",
];

/// Fit to be relayed, but the connection has no more to give.
const LAST: &[&str] = &[
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nhi",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\nmore",
];

const BAD: &[&str] = &[
    "",
    "HTTP/1.1 200 OK\r\nContent-Le",
    "SSH-2.0-x\r\n",
    "HTTP/1.1 banana\r\n\r\n",
    "HTTP/2.0 200 OK\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\nabcd",
    "HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n X: folded\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3 x\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a\rb\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\x0c;a\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\0X: y\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: \0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX : y\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n z\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nno field\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n: y\r\n\r\n",
];

#[test]
fn answers_are_read_and_told_to_be_the_last() {
    for (answers, again) in [(GOOD, true), (LAST, false)] {
        for answer in answers {
            let read = whole(&Method::GET, answer.as_bytes());
            let hyper = run(hypers(&Method::GET, answer.as_bytes()));
            assert_eq!(read, Ok((hyper.unwrap(), again)), "{answer:?}");
        }
    }
}

#[test]
fn what_is_not_plain_is_not_relayed() {
    for answer in BAD {
        let read = whole(&Method::GET, answer.as_bytes());
        assert!(read.is_err(), "{answer:?}: {read:?}");
    }
}

#[test]
fn it_does_not_matter_how_an_answer_is_cut_into_pieces() {
    for answer in GOOD.iter().chain(LAST).chain(BAD) {
        let answer = answer.as_bytes();
        let expected = whole(&Method::GET, answer).ok();
        for at in 1..answer.len() {
            let (first, second) = answer.split_at(at);
            let read = run(ours(&Method::GET, &[first, second])).ok();
            // What follows an answer may not have come yet when it ends.
            let same = match (&read, &expected) {
                (Some((read, _)), Some((expected, _))) => read == expected,
                (read, expected) => read.is_none() && expected.is_none(),
            };
            assert!(
                same,
                "cut at {at}: {:?}: {read:?}",
                String::from_utf8_lossy(answer)
            );
        }
        let bytes: Vec<&[u8]> = answer.chunks(1).collect();
        let read = run(ours(&Method::GET, &bytes)).ok();
        assert_eq!(read.map(|read| read.0), expected.map(|read| read.0));
    }
}

#[test]
fn the_answer_to_head_has_no_content() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
    let (read, again) = whole(&Method::HEAD, answer).unwrap();
    assert_eq!((read.content.len(), again), (0, true));
}

#[test]
fn what_has_no_end_is_given_up() {
    let heads = [
        format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(40_000)),
        "\r\n".repeat(20_000),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(101)),
    ];
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = [
        format!("{chunked}3;{}", "x".repeat(40_000)),
        format!(
            "{chunked}{}",
            "1;xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\na\r\n".repeat(1_000)
        ),
        format!("{chunked}0\r\n{}", "X: y\r\n".repeat(10_000)),
    ];
    for answer in heads.iter().chain(&chunks) {
        let pieces: Vec<&[u8]> = answer.as_bytes().chunks(1_000).collect();
        let why = run(ours(&Method::GET, &pieces)).unwrap_err();
        let limit = ["TooLong", "too long", "TooManyHeaders"];
        assert!(limit.iter().any(|what| why.contains(what)), "{why}");
    }
}

#[test]
fn an_answer_before_its_request_is_none() {
    run(async {
        for (said, expected) in [
            (&b"HTTP/1.1 200 OK\r\n\r\n"[..], "Invalid"),
            (b"", "Closed"),
        ] {
            let (near, mut far) = duplex(1_000);
            let mut http = over(near);
            far.write_all(said).await.unwrap();
            far.shutdown().await.unwrap();
            http.begin(Request::get("/x").body(body(b"")).unwrap());
            let why = poll_fn(|cx| http.poll_answer(cx)).await.unwrap_err();
            assert!(format!("{why:?}").starts_with(expected), "{why:?}");
            let mut written = Vec::new();
            drop(http);
            far.read_to_end(&mut written).await.unwrap();
            assert_eq!(written, b"");
        }
    });
}

/// What is written for a request.
fn written(request: Request<Body>) -> String {
    run(async {
        let (near, mut far) = duplex(1 << 20);
        let mut http = over(near);
        http.begin(request);
        let early = poll_fn(|cx| Poll::Ready(http.poll_answer(cx).is_ready())).await;
        assert!(!early);
        drop(http);
        let mut written = Vec::new();
        far.read_to_end(&mut written).await.unwrap();
        String::from_utf8(written).unwrap()
    })
}

#[test]
fn how_a_body_is_framed_is_told_by_the_body_alone() {
    let request = Request::put("/x?y")
        .header("host", "db")
        .header("content-length", "77")
        .header("transfer-encoding", "gzip")
        .header("content-length", "78")
        .body(body(b""))
        .unwrap();
    assert_eq!(
        written(request),
        "PUT /x?y HTTP/1.1\r\nhost: db\r\ncontent-length: 0\r\n\r\n"
    );
    assert_eq!(
        written(Request::put("/x").body(body(b"abc")).unwrap()),
        "PUT /x HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// What we relay is what hyper reads, too: no answer means something else to us.
    #[test]
    fn a_mangled_answer_means_the_same_to_hyper(
        which in 0..GOOD.len() + LAST.len(),
        at in any::<prop::sample::Index>(),
        drop in 0..3_usize,
        put in prop::collection::vec(prop::sample::select(&b"\r\n :;,0123aAfx\x00\x0b\x0c\x7f\xff\t\"=-+"[..]), 0..4),
        head in any::<bool>(),
    ) {
        let answer = GOOD.iter().chain(LAST).nth(which).unwrap();
        let mut answer = answer.as_bytes().to_vec();
        let at = at.index(answer.len());
        let end = (at + drop).min(answer.len());
        answer.splice(at..end, put);
        let method = if head { Method::HEAD } else { Method::GET };
        if let Ok((read, _)) = whole(&method, &answer) {
            let text = String::from_utf8_lossy(&answer);
            prop_assert_eq!(Ok(read), run(hypers(&method, &answer)), "{:?}", text);
        }
    }

    #[test]
    fn nothing_that_comes_makes_it_panic(answer in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = whole(&Method::GET, &answer);
        let framed = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &answer[..]].concat();
        let _ = whole(&Method::GET, &framed);
    }
}
