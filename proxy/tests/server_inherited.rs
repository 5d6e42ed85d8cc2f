//! A listening socket from systemd. The test starts itself once more, the way systemd starts a service: with the socket as descriptor 3.
#![allow(clippy::unwrap_used, reason = "test code")]

mod server_support;

use palisade::server::inherited;
use palisade_loadtest::servers::{Process, wait_for};
use server_support::{answer, connect, patient, serve_on};
use std::{
    io::{Read, Write},
    process::{Command, Stdio},
};

const CHILD: &str = "PALISADE_TEST_INHERITED_CHILD";

/// Binds a socket, prints its port and becomes the program (sd_listen_fds(3): `LISTEN_PID` must be its own process id).
const ACTIVATE: &str = r#"
import os, socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
os.dup2(listening.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn a_socket_from_systemd_is_taken_over_by_all_threads() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("python3");
    command
        .args(["-c", ACTIVATE])
        .arg(own)
        .args([
            "--exact",
            "a_socket_from_systemd_is_taken_over_by_all_threads",
        ])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = Process::start("the child", &mut command).unwrap();
    let mut port = Vec::new();
    let mut byte = [0];
    let output = process.child().stdout.as_mut().unwrap();
    while output.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        port.push(byte[0]);
    }
    let port: u16 = String::from_utf8(port).unwrap().parse().unwrap();
    // Answered by one of them while the other is held up: both wait at the same socket.
    let mut stream = connect(([127, 0, 0, 1], port).into());
    for _ in 0..2 {
        stream
            .write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert!(answer(&mut stream).ends_with("done"));
    }
    drop(process.child().stdin.take());
    assert!(process.wait().success());
}

/// Serves until its input ends.
fn child() {
    let bound = inherited(2).unwrap();
    assert_eq!(bound.len(), 1);
    let server = serve_on(bound, patient());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    assert!(server.seen.all().contains(&"whole 0".to_owned()));
    server.running.shutdown().stop();
    let counts = server.running.counts();
    wait_for("the end of the connections", || {
        (counts.open.load(std::sync::atomic::Ordering::Relaxed) == 0).then_some(())
    });
}
