//! The keys of a group in etcd, and what they say.

use etcd_client::KeyValue;
use palisade_fence::{Ack, Token};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

/// How much one value may hold: etcd refuses requests above 1.5 MiB unless told otherwise (`--max-request-bytes`).
const LONGEST_VALUE: usize = 1 << 20;

/// What changed, as a watch tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Granted(Arc<str>, Token),
    /// The lease is nobody's: its key has gone, or is on no etcd lease.
    Released(Arc<str>),
    Member(Arc<str>),
    MemberGone(Arc<str>),
    Replica(Arc<str>, Ack),
    ReplicaGone(Arc<str>),
}

/// The value of a member's key, for people.
#[derive(Serialize)]
pub(super) struct MemberRecord<'a> {
    pub(super) state_id: &'a str,
    pub(super) address: &'a str,
    pub(super) started_at: String,
}

/// The value of a replica's key.
#[derive(Deserialize, Serialize)]
struct ReplicaRecord {
    ack: u64,
    unsettled: BTreeSet<Arc<str>>,
}

/// The value for this ack; `None` if it is too long for one key.
pub(super) fn encode(ack: &Ack) -> Option<Vec<u8>> {
    let record = ReplicaRecord {
        ack: ack.revision,
        unsettled: ack.unsettled.clone(),
    };
    let value = serde_json::to_vec(&record).ok();
    value.filter(|value| value.len() <= LONGEST_VALUE)
}

/// A value that can't be read acks nothing: then nothing opens that this member might still be writing below.
fn decode(value: &[u8]) -> Ack {
    match serde_json::from_slice::<ReplicaRecord>(value) {
        Ok(record) => Ack {
            revision: record.ack,
            unsettled: record.unsettled,
        },
        Err(error) => {
            tracing::error!(%error, "another replica's key can't be read: was it written by another version?");
            Ack::default()
        }
    }
}

/// Where the keys are.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    leases: String,
    members: String,
    replicas: String,
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str, group: &str) -> Self {
        Self {
            leases: format!("{prefix}leases/"),
            members: format!("{prefix}members/{group}/"),
            replicas: format!("{prefix}replicas/{group}/"),
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn member(&self, id: &str) -> String {
        format!("{}{id}", self.members)
    }

    pub(super) fn replica(&self, id: &str) -> String {
        format!("{}{id}", self.replicas)
    }

    /// The first lease key.
    pub(super) fn leases(&self) -> Vec<u8> {
        self.leases.clone().into_bytes()
    }

    /// The first member key; all lease keys are below it.
    pub(super) fn members(&self) -> Vec<u8> {
        format!("{}members/", self.prefix).into_bytes()
    }

    /// Above all keys of all three kinds.
    pub(super) fn end(&self) -> Vec<u8> {
        format!("{}replicas0", self.prefix).into_bytes()
    }

    /// What a key that was put says, if it concerns this group.
    pub(super) fn put(&self, key: &KeyValue) -> Option<Change> {
        let name = std::str::from_utf8(key.key()).ok()?;
        if let Some(scope) = name.strip_prefix(&self.leases) {
            let token = Token::from_revision(key.mod_revision()).filter(|_| key.lease() != 0);
            return Some(match token {
                Some(token) => Change::Granted(scope.into(), token),
                None => Change::Released(scope.into()),
            });
        }
        if let Some(id) = name.strip_prefix(&self.members) {
            return Some(Change::Member(id.into()));
        }
        let id = name.strip_prefix(&self.replicas)?;
        Some(Change::Replica(id.into(), decode(key.value())))
    }

    /// What a key's deletion says.
    pub(super) fn deleted(&self, key: &KeyValue) -> Option<Change> {
        let name = std::str::from_utf8(key.key()).ok()?;
        if let Some(scope) = name.strip_prefix(&self.leases) {
            return Some(Change::Released(scope.into()));
        }
        if let Some(id) = name.strip_prefix(&self.members) {
            return Some(Change::MemberGone(id.into()));
        }
        let id = name.strip_prefix(&self.replicas)?;
        Some(Change::ReplicaGone(id.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_is_what_it_was_and_rubbish_acks_nothing() {
        let ack = Ack {
            revision: 34,
            unsettled: ["a/b".into(), "c".into()].into(),
        };
        let value = encode(&ack).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&value),
            r#"{"ack":34,"unsettled":["a/b","c"]}"#
        );
        assert_eq!(decode(&value), ack);
        assert_eq!(decode(b"{}"), Ack::default());
    }

    #[test]
    fn a_list_too_long_for_one_value_is_no_ack() {
        let name = "n".repeat(512);
        let unsettled = (0..3000).map(|i| format!("{name}{i}").into()).collect();
        let ack = Ack {
            revision: 1,
            unsettled,
        };
        assert_eq!(encode(&ack), None);
    }
}
