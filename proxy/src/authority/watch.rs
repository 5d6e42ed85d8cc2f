//! The watch over all lease keys. It has a connection of its own: on a shared one, large reads starve it
//! (etcd-io/etcd#15402).
//!
//! The watch goes on where it broke off. Its place is that of the last event, not of the last progress notice: those of
//! older servers can run ahead of events (etcd-io/etcd#15220). Where history is gone, all keys are read again.

use super::{
    Reports,
    connect::{EtcdOptions, Failure, Link, identity, within},
    health::Health,
    trust::{Doubt, Trust},
};
use etcd_client::{
    EventType, GetOptions, GetResponse, KeyValue, WatchFilterType, WatchOptions, WatchResponse,
    WatchStream,
};
use palisade_fence::Token;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// A watch that has said nothing for this long is asked how far it is; asked this often in vain, it is given up.
const SILENCE: Duration = Duration::from_secs(3);
const SILENCES: u32 = 3;
/// Keys in one answer when all are read.
const PAGE: i64 = 5000;
/// Pauses after failures: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The task that watches.
pub(super) struct Watch {
    pub(super) options: Arc<EtcdOptions>,
    pub(super) trust: Arc<Trust>,
    pub(super) reports: Arc<dyn Reports>,
    pub(super) health: Arc<Health>,
    pub(super) stop: CancellationToken,
}

/// Why a watch ended.
enum Ended {
    /// Nothing is wrong with the place; open it again there.
    Broken(Doubt),
    /// The history from that place on is gone.
    Compacted,
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

impl Watch {
    /// Watches until stopped.
    pub(super) async fn run(self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.watch() => {}
        }
        self.health.watching(false);
    }

    async fn watch(&self) {
        let mut link = Link::new(self.options.clone());
        let mut next = None;
        let mut pause = PAUSE.0;
        loop {
            self.trust.trusted().await;
            let begun = tokio::time::Instant::now();
            let ended = self.follow(&mut link, &mut next).await;
            self.health.watching(false);
            let reason = match ended {
                Ended::Compacted => {
                    next = None;
                    "compacted"
                }
                Ended::Broken(Doubt::Changed) => {
                    next = None;
                    "changed"
                }
                Ended::Broken(Doubt::Failed(failure)) => {
                    tracing::debug!("the watch on {} ended: {failure}", link.endpoint());
                    link.rotate();
                    "failed"
                }
            };
            metrics::counter!("palisade_lease_store_watch_restarts_total", "reason" => reason)
                .increment(1);
            // One that had lasted was no failure to connect.
            pause = if begun.elapsed() > PAUSE.1 {
                PAUSE.0
            } else {
                (pause * 2).min(PAUSE.1)
            };
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        }
    }

    /// Watches from a place, or reads all keys first where there is none, until something ends it.
    async fn follow(&self, link: &mut Link, next: &mut Option<i64>) -> Ended {
        match self.try_follow(link, next).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn try_follow(
        &self,
        link: &mut Link,
        next: &mut Option<i64>,
    ) -> Result<std::convert::Infallible, Ended> {
        let from = match *next {
            Some(from) => {
                // After a pause: is it still the same store? A watch on one that went back would just be silent.
                self.get(
                    link,
                    self.options.epoch().into_bytes(),
                    GetOptions::new().with_keys_only(),
                )
                .await?;
                from
            }
            None => self.read_all(link).await? + 1,
        };
        *next = Some(from);
        let mut stream = self.open(link, from).await?;
        let mut silences = 0;
        loop {
            match tokio::time::timeout(SILENCE, stream.message()).await {
                Ok(message) => {
                    silences = 0;
                    // `None` is the end, for good: asking again gives `None` at once, for ever.
                    let message =
                        message?.ok_or_else(|| Failure::Other("the stream ended".to_owned()))?;
                    self.heard(&message, next)?;
                }
                Err(_) if silences == SILENCES => {
                    return Err(Failure::Late(SILENCE * SILENCES).into());
                }
                Err(_) => {
                    silences += 1;
                    within(SILENCE, stream.request_progress()).await?;
                }
            }
        }
    }

    async fn open(&self, link: &mut Link, from: i64) -> Result<WatchStream, Ended> {
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(from)
            .with_filters([WatchFilterType::NoDelete]);
        let mut client = link
            .client()
            .await?
            .watch_client()
            .max_decoding_message_size(64 << 20);
        Ok(within(
            self.options.timeout,
            client.watch(self.options.leases(), Some(options)),
        )
        .await?)
    }

    fn heard(&self, message: &WatchResponse, next: &mut Option<i64>) -> Result<(), Ended> {
        let revision = self.trust.watched(identity(message.header())?)?;
        if message.canceled() {
            return Err(match message.compact_revision() {
                0 => Failure::Other(message.cancel_reason().to_owned()).into(),
                _ => Ended::Compacted,
            });
        }
        self.health.watching(true);
        metrics::gauge!("palisade_lease_store_watch_revision").set(revision as f64);
        for event in message.events() {
            let Some(key) = event.kv() else { continue };
            if event.event_type() == EventType::Put {
                self.report(key);
            }
            *next = (*next).max(Some(key.mod_revision() + 1));
        }
        Ok(())
    }

    /// Reads all lease keys as of one revision, reports their grants, and gives that revision.
    async fn read_all(&self, link: &mut Link) -> Result<i64, Ended> {
        let mut start = self.options.leases().into_bytes();
        let end = end_of_prefix(&start);
        let mut at = None;
        loop {
            let range = GetOptions::new()
                .with_range(end.clone())
                .with_limit(PAGE)
                .with_keys_only();
            let range = at.map_or(range.clone(), |revision| range.with_revision(revision));
            let (page, revision) = self.get(link, start, range).await?;
            let at = *at.get_or_insert(revision);
            page.kvs().iter().for_each(|key| self.report(key));
            match page.kvs().last() {
                Some(last) if page.more() => start = [last.key(), b"\0"].concat(),
                _ => return Ok(at),
            }
            tokio::task::yield_now().await;
        }
    }

    /// One linearizable read, and its revision once that counts.
    async fn get(
        &self,
        link: &mut Link,
        key: Vec<u8>,
        options: GetOptions,
    ) -> Result<(GetResponse, i64), Ended> {
        let client = link.client().await?;
        let sent = self.trust.sending();
        let answer = within(self.options.timeout, client.get(key, Some(options))).await?;
        let revision = self.trust.answered(sent, identity(answer.header())?)?;
        Ok((answer, revision as i64))
    }

    fn report(&self, key: &KeyValue) {
        let leases = self.options.leases();
        let scope = key
            .key()
            .strip_prefix(leases.as_bytes())
            .and_then(|name| std::str::from_utf8(name).ok());
        let token = Token::from_revision(key.mod_revision()).filter(|_| key.lease() != 0);
        if let (Some(scope), Some(token)) = (scope, token) {
            self.reports.granted(scope, token);
        }
    }
}

/// The first key after all keys with this prefix. Ours ends in a slash.
fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
