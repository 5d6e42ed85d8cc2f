//! The schema and every statement.

use super::{
    Identity, NewEpoch, Stored,
    rule::{self, Row, Runs},
};
use palisade_fence::Token;
use rusqlite::{Connection, Result, params, types::Type};
use std::sync::Arc;

/// The version of the schema. A newer file is refused; an older one is brought up to date by code that comes with the
/// step.
pub(super) const VERSION: i64 = 1;
/// `PRAGMA application_id`: "PALI". Tells our file from any other SQLite file.
pub(super) const APPLICATION: i64 = 0x5041_4c49;

/// Numbers are stored as SQLite's signed 64-bit integers; the cluster id, which uses all 64 bits, as the same bits.
const SCHEMA: &str = "
CREATE TABLE meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  state_id TEXT NOT NULL,
  clean INTEGER NOT NULL,
  run INTEGER NOT NULL,
  unclean_run INTEGER NOT NULL,
  settled_run INTEGER NOT NULL,
  base INTEGER NOT NULL,
  base_run INTEGER NOT NULL,
  cluster_id INTEGER,
  revision INTEGER NOT NULL,
  frozen TEXT
) STRICT;
CREATE TABLE floors (
  scope TEXT PRIMARY KEY,
  floor INTEGER NOT NULL,
  opened INTEGER NOT NULL,
  settled_run INTEGER NOT NULL,
  marked_run INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// The one row of `meta`.
#[derive(Clone, Debug)]
pub(super) struct Meta {
    pub(super) state_id: String,
    pub(super) runs: Runs,
    pub(super) identity: Option<Identity>,
    pub(super) frozen: Option<String>,
}

/// Makes the tables of a state that has met nobody yet. Its last stop counts as clean.
pub(super) fn create(db: &Connection, state_id: &str) -> Result<()> {
    db.pragma_update(None, "application_id", APPLICATION)?;
    db.pragma_update(None, "user_version", VERSION)?;
    db.execute_batch(SCHEMA)?;
    db.execute(
        "INSERT INTO meta VALUES (1, ?1, 1, 0, 0, 0, 0, 0, NULL, 0, NULL)",
        [state_id],
    )?;
    Ok(())
}

/// Counts a new run, unclean until a clean stop says otherwise.
pub(super) fn start(db: &Connection) -> Result<()> {
    db.execute(
        "UPDATE meta SET run = run + 1, unclean_run = iif(clean, unclean_run, run + 1), clean = 0",
        [],
    )
    .map(drop)
}

/// Reads `meta`.
pub(super) fn meta(db: &Connection) -> Result<Meta> {
    db.query_row(
        "SELECT run, unclean_run, settled_run, base, base_run, state_id, cluster_id, revision, frozen FROM meta",
        [],
        |row| {
            let revision = number(row, 7)?;
            let cluster_id: Option<i64> = row.get(6)?;
            Ok(Meta {
                state_id: row.get(5)?,
                runs: runs(row, 0)?,
                identity: cluster_id.map(|id| Identity { cluster_id: id as u64, revision }),
                frozen: row.get(8)?,
            })
        },
    )
}

/// What is stored for a scope. One statement, so that the row and the run numbers are of one moment.
pub(super) fn load(db: &Connection, scope: &str) -> Result<Option<Stored>> {
    let mut statement = db.prepare_cached(
        "SELECT run, unclean_run, m.settled_run, base, base_run, floor, opened, f.settled_run, marked_run
         FROM meta m LEFT JOIN floors f ON f.scope = ?1",
    )?;
    statement.query_row([scope], |row| {
        let stored = match row.get_ref(5)?.data_type() {
            Type::Null => None,
            _ => Some(floor_row(row, 5)?),
        };
        rule::stored(stored, &runs(row, 0)?).map_err(|floor| out_of_range(5, floor))
    })
}

/// Whether a scope has a row.
pub(super) fn has(db: &Connection, scope: &str) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM floors WHERE scope = ?1")?
        .exists([scope])
}

/// How many scopes have a row.
pub(super) fn count(db: &Connection) -> Result<u64> {
    db.query_row("SELECT count(*) FROM floors", [], |row| number(row, 0))
}

