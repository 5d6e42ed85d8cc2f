//! The steps of the algorithm as etcd requests: one request each, wherever that can be.

use super::{
    connect::{Endpoints, EtcdOptions, Unanswered},
    identity::Identity,
    keys::{DEFAULT_PREFIX, Keys},
    watch,
};
use crate::{
    LeaseName,
    record::Record,
    store::{
        Call, Change, Claim, Event, LeaseStore, Place, Seen, SessionId, Status, StoreError, Target,
        View,
    },
};
use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, GetResponse, KeyValue, LeaseGrantOptions,
    PutOptions, ResponseHeader, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use palisade_fence::Token;
use std::time::Duration;

/// How many leases one request of `list` reads.
const PAGE: i64 = 500;

/// Leases in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    endpoints: Endpoints,
    keys: Keys,
    identity: Identity,
}

impl EtcdStore {
    /// Connects to nothing yet: each call does, when it must.
    pub fn new(options: EtcdOptions) -> Self {
        Self {
            keys: Keys::new(options.prefix.as_deref().unwrap_or(DEFAULT_PREFIX)),
            endpoints: Endpoints::new(options),
            identity: Identity::default(),
        }
    }

    /// One try on the current endpoint. A failure, or dropping it half-way, moves on to the next endpoint.
    async fn attempt<T, F>(&self, call: impl FnOnce(Client) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let (client, at) = self.endpoints.client().await?;
        let unanswered = Unanswered::new(&self.endpoints, at);
        let result = call(client).await;
        unanswered.answered();
        match result {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.endpoints.failed(at, error).await.error),
        }
    }

    /// A transaction, with the cluster and its revision compared with what is known.
    async fn transact(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        let known = self.identity.highest();
        let answer = self
            .attempt(async |mut client: Client| client.txn(txn).await)
            .await?;
        self.identity.check_linearizable(answer.header(), known)?;
        Ok(answer)
    }

    async fn look_at(
        &self,
        name: &LeaseName,
        session: SessionId,
        ticket: Option<u64>,
    ) -> Result<View, StoreError> {
        let answer = self
            .transact(Txn::new().and_then(self.reads(name, session, ticket)))
            .await?;
        let view = self.view(name, session, &answer);
        match (ticket, view.ticket) {
            // Only now the own place is known, and so who stands before it.
            (None, Some(found)) => {
                let reads = self.reads(name, session, Some(found));
                let answer = self.transact(Txn::new().and_then(reads)).await?;
                Ok(self.view(name, session, &answer))
            }
            _ => Ok(view),
        }
    }

    /// Lease, own place, and who stands right before it.
    fn reads(&self, name: &LeaseName, session: SessionId, ticket: Option<u64>) -> Vec<TxnOp> {
        let mut last = GetOptions::new()
            .with_prefix()
            .with_keys_only()
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_limit(1);
        if let Some(ticket) = ticket {
            last = last.with_max_create_revision(revision(ticket) - 1);
        }
        vec![
            TxnOp::get(self.keys.lease(name), None),
            TxnOp::get(
                self.keys.waiter(name, session),
                Some(GetOptions::new().with_keys_only()),
            ),
            TxnOp::get(self.keys.queue(name), Some(last)),
        ]
    }

    /// What [`Self::reads`] found, or the same after other operations.
    fn view(&self, name: &LeaseName, session: SessionId, answer: &TxnResponse) -> View {
        let own = self.keys.waiter(name, session);
        let mut view = View {
            revision: header_revision(answer.header()),
            holder: None,
            ticket: None,
            ahead: None,
            record: None,
        };
        for kv in answer.op_responses().iter().flat_map(kvs) {
            if kv.key() == self.keys.lease(name).as_bytes() {
                view.holder = seen(kv);
                view.record = Record::from_json(kv.value());
            } else if kv.key() == own.as_bytes() {
                view.ticket = u64::try_from(kv.create_revision()).ok();
            } else if let Some(waiter) = self.keys.waiter_of(name, kv.key()) {
                view.ahead = Some(waiter);
            }
        }
        view
    }

    async fn enqueue_at(
        &self,
        name: &LeaseName,
        session: SessionId,
        record: &Record,
    ) -> Result<View, StoreError> {
        let own = self.keys.waiter(name, session);
        // Within the transaction the new key is the youngest of all, so the second youngest is the one before it.
        let youngest_two = GetOptions::new()
            .with_prefix()
            .with_keys_only()
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_limit(2);
        let txn = Txn::new()
            .when([Compare::create_revision(own.clone(), CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(
                    own,
                    record.to_json(),
                    Some(PutOptions::new().with_lease(session.0)),
                ),
                TxnOp::get(self.keys.lease(name), None),
                TxnOp::get(self.keys.queue(name), Some(youngest_two)),
            ]);
        let answer = self.transact(txn).await?;
        if answer.succeeded() {
            return Ok(self.view(name, session, &answer));
        }
        // An earlier attempt, whose reply was lost, had made the place.
        self.look_at(name, session, None).await
    }

    async fn claim_at(
        &self,
        name: &LeaseName,
        session: SessionId,
        expect: u64,
        place: Place,
        record: &Record,
    ) -> Result<Claim, StoreError> {
        let (lease, own) = (self.keys.lease(name), self.keys.waiter(name, session));
        let mut when = vec![Compare::mod_revision(
            lease.clone(),
            CompareOp::Equal,
            revision(expect),
        )];
        let put = PutOptions::new().with_lease(session.0);
        let mut then = vec![TxnOp::put(lease, record.to_json(), Some(put))];
        match place {
            // Over an empty range this compares with 0; over any key it fails.
            Place::NobodyWaits => {
                when.push(
                    Compare::create_revision(self.keys.queue(name), CompareOp::Equal, 0)
                        .with_prefix(),
                );
            }
            Place::Queued => {
                when.push(Compare::create_revision(own.clone(), CompareOp::Greater, 0));
                then.push(TxnOp::delete(own, None));
            }
            Place::Any => then.push(TxnOp::delete(own, None)),
        }
        let otherwise = self.reads(name, session, None);
        let answer = self
            .transact(Txn::new().when(when).and_then(then).or_else(otherwise))
            .await?;
        if !answer.succeeded() {
            return Ok(Claim::Refused(self.view(name, session, &answer)));
        }
        // The put's own revision is the transaction's, and so the key's `mod_revision`.
        Token::new(header_revision(answer.header()))
            .map(Claim::Won)
            .ok_or_else(|| StoreError::Changed("etcd answered with revision 0".to_owned()))
    }

    async fn status_of(
        &self,
        kv: Option<&KeyValue>,
        name: LeaseName,
    ) -> Result<Status, StoreError> {
        let holder = kv.and_then(seen);
        let remaining = match holder.and_then(|h| h.session) {
            Some(session) => {
                let ttl = self
                    .attempt(async |mut client: Client| {
                        client.lease_time_to_live(session.0, None).await
                    })
                    .await?;
                // -1: it ended between the two reads.
                Some(Duration::from_secs(u64::try_from(ttl.ttl()).unwrap_or(0)))
            }
            None => None,
        };
        Ok(Status {
            name,
            holder,
            record: kv.and_then(|kv| Record::from_json(kv.value())),
            remaining,
            waiters: Vec::new(),
        })
    }

    async fn get(&self, key: String, options: GetOptions) -> Result<GetResponse, StoreError> {
        let known = self.identity.highest();
        let answer = self
            .attempt(async |mut client: Client| client.get(key, Some(options)).await)
            .await?;
        self.identity.check_linearizable(answer.header(), known)?;
        Ok(answer)
    }

    async fn list_from(&self, prefix: &str) -> Result<Vec<Status>, StoreError> {
        let all = self.keys.leases(prefix);
        // The end of a prefix's range is the prefix with its last byte one higher; ours end in ASCII or UTF-8, never 0xff.
        let mut end = all.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let mut from = all.into_bytes();
        let mut found = Vec::new();
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
            let known = self.identity.highest();
            let start = from.clone();
            let page = self
                .attempt(async |mut client: Client| client.get(start, Some(options)).await)
                .await?;
            self.identity.check_linearizable(page.header(), known)?;
            for kv in page.kvs() {
                if let Some(name) = self.keys.name_of(kv.key()) {
                    found.push(self.status_of(Some(kv), name).await?);
                }
            }
            match page.kvs().last() {
                Some(last) if page.more() => {
                    from = last.key().to_vec();
                    from.push(0);
                }
                _ => return Ok(found),
            }
        }
    }
}

