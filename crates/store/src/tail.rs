//! The unfinished block, committed every few seconds: what a crash would lose otherwise.
//!
//! A block is small because it holds half a minute; a crash must not cost that much. So what was added is written in parts as it
//! comes, each only the differences since the one before. The finished block replaces them in one transaction: a reader sees
//! either. What a killed writer left is read as it is, and becomes a block when it is old.

use std::sync::Arc;

use rusqlite::{Row, Transaction, TransactionBehavior, params};

use crate::block::{BlockReader, BlockWriter};
use crate::db::{Store, StoreError};
use crate::pending::Tail;
use crate::samples::write_block;

/// The parts of a block that is not finished.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) session: i64,
    pub(crate) boot_id: Arc<str>,
    pub(crate) first_wall_ns: u64,
    pub(crate) last_wall_ns: u64,
    pub(crate) data: Vec<Vec<u8>>,
}

impl Store {
    /// Commits what was added to the pending block since the last time.
    pub(crate) fn keep_tail(&mut self) -> Result<(), StoreError> {
        self.leave_what_was_taken()?;
        let last = self.pending.wall_ns().1;
        let session = self.session_from(self.pending.wall_ns().0)?;
        let (tail, pending) = (&self.tail, &self.pending);
        if pending.samples() == tail.samples() {
            return Ok(());
        }
        let data =
            pending.part(&tail.mark, &self.infos).map_err(|error| StoreError::io(&self.path, error))?;
        let samples = pending.samples() - tail.samples();
        self.db
            .prepare_cached(
                "INSERT INTO tail (session, part, first_wall_ns, last_wall_ns, samples, data)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )
            .and_then(|mut statement| {
                let first = tail.first_wall_ns as i64;
                statement.execute(params![session, tail.parts, first, last as i64, samples, data])
            })
            .map_err(self.wrap())?;
        self.tail = Tail {
            mark: pending.mark(),
            parts: tail.parts + 1,
            last_row: Some(self.db.last_insert_rowid()),
            kept_ns: Some(pending.last().monotonic_ns),
            first_wall_ns: 0,
        };
        Ok(())
    }

    /// Another writer takes for abandoned what was not touched for long (this process was stopped) and makes a block of it. Only what
    /// came since is still pending then.
    pub(crate) fn leave_what_was_taken(&mut self) -> Result<(), StoreError> {
        let Some(row) = self.tail.last_row else { return Ok(()) };
        let there: i64 = self
            .db
            .prepare_cached("SELECT count(*) FROM tail WHERE id = ?1 AND session = ?2")
            .and_then(|mut statement| statement.query_row(params![row, self.session], |row| row.get(0)))
            .map_err(self.wrap())?;
        if there > 0 {
            return Ok(());
        }
        let damaged = |damage| StoreError::damaged(&self.path, damage);
        let data = self.pending.finish(&self.infos).map_err(|error| StoreError::io(&self.path, error))?;
        let mut reader = BlockReader::new(&data).map_err(damaged)?;
        let mut rest = BlockWriter::default();
        let mut taken = self.tail.samples();
        while let Some(sample) = reader.advance().map_err(damaged)? {
            match taken.checked_sub(1) {
                Some(left) => taken = left,
                None => rest.push(sample),
            }
        }
        self.pending = rest;
        self.tail =
            Tail { kept_ns: self.tail.kept_ns, first_wall_ns: self.tail.first_wall_ns, ..Tail::default() };
        Ok(())
    }

    /// Whether there is such a table: files of earlier versions lack some, and a reader cannot make them.
    pub(crate) fn has_table(&self, name: &str) -> Result<bool, StoreError> {
        self.db
            .prepare_cached("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1")
            .and_then(|mut statement| statement.query_row([name], |row| row.get::<_, i64>(0)))
            .map(|there| there > 0)
            .map_err(self.wrap())
    }

    /// All unfinished blocks. What follows no beginning cannot be read, and is left out.
    pub(crate) fn unfinished(&self) -> Result<Vec<Parts>, StoreError> {
        if !self.has_table("tail")? {
            return Ok(Vec::new());
        }
        let mut found: Vec<Parts> = Vec::new();
        let mut add = |row: &Row<'_>| -> rusqlite::Result<()> {
            let (session, part, last): (i64, u32, i64) = (row.get(0)?, row.get(1)?, row.get(3)?);
            let last_wall_ns = last.max(0) as u64;
            match found.last_mut().filter(|parts| parts.session == session) {
                Some(parts) if part > 0 && parts.data.len() == part as usize => {
                    parts.last_wall_ns = last_wall_ns;
                    parts.data.push(row.get(4)?);
                }
                _ if part == 0 => found.push(Parts {
                    session,
                    boot_id: row.get::<_, String>(5)?.into(),
                    first_wall_ns: row.get::<_, i64>(2)?.max(0) as u64,
                    last_wall_ns,
                    data: vec![row.get(4)?],
                }),
                _ => (),
            }
            Ok(())
        };
        let mut read = || {
            let mut statement = self.db.prepare_cached(
                "SELECT t.session, t.part, t.first_wall_ns, t.last_wall_ns, t.data, s.boot_id
                 FROM tail t JOIN session s ON s.id = t.session ORDER BY t.session, t.id",
            )?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                add(row)?;
            }
            Ok(())
        };
        read().map_err(self.wrap())?;
        Ok(found)
    }

    /// Makes blocks of what killed writers left, once it is older than this.
    pub(crate) fn fold_abandoned(&self, older_than_ns: u64) -> Result<(), StoreError> {
        let wrap = self.wrap();
        let old = "SELECT session FROM tail GROUP BY session HAVING max(last_wall_ns) < ?1";
        let cutoff = older_than_ns.min(i64::MAX as u64) as i64;
        let sessions: Vec<i64> = self
            .db
            .prepare_cached(old)
            .and_then(|mut statement| statement.query_map([cutoff], |row| row.get(0))?.collect())
            .map_err(&wrap)?;
        if sessions.is_empty() {
            return Ok(());
        }
        // Another writer may do the same: whoever comes second finds nothing.
        let write = Transaction::new_unchecked(&self.db, TransactionBehavior::Immediate).map_err(&wrap)?;
        for parts in self.unfinished()?.iter().filter(|parts| sessions.contains(&parts.session)) {
            let mut block = BlockWriter::default();
            let mut data = parts.data.iter();
            // As of a damaged block, what was read before the damage is kept.
            let Some(Ok(mut reader)) = data.next().map(|data| BlockReader::new(data)) else { continue };
            loop {
                while let Ok(Some(sample)) = reader.advance() {
                    block.push(sample);
                }
                let Some(Ok(())) = data.next().map(|data| reader.follow(data)) else { break };
            }
            if block.samples() > 0 {
                write_block(self, parts.session, 0, &block, reader.names())?;
            }
        }
        for session in sessions {
            self.db.execute("DELETE FROM tail WHERE session = ?1", [session]).map_err(&wrap)?;
        }
        write.commit().map_err(wrap)
    }
}
