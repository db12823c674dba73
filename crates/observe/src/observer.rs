//! Rates and ownership between two samples.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_base::observation::CpuView;
use evenkeel_base::{
    CpuTimes, GroupSample, GroupView, HostView, Observation, Sample, TICK_NS, TaskId, TaskSample, TaskView,
    Topology, may_have_run,
};
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::{Root, sys};

use crate::ObserveError;
use crate::exited;
use crate::groups::{Groups, with_ancestors};
use crate::on_demand::{OnDemand, OnDemandAttributes};
use crate::owners::{Owners, forget_shared_groups};
use crate::runtimes::{Endpoints, Runtimes};
use crate::sampler::{Sampler, Sampling, Select};
use crate::topology::read_topology;

/// For which tasks the slow facts (affinity, class, nice, slice) and fresh limits of groups are read.
pub type Detail = Select;

/// The machine and the kernel's default slice are read again this often, and when a CPU came or went.
const TOPOLOGY_AGE: Duration = Duration::from_secs(60);

evenkeel_base::defaults! {
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    pub sampling: Sampling = Sampling::Auto,
    /// Tasks whose context switches are read with each [`Observer::sample`] (slow by `/proc`); none by default.
    pub switches: Select = Select::None,
    /// Whether cgroups' counters are read with each sample.
    pub groups: bool = true,
    /// Container runtimes to ask, in the background; [`Endpoints::none`] asks nobody.
    pub runtimes: Endpoints = Endpoints::well_known(),
}
}

/// Takes samples and turns two of them into rates with their owners.
#[derive(Debug)]
pub struct Observer {
    root: Root,
    options: ObserverOptions,
    sampler: Sampler,
    groups: Groups,
    owners: Owners,
    slow: OnDemand,
    topology: Arc<Topology>,
    topology_read: Instant,
    default_slice: Option<u64>,
}

impl Observer {
    /// Reads the machine and prepares to sample; asks the runtimes in the background from now on.
    ///
    /// # Errors
    /// No `/proc`, kernel files that make no sense, or no BPF where it alone was asked for.
    pub fn new(root: &Root, options: ObserverOptions) -> Result<Self, ObserveError> {
        let sampler = Sampler::open(root, options.sampling)?;
        Ok(Self {
            root: root.clone(),
            groups: Groups::default(),
            owners: Owners::new(Runtimes::start(root, &options.runtimes)),
            slow: OnDemand::new(root),
            topology: Arc::new(read_topology(root)?),
            topology_read: Instant::now(),
            default_slice: root.is_live().then(sys::default_slice_ns).flatten(),
            sampler,
            options,
        })
    }

    /// The way tasks are sampled: [`Sampling::Bpf`] or [`Sampling::Proc`].
    pub fn sampling(&self) -> Sampling {
        self.sampler.sampling()
    }

    /// What the user should be told since the last call: why `/proc` is read, events lost. Each once.
    pub fn take_note(&mut self) -> Option<String> {
        self.sampler.take_note().or_else(|| self.owners.take_note())
    }

    /// The machine as last read.
    pub fn topology(&self) -> Arc<Topology> {
        self.topology.clone()
    }

    /// Where the cgroup hierarchies are; `None` on a host without.
    pub fn hierarchies(&self) -> Option<&Hierarchies> {
        self.sampler.hierarchies()
    }

    /// Waits until every runtime has answered or failed once, at most this long; for one-shot commands.
    pub fn wait_for_runtimes(&self, at_most: Duration) {
        self.owners.wait(at_most);
    }

    /// The kernel's default slice, nanoseconds, as of the last observation.
    pub fn default_slice_ns(&self) -> Option<u64> {
        self.default_slice
    }

    /// systemd's unit a task is in, by its cgroup.
    pub fn unit(&self, id: TaskId) -> Option<&str> {
        self.sampler.meta(id)?.place.owner.unit.as_deref()
    }

    /// Counters of the host, all tasks and their groups.
    pub fn sample(&mut self) -> Result<Sample, ObserveError> {
        let switches = self.options.switches.clone();
        self.sample_of(&Select::All, &switches)
    }

