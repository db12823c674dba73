//! The pages' documents. Names are whatever somebody gave them: they are data here, and text in the dashboard.

use evenkeel_base::{GroupView, Histogram, Observation, TaskView};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_observe::beside::{read_beside_cpu, read_host_network};
use evenkeel_report::effect::effect_words;
use evenkeel_report::run::{guarantee_table, protected_table, slos};
use evenkeel_report::time;
use serde_json::{Value, json};

use super::board::Board;
use super::metrics::pods;
use super::owners::{Kind, Owner, Use};

/// Threads on a page: those that use or want most.
const TASKS: usize = 200;
/// Characters of a name.
const NAME: usize = 200;

/// The document `evenkeel.live/v1`, as `run --listen` always had it.
pub fn status(board: &Board) -> Value {
    let seen = board.observation.as_deref();
    let host = seen.map(|seen| {
        json!({
            "at": time::rfc3339(seen.wall_ns), "interval_s": seen.interval_s,
            "cpus": seen.host.cpus, "busy_pct": seen.host.busy_pct, "steal_pct": seen.host.steal_pct,
        })
    });
    let mut owners: Vec<Value> = Vec::new();
    let one = |kind: &str, name: &str, pod: &str, now: &Use| {
        json!({
            "kind": kind, "name": name, "pod": (!pod.is_empty()).then_some(pod),
            "cpu_pct": now.cpu, "wait_pct": now.wait, "throttled_pct": now.throttled,
        })
    };
    for owner in board.owners.iter().filter(|owner| matches!(owner.key.kind, Kind::Container | Kind::Vm)) {
        let pod = if owner.key.namespace.is_empty() {
            owner.key.pod.clone()
        } else {
            format!("{}/{}", owner.key.namespace, owner.key.pod)
        };
        owners.push(one(owner.key.kind.name(), &owner.key.name, &pod, &owner.now));
    }
    for (pod, now) in seen.map(pods).unwrap_or_default() {
        owners.push(one("pod", &pod, &pod, &now));
    }
    json!({
        "schema": "evenkeel.live/v1", "host": host, "settings": board.settings.clone().unwrap_or_default(),
        "owners": owners, "trials": board.trials, "kept": board.kept, "last_decision": board.decision,
        "guarantees": guarantee_table().json(&board.guarantees), "slos": slos(&board.protected), "cpu_limit": board.governor, "notes": board.notes,
    })
}

/// Everything that changes with each look, but the past: `evenkeel.dashboard/v1`.
pub fn live(board: &Board) -> Value {
    let Some(seen) = board.observation.as_deref() else {
        return json!({ "schema": "evenkeel.dashboard/v1", "at_ms": null });
    };
    let topology = &seen.topology;
    let cpus: Vec<Value> = seen
        .host
        .per_cpu
        .iter()
        .map(|cpu| {
            let place = topology.cpus.iter().find(|place| place.cpu == cpu.cpu);
            json!({
                "cpu": cpu.cpu, "busy_pct": round(cpu.busy_pct), "steal_pct": cpu.steal_pct.map(round),
                "node": place.and_then(|place| place.node), "socket": place.and_then(|place| place.socket),
                "core": place.and_then(|place| place.core),
                "isolated": topology.isolated.contains(cpu.cpu),
            })
        })
        .collect();
    let mut busiest: Vec<usize> = (0..seen.tasks.len()).collect();
    let wants = |at: &usize| {
        let task = &seen.tasks[*at];
        task.cpu_pct + task.wait_pct.unwrap_or(0.0)
    };
    busiest.sort_by(|a, b| wants(b).total_cmp(&wants(a)));
    let active = busiest.iter().filter(|at| wants(at) > 0.0).count();
    let tasks: Vec<Value> = busiest
        .iter()
        .take(TASKS)
        .filter(|at| wants(at) > 0.0)
        .map(|at| task_view(&seen.tasks[*at], board.owners.of_task.get(*at).copied().flatten()))
        .collect();
    let mut owners: Vec<&Owner> = board.owners.iter().collect();
    owners.sort_by(|a, b| b.now.cpu.total_cmp(&a.now.cpu));
    let blame: Vec<Value> = board
        .owners
        .blame
        .iter()
        .map(|((victim, culprit), seconds)| json!([name(victim), name(culprit), round(*seconds)]))
        .collect();
    json!({
        "schema": "evenkeel.dashboard/v1", "at_ms": seen.wall_ns / 1_000_000, "interval_s": seen.interval_s,
        "host": {
            "name": rustix::system::uname().nodename().to_string_lossy(),
            "kernel": rustix::system::uname().release().to_string_lossy(),
            "cpus": seen.host.cpus, "busy_pct": round(seen.host.busy_pct),
            "steal_pct": seen.host.steal_pct.map(round), "tasks": seen.tasks.len(), "active": active,
            "network": read_host_network(&Root::host()),
        },
        "cpus": cpus, "tasks": tasks,
        "owners": owners.iter().map(|owner| owner_view(owner)).collect::<Vec<_>>(),
        "blame": board.owners.blames.then_some(blame), "blame_observed": board.counted.observed,
        "loop": board.settings.as_ref().map(|settings| json!({
            "settings": settings, "trials": board.trials, "kept": board.kept, "reverted": board.reverted,
            "last_decision": board.decision, "changes": board.changes,
            "guarantees": guarantee_table().json(&board.guarantees), "slos": slos(&board.protected),
            "services": protected_table().json(&board.protected),
            "effect": board.effect, "effect_text": board.effect.as_ref().map(effect_words),
        })),
        "notes": board.notes,
        "marks": board.marks,
    })
}

