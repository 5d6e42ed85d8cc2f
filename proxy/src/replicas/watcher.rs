//! All that etcd says to a replica, in the order of its revisions: everything at one revision, and then each change. One watch
//! over leases, members and replicas, on a connection of its own.
//!
//! The place of the watch is that of its last event. Progress notices say only that it lives.

use super::{
    keys::{Change, Keys},
    version,
};
use crate::authority::{
    connect::{EtcdOptions, Failure, Link, identity, within},
    health::Health,
    trust::{Doubt, Trust},
};
use etcd_client::{EventType, GetOptions, GetResponse, WatchOptions, WatchResponse, WatchStream};
use palisade_fence::{Ack, Token};
use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Asked so often in vain how far it is, a watch is given up.
const SILENCES: u32 = 3;
/// Keys in one answer when all are read.
const PAGE: i64 = 5000;
/// Pauses after failures: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Everything, as of one revision.
#[derive(Debug, Default)]
pub(super) struct All {
    pub(super) revision: u64,
    pub(super) grants: HashMap<Arc<str>, Token>,
    pub(super) members: Vec<Arc<str>>,
    pub(super) replicas: Vec<(Arc<str>, Ack)>,
}

impl All {
    fn add(&mut self, change: Change) {
        match change {
            Change::Granted(scope, token) => drop(self.grants.insert(scope, token)),
            Change::Member(id) => self.members.push(id),
            Change::Replica(id, ack) => self.replicas.push((id, ack)),
            Change::Released(_) | Change::MemberGone(_) | Change::ReplicaGone(_) => {}
        }
    }
}

#[derive(Debug)]
pub(super) enum Heard {
    All(All),
    /// All changes up to this revision.
    Changes(u64, Vec<Change>),
    /// Nothing new.
    Alive,
}

/// The task that reads and watches, for one session.
pub(super) struct Watcher {
    pub(super) etcd: Arc<EtcdOptions>,
    pub(super) trust: Arc<Trust>,
    pub(super) health: Arc<Health>,
    pub(super) keys: Keys,
    /// How often it is asked whether it lives.
    pub(super) every: Duration,
    pub(super) to: mpsc::Sender<Heard>,
}

enum Ended {
    Broken(Doubt),
    /// The history from the watch's place on is gone.
    Compacted,
    /// Nobody listens.
    Unheard,
}

impl<E: Into<Failure>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Broken(Doubt::Failed(error.into()))
    }
}

impl From<Doubt> for Ended {
    fn from(doubt: Doubt) -> Self {
        Self::Broken(doubt)
    }
}

impl Watcher {
    /// Until nobody listens any more, or the store is another one.
    pub(super) async fn run(self) {
        let mut link = Link::new(self.etcd.clone());
        let mut next = None;
        let mut pause = PAUSE.0;
        loop {
            let begun = tokio::time::Instant::now();
            let reason = match self.follow(&mut link, &mut next).await {
                Ok(never) => match never {},
                Err(Ended::Unheard) => return,
                Err(Ended::Broken(Doubt::Changed)) => {
                    self.health.watching(false);
                    return;
                }
                Err(Ended::Compacted) => {
                    next = None;
                    "compacted"
                }
                Err(Ended::Broken(Doubt::Failed(failure))) => {
                    tracing::debug!("the watch on {} ended: {failure}", link.endpoint());
                    link.rotate();
                    "failed"
                }
            };
            self.health.watching(false);
            metrics::counter!("palisade_lease_store_watch_restarts_total", "reason" => reason)
                .increment(1);
            pause = if begun.elapsed() > PAUSE.1 {
                PAUSE.0
            } else {
                (pause * 2).min(PAUSE.1)
            };
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        }
    }

    async fn follow(&self, link: &mut Link, next: &mut Option<i64>) -> Result<Infallible, Ended> {
        version::check(link.client().await?, self.etcd.timeout).await?;
        let from = match *next {
            // After a pause: is it still the same store? A watch on one that went back would just be silent.
            Some(from) => {
                let epoch = self.etcd.epoch().into_bytes();
                self.get(link, epoch, GetOptions::new().with_keys_only(), true)
                    .await?;
                from
            }
            None => self.read_all(link).await? + 1,
        };
        *next = Some(from);
        let mut stream = self.open(link, from).await?;
        let mut silences = 0;
        loop {
            match tokio::time::timeout(self.every, stream.message()).await {
                Ok(message) => {
                    silences = 0;
                    let message =
                        message?.ok_or_else(|| Failure::Other("the stream ended".to_owned()))?;
                    self.heard(&message, next).await?;
                }
                Err(_) if silences == SILENCES => {
                    return Err(Failure::Late(self.every * SILENCES).into());
                }
                Err(_) => {
                    silences += 1;
                    within(self.every, stream.request_progress()).await?;
                }
            }
        }
    }

