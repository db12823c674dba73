//! Rates from stored counters.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_base::{CpuTimes, GroupSample, Sample, TICK_NS, TaskId, TaskSample, may_have_run};
use serde::{Deserialize, Serialize};

use crate::block::TaskInfo;
use crate::db::{Store, StoreError};
use crate::reading::StoredSample;
use crate::series::common_group;

/// What tasks, cgroups and CPUs got between two instants. Percent is of one CPU, over the time covered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Wall clock of the first sample used, nanoseconds since 1970.
    pub from_ns: u64,
    /// Wall clock of the last sample used.
    pub to_ns: u64,
    /// Time covered by samples, seconds: less than the difference when no agent ran for a while.
    pub seconds: f64,
    pub samples: u64,
    pub damaged_blocks: u64,
    /// Tasks that ran or waited, by identity.
    pub tasks: Vec<TaskRate>,
    /// cgroups, by path.
    pub groups: Vec<GroupRate>,
    /// CPUs, by number.
    pub cpus: Vec<CpuRate>,
}

/// A thread over the time covered.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TaskRate {
    pub id: TaskId,
    /// Names; `None` when they were never told.
    pub info: Option<Arc<TaskInfo>>,
    /// Time on a CPU, percent.
    pub cpu_pct: f64,
    /// Time waiting while runnable (throttling included), percent; `None` where not counted.
    pub wait_pct: Option<f64>,
    /// Voluntary switches per second.
    pub voluntary_per_s: Option<f64>,
    /// Involuntary switches per second.
    pub involuntary_per_s: Option<f64>,
    /// Time on a CPU by the CPU it was last seen on, percent: `(cpu, percent)`, ascending.
    pub by_cpu: Vec<(u32, f64)>,
}

/// A cgroup over the time covered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupRate {
    /// Path below the cpu controller's mount.
    pub path: String,
    /// CPU used by it and what is below, percent.
    pub cpu_pct: Option<f64>,
    /// Throttled time of its run queues, percent (summed over CPUs).
    pub throttled_pct: Option<f64>,
}

/// A CPU over the time covered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuRate {
    /// Logical number.
    pub cpu: u32,
    pub busy_pct: f64,
    /// Interrupts, percent (part of busy).
    pub irq_pct: f64,
    /// Stolen by the hypervisor, percent.
    pub steal_pct: Option<f64>,
}

/// An optional sum: unknown until something known is added, and unknown parts do not spoil the rest.
#[derive(Debug, Clone, Copy, Default)]
struct Sum(Option<u64>);

impl Sum {
    fn add(&mut self, part: Option<u64>) {
        if let Some(part) = part {
            self.0 = Some(self.0.unwrap_or(0).saturating_add(part));
        }
    }
}

#[derive(Debug, Default)]
struct TaskSum {
    ran: u64,
    waited: Sum,
    voluntary: Sum,
    involuntary: Sum,
    by_cpu: BTreeMap<u32, u64>,
}

#[derive(Debug, Default)]
struct CpuSum {
    busy: u64,
    irq: u64,
    steal: Sum,
}

/// Adds up differences of consecutive samples.
#[derive(Debug, Default)]
pub struct Accumulator {
    last: Option<StoredSample>,
    from_ns: Option<u64>,
    to_ns: u64,
    covered_ns: u64,
    samples: u64,
    tasks: HashMap<(Arc<str>, TaskId), TaskSum>,
    groups: BTreeMap<String, [Sum; 2]>,
    cpus: BTreeMap<u32, CpuSum>,
}

/// How far a counter moved; a counter that ran backwards is unknown.
fn moved(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    to?.checked_sub(from?)
}

impl Accumulator {
    /// Adds the next sample. Samples of different sessions, or whose clock did not advance, start again.
    pub fn add(&mut self, next: StoredSample) {
        self.samples += 1;
        if let Some(last) = self.last.take()
            && last.session == next.session
            && next.sample.monotonic_ns > last.sample.monotonic_ns
        {
            self.from_ns.get_or_insert(last.sample.wall_ns);
            self.to_ns = next.sample.wall_ns;
            // A damaged block may hold any counter.
            let passed = next.sample.monotonic_ns - last.sample.monotonic_ns;
            self.covered_ns = self.covered_ns.saturating_add(passed);
            self.add_tasks(&last.sample, &next.sample, &next.boot_id, passed);
            self.add_groups(&last.sample.groups, &next.sample.groups);
            self.add_cpus(&last.sample.cpus, &next.sample.cpus);
        }
        self.last = Some(next);
    }

