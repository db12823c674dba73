//! The course of one container, pod, cgroup or process: rates by steps of the wall clock.
//!
//! Counters are read between two samples, so what lies between samples of two steps is divided among the steps by time: a
//! history thinned to a sample a minute still has a figure for each minute. A step without samples, or without the one that is
//! asked for, is unknown. Where the clock was set meanwhile, the time between the two samples belongs to the step of the first.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use evenkeel_base::stats::add_known;
use evenkeel_base::{Histogram, Matcher, TaskId, is_at_or_below, is_pod_called};

use crate::block::{Infos, TaskInfo};
use crate::db::{Store, StoreError};
use crate::rates::{Accumulator, GroupRate, Rates};
use crate::reading::StoredSample;

/// Samples this much outside the time that is asked for are read, too: the last one before it begins its first step, and of a
/// thinned history they are a minute apart. Nanoseconds.
const AROUND_NS: u64 = 90_000_000_000;
/// Wall clock and monotonic clock may drift apart by this much between two samples before the wall clock was set, nanoseconds.
const SET_NS: u64 = 500_000_000;

/// Reads whose course is asked for: a scope, but of those that the history can tell.
///
/// # Errors
/// With the reason, when it is none of these.
pub fn who(text: &str) -> Result<Matcher, String> {
    let read = match text.trim().parse() {
        Ok(Matcher::Vm(_)) => Err("the history has no virtual machines, but their cgroups".to_owned()),
        read => read,
    };
    read.map_err(|why| {
        format!(
            "{why}; expected pid:N, comm:REGEX, cgroup:/PATH (cgroup:/ is all), container:NAME or pod:NS/NAME"
        )
    })
}

/// Whether a task is meant, by what is recorded of it.
fn is_meant(who: &Matcher, id: TaskId, info: Option<&TaskInfo>) -> bool {
    let Some(info) = info else { return matches!(who, Matcher::Pid(pid) if id.tgid == *pid) };
    match who {
        Matcher::Pid(pid) => id.tgid == *pid,
        Matcher::Comm(regex) => regex.is_match(&info.comm),
        Matcher::Container(name) => info.container.as_ref() == Some(name),
        Matcher::Pod(namespace, name) => info.pod.as_deref().is_some_and(|pod| {
            let pod = pod.split_once('/').map_or((None, pod), |(namespace, pod)| (Some(namespace), pod));
            is_pod_called(pod, (namespace.as_deref(), name))
        }),
        Matcher::Cgroup(path) => info.group.as_deref().is_some_and(|group| is_at_or_below(group, path)),
        Matcher::Vm(_) => false,
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// Its begin, wall clock, nanoseconds since 1970.
    pub from_ns: u64,
    /// Time of it that samples cover, seconds; more than its length where the clock was set back.
    pub seconds: f64,
    /// CPU got, percent of one CPU of the time covered; `None` where it was not there, or nothing was recorded.
    pub cpu_pct: Option<f64>,
    /// Time its threads waited while runnable (throttling included), percent; `None` also where not counted.
    pub wait_pct: Option<f64>,
    /// Time for which quotas held its cgroup back, its own and those above it, percent; `None` also where it is not in a cgroup of its
    /// own.
    pub throttled_pct: Option<f64>,
    /// Lengths of its waits, of the minutes of this step in which they were counted; containers only.
    pub waits: Option<Histogram>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// Step by step, without gaps.
    pub steps: Vec<Step>,
    pub damaged_blocks: u64,
    /// Of a process: all that had its number then, by when each was seen first (wall clock, nanoseconds since 1970), with its name.
    pub processes: Vec<(u64, Option<String>)>,
}

/// What is known of some time.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    seconds: f64,
    /// It was there, and used so much, seconds.
    cpu: Option<f64>,
    wait: Option<f64>,
    throttled: Option<f64>,
}

impl Part {
    fn add(&mut self, part: &Self, share: f64) {
        let of = |value: Option<f64>| value.map(|value| value * share);
        self.seconds += part.seconds * share;
        add_known(&mut self.cpu, of(part.cpu));
        add_known(&mut self.wait, of(part.wait));
        add_known(&mut self.throttled, of(part.throttled));
    }
}

