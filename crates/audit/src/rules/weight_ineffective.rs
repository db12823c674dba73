//! A weight somebody set can act.

use evenkeel_base::CpuSet;
use evenkeel_base::facts::Unknown;
use evenkeel_base::text::count;

use crate::view::{ACTIVE_PCT, HUNGRY_PCT, ancestors, competing, demand_pct, group_name, list, siblings};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "weight-ineffective",
    severity: Severity::Info,
    about: "weights can act: not more than a group's threads can use, and not alone on its CPUs",
    check,
};

/// Part of its entitlement above what its threads can use, from which a weight is called infeasible.
const BEYOND: f64 = 1.1;

/// The scheduler's load weight of a new group.
const DEFAULT_LOAD: u64 = 1024;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let mut findings = Vec::new();
    for (parent, children) in siblings(observation) {
        let busy = competing(observation, &children, ACTIVE_PCT);
        if busy.len() < 2 {
            continue;
        }
        let view = |group: u32| observation.groups.get(group as usize);
        let load = |group: u32| view(group).and_then(|v| v.load_weight);
        // Tasks of the parent itself compete with its groups, each by its nice value.
        let own =
            || observation.tasks.iter().filter(|t| t.group == Some(parent) && demand_pct(t) >= ACTIVE_PCT);
        let own_weight: f64 = own().filter_map(|task| Some(f64::from(task.sched?.nice.weight()))).sum();
        let groups = busy.iter().filter_map(|(group, _)| load(*group)).map(|weight| weight as f64);
        let total: f64 = own_weight + groups.sum::<f64>();
        // What they divide: the CPUs that any of them may use, and no more than quotas from their parent on leave.
        // Who was made idle has no part in it.
        let sharing = || busy.iter().filter(|(group, _)| !view(*group).is_some_and(|view| view.idle));
        let of_groups = sharing().map(|(group, _)| view(*group)?.cpuset.as_ref());
        let of_tasks = own().map(|task| task.affinity.as_ref());
        let together =
            of_groups.chain(of_tasks).try_fold(CpuSet::default(), |all, cpus| Some(all.union(cpus?)));
        let cpus = together.map_or(observation.host.cpus as usize, |together| {
            together.intersection(&observation.topology.online).len()
        });
        let quotas = ancestors(&observation.groups, parent).filter_map(|at| view(at)?.quota?.pct());
        let capacity = quotas.fold(100.0 * cpus as f64, f64::min);
        for &(group, demand) in sharing() {
            let Some(weight) = load(group).filter(|weight| *weight != DEFAULT_LOAD) else { continue };
            let Some(cpus) = view(group).and_then(|v| v.cpuset.as_ref()) else {
                findings.push(
                    rule.unknown(group_name(observation, group), "its effective CPUs could not be read"),
                );
                continue;
            };
            let others: Vec<u32> =
                busy.iter().map(|(other, _)| *other).filter(|other| *other != group).collect();
            let apart = |other: &u32| {
                view(*other).and_then(|v| v.cpuset.as_ref()).is_some_and(|theirs| !theirs.intersects(cpus))
            };
            let raw = view(group).and_then(|v| v.raw_weight).unwrap_or_default();
            if others.iter().all(apart) {
                findings.push(rule.fail(
                    group_name(observation, group),
                    format!(
                        "weight {raw}, alone on CPUs {cpus}; its neighbours {} run elsewhere",
                        list(others.iter().map(|other| group_name(observation, *other)))
                    ),
                    "weights are compared on CPUs that groups share: this one decides nothing",
                    format!(
                        "{}   # the default; or let the cpusets overlap",
                        fix::set_weight(input, group, DEFAULT_LOAD as f64)
                    ),
                ));
                continue;
            }
            let threads = observation.tasks_in(group).filter(|task| demand_pct(task) >= HUNGRY_PCT).count();
            let usable = 100.0 * threads.min(cpus.len()) as f64;
            let entitled = capacity * weight as f64 / total.max(1.0);
            if threads == 0 || entitled < usable * BEYOND || demand < HUNGRY_PCT {
                continue;
            }
            // The weight at which it is entitled to just what it can use: w / (w + rest) = usable / capacity.
            let rest = total - weight as f64;
            let enough = rest * usable / (capacity - usable).max(1.0);
            findings.push(rule.fail(
                group_name(observation, group),
                format!(
                    "weight {raw} entitles it to {entitled:.0} % of one CPU, its {} on {} can use {usable:.0} %",
                    count(threads, "busy thread"),
                    count(cpus.len(), "CPU")
                ),
                "beyond that its weight acts as on one CPU each: whoever shares that CPU starves, others do not notice",
                format!(
                    "{}   # it then gets less of a CPU that it shares, and others more; leave it where that is not wanted",
                    fix::set_weight(input, group, enough)
                ),
            ));
        }
    }
    Ok(rule.or_pass(findings, "every weight that was set can act, or no group competes now"))
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::{TaskExt, World};

    fn set(cpus: &str) -> evenkeel_base::CpuSet {
        cpus.parse().unwrap()
    }

    fn world(heavy: u64, cpus: (&str, &str)) -> World {
        let mut world = World::new(2);
        let (a, b) = (world.group("/a", heavy), world.group("/b", 1024));
        world.observation.groups[a as usize].cpuset = Some(set(cpus.0));
        world.observation.groups[b as usize].cpuset = Some(set(cpus.1));
        world.task("one", 99.0).in_group(a);
        world.task("two", 50.0).wait(40.0).in_group(b);
        world.thread(101, "two", 50.0).wait(40.0).in_group(b);
        world
    }

    #[test]
    fn more_weight_than_threads_can_use_is_named() {
        assert_eq!(world(1024, ("0-1", "0-1")).only("weight-ineffective").status, Status::Pass);
        // 8/9 of two CPUs is 178 %, but there is one thread; equal weights give it the 100 % it can use.
        let finding = world(8192, ("0-1", "0-1")).only("weight-ineffective");
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.evidence.starts_with("weight 8192 entitles it to 178 %"), "{}", finding.evidence);
        let fix = finding.fix.unwrap();
        assert!(
            fix.starts_with("echo 1024 > /sys/fs/cgroup/cpu/a/cpu.shares   # it then gets less"),
            "{fix}"
        );
    }

    #[test]
    fn tasks_of_the_parent_compete_too() {
        let mut world = world(2048, ("0-1", "0-1"));
        // 2/3 of two CPUs is 133 % for one thread; with three busy tasks next to the groups it is 2/6.
        assert_eq!(world.only("weight-ineffective").status, Status::Fail);
        for name in ["x", "y", "z"] {
            world.task(name, 30.0).wait(60.0).in_group(0).nice(0);
        }
        assert_eq!(world.only("weight-ineffective").status, Status::Pass);
    }

    #[test]
    fn what_is_divided_is_what_they_may_use_and_not_the_host() {
        // Each of two threads can use its share of two CPUs, whatever the host has: 2/3 of these is 133 %.
        let nested = |cpus, quota: Option<u64>| {
            let mut world = World::new(8);
            let parent = world.group("/pod", 1024);
            if let Some(usec) = quota {
                world.quota(parent, usec, 100_000, None);
            }
            // The last of them was made idle, and has no part in it.
            for (path, weight, cpus) in [("/pod/a", 2048, cpus), ("/pod/b", 1024, cpus), ("/pod/c", 3, "0-7")]
            {
                let group = world.group(path, weight);
                let view = &mut world.observation.groups[group as usize];
                (view.parent, view.cpuset) = (Some(parent), Some(set(cpus)));
                view.idle = path == "/pod/c";
                world.task(path, 60.0).wait(40.0).in_group(group);
                world.task(path, 60.0).wait(40.0).in_group(group);
            }
            world.only("weight-ineffective")
        };
        assert_eq!(nested("0-7", None).status, Status::Fail);
        assert_eq!(
            (nested("0-1", None).status, nested("0-7", Some(200_000)).status),
            (Status::Pass, Status::Pass)
        );
    }

    #[test]
    fn who_was_made_idle_has_no_weight_to_act() {
        let mut world = world(3, ("0", "1"));
        world.observation.groups[1].idle = true;
        assert_eq!(world.only("weight-ineffective").status, Status::Pass);
        // A pod that requests 3m, on cgroup v1.
        world.observation.groups[1].idle = false;
        assert_eq!(world.only("weight-ineffective").status, Status::Fail);
    }

    #[test]
    fn a_weight_alone_on_its_cpus_decides_nothing() {
        let finding = world(2048, ("0", "1")).only("weight-ineffective");
        assert!(finding.evidence.contains("alone on CPUs 0"), "{}", finding.evidence);
    }

    #[test]
    fn unread_cpus_are_unknown() {
        let mut world = world(2048, ("0", "1"));
        world.observation.groups[1].cpuset = None;
        assert_eq!(world.only("weight-ineffective").status, Status::Unknown);
    }
}
