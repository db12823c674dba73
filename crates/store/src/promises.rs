//! For how long promises were broken, by minute: what "minutes broken in the last day" is summed from.

use rusqlite::params;

use crate::db::{Store, StoreError};

/// Made when the first promise is recorded: histories without promises do not have it.
const TABLE: &str = "
CREATE TABLE IF NOT EXISTS promise (
    name TEXT NOT NULL,              -- the scope it was stated for
    minute INTEGER NOT NULL,         -- since 1970
    watched_s REAL NOT NULL,         -- judged
    broken_s REAL NOT NULL,          -- judged and found broken
    PRIMARY KEY (name, minute)
) WITHOUT ROWID";

/// Minutes in a day.
const DAY: u64 = 24 * 60;

/// How long a promise was watched and broken, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PromiseTime {
    /// Judged.
    pub watched_s: f64,
    /// Judged and found broken.
    pub broken_s: f64,
}

impl Store {
    /// Adds to a minute (since 1970) of a promise; forgets what is older than two days.
    pub fn add_promise_time(&mut self, name: &str, minute: u64, time: PromiseTime) -> Result<(), StoreError> {
        let wrap = self.wrap();
        self.db.execute_batch(TABLE).map_err(&wrap)?;
        let added = self.db.execute(
            "INSERT INTO promise (name, minute, watched_s, broken_s) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (name, minute) DO UPDATE
             SET watched_s = watched_s + excluded.watched_s, broken_s = broken_s + excluded.broken_s",
            params![name, minute as i64, time.watched_s, time.broken_s],
        );
        added.map_err(&wrap)?;
        let oldest = self.believed_minute(minute).saturating_sub(2 * DAY) as i64;
        self.db.execute("DELETE FROM promise WHERE minute < ?1", [oldest]).map_err(wrap)?;
        Ok(())
    }

    /// What is known of a promise over the day that ends with `minute`; `None` when nothing was recorded.
    pub fn promise_day(&self, name: &str, minute: u64) -> Result<Option<PromiseTime>, StoreError> {
        let wrap = self.wrap();
        if !self.has_table("promise")? {
            return Ok(None);
        }
        let (watched_s, broken_s): (Option<f64>, Option<f64>) = self
            .db
            .query_row(
                "SELECT sum(watched_s), sum(broken_s) FROM promise WHERE name = ?1 AND minute > ?2 AND minute <= ?3",
                params![name, minute.saturating_sub(DAY) as i64, minute as i64],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .map_err(wrap)?;
        Ok(watched_s.zip(broken_s).map(|(watched_s, broken_s)| PromiseTime { watched_s, broken_s }))
    }
}