    async fn open(&self, link: &mut Link, from: i64) -> Result<WatchStream, Ended> {
        let options = WatchOptions::new()
            .with_range(self.keys.end())
            .with_start_revision(from);
        let mut client = link
            .client()
            .await?
            .watch_client()
            .max_decoding_message_size(64 << 20);
        let opened = client.watch(self.keys.leases(), Some(options));
        Ok(within(self.etcd.timeout, opened).await?)
    }

    async fn heard(&self, message: &WatchResponse, next: &mut Option<i64>) -> Result<(), Ended> {
        self.trust.watched(identity(message.header())?)?;
        if message.canceled() {
            return Err(match message.compact_revision() {
                0 => Failure::Other(message.cancel_reason().to_owned()).into(),
                _ => Ended::Compacted,
            });
        }
        self.health.watching(true);
        let mut newest = 0;
        let mut changes = Vec::new();
        for event in message.events() {
            let Some(key) = event.kv() else { continue };
            newest = newest.max(key.mod_revision());
            changes.extend(match event.event_type() {
                EventType::Put => self.keys.put(key),
                EventType::Delete => self.keys.deleted(key),
            });
        }
        if newest == 0 {
            return self.tell(Heard::Alive).await;
        }
        let revision = u64::try_from(newest).unwrap_or(0);
        metrics::gauge!("palisade_lease_store_watch_revision").set(newest as f64);
        self.tell(Heard::Changes(revision, changes)).await?;
        *next = (*next).max(Some(newest + 1));
        Ok(())
    }

    async fn tell(&self, heard: Heard) -> Result<(), Ended> {
        self.to.send(heard).await.map_err(|_| Ended::Unheard)
    }

    /// Reads all keys as of one revision, and gives that.
    async fn read_all(&self, link: &mut Link) -> Result<i64, Ended> {
        let mut all = All::default();
        let leases = (self.keys.leases(), self.keys.members());
        let rest = (self.keys.members(), self.keys.end());
        let at = self.read(link, leases, true, None, &mut all).await?;
        self.read(link, rest, false, Some(at), &mut all).await?;
        all.revision = u64::try_from(at).unwrap_or(0);
        self.tell(Heard::All(all)).await?;
        Ok(at)
    }

    /// Reads one range as of a revision, or as of now, and gives that revision.
    async fn read(
        &self,
        link: &mut Link,
        (mut start, end): (Vec<u8>, Vec<u8>),
        keys_only: bool,
        mut at: Option<i64>,
        all: &mut All,
    ) -> Result<i64, Ended> {
        loop {
            let mut range = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
            if keys_only {
                range = range.with_keys_only();
            }
            if let Some(revision) = at {
                range = range.with_revision(revision);
            }
            let (page, revision) = self.get(link, start, range, at.is_none()).await?;
            let revision = *at.get_or_insert(revision);
            let changes = page.kvs().iter().filter_map(|key| self.keys.put(key));
            changes.for_each(|change| all.add(change));
            match page.kvs().last() {
                Some(last) if page.more() => start = [last.key(), b"\0"].concat(),
                _ => return Ok(revision),
            }
            self.tell(Heard::Alive).await?;
        }
    }

    /// One read, and the store's revision then. `fresh`: it is linearizable and not of an earlier revision.
    async fn get(
        &self,
        link: &mut Link,
        key: Vec<u8>,
        options: GetOptions,
        fresh: bool,
    ) -> Result<(GetResponse, i64), Ended> {
        let client = link.client().await?;
        let sent = self.trust.sending();
        let answer = within(self.etcd.timeout, client.get(key, Some(options))).await;
        let answer = match answer {
            Err(Failure::Etcd(error)) if error.to_string().contains("has been compacted") => {
                return Err(Ended::Compacted);
            }
            answer => answer?,
        };
        let seen = identity(answer.header())?;
        let revision = if fresh {
            self.trust.answered(sent, seen)?
        } else {
            self.trust.watched(seen)?
        };
        Ok((answer, i64::try_from(revision).unwrap_or(i64::MAX)))
    }
}
