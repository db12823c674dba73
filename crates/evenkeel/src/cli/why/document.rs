//! A target's document: from sums by cgroup and culprits by number to what people are told.

use std::collections::BTreeMap;

use evenkeel_base::{CpuTimes, GroupView, Observation, Sample, TaskView, is_at_or_below};
use evenkeel_bpf::why::{Culprit, Histogram, Seen, Watch, may_have_started};
use evenkeel_linux::{Root, sys};
use evenkeel_observe::beside::IoStalled;
use evenkeel_observe::{Observer, read_kernel};
use evenkeel_report::time;
use evenkeel_report::why::{Blame, Bucket, Facts, Kind, Split, Target, ThrottledBy, Waits, advise, rival};

use super::fallback;
use super::names::Names;
use super::target::Aim;
use super::vm;

/// What is known about the host over the time looked at.
pub(super) struct Window<'a> {
    pub root: &'a Root,
    pub observer: &'a Observer,
    pub before: &'a Sample,
    pub after: &'a Sample,
    pub observation: &'a Observation,
    /// Time in which a task waited for I/O, microseconds: the target's cgroup's, or the host's.
    pub io_stalled: Option<IoStalled>,
}

impl Window<'_> {
    pub fn names(&self) -> Names {
        let cpu = self.observer.hierarchies().and_then(|found| found.cpu.as_ref());
        Names::read(self.root, cpu, self.observation)
    }

    pub fn started(&self) -> Option<String> {
        time::rfc3339(self.before.wall_ns)
    }

    pub fn wall_s(&self) -> f64 {
        self.after.monotonic_ns.saturating_sub(self.before.monotonic_ns) as f64 / 1e9
    }

    /// What all CPUs did, nanoseconds: busy, and stolen where it is told.
    pub fn host_ns(&self) -> (u64, Option<u64>) {
        let mut busy = 0;
        let mut stolen = Some(0);
        for (old, new) in self.both() {
            busy += new.busy_ns.saturating_sub(old.busy_ns);
            stolen = match (stolen, old.steal_ns, new.steal_ns) {
                (Some(sum), Some(old), Some(new)) => Some(sum + new.saturating_sub(old)),
                _ => None,
            };
        }
        (busy, stolen)
    }

    fn both(&self) -> impl Iterator<Item = (&CpuTimes, &CpuTimes)> {
        self.after.cpus.iter().filter_map(|new| {
            let old = self.before.cpus.iter().find(|old| old.cpu == new.cpu)?;
            Some((old, new))
        })
    }

    pub fn group(&self, path: &str) -> Option<&GroupView> {
        self.observation.groups.iter().find(|group| group.path == path)
    }

    /// Throttled periods and periods with work of a group.
    pub fn periods(&self, path: &str) -> Option<[u64; 2]> {
        let find = |sample: &'_ Sample| sample.groups.iter().find(|group| group.path == path).cloned();
        let (old, new) = (find(self.before)?, find(self.after)?);
        Some([
            new.nr_throttled?.checked_sub(old.nr_throttled?)?,
            new.nr_periods?.checked_sub(old.nr_periods?)?,
        ])
    }
}

pub(super) const NS: f64 = 1e-9;

/// The document of a target, from BPF where there is any, else from /proc.
pub(super) fn document(
    window: &Window<'_>,
    aim: &Aim,
    text: &str,
    seen: Option<&Seen>,
    gone: bool,
) -> Target {
    let mut target = Target {
        schema: "evenkeel.why/v1",
        target: text.to_owned(),
        source: "proc",
        started: window.started(),
        wall_s: window.wall_s(),
        gone,
        vm: vm::machine(window, aim, text),
        ..Target::default()
    };
    match seen {
        Some(seen) => from_bpf(&mut target, window, aim, seen),
        None => fallback::fill(&mut target, window, aim),
    }
    target.shares = target.split.shares();
    target.wanted_s = target.split.wanted_s();
    if gone {
        target
            .notes
            .push("the target was gone before the time was over; this is what it had until then".to_owned());
    }
    target.advice = advise(&target, &facts(window, aim, &target));
    target
}

