//! Counters of the promised tasks, read several times a second through descriptors that stay open (about a microsecond
//! each, whatever else runs on the host).

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use evenkeel_base::TaskId;
use evenkeel_linux::schedstat::{self, SchedStat};

/// Descriptors kept open at most; tasks beyond are not followed between observations.
const MOST: usize = 4096;

/// One task's counters.
#[derive(Debug)]
struct Open {
    file: File,
    last: Option<SchedStat>,
}

/// What a task did since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Change {
    /// Ran, seconds.
    pub ran_s: f64,
    /// Waited for a CPU, seconds.
    pub waited_s: f64,
    /// Times it was given a CPU.
    pub timeslices: u64,
}

/// The open counters.
#[derive(Debug, Default)]
pub struct Counters {
    open: HashMap<TaskId, Open>,
    at: Option<Instant>,
}

impl Counters {
    /// Follows these tasks and no others.
    pub fn follow(&mut self, tasks: &BTreeSet<TaskId>) {
        self.open.retain(|id, _| tasks.contains(id));
        for id in tasks {
            if self.open.len() >= MOST {
                return;
            }
            if self.open.contains_key(id) {
                continue;
            }
            // The descriptor stays with this task: reading it after the task ended fails, whoever has its number then.
            if let Ok(file) = File::open(format!("/proc/{}/task/{}/schedstat", id.tgid, id.tid)) {
                let last = read(&file);
                self.open.insert(*id, Open { file, last });
            }
        }
    }

    /// Seconds since the last reading, and what each task did in them; `None` at first.
    pub fn read(&mut self, now: Instant) -> Option<(f64, HashMap<TaskId, Change>)> {
        let before = self.at.replace(now);
        let mut changes = HashMap::with_capacity(self.open.len());
        self.open.retain(|id, open| {
            let Some(new) = read(&open.file) else { return false };
            if let Some(old) = open.last.replace(new) {
                let since = |new: u64, old: u64| new.saturating_sub(old);
                changes.insert(
                    *id,
                    Change {
                        ran_s: since(new.ran_ns, old.ran_ns) as f64 / 1e9,
                        waited_s: since(new.waited_ns, old.waited_ns) as f64 / 1e9,
                        timeslices: since(new.timeslices, old.timeslices),
                    },
                );
            }
            true
        });
        Some((now.duration_since(before?).as_secs_f64(), changes))
    }
}

fn read(file: &File) -> Option<SchedStat> {
    let mut buffer = [0; 96];
    let n = file.read_at(&mut buffer, 0).ok()?;
    schedstat::parse_bytes(&buffer[..n])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_work_is_counted_and_the_dead_are_left_out() {
        let me = std::process::id();
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let own = TaskId { tgid: me, tid, start_time: 0 };
        let nobody = TaskId { tgid: 0x7fff_fff0, tid: 0x7fff_fff0, start_time: 0 };
        let mut counters = Counters::default();
        counters.follow(&BTreeSet::from([own, nobody]));
        assert!(counters.read(Instant::now()).is_none());
        let began = Instant::now();
        let mut work = 0u64;
        while began.elapsed().as_millis() < 60 {
            work = std::hint::black_box(work + 1);
        }
        let (seconds, changes) = counters.read(Instant::now()).unwrap();
        assert!(seconds >= 0.06);
        assert!(changes[&own].ran_s > 0.0 && changes.len() == 1, "{changes:?}");
        counters.follow(&BTreeSet::new());
        assert!(counters.read(Instant::now()).unwrap().1.is_empty());
    }
}
