//! The lease store of a run: one etcd, or three members.

use crate::{
    cluster::Cluster,
    servers::{Etcd, etcd_program, exchange},
};
use std::{io, net::SocketAddr, path::Path, process::Command};

/// How many revisions more than its own keys a replica never puts when etcd comes back.
const PUSH: usize = 300;

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
    pub(super) fn snapshot(&self, file: &Path) -> io::Result<()> {
        match self {
            Self::One(etcd) => etcd.save(file),
            Self::Three { cluster, .. } => cluster.snapshot(cluster.leader(), file),
        }
    }

    /// Pushes its revision on by some hundred, the last one by a key that the proxies watch. Gives the revision.
    pub(super) fn push_on(&self) -> io::Result<u64> {
        for _ in 0..PUSH {
            self.put("chaos")?;
        }
        self.put("/palisade/leases/chaos")
    }

    /// One put, by etcd's JSON gateway: a process for each would take long. Gives its revision.
    fn put(&self, key: &str) -> io::Result<u64> {
        let body = format!(r#"{{"key":"{}","value":"eA=="}}"#, base64(key.as_bytes()));
        let mut answer = Ok(String::new());
        for address in self.endpoints() {
            let request = format!(
                "POST /v3/kv/put HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            answer = exchange(address, request.as_bytes());
            let said = answer.as_deref().unwrap_or_default();
            let said = said.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let said: serde_json::Value = serde_json::from_str(said).unwrap_or_default();
            let revision = said["header"]["revision"].as_str();
            if let Some(revision) = revision.and_then(|revision| revision.parse().ok()) {
                return Ok(revision);
            }
        }
        Err(io::Error::other(format!("etcd took no put: {answer:?}")))
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

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit <= three.len() {
                DIGITS[value] as char
            } else {
                '='
            });
        }
    }
    text
}

/// Two times out of three the leader: its loss is what hurts.
fn whom(cluster: &Cluster, pick: u64) -> usize {
    if pick.is_multiple_of(3) {
        (pick / 3 % 3) as usize
    } else {
        cluster.leader()
    }
}

#[cfg(test)]
mod tests {
    use super::base64;

    /// Of RFC 4648, section 10.
    #[test]
    fn base64_is_as_in_its_rfc() {
        let vectors = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let encoded = vectors.map(|plain| base64(plain.as_bytes()));
        let wanted = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        assert_eq!(encoded, wanted);
    }
}
