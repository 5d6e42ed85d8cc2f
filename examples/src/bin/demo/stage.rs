//! What the story plays on: etcd, the datastores, and Palisade in front of one of them. All real, all on this machine.

use nix::unistd::Pid;
use palisade_loadtest::servers::{Etcd, Process, etcd_program, free_port, get, program};
use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// The lease that the workers compete for, and so the scope that it guards.
pub(crate) const LEASE: &str = "demo/report";
/// How long a lease lives without news of its holder. Long enough for a busy machine, short enough to wait for.
pub(crate) const TTL: &str = "5s";

/// How long a server may take to answer for the first time.
const START: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Everything that runs. Dropping it ends every process and removes the folder.
pub(crate) struct Stage {
    pub(crate) etcd: Etcd,
    pub(crate) fenced: Store,
    pub(crate) bare: Store,
    pub(crate) proxy: Proxy,
    folder: TempDir,
}

/// A datastore: a WebDAV server on a folder.
pub(crate) struct Store {
    process: Process,
    pub(crate) address: String,
    folder: PathBuf,
}

/// Palisade itself.
pub(crate) struct Proxy {
    process: Process,
    pub(crate) front: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) config: PathBuf,
}

impl Stage {
    /// Starts it all and waits until it answers.
    pub(crate) async fn set() -> io::Result<Self> {
        need_etcd()?;
        let folder = TempDir::with_prefix("palisade-demo-")?;
        let etcd = Etcd::start()?;
        let socket = format!("unix:{}", folder.path().join("store.sock").display());
        let fenced = Store::start(folder.path(), "fenced", socket).await?;
        let port = format!("127.0.0.1:{}", free_port()?);
        let bare = Store::start(folder.path(), "bare", port).await?;
        let proxy = Proxy::start(folder.path(), &etcd, &fenced).await?;
        Ok(Self {
            etcd,
            fenced,
            bare,
            proxy,
            folder,
        })
    }

    /// The folder with everything in it but etcd's data.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The ids of all processes.
    pub(crate) fn processes(&mut self) -> Vec<Pid> {
        let etcd = self.etcd.process().map(|process| process.pid());
        let others = [
            &self.fenced.process,
            &self.bare.process,
            &self.proxy.process,
        ];
        etcd.into_iter().chain(others.map(Process::pid)).collect()
    }

    /// Lets everything run on after the demo's end; gives the folders to remove then.
    pub(crate) fn leave(self) -> [PathBuf; 2] {
        let folders = [self.folder.path().to_owned(), self.etcd.folder().to_owned()];
        std::mem::forget(self);
        folders
    }
}

impl Store {
    async fn start(stage: &Path, name: &str, address: String) -> io::Result<Self> {
        let folder = stage.join(name);
        let mut command = Command::new(program("webdav"));
        command.arg(&address).arg(&folder);
        let mut process = start(stage, &format!("{name}-store"), &mut command)?;
        until_up(stage, &mut process, name, || connects(&address)).await?;
        Ok(Self {
            process,
            address,
            folder,
        })
    }

    /// What the report holds now, read from the disk: past every server.
    pub(crate) fn report(&self) -> io::Result<String> {
        fs::read_to_string(self.folder.join("report.txt"))
    }
}

impl Proxy {
    async fn start(stage: &Path, etcd: &Etcd, store: &Store) -> io::Result<Self> {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (front, admin) = (loopback(free_port()?), loopback(free_port()?));
        let config = stage.join("palisade.toml");
        let state = stage.join("state");
        fs::write(
            &config,
            format!(
                "listen   = [\"{front}\"]\nadmin    = \"{admin}\"\nupstream = \"{upstream}\"\n\
                 leases   = \"{leases}\"\nscope    = \"{LEASE}\"\nstate    = \"{state}\"\n",
                upstream = store.address,
                leases = etcd.url(),
                state = state.display(),
            ),
        )?;
        let mut command = Command::new(program("palisade"));
        command.args(["run", "--config"]).arg(&config);
        let mut process = start(stage, "palisade", &mut command)?;
        until_up(stage, &mut process, "palisade", || {
            get(admin, "/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        })
        .await?;
        Ok(Self {
            process,
            front,
            admin,
            config,
        })
    }
}

/// Starts a server in a process group of its own (Ctrl-C is for the demo, which then ends it), its words in a file.
fn start(stage: &Path, name: &str, command: &mut Command) -> io::Result<Process> {
    use std::os::unix::process::CommandExt;
    let log = File::create(log(stage, name))?;
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Process::start(name, command)
}

fn log(stage: &Path, name: &str) -> PathBuf {
    stage.join(format!("{name}.log"))
}

/// Waits until a server that was just started answers, or has ended instead.
async fn until_up(
    stage: &Path,
    process: &mut Process,
    name: &str,
    up: impl Fn() -> bool,
) -> io::Result<()> {
    let start = palisade_lease::clock::boot();
    while !up() {
        let ended = process.ended();
        if ended.is_some() || palisade_lease::clock::boot().since(start) > START {
            let state = ended.map_or("is not ready".to_owned(), |status| {
                format!("ended: {status}")
            });
            let words = fs::read_to_string(log(stage, name)).unwrap_or_default();
            return Err(io::Error::other(format!("{name} {state}\n{words}")));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

/// Whether somebody listens there.
fn connects(address: &str) -> bool {
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(path).is_ok(),
        None => std::net::TcpStream::connect(address).is_ok(),
    }
}

/// Says what to do where etcd is not installed.
fn need_etcd() -> io::Result<()> {
    let found = Command::new(etcd_program("etcd"))
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    found.map(drop).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("etcd can't be run ({error}): `make demo` installs it, or `apt-get install etcd-server`"),
        )
    })
}
