//! What stands before the datastore: Palisade, or something that is no fence.

use super::clock::WallClock;
use crate::{
    peers::{Peer, Running},
    proxy::Palisade,
    servers::{Process, free_port, get, program, wait_for},
};
use nix::sys::signal::Signal;
use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    str::FromStr,
    time::Duration,
};
use tempfile::TempDir;

/// What can be attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Palisade.
    Palisade,
    /// Palisades that are no group: each fences by itself, and nothing is waited for between them.
    NoBarrier,
    /// Compares in memory and forwards.
    Naive,
    /// The same with its marks in a file.
    NaiveDurable,
    /// nginx or HAProxy.
    Peer(Peer),
    /// Nothing.
    None,
}

impl Kind {
    const NAMES: [(Self, &str); 7] = [
        (Self::Palisade, "palisade"),
        (Self::NoBarrier, "no-barrier"),
        (Self::Naive, "naive"),
        (Self::NaiveDurable, "naive-durable"),
        (Self::Peer(Peer::Nginx), "nginx"),
        (Self::Peer(Peer::Haproxy), "haproxy"),
        (Self::None, "none"),
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().find(|(kind, _)| kind == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::NAMES.iter().find(|(_, name)| *name == text);
        named.map(|(kind, _)| *kind).ok_or_else(|| {
            let known = Self::NAMES.map(|(_, name)| name).join(", ");
            format!("there are: {known}")
        })
    }
}

/// After how long a silent replica has lost its place.
pub(super) const SESSION: Duration = Duration::from_secs(5);
/// Longer than any freeze of a proxy here: A7 is kept by construction.
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(1_500);

/// Which of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 0.
    pub number: usize,
    /// How many proxies there are.
    pub of: usize,
}

/// It as it runs.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    upstream: SocketAddr,
    folder: TempDir,
    palisade: Option<Palisade>,
    naive: Option<Process>,
    peer: Option<Running>,
    /// Of `palisade`; last, since it is to outlive it.
    clock: Option<WallClock>,
}

impl Target {
    /// One that does not run yet.
    ///
    /// # Errors
    /// If it has no place for its files.
    pub fn new(
        kind: Kind,
        upstream: SocketAddr,
        leases: &[SocketAddr],
        settle: Duration,
        place: Place,
    ) -> io::Result<Self> {
        let palisade = match kind {
            Kind::Palisade | Kind::NoBarrier => {
                let proxy = palisade(upstream, leases, settle)?;
                Some(match (kind, place.of) {
                    (_, 1) => proxy,
                    (Kind::NoBarrier, _) => proxy.set("name", format!("alone-{}", place.number)),
                    _ => proxy
                        .set("replicas.group", "chaos")
                        .set("replicas.session_ttl", format!("{}s", SESSION.as_secs()))
                        .set("replicas.max_pause", format!("{}ms", MAX_PAUSE.as_millis())),
                })
            }
            _ => None,
        };
        Ok(Self {
            kind,
            upstream,
            folder: TempDir::with_prefix("palisade-target-")?,
            palisade,
            naive: None,
            peer: None,
            clock: None,
        })
    }

    /// With its state in this folder, where it keeps one.
    #[must_use]
    pub(super) fn keeps_state_at(mut self, folder: Option<PathBuf>) -> Self {
        if let Some(folder) = folder {
            self.palisade = self.palisade.map(|proxy| proxy.state_at(&folder));
        }
        self
    }

    /// With this wall clock.
    #[must_use]
    pub(super) fn goes_by(mut self, clock: Option<WallClock>) -> Self {
        for (name, value) in clock.iter().flat_map(WallClock::environment) {
            self.palisade = self.palisade.map(|proxy| proxy.env(name, value));
        }
        self.clock = clock;
        self
    }

