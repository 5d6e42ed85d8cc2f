//! The rows, read and written inside one transaction.

use super::translate;
use crate::{
    LeaseName,
    clock::boot,
    record::Record,
    store::{Seen, SessionId, Status, StoreError, View},
};
use palisade_fence::{Time, Token};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use std::time::Duration;

/// How many sessions that have run out one opening of a session clears away.
const CLEAR: i64 = 100;

/// A session is alive if this holds of its row; `?1` is the boot's id, `?2` the time.
const ALIVE: &str = "(SELECT id FROM sessions WHERE boot = ?1 AND deadline > ?2)";

/// The id of this boot (`random(4)`: `/proc/sys/kernel/random/boot_id`).
pub(super) fn boot_id() -> Result<String, StoreError> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .map_err(|error| StoreError::Denied(format!("this boot's id can't be read: {error}")))
}

/// One transaction's view. The time is that of its beginning: after any wait for the lock.
pub(super) struct Rows<'a> {
    database: &'a Connection,
    boot: &'a str,
    now: i64,
}

/// A lease's row whose session, if any, is alive.
pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) session: Option<SessionId>,
    pub(super) record: String,
}

impl<'a> Rows<'a> {
    pub(super) fn new(database: &'a Connection, boot_id: &'a str) -> Self {
        Self {
            database,
            boot: boot_id,
            now: nanos(boot()),
        }
    }

    fn one<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, StoreError> {
        let mut statement = self
            .database
            .prepare_cached(sql)
            .map_err(|e| translate(&e))?;
        statement
            .query_row(values, read)
            .optional()
            .map_err(|e| translate(&e))
    }