    /// Counters of the host, of the tasks selected and of all known groups; context switches of those in `switches`.
    pub fn sample_of(&mut self, tasks: &Select, switches: &Select) -> Result<Sample, ObserveError> {
        let mut sample = self.sampler.sample(tasks, switches)?;
        if *tasks == Select::All {
            let places = self.sampler.places();
            self.groups.set(places.iter().filter_map(|place| {
                Some((place.cpu.as_deref()?, place.cpuset.as_deref(), place.cpuacct.as_deref()))
            }));
        }
        if self.options.groups
            && let Some(hierarchies) = self.sampler.hierarchies()
        {
            sample.groups = self.groups.sample(&self.root, hierarchies);
        }
        Ok(sample)
    }

    /// Rates between two samples, with owners. A task is in it when the later sample has it and the earlier has it
    /// or it was born in between; one whose counters ran backwards (its number now means another, or a thread took
    /// over its process by `exec`) is left out of this interval.
    ///
    /// # Errors
    /// The machine, when it has to be read again.
    pub fn observe(
        &mut self,
        before: &Sample,
        after: &Sample,
        detail: &Detail,
    ) -> Result<Observation, ObserveError> {
        self.refresh(after)?;
        let interval_ns = after.monotonic_ns.saturating_sub(before.monotonic_ns).max(1);
        let joined = join(before, after);
        let mut slow: Vec<OnDemandAttributes> = Vec::new();
        if *detail != Detail::None {
            slow.reserve(joined.tasks.len());
            for (_, task) in &joined.tasks {
                slow.push(if detail.has(task.id) {
                    self.slow_facts(task.id)
                } else {
                    OnDemandAttributes::default()
                });
            }
        }
        let Self { root, sampler, groups: known_groups, owners, .. } = self;
        let metas: Vec<_> = joined.tasks.iter().map(|(_, task)| sampler.meta(task.id)).collect();
        let ended = exited::between(before, after, &joined.vanished, sampler);
        let mut places: Vec<&str> =
            metas.iter().flatten().filter_map(|meta| meta.place.cpu.as_deref()).collect();
        places.dedup();
        let paths = with_ancestors(places.into_iter().chain(ended.iter().filter_map(|e| e.path.as_deref())));
        let index: HashMap<&str, u32> = paths.iter().zip(0..).map(|(path, n)| (*path, n)).collect();
        let detailed = joined.tasks.iter().zip(&metas).filter(|((_, task), _)| detail.has(task.id));
        let fresh = match detail {
            Detail::None | Detail::All => Default::default(),
            _ => with_ancestors(detailed.filter_map(|(_, meta)| meta.as_ref()?.place.cpu.as_deref())),
        };
        let mut groups = Vec::with_capacity(paths.len());
        for path in &paths {
            let fresh = *detail == Detail::All || fresh.contains(path);
            let (limits, v2) = match sampler.hierarchies() {
                Some(hierarchies) => {
                    let v2 = hierarchies.cpu.as_ref().is_some_and(|cpu| cpu.v2);
                    (known_groups.limits(root, hierarchies, path, fresh), v2)
                }
                None => Default::default(),
            };
            groups.push(group_view(path, &index, limits, v2, before, after, interval_ns));
        }
        let mut tasks = Vec::with_capacity(joined.tasks.len());
        let mut slow = slow.into_iter();
        for ((old, new), meta) in joined.tasks.iter().zip(&metas) {
            let slow = slow.next().unwrap_or_default();
            tasks.push(rates(*old, new, interval_ns, slow).with(*meta, &index));
        }
        let owned = owners.assign(root, &mut tasks, &metas, &index);
        let mut observation = Observation {
            interval_s: interval_ns as f64 / 1e9,
            wall_ns: after.wall_ns,
            topology: self.topology.clone(),
            host: host_view(&before.cpus, &after.cpus),
            tasks,
            groups,
            containers: owned.containers,
            pods: owned.pods,
            vms: owned.vms,
            exited: Vec::new(),
        };
        forget_shared_groups(&mut observation);
        // Whose they were is told by the groups that are somebody's own.
        observation.exited =
            exited::views(&ended, &index, &observation.groups, &observation.containers, interval_ns);
        Ok(observation)
    }