    /// Starts it, again if need be; gives its address.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start(&mut self) -> io::Result<SocketAddr> {
        match self.kind {
            Kind::Palisade | Kind::NoBarrier => {
                let Some(palisade) = &mut self.palisade else {
                    return Ok(self.upstream);
                };
                palisade.start()?;
                let clock = self.clock.iter();
                clock.for_each(|clock| clock.used_by(palisade.pid()));
                Ok(palisade.address())
            }
            Kind::Naive | Kind::NaiveDurable => {
                let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
                let mut command = Command::new(program("palisade-loadtest"));
                command.args(["naive", "--listen", &listen.to_string()]);
                command.args(["--upstream", &self.upstream.to_string()]);
                if self.kind == Kind::NaiveDurable {
                    command.arg("--file").arg(self.folder.path().join("marks"));
                }
                command.stdin(Stdio::null()).stdout(Stdio::null());
                self.naive = Some(Process::start("naive", &mut command)?);
                wait_for("the naive proxy to listen", || {
                    TcpStream::connect(listen).ok()
                });
                Ok(listen)
            }
            Kind::Peer(peer) => {
                let running = peer.start(self.folder.path(), self.upstream)?;
                let fence = running.fence;
                self.peer = Some(running);
                Ok(fence)
            }
            Kind::None => Ok(self.upstream),
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.running().for_each(Palisade::kill);
        self.naive = None;
        self.peer = None;
    }

    /// An orderly end, where there is one.
    pub fn stop(&mut self) {
        self.running().for_each(|palisade| {
            palisade.stop();
        });
        self.naive = None;
        self.peer = None;
    }

    /// Freezes it, or lets it go on.
    pub fn freeze(&self, freeze: bool) {
        let signal = if freeze {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        let running = self
            .palisade
            .iter()
            .filter(|palisade| palisade.is_running());
        running.for_each(|palisade| palisade.signal(signal));
        self.naive.iter().for_each(|naive| naive.signal(signal));
        self.peer.iter().for_each(|peer| peer.signal(signal));
    }

    /// Whether it notices that the lease store has gone back, and is told of new epochs.
    pub fn has_epochs(&self) -> bool {
        self.palisade.is_some()
    }

    /// Whether it has seen the lease store at this revision.
    pub fn has_watched(&self, revision: u64) -> bool {
        let seen = self
            .palisade
            .as_ref()
            .map(|palisade| palisade.metric("palisade_lease_store_watch_revision"));
        seen.is_none_or(|seen| seen >= revision as f64)
    }

    /// Whether it says that it does not trust the lease store any more.
    pub fn is_frozen(&self) -> bool {
        let readiness = self.admin().map(|admin| get(admin, "/readyz"));
        readiness.is_some_and(|said| said.is_ok_and(|said| said.contains("not trusted")))
    }

    /// Begins a new epoch, as an operator does; gives its floor, if it began.
    pub fn new_epoch(&self) -> Option<u64> {
        let palisade = self.palisade.as_ref()?;
        // Pushing etcd's revision so far is no matter of seconds, and it never is so far.
        let begun = palisade.ask(&["new-epoch", "--yes", "--advance", "1000000"]);
        let begun = begun.ok().filter(|begun| begun.status.success())?;
        let said = String::from_utf8_lossy(&begun.stdout).into_owned();
        said.split_whitespace().find_map(|word| word.parse().ok())
    }

    /// Where its floors can be looked at.
    pub fn admin(&self) -> Option<SocketAddr> {
        let running = self
            .palisade
            .as_ref()
            .filter(|palisade| palisade.is_running());
        running.map(Palisade::admin)
    }

    /// Whether it runs, of what has a state folder.
    pub(super) fn runs(&self) -> bool {
        self.palisade.as_ref().is_none_or(Palisade::is_running)
    }

    /// It may have failed to start on a full disk.
    fn running(&mut self) -> impl Iterator<Item = &mut Palisade> {
        self.palisade
            .iter_mut()
            .filter(|palisade| palisade.is_running())
    }
}

fn palisade(upstream: SocketAddr, leases: &[SocketAddr], settle: Duration) -> io::Result<Palisade> {
    let endpoints: Vec<String> = leases.iter().map(ToString::to_string).collect();
    Palisade::new(&format!("http://{upstream}"))?
        .set("leases", format!("etcd://{}", endpoints.join(",")))
        .set("fence.settle", format!("{}ms", settle.as_millis()))
        .set("fence.abort_after", "300ms")
        .set("fence.drain_timeout", "8s")
        .set("limits.upstream_response_timeout", "3s")
        .set("limits.upstream_connect_timeout", "1s")
        .set("limits.shutdown_timeout", "1s")
        .set("access_log", false)
        .routes("[[route]]\npath = \"/{scope}/{*rest}\"\nscope = \"chaos/{scope}\"\n")
}
