//! The split without BPF: `schedstat` of the threads, `cpu.stat` of their groups, `/proc/stat`.

use std::collections::BTreeSet;

use evenkeel_base::{Observation, Sample, TaskView, is_at_or_below};
use evenkeel_report::why::{Split, Target, ThrottledBy};

use super::document::{NS, Window, quota_of};
use super::target::Aim;

/// Fills in what counters tell. Threads that came or went in between are missing.
pub(super) fn fill(target: &mut Target, window: &Window<'_>, aim: &Aim) {
    let mut split = Split { throttled_s: None, stolen_s: None, ..Split::default() };
    let mut groups = BTreeSet::new();
    let mut counts_waits = true;
    for task in &aim.tasks {
        let find = |sample: &Sample| {
            sample.tasks.binary_search_by_key(&task.id, |task| task.id).ok().map(|at| sample.tasks[at])
        };
        let (Some(old), Some(new)) = (find(window.before), find(window.after)) else { continue };
        target.threads += 1;
        let ran = new.ran_ns.saturating_sub(old.ran_ns) as f64 * NS;
        let waited = match (old.waited_ns, new.waited_ns) {
            (Some(old), Some(new)) => new.saturating_sub(old) as f64 * NS,
            _ => {
                counts_waits = false;
                0.0
            }
        };
        split.ran_s += ran;
        split.waited_s += waited;
        split.slept_s += (target.wall_s - ran - waited).max(0.0);
        if let Some(group) =
            window.observation.task(task.id).and_then(|task| window.observation.group_of(task))
        {
            groups.insert(group.path.clone());
        }
    }
    target.notes.push(
        "from /proc, without BPF: no lengths of waits, no culprits; threads that came or went meanwhile are missing".to_owned(),
    );
    if !counts_waits {
        target.notes.push("this kernel does not count waits: they are part of the sleep".to_owned());
    }
    target.throttled_by = throttling(window, &groups);
    let (throttled, most) = target.held_back_s();
    let known = target.throttled_by.iter().all(|by| by.seconds.is_some());
    let shared = target.throttled_by.iter().filter(|by| by.seconds.is_some_and(|s| s > 0.0));
    let shared =
        shared.filter_map(|by| by.cgroup.clone()).find(|path| holds_others(window.observation, aim, path));
    if let Some(path) = shared {
        target.notes.push(format!(
            "the quota of {path} held back others, too: how much of the wait that was is not known without BPF"
        ));
    } else if known {
        // A group's queues are throttled once, however many threads wait in them; run_delay includes it.
        let [throttled, most] = [throttled, most].map(|s| s.min(split.waited_s));
        split.waited_s -= throttled;
        split.throttled_s = Some(throttled);
        if most > throttled {
            target.notes.push(format!(
                "quotas of cgroups within each other held it back, perhaps at once: by cpu.stat for {throttled:.3} s at \
                 least, which is what is shown, and {most:.3} s at most"
            ));
        }
        if throttled > 0.0 {
            target.notes.push(
                "throttled time is that of the group's queues (cpu.stat), which counts low and not by thread"
                    .to_owned(),
            );
        }
    }
    if let (busy, Some(stolen)) = window.host_ns() {
        take_stolen(&mut split, busy, stolen);
        if split.stolen_s > Some(0.0) {
            target.notes.push(
                "stolen time is the target's part of what /proc/stat says, by its share of the busy time"
                    .to_owned(),
            );
        }
    }
    target.split = split;
}

/// Takes the target's part of the stolen time out of what it looks like.
fn take_stolen(split: &mut Split, busy_ns: u64, stolen_ns: u64) {
    let part_of = |whole: u64| if whole > 0 { split.ran_s * stolen_ns as f64 / whole as f64 } else { 0.0 };
    // Most schedulers' run time leaves out what was stolen, so it is part of what looks like sleep. The host's mean may be more than
    // all of that.
    let part = part_of(busy_ns);
    if split.slept_s >= 0.5 * part {
        let part = part.min(split.slept_s);
        split.slept_s -= part;
        split.stolen_s = Some(part);
    } else {
        // Who slept for much less than that has it in its run time: this scheduler counts it there.
        let part = part_of(busy_ns.saturating_add(stolen_ns));
        split.ran_s -= part;
        split.stolen_s = Some(part);
    }
}

/// Whether others than the target wanted CPU in a group or below it.
fn holds_others(observation: &Observation, aim: &Aim, path: &str) -> bool {
    let Some(at) = observation.groups.iter().position(|group| group.path == path) else { return false };
    let wanted = |task: &&TaskView| task.cpu_pct > 0.0 || task.wait_pct.is_some_and(|pct| pct > 0.0);
    observation
        .tasks_in(at as u32)
        .filter(wanted)
        .any(|task| aim.tasks.iter().all(|own| own.id.tgid != task.id.tgid))
}

/// Groups with a quota that were throttled meanwhile, the target's own and their ancestors, which come first.
fn throttling(window: &Window<'_>, groups: &BTreeSet<String>) -> Vec<ThrottledBy> {
    let all = window.observation.groups.iter();
    let rows = all.filter(|view| groups.iter().any(|group| is_at_or_below(group, &view.path))).map(|view| {
        let seconds = view.throttled_pct.map(|pct| pct / 100.0 * window.observation.interval_s);
        ThrottledBy { seconds, ..quota_of(window, Some(&view.path)) }
    });
    rows.filter(|row| row.quota_usec.is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn split(ran_s: f64, slept_s: f64) -> Split {
        Split { ran_s, slept_s, ..Split::default() }
    }

    #[test]
    fn stolen_time_looks_like_sleep_where_the_run_time_leaves_it_out() {
        let mut busy = split(8.0, 2.0);
        take_stolen(&mut busy, 8 * SECOND, 2 * SECOND);
        assert_eq!((busy.ran_s, busy.slept_s, busy.stolen_s), (8.0, 0.0, Some(2.0)));
        // From its CPU a little less was stolen than from the others.
        let mut busy = split(8.25, 1.75);
        take_stolen(&mut busy, 8 * SECOND, 2 * SECOND);
        assert_eq!((busy.ran_s, busy.slept_s, busy.stolen_s), (8.25, 0.0, Some(1.75)));
    }

    #[test]
    fn a_busy_task_has_lost_something_where_the_run_time_includes_it() {
        let mut busy = split(10.0, 0.0);
        take_stolen(&mut busy, 8 * SECOND, 2 * SECOND);
        assert_eq!((busy.ran_s, busy.slept_s, busy.stolen_s), (8.0, 0.0, Some(2.0)));
    }

    #[test]
    fn nothing_is_stolen_from_who_did_not_run() {
        let mut idle = split(0.0, 10.0);
        take_stolen(&mut idle, 0, 2 * SECOND);
        assert_eq!((idle.slept_s, idle.stolen_s), (10.0, Some(0.0)));
    }
}