/// The next rows in the order of their names' bytes.
pub(super) fn page(
    db: &Connection,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(Arc<str>, Stored)>> {
    let mut statement = db.prepare_cached(
        "SELECT run, unclean_run, m.settled_run, base, base_run, floor, opened, f.settled_run, marked_run, scope
         FROM meta m JOIN floors f WHERE scope > ?1 ORDER BY scope LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![after.unwrap_or_default(), limit], |row| {
        let scope: String = row.get(9)?;
        let stored = rule::stored(Some(floor_row(row, 5)?), &runs(row, 0)?)
            .map_err(|floor| out_of_range(5, floor))?;
        Ok(stored.map(|stored| (scope.into(), stored)))
    })?;
    rows.filter_map(Result::transpose).collect()
}

/// Closes a scope: max(), and nothing at all for a floor that is not above the stored one. With etcd a floor is a
/// revision that was seen, so the highest revision seen moves with it.
pub(super) fn close(db: &Connection, scope: &str, floor: Token) -> Result<()> {
    db.prepare_cached(
        "INSERT INTO floors (scope, floor, opened, settled_run, marked_run)
         SELECT ?1, ?2, 0, iif(base = 0 OR settled_run >= base_run, run, 0), 0 FROM meta WHERE ?2 > base
         ON CONFLICT (scope) DO UPDATE SET floor = excluded.floor, opened = 0
         WHERE excluded.floor > floors.floor",
    )?
    .execute(params![scope, floor.revision()])?;
    db.prepare_cached(
        "UPDATE meta SET revision = ?1 WHERE revision < ?1 AND cluster_id IS NOT NULL",
    )?
    .execute([floor.revision()])
    .map(drop)
}

/// Records that this floor has opened, only where the stored floor still is this one: the row's, or the one that a new
/// epoch gave to every scope.
pub(super) fn opened(db: &Connection, scope: &str, floor: Token) -> Result<()> {
    let changed = db
        .prepare_cached(
            "UPDATE floors SET floor = ?2, opened = 1, settled_run = run FROM meta
             WHERE scope = ?1 AND max(floor, base) = ?2",
        )?
        .execute(params![scope, floor.revision()])?;
    if changed > 0 {
        return Ok(());
    }
    db.prepare_cached(
        "INSERT OR IGNORE INTO floors SELECT ?1, base, 1, run, 0 FROM meta WHERE base = ?2",
    )?
    .execute(params![scope, floor.revision()])
    .map(drop)
}

/// Records that nothing of the scope is unsettled. A scope that has no row, but a floor from a new epoch, gets one.
pub(super) fn settled(db: &Connection, scope: &str) -> Result<()> {
    let changed = db
        .prepare_cached("UPDATE floors SET settled_run = run FROM meta WHERE scope = ?1")?
        .execute([scope])?;
    if changed > 0 {
        return Ok(());
    }
    db.prepare_cached("INSERT INTO floors SELECT ?1, base, 0, run, 0 FROM meta WHERE base > 0")?
        .execute([scope])
        .map(drop)
}

/// Records that everything from before this run is settled.
pub(super) fn all_settled(db: &Connection, run: u64) -> Result<()> {
    db.prepare_cached("UPDATE meta SET settled_run = max(settled_run, ?1)")?
        .execute([run as i64])
        .map(drop)
}

/// Marks a scope as unsettled for the next run.
pub(super) fn mark(db: &Connection, scope: &str) -> Result<()> {
    db.prepare_cached("UPDATE floors SET marked_run = run + 1 FROM meta WHERE scope = ?1")?
        .execute([scope])
        .map(drop)
}

/// Notes a clean stop.
pub(super) fn clean(db: &Connection) -> Result<()> {
    db.execute("UPDATE meta SET clean = 1", []).map(drop)
}

/// Writes the lease store's identity. The revision never goes down, whatever a close has written meanwhile.
pub(super) fn identity(db: &Connection, identity: Identity) -> Result<()> {
    db.prepare_cached("UPDATE meta SET cluster_id = ?1, revision = max(revision, ?2)")?
        .execute(params![
            identity.cluster_id as i64,
            clamp(identity.revision)
        ])
        .map(drop)
}

/// Records why the lease store is not trusted.
pub(super) fn frozen(db: &Connection, why: &str) -> Result<()> {
    db.execute("UPDATE meta SET frozen = ?1", [why]).map(drop)
}

/// Begins a new epoch, in constant time: the base closes every scope, and the new run makes each one unsettled.
pub(super) fn new_epoch(db: &Connection, epoch: &NewEpoch) -> Result<()> {
    db.execute(
        "UPDATE meta SET base = max(base, ?1), run = run + 1, base_run = run + 1, unclean_run = run + 1, frozen = NULL",
        [epoch.floor.revision()],
    )?;
    if let Some(identity) = epoch.identity {
        db.execute(
            "UPDATE meta SET cluster_id = ?1, revision = ?2",
            params![identity.cluster_id as i64, clamp(identity.revision)],
        )?;
    }
    Ok(())
}

fn runs(row: &rusqlite::Row<'_>, at: usize) -> Result<Runs> {
    Ok(Runs {
        run: number(row, at)?,
        unclean: number(row, at + 1)?,
        all_settled: number(row, at + 2)?,
        base: number(row, at + 3)?,
        base_run: number(row, at + 4)?,
    })
}

fn floor_row(row: &rusqlite::Row<'_>, at: usize) -> Result<Row> {
    Ok(Row {
        floor: number(row, at)?,
        opened: row.get(at + 1)?,
        settled: number(row, at + 2)?,
        marked: number(row, at + 3)?,
    })
}

/// None of our numbers is negative: one that is means damage.
fn number(row: &rusqlite::Row<'_>, at: usize) -> Result<u64> {
    let number: i64 = row.get(at)?;
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(at, number))
}

fn out_of_range(column: usize, number: u64) -> rusqlite::Error {
    rusqlite::Error::IntegralValueOutOfRange(column, number as i64)
}

/// Revisions are below 2^63 already; a store that says otherwise must not make the write fail.
fn clamp(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}
