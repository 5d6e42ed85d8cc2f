//! What the demo and the tests play on: etcd (or a lease file), two datastores, and Palisade in front of one of them. All real, all on
//! this machine, on ports that were free.

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

/// How long a server may take to answer for the first time.
const START: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Everything that runs. Dropping it ends every process and removes the folder.
#[derive(Debug)]
pub struct Stage {
    /// Keeps the leases.
    pub leases: Leases,
    /// The datastore that is reached only through the proxy: it listens on a unix socket.
    pub fenced: Store,
    /// A datastore with nothing in front of it.
    pub bare: Store,
    /// The fence.
    pub proxy: Proxy,
    folder: TempDir,
}

/// Where leases are kept.
#[derive(Debug)]
pub enum Leases {
    /// In etcd.
    Etcd(Box<Etcd>),
    /// In a file of this host, which needs no server.
    File(PathBuf),
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// etcd.
    Etcd,
    /// A file.
    Sqlite,
}

impl Leases {
    fn start(kind: Kind, stage: &Path) -> io::Result<Self> {
        match kind {
            Kind::Sqlite => Ok(Self::File(stage.join("leases.db"))),
            Kind::Etcd => {
                need_etcd()?;
                Ok(Self::Etcd(Box::new(Etcd::start()?)))
            }
        }
    }

    /// The `--leases` URL.
    pub fn url(&self) -> String {
        match self {
            Self::Etcd(etcd) => etcd.url(),
            Self::File(path) => format!("sqlite:{}", path.display()),
        }
    }

    /// What a person calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            Self::File(_) => "lease file",
        }
    }
}

/// A datastore: a WebDAV server on a folder.
#[derive(Debug)]
pub struct Store {
    process: Process,
    /// `127.0.0.1:PORT`, or `unix:PATH`.
    pub address: String,
    folder: PathBuf,
}

/// Palisade itself.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
    /// Where workers reach the datastore.
    pub front: SocketAddr,
    /// Metrics and readiness.
    pub admin: SocketAddr,
    /// Its settings.
    pub config: PathBuf,
}

impl Stage {
    /// Starts it all, the fenced datastore with this one scope, and waits until it answers.
    ///
    /// # Errors
    /// If etcd is wanted and not installed, or a server does not come up; with what that server said.
    pub async fn set(scope: &str, kind: Kind) -> io::Result<Self> {
        let folder = TempDir::with_prefix("palisade-demo-")?;
        let leases = Leases::start(kind, folder.path())?;
        let socket = format!("unix:{}", folder.path().join("store.sock").display());
        let fenced = Store::start(folder.path(), "fenced", socket).await?;
        let port = format!("127.0.0.1:{}", free_port()?);
        let bare = Store::start(folder.path(), "bare", port).await?;
        let proxy = Proxy::start(folder.path(), scope, &leases, &fenced).await?;
        Ok(Self {
            leases,
            fenced,
            bare,
            proxy,
            folder,
        })
    }

    /// The folder with everything in it but etcd's data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The ids of all processes.
    pub fn processes(&mut self) -> Vec<Pid> {
        let etcd = match &mut self.leases {
            Leases::Etcd(etcd) => etcd.process().map(|process| process.pid()),
            Leases::File(_) => None,
        };
        let others = [
            &self.fenced.process,
            &self.bare.process,
            &self.proxy.process,
        ];
        etcd.into_iter().chain(others.map(Process::pid)).collect()
    }

    /// Lets everything run on after the demo's end; gives the folders to remove then.
    pub fn leave(self) -> Vec<PathBuf> {
        let mut folders = vec![self.folder.path().to_owned()];
        if let Leases::Etcd(etcd) = &self.leases {
            folders.push(etcd.folder().to_owned());
        }
        std::mem::forget(self);
        folders
    }
}

impl Store {
    /// Serves the folder `stage/name` at `address`; its words go to a file beside it.
    ///
    /// # Errors
    /// If it does not come up; with what it said.
    pub async fn start(stage: &Path, name: &str, address: String) -> io::Result<Self> {
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

    /// What a file holds now, read from the disk: past every server.
    ///
    /// # Errors
    /// If it is not there or can't be read.
    pub fn read(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(self.folder.join(name))
    }
}

impl Proxy {
    /// The URL of a file in the datastore, through the fence.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.front)
    }

    async fn start(stage: &Path, scope: &str, leases: &Leases, store: &Store) -> io::Result<Self> {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (front, admin) = (loopback(free_port()?), loopback(free_port()?));
        let config = stage.join("palisade.toml");
        let state = stage.join("state");
        fs::write(
            &config,
            format!(
                "listen   = [\"{front}\"]\nadmin    = \"{admin}\"\nupstream = \"{upstream}\"\n\
                 leases   = \"{leases}\"\nscope    = \"{scope}\"\nstate    = \"{state}\"\n",
                upstream = store.address,
                leases = leases.url(),
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
