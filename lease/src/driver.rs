//! Carries out what a [`Holder`] asks for: one task per acquisition, which ends when everything is given back.

use crate::{
    LeaseName,
    clock::Clock,
    holder::{Answer, Do, Holder, Loss, News, Request},
    metrics,
    record::Record,
    store::{LeaseStore, SessionId, StoreError},
    timer::BootTimer,
};
use palisade_fence::Time;
use std::{io, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{AbortHandle, JoinSet},
};

/// How often a session's closing is tried again.
const CLOSE_AGAIN: Duration = Duration::from_millis(500);

/// How things stand with a lease, for whoever holds the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The lease counts as lost from here on, whatever comes.
    pub deadline: Time,
    /// Why it is lost, if that is known to be so already.
    pub loss: Option<Loss>,
}

/// What the task is made of.
pub(crate) struct Driver {
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) name: LeaseName,
    pub(crate) holder: Holder,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) record: Record,
    pub(crate) news: mpsc::UnboundedSender<News>,
    pub(crate) standing: watch::Sender<Standing>,
    /// A message, or its closing, gives the lease back.
    pub(crate) give_back: mpsc::Receiver<()>,
}

impl Driver {
    /// Runs until nothing is left to do. Dropping it drops every call under way with it.
    pub(crate) async fn run(mut self) -> Result<(), io::Error> {
        let timer = BootTimer::new()?;
        let mut calls = JoinSet::new();
        let mut closing = JoinSet::new();
        let mut watching: Option<(u32, AbortHandle)> = None;
        let mut opening: Option<(SessionId, oneshot::Receiver<bool>)> = None;
        let mut asked_back = false;
        loop {
            while let Some(request) = self.holder.poll_request(self.clock.now()) {
                match request.what {
                    Do::Open(session) => {
                        let (answer, ended) = self.open_apart(request);
                        opening = Some((session, ended));
                        calls.spawn(answer);
                    }
                    Do::Close(session) => {
                        let opened = opening.take_if(|(other, _)| *other == session);
                        let (store, until) = (self.store.clone(), self.closing_time());
                        closing.spawn(close(store, session, until, opened.map(|(_, ended)| ended)));
                    }
                    Do::Watch { .. } => {
                        watching = Some((request.id, calls.spawn(self.call(request))))
                    }
                    _ => {
                        calls.spawn(self.call(request));
                    }
                }
            }
            // A watch that nobody waits for any more costs the store something.
            if let Some((_, old)) = watching.take_if(|(id, _)| self.holder.watching() != Some(*id))
            {
                old.abort();
            }
            self.publish();
            if self.holder.is_over() {
                break;
            }
            tokio::select! {
                biased;
                () = timer.until(&*self.clock, self.holder.wake()) => {}
                Some(done) = calls.join_next() => match done {
                    Ok((id, answer)) => self.answered(id, answer),
                    // A watch that was called off.
                    Err(ended) if ended.is_cancelled() => {}
                    Err(ended) => std::panic::resume_unwind(ended.into_panic()),
                },
                _ = self.give_back.recv(), if !asked_back => {
                    asked_back = true;
                    self.holder.give_back();
                }
            }
        }
        calls.shutdown().await;
        while closing.join_next().await.is_some() {}
        Ok(())
    }

    /// An opening is not dropped half-way: carried out after the session's closing, it would leave a session behind. Gives
    /// the answer, and apart from it whether there was one.
    fn open_apart(
        &self,
        request: Request,
    ) -> (
        impl Future<Output = (u32, Answer)> + Send + use<>,
        oneshot::Receiver<bool>,
    ) {
        let (reply, answer) = oneshot::channel();
        let (ended, opened) = oneshot::channel();
        let call = self.call(request);
        tokio::spawn(async move {
            let (id, answer) = call.await;
            let _ = ended.send(!matches!(
                answer,
                Answer::Failed(StoreError::Unreachable(_))
            ));
            let _ = reply.send((id, answer));
        });
        let lost = (
            request.id,
            Answer::Failed(StoreError::Unreachable("the call was dropped".to_owned())),
        );
        (async move { answer.await.unwrap_or(lost) }, opened)
    }