/// Two places after the point: more is noise.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn short(value: f32) -> f64 {
    (f64::from(value) * 10.0).round() / 10.0
}

/// As values of a document; what is not a number is null there.
pub fn shorts(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| short(*value)).collect()
}

/// A name of a length that a page can hold.
fn name(name: &str) -> String {
    evenkeel_base::cut(name, NAME)
}

fn used(used: &Use) -> Value {
    json!({
        "cpu": round(used.cpu), "wait": used.wait.map(round), "throttled": used.throttled.map(round),
        "stolen": used.stolen.map(round),
    })
}

fn owner_view(owner: &Owner) -> Value {
    let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
    let waits = owner.waits.as_ref().map(|(waits, _)| waits);
    json!({
        "number": owner.number, "kind": owner.key.kind.name(), "title": name(&owner.key.title()),
        "namespace": name(&owner.key.namespace), "pod": name(&owner.key.pod), "name": name(&owner.key.name),
        "path": name(&owner.key.path), "tasks": owner.tasks, "now": used(&owner.now), "total": used(&owner.total),
        "wait_p50_ms": ms(waits.and_then(|waits| waits.quantile(0.5))),
        "wait_p99_ms": ms(waits.and_then(|waits| waits.quantile(0.99))),
    })
}

fn task_view(task: &TaskView, owner: Option<u32>) -> Value {
    json!({
        "tid": task.id.tid, "tgid": task.id.tgid, "start": task.id.start_time, "comm": name(&task.comm),
        "kernel": task.kernel_thread, "cpu": task.cpu, "cpu_pct": round(task.cpu_pct),
        "wait_pct": task.wait_pct.map(round), "owner": owner,
    })
}

/// What each interval used, after an instant (ms since 1970), oldest first: `evenkeel.timeline/v1`.
pub fn timeline(board: &Board, since_ms: u64) -> Value {
    let moments: Vec<Value> = board
        .timeline
        .iter()
        .filter(|moment| moment.at_ms > since_ms)
        .map(|moment| {
            let cpus = shorts(&moment.cpus);
            json!([
                moment.at_ms,
                short(moment.busy),
                moment.steal.map(short),
                moment.wait.map(short),
                moment.throttled.map(short),
                cpus,
                moment.fulfilment.map(short)
            ])
        })
        .collect();
    json!({
        "schema": "evenkeel.timeline/v1",
        "fields": ["at_ms", "busy_pct", "steal_pct", "wait_pct", "throttled_pct", "cpus_busy_pct", "fulfilment_pct"],
        "moments": moments, "marks": board.marks,
    })
}