fn from_bpf(target: &mut Target, window: &Window<'_>, aim: &Aim, seen: &Seen) {
    let names = window.names();
    target.source = "bpf";
    target.wall_s = seen.interval_ns.1.saturating_sub(seen.interval_ns.0) as f64 * NS;
    target.threads = seen.threads;
    target.lost = seen.lost;
    target.at_least = seen.lost > 0;
    if seen.lost > 0 {
        target.notes.push(format!("{} events were lost: times are lower bounds", seen.lost));
    }
    let sum = |field: fn(&evenkeel_bpf::why::Cell) -> u64| seen.cells.iter().map(field).sum::<u64>();
    let seconds = |ns: u64| ns as f64 * NS;
    let stopped = sum(|cell| cell.stopped_ns);
    let blocked = sum(|cell| cell.disk_ns);
    target.split = Split {
        ran_s: seconds(sum(|cell| cell.ran_ns)),
        waited_s: seconds(sum(|cell| cell.waited_ns)),
        throttled_s: Some(seconds(sum(|cell| cell.throttled_ns))),
        stolen_s: Some(seconds(sum(|cell| cell.stolen_ns))),
        slept_s: seconds(sum(|cell| cell.slept_ns) + stopped + blocked),
    };
    estimate_stolen(target, window);
    target.blocked_s = Some(seconds(blocked));
    target.stopped_s = Some(seconds(stopped));
    target.interrupted_s = Some(seconds(sum(|cell| cell.interrupted_ns)));
    target.migrations = Some(sum(|cell| cell.migrated));
    target.preemptions = Some(sum(|cell| cell.preempted));
    target.voluntary = Some(sum(|cell| cell.voluntary));
    let histogram = seen.cells.iter().map(|cell| &cell.waits).sum();
    let longest = seen.cells.iter().map(|cell| cell.max_wait_ns).max().unwrap_or(0);
    target.wait_histogram_usec = Some(waits(&histogram, longest));
    target.blame = Some(blame(window, &names, aim, seen));
    target.throttled_by = throttled_by(window, &names, seen);
}

/// Where the scheduler's clock does not leave out stolen time although the CPUs have lost some: by the target's part in
/// the busy time.
fn estimate_stolen(target: &mut Target, window: &Window<'_>) {
    let (busy, stolen) = window.host_ns();
    let Some(stolen) = stolen else {
        target.split.stolen_s = None;
        return;
    };
    let whole = busy + stolen;
    if target.split.stolen_s == Some(0.0) && whole > 0 && stolen as f64 > 0.01 * whole as f64 {
        let part = target.split.ran_s * stolen as f64 / whole as f64;
        target.split.ran_s -= part;
        target.split.stolen_s = Some(part);
        target.notes.push(
            "stolen time is the target's part of what /proc/stat says: this scheduler does not tell it by task".to_owned(),
        );
    }
}

/// Waits as the document has them.
pub(crate) fn waits(histogram: &Histogram, longest_ns: u64) -> Waits {
    let count = histogram.total();
    let usec = |ns: u64| ns as f64 / 1e3;
    // A quantile is known within its bucket only, the longest wait exactly.
    let quantile = |share| histogram.quantile(share).map(|ns| usec(ns.min(longest_ns)));
    Waits {
        count,
        p50_usec: quantile(0.5),
        p99_usec: quantile(0.99),
        max_usec: (count > 0).then(|| usec(longest_ns)),
        buckets: histogram
            .octaves_usec()
            .into_iter()
            .map(|(from, to, count)| Bucket { from, to, count })
            .collect(),
    }
}

fn blame(window: &Window<'_>, names: &Names, aim: &Aim, seen: &Seen) -> Vec<Blame> {
    let mut sums: BTreeMap<&Culprit, u64> = BTreeMap::new();
    for blame in &seen.blame {
        *sums.entry(&blame.culprit).or_default() += blame.ns;
    }
    let whole: u64 = sums.values().sum();
    let mut list: Vec<Blame> = sums
        .into_iter()
        .filter(|(_, ns)| *ns > 0)
        .map(|(culprit, ns)| {
            let mut row = named(window, names, aim, culprit);
            row.seconds = ns as f64 * NS;
            row.share_pct = 100.0 * ns as f64 / whole.max(1) as f64;
            row
        })
        .collect();
    list.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    list
}

