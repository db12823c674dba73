//! Runs of the loop: stages, trial windows, changes.

use evenkeel_base::run::{ChangeRecord, RunRecord, Stage};
use rusqlite::{OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::db::{Store, StoreError, now_ns};

/// Number of a run in this history, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub i64);

/// One measurement window of a trial, as measured: what a decision can be re-judged from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrialWindow {
    /// Number of the trial within the run.
    pub trial: u32,
    /// Settings in force in this window.
    pub settings: String,
    /// Wall clock at the start, nanoseconds since 1970.
    pub started_ns: u64,
    pub seconds: f64,
    /// CPU got by the scope, percent of one CPU.
    pub cpu_pct: f64,
    /// Time waited per second of CPU got; `None` where the kernel does not count waits.
    pub wait_per_ran: Option<f64>,
    /// CPU got / CPU wanted, where known or estimated.
    pub fulfilment: Option<f64>,
    /// Steal of the host during the window, percent of one CPU.
    pub steal_pct: Option<f64>,
    /// 99th percentile of the waits of each protected scope, milliseconds, in the run's order; `None` where nobody
    /// waited, or that could not be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected_p99_ms: Vec<Option<f64>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredRun {
    pub id: RunId,
    /// Boot of the host it ran in.
    pub boot_id: String,
    /// What it did. In a list of runs, without stages and changes.
    pub record: RunRecord,
    /// Wall clock at the end, nanoseconds since 1970; `None` while it runs, or when it was killed.
    pub ended_ns: Option<u64>,
    /// How it ended, in words.
    pub outcome: Option<String>,
}

/// A change, in force or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredChange {
    /// What was changed, why and to what effect.
    #[serde(flatten)]
    pub change: ChangeRecord,
    /// Wall clock when it was taken back, nanoseconds since 1970; `None` while in force.
    pub undone_ns: Option<u64>,
}

impl Store {
    /// Starts a run, with what is known of it so far (stages and changes included).
    pub fn begin_run(&mut self, record: &RunRecord) -> Result<RunId, StoreError> {
        let doc = self.head(record)?;
        self.db
            .execute(
                "INSERT INTO run (boot_id, started_ns, doc) VALUES (?1, ?2, ?3)",
                params![self.boot_id, record.started_ns as i64, doc],
            )
            .map_err(self.wrap())?;
        let run = RunId(self.db.last_insert_rowid());
        for stage in &record.stages {
            self.add_stage(run, stage)?;
        }
        self.set_changes(run, &record.changes)?;
        Ok(run)
    }

    /// Writes scope, baseline, state now, settings and own cost again; stages and changes are left alone.
    pub fn update_run(&mut self, run: RunId, record: &RunRecord) -> Result<(), StoreError> {
        let doc = self.head(record)?;
        self.db.execute("UPDATE run SET doc = ?2 WHERE id = ?1", params![run.0, doc]).map_err(self.wrap())?;
        Ok(())
    }

    /// Adds a finished stage.
    pub fn add_stage(&mut self, run: RunId, stage: &Stage) -> Result<(), StoreError> {
        self.append("stage", run, stage)
    }

    /// Adds a trial's measurement window.
    pub fn add_trial(&mut self, run: RunId, window: &TrialWindow) -> Result<(), StoreError> {
        self.append("trial", run, window)
    }

    /// Makes `changes` those in force: new ones are added, an effect measured since is filled in, those not listed
    /// any more are marked as taken back now.
    pub fn set_changes(&mut self, run: RunId, changes: &[ChangeRecord]) -> Result<(), StoreError> {
        let wrap = self.wrap();
        let same = |a: &ChangeRecord, b: &ChangeRecord| {
            a.task == b.task && a.group == b.group && a.knob == b.knob && a.to == b.to && a.from == b.from
        };
        self.db.execute_batch("BEGIN").map_err(&wrap)?;
        let done = (|| {
            let mut known: Vec<(i64, ChangeRecord)> = Vec::new();
            {
                let mut statement = self
                    .db
                    .prepare_cached("SELECT seq, doc FROM change WHERE run = ?1 AND undone_ns IS NULL")
                    .map_err(&wrap)?;
                let mut rows = statement.query([run.0]).map_err(&wrap)?;
                while let Some(row) = rows.next().map_err(&wrap)? {
                    known.push((row.get(0).map_err(&wrap)?, self.parse(row, 1)?));
                }
            }
            for change in changes {
                let Some(index) = known.iter().position(|(_, old)| same(old, change)) else {
                    self.append("change", run, change)?;
                    continue;
                };
                let (seq, old) = known.swap_remove(index);
                if old.effect != change.effect || old.why != change.why {
                    // The time of the first write stays.
                    let doc = self.json(&ChangeRecord { at_ns: old.at_ns, ..change.clone() })?;
                    self.db
                        .execute(
                            "UPDATE change SET doc = ?3 WHERE run = ?1 AND seq = ?2",
                            params![run.0, seq, doc],
                        )
                        .map_err(&wrap)?;
                }
            }
            for (seq, _) in known {
                self.db
                    .execute(
                        "UPDATE change SET undone_ns = ?3 WHERE run = ?1 AND seq = ?2",
                        params![run.0, seq, now_ns() as i64],
                    )
                    .map_err(&wrap)?;
            }
            Ok(())
        })();
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = self.db.execute_batch(end).map_err(&wrap);
        done.and(ended)
    }

