//! Every limit with its answer, slow clients cut while others are served, and nothing held afterwards.

use crate::support::{Palisade, answers, ask, connect, put, read_answer, read_to_end, upstream};
use palisade_loadtest::{
    origin::{Origin, Sign, Step},
    servers::wait_for,
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
};

const SLOW_HEAD: &[u8] = b"PUT /slow HTTP/1.1\r\nHost: db\r\nX-Fence-Tok";
const GET: &str = "GET /x HTTP/1.1\r\nHost: db\r\n\r\n";

fn limited(origin: &Origin, limits: &str) -> Palisade {
    let proxy = Palisade::start(&origin.url(), &format!("[limits]\n{limits}\n"));
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    proxy
}

fn begun(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut client = connect(address);
    client.write_all(bytes).unwrap();
    client
}

/// hyper#2864. RFC 9110, section 15.5.9: 408 and a close, on a new connection as on an old one; others are served meanwhile.
#[test]
fn a_slow_head_is_a_408() {
    let origin = upstream();
    let proxy = limited(&origin, "header_timeout = \"300ms\"");
    for bytes in [SLOW_HEAD, b"P", b"PRI * HT"] {
        let mut slow = begun(proxy.address(), bytes);
        assert_eq!(put(proxy.address(), "/good", 100).status, 200);
        let answer = answers(&read_to_end(&mut slow), false).remove(0);
        assert_eq!(answer.problem().as_deref(), Some("request-timeout"));
        assert_eq!((answer.status, answer.outcome()), (408, Some("refused")));
    }
    let mut slow = begun(proxy.address(), GET.as_bytes());
    assert_eq!(read_answer(&mut slow).status, 200);
    slow.write_all(SLOW_HEAD).unwrap();
    assert_eq!(answers(&read_to_end(&mut slow), false)[0].status, 408);
    // Who says nothing at all gets nothing.
    assert!(read_to_end(&mut connect(proxy.address())).is_empty());
    assert!(origin.arrivals_at("/slow").is_empty());
}

/// A trickle is no progress: the time for a head is counted from its first byte.
#[test]
fn a_head_that_trickles_is_cut() {
    let origin = upstream();
    let proxy = limited(&origin, "header_timeout = \"300ms\"");
    let mut slow = begun(proxy.address(), b"PUT /slow HTTP/1.1\r\n");
    let mut reader = slow.try_clone().unwrap();
    let trickle = std::thread::spawn(move || {
        // One field after the other, for as long as the proxy takes them; each costs the test a round trip.
        while slow.write_all(b"X: 1\r\n").is_ok() {
            put(proxy.address(), "/good", 100);
        }
    });
    let answer = answers(&read_to_end(&mut reader), false).remove(0);
    assert!([408, 431].contains(&answer.status), "{}", answer.head);
    trickle.join().unwrap();
}

