//! Samples: adding, thinning, keeping within the bounds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::{Observation, PodView, Sample, TaskId};
use rusqlite::params;

use crate::block::{BlockReader, BlockWriter, Infos, TaskInfo};
use crate::db::{Store, StoreError};
use crate::pending::Tail;

/// Seconds between the samples of a tier; tier 0 keeps all.
pub(crate) const TIER_SECONDS: [u64; 3] = [0, 10, 60];
/// Samples in a block of a thinned tier.
const THINNED_BLOCK: u32 = 60;
/// A block is closed at this size even if it holds few samples, bytes before compression: bounds memory.
const MAX_PENDING_BYTES: usize = 2 << 20;
/// Oldest blocks dropped at a time when the bound is reached.
const EVICT_AT_ONCE: u32 = 8;

/// What the history holds and takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of the file and its log.
    pub disk_bytes: u64,
    /// Bytes of compressed samples.
    pub sample_bytes: u64,
    /// Samples kept at full rate, one in 10 s, one in 60 s.
    pub samples: [u64; 3],
    /// Blocks they are in.
    pub blocks: u64,
    /// Wall clock of the oldest and the newest sample, nanoseconds since 1970.
    pub span_ns: Option<(u64, u64)>,
    pub runs: u64,
}

/// Learns the names of all tasks of an observation; those that were not known, or have others now.
pub(crate) fn learn_names(known: &mut Infos, observation: &Observation) -> Vec<(TaskId, Arc<TaskInfo>)> {
    let mut new = Vec::new();
    for task in &observation.tasks {
        let group = observation.group_of(task).map(|group| group.path.as_str());
        let container = task.container.and_then(|index| observation.containers.get(index as usize));
        let pod = task.pod.and_then(|index| observation.pods.get(index as usize));
        let container = container.map(|container| container.name.as_str());
        if let Some(known) = known.get(&task.id)
            && known.comm == task.comm
            && known.group.as_deref() == group
            && known.container.as_deref() == container
            && known.pod.is_some() == pod.is_some()
        {
            continue;
        }
        let info = Arc::new(TaskInfo {
            comm: task.comm.clone(),
            group: group.map(str::to_owned),
            container: container.map(str::to_owned),
            pod: pod.map(PodView::full_name),
        });
        known.insert(task.id, Arc::clone(&info));
        new.push((task.id, info));
    }
    new
}

impl Store {
    /// Tells the names of a task; kept with its counters as long as it appears in samples. Telling again replaces.
    pub fn name_task(&mut self, id: TaskId, info: TaskInfo) {
        match self.infos.get(&id) {
            Some(known) if **known == info => (),
            _ => {
                self.infos.insert(id, Arc::new(info));
            }
        }
    }

    /// Tells the names of all tasks of an observation. Cheap for tasks already known under the same names.
    pub fn name_tasks(&mut self, observation: &Observation) {
        learn_names(&mut self.infos, observation);
    }