    fn answered(&mut self, id: u32, answer: Answer) {
        if matches!(answer, Answer::Failed(_)) && self.holder.beating() == Some(id) {
            metrics::heartbeat_failed();
        }
        tracing::trace!(lease = %self.name, id, ?answer);
        self.holder.answer(id, answer, self.clock.now());
    }

    /// After this time the session has ended by itself.
    fn closing_time(&self) -> Time {
        let ttl = self
            .holder
            .ttl()
            .unwrap_or_default()
            .max(Duration::from_millis(self.record.ttl_ms));
        self.clock.now().after(ttl * 2)
    }

    fn publish(&mut self) {
        let standing = Standing {
            deadline: self.holder.deadline(),
            loss: self.standing.borrow().loss,
        };
        self.standing
            .send_if_modified(|now| std::mem::replace(now, standing) != standing);
        while let Some(news) = self.holder.poll_news() {
            if let News::Lost(loss) = news {
                tracing::debug!(lease = %self.name, %loss, "lost");
                metrics::lost(loss);
                self.standing
                    .send_modify(|standing| standing.loss = Some(loss));
            }
            // Nobody listens once the acquisition was given up.
            let _ = self.news.send(news);
        }
    }

    fn call(&self, request: Request) -> impl Future<Output = (u32, Answer)> + Send + use<> {
        let (store, name, record) = (self.store.clone(), self.name.clone(), self.record.clone());
        async move {
            let call = carry_out(&*store, &name, &record, request.what);
            let answer = match request.limit {
                None => call.await,
                Some(limit) => tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
                    Err(StoreError::Unreachable(format!(
                        "no answer within {limit:?}"
                    )))
                }),
            };
            (request.id, answer.unwrap_or_else(Answer::Failed))
        }
    }
}

async fn carry_out(
    store: &dyn LeaseStore,
    name: &LeaseName,
    record: &Record,
    what: Do,
) -> Result<Answer, StoreError> {
    Ok(match what {
        Do::Open(session) => {
            let ttl = Duration::from_millis(record.ttl_ms);
            Answer::Opened(store.open(session, ttl).await?)
        }
        Do::KeepAlive(session) => store
            .keep_alive(session)
            .await
            .map(|()| Answer::KeptAlive)?,
        Do::Close(session) => store.close(session).await.map(|()| Answer::Closed)?,
        Do::Claim {
            session,
            expect,
            place,
        } => Answer::Claimed(store.claim(name, session, expect, place, record).await?),
        Do::Enqueue(session) => Answer::Seen(store.enqueue(name, session, record).await?),
        Do::Look { session, ticket } => Answer::Seen(store.look(name, session, ticket).await?),
        Do::Watch {
            target,
            place,
            after,
        } => Answer::Changed(store.changed(name, target, place, after).await?),
        Do::Release(token) => store.release(name, token).await.map(|_| Answer::Released)?,
    })
}

/// Until it is closed, or has surely ended by itself; not before its opening has ended.
async fn close(
    store: Arc<dyn LeaseStore>,
    session: SessionId,
    until: Time,
    opening: Option<oneshot::Receiver<bool>>,
) {
    let answered = match opening {
        Some(opening) => opening.await.unwrap_or(false),
        None => true,
    };
    // Without an answer the opening may still be on its way: once more, after a while.
    let mut times = if answered { 1 } else { 2 };
    while times > 0 && crate::clock::boot() < until {
        match tokio::time::timeout(CLOSE_AGAIN * 2, store.close(session)).await {
            Ok(Err(StoreError::Denied(_) | StoreError::Changed(_))) => return,
            Ok(Ok(()) | Err(StoreError::SessionGone)) => times -= 1,
            Ok(Err(StoreError::Unreachable(_))) | Err(_) => {}
        }
        if times > 0 {
            tokio::time::sleep(CLOSE_AGAIN).await;
        }
    }
}
