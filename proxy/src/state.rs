//! What is durable: floors, whether they had opened, the lease store's identity, whether the last stop was clean.
//!
//! One embedded SQLite file in the state folder, written by one thread. A write is a job in that thread's queue; all
//! jobs that wait when it looks become one transaction, so raises of many scopes share a sync. Reads go through a
//! connection of their own and see every committed close. Nothing is kept in memory for a scope: a million scopes on
//! disk cost a start nothing but the check of the file.
//!
//! Runs: each start of the proxy on a state folder has a number, its *run*. What is unsettled follows from comparing
//! run numbers (`rule`), so that an unclean stop makes every scope unsettled without touching a row.

mod folder;
mod rule;
mod sql;
mod writer;

pub use folder::OpenError;

use palisade_fence::Token;
use rusqlite::Connection;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering, mpsc},
    thread::JoinHandle,
};
use writer::{Job, Shared};

/// A floor as it stands on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The highest token accepted.
    pub floor: Token,
    /// Whether it was recorded that every write with a smaller token was settled.
    pub opened: bool,
    /// Whether writes from before the last stop may still be applied: after an unclean stop every scope that has not
    /// been recorded as settled since, after a clean one those marked at the stop.
    pub unsettled: bool,
}

/// Why the state could not be read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StateError(pub Arc<str>);

/// Called once with the outcome of a durable write, on the state's own thread.
pub type Durable = Box<dyn FnOnce(Result<(), StateError>) + Send>;

/// The floors, as the gate sees them.
pub trait Floors: Send + Sync {
    /// What is stored for a scope. May read the disk.
    fn load(&self, scope: &str) -> Result<Option<Stored>, StateError>;
    /// Whether a scope has a floor of its own on disk, apart from what a new epoch closed for all. May read the disk.
    fn has_own(&self, scope: &str) -> Result<bool, StateError>;
    /// Makes a floor durable as closed and not opened; one that is not above the stored floor changes nothing.
    fn close(&self, scope: &Arc<str>, floor: Token, done: Durable);
    /// Records, some time later, that this floor has opened and that nothing from before it is unsettled; only if the
    /// stored floor still is this one.
    fn opened(&self, scope: &Arc<str>, floor: Token);
}

/// Which lease store this state belongs to, and how far that store had come when last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// etcd's cluster id (`ResponseHeader.cluster_id`); [`crate::authority::SQLITE_CLUSTER`] for a lease file.
    pub cluster_id: u64,
    /// The highest revision seen there.
    pub revision: u64,
}

/// The number of a start on this state folder, from 1; an operator's new epoch counts as one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run(u64);

impl Run {
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// How a state folder is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Called with the reason when a sync failed, before anyone hears of the write. It must end the process: what the
    /// kernel could not write it may have marked as written, so a repeated sync may say "durable" of what is lost.
    pub fatal: fn(&str),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fatal: |why| {
                tracing::error!("{why}");
                std::process::exit(74)
            },
        }
    }
}

/// What an operator's `palisade new-epoch` makes durable, in one transaction.
#[derive(Clone, Copy, Debug)]
pub struct NewEpoch {
    /// Every scope, known or not, is closed below this: one above the highest revision ever seen.
    pub floor: Token,
    /// The store that counts from now on; `None` leaves it as it is.
    pub identity: Option<Identity>,
}

