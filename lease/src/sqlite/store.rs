//! The steps of the algorithm as SQLite transactions.

use super::{
    open,
    rows::{Rows, boot_id},
    translate,
    wake::Wake,
};
use crate::{
    LeaseName,
    clock::boot,
    record::Record,
    store::{
        Call, Change, Claim, Event, LeaseStore, Place, SessionId, Status, StoreError, Target, View,
    },
};
use palisade_fence::{Time, Token};
use rusqlite::{Connection, TransactionBehavior};
use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Leases in a file.
#[derive(Clone, Debug)]
pub struct SqliteStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    database: Mutex<Connection>,
    path: PathBuf,
    /// Device and inode of the file that was opened.
    file: (u64, u64),
    boot: String,
    wake: Wake,
    /// What [`LeaseStore::next_event`] told last of each lease: a row that is gone leaves no trace.
    told: Mutex<HashMap<LeaseName, Option<Token>>>,
}

/// What a look at what is watched gave.
enum Looked {
    Changed(Change),
    /// Not yet; by itself not before this.
    NotBefore(Time),
}

impl SqliteStore {
    /// Opens the file, and makes it if need be. Blocks for a moment.
    ///
    /// # Errors
    /// If it can't be opened or is no such file.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let database = open(path)?;
        let denied = |error: io::Error| StoreError::Denied(format!("{}: {error}", path.display()));
        Ok(Self(Arc::new(Shared {
            file: identity(path).map_err(denied)?,
            wake: Wake::beside(path).map_err(denied)?,
            path: path.to_owned(),
            database: Mutex::new(database),
            boot: boot_id()?,
            told: Mutex::default(),
        })))
    }

    /// One transaction, away from the runtime's threads. It takes place even if the future is dropped.
    async fn transact<T: Send + 'static>(
        &self,
        writes: bool,
        steps: impl FnOnce(&Rows<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.0.clone();
        let done = tokio::task::spawn_blocking(move || shared.transact(writes, steps)).await;
        done.unwrap_or_else(|error| Err(StoreError::Unreachable(error.to_string())))
    }

    async fn look_at(
        &self,
        name: LeaseName,
        target: Target,
        place: Option<SessionId>,
        after: u64,
    ) -> Result<Looked, StoreError> {
        self.transact(false, move |rows| {
            rows_changed(rows, &name, target, place, after)
        })
        .await
    }

    async fn event(&self, name: LeaseName, after: u64) -> Result<Option<(Event, u64)>, StoreError> {
        let shared = self.0.clone();
        self.transact(false, move |rows| {
            let holder = rows.holder(&name)?;
            let now = holder.as_ref().map(|row| row.token);
            let mut told = lock(&shared.told);
            let known = told.insert(name.clone(), now);
            // Asked for the first time: what the caller has read itself is not told again.
            let before = known.unwrap_or_else(|| now.filter(|token| token.get() <= after));
            Ok(match (before, holder) {
                (Some(old), Some(row)) if row.token == old => None,
                (None, None) => None,
                // One grant after the other while nobody looked: the end of the first comes first.
                (Some(_), Some(_)) => {
                    told.insert(name, None);
                    Some((Event::Freed(rows.revision()?), after))
                }
                (_, Some(row)) => {
                    let record = Record::from_json(row.record.as_bytes());
                    Some((Event::Granted(row.token, record), row.token.get()))
                }
                (Some(_), None) => {
                    let revision = rows.revision()?;
                    Some((Event::Freed(revision), revision))
                }
            })
        })
        .await
    }
}