    /// Ends a run; `outcome` says how, in words. Pending samples are written.
    pub fn finish_run(&mut self, run: RunId, record: &RunRecord, outcome: &str) -> Result<(), StoreError> {
        let doc = self.head(record)?;
        self.db
            .execute(
                "UPDATE run SET doc = ?2, ended_ns = ?3, outcome = ?4 WHERE id = ?1",
                params![run.0, doc, now_ns() as i64, outcome],
            )
            .map_err(self.wrap())?;
        self.set_changes(run, &record.changes)?;
        self.flush()
    }

    /// All runs, newest first, without their stages and changes.
    pub fn runs(&self) -> Result<Vec<StoredRun>, StoreError> {
        let wrap = self.wrap();
        let mut statement = self
            .db
            .prepare_cached("SELECT id, boot_id, ended_ns, outcome, doc FROM run ORDER BY id DESC")
            .map_err(&wrap)?;
        let mut rows = statement.query([]).map_err(&wrap)?;
        let mut runs = Vec::new();
        while let Some(row) = rows.next().map_err(&wrap)? {
            runs.push(self.run_from(row)?);
        }
        Ok(runs)
    }

    /// A run with its stages and the changes in force (or, for one that ended, in force at its end).
    pub fn run(&self, run: RunId) -> Result<StoredRun, StoreError> {
        let wrap = self.wrap();
        let mut statement = self
            .db
            .prepare_cached("SELECT id, boot_id, ended_ns, outcome, doc FROM run WHERE id = ?1")
            .map_err(&wrap)?;
        let mut rows = statement.query([run.0]).map_err(&wrap)?;
        let Some(row) = rows.next().map_err(&wrap)? else {
            return Err(StoreError::NoRun { path: self.path.clone(), run: run.0 });
        };
        let mut stored = self.run_from(row)?;
        stored.record.stages = self.docs("stage", run)?;
        stored.record.changes = self
            .changes(run)?
            .into_iter()
            .filter(|change| change.undone_ns.is_none())
            .map(|change| change.change)
            .collect();
        Ok(stored)
    }

    /// The newest run, as by [`Self::run`].
    pub fn last_run(&self) -> Result<Option<StoredRun>, StoreError> {
        let last: Option<i64> = self
            .db
            .query_row("SELECT id FROM run ORDER BY id DESC LIMIT 1", [], |row| row.get(0))
            .optional()
            .map_err(self.wrap())?;
        last.map(|id| self.run(RunId(id))).transpose()
    }

    /// Up to when a run lasted: to its end, or where it was killed to the start of the next one. `None`: it may go on.
    pub fn until_ns(&self, run: &StoredRun) -> Result<Option<u64>, StoreError> {
        if run.ended_ns.is_some() {
            return Ok(run.ended_ns);
        }
        let next: Option<i64> = self
            .db
            .query_row("SELECT min(started_ns) FROM run WHERE id > ?1", [run.id.0], |row| row.get(0))
            .map_err(self.wrap())?;
        Ok(next.map(|ns| (ns.max(0) as u64).max(run.record.started_ns)))
    }

    /// Every change a run made, in order, with when it was taken back.
    pub fn changes(&self, run: RunId) -> Result<Vec<StoredChange>, StoreError> {
        let wrap = self.wrap();
        let mut statement = self
            .db
            .prepare_cached("SELECT undone_ns, doc FROM change WHERE run = ?1 ORDER BY seq")
            .map_err(&wrap)?;
        let mut rows = statement.query([run.0]).map_err(&wrap)?;
        let mut changes = Vec::new();
        while let Some(row) = rows.next().map_err(&wrap)? {
            let undone: Option<i64> = row.get(0).map_err(&wrap)?;
            changes.push(StoredChange {
                change: self.parse(row, 1)?,
                undone_ns: undone.map(|ns| ns.max(0) as u64),
            });
        }
        Ok(changes)
    }

    /// A run's trial windows, in order.
    pub fn trials(&self, run: RunId) -> Result<Vec<TrialWindow>, StoreError> {
        self.docs("trial", run)
    }

    fn head(&self, record: &RunRecord) -> Result<String, StoreError> {
        self.json(&RunRecord {
            scope: record.scope.clone(),
            settings: record.settings.clone(),
            guarantees: record.guarantees.clone(),
            governor: record.governor.clone(),
            protected: record.protected.clone(),
            effect_now: record.effect_now.clone(),
            stages: Vec::new(),
            changes: Vec::new(),
            ..*record
        })
    }

