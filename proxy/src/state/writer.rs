//! The one thread that writes.

use super::{
    Durable, Identity, NewEpoch, StateError,
    folder::Lock,
    lock,
    sql::{self, Meta},
};
use palisade_fence::{Time, Token};
use palisade_lease::clock;
use rusqlite::{Connection, TransactionBehavior, ffi};
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

/// The most jobs in one transaction: bounds how long the first of them waits for the others' statements.
const MOST_AT_ONCE: usize = 4096;
/// How long an "opened" waits for a close to share its sync with.
const OPENED_LATER: Duration = Duration::from_millis(100);
/// How long a newer revision of the lease store waits for any transaction to go to disk with. A rollback of the store to
/// a revision in between goes unnoticed if the proxy crashes as well; floors don't depend on it.
pub(super) const IDENTITY_LATER: Duration = Duration::from_secs(5);
/// The WAL is moved into the database after this many written rows, at two pages of 4 KiB each about 2 MiB.
const CHECKPOINT_ROWS: usize = 250;

/// What the state's owner and its thread both see.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Mutex<Store>,
    pub(super) run: AtomicU64,
    pub(super) commits: AtomicU64,
}

/// What is known of the lease store; ahead of the disk by what is in the queue.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) identity: Option<Identity>,
    /// Whether a note of it is in the queue.
    pub(super) noted: bool,
    pub(super) frozen: Option<Arc<str>>,
}

impl Shared {
    pub(super) fn new(meta: &Meta) -> Self {
        Self {
            store: Mutex::new(Store {
                identity: meta.identity,
                noted: false,
                frozen: meta.frozen.as_deref().map(Arc::from),
            }),
            run: AtomicU64::new(meta.runs.run),
            commits: AtomicU64::new(0),
        }
    }
}

/// Something to write.
pub(super) enum Job {
    Close {
        scope: Arc<str>,
        floor: Token,
        done: Durable,
    },
    Opened {
        scope: Arc<str>,
        floor: Token,
    },
    Settled {
        scope: Arc<str>,
        done: Durable,
    },
    AllSettled(u64),
    Identity,
    Frozen(Arc<str>),
    NewEpoch {
        epoch: NewEpoch,
        done: Durable,
    },
    Stop {
        unsettled: Vec<Arc<str>>,
        done: Durable,
    },
}

impl Job {
    /// Tells whoever waits for it how it went.
    pub(super) fn finish(self, result: &Result<(), StateError>) {
        match self {
            Self::Close { done, .. }
            | Self::Settled { done, .. }
            | Self::NewEpoch { done, .. }
            | Self::Stop { done, .. } => {
                // A panic there must not end this thread: every later close would fail.
                if catch_unwind(AssertUnwindSafe(|| done(result.clone()))).is_err() {
                    tracing::error!("a caller panicked over the outcome of a durable write");
                }
            }
            Self::Opened { .. } | Self::AllSettled(_) | Self::Identity | Self::Frozen(_) => {}
        }
    }
}

/// What may wait for a transaction that is needed anyway, and what failed and is tried again with the next one.
#[derive(Default)]
struct Later {
    /// The floors that opened, the newest of each scope.
    opened: HashMap<Arc<str>, Token>,
    identity: Option<Identity>,
    all_settled: Option<u64>,
    frozen: Option<Arc<str>>,
    /// When to stop waiting.
    due: Option<Time>,
}

impl Later {
    fn is_empty(&self) -> bool {
        self.opened.is_empty()
            && self.identity.is_none()
            && self.all_settled.is_none()
            && self.frozen.is_none()
    }

    fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= clock::boot())
    }

    /// After a failure: not in a tight loop.
    fn again_in(&mut self, wait: Duration) {
        self.due = (!self.is_empty()).then(|| clock::boot().after(wait));
    }

    fn wait_at_most(&mut self, wait: Duration) {
        let due = clock::boot().after(wait);
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }
}

pub(super) struct Writer {
    db: Connection,
    queue: Receiver<Job>,
    shared: Arc<Shared>,
    later: Later,
    /// Whether the disk knows a lease store at all. The first one does not wait.
    known_store: bool,
    rows: usize,
    fatal: fn(&str),
    /// Set after a failed sync, should `fatal` return: nothing is called durable any more.
    lost: Option<StateError>,
    /// Held for as long as this thread may write.
    _lock: Lock,
}

impl Writer {
    pub(super) fn new(
        db: Connection,
        lock_file: Lock,
        queue: Receiver<Job>,
        shared: Arc<Shared>,
        fatal: fn(&str),
    ) -> Self {
        let known_store = lock(&shared.store).identity.is_some();
        Self {
            db,
            queue,
            shared,
            later: Later::default(),
            known_store,
            rows: 0,
            fatal,
            lost: None,
            _lock: lock_file,
        }
    }

    /// Writes until the state is stopped or dropped.
    pub(super) fn run(mut self) {
        loop {
            let mut stopping = false;
            match self.next() {
                Next::Job(job) => {
                    let batch = self.gather(job);
                    stopping = batch.iter().any(|job| matches!(job, Job::Stop { .. }));
                    if !batch.is_empty() || self.later.is_due() {
                        self.commit(batch);
                    }
                }
                Next::Due => self.commit(Vec::new()),
                Next::Dropped => {
                    if !self.later.is_empty() {
                        self.commit(Vec::new());
                    }
                    return;
                }
            }
            self.checkpoint(stopping);
            if stopping {
                return;
            }
        }
    }

    fn next(&self) -> Next {
        let Some(due) = self.later.due else {
            return self.queue.recv().map_or(Next::Dropped, Next::Job);
        };
        match self.queue.recv_timeout(due.since(clock::boot())) {
            Ok(job) => Next::Job(job),
            Err(RecvTimeoutError::Timeout) => Next::Due,
            Err(RecvTimeoutError::Disconnected) => Next::Dropped,
        }
    }

