//! The member key of a single proxy: `members/<name>/<state id>`, on no etcd lease. It finds a state folder that was
//! lost or put back from an old copy, and a second proxy of the same name.

use super::{
    connect::{EtcdOptions, Failure, identity},
    trust::{Doubt, Trust},
};
use crate::state::State;
use etcd_client::{Client, Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, Txn, TxnOp};
use palisade_lease::clock;
use serde::{Deserialize, Serialize};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// What a single proxy registers.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The proxy's name among the proxies of one lease store, without a slash.
    pub name: String,
    /// Where it listens, for people.
    pub address: String,
}

/// The key's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    state_id: String,
    address: String,
    /// For people.
    started_at: String,
    /// The run of that state folder; an older copy of the folder has an older one.
    run: u64,
    /// Fresh at each start: tells this process from another one with a copy of the folder.
    start: String,
}

/// This proxy's registration.
pub(super) struct Member {
    registration: Registration,
    folder: String,
    state: Arc<State>,
    started_at: String,
    start: String,
    joined: AtomicBool,
}

impl Member {
    pub(super) fn new(
        options: &EtcdOptions,
        registration: Registration,
        state: Arc<State>,
    ) -> Self {
        Self {
            folder: format!("{}members/{}/", options.prefix, registration.name),
            registration,
            state,
            started_at: humantime::format_rfc3339_seconds(clock::wall()).to_string(),
            start: format!("{:032x}", fastrand::u128(..)),
            joined: AtomicBool::new(false),
        }
    }

    /// Our own key.
    pub(super) fn key(&self) -> String {
        format!("{}{}", self.folder, self.state.id())
    }

    /// Our key was not there: it has to be looked at again before anything that the store says counts.
    pub(super) fn missed(&self) -> Failure {
        self.joined.store(false, Ordering::Release);
        Failure::Other(format!("the member key {} is gone", self.key()))
    }

    /// Registers, unless that was done. Ends the trust in the store when someone else is registered: only an operator
    /// knows whether the other one is gone.
    pub(super) async fn join(&self, client: &mut Client, trust: &Trust) -> Result<(), Doubt> {
        if self.joined.load(Ordering::Acquire) {
            return Ok(());
        }
        let sent = trust.sending();
        let range = GetOptions::new().with_prefix();
        let answer = client
            .get(self.folder.clone(), Some(range))
            .await
            .map_err(failed)?;
        trust.answered(sent, identity(answer.header())?)?;
        let seen = match answer.kvs() {
            [] => Compare::create_revision(self.folder.clone(), CompareOp::Equal, 0).with_prefix(),
            keys => match keys.iter().find_map(|key| self.conflict(key)) {
                Some(conflict) => return Err(trust.freeze(&conflict)),
                None => Compare::mod_revision(self.key(), CompareOp::Equal, keys[0].mod_revision()),
            },
        };
        let put = Txn::new().when([seen]).and_then([self.put()?]);
        match client.txn(put).await {
            Ok(answer) if answer.succeeded() => {}
            Ok(_) => {
                let changed = "another proxy registered at the same moment".to_owned();
                return Err(Doubt::Failed(Failure::Other(changed)));
            }
            // Without room etcd still answers reads. Our key is there; only its run is that of an earlier start.
            Err(error) if is_full(&error) && !answer.kvs().is_empty() => {
                tracing::warn!("the member key could not be renewed: {error}");
            }
            Err(error) => return Err(failed(error)),
        }
        self.joined.store(true, Ordering::Release);
        Ok(())
    }

    /// What stands against this key being ours, if anything does.
    fn conflict(&self, key: &KeyValue) -> Option<String> {
        let (name, own) = (&self.registration.name, self.state.id());
        let Ok(record) = serde_json::from_slice::<Record>(key.value()) else {
            let key = String::from_utf8_lossy(key.key());
            return Some(format!(
                "the member key {key} can't be read: was it written by another version?"
            ));
        };
        if *record.state_id != **own {
            let (other, at, since) = (record.state_id, record.address, record.started_at);
            return Some(format!(
                "as {name:?} the proxy with the state {other} is registered (at {at}, since {since}), and this one has \
                 the state {own}. Either that state folder was lost, or a second proxy of this name runs"
            ));
        }
        let run = self.state.run().get();
        (record.start != self.start && record.run >= run).then(|| {
            format!(
                "the state folder {} is an older copy: its run {} is registered, and this is run {run}",
                self.state.folder().display(),
                record.run
            )
        })
    }

    fn put(&self) -> Result<TxnOp, Doubt> {
        let record = Record {
            state_id: self.state.id().to_string(),
            address: self.registration.address.clone(),
            started_at: self.started_at.clone(),
            run: self.state.run().get(),
            start: self.start.clone(),
        };
        let value = serde_json::to_vec(&record)
            .map_err(|error| Doubt::Failed(Failure::Other(error.to_string())))?;
        Ok(TxnOp::put(self.key(), value, None))
    }

    /// Takes the place of whoever is registered, on an operator's word.
    pub(super) async fn take_over(&self, client: &mut Client) -> Result<(), Doubt> {
        // Around our own key: etcd refuses two changes of one key in a transaction.
        let (own, after) = (self.key(), format!("{}\0", self.key()));
        let mut end = self.folder.clone().into_bytes();
        end.pop();
        end.push(b'/' + 1);
        let before = TxnOp::delete(
            self.folder.clone(),
            Some(DeleteOptions::new().with_range(own)),
        );
        let after = TxnOp::delete(after, Some(DeleteOptions::new().with_range(end)));
        client
            .txn(Txn::new().and_then([before, after, self.put()?]))
            .await
            .map_err(failed)?;
        self.joined.store(true, Ordering::Release);
        Ok(())
    }
}

fn failed(error: etcd_client::Error) -> Doubt {
    Doubt::Failed(error.into())
}

/// etcd's "no space" alarm (`rpctypes.ErrNoSpace`).
fn is_full(error: &etcd_client::Error) -> bool {
    error.to_string().contains("database space exceeded")
}