/// What the rates of some time say of one, whose tasks are among those seen meanwhile.
fn part(who: &Matcher, rates: &Rates, seen: &HashSet<TaskId>, names: &Infos) -> Part {
    let info = |id: &TaskId| names.get(id).map(|info| &**info);
    let there = seen.iter().any(|id| is_meant(who, *id, info(id)));
    let mut part = Part { seconds: rates.seconds, ..Part::default() };
    let of = |pct: f64| pct / 100.0 * rates.seconds;
    let group = own_group(who, seen, names);
    let group = group.and_then(|path| rates.groups.iter().find(|group| group.path == path));
    if !there && group.is_none() {
        return part;
    }
    let mine = rates.tasks.iter().filter(|task| is_meant(who, task.id, task.info.as_deref()));
    let (mut cpu, mut wait, mut counted) = (0.0, None, true);
    for task in mine {
        cpu += of(task.cpu_pct);
        counted &= task.wait_pct.is_some();
        add_known(&mut wait, task.wait_pct.map(of));
    }
    // The cgroup's own counter has what ended in between, too; of a name it is not known whether that had it.
    let is_by_name = matches!(who, Matcher::Comm(_));
    let by_group = group.filter(|_| !is_by_name).and_then(|group| group.cpu_pct).map_or(0.0, of);
    part.cpu = Some(cpu.max(by_group));
    part.wait = wait.or((there && counted).then_some(0.0));
    let wait_pct = part.wait.map(|wait| 100.0 * wait / rates.seconds);
    part.throttled = group.and_then(|group| held_back_pct(&rates.groups, &group.path, wait_pct)).map(of);
    part
}

/// For how long quotas held a cgroup back, percent, summed over CPUs; as `Observation::held_back_in` has it of the present: its own
/// quota, or those of the cgroups in it, whichever is more, for they overlap; and those of the cgroups that it is in, but for no longer
/// than its tasks waited: there they hold back others, too. It is one of `groups`, which are in the order of their paths.
fn held_back_pct(groups: &[GroupRate], path: &str, wait_pct: Option<f64>) -> Option<f64> {
    let mut inside = HashMap::<&str, f64>::new();
    let mut held = None;
    // Those below one come after it, so it is the last.
    for group in groups.iter().rev().filter(|group| is_at_or_below(&group.path, path)) {
        let below = inside.get(group.path.as_str()).copied();
        held = group.throttled_pct.into_iter().chain(below).reduce(f64::max);
        let (above, _) = group.path.rsplit_once('/').unwrap_or_default();
        if let Some(pct) = held {
            *inside.entry(if above.is_empty() { "/" } else { above }).or_default() += pct;
        }
    }
    let above = groups.iter().filter(|group| group.path != path && is_at_or_below(path, &group.path));
    let above = above.filter_map(|group| group.throttled_pct).fold(0.0, f64::max);
    let above = above.min(wait_pct.unwrap_or(0.0));
    held.map(|held| held.max(above)).or((above > 0.0).then_some(above))
}

/// The cgroup that all its tasks are in, or below, and nobody else's.
fn own_group(who: &Matcher, seen: &HashSet<TaskId>, names: &Infos) -> Option<String> {
    if let Matcher::Cgroup(path) = who {
        return Some(if path.is_empty() { "/".to_owned() } else { path.clone() });
    }
    let placed = || {
        seen.iter().filter_map(|id| {
            let info = names.get(id)?;
            Some((is_meant(who, *id, Some(info)), info.group.as_deref()?))
        })
    };
    let top = common_group(placed().filter(|(mine, _)| *mine).map(|(_, path)| path))?;
    let strangers = placed().any(|(mine, path)| !mine && is_at_or_below(path, top));
    (!strangers).then(|| top.to_owned())
}

/// The innermost cgroup that all of these are, or are below; `None` of none, and where that is the root.
pub(crate) fn common_group<'a>(paths: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut top: Option<&str> = None;
    for path in paths {
        let mut common = top.unwrap_or(path);
        while !is_at_or_below(path, common) {
            common = common.rsplit_once('/')?.0;
        }
        top = Some(common);
    }
    top.filter(|top| !top.is_empty() && *top != "/")
}

