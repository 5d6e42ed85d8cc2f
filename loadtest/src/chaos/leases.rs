//! The lease store of a run: one etcd, or three members.

use super::gateway;
use crate::{
    cluster::Cluster,
    servers::{Etcd, etcd_program},
};
use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
};

/// How many revisions more than its own keys a replica never puts when etcd comes back.
const PUSH: usize = 300;

/// What a store that is to run out of space has, in bytes: far more than a run writes by itself.
const QUOTA: usize = 16 << 20;
/// A value that etcd takes, below its limit of 1.5 MiB a request.
const MUCH: usize = 1 << 20;

/// What is disturbed of it, until the fault ends.
#[derive(Debug)]
pub(super) enum Leases {
    /// One member.
    One(Box<Etcd>),
    /// Three, and those that are frozen or dead now.
    Three {
        cluster: Box<Cluster>,
        frozen: Vec<usize>,
        dead: Vec<usize>,
    },
}

impl Leases {
    /// Starts it, with etcd's programs from a folder if need be; with little space if that is to be used up.
    pub(super) fn start(members: usize, programs: Option<&Path>, small: bool) -> io::Result<Self> {
        let quota = ["--quota-backend-bytes", &QUOTA.to_string()];
        let arguments: &[&str] = if small { &quota } else { &[] };
        if members == 1 {
            return Ok(Self::One(Box::new(Etcd::start_of(programs, arguments)?)));
        }
        Ok(Self::Three {
            cluster: Box::new(Cluster::start_with(programs, arguments)?),
            frozen: Vec::new(),
            dead: Vec::new(),
        })
    }

    /// Where clients reach it.
    pub(super) fn endpoints(&self) -> Vec<SocketAddr> {
        match self {
            Self::One(etcd) => vec![etcd.address()],
            Self::Three { cluster, .. } => cluster.clients().to_vec(),
        }
    }

    /// Freezes one: the leader or any, by a number.
    pub(super) fn freeze_one(&mut self, pick: u64) {
        match self {
            Self::One(etcd) => etcd.pause(),
            Self::Three {
                cluster, frozen, ..
            } => {
                let member = whom(cluster, pick);
                cluster.pause(member);
                frozen.push(member);
            }
        }
    }

    /// Freezes so many that the rest has no majority.
    pub(super) fn freeze_most(&mut self) {
        match self {
            Self::One(etcd) => etcd.pause(),
            Self::Three {
                cluster, frozen, ..
            } => {
                for member in [0, 1] {
                    cluster.pause(member);
                    frozen.push(member);
                }
            }
        }
    }

    /// Lets go on what was frozen.
    pub(super) fn thaw(&mut self) {
        match self {
            Self::One(etcd) => etcd.resume(),
            Self::Three {
                cluster, frozen, ..
            } => frozen.drain(..).for_each(|member| cluster.resume(member)),
        }
    }

    /// Kills one: the leader or any, by a number.
    pub(super) fn kill_one(&mut self, pick: u64) {
        match self {
            Self::One(etcd) => etcd.kill(),
            Self::Three { cluster, dead, .. } => {
                let member = whom(cluster, pick);
                cluster.kill(member);
                dead.push(member);
            }
        }
    }

    /// Stops one in order.
    pub(super) fn stop_one(&mut self, pick: u64) {
        match self {
            Self::One(etcd) => etcd.stop(),
            Self::Three { cluster, dead, .. } => {
                let member = whom(cluster, pick);
                cluster.stop(member);
                dead.push(member);
            }
        }
    }

    /// Another member leads; nothing happens with one.
    pub(super) fn move_leader(&self, pick: u64) {
        if let Self::Three { cluster, .. } = self {
            let next = 1 + (pick % 2) as usize;
            cluster.move_leader((cluster.leader() + next) % 3);
        }
    }

    /// Starts what was killed.
    pub(super) fn revive(&mut self) -> io::Result<()> {
        match self {
            Self::One(etcd) => etcd.start_again(),
            Self::Three { cluster, dead, .. } => dead.drain(..).try_for_each(|member| {
                cluster.run(member)?;
                cluster.wait_healthy(member);
                Ok(())
            }),
        }
    }

    /// Saves a snapshot in place of the one before; with the store unwell that one stays.
    pub(super) fn snapshot(&self, file: &Path) -> io::Result<()> {
        match self {
            Self::One(etcd) => etcd.save(file),
            Self::Three { cluster, .. } => cluster.snapshot(cluster.leader(), file),
        }
    }

    /// Pushes its revision on by some hundred, the last one by a key that the proxies watch. Gives the revision.
    pub(super) fn push_on(&self) -> io::Result<u64> {
        for _ in 0..PUSH {
            gateway::put(&self.endpoints(), "chaos")?;
        }
        gateway::put(&self.endpoints(), "/palisade/leases/chaos")
    }

    /// Uses up its space with what is in this file again and again: it raises its alarm, and takes no puts any more.
    pub(super) fn fill(&self, much: &Path) -> io::Result<()> {
        fs::write(much, "x".repeat(MUCH))?;
        for _ in 0..2 * QUOTA / MUCH {
            let mut put = self.etcdctl(&["put", "filler"]);
            // Also where it is unwell for another reason.
            if !put.stdin(File::open(much)?).output()?.status.success() {
                return Ok(());
            }
        }
        Err(io::Error::other("etcd does not keep to its quota"))
    }

    /// Makes room again, as an operator does: compacts, defragments, and takes the alarm back. Whether that is done.
    pub(super) fn make_room(&self) -> bool {
        self.compact();
        let done = |arguments: &[&str]| self.ctl(arguments).is_ok_and(|o| o.status.success());
        done(&["defrag"]) && done(&["alarm", "disarm"]) && done(&["put", "filler", "x"])
    }

    /// Ends it.
    pub(super) fn end(&mut self) {
        match self {
            Self::One(etcd) => etcd.kill(),
            Self::Three { cluster, .. } => (0..3).for_each(|member| cluster.kill(member)),
        }
    }

    /// Ends it and starts it on a snapshot, with or without a push of its revision.
    pub(super) fn restore(&mut self, snapshot: &Path, bump: bool) -> io::Result<()> {
        let arguments: &[&str] = if bump {
            &["--bump-revision", "100000", "--mark-compacted"]
        } else {
            &[]
        };
        match self {
            Self::One(etcd) => etcd.restore(snapshot, arguments),
            Self::Three { cluster, .. } => cluster.restore(snapshot, arguments),
        }
    }

    /// Compacts at the current revision. What can't be compacted for now is not.
    pub(super) fn compact(&self) {
        let status = self.ctl(&["get", "none", "--write-out=json"]);
        let status = status.map(|output| output.stdout).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        if let Some(revision) = status["header"]["revision"].as_u64() {
            let _ = self.ctl(&["compact", "--physical", &revision.to_string()]);
        }
    }

    fn ctl(&self, arguments: &[&str]) -> io::Result<Output> {
        self.etcdctl(arguments).output()
    }

    fn etcdctl(&self, arguments: &[&str]) -> Command {
        let endpoints: Vec<String> = self.endpoints().iter().map(ToString::to_string).collect();
        let mut command = Command::new(etcd_program("etcdctl"));
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &endpoints.join(",")])
            .args(arguments);
        command
    }
}

/// Two times out of three the leader: its loss is what hurts.
fn whom(cluster: &Cluster, pick: u64) -> usize {
    if pick.is_multiple_of(3) {
        (pick / 3 % 3) as usize
    } else {
        cluster.leader()
    }
}