    fn add_tasks(&mut self, last: &Sample, next: &Sample, boot: &Arc<str>, passed_ns: u64) {
        let mut before = last.tasks.iter().peekable();
        for task in &next.tasks {
            while before.next_if(|b| b.id < task.id).is_some() {}
            let born = TaskSample {
                id: task.id,
                cpu: None,
                ran_ns: 0,
                waited_ns: Some(0),
                timeslices: Some(0),
                voluntary: Some(0),
                involuntary: Some(0),
            };
            let from = match before.next_if(|b| b.id == task.id) {
                Some(from) => from,
                // All of a task's time is new if it was born since; otherwise it only came into view.
                None if task.id.start_time.saturating_mul(TICK_NS) >= last.monotonic_ns => &born,
                None => continue,
            };
            let ran = task.ran_ns.saturating_sub(from.ran_ns);
            // Counters of two threads say nothing of either.
            let is_one = task.ran_ns >= from.ran_ns && may_have_run(ran, passed_ns);
            if !is_one || ran == 0 && task.waited_ns == from.waited_ns {
                continue;
            }
            let sum = self.tasks.entry((Arc::clone(boot), task.id)).or_default();
            sum.ran = sum.ran.saturating_add(ran);
            sum.waited.add(moved(from.waited_ns, task.waited_ns));
            sum.voluntary.add(moved(from.voluntary, task.voluntary));
            sum.involuntary.add(moved(from.involuntary, task.involuntary));
            if let Some(cpu) = task.cpu
                && ran > 0
            {
                let on_cpu = sum.by_cpu.entry(cpu).or_default();
                *on_cpu = on_cpu.saturating_add(ran);
            }
        }
    }

    fn add_groups(&mut self, last: &[GroupSample], next: &[GroupSample]) {
        let mut before = last.iter().peekable();
        for group in next {
            while before.next_if(|b| b.path < group.path).is_some() {}
            let Some(from) = before.next_if(|b| b.path == group.path) else { continue };
            if !self.groups.contains_key(&group.path) {
                self.groups.insert(group.path.clone(), Default::default());
            }
            if let Some([usage, throttled]) = self.groups.get_mut(&group.path) {
                usage.add(moved(from.usage_ns, group.usage_ns));
                throttled.add(moved(from.throttled_ns, group.throttled_ns));
            }
        }
    }

    fn add_cpus(&mut self, last: &[CpuTimes], next: &[CpuTimes]) {
        let mut before = last.iter().peekable();
        for cpu in next {
            while before.next_if(|b| b.cpu < cpu.cpu).is_some() {}
            let Some(from) = before.next_if(|b| b.cpu == cpu.cpu) else { continue };
            let sum = self.cpus.entry(cpu.cpu).or_default();
            sum.busy = sum.busy.saturating_add(cpu.busy_ns.saturating_sub(from.busy_ns));
            sum.irq = sum.irq.saturating_add(cpu.irq_ns.saturating_sub(from.irq_ns));
            sum.steal.add(moved(from.steal_ns, cpu.steal_ns));
        }
    }

    /// The rates so far; `None` with fewer than two usable samples.
    pub fn finish(self, names: impl Fn(TaskId) -> Option<Arc<TaskInfo>>) -> Option<Rates> {
        let from_ns = self.from_ns?;
        let covered = self.covered_ns as f64;
        let seconds = covered / 1e9;
        let pct = |ns: u64| 100.0 * ns as f64 / covered;
        let per_s = |n: u64| n as f64 / seconds;
        let mut tasks: Vec<_> = self
            .tasks
            .into_iter()
            .map(|((_, id), sum)| TaskRate {
                id,
                info: names(id),
                cpu_pct: pct(sum.ran),
                wait_pct: sum.waited.0.map(pct),
                voluntary_per_s: sum.voluntary.0.map(per_s),
                involuntary_per_s: sum.involuntary.0.map(per_s),
                by_cpu: sum.by_cpu.into_iter().map(|(cpu, ns)| (cpu, pct(ns))).collect(),
            })
            .collect();
        tasks.sort_by_key(|task| task.id);
        let groups = self.groups.into_iter().map(|(path, [usage, throttled])| GroupRate {
            path,
            cpu_pct: usage.0.map(pct),
            throttled_pct: throttled.0.map(pct),
        });
        let cpus = self.cpus.into_iter().map(|(cpu, sum)| CpuRate {
            cpu,
            busy_pct: pct(sum.busy),
            irq_pct: pct(sum.irq),
            steal_pct: sum.steal.0.map(pct),
        });
        Some(Rates {
            from_ns,
            to_ns: self.to_ns,
            seconds,
            samples: self.samples,
            damaged_blocks: 0,
            tasks,
            groups: groups.collect(),
            cpus: cpus.collect(),
        })
    }
}

/// A cgroup's path and those of the ones it is in, but for the root's.
fn with_above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').skip(1).map(move |(at, _)| &path[..at]).chain([path])
}