/// Steps being filled.
struct Course<'a> {
    who: &'a Matcher,
    every_ns: u64,
    first: u64,
    parts: Vec<Part>,
}

impl Course<'_> {
    fn add(&mut self, step: u64, part: &Part, share: f64) {
        let at = step.checked_sub(self.first).and_then(|at| self.parts.get_mut(at as usize));
        if let Some(sum) = at {
            sum.add(part, share);
        }
    }

    /// What happened between two samples of different steps.
    fn between(&mut self, last: StoredSample, next: StoredSample, names: &Infos) {
        let (from, to) = (last.sample.wall_ns, next.sample.wall_ns);
        let passed = next.sample.monotonic_ns.saturating_sub(last.sample.monotonic_ns);
        let mut stretch = Stretch::default();
        stretch.add(last);
        stretch.add(next);
        let Some(part) = stretch.finish(self.who, names) else { return };
        let set = to.checked_sub(from).is_none_or(|by_wall| by_wall.abs_diff(passed) > SET_NS + passed / 20);
        if set {
            return self.add(from / self.every_ns, &part, 1.0);
        }
        let last = self.first + self.parts.len() as u64;
        for step in (from / self.every_ns).max(self.first)..=(to / self.every_ns).min(last) {
            let (begins, ends) = (step * self.every_ns, (step + 1).saturating_mul(self.every_ns));
            let shared = ends.min(to).saturating_sub(begins.max(from));
            if shared > 0 {
                self.add(step, &part, shared as f64 / (to - from) as f64);
            }
        }
    }
}

/// Consecutive samples.
#[derive(Default)]
struct Stretch {
    rates: Accumulator,
    seen: HashSet<TaskId>,
}

impl Stretch {
    fn add(&mut self, sample: StoredSample) {
        self.seen.extend(sample.sample.tasks.iter().map(|task| task.id));
        self.rates.add(sample);
    }

    fn finish(self, who: &Matcher, names: &Infos) -> Option<Part> {
        let rates = self.rates.finish(|id| names.get(&id).cloned())?;
        Some(part(who, &rates, &self.seen, names))
    }
}

