//! Clients over real sockets: ordinary ones, slow ones, vanishing ones, and the server's end.
#![allow(clippy::unwrap_used, reason = "test code")]

mod server_support;

use palisade::server::{Listen, ServerConfig, bind, start};
use palisade_loadtest::{
    origin::Sign,
    servers::{GIVE_UP, free_port, wait_for},
};
use server_support::{SHORT, Seen, Test, answer, connect, patient, rest, serve, serve_on, talk};
use std::{
    collections::HashSet,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr},
    os::unix::net::UnixStream,
    process::Command,
    rc::Rc,
    sync::{Arc, Barrier, atomic::Ordering},
};

const GET: &[u8] = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_second_process_cannot_share_the_port_unnoticed() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    let server = serve_on(vec![bind(&Listen::Tcp(address), 2).unwrap()], patient());
    let error = bind(&Listen::Tcp(address), 2).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(std::net::TcpListener::bind(address).is_err());
    // Also while sockets are bound but not served yet.
    let bound = bind(&Listen::Tcp(([127, 0, 0, 1], 0).into()), 2).unwrap();
    assert!(bind(&Listen::Tcp(bound.address().unwrap()), 1).is_err());
    // And at once after the end, although old connections linger in TIME_WAIT.
    let mut stream = connect(address);
    stream.write_all(GET).unwrap();
    answer(&mut stream);
    server.running.shutdown().stop();
    wait_for("the port to be free again", || {
        bind(&Listen::Tcp(address), 1).ok()
    });
}

#[test]
fn connections_spread_over_the_threads() {
    let server = serve(patient());
    let mut open = Vec::new();
    let mut threads = HashSet::new();
    // The kernel's hash decides; that 64 connections all fall to one of two threads happens once in 2^63 times.
    for _ in 0..64 {
        let mut stream = connect(server.address);
        stream
            .write_all(b"GET /thread HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        threads.insert(answer(&mut stream).pop().unwrap());
        open.push(stream);
    }
    assert_eq!(threads.len(), 2);
}

#[test]
fn a_unix_socket_in_front_and_what_a_dead_process_left_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("front.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let bound = bind(&Listen::Unix(path.clone()), 2).unwrap();
    assert!(bind(&Listen::Unix(path.clone()), 2).is_err(), "it lives");
    let _server = serve_on(vec![bound], patient());
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(GET).unwrap();
    assert!(answer(&mut stream).ends_with("done"));
}

#[test]
fn bytes_that_are_no_request_get_a_bare_refusal_and_a_close() {
    let server = serve(patient());
    let long = "x".repeat(70_000);
    let many = "a: b\r\n".repeat(101);
    let cases = [
        ("\u{1}\u{2}\r\n\r\n".to_owned(), "400"),
        (
            format!(
                "GET /{} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                &long[..40_000]
            ),
            "414",
        ),
        (format!("GET / HTTP/1.1\r\na: {long}\r\n\r\n"), "431"),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), "431"),
        ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_owned(), "400"),
    ];
    for (bytes, status) in cases {
        let answer = talk(&mut connect(server.address), bytes.as_bytes());
        let start: String = bytes.chars().take(30).collect();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{start}: {answer:?}"
        );
    }
    assert!(server.seen.all().is_empty());
}

#[test]
fn a_client_that_half_closes_gets_its_answer() {
    let server = serve(patient());
    let mut stream = connect(server.address);
    stream
        .write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    wait_for("the request", || {
        (!server.seen.all().is_empty()).then_some(())
    });
    server.gate.add_permits(1);
    assert!(rest(&mut stream).ends_with("waited"));
}

#[test]
fn a_client_that_vanishes_in_mid_body_leaves_no_whole_body() {
    let server = serve(patient());
    for head in [
        "Content-Length: 10\r\n\r\n12345",
        "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n",
    ] {
        let before = server.seen.all().len();
        let mut stream = connect(server.address);
        stream
            .write_all(format!("PUT /x HTTP/1.1\r\nHost: a\r\n{head}").as_bytes())
            .unwrap();
        drop(stream);
        let seen = wait_for("the end of the body", || {
            server.seen.all().get(before).cloned()
        });
        assert!(
            seen.starts_with("Broken") || seen.starts_with("Cut"),
            "{seen}"
        );
    }
}