/// Everything of one owner: `evenkeel.owner/v1`.
pub fn owner(board: &Board, number: u32) -> Value {
    let schema = "evenkeel.owner/v1";
    let (Some(owner), Some(seen)) = (board.owners.numbered(number), board.observation.as_deref()) else {
        return json!({ "schema": schema, "owner": null });
    };
    let moments: Vec<Value> = board
        .timeline
        .iter()
        .map(|moment| {
            let ours = moment.owners.iter().find(|(number, ..)| *number == owner.number);
            // Who is not listed used nothing: where that is counted, and since it is there.
            let nothing =
                |counted: bool| if counted && moment.at_ms >= owner.since_ms { 0.0 } else { f32::NAN };
            let now = &owner.now;
            let idle = || (nothing(true), nothing(now.wait.is_some()), nothing(now.throttled.is_some()));
            let (cpu, wait, throttled) = ours.map_or_else(idle, |(_, c, w, t)| (*c, *w, *t));
            json!([moment.at_ms, short(cpu), short(wait), short(throttled)])
        })
        .collect();
    let mut tasks: Vec<&TaskView> = seen
        .tasks
        .iter()
        .zip(&board.owners.of_task)
        .filter(|(_, of)| **of == Some(number))
        .map(|(task, _)| task)
        .collect();
    tasks.sort_by(|a, b| b.cpu_pct.total_cmp(&a.cpu_pct));
    let title = owner.key.title();
    let blame: Vec<Value> = board
        .owners
        .blame
        .iter()
        .filter(|((victim, culprit), _)| *victim == title || *culprit == title)
        .map(|((victim, culprit), seconds)| json!([name(victim), name(culprit), round(*seconds)]))
        .collect();
    json!({
        "schema": schema, "owner": owner_view(owner), "limits": limits(seen, &owner.key.path), "moments": moments,
        "beside": beside(&owner.key.path, tasks.first().map(|task| task.id.tgid)),
        "tasks": tasks.iter().take(TASKS).map(|task| task_view(task, Some(number))).collect::<Vec<_>>(),
        "waits": owner.waits.as_ref().map(|(waits, _)| octaves(waits)),
        "lengths": owner.lengths.json(),
        "blame": board.owners.blames.then_some(blame),
    })
}

/// Counts by length: from, to (both in microseconds), count.
fn octaves(waits: &Histogram) -> Value {
    waits.octaves_usec().iter().map(|(from, to, count)| json!([from, to, count])).collect()
}

/// What its cgroup uses and waits for next to CPU; read when it is asked for, which is once a page and interval.
fn beside(path: &str, pid: Option<u32>) -> Value {
    let root = Root::host();
    let found = Hierarchies::read(&root).ok().filter(|_| !path.is_empty());
    json!(found.map(|found| read_beside_cpu(&root, &found, path, pid)).unwrap_or_default())
}

/// What its cgroup may use.
fn limits(seen: &Observation, path: &str) -> Value {
    let group = seen.groups.iter().find(|group| group.path == path);
    let limited = |group: &GroupView| match group.quota {
        Some(quota) => Some(quota.pct().is_some()),
        // The root cannot have one.
        None => group.parent.is_none().then_some(false),
    };
    json!({
        "limited": group.and_then(limited),
        "weight": group.and_then(|group| group.raw_weight),
        "quota_pct": group.and_then(|group| group.quota).and_then(|quota| quota.pct()),
        "cpuset": group.and_then(|group| group.cpuset.as_ref()).map(ToString::to_string),
    })
}

