//! The state folder: who may have it, and whether what lies in it can be believed.
//!
//! - `lock`: held by an exclusive `flock(2)` for as long as the process lives. Once a state was made it carries its id,
//!   so that a folder whose database was deleted is not taken for a new one.
//! - `state.db` with `-wal` and `-shm`: the database. It is made under another name and renamed when complete, so a file
//!   of this name without our tables is damage, never a crash in the making of it.

use super::sql::{self, Meta};
use rusqlite::{Connection, OpenFlags};
use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// Why a state folder could not be opened. Each message names the folder and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It can't be made, read or written.
    #[error("the state folder {} can't be used: {source}. Check that it is on a disk that can be written and has room, and that this user owns it", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("the state folder {} is in use by another process. Stop that one first, or give this one a folder of its own: two proxies on one state, or in front of one datastore, don't fence", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The database is not what was written.
    #[error("{} is damaged: {why}. It is not replaced by an empty one, since that would let old tokens in. Move the folder away, start with a new one, and run `palisade new-epoch` before you let writes in", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The database was there and is not any more.
    #[error("{} is missing, though this folder has held the state {id}. Put it back together with its -wal file; if it is lost, move the folder away, start with a new one, and run `palisade new-epoch` before you let writes in", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The id of the state that was there.
        id: String,
    },
    /// It was written by a newer version.
    #[error("{} was written by a newer version (schema {found}; this one knows {}). Run that version or a later one", file.display(), sql::VERSION)]
    Newer {
        /// The file.
        file: PathBuf,
        /// The schema's version in it.
        found: i64,
    },
    /// SQLite could not read or write it.
    #[error("{} can't be used: {source}. Check that the disk has room and no errors", file.display())]
    Database {
        /// The file.
        file: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

/// A state folder that is ours, with its new run counted.
pub(super) struct Opened {
    pub(super) lock: Lock,
    pub(super) write: Connection,
    pub(super) read: Connection,
    pub(super) meta: Meta,
}

/// The lock on a folder, free again when this is dropped.
///
/// Closing the file is not enough: the lock belongs to the open file (flock(2)), of which a process that was just forked
/// off has a copy until it becomes another program. So it is given back in so many words.
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // At worst the lock lasts until the last copy of the file is closed, as it would without this.
        let _ = self.0.unlock();
    }
}

/// Opens a folder, or makes it.
pub(super) fn open(folder: &Path) -> Result<Opened, OpenError> {
    let in_folder = |source| OpenError::Folder {
        folder: folder.to_owned(),
        source,
    };
    make(folder).map_err(in_folder)?;
    let mut lock = take(folder)?;
    let mut id = String::new();
    lock.0.read_to_string(&mut id).map_err(in_folder)?;

    let database = folder.join("state.db");
    let in_database = |source| of_database(&database, source);
    if !database.try_exists().map_err(in_folder)? {
        let id = id.trim().to_owned();
        if !id.is_empty() || beside(&database, "-wal").exists() {
            return Err(OpenError::Missing { file: database, id });
        }
        create(folder, &database)?;
    }
    let write = connect(&database).map_err(in_database)?;
    check(&write, &database)?;
    configure(&write).map_err(in_database)?;
    sql::start(&write).map_err(in_database)?;
    let meta = sql::meta(&write).map_err(in_database)?;
    if id.trim().is_empty() {
        sign(&mut lock.0, &meta.state_id).map_err(in_folder)?;
    }
    let read = connect(&database).map_err(in_database)?;
    configure(&read).map_err(in_database)?;
    read.pragma_update(None, "query_only", true)
        .map_err(in_database)?;
    Ok(Opened {
        lock,
        write,
        read,
        meta,
    })
}

/// Makes the folder and what is above it, for this user alone.
fn make(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    match folder
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        Some(parent) => sync_folder(parent),
        None => sync_folder(Path::new(".")),
    }
}

fn take(folder: &Path) -> Result<Lock, OpenError> {
    let in_folder = |source| OpenError::Folder {
        folder: folder.to_owned(),
        source,
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(folder.join("lock"))
        .map_err(in_folder)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
            folder: folder.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(in_folder(source)),
    }
}