/// The open state of one proxy.
///
/// Dropping it without [`State::stop_clean`] writes what is queued and leaves the stop unclean, as a crash would.
#[derive(Debug)]
pub struct State {
    folder: PathBuf,
    id: Arc<str>,
    unclean: bool,
    /// `None` once stopped. Dropping the sender ends the thread.
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    reads: Mutex<Connection>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl State {
    /// Opens the state in a folder, which is made (mode 0700) if it is missing, and counts a new run.
    ///
    /// # Errors
    /// When another process has it, when it is damaged, of a newer version or can't be written. There is no way to an
    /// empty start over something that can't be read: a floor of 0 would let every old token in.
    pub fn open(folder: &Path, options: Options) -> Result<Self, OpenError> {
        let folder::Opened {
            lock,
            write,
            read,
            meta,
        } = folder::open(folder)?;
        let shared = Arc::new(Shared::new(&meta));
        let (jobs, queue) = mpsc::channel();
        let writer = writer::Writer::new(write, lock, queue, shared.clone(), options.fatal);
        let thread = std::thread::Builder::new()
            .name("state".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| OpenError::Folder {
                folder: folder.to_owned(),
                source,
            })?;
        Ok(Self {
            folder: folder.to_owned(),
            id: meta.state_id.into(),
            unclean: meta.runs.leftovers(),
            jobs: Mutex::new(Some(jobs)),
            reads: Mutex::new(read),
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The random id that this state got when it was made; it tells one state folder from another.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Whether writes of every scope from before this start may still be applied: an unclean stop, or one whose
    /// leftovers were not waited out before the next stop. Scopes marked at a clean stop don't count here; they show
    /// in [`Stored::unsettled`].
    pub fn started_unclean(&self) -> bool {
        self.unclean
    }

    /// The run that is under way.
    pub fn run(&self) -> Run {
        Run(self.shared.run.load(Ordering::Acquire))
    }

    /// Records, some time later, that everything from before this run began is settled. To be called when `settle` has
    /// passed since then, with the run that was under way then: a new epoch in between begins another one.
    pub fn all_settled(&self, run: Run) {
        self.send(Job::AllSettled(run.0));
    }

    /// Records that nothing of this scope is unsettled: an operator's `palisade settle`.
    pub fn settled(&self, scope: &Arc<str>, done: Durable) {
        self.send(Job::Settled {
            scope: scope.clone(),
            done,
        });
    }

    /// The lease store that this state belongs to, if it has met one.
    pub fn identity(&self) -> Option<Identity> {
        lock(&self.shared.store).identity
    }

    /// Notes how far the lease store has come. The first one is made durable before any later close is; after that the
    /// revision goes to disk with the next transaction or within `writer::IDENTITY_LATER`. Never moves the revision
    /// down, and never changes the cluster id: that takes [`State::new_epoch`].
    pub fn set_identity(&self, seen: Identity) {
        {
            let mut store = lock(&self.shared.store);
            match &mut store.identity {
                Some(known)
                    if known.cluster_id != seen.cluster_id || known.revision >= seen.revision =>
                {
                    return;
                }
                Some(known) => {
                    known.revision = seen.revision;
                    // One note in the queue at a time: it takes the newest revision when its turn comes.
                    if std::mem::replace(&mut store.noted, true) {
                        return;
                    }
                }
                None => {
                    store.identity = Some(seen);
                    store.noted = true;
                }
            }
        }
        self.send(Job::Identity);
    }

    /// Why the lease store is not trusted any more, if so; stays over a restart until [`State::new_epoch`].
    pub fn frozen(&self) -> Option<Arc<str>> {
        lock(&self.shared.store).frozen.clone()
    }

    /// Records that the lease store is not trusted any more.
    pub fn freeze(&self, why: &str) {
        lock(&self.shared.store).frozen = Some(why.into());
        self.send(Job::Frozen(why.into()));
    }

    /// Begins a new epoch: closes every scope below a floor, counts every scope as unsettled from now on, names the
    /// lease store that counts, and ends the freeze. After success [`State::run`] is the run that [`State::all_settled`] needs.
    pub fn new_epoch(&self, epoch: NewEpoch, done: Durable) {
        self.send(Job::NewEpoch { epoch, done });
    }

    /// How many scopes have a floor of their own. Counts on disk: not for each request.
    pub fn count(&self) -> Result<u64, StateError> {
        sql::count(&self.reader()).map_err(unreadable)
    }

    /// Up to `limit` scopes after this one, in the order of their names' bytes, each as it stands on disk.
    pub fn page(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(Arc<str>, Stored)>, StateError> {
        sql::page(&self.reader(), after, limit).map_err(unreadable)
    }

    /// How many transactions have been committed since the start.
    pub fn commits(&self) -> u64 {
        self.shared.commits.load(Ordering::Relaxed)
    }

    /// Ends in order: writes what is queued, marks these scopes as having unsettled writes, and notes a clean stop, in
    /// one transaction. Leftovers of an earlier unclean stop that were not waited out stay on record by themselves.
    /// Blocks until it is durable; everything after it is refused.
    pub fn stop_clean(&self, unsettled: Vec<Arc<str>>) -> Result<(), StateError> {
        let (send, receive) = mpsc::channel();
        let done: Durable = Box::new(move |result| {
            let _ = send.send(result);
        });
        self.send(Job::Stop { unsettled, done });
        let result = receive.recv().unwrap_or_else(|_| Err(stopped()));
        self.end();
        result
    }

    fn reader(&self) -> MutexGuard<'_, Connection> {
        lock(&self.reads)
    }

    fn send(&self, job: Job) {
        let unsent = match &*lock(&self.jobs) {
            Some(jobs) => jobs.send(job).err().map(|error| error.0),
            None => Some(job),
        };
        if let Some(job) = unsent {
            job.finish(&Err(stopped()));
        }
    }

    fn end(&self) {
        *lock(&self.jobs) = None;
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.end();
    }
}

impl Floors for State {
    fn load(&self, scope: &str) -> Result<Option<Stored>, StateError> {
        sql::load(&self.reader(), scope).map_err(unreadable)
    }

    fn has_own(&self, scope: &str) -> Result<bool, StateError> {
        sql::has(&self.reader(), scope).map_err(unreadable)
    }

    fn close(&self, scope: &Arc<str>, floor: Token, done: Durable) {
        self.send(Job::Close {
            scope: scope.clone(),
            floor,
            done,
        });
    }

    fn opened(&self, scope: &Arc<str>, floor: Token) {
        self.send(Job::Opened {
            scope: scope.clone(),
            floor,
        });
    }
}

fn unreadable(error: rusqlite::Error) -> StateError {
    StateError(format!("the state can't be read: {error}").into())
}

fn stopped() -> StateError {
    StateError("the state is closed".into())
}

/// What these locks guard stays whole when a holder panics: each critical section is one assignment or one read.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