/// One thread: `evenkeel.task/v1`.
pub fn task(board: &Board, tid: u32) -> Value {
    let schema = "evenkeel.task/v1";
    let Some(seen) = board.observation.as_deref() else { return json!({ "schema": schema, "task": null }) };
    let Some(at) = seen.tasks.iter().position(|task| task.id.tid == tid) else {
        return json!({ "schema": schema, "task": null });
    };
    let task = &seen.tasks[at];
    let number = board.owners.of_task.get(at).copied().flatten();
    let owner = number.and_then(|number| board.owners.numbered(number));
    let path = seen.group_of(task).map_or("", |group| group.path.as_str());
    let siblings: Vec<Value> = seen
        .tasks
        .iter()
        .filter(|other| other.id.tgid == task.id.tgid && other.id.tid != tid)
        .take(TASKS)
        .map(|other| task_view(other, number))
        .collect();
    json!({
        "schema": schema, "at_ms": seen.wall_ns / 1_000_000, "task": task_view(task, number), "ppid": task.ppid,
        "cgroup": name(path), "limits": limits(seen, path), "owner": owner.map(owner_view), "siblings": siblings,
        "owner_waits": owner.and_then(|owner| owner.waits.as_ref()).map(|(waits, _)| octaves(waits)),
        "owner_lengths": owner.map(|owner| owner.lengths.json()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_base::observation::CpuView;
    use evenkeel_base::{CpuQuota, ExitedView, Limit};

    use super::*;
    use crate::notices::labelled::host;

    #[test]
    fn a_cpu_stands_at_the_place_of_its_number_also_where_others_are_offline() {
        let mut board = Board::default();
        let mut seen = host(1, 0);
        let cpu = |cpu, busy_pct| CpuView { cpu, busy_pct, ..CpuView::default() };
        seen.host.per_cpu = vec![cpu(0, 10.0), cpu(1, 20.0), cpu(3, 30.0)];
        seen.wall_ns = 1_000_000_000;
        board.observe(Arc::new(seen));
        assert_eq!(timeline(&board, 0)["moments"][0][5], json!([10.0, 20.0, null, 30.0]));
    }

    #[test]
    fn waits_of_tasks_that_ended_are_on_the_timeline() {
        let mut board = Board::default();
        let mut seen = host(1, 1);
        (seen.wall_ns, seen.tasks[0].wait_pct) = (1_000_000_000, Some(5.0));
        seen.exited = vec![ExitedView { wait_pct: 20.0, ..ExitedView::default() }];
        board.observe(Arc::new(seen));
        assert_eq!(timeline(&board, 0)["moments"][0][3], json!(25.0));
    }

    #[test]
    fn what_is_not_known_of_a_limit_is_not_none() {
        let mut seen = host(1, 2);
        seen.groups[1].parent = Some(0);
        let limited = |seen: &Observation, path| limits(seen, path)["limited"].clone();
        assert_eq!((limited(&seen, "/s0"), limited(&seen, "/s1")), (json!(false), Value::Null));
        assert_eq!(limited(&seen, ""), Value::Null, "a machine without a cgroup of its own");
        for (usec, is_limited) in [(Limit::Max, false), (Limit::Value(50_000), true)] {
            seen.groups[1].quota = Some(CpuQuota { quota_usec: usec, ..CpuQuota::UNLIMITED });
            assert_eq!(limited(&seen, "/s1"), is_limited);
        }
    }

    #[test]
    fn waits_of_some_microseconds_are_not_zero() {
        let mut board = Board::default();
        board.observe(Arc::new(host(1, 1)));
        let owners = Arc::make_mut(&mut board.owners);
        let mut waits = Histogram::default();
        waits.add(3_000);
        owners.add_waits(1, "/s0", &waits, 3e-6);
        let view = owners.iter().find(|owner| owner.key.path == "/s0").map(owner_view).unwrap();
        let p50 = view["wait_p50_ms"].as_f64().unwrap();
        assert!((0.002..0.005).contains(&p50), "{p50}");
    }

    #[test]
    fn before_somebody_came_and_where_nothing_is_counted_there_are_no_zeros() {
        let mut board = Board::default();
        for second in 1..=3 {
            // The other service comes with the second look, and does nothing.
            let mut seen = host(2, if second == 1 { 1 } else { 2 });
            (seen.wall_ns, seen.interval_s) = (second * 1_000_000_000, 1.0);
            seen.tasks.iter_mut().for_each(|task| task.wait_pct = Some(0.0));
            board.observe(Arc::new(seen));
        }
        let number = board.owners.iter().find(|owner| owner.key.path == "/s1").map(|owner| owner.number);
        let moments = json!([[1000, null, null, null], [2000, 0.0, 0.0, null], [3000, 0.0, 0.0, null]]);
        assert_eq!(owner(&board, number.unwrap())["moments"], moments);
    }

    #[test]
    fn after_the_clock_was_set_back_nothing_is_of_a_time_to_come() {
        let mut board = Board::default();
        for second in [7000, 7001, 3400, 3401] {
            let mut seen = host(1, 1);
            seen.wall_ns = second * 1_000_000_000;
            board.observe(Arc::new(seen));
        }
        let times: Vec<_> = timeline(&board, 0)["moments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|moment| moment[0].clone())
            .collect();
        assert_eq!(times, [3_400_000, 3_401_000]);
        // Who was there before has done nothing, which is known.
        let number = board.owners.iter().next().unwrap().number;
        let moments = json!([[3_400_000, 0.0, null, null], [3_401_000, 0.0, null, null]]);
        assert_eq!(owner(&board, number)["moments"], moments);
    }
}
