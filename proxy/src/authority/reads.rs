//! Linearizable reads of lease keys: one transaction at a time, of up to 128 keys, at once when idle and paced under
//! load.

use super::{
    ReadDone, Reading, Unreadable,
    connect::{EtcdOptions, Failure, Link, identity},
    health::Health,
    members::Member,
    trust::{Doubt, Sent, Trust},
};
use etcd_client::{GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use palisade_fence::Token;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

/// etcd takes 128 operations in a transaction unless it is told otherwise (`--max-txn-ops`), and one is ours.
const MOST_KEYS: usize = 127;
/// The longest lease name; what is longer names no key, and must not blow up the transaction for the others.
const LONGEST_NAME: usize = 512;
/// Pauses after failures: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Whom to tell. Told of [`Unreadable::Unavailable`] when dropped, so that nobody waits for ever, whatever ends the task.
pub(super) struct Reply(Option<ReadDone>);

impl Reply {
    pub(super) fn new(done: ReadDone) -> Self {
        Self(Some(done))
    }

    pub(super) fn send(mut self, answer: Result<Reading, Unreadable>) {
        if let Some(done) = self.0.take() {
            done(answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(Unreadable::Unavailable));
        }
    }
}

/// A question.
pub(super) struct Ask {
    pub(super) scope: Arc<str>,
    pub(super) reply: Reply,
}

/// Questions that no transaction has taken yet, in the order in which their scopes came.
#[derive(Default)]
struct Waiting {
    order: VecDeque<(Instant, Arc<str>)>,
    replies: HashMap<Arc<str>, Vec<Reply>>,
}

impl Waiting {
    fn push(&mut self, ask: Ask) {
        let same = self.replies.entry(ask.scope.clone()).or_default();
        if same.is_empty() {
            self.order.push_back((Instant::now(), ask.scope));
        }
        same.push(ask.reply);
    }

    fn take(&mut self, most: usize) -> Batch {
        let taken = self.order.drain(..most.min(self.order.len()));
        let scopes: Vec<_> = taken.map(|(_, scope)| scope).collect();
        let replies = scopes
            .iter()
            .map(|scope| self.replies.remove(scope).unwrap_or_default())
            .collect();
        Batch { scopes, replies }
    }

    /// Those that have waited for longer than this.
    fn overdue(&mut self, limit: Duration) -> Batch {
        let overdue = self
            .order
            .iter()
            .take_while(|(since, _)| since.elapsed() > limit)
            .count();
        self.take(overdue)
    }
}

/// The questions of one transaction, by scope.
struct Batch {
    scopes: Vec<Arc<str>>,
    replies: Vec<Vec<Reply>>,
}

impl Batch {
    fn answer(self, answer: &Answer) {
        for (scope, replies) in self.scopes.iter().zip(self.replies) {
            let grant = answer.grants.get(scope).copied();
            let reading = Reading {
                grant,
                revision: answer.revision,
            };
            replies
                .into_iter()
                .for_each(|reply| reply.send(Ok(reading)));
        }
    }

    fn refuse(self, why: Unreadable) {
        self.replies
            .into_iter()
            .flatten()
            .for_each(|reply| reply.send(Err(why)));
    }
}

/// The task that asks.
pub(super) struct Reads {
    pub(super) asks: mpsc::UnboundedReceiver<Ask>,
    pub(super) options: Arc<EtcdOptions>,
    pub(super) trust: Arc<Trust>,
    pub(super) health: Arc<Health>,
    pub(super) member: Option<Arc<Member>>,
    pub(super) stop: CancellationToken,
}

impl Reads {
    /// Reads until stopped.
    pub(super) async fn run(mut self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.read() => {}
        }
    }

    async fn read(&mut self) {
        let mut waiting = Waiting::default();
        let mut link = Link::new(self.options.clone());
        let mut pause = PAUSE.0;
        // The first transaction checks the identity, whether anybody asks or not.
        let mut check = Instant::now();
        let mut earliest = Instant::now();
        loop {
            if waiting.order.is_empty() {
                tokio::select! {
                    ask = self.asks.recv() => match ask {
                        Some(ask) => waiting.push(ask),
                        None => return,
                    },
                    () = tokio::time::sleep_until(check) => {}
                }
            }
            tokio::time::sleep_until(earliest).await;
            while let Ok(ask) = self.asks.try_recv() {
                waiting.push(ask);
            }
            waiting
                .overdue(self.options.timeout)
                .refuse(Unreadable::Unavailable);
            let begun = Instant::now();
            let batch = waiting.take(MOST_KEYS);
            match self.exchange(&mut link, &batch.scopes).await {
                Ok(answer) => {
                    self.health.up();
                    pause = PAUSE.0;
                    earliest = begun + self.options.read_interval;
                    check = begun + self.options.check_interval;
                    batch.answer(&answer);
                }
                Err(why) => {
                    batch.refuse(why);
                    // Whoever came meanwhile would wait for as long again.
                    while let Ok(ask) = self.asks.try_recv() {
                        waiting.push(ask);
                    }
                    waiting.take(usize::MAX).refuse(why);
                    earliest = Instant::now() + pause;
                    check = earliest;
                    if why == Unreadable::Changed {
                        check += self.options.check_interval;
                    }
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    /// One transaction; a read may be sent again, to another endpoint, as long as there is time.
    async fn exchange(&self, link: &mut Link, scopes: &[Arc<str>]) -> Result<Answer, Unreadable> {
        let endpoints = self.options.endpoints.len().max(1);
        let deadline = Instant::now() + self.options.timeout;
        let mut last = None;
        for attempt in 0..endpoints.max(2) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // A member that does not answer must leave time to ask the others.
            let limit = left / u32::try_from(endpoints.saturating_sub(attempt).max(1)).unwrap_or(1);
            match self.attempt(link, scopes, limit).await {
                Ok(answer) => return Ok(answer),
                Err(Doubt::Changed) => return Err(Unreadable::Changed),
                Err(Doubt::Failed(failure)) => {
                    metrics::counter!("palisade_lease_store_errors_total", "op" => "read")
                        .increment(1);
                    last = Some(format!("{}: {failure}", link.endpoint()));
                    link.rotate();
                }
            }
        }
        self.health.down(last.as_deref().unwrap_or("no time left"));
        Err(Unreadable::Unavailable)
    }

    async fn attempt(
        &self,
        link: &mut Link,
        scopes: &[Arc<str>],
        limit: Duration,
    ) -> Result<Answer, Doubt> {
        let begun = Instant::now();
        let called = tokio::time::timeout(limit, self.call(link, scopes)).await;
        let (sent, answer) = called.unwrap_or(Err(Doubt::Failed(Failure::Late(limit))))?;
        metrics::histogram!("palisade_lease_store_duration_seconds", "op" => "read")
            .record(begun.elapsed().as_secs_f64());
        let revision = self.trust.answered(sent, identity(answer.header())?)?;
        let (grants, own) = grants(scopes, &answer);
        match &self.member {
            Some(member) if !own => Err(Doubt::Failed(member.missed())),
            _ => Ok(Answer { revision, grants }),
        }
    }

    async fn call(
        &self,
        link: &mut Link,
        scopes: &[Arc<str>],
    ) -> Result<(Sent, TxnResponse), Doubt> {
        let client = link.client().await.map_err(Doubt::Failed)?;
        let own = match &self.member {
            Some(member) => {
                member.join(client, &self.trust).await?;
                member.key()
            }
            None => self.options.epoch(),
        };
        let transaction = transaction(&self.options, scopes, own);
        // Right before the send: nothing that is learned later may make this answer look like the past.
        let sent = self.trust.sending();
        match client.txn(transaction).await {
            Ok(answer) => Ok((sent, answer)),
            Err(error) => Err(Doubt::Failed(error.into())),
        }
    }
}

/// The store's revision, and the grants of the scopes that have one.
struct Answer {
    revision: u64,
    grants: HashMap<Arc<str>, Token>,
}

/// The scopes that can be a lease's name.
fn names(scopes: &[Arc<str>]) -> impl Iterator<Item = &Arc<str>> {
    scopes.iter().filter(|scope| scope.len() <= LONGEST_NAME)
}

/// The last operation is for a key of ours: it says that the store is there, and that we are registered.
fn transaction(options: &EtcdOptions, scopes: &[Arc<str>], own: String) -> Txn {
    let leases = options.leases();
    let keys = names(scopes)
        .map(|name| format!("{leases}{name}"))
        .chain([own]);
    let get = |key: String| TxnOp::get(key, Some(GetOptions::new().with_keys_only()));
    Txn::new().and_then(keys.map(get).collect::<Vec<_>>())
}

/// The grants, and whether the key of ours is there. A key that is attached to no etcd lease is nobody's grant. Answers
/// come in the order of the operations.
fn grants(scopes: &[Arc<str>], answer: &TxnResponse) -> (HashMap<Arc<str>, Token>, bool) {
    let mut keys: Vec<Option<KeyValue>> = answer
        .op_responses()
        .into_iter()
        .map(|answer| match answer {
            TxnOpResponse::Get(get) => get.kvs().first().cloned(),
            _ => None,
        })
        .collect();
    let own = keys.pop().flatten().is_some();
    let grant =
        |key: KeyValue| Token::from_revision(key.mod_revision()).filter(|_| key.lease() != 0);
    let granted = names(scopes)
        .zip(keys)
        .filter_map(|(name, key)| Some((name.clone(), grant(key?)?)));
    (granted.collect(), own)
}