impl Rates {
    /// CPU that cgroups counted, percent of one CPU, by whose they are: each that all tasks of one, and no others, are in or below. It has
    /// what ended in between, too. `whose` says it of a task; who shares a cgroup with others is left out.
    pub fn own_groups_pct<K: Ord>(&self, whose: impl Fn(&TaskInfo) -> Option<K>) -> BTreeMap<K, f64> {
        let infos = self.tasks.iter().filter_map(|task| task.info.as_deref());
        let mut placed = BTreeMap::<Option<K>, BTreeSet<&str>>::new();
        for info in infos {
            if let Some(path) = info.group.as_deref() {
                placed.entry(whose(info)).or_default().insert(path);
            }
        }
        // How many have tasks in each or below.
        let mut owners = BTreeMap::<&str, usize>::new();
        for paths in placed.values() {
            let all: BTreeSet<&str> = paths.iter().copied().flat_map(with_above).collect();
            all.into_iter().for_each(|path| *owners.entry(path).or_default() += 1);
        }
        let counted = |paths: BTreeSet<&str>| {
            let path = common_group(paths.into_iter()).filter(|path| owners.get(path) == Some(&1))?;
            self.groups.iter().find(|group| group.path == path)?.cpu_pct
        };
        placed.into_iter().filter_map(|(key, paths)| Some((key?, counted(paths)?))).collect()
    }
}

impl Store {
    /// What everyone got between two instants (wall clock, nanoseconds since 1970); `None` when fewer than two
    /// samples are kept there. Times in which no agent ran are left out of [`Rates::seconds`].
    ///
    /// # Errors
    /// When the history cannot be read; damaged blocks are counted and passed over.
    pub fn rates(&self, from_ns: u64, to_ns: u64) -> Result<Option<Rates>, StoreError> {
        let mut accumulator = Accumulator::default();
        let mut samples = self.samples(from_ns, to_ns)?;
        let mut damaged = 0;
        for sample in samples.by_ref() {
            match sample {
                Ok(sample) => accumulator.add(sample),
                Err(error) if error.is_corrupt() => damaged += 1,
                Err(error) => return Err(error),
            }
        }
        let names = samples.names();
        Ok(accumulator
            .finish(|id| names.get(&id).cloned())
            .map(|rates| Rates { damaged_blocks: damaged, ..rates }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters that go up and down by all that fits, as only a damaged block has them.
    #[test]
    fn sums_of_damaged_counters_end_at_the_largest_number() {
        let id = TaskId { tgid: 1, tid: 1, start_time: 1 };
        let sample = |number: u64| {
            let most = if number.is_multiple_of(2) { 0 } else { u64::MAX };
            let task =
                TaskSample { id, cpu: Some(0), ran_ns: most, waited_ns: Some(most), ..TaskSample::default() };
            let cpu = CpuTimes { cpu: 0, busy_ns: most, idle_ns: 0, irq_ns: most, steal_ns: Some(most) };
            let sample =
                Sample { monotonic_ns: most, tasks: vec![task], cpus: vec![cpu], ..Sample::default() };
            StoredSample { session: 1, boot_id: "b".into(), sample }
        };
        let mut sums = Accumulator::default();
        (0..6).for_each(|number| sums.add(sample(number)));
        let rates = sums.finish(|_| None).unwrap();
        assert!(rates.seconds > 1.8e10 && rates.tasks[0].cpu_pct <= 100.0, "{rates:?}");
        assert!(rates.cpus[0].busy_pct <= 100.0 && rates.cpus[0].irq_pct <= 100.0, "{rates:?}");
    }

    #[test]
    fn counters_of_a_thread_that_took_over_by_exec_are_not_a_days_work() {
        let second = 1_000_000_000;
        let at = |seconds: u64, ran_ns| {
            let id = TaskId { tgid: 7, tid: 7, start_time: 1 };
            let task = TaskSample { id, ran_ns, waited_ns: Some(ran_ns), ..TaskSample::default() };
            let sample = Sample { monotonic_ns: seconds * second, tasks: vec![task], ..Sample::default() };
            StoredSample { session: 1, boot_id: "b".into(), sample }
        };
        let mut sums = Accumulator::default();
        // Another thread, which had run for a day, has the first one's identity from 12 s on.
        let day = 86_400 * second;
        for (seconds, ran_ns) in [(10, 5), (11, second / 2 + 5), (12, day), (13, day + second / 4)] {
            sums.add(at(seconds, ran_ns));
        }
        let rates = sums.finish(|_| None).unwrap();
        assert_eq!((rates.seconds, rates.tasks[0].cpu_pct), (3.0, 25.0));
        assert_eq!(rates.tasks[0].wait_pct, Some(25.0));
    }
}
