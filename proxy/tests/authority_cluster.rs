//! Three etcd members: one of them gone, and too many of them gone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod authority_support;

use authority_support::Asked;
use palisade::authority::{EtcdOptions, Unreadable};
use palisade_loadtest::servers::{Process, etcd_program, free_port, get, wait_for};
use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    time::Duration,
};

/// Three members on free ports; each can be killed and started again.
struct Trio {
    running: [Option<Process>; 3],
    clients: [SocketAddr; 3],
    peers: [SocketAddr; 3],
    folder: tempfile::TempDir,
}

impl Trio {
    fn start() -> Self {
        let address = |_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
        let mut trio = Self {
            running: [None, None, None],
            clients: [0; 3].map(address),
            peers: [0; 3].map(address),
            folder: tempfile::tempdir().unwrap(),
        };
        (0..3).for_each(|member| trio.run(member));
        (0..3).for_each(|member| trio.wait_healthy(member));
        trio
    }

    fn run(&mut self, member: usize) {
        let url = |address: SocketAddr| format!("http://{address}");
        let cluster = [0, 1, 2]
            .map(|n| format!("m{n}={}", url(self.peers[n])))
            .join(",");
        let path = |name: &str| self.folder.path().join(format!("{name}{member}"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(path("log"))
            .unwrap();
        let (client, peer) = (url(self.clients[member]), url(self.peers[member]));
        let mut command = Command::new(etcd_program("etcd"));
        command
            .args([
                "--name",
                &format!("m{member}"),
                "--initial-cluster",
                &cluster,
            ])
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .arg("--data-dir")
            .arg(path("data"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.running[member] = Some(Process::start("etcd", &mut command).unwrap());
    }

    fn wait_healthy(&self, member: usize) {
        wait_for("a healthy member", || {
            get(self.clients[member], "/health")
                .ok()?
                .contains("\"true\"")
                .then_some(())
        });
    }

    fn kill(&mut self, member: usize) {
        self.running[member] = None;
    }

    fn endpoints(&self) -> [String; 3] {
        self.clients.map(|address| address.to_string())
    }

    /// Runs `etcdctl` until it succeeds: an election may be under way.
    fn ctl(&self, arguments: &[&str]) -> String {
        wait_for("etcdctl to succeed", || {
            let mut command = Command::new(etcd_program("etcdctl"));
            command
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &self.endpoints().join(",")]);
            let output = command.args(arguments).output().unwrap();
            output
                .status
                .success()
                .then(|| String::from_utf8(output.stdout).unwrap())
        })
    }

    /// Takes a lease; gives its token.
    fn take(&self, name: &str) -> u64 {
        let lease = self
            .ctl(&["lease", "grant", "600"])
            .split(' ')
            .nth(1)
            .unwrap()
            .to_owned();
        let key = format!("/palisade/leases/{name}");
        self.ctl(&["put", &key, "{}", "--lease", &lease]);
        let fields = self.ctl(&["get", &key, "-w", "fields"]);
        let revision = fields
            .lines()
            .find_map(|line| line.strip_prefix("\"ModRevision\" : "));
        revision.unwrap().parse().unwrap()
    }
}

#[test]
fn any_member_may_go() {
    let mut trio = Trio::start();
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::start(EtcdOptions::new(trio.endpoints()), folder.path());
    for member in 0..3 {
        trio.kill(member);
        let token = trio.take("a");
        assert_eq!(asked.grant("a"), Some(token), "without member {member}");
        asked.heard.wait_for("a", token);
        trio.run(member);
        trio.wait_healthy(member);
    }
    assert!(asked.heard.trusted.lock().unwrap().is_empty());
}

#[test]
fn without_a_majority_nothing_is_believed() {
    let mut trio = Trio::start();
    let folder = tempfile::tempdir().unwrap();
    let mut options = EtcdOptions::new(trio.endpoints());
    options.timeout = Duration::from_secs(2);
    let asked = Asked::start(options, folder.path());
    let token = trio.take("a");
    assert_eq!(asked.grant("a"), Some(token));
    trio.kill(0);
    trio.kill(1);
    // The member that is left knows the key, but not whether that is still so. It may answer until it misses the others.
    wait_for("the refusal", || {
        (asked.read("a") == Err(Unreadable::Unavailable)).then_some(())
    });
    for _ in 0..3 {
        assert_eq!(asked.read("a"), Err(Unreadable::Unavailable));
    }
    trio.run(0);
    assert_eq!(asked.grant("a"), Some(token));
    let newer = trio.take("a");
    asked.heard.wait_for("a", newer);
}
