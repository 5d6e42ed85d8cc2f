//! A file as the lease store, for the processes of one host: an SQLite database in WAL mode.
//!
//! Deadlines are on the boot-time clock and carry the boot's id, so wall-clock jumps change nothing and a reboot ends
//! every lease. The revision counter never goes back: a trigger forbids it, whatever rows are deleted. The file must not
//! be on a network file system (sqlite.org, "Write-Ahead Logging", "All processes using a database must be on the same
//! host").

mod rows;
mod store;
mod wake;

pub use store::SqliteStore;

use crate::{LeaseName, record::Record, store::StoreError};
use palisade_fence::Token;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::{path::Path, time::Duration};

/// How long one statement waits for another process's transaction.
const BUSY: Duration = Duration::from_secs(2);

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS store (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    id       TEXT NOT NULL,
    revision INTEGER NOT NULL
);
INSERT OR IGNORE INTO store VALUES (1, lower(hex(randomblob(16))), 1);
CREATE TRIGGER IF NOT EXISTS revision_never_back BEFORE UPDATE ON store
    WHEN NEW.revision < OLD.revision OR NEW.id <> OLD.id
    BEGIN SELECT RAISE(ABORT, 'the revision never goes back'); END;
CREATE TRIGGER IF NOT EXISTS store_stays BEFORE DELETE ON store
    BEGIN SELECT RAISE(ABORT, 'the revision never goes back'); END;
CREATE TABLE IF NOT EXISTS sessions (
    id       INTEGER PRIMARY KEY,
    boot     TEXT NOT NULL,
    ttl      INTEGER NOT NULL,
    deadline INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS sessions_by_deadline ON sessions (deadline);
CREATE TABLE IF NOT EXISTS leases (
    name     TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    session  INTEGER,
    record   TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leases_by_session ON leases (session);
CREATE TABLE IF NOT EXISTS waiters (
    name     TEXT NOT NULL,
    session  INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    record   TEXT NOT NULL,
    PRIMARY KEY (name, session)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiters_by_revision ON waiters (name, revision);
CREATE INDEX IF NOT EXISTS waiters_by_session ON waiters (session);
";

/// Opens the database, and makes it if need be.
fn open(path: &Path) -> Result<Connection, StoreError> {
    let database = Connection::open(path).map_err(|e| refused(path, &e))?;
    database.busy_timeout(BUSY).map_err(|e| refused(path, &e))?;
    let started = crate::clock::boot();
    loop {
        match prepare(&database) {
            // Several processes that make the file at the same time: switching to WAL does not wait by itself.
            Err(e)
                if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && crate::clock::boot().since(started) < BUSY =>
            {
                std::thread::sleep(BUSY / 100);
            }
            prepared => return prepared.map(|()| database).map_err(|e| refused(path, &e)),
        }
    }
}

fn prepare(database: &Connection) -> rusqlite::Result<()> {
    // FULL: a grant that was told must survive a power cut, or its number would be given out again.
    database.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
    let made: bool = database.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'waiters_by_session')",
        [],
        |row| row.get(0),
    )?;
    // Only the first one writes; the last thing that it makes says that all is there.
    if made {
        Ok(())
    } else {
        database.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} COMMIT;"))
    }
}

/// Opening fails for good: unlike later, there is no lease yet whose deadline bounds the trying.
fn refused(path: &Path, error: &rusqlite::Error) -> StoreError {
    StoreError::Denied(format!("{}: {error}", path.display()))
}

/// A reader of the grants in a file, for the proxy: it writes nothing.
#[derive(Debug)]
pub struct Reader {
    database: Connection,
    boot: String,
}

impl Reader {
    /// Opens a file that exists.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if there is none yet, or it has no leases in it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let database = Connection::open_with_flags(path, flags)
            .map_err(|e| StoreError::Unreachable(format!("{}: {e}", path.display())))?;
        database.busy_timeout(BUSY).map_err(|e| translate(&e))?;
        Ok(Self {
            database,
            boot: rows::boot_id()?,
        })
    }

    /// The current grant of a lease, and the store's revision at the same moment. A row that has run out, or is of
    /// another boot, is no holder; nor is one on no session.
    pub fn grant(&mut self, name: &LeaseName) -> Result<(Option<Token>, u64), StoreError> {
        let transaction = self.database.transaction().map_err(|e| translate(&e))?;
        let rows = rows::Rows::new(&transaction, &self.boot);
        let grant = rows.holder(name)?.filter(|row| row.session.is_some());
        Ok((grant.map(|row| row.token), rows.revision()?))
    }

    /// The current grants of all leases, in the order of their names, `most` of them at most, with what their holders wrote.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn holders(&mut self, most: u32) -> Result<Vec<(String, Token, Record)>, StoreError> {
        let transaction = self.database.transaction().map_err(|e| translate(&e))?;
        rows::Rows::new(&transaction, &self.boot).holders(most)
    }

    /// The file's own id: another one is another store.
    pub fn store_id(&self) -> Result<String, StoreError> {
        self.database
            .query_row("SELECT id FROM store", [], |row| row.get(0))
            .map_err(|e| translate(&e))
    }
}

/// Moves a file's revision on, past this one at least, and gives it: for a file that was put back from a copy, or lost and made
/// anew, after revisions above its own were given out. Makes the file if need be. Blocks for a moment.
///
/// # Errors
/// If it can't be opened or written, or is no such file.
pub fn advance_past(path: &Path, revision: u64) -> Result<u64, StoreError> {
    let mut database = open(path)?;
    let transaction = database
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(|e| translate(&e))?;
    let revision = i64::try_from(revision).unwrap_or(i64::MAX - 1);
    transaction
        .execute(
            "UPDATE store SET revision = max(revision, ?1) + 1",
            [revision],
        )
        .map_err(|e| translate(&e))?;
    let now = rows::Rows::new(&transaction, &rows::boot_id()?).revision()?;
    transaction.commit().map_err(|e| translate(&e))?;
    Ok(now)
}

/// [`Reader::grant`] for once.
///
/// # Errors
/// As [`Reader::open`].
pub fn read_grant(path: &Path, name: &LeaseName) -> Result<(Option<Token>, u64), StoreError> {
    Reader::open(path)?.grant(name)
}

/// An error of SQLite in the terms of a lease store: what may pass, and what won't.
fn translate(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DiskFull
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::NotADatabase
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::ConstraintViolation,
        ) => StoreError::Denied(error.to_string()),
        _ => StoreError::Unreachable(error.to_string()),
    }
}