#[test]
fn slow_heads_and_slow_bodies_are_cut_and_pauses_between_requests_are_none() {
    let server = serve(ServerConfig {
        header_timeout: SHORT,
        body_idle_timeout: SHORT,
        ..patient()
    });
    let slow_head = talk(
        &mut connect(server.address),
        b"GET / HTTP/1.1\r\nHost: a\r\nX-",
    );
    assert!(slow_head.starts_with("HTTP/1.1 408 "), "{slow_head:?}");
    let slow_body = talk(
        &mut connect(server.address),
        b"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1",
    );
    assert!(slow_body.starts_with("HTTP/1.1 408 "), "{slow_body:?}");
    assert_eq!(server.seen.all(), ["TooSlow"]);
    // A new connection that says nothing is closed as well, a kept-alive one is not, and its next head has its own time.
    assert_eq!(talk(&mut connect(server.address), b""), "");
    let mut stream = connect(server.address);
    for _ in 0..2 {
        stream.write_all(GET).unwrap();
        assert!(answer(&mut stream).ends_with("done"));
        // Longer than the limit for a head: that this is not held against the client is the point.
        std::thread::sleep(SHORT * 3);
    }
    let second = talk(&mut stream, b"GET / HTTP/1.1\r\n");
    assert!(second.starts_with("HTTP/1.1 408 "), "{second:?}");
}

#[test]
fn idle_connections_are_closed_after_their_time() {
    let server = serve(ServerConfig {
        keepalive_idle: SHORT,
        ..patient()
    });
    let mut stream = connect(server.address);
    stream.write_all(GET).unwrap();
    answer(&mut stream);
    assert_eq!(rest(&mut stream), "");
}

