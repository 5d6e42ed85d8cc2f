//! A replica's session: an etcd lease that is kept alive, and the moment until which anything may be sent.

use crate::{
    authority::{
        connect::{EtcdOptions, Failure, Link, identity, within},
        trust::{Doubt, Trust},
    },
    gate::Session,
};
use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper};
use palisade_fence::Time;
use palisade_lease::clock::boot;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A leader that has been replaced may answer keep-alives until it notices, within an election timeout, and the new one
/// counts from its election on: two of etcd's default election timeouts.
const ELECTIONS: Duration = Duration::from_secs(2);
/// One part in this many, for clocks that do not run at quite the same rate.
const DRIFT: u32 = 50;
/// Keep-alives within the time that one lasts.
const PER_SESSION: u32 = 4;

/// How long a session lasts from the moment at which the last answered keep-alive was sent.
pub(super) fn lasts(asked: Duration, granted: Duration) -> Duration {
    let ttl = asked.min(granted);
    ttl.saturating_sub(ELECTIONS + ttl / DRIFT)
}

/// Whether this replica is fit to keep its place: its watch progresses and its disk syncs.
#[derive(Debug)]
pub(super) struct Fitness {
    heard: AtomicU64,
    stuck: AtomicBool,
}

impl Fitness {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            heard: AtomicU64::new(boot().as_nanos()),
            stuck: AtomicBool::new(false),
        })
    }

    /// The watch has said something, and it was taken in.
    pub(super) fn heard(&self) {
        self.heard.store(boot().as_nanos(), Relaxed);
    }

    /// Whether a floor has not come to the disk for too long.
    pub(super) fn stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Relaxed);
    }

    fn unfit(&self, limit: Duration) -> Option<&'static str> {
        let heard = Time::from_nanos(self.heard.load(Relaxed));
        if self.stuck.load(Relaxed) {
            Some("its disk does not take floors")
        } else {
            (boot().since(heard) > limit).then_some("its watch does not progress")
        }
    }
}

/// Keeps one session alive.
pub(super) struct Keeper {
    pub(super) etcd: Arc<EtcdOptions>,
    pub(super) trust: Arc<Trust>,
    pub(super) session: Arc<Session>,
    pub(super) fitness: Arc<Fitness>,
    pub(super) lease: i64,
    pub(super) lasts: Duration,
}

type Stream = (LeaseKeeper, LeaseKeepAliveStream);

impl Keeper {
    /// Until the session is over.
    pub(super) async fn run(self) {
        let every = self.lasts / PER_SESSION;
        let mut link = Link::new(self.etcd.clone());
        let mut stream = None;
        let mut told = false;
        while !self.session.is_over() {
            let pause = match self.fitness.unfit(self.lasts / 2) {
                Some(why) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!("this replica lets its session end: {why}");
                    }
                    every / 4
                }
                None => match self.once(&mut link, &mut stream, every).await {
                    Ok(Some(sent)) => {
                        told = false;
                        self.session.extend(sent.after(self.lasts));
                        every
                    }
                    Ok(None) => {
                        tracing::warn!("this replica's session has ended in etcd");
                        return self.session.end();
                    }
                    Err(Doubt::Changed) => return self.session.end(),
                    Err(Doubt::Failed(failure)) => {
                        tracing::debug!("a keep-alive failed: {}: {failure}", link.endpoint());
                        metrics::counter!("palisade_lease_store_errors_total", "op" => "keep-alive")
                            .increment(1);
                        stream = None;
                        link.rotate();
                        every / 8
                    }
                },
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.session.over() => {}
            }
        }
        self.session.end();
    }

    /// One keep-alive: when it was sent, or `None` if there is no such lease any more.
    async fn once(
        &self,
        link: &mut Link,
        stream: &mut Option<Stream>,
        limit: Duration,
    ) -> Result<Option<Time>, Doubt> {
        let client = link.client().await?;
        let limit = limit.min(self.etcd.timeout);
        if stream.is_none() {
            match within(limit, client.lease_keep_alive(self.lease)).await {
                Ok(opened) => *stream = Some(opened),
                // The client's word for a time to live of 0.
                Err(Failure::Etcd(etcd_client::Error::LeaseKeepAliveError(_))) => return Ok(None),
                Err(failure) => return Err(failure.into()),
            }
        }
        let Some((keeper, answers)) = stream else {
            return Ok(None);
        };
        // The first answer came without its header; only one whose cluster is known counts.
        let sent = boot();
        let answer = within(limit, async {
            keeper.keep_alive().await?;
            answers.message().await
        });
        let answer = answer
            .await?
            .ok_or_else(|| Failure::Other("the stream ended".to_owned()))?;
        self.trust.watched(identity(answer.header())?)?;
        Ok((answer.ttl() > 0).then_some(sent))
    }
}

/// Grants the lease of a new session: its id, and how long the session lasts. `sent`: from when on.
pub(super) async fn grant(
    etcd: &EtcdOptions,
    trust: &Trust,
    client: &mut Client,
    ttl: Duration,
) -> Result<(i64, Time, Duration), Doubt> {
    let sent = boot();
    let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
    let answer = within(etcd.timeout, client.lease_grant(seconds, None)).await?;
    trust.watched(identity(answer.header())?)?;
    let granted = Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0));
    Ok((answer.id(), sent, lasts(ttl, granted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_before_its_lease_by_two_elections_and_the_drift() {
        let seconds = Duration::from_secs;
        assert_eq!(
            lasts(seconds(15), seconds(15)),
            Duration::from_millis(12_700)
        );
        assert_eq!(lasts(seconds(15), seconds(5)), Duration::from_millis(2900));
        assert_eq!(lasts(seconds(1), seconds(15)), Duration::ZERO);
    }
}
