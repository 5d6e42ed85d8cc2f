//! HTTP/2 and TLS in front. Frames are written by hand: a client library would not break the rules for us.
#![allow(clippy::unwrap_used, reason = "test code")]

mod server_support;

use arc_swap::ArcSwap;
use palisade::server::ServerConfig;
use palisade_loadtest::servers::{GIVE_UP, wait_for};
use server_support::{SHORT, connect, patient, rest, serve};
use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    sync::Arc,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// RFC 9113, section 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `POST /x` in HPACK (RFC 7541): static entries 3 (:method POST), 6 (:scheme http), literals for :path (4) and :authority (1).
fn post() -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    block.extend(b"\x04\x02/x");
    block.extend(b"\x01\x01a");
    block
}

fn hello(stream: &mut TcpStream) {
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
}

/// The next frame of a kind.
fn next(stream: &mut TcpStream, kind: u8) -> Vec<u8> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == kind {
            return payload;
        }
    }
}

#[test]
fn a_reset_in_mid_upload_never_looks_like_a_whole_body() {
    let server = serve(patient());
    // NO_ERROR, INTERNAL_ERROR, CANCEL (RFC 9113, section 7).
    for (number, code) in [0u32, 2, 8].into_iter().enumerate() {
        let mut stream = connect(server.address);
        hello(&mut stream);
        stream
            .write_all(&frame(HEADERS, END_HEADERS, 1, &post()))
            .unwrap();
        stream.write_all(&frame(DATA, 0, 1, b"half")).unwrap();
        stream
            .write_all(&frame(RST_STREAM, 0, 1, &code.to_be_bytes()))
            .unwrap();
        // Over HTTP/2 a reset may also drop the handler before it sees anything; then there is nothing to be seen at all, which a second
        // request on the connection shows to be over.
        stream
            .write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &post()))
            .unwrap();
        next(&mut stream, HEADERS);
        let seen = server.seen.all();
        assert_eq!(
            seen.iter().filter(|s| s.starts_with("whole 0")).count(),
            number + 1,
            "{seen:?}"
        );
        assert!(!seen.contains(&"whole 4".to_owned()), "{code}: {seen:?}");
    }
    // That a whole one is told apart:
    let mut stream = connect(server.address);
    hello(&mut stream);
    stream
        .write_all(&frame(HEADERS, END_HEADERS, 1, &post()))
        .unwrap();
    stream
        .write_all(&frame(DATA, END_STREAM, 1, b"full"))
        .unwrap();
    next(&mut stream, HEADERS);
    assert!(server.seen.all().contains(&"whole 4".to_owned()));
}

#[test]
fn resets_without_end_close_the_connection() {
    let server = serve(patient());
    let mut stream = connect(server.address);
    hello(&mut stream);
    let mut storm = Vec::new();
    for number in 0..1000u32 {
        storm.extend(frame(HEADERS, END_HEADERS, 2 * number + 1, &post()));
        storm.extend(frame(RST_STREAM, 0, 2 * number + 1, &8u32.to_be_bytes()));
    }
    // The server may close before all of it was written.
    let _ = stream.write_all(&storm);
    let goaway = next(&mut stream, GOAWAY);
    // ENHANCE_YOUR_CALM (RFC 9113, section 7).
    assert_eq!(goaway[4..8], 11u32.to_be_bytes());
}

#[test]
fn the_orderly_end_lets_streams_finish() {
    let server = serve(patient());
    let mut stream = connect(server.address);
    hello(&mut stream);
    let mut wait = vec![0x82, 0x86];
    wait.extend(b"\x04\x05/wait");
    wait.extend(b"\x01\x01a");
    stream
        .write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &wait))
        .unwrap();
    wait_for("the request", || {
        (!server.seen.all().is_empty()).then_some(())
    });
    server.running.shutdown().drain();
    next(&mut stream, GOAWAY);
    server.gate.add_permits(1);
    assert_eq!(next(&mut stream, DATA), b"waited");
}

#[test]
fn idle_http2_connections_are_closed_after_their_time() {
    let server = serve(ServerConfig {
        keepalive_idle: SHORT,
        ..patient()
    });
    let mut stream = connect(server.address);
    hello(&mut stream);
    next(&mut stream, GOAWAY);
}

/// A server with TLS, and the file with its certificate.
fn with_tls(limits: ServerConfig) -> (server_support::Server, tempfile::NamedTempFile) {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(signed.cert.pem().as_bytes()).unwrap();
    let key =
        rustls_pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let server = serve(ServerConfig {
        tls: Some(Arc::new(ArcSwap::from_pointee(tls))),
        ..limits
    });
    (server, file)
}

#[test]
fn over_tls_alpn_chooses_the_protocol() {
    let (server, certificate) = with_tls(patient());
    let port = server.address.port();
    for (protocol, version) in [("--http2", "2"), ("--http1.1", "1.1"), ("--no-alpn", "1.1")] {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", protocol, "--cacert"])
            .arg(certificate.path())
            .args(["--resolve", &format!("localhost:{port}:127.0.0.1")])
            .args(["-w", " %{http_code} %{http_version}"])
            .arg(format!("https://localhost:{port}/x"))
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(printed, format!("done 200 {version}"), "{errors}");
    }
}

#[test]
fn a_slow_handshake_is_cut_and_holds_up_nobody() {
    let (server, _certificate) = with_tls(ServerConfig {
        tls_handshake_timeout: SHORT,
        ..patient()
    });
    let mut slow: Vec<_> = (0..20).map(|_| connect(server.address)).collect();
    for stream in &mut slow {
        stream.set_read_timeout(Some(GIVE_UP)).unwrap();
        assert_eq!(rest(stream), "");
    }
    let (server, _certificate) = with_tls(patient());
    let _held: Vec<_> = (0..20).map(|_| connect(server.address)).collect();
    let output = Command::new("curl")
        .args(["--silent", "--insecure"])
        .arg(format!("https://{}/x", server.address))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done");
}
