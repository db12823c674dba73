//! Programs see the quota that holds for them (golang/go#81180).

use evenkeel_base::facts::Unknown;

use crate::view::{ancestors, found_by_run, group_name};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "quota-hidden",
    severity: Severity::Warning,
    about: "no program has as many threads as it sees CPUs while a group further up allows it fewer",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let groups = &observation.groups;
    let (mut findings, mut below) = (Vec::new(), 0);
    for (index, group) in groups.iter().enumerate() {
        let index = index as u32;
        if group.quota.and_then(|quota| quota.pct()).is_some() {
            continue;
        }
        // The tightest of those above is what the kernel enforces.
        let above = ancestors(groups, index).skip(1);
        let limits = above.filter_map(|at| {
            let view = groups.get(at as usize)?;
            let now = view.quota?.pct()?;
            // What a run has limited is limited as it was found.
            let found = found_by_run(input, view, "quota");
            let pct = found.map_or(Some(now), |words| quota_in(words).map(|found| found.max(now)))?;
            Some((pct, at, view.throttled_periods))
        });
        let Some((quota_pct, holder, throttled)) = limits.min_by(|a, b| a.0.total_cmp(&b.0)) else {
            continue;
        };
        below += 1;
        let cpus = group.cpuset.as_ref().map_or(observation.host.cpus as usize, |cpus| cpus.len());
        if quota_pct >= 100.0 * cpus as f64 {
            continue;
        }
        let Some((comm, threads)) = widest(input, index).filter(|(_, threads)| *threads >= cpus.max(2))
        else {
            continue;
        };
        let suits = ((quota_pct / 100.0).ceil() as usize).max(1);
        let finding = rule.fail(
            group_name(observation, index),
            format!(
                "{comm} has {threads} threads on {cpus} CPUs; its own group has no quota, {} has {quota_pct:.0} % of one CPU",
                group_name(observation, holder)
            ),
            "a runtime that looks at its own group only (Go, the JVM) makes a thread for each CPU; together they use the quota \
             up early in each period, and all stand still for the rest of it",
            format!(
                "{}\n# or, started with: GOMAXPROCS={suits}, -XX:ActiveProcessorCount={suits}",
                // A fix is in whole percent, and v1 refuses more than is allowed above: of less than 1 % that is raised, too.
                fix::set_quota(input, index, quota_pct.floor().max(1.0))
            ),
        );
        let stands_still = throttled.is_some_and(|(times, _)| times > 0);
        findings.push(finding.severity(if stands_still { Severity::Warning } else { Severity::Info }));
    }
    Ok(rule.or_pass(
        findings,
        format!("{below} groups under a quota of a group further up, none with a thread for each CPU"),
    ))
}

/// The quota in words such as "quota 50.0 % (period 100000 us)", percent of one CPU; `None` of "no quota".
fn quota_in(words: &str) -> Option<f64> {
    words.strip_prefix("quota ")?.split(' ').next()?.parse().ok()
}

/// The process directly in a group that has most threads: its name and how many.
fn widest<'a>(input: &Input<'a>, group: u32) -> Option<(&'a str, usize)> {
    let mut by_process = std::collections::BTreeMap::new();
    for task in input.observation.tasks_in(group).filter(|task| task.group == Some(group)) {
        let (name, threads) = by_process.entry(task.id.tgid).or_insert((&*task.comm, 0));
        *threads += 1;
        if task.id.tid == task.id.tgid {
            *name = &task.comm;
        }
    }
    by_process.into_values().max_by_key(|(_, threads)| *threads)
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{CpuQuota, Limit, Setting};

    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    /// A program of so many threads in a group below one with a quota of two CPUs.
    fn world(threads: u32, throttled: u64) -> World {
        let mut world = World::new(4);
        let (pod, leaf) = (world.group("/pod", 1024), world.group("/pod/leaf", 1024));
        world.observation.groups[leaf as usize].parent = Some(pod);
        world.quota(pod, 200_000, 100_000, Some((throttled, 10)));
        for _ in 0..threads {
            world.thread(100, "server", 10.0).in_group(leaf);
        }
        world
    }

    #[test]
    fn a_thread_for_each_cpu_under_a_quota_further_up_fails() {
        let finding = world(4, 3).only("quota-hidden");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert_eq!(finding.subject, "cgroup /pod/leaf");
        assert!(finding.evidence.contains("server has 4 threads on 4 CPUs"), "{}", finding.evidence);
        assert!(finding.fix.unwrap().contains("GOMAXPROCS=2"));
        assert_eq!(world(4, 0).only("quota-hidden").severity, Severity::Info, "it does no harm yet");
    }

    #[test]
    fn the_fix_is_no_more_than_is_allowed_above() {
        let mut world = world(4, 3);
        world.quota(1, 112_500, 100_000, Some((3, 10)));
        let fix = world.only("quota-hidden").fix.unwrap();
        assert!(fix.starts_with("echo 112000 > /sys/fs/cgroup/cpu/pod/leaf/cpu.cfs_quota_us\n"), "{fix}");
    }

    #[test]
    fn what_a_run_has_limited_is_its_own() {
        let status = |knob: &str, from: &str| {
            let mut world = world(4, 3);
            world.set_by_run("/pod", knob, from);
            world.only("quota-hidden").status
        };
        assert_eq!(status("weight", "weight 1024"), Status::Fail);
        assert_eq!(status("quota", &Setting::Quota(CpuQuota::UNLIMITED).to_string()), Status::Pass);
        // With a burst, or less than before: there was one.
        let quota = |usec| CpuQuota { quota_usec: Limit::Value(usec), ..CpuQuota::UNLIMITED };
        for (usec, expected) in [(200_000, Status::Fail), (300_000, Status::Fail), (400_000, Status::Pass)] {
            assert_eq!(status("quota", &Setting::Quota(quota(usec)).to_string()), expected, "{usec}");
        }
    }

    #[test]
    fn fewer_threads_or_a_quota_of_its_own_pass() {
        assert_eq!(world(2, 3).only("quota-hidden").status, Status::Pass);
        let mut own = world(4, 3);
        own.quota(2, 200_000, 100_000, None);
        assert_eq!(own.only("quota-hidden").status, Status::Pass);
        assert_eq!(World::new(4).only("quota-hidden").status, Status::Pass);
    }
}
