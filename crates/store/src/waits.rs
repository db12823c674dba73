//! Lengths of containers' waits for a CPU, by minute.

use std::collections::BTreeMap;

use evenkeel_base::Histogram;
use rusqlite::{OptionalExtension, params};

use crate::db::{Store, StoreError};

/// Made when the first are recorded: histories without lengths of waits do not have it.
const TABLE: &str = "
CREATE TABLE IF NOT EXISTS waits (
    minute INTEGER NOT NULL,         -- since 1970
    container TEXT NOT NULL,
    doc TEXT NOT NULL,               -- JSON: pairs of bucket and count, see evenkeel_base::Histogram
    PRIMARY KEY (minute, container)
) WITHOUT ROWID";

/// Lengths are kept for a day ...
const DAY: u64 = 24 * 60;
/// ... and for as many lines, the latest: about 15 MB, ...
const MOST: u64 = 100_000;
/// ... or one for this many bytes that the history may have.
const BYTES_A_LINE: u64 = 1024;

impl Store {
    /// Adds to a minute (since 1970); forgets what is older than a day.
    pub fn add_waits(&mut self, minute: u64, waits: &BTreeMap<String, Histogram>) -> Result<(), StoreError> {
        let wrap = self.wrap();
        self.db.execute_batch(TABLE).map_err(&wrap)?;
        let oldest = self.believed_minute(minute).saturating_sub(DAY) as i64;
        let most = MOST.min(self.limits.max_bytes / BYTES_A_LINE) as i64;
        let add = || -> rusqlite::Result<()> {
            let write = self.db.unchecked_transaction()?;
            for (container, waits) in waits {
                let kept: Option<String> = write
                    .query_row(
                        "SELECT doc FROM waits WHERE minute = ?1 AND container = ?2",
                        params![minute as i64, container],
                        |row| row.get(0),
                    )
                    .optional()?;
                let mut sum = kept.as_deref().map(read).unwrap_or_default();
                sum.merge(waits);
                write.execute(
                    "INSERT OR REPLACE INTO waits (minute, container, doc) VALUES (?1, ?2, ?3)",
                    params![minute as i64, container, serde_json::to_string(&sum).unwrap_or_default()],
                )?;
            }
            write.execute("DELETE FROM waits WHERE minute < ?1", [oldest])?;
            let lines: i64 = write.query_row("SELECT count(*) FROM waits", [], |row| row.get(0))?;
            if lines > most {
                // Whole minutes go.
                write.execute(
                    "DELETE FROM waits WHERE minute <=
                     (SELECT minute FROM waits ORDER BY minute LIMIT 1 OFFSET ?1)",
                    [lines - most],
                )?;
            }
            write.commit()
        };
        add().map_err(wrap)
    }

    /// Lengths of waits in the minutes that have a part in this time (nanoseconds since 1970), by container; empty when
    /// none were recorded.
    pub fn waits(&self, from_ns: u64, to_ns: u64) -> Result<BTreeMap<String, Histogram>, StoreError> {
        let wrap = self.wrap();
        let mut all: BTreeMap<String, Histogram> = BTreeMap::new();
        if !self.has_table("waits")? {
            return Ok(all);
        }
        let mut statement = self
            .db
            .prepare("SELECT container, doc FROM waits WHERE minute BETWEEN ?1 AND ?2")
            .map_err(&wrap)?;
        let rows = statement
            .query_map(minutes(from_ns, to_ns), |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
            })
            .map_err(&wrap)?;
        for row in rows {
            let (container, doc) = row.map_err(&wrap)?;
            all.entry(container).or_default().merge(&read(&doc));
        }
        Ok(all)
    }

    /// Lengths of one container's waits by minute since 1970, of the minutes that have a part in this time and in which
    /// lengths were counted: `None` where none were its.
    pub fn waits_by_minute(
        &self,
        container: &str,
        from_ns: u64,
        to_ns: u64,
    ) -> Result<BTreeMap<u64, Option<Histogram>>, StoreError> {
        let wrap = self.wrap();
        if !self.has_table("waits")? {
            return Ok(BTreeMap::new());
        }
        let mut statement = self
            .db
            .prepare(
                "SELECT minute, max(CASE container WHEN ?3 THEN doc END) FROM waits
                 WHERE minute BETWEEN ?1 AND ?2 GROUP BY minute",
            )
            .map_err(&wrap)?;
        let (first, last) = minutes(from_ns, to_ns);
        let rows = statement
            .query_map(params![first, last, container], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?))
            })
            .map_err(&wrap)?;
        let mut all = BTreeMap::new();
        for row in rows {
            let (minute, doc) = row.map_err(&wrap)?;
            if let Ok(minute) = u64::try_from(minute) {
                all.insert(minute, doc.as_deref().map(read));
            }
        }
        Ok(all)
    }
}

/// The first and the last minute that have a part in a time: one that begins at its end has none.
fn minutes(from_ns: u64, to_ns: u64) -> (i64, i64) {
    (minute(from_ns), minute(to_ns.saturating_sub(1)))
}

/// The minute since 1970.
fn minute(ns: u64) -> i64 {
    (ns / 60_000_000_000) as i64
}

/// What is damaged counts as nothing.
fn read(doc: &str) -> Histogram {
    serde_json::from_str(doc).unwrap_or_default()
}
