//! Quotas have periods the kernel can keep.

use evenkeel_base::facts::Unknown;

use crate::fix::SENSIBLE_PERIODS_USEC;
use crate::view::group_name;
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "quota-period",
    severity: Severity::Warning,
    about: "quotas have periods long enough for the kernel to keep them",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let (mut findings, mut limited) = (Vec::new(), 0);
    for (index, group) in observation.groups.iter().enumerate() {
        let index = index as u32;
        let Some(quota) = group.quota else {
            if group.raw_weight.is_some() && group.parent.is_some() {
                findings.push(rule.unknown(group_name(observation, index), "its quota could not be read"));
            }
            continue;
        };
        let (Some(pct), Some(usec)) = (quota.pct(), quota.quota_usec.value()) else { continue };
        limited += 1;
        let evidence = format!("quota {usec} us each {} us ({pct:.1} % of one CPU)", quota.period_usec);
        let consequence = if quota.period_usec < *SENSIBLE_PERIODS_USEC.start() {
            "the kernel hands out runtime in slices of 5 ms and counts at the tick: so short a period costs timer interrupts and is kept badly"
        } else if quota.period_usec > *SENSIBLE_PERIODS_USEC.end() {
            "once its quota is used up, the group stands still for most of the long period"
        } else {
            continue;
        };
        findings.push(rule.fail(
            group_name(observation, index),
            evidence,
            consequence,
            fix::set_quota(input, index, pct),
        ));
    }
    Ok(rule.or_pass(findings, format!("{limited} groups with a quota, periods between 10 and 500 ms")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::World;

    #[test]
    fn tiny_and_huge_periods_fail() {
        let mut world = World::new(2);
        let web = world.group("/web", 1024);
        world.quota(web, 50_000, 100_000, None);
        assert_eq!(world.only("quota-period").status, Status::Pass);
        world.quota(web, 1_000, 2_000, None);
        let finding = world.only("quota-period");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert!(finding.fix.unwrap().ends_with("echo 50000 > /sys/fs/cgroup/cpu/web/cpu.cfs_quota_us"));
        world.quota(web, 500_000, 1_000_000, None);
        assert!(world.only("quota-period").consequence.unwrap().contains("long period"));
    }

    #[test]
    fn an_unread_quota_is_unknown() {
        let mut world = World::new(2);
        let web = world.group("/web", 1024);
        world.observation.groups[web as usize].quota = None;
        assert_eq!(world.only("quota-period").status, Status::Unknown);
    }
}
