//! From start to stop: reloads, certificates, systemd, unix sockets, TLS on both sides, and what is logged.

mod sockets;
mod tls;

use crate::support::{
    Palisade, answers, ask, connect, put, read_answer, read_to_end, send, upstream,
};
use nix::sys::signal::Signal;
use palisade_loadtest::{
    origin::{Sign, Step},
    servers::{GIVE_UP, get, wait_for},
};
use std::{io::Write, time::Duration};

const A: &str = "[[route]]\npath = \"/a/{*rest}\"\nscope = \"a\"\n";
const B: &str = "[[route]]\npath = \"/a/{*rest}\"\nscope = \"b\"\n";

/// What is wrong changes nothing, is told, and is counted.
#[test]
fn a_reload_of_a_bad_file_changes_nothing() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), A);
    assert_eq!(put(proxy.address(), "/a/x", 100).status, 200);
    for bad in [
        "[[route]]\npath = \"/b/{*rest}\"\n",
        "nonsense",
        "[fence]\nsettle = \"soon\"\n",
    ] {
        let failed = proxy.metric("palisade_config_reloads_total{result=\"failed\"}");
        proxy.configure(&origin.url(), bad);
        proxy.signal(Signal::SIGHUP);
        wait_for("the failed reload", || {
            (proxy.metric("palisade_config_reloads_total{result=\"failed\"}") > failed)
                .then_some(())
        });
        assert_eq!(put(proxy.address(), "/a/x", 100).status, 200);
        assert_eq!(put(proxy.address(), "/a/x", 99).status, 412);
    }
    proxy.wait_lines("was not reloaded", 3);
}

/// A request may fall in another scope from now on: what was let through under the old routes is settled first.
#[test]
fn new_routes_hold_once_older_writes_are_settled() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), A);
    let sign = Sign::new();
    origin.once(
        "/a/held",
        vec![
            Step::ReadBody,
            Step::Await(sign.clone()),
            Step::Answer(200, b"ok".into()),
        ],
    );
    let write = |target: &str| {
        format!(
            "PUT {target} HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 0\r\n\r\n"
        )
    };
    let mut old = connect(proxy.address());
    old.write_all(write("/a/held").as_bytes()).unwrap();
    sign.wait_reached();
    proxy.configure(&origin.url(), B);
    proxy.signal(Signal::SIGHUP);
    // Until the old one is settled, others wait. How long we watch one not being answered decides nothing.
    let mut new = connect(proxy.address());
    new.set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    loop {
        new.write_all(write("/a/new").as_bytes()).unwrap();
        if new.peek(&mut [0]).is_err() {
            break;
        }
        assert_eq!(read_answer(&mut new).status, 200);
        assert_eq!(proxy.line("was reloaded"), None, "it did not wait");
    }
    new.set_read_timeout(Some(GIVE_UP)).unwrap();
    let before = origin.arrivals_at("/a/new").len();
    sign.give();
    assert_eq!(read_answer(&mut old).status, 200);
    assert_eq!(read_answer(&mut new).status, 200);
    proxy.wait_line("the configuration was reloaded");
    assert_eq!(origin.arrivals_at("/a/new").len(), before + 1);
    // Under the new routes the scope is another one, with a floor of its own.
    let scopes = get(proxy.admin(), "/scopes").unwrap();
    assert!(scopes.contains("\"b\""), "{scopes}");
}

#[test]
fn the_log_level_follows_a_reload() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "log_level = \"warn,palisade::run=info\"\n");
    assert_eq!(put(proxy.address(), "/quiet", 100).status, 200);
    proxy.configure(&origin.url(), "log_level = \"info\"\n");
    proxy.signal(Signal::SIGHUP);
    wait_for("the reload", || {
        (proxy.metric("palisade_config_reloads_total{result=\"done\"}") == 1.0).then_some(())
    });
    assert_eq!(put(proxy.address(), "/loud", 100).status, 200);
    proxy.wait_line("/loud");
    assert_eq!(proxy.line("/quiet"), None);
}