    fn all<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self
            .database
            .prepare_cached(sql)
            .map_err(|e| translate(&e))?;
        let rows = statement
            .query_map(values, read)
            .map_err(|e| translate(&e))?;
        rows.collect::<Result<_, _>>().map_err(|e| translate(&e))
    }

    /// Gives the number of rows changed.
    fn change(&self, sql: &str, values: impl Params) -> Result<usize, StoreError> {
        let mut statement = self
            .database
            .prepare_cached(sql)
            .map_err(|e| translate(&e))?;
        statement.execute(values).map_err(|e| translate(&e))
    }

    pub(super) fn revision(&self) -> Result<u64, StoreError> {
        let found = self.one("SELECT revision FROM store", [], |row| row.get::<_, i64>(0))?;
        found
            .and_then(|revision| u64::try_from(revision).ok())
            .ok_or_else(|| StoreError::Denied("the file has lost its revision counter".to_owned()))
    }

    /// The next revision.
    pub(super) fn advance(&self) -> Result<u64, StoreError> {
        self.change("UPDATE store SET revision = revision + 1", [])?;
        self.revision()
    }

    pub(super) fn holder(&self, name: &LeaseName) -> Result<Option<Grant>, StoreError> {
        let sql = format!(
            "SELECT revision, session, record FROM leases WHERE name = ?3 AND (session IS NULL OR session IN {ALIVE})"
        );
        let found = self.one(&sql, params![self.boot, self.now, name.as_str()], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, Option<i64>>(1)?,
                row.get(2)?,
            ))
        })?;
        Ok(found.and_then(|(revision, session, record)| {
            let token = Token::from_revision(revision)?;
            Some(Grant {
                token,
                session: session.map(SessionId),
                record,
            })
        }))
    }

    pub(super) fn alive(&self, session: SessionId) -> Result<bool, StoreError> {
        let sql = format!("SELECT 1 WHERE ?3 IN {ALIVE}");
        Ok(self
            .one(&sql, params![self.boot, self.now, session.0], |_| Ok(()))?
            .is_some())
    }

    /// When a session ends unless it is kept alive; `None` if it has ended.
    pub(super) fn deadline(&self, session: SessionId) -> Result<Option<Time>, StoreError> {
        let sql = "SELECT deadline FROM sessions WHERE id = ?3 AND boot = ?1 AND deadline > ?2";
        let found = self.one(sql, params![self.boot, self.now, session.0], |row| {
            row.get::<_, i64>(0)
        })?;
        Ok(found.map(|deadline| Time::from_nanos(deadline.unsigned_abs())))
    }

    pub(super) fn open_session(&self, session: SessionId, ttl: Duration) -> Result<(), StoreError> {
        self.clear()?;
        let ttl = nanos(Time::ZERO.after(ttl));
        let sql = "INSERT INTO sessions (id, boot, ttl, deadline) VALUES (?1, ?2, ?3, ?4)";
        self.change(
            sql,
            params![session.0, self.boot, ttl, self.now.saturating_add(ttl)],
        )?;
        Ok(())
    }

    /// Rows of sessions that have run out mean nothing; some of them go each time.
    fn clear(&self) -> Result<(), StoreError> {
        let sql = "SELECT id FROM sessions WHERE deadline <= ?2 OR boot <> ?1 LIMIT ?3";
        let dead = self.all(sql, params![self.boot, self.now, CLEAR], |row| {
            row.get::<_, i64>(0)
        })?;
        dead.into_iter()
            .try_for_each(|id| self.close_session(SessionId(id)))
    }

    pub(super) fn keep_alive(&self, session: SessionId) -> Result<bool, StoreError> {
        let sql =
            "UPDATE sessions SET deadline = ?2 + ttl WHERE id = ?3 AND boot = ?1 AND deadline > ?2";
        Ok(self.change(sql, params![self.boot, self.now, session.0])? == 1)
    }

    pub(super) fn close_session(&self, session: SessionId) -> Result<(), StoreError> {
        self.change("DELETE FROM leases WHERE session = ?1", [session.0])?;
        self.change("DELETE FROM waiters WHERE session = ?1", [session.0])?;
        self.change("DELETE FROM sessions WHERE id = ?1", [session.0])?;
        Ok(())
    }

    pub(super) fn grant(
        &self,
        name: &LeaseName,
        session: SessionId,
        record: &Record,
    ) -> Result<Token, StoreError> {
        let revision = self.advance()?;
        let sql = "INSERT OR REPLACE INTO leases (name, revision, session, record) VALUES (?1, ?2, ?3, ?4)";
        self.change(
            sql,
            params![name.as_str(), signed(revision), session.0, record.to_json()],
        )?;
        self.leave_queue(name, session)?;
        Token::new(revision)
            .ok_or_else(|| StoreError::Denied("the revision counter is used up".to_owned()))
    }

    pub(super) fn release(&self, name: &LeaseName, token: Token) -> Result<bool, StoreError> {
        let sql = "DELETE FROM leases WHERE name = ?1 AND revision = ?2";
        Ok(self.change(sql, params![name.as_str(), token.revision()])? == 1)
    }

    pub(super) fn queue(
        &self,
        name: &LeaseName,
        session: SessionId,
        record: &Record,
    ) -> Result<(), StoreError> {
        if self.ticket(name, session)?.is_none() {
            let sql =
                "INSERT INTO waiters (name, session, revision, record) VALUES (?1, ?2, ?3, ?4)";
            let revision = signed(self.advance()?);
            self.change(
                sql,
                params![name.as_str(), session.0, revision, record.to_json()],
            )?;
        }
        Ok(())
    }

    fn leave_queue(&self, name: &LeaseName, session: SessionId) -> Result<(), StoreError> {
        let sql = "DELETE FROM waiters WHERE name = ?1 AND session = ?2";
        self.change(sql, params![name.as_str(), session.0])
            .map(drop)
    }

    /// The own place in the queue, while the session is alive.
    pub(super) fn ticket(
        &self,
        name: &LeaseName,
        session: SessionId,
    ) -> Result<Option<u64>, StoreError> {
        let sql = format!(
            "SELECT revision FROM waiters WHERE name = ?3 AND session = ?4 AND session IN {ALIVE}"
        );
        let values = params![self.boot, self.now, name.as_str(), session.0];
        let found = self.one(&sql, values, |row| row.get::<_, i64>(0))?;
        Ok(found.and_then(|revision| u64::try_from(revision).ok()))
    }

    /// The live waiter right before a place; the last of all without one.
    pub(super) fn ahead(
        &self,
        name: &LeaseName,
        before: Option<u64>,
    ) -> Result<Option<SessionId>, StoreError> {
        let sql = format!(
            "SELECT session FROM waiters WHERE name = ?3 AND revision < ?4 AND session IN {ALIVE}
             ORDER BY revision DESC LIMIT 1"
        );
        let before = before.map_or(i64::MAX, signed);
        let values = params![self.boot, self.now, name.as_str(), before];
        Ok(self
            .one(&sql, values, |row| row.get::<_, i64>(0))?
            .map(SessionId))
    }

    pub(super) fn view(&self, name: &LeaseName, session: SessionId) -> Result<View, StoreError> {
        let ticket = self.ticket(name, session)?;
        let holder = self.holder(name)?;
        Ok(View {
            revision: self.revision()?,
            record: holder
                .as_ref()
                .and_then(|row| Record::from_json(row.record.as_bytes())),
            holder: holder.map(|row| Seen {
                token: row.token,
                session: row.session,
            }),
            ticket,
            ahead: self.ahead(name, ticket)?,
        })
    }

    pub(super) fn status(&self, name: &LeaseName) -> Result<Status, StoreError> {
        let holder = self.holder(name)?;
        let session = holder.as_ref().and_then(|row| row.session);
        let deadline = session.map_or(Ok(None), |session| self.deadline(session))?;
        let sql = format!(
            "SELECT record FROM waiters WHERE name = ?3 AND session IN {ALIVE} ORDER BY revision"
        );
        let waiters = self.all(&sql, params![self.boot, self.now, name.as_str()], |row| {
            row.get::<_, String>(0)
        })?;
        Ok(Status {
            name: name.clone(),
            record: holder
                .as_ref()
                .and_then(|row| Record::from_json(row.record.as_bytes())),
            remaining: deadline.map(|at| at.since(Time::from_nanos(self.now.unsigned_abs()))),
            holder: holder.map(|row| Seen {
                token: row.token,
                session: row.session,
            }),
            waiters: waiters
                .iter()
                .map(|json| Record::from_json(json.as_bytes()).unwrap_or_default())
                .collect(),
        })
    }

    /// The names of all leases that somebody may hold, with what stands there.
    pub(super) fn holders(&self, most: u32) -> Result<Vec<(String, Token, Record)>, StoreError> {
        let sql = format!(
            "SELECT name, revision, record FROM leases WHERE session IN {ALIVE} ORDER BY name LIMIT ?3"
        );
        let rows = self.all(&sql, params![self.boot, self.now, most], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, i64>(1)?,
                row.get::<_, String>(2)?,
            ))
        })?;
        Ok(rows
            .into_iter()
            .filter_map(|(name, revision, record)| {
                let record = Record::from_json(record.as_bytes()).unwrap_or_default();
                Some((name, Token::from_revision(revision)?, record))
            })
            .collect())
    }

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<Status>, StoreError> {
        let sql = "SELECT name FROM leases WHERE substr(name, 1, length(?1)) = ?1 ORDER BY name";
        let names = self.all(sql, [prefix], |row| row.get::<_, String>(0))?;
        let statuses = names
            .iter()
            .filter_map(|name| LeaseName::parse(name).ok())
            .map(|name| self.status(&name));
        let mut found = statuses.collect::<Result<Vec<_>, _>>()?;
        found.retain(|status| status.holder.is_some());
        Ok(found)
    }
}

/// SQLite's integers are signed; a boot lasts less than 292 years.
fn nanos(time: Time) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
