//! Counters of the promised tasks, read several times a second through descriptors that stay open (about a microsecond
//! each, whatever else runs on the host).
//!
//! The kernel adds a wait to `run_delay` when it ends: a task that starves for seconds would seem to want nothing. So the
//! state of one whose counters stand still is looked at, and a wait that goes on counts while it does.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_base::{CpuSet, TaskId};
use evenkeel_linux::schedstat::{self, SchedStat};
use evenkeel_linux::{Root, pid_stat, sysfs};

/// Descriptors kept open at most; tasks beyond are not followed between observations.
const MOST: usize = 4096;
/// The state of a task that slept when it was looked at last is not looked at again before so long.
const LOOK: Duration = Duration::from_millis(300);

/// One task's counters.
#[derive(Debug)]
struct Open {
    file: File,
    stat: Option<File>,
    last: Option<SchedStat>,
    /// When its state was looked at, and whether it was ready to run.
    looked: Option<(Instant, bool)>,
    /// Counted of a wait that goes on, which the kernel will add when it ends, seconds.
    ahead_s: f64,
}

impl Open {
    /// What it did in the `dt` seconds between two readings.
    fn change(&mut self, old: SchedStat, new: SchedStat, dt: f64, now: Instant, tickless: &CpuSet) -> Change {
        let since = |new: u64, old: u64| new.saturating_sub(old);
        let ended_s = since(new.waited_ns, old.waited_ns) as f64 / 1e9;
        let waited_s = if new != old {
            self.looked = None;
            (ended_s - std::mem::take(&mut self.ahead_s)).max(0.0)
        } else if self.is_ready(now, tickless) {
            self.ahead_s += dt;
            dt
        } else {
            0.0
        };
        Change {
            ran_s: since(new.ran_ns, old.ran_ns) as f64 / 1e9,
            waited_s,
            ended_s,
            timeslices: since(new.timeslices, old.timeslices),
        }
    }

    /// Whether it is ready to run. One that runs on a CPU without a tick may show no progress for a second: unknown, and not
    /// called waiting.
    fn is_ready(&mut self, now: Instant, tickless: &CpuSet) -> bool {
        if let Some((at, false)) = self.looked
            && now.duration_since(at) < LOOK
        {
            return false;
        }
        let mut buffer = [0; 512];
        let read = self.stat.as_ref().and_then(|file| file.read_at(&mut buffer, 0).ok());
        let text = &buffer[..read.unwrap_or(0)];
        let ticks = || pid_stat::comm_and_cpu(text).is_some_and(|(_, cpu)| !tickless.contains(cpu));
        let ready = pid_stat::state(text) == Some('R') && (tickless.is_empty() || ticks());
        self.looked = Some((now, ready));
        ready
    }
}

/// What a task did since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Change {
    pub ran_s: f64,
    /// Waited for a CPU, waits that go on included, seconds.
    pub waited_s: f64,
    /// The waits that ended, in full, seconds.
    pub ended_s: f64,
    /// Times it was given a CPU.
    pub timeslices: u64,
}

/// The open counters.
#[derive(Debug, Default)]
pub struct Counters {
    open: HashMap<TaskId, Open>,
    /// Tasks that are there and not followed: those beyond [`MOST`], and those whose counters cannot be opened.
    missed: BTreeSet<TaskId>,
    at: Option<Instant>,
    /// CPUs that may run without a tick; `None`: not read yet.
    tickless: Option<CpuSet>,
}

impl Counters {
    /// Follows these tasks and no others.
    pub fn follow(&mut self, tasks: &BTreeSet<TaskId>) {
        self.follow_at_most(tasks, MOST);
    }

    pub(super) fn follow_at_most(&mut self, tasks: &BTreeSet<TaskId>, most: usize) {
        self.open.retain(|id, _| tasks.contains(id));
        self.missed.clear();
        for id in tasks.iter().filter(|id| !self.open.contains_key(id)).collect::<Vec<_>>() {
            if self.open.len() >= most {
                self.missed.insert(*id);
                continue;
            }
            // The descriptor stays with this task: reading it after the task ended fails, whoever has its number then.
            let dir = format!("/proc/{}/task/{}", id.tgid, id.tid);
            let opened = |name: &str| File::open(format!("{dir}/{name}"));
            match opened("schedstat") {
                Ok(file) => {
                    let last = schedstat::read_open(&file);
                    let stat = opened("stat").ok();
                    self.open.insert(*id, Open { file, stat, last, looked: None, ahead_s: 0.0 });
                }
                Err(_) if Path::new(&dir).exists() => drop(self.missed.insert(*id)),
                // It has ended.
                Err(_) => {}
            }
        }
    }

    /// Whether a task is there and not followed: what it did is not known.
    pub fn misses(&self, id: &TaskId) -> bool {
        self.missed.contains(id)
    }

    /// Seconds since the last reading, and what each task did in them; `None` at first.
    pub fn read(&mut self, now: Instant) -> Option<(f64, HashMap<TaskId, Change>)> {
        let before = self.at.replace(now);
        let dt = before.map_or(0.0, |before| now.duration_since(before).as_secs_f64());
        let tickless = self.tickless.get_or_insert_with(|| sysfs::tickless(&Root::host()));
        let mut changes = HashMap::with_capacity(self.open.len());
        self.open.retain(|id, open| {
            let Some(new) = schedstat::read_open(&open.file) else { return false };
            if let Some(old) = open.last.replace(new) {
                changes.insert(*id, open.change(old, new, dt, now, tickless));
            }
            true
        });
        before.map(|_| (dt, changes))
    }
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
        assert!(!counters.misses(&own) && !counters.misses(&nobody), "who is gone is not missed");
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

    /// The kernel adds a wait when it ends; a task that starves shows its wait all the same, once.
    #[test]
    fn a_wait_that_goes_on_counts_and_is_not_counted_again_when_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stat");
        let open = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let stat = Some(File::open(&path).unwrap());
            Open { file: File::open(&path).unwrap(), stat, last: None, looked: None, ahead_s: 0.0 }
        };
        let line = format!("7 (a) b) R{}\n", " 1".repeat(50));
        let counted = |ran_ns, waited_ns, timeslices| SchedStat { ran_ns, waited_ns, timeslices };
        let (idle, ran) = (counted(5, 5, 5), counted(1_000_005, 800_000_005, 6));
        let (now, none) = (Instant::now(), CpuSet::new());
        let mut ready = open(&line);
        let waits: Vec<f64> = (0..3).map(|_| ready.change(idle, idle, 0.25, now, &none).waited_s).collect();
        assert_eq!(waits, [0.25; 3]);
        let end = ready.change(idle, ran, 0.1, now, &none);
        assert!((end.waited_s - 0.05).abs() < 1e-9 && (end.ended_s - 0.8).abs() < 1e-9, "{end:?}");
        // On a CPU that may run without a tick it may as well be running.
        assert_eq!(open(&line).change(idle, idle, 0.25, now, &CpuSet::single(1)).waited_s, 0.0);
        // One that sleeps is looked at again after a while.
        let mut asleep = open(&line.replace(") R", ") S"));
        assert_eq!(asleep.change(idle, idle, 0.25, now, &none).waited_s, 0.0);
        std::fs::write(&path, &line).unwrap();
        assert_eq!(asleep.change(idle, idle, 0.25, now, &none).waited_s, 0.0);
        assert_eq!(asleep.change(idle, idle, 0.25, now + LOOK, &none).waited_s, 0.25);
    }
}