#[test]
fn two_hundred_slow_connections_do_not_keep_others_out() {
    let server = serve(patient());
    let before = descriptors();
    let slow: Vec<_> = (0..200)
        .map(|number| {
            let mut stream = connect(server.address);
            let start: &[u8] = match number % 2 {
                0 => b"GET / HTTP/1.1\r\nX-Slow: ",
                _ => b"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx",
            };
            stream.write_all(start).unwrap();
            stream
        })
        .collect();
    let counts = server.running.counts();
    wait_for("all of them", || {
        (counts.open.load(Ordering::Relaxed) == 200).then_some(())
    });
    for _ in 0..20 {
        let mut stream = connect(server.address);
        stream.write_all(GET).unwrap();
        assert!(answer(&mut stream).ends_with("done"));
    }
    drop(slow);
    wait_for("the connections to be gone", || {
        (counts.open.load(Ordering::Relaxed) == 0).then_some(())
    });
    // Other tests of this process open and close some of their own.
    assert!(descriptors() < before + 100);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn more_connections_than_allowed_are_told_so_and_counted() {
    let server = serve(ServerConfig {
        connections: 2,
        ..patient()
    });
    let mut held: Vec<_> = (0..2).map(|_| connect(server.address)).collect();
    for stream in &mut held {
        stream.write_all(GET).unwrap();
        answer(stream);
    }
    let mut third = connect(server.address);
    let mut told = String::new();
    third.read_to_string(&mut told).unwrap();
    assert!(
        told.starts_with("HTTP/1.1 503 ") && told.contains("retry-after: 1\r\n"),
        "{told}"
    );
    let counts = server.running.counts();
    assert_eq!(counts.refused.load(Ordering::Relaxed), 1);
    held.pop();
    wait_for("a place", || {
        (counts.open.load(Ordering::Relaxed) < 2).then_some(())
    });
    let mut fourth = connect(server.address);
    fourth.write_all(GET).unwrap();
    assert!(answer(&mut fourth).ends_with("done"));
}

#[test]
fn the_orderly_end_closes_idle_connections_and_finishes_requests() {
    let server = serve(patient());
    let mut idle = connect(server.address);
    idle.write_all(GET).unwrap();
    answer(&mut idle);
    let mut silent = connect(server.address);
    let mut busy = connect(server.address);
    busy.write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    wait_for("the request", || {
        server.seen.all().contains(&"waiting".into()).then_some(())
    });
    server.running.shutdown().drain();
    assert_eq!(rest(&mut idle), "");
    assert_eq!(rest(&mut silent), "");
    wait_for("the listener to be gone", || {
        std::net::TcpStream::connect(server.address).err()
    });
    server.gate.add_permits(1);
    let last = rest(&mut busy);
    assert!(last.contains("connection: close") && last.ends_with("waited"));
    let counts = server.running.counts();
    wait_for("the last connection", || {
        (counts.open.load(Ordering::Relaxed) == 0).then_some(())
    });
}

/// A client's connection is made once the kernel has it, long before anybody accepts it: closing the socket would reset it.
#[test]
fn the_orderly_end_answers_what_was_not_accepted_yet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("front");
    let tcp = bind(&Listen::Tcp(([127, 0, 0, 1], 0).into()), 2).unwrap();
    let unix = bind(&Listen::Unix(path.clone()), 2).unwrap();
    let address = tcp.address().unwrap();
    // The threads accept nothing before they have their handler.
    let held = Arc::new(Barrier::new(3));
    let (threads_held, seen) = (held.clone(), Seen::default());
    let running = start(vec![tcp, unix], 2, patient(), move |thread| {
        threads_held.wait();
        Rc::new(Test {
            thread,
            seen: seen.clone(),
            sign: Sign::new(),
            gate: Arc::new(tokio::sync::Semaphore::new(0)),
        })
    })
    .unwrap();
    let request = b"GET /thread HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut over_tcp: Vec<_> = (0..200).map(|_| connect(address)).collect();
    let mut over_unix: Vec<_> = (0..200)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    for stream in &mut over_tcp {
        stream.write_all(request).unwrap();
    }
    for stream in &mut over_unix {
        stream.set_read_timeout(Some(GIVE_UP)).unwrap();
        stream.write_all(request).unwrap();
    }
    running.shutdown().drain();
    held.wait();
    let answers = over_tcp.iter_mut().map(rest);
    for answer in answers.chain(over_unix.iter_mut().map(rest)) {
        let answer = answer.to_lowercase();
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
    assert!(running.join());
}

#[test]
fn the_hard_end_drops_requests_under_way() {
    let server = serve(patient());
    let mut busy = connect(server.address);
    busy.write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    wait_for("the request", || {
        (!server.seen.all().is_empty()).then_some(())
    });
    server.running.shutdown().drain();
    server.running.shutdown().stop();
    assert_eq!(rest(&mut busy), "");
}

#[test]
fn a_refusal_without_100_continue_costs_no_upload() {
    let server = serve(patient());
    let mut stream = connect(server.address);
    let answer = talk(
        &mut stream,
        b"PUT /refuse HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 412 "), "{answer}");
    assert!(answer.contains("connection: close"));
    let dropped = talk(
        &mut connect(server.address),
        b"PUT /drop HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
    );
    assert!(dropped.starts_with("HTTP/1.1 200 "), "{dropped}");
    let accepted = talk(
        &mut connect(server.address),
        b"PUT /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 1\r\n\r\n1",
    );
    assert!(accepted.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 "));
}

#[test]
fn python_reads_the_refusal_of_an_upload_every_time() {
    let server = serve(patient());
    let script = r#"
import http.client, sys
body = b"x" * 20_000_000
for _ in range(20):
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    connection.request("PUT", "/refuse", body)
    answer = connection.getresponse()
    print(answer.status, answer.read().decode())
"#;
    let output = Command::new("python3")
        .args(["-c", script, &server.address.port().to_string()])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        printed,
        "412 refused\n".repeat(20),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn curl_reads_the_refusal_of_an_upload_over_both_protocols() {
    let server = serve(patient());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("60M");
    std::fs::File::create(&file)
        .unwrap()
        .set_len(60_000_000)
        .unwrap();
    for protocol in ["--http2-prior-knowledge", "--http1.1"] {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", protocol, "-H", "Expect:", "-T"])
            .arg(&file)
            .args(["-w", " %{http_code} %{http_version}"])
            .arg(format!("http://{}/refuse", server.address))
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            printed.starts_with("refused 412 "),
            "{protocol}: {printed} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success());
    }
}
