//! What is measured, as it runs, on the cores that it is to have.

use super::{round::Cores, sink::Sink};
use crate::{
    certificate::Certificate,
    peers::{Peer, Running, Setup},
    proxy::Palisade,
};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use std::{fmt, io, net::SocketAddr, str::FromStr};
use tempfile::TempDir;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Palisade with its defaults, one thread, access log off, no lease store: what a token costs once its floor has
    /// opened does not depend on one.
    Palisade,
    /// The same, with a unix socket to the datastore.
    PalisadeUnix,
    /// The same as [`Self::Palisade`], with a line in the access log for each request.
    PalisadeLog,
    /// No proxy: what the load and the datastore take by themselves. The processor time is theirs.
    Direct,
    /// Another proxy.
    Peer(Peer),
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "palisade" => Ok(Self::Palisade),
            "palisade-unix" => Ok(Self::PalisadeUnix),
            "palisade-log" => Ok(Self::PalisadeLog),
            "direct" => Ok(Self::Direct),
            "nginx" => Ok(Self::Peer(Peer::Nginx)),
            "haproxy" => Ok(Self::Peer(Peer::Haproxy)),
            "envoy" => Ok(Self::Peer(Peer::Envoy)),
            _ => Err(
                "there are: palisade, palisade-unix, palisade-log, direct, nginx, haproxy, envoy"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Palisade => "palisade",
            Self::PalisadeUnix => "palisade-unix",
            Self::PalisadeLog => "palisade-log",
            Self::Direct => "direct",
            Self::Peer(Peer::Nginx) => "nginx",
            Self::Peer(Peer::Haproxy) => "haproxy",
            Self::Peer(Peer::Envoy) => "envoy",
        })
    }
}

/// It as it runs; ended when dropped.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) kind: Kind,
    pub(super) pid: Pid,
    /// Where it only forwards.
    pub(super) plain: SocketAddr,
    /// Where it checks tokens.
    pub(super) fence: SocketAddr,
    _runs: Runs,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held until they are to end")]
enum Runs {
    Nothing,
    Palisade(Palisade),
    Peer(Running, TempDir),
}

impl Subject {
    /// Starts it where it has to run; the load goes back to where it ran.
    pub(super) fn start(
        kind: Kind,
        sink: &Sink,
        cores: Cores,
        tls: Option<&Certificate>,
    ) -> io::Result<Self> {
        // What is started inherits where it may run.
        pin(cores.proxy())?;
        let setup = Setup {
            workers: cores.proxy().len(),
            tls,
        };
        let subject = Self::start_here(kind, sink, setup);
        pin(cores.load())?;
        subject
    }

    fn start_here(kind: Kind, sink: &Sink, setup: Setup<'_>) -> io::Result<Self> {
        let (pid, plain, fence, runs) = match kind {
            Kind::Palisade | Kind::PalisadeUnix | Kind::PalisadeLog => {
                let upstream = match kind {
                    Kind::PalisadeUnix => format!("unix:{}", sink.unix.display()),
                    _ => format!("http://{}", sink.tcp),
                };
                let mut palisade = Palisade::new(&upstream)?
                    .set("threads", setup.workers)
                    .set("access_log", kind == Kind::PalisadeLog);
                if let Some(tls) = setup.tls {
                    palisade.change("tls.cert", tls.cert.display());
                    palisade.change("tls.key", tls.key.display());
                }
                palisade.start()?;
                let address = palisade.address();
                (palisade.pid(), address, address, Runs::Palisade(palisade))
            }
            Kind::Direct => (Pid::this(), sink.tcp, sink.tcp, Runs::Nothing),
            Kind::Peer(peer) if !peer.installed() => {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!(
                        "{kind} is not installed: `scripts/need.sh bench` installs what the bench compares with"
                    ),
                ));
            }
            Kind::Peer(peer) => {
                let folder = TempDir::with_prefix("palisade-peer-")?;
                let running = peer.start_as(setup, folder.path(), sink.tcp)?;
                let (plain, fence) = (running.plain, running.fence);
                (
                    running.process.pid(),
                    plain,
                    fence,
                    Runs::Peer(running, folder),
                )
            }
        };
        Ok(Self {
            kind,
            pid,
            plain,
            fence,
            _runs: runs,
        })
    }
}

/// Binds the calling thread to cores, where there are several.
pub(super) fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core)?;
    }
    match sched_setaffinity(Pid::from_raw(0), &set) {
        // A machine with one core.
        Err(nix::errno::Errno::EINVAL) => Ok(()),
        other => Ok(other?),
    }
}