impl Shared {
    fn transact<T>(
        &self,
        writes: bool,
        steps: impl FnOnce(&Rows<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.check_file()?;
        let behavior = if writes {
            TransactionBehavior::Immediate
        } else {
            TransactionBehavior::Deferred
        };
        let mut database = lock(&self.database);
        let transaction = database
            .transaction_with_behavior(behavior)
            .map_err(|e| translate(&e))?;
        let done = steps(&Rows::new(&transaction, &self.boot))?;
        transaction.commit().map_err(|e| translate(&e))?;
        Ok(done)
    }

    /// A file that was deleted goes on existing for those who have it open, and the next process makes another one: two
    /// stores, both granting.
    fn check_file(&self) -> Result<(), StoreError> {
        match identity(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            _ => Err(StoreError::Changed(format!(
                "{} was deleted or replaced",
                self.path.display()
            ))),
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// A panic in another thread does not make a connection or a table of tokens wrong: transactions roll back.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rows_changed(
    rows: &Rows<'_>,
    name: &LeaseName,
    target: Target,
    place: Option<SessionId>,
    after: u64,
) -> Result<Looked, StoreError> {
    let mut not_before = Time::NEVER;
    let mut ends = |session: SessionId| -> Result<(), StoreError> {
        not_before = not_before.min(rows.deadline(session)?.unwrap_or(Time::ZERO));
        Ok(())
    };
    if let Some(session) = place {
        if rows.ticket(name, session)?.is_none() {
            return Ok(Looked::Changed(Change::PlaceLost));
        }
        ends(session)?;
    }
    match target {
        Target::Lease => match rows.holder(name)? {
            None => return Ok(Looked::Changed(Change::Deleted)),
            Some(row) if row.token.get() > after => {
                return Ok(Looked::Changed(Change::Written(row.token)));
            }
            Some(row) => row.session.map_or(Ok(()), &mut ends)?,
        },
        Target::Waiter(session) => {
            if rows.ticket(name, session)?.is_none() {
                return Ok(Looked::Changed(Change::Deleted));
            }
            ends(session)?;
        }
    }
    Ok(Looked::NotBefore(not_before))
}

impl LeaseStore for SqliteStore {
    fn open(&self, session: SessionId, ttl: Duration) -> Call<'_, Duration> {
        Box::pin(self.transact(true, move |rows| {
            rows.open_session(session, ttl)?;
            Ok(ttl)
        }))
    }

    fn keep_alive(&self, session: SessionId) -> Call<'_, ()> {
        Box::pin(self.transact(true, move |rows| {
            if rows.keep_alive(session)? {
                Ok(())
            } else {
                Err(StoreError::SessionGone)
            }
        }))
    }

    fn close(&self, session: SessionId) -> Call<'_, ()> {
        Box::pin(async move {
            self.transact(true, move |rows| rows.close_session(session))
                .await?;
            self.0.wake.wake();
            Ok(())
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
        Box::pin(async move {
            let (name, record) = (name.clone(), record.clone());
            let claim = self.transact(true, move |rows| {
                if !rows.alive(session)? {
                    return Err(StoreError::SessionGone);
                }
                let allowed = match place {
                    Place::NobodyWaits => rows.ahead(&name, None)?.is_none(),
                    Place::Queued => rows.ticket(&name, session)?.is_some(),
                    Place::Any => true,
                };
                let found = rows.holder(&name)?.map_or(0, |row| row.token.get());
                if !allowed || found != expect {
                    return Ok(Claim::Refused(rows.view(&name, session)?));
                }
                rows.grant(&name, session, &record).map(Claim::Won)
            });
            let claim = claim.await?;
            if let Claim::Won(_) = claim {
                self.0.wake.wake();
            }
            Ok(claim)
        })
    }

    fn enqueue<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        record: &'a Record,
    ) -> Call<'a, View> {
        let (name, record) = (name.clone(), record.clone());
        Box::pin(self.transact(true, move |rows| {
            if !rows.alive(session)? {
                return Err(StoreError::SessionGone);
            }
            rows.queue(&name, session, &record)?;
            rows.view(&name, session)
        }))
    }

    fn look<'a>(
        &'a self,
        name: &'a LeaseName,
        session: SessionId,
        _ticket: Option<u64>,
    ) -> Call<'a, View> {
        let name = name.clone();
        Box::pin(self.transact(false, move |rows| rows.view(&name, session)))
    }

    fn changed<'a>(
        &'a self,
        name: &'a LeaseName,
        target: Target,
        place: Option<SessionId>,
        after: u64,
    ) -> Call<'a, Change> {
        Box::pin(async move {
            loop {
                let woken = self.0.wake.next();
                match self.look_at(name.clone(), target, place, after).await? {
                    Looked::Changed(change) => return Ok(change),
                    // The clocks differ during suspend; then `woken` gives up after a second, and it is looked at anew.
                    Looked::NotBefore(at) => {
                        let _ = tokio::time::timeout(at.since(boot()), woken).await;
                    }
                }
            }
        })
    }

    fn release<'a>(&'a self, name: &'a LeaseName, token: Token) -> Call<'a, bool> {
        let name = name.clone();
        Box::pin(async move {
            let released = self
                .transact(true, move |rows| rows.release(&name, token))
                .await?;
            self.0.wake.wake();
            Ok(released)
        })
    }

    fn status<'a>(&'a self, name: &'a LeaseName) -> Call<'a, Status> {
        let name = name.clone();
        Box::pin(self.transact(false, move |rows| rows.status(&name)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Call<'a, Vec<Status>> {
        let prefix = prefix.to_owned();
        Box::pin(self.transact(false, move |rows| rows.list(&prefix)))
    }

    fn next_event<'a>(&'a self, name: &'a LeaseName, after: u64) -> Call<'a, (Event, u64)> {
        Box::pin(async move {
            loop {
                let woken = self.0.wake.next();
                if let Some(event) = self.event(name.clone(), after).await? {
                    return Ok(event);
                }
                woken.await;
            }
        })
    }
}
