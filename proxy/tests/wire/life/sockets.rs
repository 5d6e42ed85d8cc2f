//! Sockets from systemd and unix sockets.

use crate::support::{Palisade, put, upstream};
use nix::sys::signal::Signal;
use palisade_loadtest::{origin::Origin, servers::GIVE_UP};
use std::{
    io::Write,
    net::{Shutdown, TcpListener},
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixStream},
    },
    process::{Command, Stdio},
};

/// sd_listen_fds(3), sd_notify(3): a socket passed on is served, and systemd is told how it goes.
#[test]
fn systemd_passes_a_socket_and_is_told() {
    let origin = upstream();
    let folder = tempfile::tempdir().unwrap();
    let notify = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(GIVE_UP)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut proxy = Palisade::start_with(&origin.url(), "", |command| {
        let mut shell = Command::new("sh");
        shell
            // The passed descriptors begin at 3.
            .args([
                "-c",
                "exec 3<&0 0</dev/null; LISTEN_PID=$$ WATCHDOG_PID=$$ exec \"$@\"",
                "sh",
            ])
            .arg(command.get_program())
            .args(command.get_args())
            .env("LISTEN_FDS", "1")
            .env("WATCHDOG_USEC", "200000")
            .env("NOTIFY_SOCKET", folder.path().join("notify"))
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stderr(Stdio::piped());
        *command = shell;
    });
    let next = |wanted: &str| loop {
        let mut message = [0; 1024];
        let length = notify.recv(&mut message).unwrap();
        let message = String::from_utf8_lossy(&message[..length]).into_owned();
        if message.contains(wanted) {
            return message;
        }
        assert!(
            message.contains("WATCHDOG=1"),
            "{message} in place of {wanted}"
        );
    };
    next("READY=1");
    assert_eq!(proxy.address(), address);
    assert_eq!(put(address, "/x", 100).status, 200);
    next("WATCHDOG=1");
    proxy.signal(Signal::SIGHUP);
    assert!(next("RELOADING=1").contains("MONOTONIC_USEC="));
    next("READY=1");
    proxy.signal(Signal::SIGTERM);
    next("STOPPING=1");
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn unix_sockets_in_front_and_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (front, store) = (
        folder.path().join("front.sock"),
        folder.path().join("store.sock"),
    );
    let origin = Origin::unix(&store).unwrap();
    let listen = format!("listen = [\"unix:{}\"]\n", front.display());
    // A file left behind by a process that is gone is taken over.
    drop(std::os::unix::net::UnixListener::bind(&front).unwrap());
    let mut proxy = Palisade::start(&origin.url(), &listen);
    let mut client = UnixStream::connect(&front).unwrap();
    client
        .write_all(
            b"PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc",
        )
        .unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut client, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let arrival = origin.arrivals().remove(0);
    assert_eq!(arrival.body, b"abc");
    assert!(arrival.field("x-forwarded-for").is_empty());
    assert_eq!(
        arrival.field("forwarded"),
        ["for=unknown;host=\"db\";proto=http"]
    );
    proxy.wait_line("unix:pid=");
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(0));
}