    /// As [`Observer::observe`], for one-shot commands: where a container has no name, because it started after the runtimes
    /// were asked, they are asked once more, for at most this long.
    pub fn observe_named(
        &mut self,
        before: &Sample,
        after: &Sample,
        detail: &Detail,
        at_most: Duration,
    ) -> Result<Observation, ObserveError> {
        let seen = self.observe(before, after, detail)?;
        let newcomers = seen.containers.iter().any(|container| !container.confirmed);
        if newcomers && self.owners.ask_again(at_most) {
            self.observe(before, after, detail)
        } else {
            Ok(seen)
        }
    }

    fn slow_facts(&mut self, id: TaskId) -> OnDemandAttributes {
        let facts = self.slow.read(id, self.default_slice, self.sampler.sched(id));
        // The calls took a number: only if it still means this task afterwards, they were about it.
        if self.root.is_live() && !self.sampler.is_alive(id) {
            return OnDemandAttributes::default();
        }
        facts
    }

    fn refresh(&mut self, after: &Sample) -> Result<(), ObserveError> {
        if !self.root.is_live() {
            return Ok(());
        }
        let online = after.cpus.iter().map(|times| times.cpu).collect();
        if self.topology_read.elapsed() > TOPOLOGY_AGE || self.topology.online != online {
            let topology = read_topology(&self.root)?;
            if *self.topology != topology {
                self.topology = Arc::new(topology);
            }
            self.topology_read = Instant::now();
            self.default_slice = sys::default_slice_ns();
        }
        Ok(())
    }
}

fn group_view(
    path: &str,
    index: &HashMap<&str, u32>,
    limits: crate::groups::Limits,
    v2: bool,
    before: &Sample,
    after: &Sample,
    interval_ns: u64,
) -> GroupView {
    let (old, new) = (group_sample(before, path), group_sample(after, path));
    let change =
        |field: fn(&GroupSample) -> Option<u64>| -> Option<u64> { field(new?)?.checked_sub(field(old?)?) };
    let percent = |ns: u64| 100.0 * ns as f64 / interval_ns as f64;
    GroupView {
        path: path.to_owned(),
        parent: evenkeel_linux::cgroupfs::parent(path).and_then(|parent| index.get(parent).copied()),
        load_weight: limits.load_weight,
        idle: limits.idle,
        raw_weight: limits.raw_weight,
        v2,
        quota: limits.quota,
        cpuset: limits.cpuset,
        cpu_pct: change(|group| group.usage_ns).map(percent),
        throttled_pct: change(|group| group.throttled_ns).map(percent),
        throttled_periods: change(|group| group.nr_throttled).zip(change(|group| group.nr_periods)),
    }
}

fn group_sample<'a>(sample: &'a Sample, path: &str) -> Option<&'a GroupSample> {
    let at = sample.groups.binary_search_by(|group| group.path.as_str().cmp(path)).ok()?;
    sample.groups.get(at)
}

/// The tasks of two samples.
struct Joined<'a> {
    /// Those of the later one; the earlier is missing when it was born in between.
    tasks: Vec<(Option<&'a TaskSample>, &'a TaskSample)>,
    /// Those only the earlier one has.
    vanished: Vec<&'a TaskSample>,
}

/// What is born while a sample is taken may be missing in it. It takes less time than this, ticks.
const SAMPLE_TICKS: u64 = 100;

/// Pairs of a task's two samples; both are ordered by identity.
fn join<'a>(before: &'a Sample, after: &'a Sample) -> Joined<'a> {
    // Start times count ticks since boot, as CLOCK_MONOTONIC does but for time suspended: there the newest task of the
    // earlier sample tells when that was.
    let newest = before.tasks.iter().map(|task| task.id.start_time).max().unwrap_or(0);
    let born_after = (before.monotonic_ns / TICK_NS).max(newest.saturating_sub(SAMPLE_TICKS));
    let complete = !before.tasks.is_empty();
    let between_ns = after.monotonic_ns.saturating_sub(before.monotonic_ns);
    let mut joined = Joined { tasks: Vec::with_capacity(after.tasks.len()), vanished: Vec::new() };
    let mut earlier = before.tasks.iter().peekable();
    for task in &after.tasks {
        while let Some(old) = earlier.next_if(|old| old.id < task.id) {
            joined.vanished.push(old);
        }
        match earlier.next_if(|old| old.id == task.id) {
            // Else these are counters of two threads.
            Some(old) => {
                let ran_ns = task.ran_ns.checked_sub(old.ran_ns);
                if ran_ns.is_some_and(|ran_ns| may_have_run(ran_ns, between_ns)) {
                    joined.tasks.push((Some(old), task));
                }
            }
            None => {
                let born = complete && task.id.start_time + 1 >= born_after;
                if born && may_have_run(task.ran_ns, between_ns) {
                    joined.tasks.push((None, task));
                }
            }
        }
    }
    joined.vanished.extend(earlier);
    joined
}