    fn json(&self, value: &impl Serialize) -> Result<String, StoreError> {
        serde_json::to_string(value).map_err(|error| StoreError::io(&self.path, error.into()))
    }

    fn parse<T: DeserializeOwned>(&self, row: &Row<'_>, column: usize) -> Result<T, StoreError> {
        let text: String = row.get(column).map_err(self.wrap())?;
        serde_json::from_str(&text).map_err(|error| StoreError::Corrupt {
            path: self.path.clone(),
            reason: format!("a record does not parse: {error}"),
        })
    }

    fn run_from(&self, row: &Row<'_>) -> Result<StoredRun, StoreError> {
        let wrap = self.wrap();
        let ended: Option<i64> = row.get(2).map_err(&wrap)?;
        Ok(StoredRun {
            id: RunId(row.get(0).map_err(&wrap)?),
            boot_id: row.get(1).map_err(&wrap)?,
            ended_ns: ended.map(|ns| ns.max(0) as u64),
            outcome: row.get(3).map_err(&wrap)?,
            record: self.parse(row, 4)?,
        })
    }

    fn append(&self, table: &str, run: RunId, value: &impl Serialize) -> Result<(), StoreError> {
        let doc = self.json(value)?;
        let sql = format!(
            "INSERT INTO {table} (run, seq, doc)
             VALUES (?1, (SELECT coalesce(max(seq), 0) + 1 FROM {table} WHERE run = ?1), ?2)"
        );
        self.db
            .prepare_cached(&sql)
            .and_then(|mut statement| statement.execute(params![run.0, doc]))
            .map_err(self.wrap())?;
        Ok(())
    }

    fn docs<T: DeserializeOwned>(&self, table: &str, run: RunId) -> Result<Vec<T>, StoreError> {
        let wrap = self.wrap();
        let mut statement = self
            .db
            .prepare_cached(&format!("SELECT doc FROM {table} WHERE run = ?1 ORDER BY seq"))
            .map_err(&wrap)?;
        let mut rows = statement.query([run.0]).map_err(&wrap)?;
        let mut docs = Vec::new();
        while let Some(row) = rows.next().map_err(&wrap)? {
            docs.push(self.parse(row, 0)?);
        }
        Ok(docs)
    }

    /// Forgets runs that ended before `oldest_ns`, or were killed and started before; never the last one.
    pub(crate) fn forget_runs(&mut self, oldest_ns: i64) -> Result<(), StoreError> {
        let wrap = self.wrap();
        let runs = {
            let mut statement = self
                .db
                .prepare_cached(
                    "SELECT id FROM run WHERE coalesce(ended_ns, started_ns) < ?1
                     AND id < (SELECT max(id) FROM run)",
                )
                .map_err(&wrap)?;
            let rows = statement.query_map([oldest_ns], |row| row.get(0)).map_err(&wrap)?;
            rows.collect::<Result<Vec<i64>, _>>().map_err(&wrap)?
        };
        for run in runs {
            self.forget_run(run)?;
        }
        // Sessions without samples say nothing.
        self.db
            .execute(
                "DELETE FROM session WHERE started_ns < ?1 AND id IS NOT ?2
                 AND id NOT IN (SELECT session FROM block UNION SELECT session FROM tail)",
                params![oldest_ns, self.session],
            )
            .map_err(&wrap)?;
        Ok(())
    }

    fn forget_run(&self, run: i64) -> Result<(), StoreError> {
        for (table, column) in [("stage", "run"), ("change", "run"), ("trial", "run"), ("run", "id")] {
            self.db
                .execute(&format!("DELETE FROM {table} WHERE {column} = ?1"), [run])
                .map_err(self.wrap())?;
        }
        Ok(())
    }

    /// When no samples are left to drop: the oldest run, or the oldest details of the only one. Whether anything was
    /// there to drop.
    pub(crate) fn forget_oldest_detail(&self) -> Result<bool, StoreError> {
        let wrap = self.wrap();
        let (oldest, count): (Option<i64>, i64) = self
            .db
            .query_row("SELECT min(id), count(*) FROM run", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(&wrap)?;
        let Some(oldest) = oldest else { return Ok(false) };
        if count > 1 {
            self.forget_run(oldest)?;
            return Ok(true);
        }
        let mut dropped = 0;
        for (table, keep) in [("trial", ""), ("change", "AND undone_ns IS NOT NULL"), ("stage", "")] {
            dropped += self
                .db
                .execute(
                    &format!(
                        "DELETE FROM {table} WHERE run = ?1 AND seq IN
                         (SELECT seq FROM {table} WHERE run = ?1 {keep} ORDER BY seq LIMIT 1000)"
                    ),
                    [oldest],
                )
                .map_err(&wrap)?;
            if dropped > 0 {
                break;
            }
        }
        Ok(dropped > 0)
    }
}