impl LeaseStore for EtcdStore {
    fn open(&self, session: SessionId, ttl: Duration) -> Call<'_, Duration> {
        Box::pin(async move {
            // etcd counts in whole seconds, and raises what is below its minimum.
            let seconds = i64::try_from(ttl.as_millis().div_ceil(1000))
                .unwrap_or(i64::MAX)
                .max(1);
            let options = LeaseGrantOptions::new().with_id(session.0);
            let answer = self
                .attempt(async |mut client: Client| {
                    client.lease_grant(seconds, Some(options)).await
                })
                .await?;
            self.identity.check_cluster(answer.header())?;
            Ok(Duration::from_secs(
                u64::try_from(answer.ttl()).unwrap_or(0),
            ))
        })
    }

    fn keep_alive(&self, session: SessionId) -> Call<'_, ()> {
        Box::pin(async move {
            // A stream of one request and one answer: as cheap as a plain call, and there is nothing to reconnect. The
            // answer is in hand when this returns; a time to live of 0 has become an error.
            self.attempt(async |mut client: Client| client.lease_keep_alive(session.0).await)
                .await
                .map(drop)
        })
    }

    fn close(&self, session: SessionId) -> Call<'_, ()> {
        Box::pin(async move {
            let revoked = self
                .attempt(async |mut client: Client| client.lease_revoke(session.0).await)
                .await;
            match revoked {
                Ok(_) | Err(StoreError::SessionGone) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn claim<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        expect: u64,
        place: Place,
        record: &'a Record,
    ) -> Call<'a, Claim> {
        Box::pin(self.claim_at(name, session, expect, place, record))
    }

    fn enqueue<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        record: &'a Record,
    ) -> Call<'a, View> {
        Box::pin(self.enqueue_at(name, session, record))
    }

    fn look<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        ticket: Option<u64>,
    ) -> Call<'a, View> {
        Box::pin(self.look_at(name, session, ticket))
    }

    fn changed<'a>(
        &'a self,
        name: &'a LeaseName,
        target: Target,
        place: Option<SessionId>,
        after: u64,
    ) -> Call<'a, Change> {
        Box::pin(async move {
            let key = match target {
                Target::Lease => self.keys.lease(name),
                Target::Waiter(session) => self.keys.waiter(name, session),
            };
            let place = place.map(|session| self.keys.waiter(name, session));
            watch::first_change(
                &self.endpoints,
                &self.identity,
                &key,
                place.as_deref(),
                revision(after),
            )
            .await
        })
    }

    fn release<'a>(&'a self, name: &'a LeaseName, token: Token) -> Call<'a, bool> {
        Box::pin(async move {
            let lease = self.keys.lease(name);
            let txn = Txn::new()
                .when([Compare::mod_revision(
                    lease.clone(),
                    CompareOp::Equal,
                    token.revision(),
                )])
                .and_then([TxnOp::delete(lease, None)]);
            Ok(self.transact(txn).await?.succeeded())
        })
    }

    fn status<'a>(&'a self, name: &'a LeaseName) -> Call<'a, Status> {
        Box::pin(async move {
            let lease = self.get(self.keys.lease(name), GetOptions::new()).await?;
            let mut status = self.status_of(lease.kvs().first(), name.clone()).await?;
            let in_order = GetOptions::new()
                .with_prefix()
                .with_sort(SortTarget::Create, SortOrder::Ascend);
            let queue = self.get(self.keys.queue(name), in_order).await?;
            status.waiters = queue
                .kvs()
                .iter()
                .map(|kv| Record::from_json(kv.value()).unwrap_or_default())
                .collect();
            Ok(status)
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Call<'a, Vec<Status>> {
        Box::pin(self.list_from(prefix))
    }

    fn next_event<'a>(&'a self, name: &'a LeaseName, after: u64) -> Call<'a, (Event, u64)> {
        Box::pin(async move {
            watch::next_event(
                &self.endpoints,
                &self.identity,
                &self.keys.lease(name),
                revision(after),
            )
            .await
        })
    }
}

fn kvs(response: &TxnOpResponse) -> &[KeyValue] {
    match response {
        TxnOpResponse::Get(get) => get.kvs(),
        _ => &[],
    }
}

fn seen(kv: &KeyValue) -> Option<Seen> {
    Some(Seen {
        token: Token::from_revision(kv.mod_revision())?,
        session: (kv.lease() != 0).then(|| SessionId(kv.lease())),
    })
}

fn header_revision(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, |h| u64::try_from(h.revision()).unwrap_or(0))
}

/// Revisions are signed in etcd's interface; ours came from there or from a token, which is below 2^63.
fn revision(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