fn named(window: &Window<'_>, names: &Names, aim: &Aim, culprit: &Culprit) -> Blame {
    let mut row = Blame { kind: Kind::Idle, name: "idle".to_owned(), ..Blame::default() };
    match culprit {
        Culprit::Idle => {}
        Culprit::Task { tid, start, tgid, comm, cgroup, kernel_thread } => {
            let view = still_there(window.observation, *tid, *start);
            // Who had a CPU from the beginning to the end is known by number and start only.
            let view = view.filter(|view| *tgid == 0 || view.id.tgid == *tgid);
            let kernel_thread =
                &(*kernel_thread || (*tgid == 0 && view.is_some_and(|view| view.kernel_thread)));
            let tgid = &view.map_or(*tgid, |view| view.id.tgid);
            row.kind = if *kernel_thread { Kind::KernelThread } else { Kind::Task };
            // A task may take its name after it was seen first.
            row.name = match view {
                Some(view) if !*kernel_thread || comm.is_empty() => view.comm.clone(),
                _ if comm.is_empty() => "?".to_owned(),
                _ => comm.clone(),
            };
            row.tid = Some(*tid);
            row.tgid = (*tgid != 0).then_some(*tgid);
            let group =
                view.and_then(|view| window.observation.group_of(view)).map(|group| group.path.as_str());
            if let Some(path) = names.path(*cgroup).or(group) {
                let owner = names.owner(path, window.observation);
                row.cgroup = (!*kernel_thread).then(|| path.to_owned());
                row.container = owner.container;
                row.pod = owner.pod;
                row.own = !*kernel_thread && aim.groups.iter().any(|group| is_at_or_below(path, group));
            }
            if let Watch::Processes(processes) = &aim.watch {
                row.own = processes.iter().any(|(own, _)| own == tgid);
            }
        }
        Culprit::Group(_) => {}
        Culprit::Irq(number, name) => {
            row.kind = Kind::Irq;
            row.name = if name.is_empty() { format!("IRQ {number}") } else { format!("{number} {name}") };
        }
        Culprit::SoftIrq(name) => {
            row.kind = Kind::Softirq;
            row.name = (*name).to_owned();
        }
    }
    row
}

/// A culprit among the tasks at the end. Whoever has its number by then may be another.
fn still_there(observation: &Observation, tid: u32, start: u32) -> Option<&TaskView> {
    observation.tasks.iter().find(|task| task.id.tid == tid && may_have_started(start, task.id.start_time))
}

fn throttled_by(window: &Window<'_>, names: &Names, seen: &Seen) -> Vec<ThrottledBy> {
    let mut sums: BTreeMap<Option<u64>, u64> = BTreeMap::new();
    for held in &seen.held {
        *sums.entry(held.by).or_default() += held.ns;
    }
    let mut list: Vec<ThrottledBy> = sums
        .into_iter()
        .filter(|(_, ns)| *ns > 0)
        .map(|(by, ns)| {
            let path = by.and_then(|by| names.path(by));
            let mut row = quota_of(window, path);
            row.seconds = Some(ns as f64 * NS);
            row
        })
        .collect();
    list.sort_by(|a, b| b.seconds.unwrap_or(0.0).total_cmp(&a.seconds.unwrap_or(0.0)));
    list
}

/// A group's quota, as far as it is known.
pub(super) fn quota_of(window: &Window<'_>, path: Option<&str>) -> ThrottledBy {
    let quota = path.and_then(|path| window.group(path)).and_then(|group| group.quota);
    ThrottledBy {
        cgroup: path.map(str::to_owned),
        seconds: None,
        quota_usec: quota.and_then(|quota| quota.quota_usec.value()),
        period_usec: quota.map(|quota| quota.period_usec),
        periods: path.and_then(|path| window.periods(path)),
    }
}