impl Store {
    /// The course of one between two instants (wall clock, nanoseconds since 1970), by steps of `every_ns` (at least 1) since
    /// 1970: the first has the begin in it, the last what is just before the end. The caller bounds their number.
    ///
    /// # Errors
    /// When the history cannot be read; damaged blocks are counted and passed over.
    pub fn series(
        &self,
        who: &Matcher,
        from_ns: u64,
        to_ns: u64,
        every_ns: u64,
    ) -> Result<Series, StoreError> {
        let every_ns = every_ns.max(1);
        let (first, end) = (from_ns / every_ns, to_ns.max(from_ns).div_ceil(every_ns));
        let count = end.saturating_sub(first) as usize;
        let mut course = Course { who, every_ns, first, parts: vec![Part::default(); count] };
        let (from, to) = (first * every_ns, end.saturating_mul(every_ns));
        let mut samples = self.samples(from.saturating_sub(AROUND_NS), to.saturating_add(AROUND_NS))?;
        let (mut open, mut last) = (None::<(u64, Stretch)>, None::<StoredSample>);
        let mut damaged_blocks = 0;
        let mut leaders: BTreeMap<(Arc<str>, TaskId), u64> = BTreeMap::new();
        loop {
            let next = match samples.next() {
                Some(Ok(next)) => Some(next),
                Some(Err(error)) if error.is_corrupt() => {
                    damaged_blocks += 1;
                    continue;
                }
                Some(Err(error)) => return Err(error),
                None => None,
            };
            let step = next.as_ref().map(|next| next.sample.wall_ns / every_ns);
            // One that does not follow the last begins again.
            let follows = next.as_ref().zip(last.as_ref()).is_some_and(|(next, last)| {
                next.session == last.session && next.sample.monotonic_ns > last.sample.monotonic_ns
            });
            if let Some((at, done)) = open.take_if(|(at, _)| !follows || Some(*at) != step) {
                if let Some(part) = done.finish(who, samples.names()) {
                    course.add(at, &part, 1.0);
                }
                if let (true, Some(next), Some(last)) = (follows, &next, last.take()) {
                    course.between(last, next.clone(), samples.names());
                }
            }
            let (Some(next), Some(step)) = (next, step) else { break };
            if let Matcher::Pid(tgid) = who
                && (from..to).contains(&next.sample.wall_ns)
                && let Some(leader) = next.sample.tasks.iter().find(|task| task.id.tid == *tgid)
            {
                leaders.entry((Arc::clone(&next.boot_id), leader.id)).or_insert(next.sample.wall_ns);
            }
            last = Some(next.clone());
            open.get_or_insert_with(|| (step, Stretch::default())).1.add(next);
        }
        let comm = |id| samples.names().get(id).map(|info| info.comm.clone());
        let mut processes: Vec<_> = leaders.iter().map(|((_, id), first)| (*first, comm(id))).collect();
        processes.sort();
        let waits = match who {
            Matcher::Container(name) => self.waits_by_minute(name, from, to)?,
            _ => BTreeMap::new(),
        };
        let steps = course.parts.iter().zip(first..).map(|(part, step)| {
            let from_ns = step * every_ns;
            let pct = |s: Option<f64>| s.filter(|_| part.seconds > 0.0).map(|s| 100.0 * s / part.seconds);
            let minutes = from_ns.div_ceil(MINUTE_NS)..(from_ns.saturating_add(every_ns)).div_ceil(MINUTE_NS);
            let mut lengths: Option<Histogram> = None;
            for counted in waits.range(minutes).map(|(_, counted)| counted) {
                // Counted, and none was its: nothing to wait for, if it was there.
                let none = (counted.is_some() || part.cpu.is_some()).then(Histogram::default);
                if let Some(part) = counted.clone().or(none) {
                    lengths.get_or_insert_default().merge(&part);
                }
            }
            Step {
                from_ns,
                seconds: part.seconds,
                cpu_pct: pct(part.cpu),
                wait_pct: pct(part.wait),
                throttled_pct: pct(part.throttled),
                waits: lengths,
            }
        });
        Ok(Series { steps: steps.collect(), damaged_blocks, processes })
    }
}

/// A minute, in which lengths of waits are counted together.
const MINUTE_NS: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_history_cannot_tell_is_named() {
        assert!(who(" pod:prod/*").is_ok() && who("comm:^web").is_ok());
        for (text, why) in [
            ("vm:a", "no virtual machines"),
            ("all", "no kind"),
            ("!pid:7", "unknown kind"),
            ("comm:(", "unclosed"),
        ] {
            let error = who(text).unwrap_err();
            assert!(error.contains(why) && error.contains("container:NAME"), "{text}: {error}");
        }
    }

    #[test]
    fn quotas_above_hold_back_for_no_longer_than_one_waits_and_those_below_add_up() {
        let group = |(path, throttled_pct): &(&str, Option<f64>)| GroupRate {
            path: (*path).to_owned(),
            cpu_pct: None,
            throttled_pct: *throttled_pct,
        };
        let groups = [
            ("/", None),
            ("/pod", Some(0.0)),
            ("/pod/a", Some(30.0)),
            ("/pod/b", Some(20.0)),
            ("/pods", Some(7.0)),
            ("/slice", Some(60.0)),
            ("/slice/web", Some(0.0)),
            ("/slice/web/in", None),
        ];
        let groups: Vec<GroupRate> = groups.iter().map(group).collect();
        let held = |path, wait_pct| held_back_pct(&groups, path, wait_pct);
        assert_eq!((held("/pod", Some(90.0)), held("/pod/a", None)), (Some(50.0), Some(30.0)));
        let web = |wait_pct| held("/slice/web", wait_pct);
        assert_eq!((web(Some(25.0)), web(Some(80.0))), (Some(25.0), Some(60.0)));
        // Who waited for nothing, or nobody knows, is held back by his own quota alone.
        assert_eq!((web(None), held("/slice/web/in", Some(0.0))), (Some(0.0), None));
        assert_eq!((held("/slice/web/in", Some(5.0)), held("/", None)), (Some(5.0), Some(117.0)));
    }
}
