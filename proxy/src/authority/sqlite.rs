//! A lease file on this host as the lease store: read by a thread of its own, since reading a file blocks.

use super::{
    Authority, ReadDone, Reading, Reports, SQLITE_CLUSTER, Unreadable,
    connect::Failure,
    epoch::{self, EpochBegun, EpochError},
    health::Health,
    reads::{Ask, Reply},
    trust::{Doubt, Trust},
};
use crate::{
    authority::StoreHealth,
    state::{Identity, NewEpoch, State},
};
use palisade_fence::Token;
use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
};

/// Reads a lease's current grant from the file, and the file's revision, in one transaction; or says why it can't.
/// A row that has run out, or is of another boot, is no grant. Blocks for a bounded time.
pub type ReadGrant = Box<dyn FnMut(&str) -> Result<(Option<Token>, u64), String> + Send>;

/// Asks a lease file who holds a lease.
///
/// It has no watch: a newer grant closes its scope with its first request.
pub struct SqliteAuthority {
    asks: Mutex<Option<mpsc::Sender<Ask>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    state: Arc<State>,
    trust: Arc<Trust>,
    health: Arc<Health>,
}

impl SqliteAuthority {
    /// Starts to answer. Like etcd, the file is compared with what is remembered of it: a revision that went back means
    /// that it was replaced.
    pub fn start(
        read: ReadGrant,
        state: Arc<State>,
        reports: Arc<dyn Reports>,
    ) -> io::Result<Arc<Self>> {
        let (asks, queue) = mpsc::channel();
        let (trust, health) = (
            Arc::new(Trust::new(state.clone())),
            Arc::new(Health::default()),
        );
        trust.report_to(reports);
        let (to_ask, to_tell) = (trust.clone(), health.clone());
        let answer = move || answer_all(read, &queue, &to_ask, &to_tell);
        let thread = std::thread::Builder::new()
            .name("leases".to_owned())
            .spawn(answer)?;
        Ok(Arc::new(Self {
            asks: Mutex::new(Some(asks)),
            thread: Mutex::new(Some(thread)),
            state,
            trust,
            health,
        }))
    }

    /// How the file is doing. It is not looked at before the first question.
    pub fn health(&self) -> StoreHealth {
        let failure = self.health.failure();
        StoreHealth {
            up: failure.is_none(),
            watching: false,
            failure,
            changed: self.trust.frozen(),
        }
    }

    /// An operator's `palisade new-epoch`: the file that is there now counts from here on, however it came to be there.
    /// `push` moves its revision past the one that it is given, and says where that is; it costs the file nothing, however far
    /// that is. Closes every scope below that, and ends the freeze.
    pub async fn new_epoch(
        &self,
        push: impl FnOnce(u64) -> Result<u64, String> + Send + 'static,
    ) -> Result<EpochBegun, EpochError> {
        let highest = epoch::highest(&self.state, &self.trust);
        let pushed = tokio::task::spawn_blocking(move || push(highest)).await;
        let revision = pushed
            .map_err(|error| EpochError::Unavailable(error.to_string()))?
            .map_err(EpochError::Unavailable)?;
        let identity = Identity {
            cluster_id: SQLITE_CLUSTER,
            revision,
        };
        let floor = Token::new(highest + 1).unwrap_or(Token::MAX);
        let epoch = NewEpoch {
            floor,
            identity: Some(identity),
        };
        epoch::durable(&self.state, epoch).await?;
        self.trust.renew(identity, floor);
        Ok(EpochBegun {
            floor,
            revision,
            pushed: 1,
        })
    }

    /// Ends the thread and waits for that; every question still open is answered first.
    pub fn stop(&self) {
        *self.asks.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Authority for SqliteAuthority {
    fn read(&self, scope: &Arc<str>, done: ReadDone) {
        if self.trust.frozen().is_some() {
            return done(Err(Unreadable::Changed));
        }
        let reply = Reply::new(done);
        // Once stopped, the reply is dropped, which says "unavailable".
        if let Some(asks) = &*self.asks.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = asks.send(Ask {
                scope: scope.clone(),
                reply,
            });
        }
    }
}

impl Drop for SqliteAuthority {
    fn drop(&mut self) {
        self.stop();
    }
}

fn answer_all(mut read: ReadGrant, asks: &mpsc::Receiver<Ask>, trust: &Trust, health: &Health) {
    while let Ok(first) = asks.recv() {
        let mut batch = vec![first];
        batch.extend(asks.try_iter());
        // Those of one scope beside each other: all came before its read.
        batch.sort_by(|a, b| a.scope.cmp(&b.scope));
        let mut last: Option<(Arc<str>, Result<Reading, Unreadable>)> = None;
        for Ask { scope, reply } in batch {
            let known = last
                .as_ref()
                .filter(|(read, _)| *read == scope)
                .map(|(_, answer)| *answer);
            let answer = known.unwrap_or_else(|| answer(&mut read, &scope, trust, health));
            last = Some((scope, answer));
            reply.send(answer);
        }
    }
}

fn answer(
    read: &mut ReadGrant,
    scope: &str,
    trust: &Trust,
    health: &Health,
) -> Result<Reading, Unreadable> {
    let sent = trust.sending();
    let answer = read(scope)
        .map_err(|why| Doubt::Failed(Failure::Other(why)))
        .and_then(|(grant, revision)| {
            let seen = Identity {
                cluster_id: SQLITE_CLUSTER,
                revision,
            };
            Ok(Reading {
                grant,
                revision: trust.answered(sent, seen)?,
            })
        });
    match &answer {
        Ok(_) => health.up(),
        Err(Doubt::Failed(failure)) => health.down(&failure.to_string()),
        Err(Doubt::Changed) => {}
    }
    answer.map_err(Unreadable::from)
}