struct Rates(TaskView);

fn rates(old: Option<&TaskSample>, new: &TaskSample, interval_ns: u64, slow: OnDemandAttributes) -> Rates {
    let since = |field: fn(&TaskSample) -> Option<u64>| -> Option<u64> {
        match old {
            Some(old) => field(new)?.checked_sub(field(old)?),
            None => field(new),
        }
    };
    let percent = |ns: u64| 100.0 * ns as f64 / interval_ns as f64;
    let per_second = |count: u64| count as f64 * 1e9 / interval_ns as f64;
    Rates(TaskView {
        id: new.id,
        cpu: new.cpu,
        affinity: slow.affinity,
        sched: slow.sched,
        cpu_pct: percent(since(|task| Some(task.ran_ns)).unwrap_or(0)),
        wait_pct: since(|task| task.waited_ns).map(percent),
        timeslices: since(|task| task.timeslices),
        voluntary_per_s: since(|task| task.voluntary).map(per_second),
        involuntary_per_s: since(|task| task.involuntary).map(per_second),
        ..TaskView::default()
    })
}

impl Rates {
    fn with(self, meta: Option<&crate::process::TaskMeta>, groups: &HashMap<&str, u32>) -> TaskView {
        let mut view = self.0;
        match meta {
            Some(meta) => {
                view.comm = meta.comm.to_string();
                view.ppid = meta.ppid;
                view.kernel_thread = meta.kernel_thread;
                view.group = meta.place.cpu.as_deref().and_then(|path| groups.get(path).copied());
            }
            None => view.comm = "?".to_owned(),
        }
        view
    }
}

/// By how much idle time runs backwards on a CPU that was on all the time, at most.
const BACKWARDS_NS: u64 = 1_000_000_000;

