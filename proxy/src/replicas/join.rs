//! Joining a group, and leaving it.

use super::{
    Member,
    keys::{MemberRecord, encode},
    session, version,
};
use crate::{
    authority::{
        connect::{Failure, Link, identity, within},
        trust::Doubt,
    },
    gate::Session,
};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use palisade_fence::Ack;
use palisade_lease::clock;
use std::{sync::Arc, time::Duration};

/// A replica whose keys are there and that has read nothing yet.
pub(super) struct Joined {
    /// Fresh at each join: a replica that restarts is another one.
    pub(super) id: Arc<str>,
    pub(super) lease: i64,
    pub(super) session: Arc<Session>,
    /// How long the session lasts from one answered keep-alive on.
    pub(super) lasts: Duration,
    /// The `mod_revision` of its replica key.
    pub(super) revision: i64,
}

impl Member {
    /// Puts both keys in one transaction, under a fresh id and a fresh session.
    pub(super) async fn join(&self, link: &mut Link) -> Result<Joined, Doubt> {
        let client = link.client().await?;
        version::check(client, self.etcd.timeout).await?;
        let ttl = self.options.session_ttl;
        let (lease, sent, lasts) = session::grant(&self.etcd, &self.trust, client, ttl).await?;
        let id: Arc<str> = format!("{:032x}", fastrand::u128(..)).into();
        match self.put_keys(client, &id, lease).await {
            Ok(revision) => Ok(Joined {
                id,
                lease,
                session: Arc::new(Session::until(sent.after(lasts))),
                lasts,
                revision,
            }),
            Err(why) => {
                // Nothing was ever sent under this id: nobody needs to wait for it.
                if let Err(error) = self.delete_keys(client, &id, lease).await {
                    tracing::debug!("the keys of a join that failed stay: {error}");
                }
                Err(why)
            }
        }
    }

    async fn put_keys(&self, client: &mut Client, id: &str, lease: i64) -> Result<i64, Doubt> {
        let record = MemberRecord {
            state_id: &self.options.state_id,
            address: &self.options.address,
            started_at: humantime::format_rfc3339_seconds(clock::wall()).to_string(),
        };
        let member = serde_json::to_vec(&record).map_err(|e| Failure::Other(e.to_string()))?;
        let nothing = encode(&Ack::default()).unwrap_or_default();
        let (member_key, replica_key) = (self.keys.member(id), self.keys.replica(id));
        let absent = Compare::create_revision(member_key.clone(), CompareOp::Equal, 0);
        let put = Txn::new().when([absent]).and_then([
            TxnOp::put(member_key, member, None),
            TxnOp::put(
                replica_key,
                nothing,
                Some(PutOptions::new().with_lease(lease)),
            ),
        ]);
        let answer = within(self.etcd.timeout, client.txn(put)).await?;
        let seen = identity(answer.header())?;
        self.trust.watched(seen)?;
        if answer.succeeded() {
            Ok(i64::try_from(seen.revision).unwrap_or(i64::MAX))
        } else {
            Err(Failure::Other("a member with this id exists".to_owned()).into())
        }
    }

    /// Leaves. Nothing is being sent any more.
    pub(super) async fn leave(&self, joined: Joined) {
        self.place.is_away("it has left");
        joined.session.end();
        let mut link = Link::new(self.etcd.clone());
        let unsettled = self.gate.unsettled();
        let left = async {
            let client = link.client().await?;
            if unsettled.is_empty() {
                self.delete_keys(client, &joined.id, joined.lease).await
            } else {
                // The others see the end of the session, and wait until all of it is settled.
                within(self.etcd.timeout, client.lease_revoke(joined.lease))
                    .await
                    .map(drop)
            }
        };
        match left.await {
            Ok(()) if unsettled.is_empty() => tracing::info!("left the group"),
            Ok(()) => tracing::warn!(
                scopes = unsettled.len(),
                "left the group with unsettled writes: the other replicas wait until they are settled"
            ),
            Err(failure) => tracing::warn!(
                "could not leave the group in order, the other replicas will wait: {failure}"
            ),
        }
    }

    async fn delete_keys(&self, client: &mut Client, id: &str, lease: i64) -> Result<(), Failure> {
        let delete = Txn::new().and_then([
            TxnOp::delete(self.keys.member(id), None),
            TxnOp::delete(self.keys.replica(id), None),
        ]);
        within(self.etcd.timeout, client.txn(delete)).await?;
        within(self.etcd.timeout, client.lease_revoke(lease)).await?;
        Ok(())
    }
}
