//! Limits hold: no cgroup uses well more than its quota (scx#3549).

use evenkeel_base::facts::Unknown;

use crate::view::group_name;
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "quota-void",
    severity: Severity::Error,
    about: "no cgroup uses well more than its quota: the scheduler that runs enforces limits",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let limited =
        observation.groups.iter().filter(|group| group.quota.is_some_and(|q| q.pct().is_some())).count();
    let findings: Vec<Finding> = observation
        .void_quotas()
        .map(|void| {
            rule.fail(
                group_name(observation, void.group),
                format!(
                    "used {:.0} % of one CPU in {:.1} s at a quota of {:.0} %",
                    void.used_pct, observation.interval_s, void.quota_pct
                ),
                "the limit does nothing: whoever is to be protected by it is not",
                "cat /sys/kernel/sched_ext/state   # a sched_ext scheduler that does not enforce cpu.max: stop it, or choose another",
            )
        })
        .collect();
    Ok(rule.or_pass(findings, format!("{limited} cgroups have quotas, and none is well above its own")))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{CpuQuota, Limit};

    use crate::Status;
    use crate::testing::{TaskExt, World};

    fn world(used_pct: f64, burst_usec: u64) -> World {
        let mut world = World::new(4);
        let group = world.group("/limited", 1024);
        world.thread(200, "work", used_pct).in_group(group);
        let quota = CpuQuota { quota_usec: Limit::Value(50_000), burst_usec, ..CpuQuota::UNLIMITED };
        world.observation.groups[group as usize].quota = Some(quota);
        world.observation.groups[group as usize].cpu_pct = Some(used_pct);
        world.observation.interval_s = 2.0;
        world
    }

    #[test]
    fn who_is_well_above_his_quota_is_found() {
        let finding = world(95.0, 0).only("quota-void");
        assert_eq!((finding.status, finding.subject.as_str()), (Status::Fail, "cgroup /limited"));
        assert_eq!(finding.evidence, "used 95 % of one CPU in 2.0 s at a quota of 50 %");
        assert_eq!(world(60.0, 0).only("quota-void").status, Status::Pass);
        assert_eq!(world(95.0, 50_000).only("quota-void").status, Status::Pass, "it may have saved that up");
        let mut short = world(95.0, 0);
        short.observation.interval_s = 0.49;
        assert_eq!(short.only("quota-void").status, Status::Pass);
    }
}