    /// Adds a sample. It is committed within [`crate::Limits::tail_seconds`], and becomes part of a block when that is complete.
    ///
    /// # Errors
    /// When writing fails: a complete block is dropped, an incomplete one is tried again; the store remains usable.
    pub fn add_sample(&mut self, sample: &Sample) -> Result<(), StoreError> {
        let before_ns = self.pending.last().monotonic_ns;
        if self.pending.samples() == self.tail.samples() {
            self.tail.first_wall_ns = sample.wall_ns;
        }
        let first = self.pending.samples() == 0;
        self.pending.push(sample);
        let full = self.pending.samples() >= self.limits.block_samples.max(1)
            || self.pending.span_ns() >= self.limits.block_seconds * 1_000_000_000
            || self.pending.held_bytes() > MAX_PENDING_BYTES;
        if full {
            let written = self.flush();
            // Also where nothing can be written for days: tasks come and go meanwhile.
            let alive: HashSet<TaskId> = sample.tasks.iter().map(|task| task.id).collect();
            self.infos.retain(|id, _| alive.contains(id));
            written?;
            self.keep_bounds(sample.wall_ns, Some(sample.monotonic_ns))?;
        } else {
            let before_ns = if first { self.tail.kept_ns.unwrap_or(before_ns) } else { before_ns };
            if self.tail.is_due(sample, before_ns, self.limits.tail_seconds.saturating_mul(1_000_000_000)) {
                self.keep_tail()?;
            }
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<(), StoreError> {
        let taken = self.leave_what_was_taken();
        let pending = std::mem::take(&mut self.pending);
        let tail = std::mem::take(&mut self.tail);
        taken?;
        if pending.samples() == 0 {
            self.tail.kept_ns = tail.kept_ns;
            return Ok(());
        }
        let session = self.session_from(pending.wall_ns().0)?;
        let wrap = self.wrap();
        // A reader sees the parts or the block, never both and never neither.
        let write = self.db.unchecked_transaction().map_err(&wrap)?;
        self.db.execute("DELETE FROM tail WHERE session = ?1", [session]).map_err(&wrap)?;
        write_block(self, session, 0, &pending, &self.infos)?;
        write.commit().map_err(wrap)?;
        self.tail = Tail::after_block(pending.last().monotonic_ns);
        Ok(())
    }

    /// The session of this writer; begun when there is none.
    pub(crate) fn session_from(&mut self, now_ns: u64) -> Result<i64, StoreError> {
        if let Some(session) = self.session {
            return Ok(session);
        }
        self.db
            .execute(
                "INSERT INTO session (boot_id, started_ns) VALUES (?1, ?2)",
                params![self.boot_id, now_ns as i64],
            )
            .map_err(self.wrap())?;
        let id = self.db.last_insert_rowid();
        self.session = Some(id);
        Ok(id)
    }

    /// What the history holds.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        let wrap = self.wrap();
        let mut usage = Usage { disk_bytes: self.disk_bytes(), ..Usage::default() };
        let of_blocks =
            "SELECT tier, count(*), sum(samples), sum(length(data)), min(first_wall_ns), max(last_wall_ns)
                         FROM block GROUP BY tier";
        // The parts of an unfinished block are no blocks.
        let of_parts =
            "UNION ALL SELECT 0, 0, sum(samples), sum(length(data)), min(first_wall_ns), max(last_wall_ns)
                        FROM tail HAVING count(*) > 0";
        let of_parts = if self.has_table("tail")? { of_parts } else { "" };
        let mut statement = self.db.prepare_cached(&format!("{of_blocks} {of_parts}")).map_err(&wrap)?;
        let mut rows = statement.query([]).map_err(&wrap)?;
        while let Some(row) = rows.next().map_err(&wrap)? {
            let number = |index| row.get::<_, i64>(index).map(|n| n.max(0) as u64).map_err(&wrap);
            if let Some(samples) = usage.samples.get_mut(number(0)? as usize) {
                *samples += number(2)?;
            }
            usage.blocks += number(1)?;
            usage.sample_bytes += number(3)?;
            let (first, last) = (number(4)?, number(5)?);
            usage.span_ns =
                Some(usage.span_ns.map_or((first, last), |(low, high)| (low.min(first), high.max(last))));
        }
        usage.runs = self
            .db
            .query_row("SELECT count(*) FROM run", [], |row| row.get::<_, i64>(0))
            .map_err(&wrap)?
            .max(0) as u64;
        Ok(usage)
    }

    fn disk_bytes(&self) -> u64 {
        let size = |suffix: &str| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(suffix);
            std::fs::metadata(name).map_or(0, |meta| meta.len())
        };
        size("") + size("-wal") + size("-shm")
    }

    /// Thins and drops what is over age, then drops the oldest until the size is within its bound.
    pub(crate) fn keep_bounds(&mut self, now_ns: u64, monotonic_ns: Option<u64>) -> Result<(), StoreError> {
        self.fold_abandoned(now_ns.saturating_sub(nanos(self.limits.full_rate)))?;
        self.thin(0, now_ns, self.limits.full_rate)?;
        self.thin(1, now_ns, self.limits.ten_s)?;
        // What a leap of the clock thins is still there; what it drops is gone.
        let believed_ns = self.advance_age(now_ns, monotonic_ns);
        let oldest = believed_ns.saturating_sub(nanos(self.limits.sixty_s)) as i64;
        self.db.execute("DELETE FROM block WHERE last_wall_ns < ?1", [oldest]).map_err(self.wrap())?;
        self.forget_runs(oldest)?;
        self.keep_size()
    }

    /// Moves what is older than `age` from `tier` to the next, a whole block's worth at a time.
    fn thin(&mut self, tier: usize, now_ns: u64, age: Duration) -> Result<(), StoreError> {
        let wrap = self.wrap();
        let step_ns = TIER_SECONDS[tier + 1] * 1_000_000_000;
        let cutoff = now_ns.saturating_sub(nanos(age));
        // Wait until a full thinned block is due, so that thinned blocks are not many small ones; but not longer
        // than the age itself.
        let slack = (step_ns * u64::from(THINNED_BLOCK)).min(nanos(age));
        let sessions = {
            let mut statement = self
                .db
                .prepare_cached(
                    "SELECT session FROM block WHERE tier = ?1 AND last_wall_ns < ?2
                     GROUP BY session HAVING min(first_wall_ns) < ?3 ORDER BY session",
                )
                .map_err(&wrap)?;
            let rows = statement
                .query_map(params![tier as i64, cutoff as i64, cutoff.saturating_sub(slack) as i64], |row| {
                    row.get::<_, i64>(0)
                })
                .map_err(&wrap)?;
            rows.collect::<Result<Vec<_>, _>>().map_err(&wrap)?
        };
        for session in sessions {
            self.thin_session(session, tier, step_ns, cutoff)?;
        }
        Ok(())
    }

