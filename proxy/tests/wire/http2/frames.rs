//! Frame by frame: what no good client sends.

use super::proxy;
use crate::support::{connect, upstream};
use std::{
    io::{Read, Write},
    net::TcpStream,
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// RFC 9113, section 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// RFC 7541, section 6.2.2: literal, without indexing, without Huffman coding.
fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut encoded = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127);
        encoded.push(u8::try_from(text.len()).unwrap());
        encoded.extend_from_slice(text);
    }
    encoded
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields
        .iter()
        .flat_map(|(name, value)| field(name.as_bytes(), value.as_bytes()))
        .collect()
}

/// The kinds and flags of the frames that come, up to one that says what became of the request: its response's head, a reset, a GOAWAY with
/// an error, or the end of the connection. `Some`: the head's first byte, which tells a status of the static table.
fn verdict(client: &mut TcpStream) -> Option<u8> {
    loop {
        let mut head = [0; 9];
        if client.read_exact(&mut head).is_err() {
            return None;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if client.read_exact(&mut payload).is_err() {
            return None;
        }
        match head[3] {
            HEADERS => return Some(payload[0]),
            RST_STREAM => return None,
            GOAWAY if payload[4..8] != [0; 4] => return None,
            _ => {}
        }
    }
}

/// Static table, RFC 7541, appendix A.
const STATUS_200: u8 = 0x88;
const STATUS_400: u8 = 0x8c;

type Fields = &'static [(&'static str, &'static str)];

const M: (&str, &str) = (":method", "PUT");
const S: (&str, &str) = (":scheme", "http");
const P: (&str, &str) = (":path", "/x");
const A: (&str, &str) = (":authority", "db");
const T: (&str, &str) = ("x-fence-token", "100");

#[rustfmt::skip]
static MALFORMED: &[(&str, &str, Fields)] = &[
    ("method-twice", "RFC 9113 8.3", &[M, M, S, P, A, T]),
    ("path-twice", "RFC 9113 8.3", &[M, S, P, (":path", "/y"), A, T]),
    ("authority-twice", "RFC 9113 8.3", &[M, S, P, A, (":authority", "evil"), T]),
    ("scheme-twice", "RFC 9113 8.3", &[M, S, S, P, A, T]),
    ("no-method", "RFC 9113 8.3.1", &[S, P, A, T]),
    ("no-path", "RFC 9113 8.3.1", &[M, S, A, T]),
    ("no-scheme", "RFC 9113 8.3.1", &[M, P, A, T]),
    ("path-empty", "RFC 9113 8.3.1", &[M, S, (":path", ""), A, T]),
    ("path-no-slash", "RFC 9113 8.3.1", &[M, S, (":path", "x"), A, T]),
    ("path-blank", "RFC 9113 8.3.1", &[M, S, (":path", "/x y"), A, T]),
    ("path-line-end", "RFC 9113 10.3", &[M, S, (":path", "/x\r\nX: 1"), A, T]),
    ("method-blank", "RFC 9113 8.3.1", &[(":method", "PUT /y"), S, P, A, T]),
    ("method-empty", "RFC 9113 8.3.1", &[(":method", ""), S, P, A, T]),
    ("pseudo-unknown", "RFC 9113 8.3", &[M, S, P, A, (":protocol2", "x"), T]),
    ("pseudo-of-responses", "RFC 9113 8.3", &[M, S, P, A, (":status", "200"), T]),
    ("pseudo-after-fields", "RFC 9113 8.3", &[M, S, P, T, A]),
    ("extended-connect", "RFC 8441 4", &[(":method", "CONNECT"), (":protocol", "websocket"), S, P, A, T]),
    ("name-upper-case", "RFC 9113 8.2.1", &[M, S, P, A, ("X-Fence-Token", "100")]),
    ("name-empty", "RFC 9113 8.2.1", &[M, S, P, A, T, ("", "x")]),
    ("name-blank", "RFC 9113 8.2.1", &[M, S, P, A, T, ("x y", "1")]),
    ("name-line-end", "RFC 9113 10.3", &[M, S, P, A, T, ("x\r\ny", "1")]),
    ("name-colon", "RFC 9113 8.2.1", &[M, S, P, A, T, ("x:y", "1")]),
    ("value-line-end", "RFC 9113 10.3", &[M, S, P, A, T, ("x", "1\r\ny: 2")]),
    ("value-bare-cr", "RFC 9113 8.2.1", &[M, S, P, A, T, ("x", "1\r2")]),
    ("value-bare-lf", "RFC 9113 8.2.1", &[M, S, P, A, T, ("x", "1\n2")]),
    ("value-nul", "RFC 9113 8.2.1", &[M, S, P, A, T, ("x", "1\x002")]),
    ("connection", "RFC 9113 8.2.2", &[M, S, P, A, T, ("connection", "x-fence-token")]),
    ("keep-alive", "RFC 9113 8.2.2", &[M, S, P, A, T, ("keep-alive", "timeout=5")]),
    ("proxy-connection", "RFC 9113 8.2.2", &[M, S, P, A, T, ("proxy-connection", "close")]),
    ("transfer-encoding", "RFC 9113 8.2.2", &[M, S, P, A, T, ("transfer-encoding", "chunked")]),
    ("upgrade", "RFC 9113 8.2.2", &[M, S, P, A, T, ("upgrade", "h2c")]),
    ("te-gzip", "RFC 9113 8.2.2", &[M, S, P, A, T, ("te", "gzip")]),
    ("length-too-small", "RFC 9113 8.1.1", &[M, S, P, A, T, ("content-length", "2")]),
    ("length-too-large", "RFC 9113 8.1.1", &[M, S, P, A, T, ("content-length", "4")]),
    ("length-no-number", "RFC 9113 8.1.1", &[M, S, P, A, T, ("content-length", "+3")]),
    ("length-twice", "RFC 9110 8.6", &[M, S, P, A, T, ("content-length", "3"), ("content-length", "2")]),
];

fn open(address: std::net::SocketAddr) -> TcpStream {
    let mut client = connect(address);
    let mut start = PREFACE.to_vec();
    start.extend(frame(SETTINGS, 0, 0, b""));
    client.write_all(&start).unwrap();
    client
}

fn request(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = frame(HEADERS, END_HEADERS, 1, &block(fields));
    bytes.extend(frame(DATA, END_STREAM, 1, b"abc"));
    bytes
}

/// RFC 9113, section 8.1.1: malformed requests are stream errors; a 400 first is allowed. Upstream sees nothing of them.
#[test]
fn malformed_requests_reach_nobody() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let mut wrong = Vec::new();
    for (count, (name, rule, fields)) in MALFORMED.iter().enumerate() {
        let mut client = open(proxy.address());
        let _ = client.write_all(&request(fields));
        let told = verdict(&mut client);
        if told.is_some_and(|status| status != STATUS_400) {
            wrong.push(format!("{name} ({rule}): {told:02x?}"));
        }
        // A good one has been looked at later.
        let mut client = open(proxy.address());
        client.write_all(&request(&[M, S, P, A, T])).unwrap();
        assert_eq!(verdict(&mut client), Some(STATUS_200), "after {name}");
        if origin.arrivals().len() != count + 2 {
            wrong.push(format!("{name} ({rule}): reached upstream"));
            break;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn continuation_is_bounded() {
    let origin = upstream();
    let proxy = proxy(&origin);
    let mut client = open(proxy.address());
    let head = block(&[M, S, P, A, T]);
    client
        .write_all(&frame(HEADERS, END_STREAM, 1, &head))
        .unwrap();
    // CVE-2024-27983 and its like: a head that never ends.
    let more = frame(CONTINUATION, 0, 1, &field(b"x", &[b'a'; 120]).repeat(100));
    let mut sent = 0;
    while client.write_all(&more).is_ok() {
        sent += more.len();
        assert!(sent < 100 << 20, "it takes a head without end");
    }
    assert_eq!(origin.arrivals_at("/x").len(), 0);
    assert!(proxy.peak() < 64 << 10);
}
