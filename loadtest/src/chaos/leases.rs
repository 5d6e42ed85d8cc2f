//! The lease store of a run: one etcd, or three members.

use crate::{
    cluster::Cluster,
    servers::{Etcd, etcd_program, exchange},
};
use std::{io, net::SocketAddr, path::Path, process::Command};

/// How many revisions etcd is ahead of its last snapshot at least.
const AHEAD: usize = 300;

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

    /// Saves a snapshot in place of the one before; with the store unwell that one stays.
    ///
    /// Much is written after it, elsewhere: A1 leaves out an etcd whose revision is past the old one before any proxy looks, and
    /// replicas write a few keys of their own when etcd comes back.
    pub(super) fn snapshot(&self, file: &Path) -> io::Result<()> {
        match self {
            Self::One(etcd) => etcd.save(file),
            Self::Three { cluster, .. } => cluster.snapshot(cluster.leader(), file),
        }?;
        (0..AHEAD).try_for_each(|_| self.put_elsewhere())
    }

    /// One revision more, by etcd's JSON gateway: a process for each would take long.
    fn put_elsewhere(&self) -> io::Result<()> {
        // `chaos` = `x`, both in base64.
        let body = r#"{"key":"Y2hhb3M=","value":"eA=="}"#;
        let mut answer = Ok(String::new());
        for address in self.endpoints() {
            let request = format!(
                "POST /v3/kv/put HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            answer = exchange(address, request.as_bytes());
            if answer
                .as_ref()
                .is_ok_and(|said| said.contains("\"revision\""))
            {
                return Ok(());
            }
        }
        Err(io::Error::other(format!("etcd took no put: {answer:?}")))
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