    fn thin_session(
        &mut self,
        session: i64,
        tier: usize,
        step_ns: u64,
        cutoff: u64,
    ) -> Result<(), StoreError> {
        let wrap = self.wrap();
        let ids = {
            let mut statement = self
                .db
                .prepare_cached(
                    "SELECT id FROM block WHERE session = ?1 AND tier = ?2 AND last_wall_ns < ?3
                     ORDER BY first_wall_ns, id",
                )
                .map_err(&wrap)?;
            let rows = statement
                .query_map(params![session, tier as i64, cutoff as i64], |row| row.get::<_, i64>(0))
                .map_err(&wrap)?;
            rows.collect::<Result<Vec<_>, _>>().map_err(&wrap)?
        };
        self.db.execute_batch("BEGIN").map_err(&wrap)?;
        let done = self.rewrite(session, tier, step_ns, &ids);
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = self.db.execute_batch(end).map_err(&wrap);
        done.and(ended)
    }

    fn rewrite(&self, session: i64, tier: usize, step_ns: u64, ids: &[i64]) -> Result<(), StoreError> {
        let mut writer = BlockWriter::default();
        let mut names = Infos::new();
        let mut last_slot = None;
        for id in ids {
            let data = self.block(*id)?;
            self.db.execute("DELETE FROM block WHERE id = ?1", [id]).map_err(self.wrap())?;
            // A damaged block is dropped: what cannot be read now cannot be read later.
            let Ok(mut reader) = BlockReader::new(&data) else { continue };
            while let Ok(Some(sample)) = reader.advance() {
                // The first sample of each slot is kept, so every session keeps its very first one.
                let slot = sample.monotonic_ns / step_ns;
                if last_slot == Some(slot) {
                    continue;
                }
                last_slot = Some(slot);
                writer.push(sample);
                if writer.samples() >= THINNED_BLOCK || writer.held_bytes() > MAX_PENDING_BYTES {
                    names.extend(reader.names().iter().map(|(id, info)| (*id, info.clone())));
                    write_block(self, session, tier + 1, &writer, &names)?;
                    writer = BlockWriter::default();
                }
            }
            names.extend(reader.names().iter().map(|(id, info)| (*id, info.clone())));
        }
        if writer.samples() > 0 {
            write_block(self, session, tier + 1, &writer, &names)?;
        }
        Ok(())
    }

    pub(crate) fn block(&self, id: i64) -> Result<Vec<u8>, StoreError> {
        self.db
            .prepare_cached("SELECT data FROM block WHERE id = ?1")
            .and_then(|mut statement| statement.query_row([id], |row| row.get(0)))
            .map_err(self.wrap())
    }

    fn keep_size(&mut self) -> Result<(), StoreError> {
        let wrap = self.wrap();
        // The log and its index are part of the bound.
        let reserve = (self.limits.max_bytes / 8).clamp(640 << 10, 4 << 20);
        let bound = self.limits.max_bytes.saturating_sub(reserve);
        let pages = |name: &str| {
            self.db
                .query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0))
                .map(|n| n.max(0) as u64)
                .map_err(&wrap)
        };
        let page_size = pages("page_size")?;
        let mut shrunk = false;
        loop {
            let total = pages("page_count")?;
            let free = pages("freelist_count")?;
            let used = total.saturating_sub(free) * page_size;
            if used <= bound {
                if free * page_size > bound / 4 || (shrunk && free > 0) || total * page_size > bound {
                    // Gives the freed pages back to the file system.
                    let mut vacuum = self.db.prepare_cached("PRAGMA incremental_vacuum").map_err(&wrap)?;
                    let mut rows = vacuum.query([]).map_err(&wrap)?;
                    while rows.next().map_err(&wrap)?.is_some() {}
                }
                return Ok(());
            }
            shrunk = true;
            // Neither samples nor runs push the other out altogether.
            let sample_bytes: i64 = self
                .db
                .query_row("SELECT coalesce(sum(length(data)), 0) FROM block", [], |row| row.get(0))
                .map_err(&wrap)?;
            if (sample_bytes.max(0) as u64) < bound / 2 && self.forget_oldest_detail()? {
                continue;
            }
            let dropped = self
                .db
                .execute(
                    "DELETE FROM block WHERE id IN (SELECT id FROM block ORDER BY last_wall_ns LIMIT ?1)",
                    [EVICT_AT_ONCE],
                )
                .map_err(&wrap)?;
            if dropped == 0 && !self.forget_oldest_detail()? {
                return Ok(());
            }
        }
    }
}

pub(crate) fn write_block(
    store: &Store,
    session: i64,
    tier: usize,
    block: &BlockWriter,
    names: &Infos,
) -> Result<(), StoreError> {
    let data = block.finish(names).map_err(|error| StoreError::io(&store.path, error))?;
    let (first, last) = block.wall_ns();
    store
        .db
        .prepare_cached(
            "INSERT INTO block (session, tier, first_wall_ns, last_wall_ns, samples, data)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .and_then(|mut statement| {
            statement.execute(params![session, tier as i64, first as i64, last as i64, block.samples(), data])
        })
        .map_err(store.wrap())?;
    Ok(())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
