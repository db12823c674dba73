//! A quota is not smaller than the threads that run under it.

use evenkeel_base::facts::Unknown;
use evenkeel_base::text::count;

use crate::view::{HUNGRY_PCT, demand_pct, group_name};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "quota-threads",
    severity: Severity::Warning,
    about: "no group runs more busy threads than its quota covers",
    check,
};

/// Under a whole group's quota used to less than this, its threads do not run into it.
const NEAR: f64 = 0.8;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let (mut findings, mut limited) = (Vec::new(), 0);
    for (index, group) in observation.groups.iter().enumerate() {
        let Some((quota, quota_pct)) = group.quota.and_then(|quota| Some((quota, quota.pct()?))) else {
            continue;
        };
        limited += 1;
        let index = index as u32;
        let subject = group_name(observation, index);
        let tasks: Vec<_> = observation.tasks_in(index).collect();
        if tasks.iter().any(|task| task.wait_pct.is_none() && task.cpu_pct >= 1.0) {
            findings.push(rule.unknown(subject, "the time its tasks waited for a CPU could not be read"));
            continue;
        }
        let hungry = tasks.iter().filter(|task| demand_pct(task) >= HUNGRY_PCT).count();
        let cpus = group.cpuset.as_ref().map_or(usize::MAX, |cpus| cpus.len()).max(1);
        let at_once = hungry.min(cpus).min(observation.host.cpus.max(1) as usize);
        let near = observation.group_cpu_pct(index) >= NEAR * quota_pct;
        // On a full host others may keep them from running into it: then it is not what they wait for.
        let seldom =
            group.throttled_periods.is_some_and(|(throttled, periods)| throttled < periods.div_ceil(2));
        if at_once == 0 || quota_pct >= 100.0 * at_once as f64 || !near || seldom {
            continue;
        }
        let run_ms = quota_pct / 100.0 / at_once as f64 * quota.period_usec as f64 / 1e3;
        let stop_ms = quota.period_usec as f64 / 1e3 - run_ms;
        let covers = (quota_pct / 100.0).floor() as usize;
        let fewer = if covers >= 1 {
            format!(
                "# or run at most {}: GOMAXPROCS={covers}, OMP_NUM_THREADS={covers}, \
                 -XX:ActiveProcessorCount={covers}, worker_processes {covers};\n",
                count(covers, "thread")
            )
        } else {
            String::new()
        };
        let consequence = if hungry == 1 {
            format!(
                "it uses up each period's quota in {run_ms:.0} ms and then stands still for {stop_ms:.0} ms, locks held included"
            )
        } else {
            format!(
                "together they use up each period's quota in {run_ms:.0} ms and then all stand still for {stop_ms:.0} ms, locks held included"
            )
        };
        let finding = rule.fail(
            subject,
            format!(
                "{}, {at_once} can run at once; the quota is {quota_pct:.0} % of one CPU",
                count(hungry, "busy thread")
            ),
            consequence,
            format!(
                "{}\n{fewer}# or a weight instead of a quota, so that idle CPUs are not wasted",
                fix::set_quota(input, index, 100.0 * at_once as f64)
            ),
        );
        // One thread under less than one CPU is what such a limit is for; it stalls all the same.
        findings.push(finding.severity(if at_once > 1 { Severity::Warning } else { Severity::Info }));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(rule.or_pass(findings, format!("{limited} groups with a quota, each covers its busy threads")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn four_threads_under_two_cpus_fail() {
        let mut world = World::new(4);
        let pod = world.group("/pod", 1024);
        world.quota(pod, 200_000, 100_000, Some((5, 10))).used(pod, 195.0);
        world.task("go", 50.0).wait(45.0).in_group(pod);
        world.thread(100, "go", 50.0).wait(45.0).in_group(pod);
        assert_eq!(world.only("quota-threads").status, Status::Pass);
        world.thread(100, "go", 50.0).wait(45.0).in_group(pod);
        world.thread(100, "go", 45.0).wait(45.0).in_group(pod);
        let finding = world.only("quota-threads");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        // 200 ms of CPU time over 4 CPUs are gone after 50 ms.
        assert!(finding.consequence.unwrap().contains("in 50 ms and then all stand still for 50 ms"));
        assert!(finding.fix.unwrap().contains("GOMAXPROCS=2"));
    }

    #[test]
    fn one_thread_under_less_than_a_cpu_is_worth_knowing() {
        let mut world = World::new(4);
        let pod = world.group("/pod", 1024);
        world.quota(pod, 10_000, 100_000, Some((10, 10))).used(pod, 10.0);
        world.task("spin", 10.0).wait(90.0).in_group(pod);
        assert_eq!(world.only("quota-threads").severity, Severity::Info);
        // Next to others it gets hardly more than its quota anyway, and does not stand still for it.
        world.quota(pod, 10_000, 100_000, Some((2, 10)));
        assert_eq!(world.only("quota-threads").status, Status::Pass);
    }

    #[test]
    fn unread_waits_are_unknown() {
        let mut world = World::new(4);
        let pod = world.group("/pod", 1024);
        world.quota(pod, 10_000, 100_000, None);
        world.task("spin", 10.0).no_wait().in_group(pod);
        assert_eq!(world.only("quota-threads").status, Status::Unknown);
    }
}