/// linkerd2#10379, oauth2-proxy#3066: readiness fails first, and whoever has not heard of that is served.
#[test]
fn a_stop_is_announced_before_it_happens() {
    let origin = upstream();
    let mut proxy = Palisade::start(&origin.url(), "[limits]\ndrain_delay = \"1h\"\n");
    let ready = |proxy: &Palisade| get(proxy.admin(), "/readyz").unwrap();
    assert!(ready(&proxy).starts_with("HTTP/1.1 200"));
    proxy.signal(Signal::SIGTERM);
    let told = wait_for("readiness to fail", || {
        let told = ready(&proxy);
        (!told.starts_with("HTTP/1.1 200")).then_some(told)
    });
    assert!(
        told.starts_with("HTTP/1.1 503") && told.contains("stopping"),
        "{told}"
    );
    assert!(
        get(proxy.admin(), "/livez")
            .unwrap()
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(put(proxy.address(), "/x", 100).status, 200);
    assert!(proxy.ended().is_none());
}

/// linkerd2#8033: an idle or half-open client does not hold up the end; what is under way does, up to the deadline.
#[test]
fn a_stop_waits_for_what_is_under_way_and_for_nothing_else() {
    let origin = upstream();
    let mut proxy = Palisade::start(&origin.url(), "");
    let sign = Sign::new();
    origin.once(
        "/held",
        vec![
            Step::ReadBody,
            Step::Await(sign.clone()),
            Step::Answer(200, b"ok".into()),
        ],
    );
    let _silent = connect(proxy.address());
    let mut idle = connect(proxy.address());
    assert_eq!(
        ask(&mut idle, "GET /x HTTP/1.1\r\nHost: db\r\n\r\n").status,
        200
    );
    let mut held = connect(proxy.address());
    held.write_all(
        b"PUT /held HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 0\r\n\r\n",
    )
    .unwrap();
    sign.wait_reached();
    proxy.signal(Signal::SIGTERM);
    assert!(read_to_end(&mut idle).is_empty());
    assert!(proxy.ended().is_none());
    sign.give();
    let answer = answers(&read_to_end(&mut held), false).remove(0);
    assert_eq!(
        (answer.status, answer.field("connection")),
        (200, Some("close"))
    );
    assert_eq!(proxy.wait().code(), Some(0));
}

/// A restart closed connections that were made just before it, with their first request on the way.
#[test]
fn a_first_request_that_comes_after_the_signal_is_answered() {
    let origin = upstream();
    let mut proxy = Palisade::start(&origin.url(), "");
    let connections = || (0..20).map(|_| connect(proxy.address()));
    let mut silent: Vec<_> = connections().collect();
    let mut begun: Vec<_> = connections().collect();
    for stream in &mut begun {
        stream.write_all(b"GET /x HTTP/1.1\r\nHo").unwrap();
    }
    let mut answered = connect(proxy.address());
    let request = "GET /x HTTP/1.1\r\nHost: db\r\n\r\n";
    assert_eq!(ask(&mut answered, request).status, 200);
    proxy.signal(Signal::SIGTERM);
    // That one may be asked anew, so it is not waited for. When it is closed, the others have heard of the end.
    assert!(read_to_end(&mut answered).is_empty());
    for stream in &mut silent {
        stream.write_all(request.as_bytes()).unwrap();
    }
    for stream in &mut begun {
        stream.write_all(b"st: db\r\n\r\n").unwrap();
    }
    for mut stream in silent.into_iter().chain(begun) {
        let answer = answers(&read_to_end(&mut stream), false).remove(0);
        assert_eq!(
            (answer.status, answer.field("connection")),
            (200, Some("close"))
        );
    }
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn a_stop_has_a_hard_end() {
    let origin = upstream();
    let mut proxy = Palisade::start(&origin.url(), "[limits]\nshutdown_timeout = \"300ms\"\n");
    let sign = Sign::new();
    origin.once("/held", vec![Step::ReadBody, Step::Await(sign.clone())]);
    let mut held = connect(proxy.address());
    held.write_all(
        b"PUT /held HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 0\r\n\r\n",
    )
    .unwrap();
    sign.wait_reached();
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(0));
    proxy.wait_line("\"unsettled\":1");
    sign.give();
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let origin = upstream();
    let mut proxy = Palisade::start(&origin.url(), "[limits]\ndrain_delay = \"1h\"\n");
    proxy.signal(Signal::SIGTERM);
    proxy.wait_line("stopping");
    proxy.signal(Signal::SIGINT);
    assert_eq!(proxy.wait().code(), Some(1));
    proxy.wait_line("a second signal");
}

/// The fields of an access line, in both formats.
#[test]
fn each_request_has_a_line() {
    let origin = upstream();
    let proxy = Palisade::start(&origin.url(), "");
    put(proxy.address(), "/a%20b?q=1", 100);
    put(proxy.address(), "/stale", 99);
    let line: serde_json::Value = serde_json::from_str(&proxy.wait_line("/stale")).unwrap();
    let wanted = serde_json::json!({
        "method": "PUT", "path": "/stale", "scope": "default", "token": 99, "highest": 100, "outcome": "refused",
        "reason": "stale-token", "status": 412, "kind": "write", "version": "HTTP/1.1",
    });
    for (field, wanted) in wanted.as_object().unwrap() {
        assert_eq!(&line[field], wanted, "{field}: {line}");
    }
    assert!(
        line["bytes"].as_u64() > Some(0) && line["seconds"].as_f64() > Some(0.0),
        "{line}"
    );
    assert!(
        line["client"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{line}"
    );
    proxy.wait_line("/a%20b");
    assert_eq!(proxy.line("q=1"), None);
    proxy.configure(&origin.url(), "access_log = false\n");
    proxy.signal(Signal::SIGHUP);
    proxy.wait_line("was reloaded");
    put(proxy.address(), "/unlogged", 100);
    put(proxy.address(), "/unlogged", 99);
    assert_eq!(proxy.line("/unlogged"), None);
}

/// Not in logs, metrics or problems: neither at the usual level nor when the proxy is asked for more.
#[test]
fn secrets_are_logged_nowhere() {
    let origin = upstream();
    for level in ["info", "debug", "info,palisade=trace"] {
        let proxy = Palisade::start(
            &origin.url(),
            &format!(
                "log_format = \"text\"\nlog_level = \"{level}\"\nadmin = \"127.0.0.1:{}\"\nlisten = [\"127.0.0.1:{}\"]\n",
                palisade_loadtest::servers::free_port().unwrap(),
                palisade_loadtest::servers::free_port().unwrap()
            ),
        );
        let (address, admin) = (proxy.configured("listen"), proxy.configured("admin"));
        for (target, token) in [
            ("/seen", "100"),
            ("/seen", "99"),
            ("/seen", "s3cret"),
            ("/no#s3cret", "100"),
        ] {
            let request = format!(
                "PUT {target}?key=s3cret HTTP/1.1\r\nHost: db\r\nX-Fence-Token: {token}\r\nAuthorization: Bearer s3cret\r\n\
                 Cookie: id=s3cret\r\nX-Api-Key: s3cret\r\nContent-Length: 6\r\nConnection: close\r\n\r\ns3cret"
            );
            let answer = send(address, request.as_bytes());
            assert!(
                !String::from_utf8_lossy(&answer).contains("s3cret"),
                "{target}"
            );
        }
        proxy.wait_lines("/seen", 3);
        for page in ["/metrics", "/scopes", "/", "/readyz"] {
            assert!(!get(admin, page).unwrap().contains("s3cret"), "{page}");
        }
        assert_eq!(proxy.line("s3cret"), None);
        assert!(proxy.line("method=PUT").is_some());
    }
}