/// CPUs between two samples. Busy is a share of busy, idle and stolen time together: the kernel accounts in ticks, so
/// their sum is not exactly the interval. A CPU whose busy counter ran backwards, or that was off, is left out.
fn host_view(before: &[CpuTimes], after: &[CpuTimes]) -> HostView {
    let mut per_cpu = Vec::with_capacity(after.len());
    for new in after {
        let Ok(at) = before.binary_search_by_key(&new.cpu, |old| old.cpu) else { continue };
        let old = &before[at];
        let Some(busy) = new.busy_ns.checked_sub(old.busy_ns) else { continue };
        // iowait is known to run backwards a little: that is no idle time. Before Linux 6.8 a CPU that was off began again at 0:
        // how long it idled is not known, and it was not busy all the time.
        if old.idle_ns.saturating_sub(new.idle_ns) > BACKWARDS_NS {
            continue;
        }
        let idle = new.idle_ns.saturating_sub(old.idle_ns);
        let steal = new.steal_ns.zip(old.steal_ns).and_then(|(new, old)| new.checked_sub(old));
        let total = (busy + idle + steal.unwrap_or(0)).max(1) as f64;
        per_cpu.push(CpuView {
            cpu: new.cpu,
            busy_pct: 100.0 * busy as f64 / total,
            steal_pct: steal.map(|steal| 100.0 * steal as f64 / total),
            irq_pct: new.irq_ns.checked_sub(old.irq_ns).map(|irq| 100.0 * irq as f64 / total),
        });
    }
    HostView {
        cpus: after.len() as u32,
        busy_pct: per_cpu.iter().map(|cpu| cpu.busy_pct).sum(),
        steal_pct: per_cpu.iter().map(|cpu| cpu.steal_pct).sum(),
        per_cpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(tid: u32, start_time: u64, ran_ns: u64) -> TaskSample {
        TaskSample {
            id: TaskId { tgid: tid, tid, start_time },
            cpu: Some(0),
            ran_ns,
            waited_ns: Some(ran_ns / 2),
            ..TaskSample::default()
        }
    }

    fn at(seconds: u64, tasks: Vec<TaskSample>) -> Sample {
        Sample { monotonic_ns: seconds * 1_000_000_000, tasks, ..Sample::default() }
    }

    #[test]
    fn a_reused_number_is_a_new_task_and_backward_counters_are_unknown() {
        let tasks =
            |all: &[(u32, u64, u64)]| all.iter().map(|(tid, start, ran)| task(*tid, *start, *ran)).collect();
        let (second, day) = (1_000_000_000, 86_400_000_000_000);
        let before = at(10, tasks(&[(1, 5, 100), (2, 5, 100), (3, 5, 900), (8, 5, 7), (9, 5, 7)]));
        let later = [(1, 5, 400), (2, 1050, 70), (3, 5, 20), (4, 5, 1), (8, 5, 3 * second + 7), (9, 5, day)];
        let after = at(11, tasks(&later));
        let seen: Vec<_> = join(&before, &after)
            .tasks
            .into_iter()
            .map(|(old, new)| (new.id.tid, old.map(|old| old.ran_ns)))
            .collect();
        // 2 was born at 10.5 s; 3 ran backwards; 4 is old but was not looked at before; 9 ran for a day in a second.
        assert_eq!(seen, [(1, Some(100)), (2, None), (8, Some(7))]);
    }

    #[test]
    fn after_a_suspension_old_tasks_are_not_born_now() {
        // Suspended for an hour: start times are 360,000 ticks ahead of CLOCK_MONOTONIC. 1 was started a moment ago; 2 is old, and was not
        // looked at before; 4 cannot have run for an hour in a second.
        let before = at(1000, vec![task(1, 459_990, 7)]);
        let hour = 3600 * 1_000_000_000;
        let later =
            [task(1, 459_990, 8), task(2, 410_000, 9), task(3, 460_050, 9), task(4, 460_050, hour)].to_vec();
        let seen: Vec<_> = join(&before, &at(1001, later))
            .tasks
            .iter()
            .map(|(old, new)| (new.id.tid, old.is_some()))
            .collect();
        assert_eq!(seen, [(1, true), (3, false)]);
    }

    #[test]
    fn rates_are_percent_of_one_cpu() {
        let (old, new) = (task(1, 5, 0), task(1, 5, 500_000_000));
        let of = |old: Option<&TaskSample>, new: &TaskSample| {
            let view = rates(old, new, 2_000_000_000, OnDemandAttributes::default()).0;
            assert_eq!(view.voluntary_per_s, None);
            (view.cpu_pct, view.wait_pct, view.timeslices)
        };
        let counted = |waited_ns, timeslices| TaskSample { waited_ns, timeslices, ..new };
        assert_eq!(of(Some(&old), &counted(new.waited_ns, Some(9))), (25.0, Some(12.5), None));
        // Waited backwards; one that was born counts from its birth.
        let later = counted(Some(1_000_000_000), Some(7));
        assert_eq!(of(Some(&later), &counted(Some(0), Some(9))), (0.0, None, Some(2)));
        assert_eq!(of(None, &later), (25.0, Some(50.0), Some(7)));
    }

    #[test]
    fn steal_is_neither_busy_nor_idle() {
        let cpu = |busy_ns: u64, idle_ns, steal_ns| {
            let irq_ns = busy_ns / 5;
            CpuTimes { cpu: 3, busy_ns, idle_ns, irq_ns, steal_ns }
        };
        let view = host_view(&[cpu(0, 0, Some(0))], &[cpu(50, 25, Some(25))]);
        assert_eq!((view.busy_pct, view.steal_pct), (50.0, Some(25.0)));
        assert_eq!(view.per_cpu[0].irq_pct, Some(10.0));
        assert_eq!(host_view(&[cpu(0, 0, None)], &[cpu(1, 1, None)]).steal_pct, None);
        assert!(host_view(&[cpu(9, 0, None)], &[cpu(1, 1, None)]).per_cpu.is_empty());
        assert!(host_view(&[], &[cpu(1, 1, None)]).per_cpu.is_empty());
        // Off and on again: its idle time began anew.
        let day = 86_400_000_000_000;
        assert!(host_view(&[cpu(1, day, None)], &[cpu(2, 5, None)]).per_cpu.is_empty());
        assert_eq!(
            host_view(&[cpu(0, 9, None)], &[cpu(1, 8, None)]).busy_pct,
            100.0,
            "a little is no reason"
        );
    }
}