/// A body that stops: 408 while nothing was sent, unknown once something was; the store never gets the end.
#[test]
fn a_slow_body_is_cut() {
    let origin = upstream();
    let proxy = limited(&origin, "body_idle_timeout = \"300ms\"");
    let head = |length: usize| {
        format!(
            "PUT /slow HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let mut small = begun(proxy.address(), (head(10) + "abc").as_bytes());
    let answer = answers(&read_to_end(&mut small), false).remove(0);
    assert_eq!(
        (answer.status, answer.problem().as_deref()),
        (408, Some("request-timeout"))
    );
    assert!(origin.arrivals_at("/slow").is_empty());
    let mut large = begun(
        proxy.address(),
        (head(400_000) + &"a".repeat(200_000)).as_bytes(),
    );
    let answer = answers(&read_to_end(&mut large), false).remove(0);
    assert_eq!(answer.outcome(), Some("unknown"));
    let arrival = origin.arrivals_at("/slow").remove(0);
    wait_for("the cut", || origin.ended(arrival.connection));
    assert!(!origin.arrivals_at("/slow")[0].complete);
}

/// linkerd2#3861: a slow upload is not a stalled one. Each pause is well below the limit, all of them together are above it.
#[test]
fn a_slow_but_steady_body_goes_through() {
    let origin = upstream();
    let proxy = limited(&origin, "body_idle_timeout = \"3s\"");
    let mut client = begun(
        proxy.address(),
        b"PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 80000\r\n\r\n",
    );
    for _ in 0..8 {
        client.write_all(&[b'a'; 10_000]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    assert_eq!(read_answer(&mut client).status, 200);
    assert_eq!(origin.arrivals_at("/x")[0].length, 80_000);
}

/// slowhttptest's "slow read": a client that asks and does not listen is cut, and upstream need not wait for it.
#[test]
fn a_client_that_takes_nothing_of_its_answer_is_cut() {
    let origin = upstream();
    let proxy = limited(&origin, "response_idle_timeout = \"300ms\"");
    origin.once("/x", vec![Step::Answer(200, vec![b'a'; 64 << 20])]);
    let client = begun(proxy.address(), GET.as_bytes());
    let connection = origin.wait_arrivals("/x", 1)[0].connection;
    wait_for("the cut", || origin.ended(connection));
    wait_for("its place", || {
        (proxy.metric("palisade_connections") == 0.0).then_some(())
    });
    drop(client);
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let origin = upstream();
    let proxy = limited(&origin, "keepalive_idle = \"300ms\"");
    let mut client = connect(proxy.address());
    assert_eq!(ask(&mut client, GET).status, 200);
    assert!(read_to_end(&mut client).is_empty());
}

/// RFC 9110, section 15.5.15: the head that nobody judged is the connection's last one.
#[test]
fn a_target_that_is_too_long_ends_its_connection() {
    let origin = upstream();
    let proxy = limited(&origin, "");
    let mut client = connect(proxy.address());
    let target = "a".repeat(33 * 1024);
    client
        .write_all(format!("GET /{target} HTTP/1.1\r\nHost: db\r\n\r\n{GET}").as_bytes())
        .unwrap();
    let got = answers(&read_to_end(&mut client), false);
    assert_eq!((got.len(), got[0].status), (1, 414));
    assert_eq!(got[0].field("connection"), Some("close"));
}

/// RFC 9110, section 15.6.4: what is above a limit is told so, and when to try again.
#[test]
fn too_many_connections_are_a_503() {
    let origin = upstream();
    let proxy = limited(&origin, "connections = 3");
    // The one of the first write is gone when the proxy says so.
    wait_for("no connection", || {
        (proxy.metric("palisade_connections") == 0.0).then_some(())
    });
    let mut kept: Vec<_> = (0..3).map(|_| connect(proxy.address())).collect();
    kept.iter_mut()
        .for_each(|client| assert_eq!(ask(client, GET).status, 200));
    let answer = answers(
        &read_to_end(&mut begun(proxy.address(), GET.as_bytes())),
        false,
    )
    .remove(0);
    assert_eq!(answer.problem().as_deref(), Some("overloaded"));
    assert_eq!(answer.field("retry-after"), Some("1"));
    kept.pop();
    wait_for("room", || {
        (put(proxy.address(), "/good", 100).status == 200).then_some(())
    });
}

#[test]
fn too_many_requests_under_way_are_a_503() {
    let origin = upstream();
    let proxy = limited(&origin, "inflight = 2");
    let sign = Sign::new();
    origin.always(
        "/held",
        vec![
            Step::ReadBody,
            Step::Await(sign.clone()),
            Step::Answer(200, b"ok".into()),
        ],
    );
    let held = "GET /held HTTP/1.1\r\nHost: db\r\n\r\n";
    let mut clients: Vec<_> = (0..2)
        .map(|_| begun(proxy.address(), held.as_bytes()))
        .collect();
    wait_for("both at upstream", || (sign.reached() == 2).then_some(()));
    let answer = put(proxy.address(), "/x", 100);
    assert_eq!(answer.problem().as_deref(), Some("overloaded"));
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert!(origin.arrivals_at("/x").is_empty());
    sign.give();
    clients
        .iter_mut()
        .for_each(|client| assert_eq!(read_answer(client).status, 200));
    wait_for("room", || {
        (put(proxy.address(), "/x", 100).status == 200).then_some(())
    });
}

/// The line of those who wait for a handover has an end too.
#[test]
fn too_many_that_wait_for_a_handover_are_a_503() {
    let origin = upstream();
    let proxy = limited(&origin, "waiting = 1");
    let sign = Sign::new();
    origin.once(
        "/held",
        vec![
            Step::ReadBody,
            Step::Await(sign.clone()),
            Step::Answer(200, b"ok".into()),
        ],
    );
    let write = |target: &str, token| {
        format!(
            "PUT {target} HTTP/1.1\r\nHost: db\r\nX-Fence-Token: {token}\r\nContent-Length: 0\r\n\r\n"
        )
    };
    let mut old = begun(proxy.address(), write("/held", 100).as_bytes());
    sign.wait_reached();
    let mut waits = begun(proxy.address(), write("/new", 101).as_bytes());
    wait_for("one to wait", || {
        (proxy.metric("palisade_waiting") == 1.0).then_some(())
    });
    let answer = put(proxy.address(), "/new", 101);
    assert_eq!(answer.problem().as_deref(), Some("overloaded"));
    sign.give();
    assert_eq!(read_answer(&mut old).status, 200);
    assert_eq!(read_answer(&mut waits).status, 200);
}

/// istio#51619: an answer that does not come is a 504, and the write is not sent again.
#[test]
fn an_upstream_that_does_not_answer_is_a_504() {
    let origin = upstream();
    let proxy = limited(&origin, "upstream_response_timeout = \"300ms\"");
    let sign = Sign::new();
    origin.once("/x", vec![Step::ReadBody, Step::Await(sign.clone())]);
    let answer = put(proxy.address(), "/x", 100);
    assert_eq!(
        (answer.status, answer.problem().as_deref()),
        (504, Some("outcome-unknown"))
    );
    assert_eq!(answer.outcome(), Some("unknown"));
    sign.give();
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    assert_eq!(origin.arrivals_at("/x").len(), 1);
}

/// RFC 9113, section 6.5.2, and CVE-2023-44487.
#[test]
fn http2_streams_and_resets_are_bounded() {
    let origin = upstream();
    let proxy = limited(&origin, "http2_streams = 7");
    let mut client = begun(
        proxy.address(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    );
    let mut head = [0; 9];
    client.read_exact(&mut head).unwrap();
    let mut settings = vec![0; usize::from(head[2])];
    client.read_exact(&mut settings).unwrap();
    assert!(
        settings.chunks(6).any(|one| one == [0, 3, 0, 0, 0, 7]),
        "{settings:?}"
    );
    // HEADERS (GET http /) and RST_STREAM, again and again.
    let mut told = client.try_clone().unwrap();
    let storm = std::thread::spawn(move || {
        for stream in (1u32..200_000).step_by(2) {
            let id = stream.to_be_bytes();
            let open = [&b"\0\0\x07\x01\x05"[..], &id, b"\x82\x86\x84\x41\x02db"].concat();
            let reset = [&b"\0\0\x04\x03\0"[..], &id, b"\0\0\0\x08"].concat();
            if client.write_all(&[open, reset].concat()).is_err() {
                return true;
            }
        }
        false
    });
    let said = read_to_end(&mut told);
    assert!(storm.join().unwrap(), "a storm of resets was borne");
    // GOAWAY with ENHANCE_YOUR_CALM, unless a reset of the connection has eaten it.
    assert!(said.windows(4).any(|w| w == [0, 0, 0, 11]) || said.len() < 1000);
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
}

/// Slow clients hold places and nothing else.
#[test]
fn two_hundred_slow_connections_hold_up_nobody() {
    let origin = upstream();
    let proxy = limited(&origin, "");
    let settled = || {
        wait_for("the descriptors of closed connections", || {
            (proxy.metric("palisade_connections") == 0.0).then(|| proxy.descriptors())
        })
    };
    let before = settled();
    let body =
        b"PUT /slow HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 50000\r\n\r\nabc";
    let slow: Vec<_> = (0..200)
        .map(|number| {
            begun(
                proxy.address(),
                if number % 2 == 0 { SLOW_HEAD } else { body },
            )
        })
        .collect();
    wait_for("all of them", || {
        (proxy.metric("palisade_connections") == 200.0).then_some(())
    });
    for _ in 0..50 {
        assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    }
    assert!(proxy.peak() < 64 << 10, "{} KiB", proxy.peak());
    drop(slow);
    // Idle connections to upstream may still be there, one a thread at the most.
    wait_for("the descriptors", || {
        (settled() <= before + 2).then_some(())
    });
    assert!(origin.arrivals_at("/slow").is_empty());
}

/// accept(2), EMFILE: it waits, it does not spin, and it goes on afterwards.
#[test]
fn a_shortage_of_descriptors_passes() {
    let origin = upstream();
    let proxy = Palisade::start_with(&origin.url(), "", |command| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "ulimit -n 60; exec \"$@\"", "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        *command = shell;
    });
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    let many: Vec<_> = (0..100)
        .map(|_| begun(proxy.address(), SLOW_HEAD))
        .collect();
    proxy.wait_line("accepting failed");
    let used = cpu_ticks(proxy.pid());
    proxy.wait_lines("accepting failed", 12);
    // A dozen failures take a second and next to no time of the processor's.
    assert!(cpu_ticks(proxy.pid()) - used < 50, "it spins");
    drop(many);
    wait_for("service", || {
        let mut client = connect(proxy.address());
        client.write_all(GET.as_bytes()).ok()?;
        (read_answer(&mut client).status == 200).then_some(())
    });
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
}

/// User and system time so far, in 1/100 s.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let numbers: Vec<&str> = after_name.split_whitespace().collect();
    numbers[11].parse::<u64>().unwrap() + numbers[12].parse::<u64>().unwrap()
}
