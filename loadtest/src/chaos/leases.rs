//! The lease store of a run: one etcd, or three members.

use crate::{
    cluster::Cluster,
    servers::{Etcd, etcd_program},
};
use std::{io, net::SocketAddr, path::Path, process::Command};

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
    /// Starts it, with etcd's programs from a folder if need be.
    pub(super) fn start(members: usize, programs: Option<&Path>) -> io::Result<Self> {
        if members == 1 {
            return Ok(Self::One(Box::new(Etcd::start_of(programs, &[])?)));
        }
        Ok(Self::Three {
            cluster: Box::new(Cluster::start_of(programs)?),
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

    /// Compacts at the current revision. What can't be compacted for now is not.
    pub(super) fn compact(&self) {
        let endpoints: Vec<String> = self.endpoints().iter().map(ToString::to_string).collect();
        let ctl = |arguments: &[&str]| {
            let mut command = Command::new(etcd_program("etcdctl"));
            command
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &endpoints.join(",")]);
            command.args(arguments).output().map(|output| output.stdout)
        };
        let status = ctl(&["get", "none", "--write-out=json"]).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        if let Some(revision) = status["header"]["revision"].as_u64() {
            let _ = ctl(&["compact", &revision.to_string()]);
        }
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
