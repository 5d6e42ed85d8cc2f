//! A store whose replies can be lost after the request was carried out.

use palisade_lease::{
    FencingToken, LeaseName, LeaseStore, StoreError,
    record::Record,
    store::{Call, Change, Claim, Event, Place, SessionId, Status, Target, View},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

#[derive(Debug)]
pub struct Lossy {
    inner: Arc<dyn LeaseStore>,
    /// So many claims are carried out, and their replies lost.
    pub lose_claims: AtomicU32,
    /// How many claims were made.
    pub claims: AtomicU32,
    /// How many looks.
    pub looks: AtomicU32,
}

impl Lossy {
    pub fn over(inner: Arc<dyn LeaseStore>, lose_claims: u32) -> Arc<Self> {
        Arc::new(Self {
            inner,
            lose_claims: lose_claims.into(),
            claims: 0.into(),
            looks: 0.into(),
        })
    }
}

impl LeaseStore for Lossy {
    fn open(&self, session: SessionId, ttl: Duration) -> Call<'_, Duration> {
        self.inner.open(session, ttl)
    }
    fn keep_alive(&self, session: SessionId) -> Call<'_, ()> {
        self.inner.keep_alive(session)
    }
    fn close(&self, session: SessionId) -> Call<'_, ()> {
        self.inner.close(session)
    }
    fn claim<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        expect: u64,
        place: Place,
        record: &'a Record,
    ) -> Call<'a, Claim> {
        Box::pin(async move {
            self.claims.fetch_add(1, Relaxed);
            let claim = self
                .inner
                .claim(name, session, expect, place, record)
                .await?;
            match self
                .lose_claims
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            {
                Ok(_) => Err(StoreError::Unreachable("the reply was lost".to_owned())),
                Err(_) => Ok(claim),
            }
        })
    }
    fn enqueue<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        record: &'a Record,
    ) -> Call<'a, View> {
        self.inner.enqueue(name, session, record)
    }
    fn look<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        ticket: Option<u64>,
    ) -> Call<'a, View> {
        self.looks.fetch_add(1, Relaxed);
        self.inner.look(name, session, ticket)
    }
    fn changed<'a>(
        &'a self,
        name: &'a LeaseName,
        target: Target,
        place: Option<SessionId>,
        after: u64,
    ) -> Call<'a, Change> {
        self.inner.changed(name, target, place, after)
    }
    fn release<'a>(&'a self, name: &'a LeaseName, token: FencingToken) -> Call<'a, bool> {
        self.inner.release(name, token)
    }
    fn status<'a>(&'a self, name: &'a LeaseName) -> Call<'a, Status> {
        self.inner.status(name)
    }
    fn list<'a>(&'a self, prefix: &'a str) -> Call<'a, Vec<Status>> {
        self.inner.list(prefix)
    }
    fn next_event<'a>(&'a self, name: &'a LeaseName, after: u64) -> Call<'a, (Event, u64)> {
        self.inner.next_event(name, after)
    }
}
