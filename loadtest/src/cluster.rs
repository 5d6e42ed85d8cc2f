//! Three etcd members of one cluster.

use crate::{
    servers::{Process, etcd_program, free_port, get, wait_for},
    snapshot::{self, Member},
};
use nix::sys::signal::Signal;
use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// Three members on free ports; each can be killed, frozen and started again. All end when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    running: [Option<Process>; 3],
    clients: [SocketAddr; 3],
    peers: [SocketAddr; 3],
    folder: TempDir,
    /// The folder of etcd's programs, if not the usual one.
    programs: Option<PathBuf>,
    arguments: Vec<String>,
}

impl Cluster {
    /// Starts three members and waits until each of them answers.
    ///
    /// # Errors
    /// If there are no ports or no etcd.
    pub fn start() -> io::Result<Self> {
        Self::start_of(None)
    }

    /// The same with the programs in a folder, such as [`crate::servers::newer_etcd`]'s.
    ///
    /// # Errors
    /// The same.
    pub fn start_of(programs: Option<&Path>) -> io::Result<Self> {
        Self::start_with(programs, &[])
    }

    /// The same with more arguments for each member.
    ///
    /// # Errors
    /// The same.
    pub fn start_with(programs: Option<&Path>, arguments: &[&str]) -> io::Result<Self> {
        let mut free = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); 6];
        for address in &mut free {
            address.set_port(free_port()?);
        }
        let [a, b, c, d, e, f] = free;
        let mut cluster = Self {
            running: [None, None, None],
            clients: [a, b, c],
            peers: [d, e, f],
            folder: TempDir::with_prefix("palisade-etcd-")?,
            programs: programs.map(Path::to_owned),
            arguments: arguments.iter().map(|&a| a.to_owned()).collect(),
        };
        (0..3).try_for_each(|member| cluster.run(member))?;
        let up = wait_for("three members", || {
            let ended =
                |member: &mut Option<Process>| member.as_mut().is_some_and(|m| m.ended().is_some());
            if cluster.running.iter_mut().any(ended) {
                return Some(false);
            }
            (0..3)
                .all(|member| cluster.is_healthy(member))
                .then_some(true)
        });
        if up {
            return Ok(cluster);
        }
        Err(io::Error::other("one of etcd's members ended at once"))
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs
            .as_ref()
            .map_or_else(|| etcd_program(name), |folder| folder.join(name))
    }

    /// Starts a member, for the first time or again.
    ///
    /// # Errors
    /// If the program can't be started.
    pub fn run(&mut self, member: usize) -> io::Result<()> {
        let url = |address: SocketAddr| format!("http://{address}");
        let path = |name: &str| self.folder.path().join(format!("{name}{member}"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(path("log"))?;
        let (client, peer) = (url(self.clients[member]), url(self.peers[member]));
        let mut command = Command::new(self.program("etcd"));
        command
            .args(["--name", &format!("m{member}")])
            .args(["--initial-cluster", &self.members()])
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .arg("--data-dir")
            .arg(path("data"))
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.running[member] = Some(Process::start("etcd", &mut command)?);
        Ok(())
    }

    /// All members, as `--initial-cluster` has them.
    fn members(&self) -> String {
        let members = [0, 1, 2].map(|n| format!("m{n}=http://{}", self.peers[n]));
        members.join(",")
    }

    /// Saves a snapshot of a member into a file.
    ///
    /// # Errors
    /// With what `etcdctl` said; the file is as it was then.
    pub fn snapshot(&self, member: usize, file: &Path) -> io::Result<()> {
        let output = Command::new(self.program("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.clients[member].to_string()])
            .args(["snapshot", "save"])
            .arg(file)
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }

    /// Ends all members and starts them on what etcd's tool makes of one snapshot for each, with these further arguments: what
    /// an operator does. Waits until they answer.
    ///
    /// # Errors
    /// With what the tool said, or if a member can't be started.
    pub fn restore(&mut self, file: &Path, arguments: &[&str]) -> io::Result<()> {
        (0..3).for_each(|member| self.kill(member));
        for number in 0..3 {
            let member = Member {
                name: &format!("m{number}"),
                cluster: &self.members(),
                peer: &format!("http://{}", self.peers[number]),
                data: &self.folder.path().join(format!("data{number}")),
            };
            snapshot::restore(|name| self.program(name), file, member, arguments)?;
        }
        (0..3).try_for_each(|member| self.run(member))?;
        (0..3).for_each(|member| self.wait_healthy(member));
        Ok(())
    }

    fn is_healthy(&self, member: usize) -> bool {
        get(self.clients[member], "/health").is_ok_and(|answer| answer.contains("\"true\""))
    }

    /// Waits until a member answers. One that has ended, since somebody had its port for a moment, is started again.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn wait_healthy(&mut self, member: usize) {
        wait_for("a healthy member", || {
            let ended = |member: &mut Process| member.ended().is_some();
            if self.running[member].as_mut().is_some_and(ended) {
                // Tried again at the next look, if it can't be started.
                let _ = self.run(member);
            }
            self.is_healthy(member).then_some(())
        });
    }

    /// SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.running[member] = None;
    }

    /// Ends a member in order, as a service manager does.
    pub fn stop(&mut self, member: usize) {
        self.running[member]
            .take()
            .into_iter()
            .for_each(Process::end_in_order);
    }

    /// Freezes a member: sockets stay open, nothing is answered.
    pub fn pause(&self, member: usize) {
        self.signal(member, Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&self, member: usize) {
        self.signal(member, Signal::SIGCONT);
    }

    fn signal(&self, member: usize, signal: Signal) {
        self.running[member]
            .iter()
            .for_each(|process| process.signal(signal));
    }

    /// Where clients reach each member.
    pub fn clients(&self) -> [SocketAddr; 3] {
        self.clients
    }

    /// The `--leases` URL.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.endpoints())
    }

    fn endpoints(&self) -> String {
        self.clients.map(|address| address.to_string()).join(",")
    }

    /// The member that leads; waits for one.
    ///
    /// # Panics
    /// If none does.
    pub fn leader(&self) -> usize {
        wait_for("a leader", || {
            (0..3).find(|&member| {
                self.running[member].is_some()
                    && get(self.clients[member], "/metrics").is_ok_and(|metrics| {
                        metrics
                            .lines()
                            .any(|line| line == "etcd_server_is_leader 1")
                    })
            })
        })
    }

    /// Lets another member lead, as an operator does before work on the one that leads. Nothing happens where that fails, since an
    /// election may be under way.
    pub fn move_leader(&self, to: usize) {
        let leader = self.leader();
        let output = Command::new(self.program("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoints()])
            .args(["endpoint", "status", "-w", "json"])
            .output();
        let listed = output.map(|output| output.stdout).unwrap_or_default();
        let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap_or_default();
        // In the order of the endpoints.
        let id = listed[to]["Status"]["header"]["member_id"].as_u64();
        if let Some(id) = id.filter(|_| to != leader) {
            let _ = Command::new(self.program("etcdctl"))
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &self.clients[leader].to_string()])
                .args(["move-leader", &format!("{id:x}")])
                .output();
        }
    }

    /// Runs `etcdctl` until it succeeds, since an election may be under way; gives what it printed.
    ///
    /// # Panics
    /// If it never does.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        wait_for("etcdctl to succeed", || {
            let output = Command::new(self.program("etcdctl"))
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &self.endpoints()])
                .args(arguments)
                .output()
                .ok()?;
            output
                .status
                .success()
                .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        })
    }

    /// Takes a lease as a worker does: a key on an etcd lease of ten minutes. Gives its token.
    ///
    /// # Panics
    /// If etcd's answer can't be read.
    pub fn take(&self, name: &str) -> u64 {
        let granted = self.ctl(&["lease", "grant", "600"]);
        let lease = granted.split(' ').nth(1).expect("a lease");
        let key = format!("/palisade/leases/{name}");
        self.ctl(&["put", &key, "{}", "--lease", lease]);
        let fields = self.ctl(&["get", &key, "-w", "fields"]);
        fields
            .lines()
            .find_map(|line| line.strip_prefix("\"ModRevision\" : ")?.parse().ok())
            .expect("a revision")
    }
}