    /// All that waits in the queue now, up to a bound. What can wait longer goes to `later`; what is returned can't.
    fn gather(&mut self, first: Job) -> Vec<Job> {
        let mut batch = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next {
            let last = matches!(job, Job::Stop { .. });
            self.sort(job, &mut batch);
            if last || batch.len() >= MOST_AT_ONCE {
                break;
            }
            next = self.queue.try_recv().ok();
        }
        batch
    }

    fn sort(&mut self, job: Job, batch: &mut Vec<Job>) {
        match job {
            Job::Opened { scope, floor } => {
                let newest = self.later.opened.entry(scope).or_insert(floor);
                *newest = floor.max(*newest);
                self.later.wait_at_most(OPENED_LATER);
            }
            Job::AllSettled(run) => {
                self.later.all_settled = self.later.all_settled.max(Some(run));
                self.later.wait_at_most(OPENED_LATER);
            }
            Job::Frozen(why) => {
                self.later.frozen = Some(why);
                self.later.wait_at_most(Duration::ZERO);
            }
            Job::Identity => {
                let mut store = lock(&self.shared.store);
                store.noted = false;
                self.later.identity = store.identity;
                drop(store);
                let wait = if self.known_store {
                    IDENTITY_LATER
                } else {
                    Duration::ZERO
                };
                self.later.wait_at_most(wait);
            }
            durable => batch.push(durable),
        }
    }

    /// Writes the batch and what was left for later in one transaction; then everyone who waits hears how it went.
    fn commit(&mut self, batch: Vec<Job>) {
        let result = self.durable(&batch);
        match &result {
            Ok(()) => self.committed(&batch),
            Err(error) => {
                tracing::warn!(jobs = batch.len(), "{error}");
                self.later.again_in(IDENTITY_LATER);
                // On a full disk that can make room: a log that was moved is written from its beginning again.
                self.rows = CHECKPOINT_ROWS;
            }
        }
        for job in batch {
            job.finish(&result);
        }
    }

    fn durable(&mut self, batch: &[Job]) -> Result<(), StateError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let start = clock::boot();
        let written = transact(&mut self.db, &self.later, batch);
        metrics::histogram!("palisade_state_sync_duration_seconds")
            .record(clock::boot().since(start).as_secs_f64());
        written.map_err(|error| self.failed("the state could not be written", &error))
    }

    /// Turns SQLite's error into ours; does not come back from a failed sync, unless a test lets it.
    fn failed(&mut self, what: &str, error: &rusqlite::Error) -> StateError {
        let said = StateError(format!("{what}: {error}").into());
        if is_failed_sync(error) {
            let why = format!(
                "{what}: a sync failed ({error}). What is on disk is not known any more; the process ends. Look at the \
                 disk before you start it again"
            );
            self.lost = Some(StateError(why.as_str().into()));
            (self.fatal)(&why);
        }
        said
    }

    fn committed(&mut self, batch: &[Job]) {
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        self.rows += batch.len() + self.later.opened.len();
        self.known_store |= self.later.identity.is_some();
        self.later = Later::default();
        for job in batch {
            let Job::NewEpoch { epoch, .. } = job else {
                continue;
            };
            self.shared.run.fetch_add(1, Ordering::AcqRel);
            let mut store = lock(&self.shared.store);
            store.frozen = None;
            store.identity = epoch.identity.or(store.identity);
            self.known_store |= store.identity.is_some();
        }
    }

    /// Moves the WAL into the database when it has grown, and at the end. Without room it is tried again later.
    fn checkpoint(&mut self, last: bool) {
        if self.lost.is_some() || (self.rows < CHECKPOINT_ROWS && !last) {
            return;
        }
        self.rows = 0;
        let how = if last { "TRUNCATE" } else { "PASSIVE" };
        let done = self
            .db
            .query_row(&format!("PRAGMA wal_checkpoint({how})"), [], |_| Ok(()));
        if let Err(error) = done {
            let error = self.failed(
                "the state's log could not be moved into its database",
                &error,
            );
            tracing::warn!("{error}");
        }
    }
}

/// What the thread does next.
enum Next {
    Job(Job),
    Due,
    Dropped,
}

fn transact(db: &mut Connection, later: &Later, batch: &[Job]) -> rusqlite::Result<()> {
    let writing = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if let Some(identity) = later.identity {
        sql::identity(&writing, identity)?;
    }
    if let Some(why) = &later.frozen {
        sql::frozen(&writing, why)?;
    }
    if let Some(run) = later.all_settled {
        sql::all_settled(&writing, run)?;
    }
    for (scope, floor) in &later.opened {
        sql::opened(&writing, scope, *floor)?;
    }
    for job in batch {
        apply(&writing, job)?;
    }
    writing.commit()
}

fn apply(db: &Connection, job: &Job) -> rusqlite::Result<()> {
    match job {
        Job::Close { scope, floor, .. } => sql::close(db, scope, *floor),
        Job::Settled { scope, .. } => sql::settled(db, scope),
        Job::NewEpoch { epoch, .. } => sql::new_epoch(db, epoch),
        Job::Stop { unsettled, .. } => {
            unsettled
                .iter()
                .try_for_each(|scope| sql::mark(db, scope))?;
            sql::clean(db)
        }
        // These are in `later`.
        Job::Opened { .. } | Job::AllSettled(_) | Job::Identity | Job::Frozen(_) => Ok(()),
    }
}

/// `fsync` and the like, on a file or on its folder (SQLite's result codes, "SQLITE_IOERR_FSYNC").
fn is_failed_sync(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        matches!(
            error.extended_code,
            ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC
        )
    })
}