fn sign(lock: &mut File, id: &str) -> io::Result<()> {
    lock.write_all(id.as_bytes())?;
    lock.sync_all()
}

/// Makes the database beside its final name, complete and synced, and then gives it that name.
fn create(folder: &Path, database: &Path) -> Result<(), OpenError> {
    let in_folder = |source| OpenError::Folder {
        folder: folder.to_owned(),
        source,
    };
    let half = folder.join("state.db.new");
    for leftover in [&half, &beside(&half, "-journal")] {
        match fs::remove_file(leftover) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(in_folder(error)),
            _ => {}
        }
    }
    // Made here, so that it is readable by this user alone; SQLite's further files take over the mode.
    File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&half)
        .map_err(in_folder)?;
    let in_half = |source| of_database(&half, source);
    let id = random_id().map_err(in_folder)?;
    let mut new = Connection::open(&half).map_err(in_half)?;
    let making = new.transaction().map_err(in_half)?;
    sql::create(&making, &id)
        .and_then(|()| making.commit())
        .map_err(in_half)?;
    new.close().map_err(|(_, source)| in_half(source))?;
    File::open(&half)
        .and_then(|file| file.sync_all())
        .map_err(in_folder)?;
    fs::rename(&half, database).map_err(in_folder)?;
    sync_folder(folder).map_err(in_folder)
}

fn connect(database: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(database, flags)?;
    db.busy_timeout(Duration::from_secs(5))?;
    Ok(db)
}

/// Only after the check: this writes to a file that is not a WAL database yet.
fn configure(db: &Connection) -> rusqlite::Result<()> {
    db.pragma_update(None, "journal_mode", "wal")?;
    db.pragma_update(None, "synchronous", "full")?;
    db.pragma_update(None, "temp_store", "memory")?;
    // The writer checkpoints by itself, to see its errors: SQLite's own way drops them.
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    db.pragma_update(None, "journal_size_limit", 1 << 20)
}

/// Whether this is ours, of a version that we know, and whole.
fn check(db: &Connection, file: &Path) -> Result<(), OpenError> {
    let damaged = |why: String| OpenError::Damaged {
        file: file.to_owned(),
        why,
    };
    let unreadable = |source| of_database(file, source);
    let application: i64 = pragma(db, "application_id").map_err(unreadable)?;
    if application != sql::APPLICATION {
        return Err(damaged("it is not a state of this program".to_owned()));
    }
    let found: i64 = pragma(db, "user_version").map_err(unreadable)?;
    if found > sql::VERSION {
        return Err(OpenError::Newer {
            file: file.to_owned(),
            found,
        });
    }
    let verdict: String = pragma(db, "quick_check(1)").map_err(unreadable)?;
    if verdict != "ok" {
        return Err(damaged(verdict));
    }
    match sql::meta(db) {
        Ok(_) => Ok(()),
        Err(error) => Err(damaged(error.to_string())),
    }
}

/// What SQLite's error means for the file: damage, or something with the disk.
fn of_database(file: &Path, source: rusqlite::Error) -> OpenError {
    let file = file.to_owned();
    match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt) => {
            OpenError::Damaged {
                file,
                why: source.to_string(),
            }
        }
        _ => OpenError::Database { file, source },
    }
}

fn pragma<T: rusqlite::types::FromSql>(db: &Connection, name: &str) -> rusqlite::Result<T> {
    db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// SQLite's further files are named by what it appends to the database's name.
fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// 128 bits from the system, as 32 hexadecimal digits.
fn random_id() -> io::Result<String> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is being started has a copy of every open file for a moment. It must not hold the folder.
    #[test]
    fn a_copy_of_the_file_does_not_keep_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let lock = take(folder.path()).unwrap();
        let copy = lock.0.try_clone().unwrap();
        assert!(matches!(take(folder.path()), Err(OpenError::InUse { .. })));
        drop(lock);
        take(folder.path()).unwrap();
        drop(copy);
    }
}
