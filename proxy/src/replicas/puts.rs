//! What a replica writes to etcd while it takes part: its acks, and the end of members that were waited out.

use super::keys::Keys;
use crate::authority::{
    connect::{EtcdOptions, Failure, Link, identity, within},
    trust::{Doubt, Trust},
};
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use palisade_fence::Ack;
use std::sync::Arc;

/// How a put of the own replica key ended.
pub(super) enum Put {
    /// It is there, as of this revision.
    Done(Ack, i64),
    /// An earlier put, whose answer was lost, has moved the key to this revision.
    Moved(i64),
    /// The key has gone, and the session with it.
    Gone,
    /// Nobody knows.
    Failed,
}

/// For one session.
pub(super) struct Puts {
    pub(super) etcd: Arc<EtcdOptions>,
    pub(super) trust: Arc<Trust>,
    pub(super) keys: Keys,
    pub(super) id: Arc<str>,
    pub(super) lease: i64,
    /// One put at a time.
    pub(super) link: tokio::sync::Mutex<Link>,
}

impl Puts {
    /// Puts an ack over the key as it was at `revision`. An earlier one that comes late changes nothing.
    pub(super) async fn ack(self: Arc<Self>, ack: Ack, value: Vec<u8>, revision: i64) -> Put {
        let mut link = self.link.lock().await;
        match self.try_ack(&mut link, ack, value, revision).await {
            Ok(put) => put,
            Err(doubt) => {
                if let Doubt::Failed(failure) = doubt {
                    tracing::debug!("an ack failed: {}: {failure}", link.endpoint());
                }
                metrics::counter!("palisade_lease_store_errors_total", "op" => "ack").increment(1);
                link.rotate();
                Put::Failed
            }
        }
    }

    async fn try_ack(
        &self,
        link: &mut Link,
        ack: Ack,
        value: Vec<u8>,
        revision: i64,
    ) -> Result<Put, Doubt> {
        let key = self.keys.replica(&self.id);
        let same = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
        let put = PutOptions::new().with_lease(self.lease);
        let look = GetOptions::new().with_keys_only();
        let put = Txn::new()
            .when([same])
            .and_then([TxnOp::put(key.clone(), value, Some(put))])
            .or_else([TxnOp::get(key, Some(look))]);
        let client = link.client().await?;
        let answer = within(self.etcd.timeout, client.txn(put)).await?;
        let seen = identity(answer.header())?;
        self.trust.watched(seen)?;
        if answer.succeeded() {
            return Ok(Put::Done(ack, i64::try_from(seen.revision).unwrap_or(0)));
        }
        let found = answer.op_responses().into_iter().find_map(|op| match op {
            TxnOpResponse::Get(get) => get
                .kvs()
                .first()
                .map(|key| (key.mod_revision(), key.lease())),
            _ => None,
        });
        Ok(match found {
            Some((moved, lease)) if lease == self.lease => Put::Moved(moved),
            _ => Put::Gone,
        })
    }

    /// Deletes the keys of members that have been waited out. Others do the same, which is harmless.
    pub(super) async fn forget(self: Arc<Self>, members: Vec<Arc<str>>) {
        let mut link = self.link.lock().await;
        for id in members {
            let replica = self.keys.replica(&id);
            let gone = Compare::create_revision(replica, CompareOp::Equal, 0);
            let delete = TxnOp::delete(self.keys.member(&id), None);
            let delete = Txn::new().when([gone]).and_then([delete]);
            let deleted = async {
                let client = link.client().await?;
                within(self.etcd.timeout, client.txn(delete)).await
            };
            if let Err::<_, Failure>(failure) = deleted.await {
                tracing::debug!("a member that was waited out stays: {failure}");
                link.rotate();
                return;
            }
        }
    }
}
