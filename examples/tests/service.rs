//! What the unit of systemd starts. A stand-in does what systemd does for them: it holds the socket, starts the program as `ExecStart` says,
//! and listens to what the program tells (sd_listen_fds(3), sd_notify(3)). They were never run by a real systemd here.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use nix::sys::signal::Signal;
use palisade_loadtest::{
    origin::Origin,
    servers::{GIVE_UP, Process, free_port, program},
};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

fn top() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap().to_owned()
}

fn unit(name: &str) -> String {
    fs::read_to_string(top().join("packaging/systemd").join(name)).unwrap()
}

/// The value of a line of the service.
fn setting(key: &str) -> String {
    let unit = unit("palisade.service");
    let mut values = unit
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values
        .next()
        .unwrap_or_else(|| panic!("no {key}="))
        .to_owned()
}

/// What systemd is for a service.
struct Systemd {
    folder: TempDir,
    listener: TcpListener,
    told: UnixDatagram,
    upstream: String,
}

impl Systemd {
    fn new(upstream: String) -> Self {
        let folder = TempDir::new().unwrap();
        let told = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        told.set_read_timeout(Some(GIVE_UP)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = fs::read_to_string(top().join("packaging/palisade.toml")).unwrap();
        fs::write(folder.path().join("palisade.toml"), settings).unwrap();
        Self {
            folder,
            listener,
            told,
            upstream,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("palisade.toml")
    }

    /// Starts what the unit says, with the socket as descriptor 3, and waits until it is ready.
    fn start(&self) -> Process {
        let line = setting("ExecStart")
            .replace(
                "/usr/bin/palisade",
                &program("palisade").display().to_string(),
            )
            .replace(
                "/etc/palisade/palisade.toml",
                &self.file().display().to_string(),
            );
        // The shell becomes the program, so both ids are the program's own.
        let script =
            format!("exec 3<&0 </dev/null; export LISTEN_PID=$$ WATCHDOG_PID=$$; exec {line}");
        let mut command = Command::new("sh");
        command
            .args(["-c", &script])
            .stdin(Stdio::from(OwnedFd::from(
                self.listener.try_clone().unwrap(),
            )))
            .env("LISTEN_FDS", "1")
            .env("NOTIFY_SOCKET", self.folder.path().join("notify"))
            .env("WATCHDOG_USEC", "200000")
            .env("PALISADE_STATE", self.folder.path().join("state"))
            .env("PALISADE_UPSTREAM", &self.upstream)
            .env(
                "PALISADE_LEASES",
                format!("sqlite:{}", self.folder.path().join("leases").display()),
            )
            .env(
                "PALISADE_ADMIN",
                format!("127.0.0.1:{}", free_port().unwrap()),
            );
        let process = Process::start("palisade", &mut command).unwrap();
        self.until("READY=1");
        process
    }

    /// Reads what is told until something with this in it comes; gives that.
    fn until(&self, wanted: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            let length = self
                .told
                .recv(&mut buffer)
                .unwrap_or_else(|error| panic!("{wanted} did not come: {error}"));
            let told = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if told.lines().any(|line| line == wanted) {
                return told;
            }
        }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }
}

const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(GIVE_UP)).unwrap();
    stream
}

/// Connects and asks; the answer is read later.
fn ask(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(REQUEST).unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn systemd_is_told_and_a_restart_refuses_nobody() {
    let origin = Origin::tcp().unwrap();
    let systemd = Systemd::new(format!("http://{}", origin.address()));
    let mut first = systemd.start();
    let was_served = answer(ask(systemd.address()));
    assert!(was_served.starts_with("HTTP/1.1 "), "{was_served}");
    systemd.until("WATCHDOG=1");
    // From now on each ping is one that was sent later.
    assert_eq!(setting("ExecReload"), "/bin/kill -HUP $MAINPID");
    first.signal(Signal::SIGHUP);
    let reloading = systemd.until("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    systemd.until("READY=1");
    systemd.until("WATCHDOG=1");
    // Connections that were made before the stop and have asked for nothing yet. They are taken in order, so those are, too.
    let mut taken: Vec<TcpStream> = (0..20).map(|_| connect(systemd.address())).collect();
    answer(ask(systemd.address()));
    first.signal(Signal::SIGTERM);
    systemd.until("STOPPING=1");
    for stream in &mut taken {
        stream.write_all(REQUEST).unwrap();
    }
    for stream in taken {
        let answer = answer(stream);
        assert!(
            answer.lines().next() == was_served.lines().next(),
            "{answer}"
        );
    }
    assert!(first.wait().success());
    // Nobody runs. The socket is held, so whoever comes now waits for the next one.
    let waiting: Vec<TcpStream> = (0..20).map(|_| ask(systemd.address())).collect();
    let mut second = systemd.start();
    for stream in waiting {
        let answer = answer(stream);
        assert!(
            answer.lines().next() == was_served.lines().next(),
            "{answer}"
        );
    }
    second.signal(Signal::SIGTERM);
    assert!(second.wait().success());
}
