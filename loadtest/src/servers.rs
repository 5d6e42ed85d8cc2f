//! Real servers in real processes, each on loopback ports that were free and in a folder of its own, stopped when dropped.

pub use crate::ports::free_port;

use crate::snapshot::{self, Member};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// How often a condition is looked at while waiting for it.
pub const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long a server may take to come up, or a condition to come true, before a test gives up. Not a measure of anything.
pub const GIVE_UP: Duration = Duration::from_secs(60);

/// How long an orderly end may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until `condition` gives something; panics with `what` when it does not within [`GIVE_UP`].
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = palisade_lease::clock::boot();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(
            palisade_lease::clock::boot().since(start) < GIVE_UP,
            "gave up waiting for {what}"
        );
        thread::sleep(LOOK_AGAIN);
    }
}

/// One of the workspace's own programs, as built beside the program that asks (a test or a binary of this workspace).
///
/// # Panics
/// If it was not built: `cargo build --workspace --bins` first, as `make test` does.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let found = own
        .ancestors()
        .skip(1)
        .take(3)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "{name} is not beside {}: run `cargo build --workspace --bins`",
            own.display()
        )
    })
}

/// A process that is killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts a program; `name` is for messages.
    pub fn start(name: &str, command: &mut Command) -> io::Result<Self> {
        let child = command.spawn().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{name} ({:?}): {error}", command.get_program()),
            )
        })?;
        Ok(Self {
            child,
            name: name.to_owned(),
        })
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal; one that has ended already is no error.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(self.pid(), signal);
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end within [`GIVE_UP`].
    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        wait_for(&what, || self.ended())
    }

    /// SIGTERM, and SIGKILL where that does not end it soon. etcd waits for its clients' streams, and some never end.
    pub fn end_in_order(mut self) {
        self.signal(Signal::SIGTERM);
        let start = palisade_lease::clock::boot();
        while self.ended().is_none() && palisade_lease::clock::boot().since(start) < PATIENCE {
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A single etcd member.
#[derive(Debug)]
pub struct Etcd {
    process: Option<Process>,
    client: SocketAddr,
    peer: SocketAddr,
    folder: TempDir,
    arguments: Vec<String>,
    /// The folder of its programs, if not the usual one.
    programs: Option<PathBuf>,
}

impl Etcd {
    /// Starts etcd and waits until it answers.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// The same with more arguments, e.g. `["--quota-backend-bytes", "1000000"]`.
    pub fn start_with(arguments: &[&str]) -> io::Result<Self> {
        Self::start_of(None, arguments)
    }

    /// The same with the programs in a folder, such as [`newer_etcd`]'s.
    pub fn start_of(programs: Option<&Path>, arguments: &[&str]) -> io::Result<Self> {
        let mut etcd = Self {
            process: None,
            client: (Ipv4Addr::LOCALHOST, free_port()?).into(),
            peer: (Ipv4Addr::LOCALHOST, free_port()?).into(),
            folder: TempDir::with_prefix("palisade-etcd-")?,
            arguments: arguments.iter().map(|&a| a.to_owned()).collect(),
            programs: programs.map(Path::to_owned),
        };
        etcd.start_again()?;
        Ok(etcd)
    }

    /// Starts it again on the same ports and data, after [`Etcd::kill`].
    pub fn start_again(&mut self) -> io::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))?;
        let (client, peer) = (
            format!("http://{}", self.client),
            format!("http://{}", self.peer),
        );
        let mut command = Command::new(self.program("etcd"));
        command
            .args(["--name", "default", "--data-dir"])
            .arg(self.data())
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
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut process = Process::start("etcd", &mut command)?;
        let address = self.client;
        let up = wait_for("etcd to answer", || {
            if process.ended().is_some() {
                return Some(false);
            }
            get(address, "/health")
                .is_ok_and(|answer| answer.contains("\"true\""))
                .then_some(true)
        });
        if !up {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(5).collect();
            return Err(io::Error::other(format!(
                "etcd ended at once: {}",
                tail.join("\n")
            )));
        }
        self.process = Some(process);
        Ok(())
    }

    /// Where clients reach it.
    pub fn address(&self) -> SocketAddr {
        self.client
    }

    /// The `--leases` URL.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.client)
    }

    /// The data folder, for snapshots and restores.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Its own folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The running process, if it runs.
    pub fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Ends it in order, as a service manager does.
    pub fn stop(&mut self) {
        self.process
            .take()
            .into_iter()
            .for_each(Process::end_in_order);
    }

    /// Freezes it: sockets stay open, nothing is answered.
    pub fn pause(&self) {
        self.process.iter().for_each(|p| p.signal(Signal::SIGSTOP));
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.iter().for_each(|p| p.signal(Signal::SIGCONT));
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs
            .as_ref()
            .map_or_else(|| etcd_program(name), |folder| folder.join(name))
    }

    /// Saves a snapshot, and gives its file.
    ///
    /// # Panics
    /// If `etcdctl` fails.
    pub fn snapshot(&self) -> PathBuf {
        let file = self.folder.path().join("snapshot.db");
        self.ctl(&["snapshot", "save", &file.display().to_string()]);
        file
    }

    /// The same into this file, where it may fail.
    ///
    /// # Errors
    /// With what `etcdctl` said; the file is as it was then.
    pub fn save(&self, snapshot: &Path) -> io::Result<()> {
        let file = snapshot.display().to_string();
        let saved = self.try_ctl(&["snapshot", "save", &file]);
        saved.map(|_| ()).map_err(io::Error::other)
    }

    /// Ends it and starts it on what etcd's tool makes of a snapshot, with these further arguments: what an operator does.
    ///
    /// # Errors
    /// With what the tool or etcd said.
    pub fn restore(&mut self, snapshot: &Path, arguments: &[&str]) -> io::Result<()> {
        self.kill();
        let peer = format!("http://{}", self.peer);
        let member = Member {
            name: "default",
            cluster: &format!("default={peer}"),
            peer: &peer,
            data: &self.data(),
        };
        snapshot::restore(|name| self.program(name), snapshot, member, arguments)?;
        self.start_again()
    }

    /// Runs `etcdctl` against it and gives what it printed.
    ///
    /// # Panics
    /// If it fails.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        self.try_ctl(arguments)
            .unwrap_or_else(|error| panic!("etcdctl {arguments:?}: {error}"))
    }

    /// The same, where it may fail; an error is what it said.
    ///
    /// # Errors
    /// If it fails.
    pub fn try_ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(self.program("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.client.to_string()])
            .args(arguments)
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

/// `etcd` or `etcdctl`: from the folder in `PALISADE_ETCD_BIN` (another version), else from the search path.
pub fn etcd_program(name: &str) -> PathBuf {
    std::env::var_os("PALISADE_ETCD_BIN")
        .map_or_else(|| PathBuf::from(name), |dir| PathBuf::from(dir).join(name))
}

/// Whether the etcd in use, or the one in this folder, can push its revision ahead at a restore: 3.5 can.
pub fn can_bump(programs: Option<&Path>) -> bool {
    snapshot::can_bump(|name| {
        programs.map_or_else(|| etcd_program(name), |folder| folder.join(name))
    })
}

/// The folder of an etcd that is new enough for several replicas (3.5.13): the one in use, or else one that is fetched once and
/// unpacked below the build folder. An error says why there is none.
///
/// # Errors
/// If it can't be fetched.
pub fn newer_etcd() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND.get_or_init(find_newer_etcd).clone()
}

fn find_newer_etcd() -> Result<PathBuf, String> {
    let used = std::env::var_os("PALISADE_ETCD_BIN").map(PathBuf::from);
    if let Some(used) = used.filter(|used| is_new_enough(&used.join("etcd"))) {
        return Ok(used);
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = own
        .ancestors()
        .find(|path| path.file_name().is_some_and(|name| name == "target"))
        .ok_or("no build folder")?;
    let folder = target.join("etcd35");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/newer-etcd.sh");
    let output = Command::new("sh")
        .arg(script)
        .arg(&folder)
        .output()
        .map_err(|error| error.to_string())?;
    let programs = folder.join("usr/bin");
    if output.status.success() && is_new_enough(&programs.join("etcd")) {
        Ok(programs)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn is_new_enough(etcd: &Path) -> bool {
    let Ok(output) = Command::new(etcd).arg("--version").output() else {
        return false;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = said
        .lines()
        .find_map(|line| line.strip_prefix("etcd Version: "));
    let numbers: Vec<u32> = version
        .unwrap_or_default()
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect();
    numbers >= vec![3, 5, 13]
}

/// A plain GET; the answer with its head, as text.
pub fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    exchange(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )
}

/// Sends bytes on a new connection and reads to its end.
pub fn exchange(address: SocketAddr, request: &[u8]) -> io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    connection.set_read_timeout(Some(GIVE_UP))?;
    connection.write_all(request)?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