/// What advice argues with.
fn facts(window: &Window<'_>, aim: &Aim, target: &Target) -> Facts {
    let topology = window.observer.topology();
    let mut usable = evenkeel_base::CpuSet::default();
    // Of who has ended nothing is known, and nothing needs to be.
    for cpus in aim.tasks.iter().filter_map(|task| sys::getaffinity(task.id.tid).ok()) {
        usable = usable.union(&cpus);
    }
    let usable = usable.intersection(&topology.online);
    let known = !usable.is_empty();
    let idle: u64 = window
        .both()
        .filter(|(_, new)| !usable.contains(new.cpu))
        .map(|(old, new)| new.idle_ns.saturating_sub(old.idle_ns))
        .sum();
    let wall_ns = window.after.monotonic_ns.saturating_sub(window.before.monotonic_ns).max(1);
    let other = rival(target.blame.as_deref().unwrap_or_default());
    let mine = aim.groups.first().cloned().or_else(|| {
        let task = aim.tasks.first()?;
        window
            .observation
            .task(task.id)
            .and_then(|task| window.observation.group_of(task))
            .map(|g| g.path.clone())
    });
    let theirs = other.and_then(|row| row.cgroup);
    let (weight, culprit_weight) = match (&mine, &theirs) {
        (Some(mine), Some(theirs)) => rivals(mine, theirs).map_or((None, None), |(mine, theirs)| {
            let weight = |path: &str| window.group(path).and_then(|group| group.load_weight);
            (weight(&mine), weight(&theirs))
        }),
        _ => (None, None),
    };
    // Where no rival is known, groups next below the root compete.
    let topmost = mine.as_deref().and_then(|path| path.split('/').find(|part| !part.is_empty()));
    let group_weight =
        weight.or_else(|| window.group(&format!("/{}", topmost?)).and_then(|group| group.load_weight));
    Facts {
        cpus: topology.online.len() as u32,
        usable: known.then_some(usable.len() as u32),
        idle_elsewhere_pct: known.then_some(100.0 * idle as f64 / wall_ns as f64),
        weight,
        culprit_weight,
        group_weight,
        // In the root, sessions may have groups of their own (autogroup), which no path tells.
        same_group: mine.zip(theirs).filter(|(mine, _)| mine != "/").map(|(mine, theirs)| mine == theirs),
        task_slice: read_kernel(window.root).features.task_slice,
        io_stalled_pct: window.io_stalled.map(|io| 100.0 * io.total_usec as f64 * 1e3 / wall_ns as f64),
        io_own: window.io_stalled.is_some_and(|io| io.own),
        quota_others: quota_others(window, target),
    }
}

/// CPUs that others than the target used of the quota that held it back for longest.
fn quota_others(window: &Window<'_>, target: &Target) -> Option<f64> {
    let path = target.worst_quota()?.cgroup.as_deref()?;
    let at = window.observation.groups.iter().position(|group| group.path == path)?;
    let all = window.observation.group_cpu_pct(at as u32) / 100.0;
    Some((all - target.split.ran_s / target.wall_s.max(1e-9)).max(0.0))
}

/// The groups of two paths that compete with each other: those next below the last common one. `None` when one is the
/// other or above it.
fn rivals(mine: &str, theirs: &str) -> Option<(String, String)> {
    let parts =
        |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let (mine, theirs) = (parts(mine), parts(theirs));
    let common = mine.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    if common == mine.len() || common == theirs.len() {
        return None;
    }
    let path = |parts: &[String]| format!("/{}", parts[..=common].join("/"));
    Some((path(&mine), path(&theirs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rivals_stand_below_the_last_common_group() {
        let pair = |a, b| rivals(a, b);
        assert_eq!(pair("/a/b/c", "/a/d"), Some(("/a/b".into(), "/a/d".into())));
        assert_eq!(pair("/a", "/b"), Some(("/a".into(), "/b".into())));
        assert_eq!(pair("/a", "/a/b"), None);
        assert_eq!(pair("/", "/a"), None);
    }

    #[test]
    fn a_stranger_with_a_culprits_number_is_not_blamed() {
        let id = evenkeel_base::TaskId { tgid: 7, tid: 7, start_time: 5_000 };
        let observation = Observation {
            tasks: vec![TaskView::of(id, "stranger")],
            ..Observation::of(evenkeel_base::Topology::synthetic(1, 1, 2, 1))
        };
        let mark = |ticks: u64| ((ticks * evenkeel_base::TICK_NS) >> 20) as u32;
        assert!(still_there(&observation, 7, mark(5_000)).is_some());
        assert!(
            still_there(&observation, 7, mark(4_000)).is_none(),
            "it ended, and its number was given out again"
        );
        assert!(still_there(&observation, 8, mark(5_000)).is_none());
    }

    #[test]
    fn no_quantile_exceeds_the_longest_wait() {
        let mut histogram = Histogram::default();
        histogram.add(1_000_000);
        let waits = waits(&histogram, 1_000_000);
        assert_eq!((waits.count, waits.max_usec), (1, Some(1000.0)));
        assert!(waits.p99_usec.is_some_and(|p99| p99 <= 1000.0));
    }
}
