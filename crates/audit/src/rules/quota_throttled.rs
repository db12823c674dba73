//! No group is held back by its quota.

use evenkeel_base::facts::Unknown;

use crate::view::{ACTIVE_PCT, group_demand_pct, group_name, is_since};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "quota-throttled",
    severity: Severity::Warning,
    about: "no group is throttled by its quota (cpu.stat between the samples)",
    check,
};

/// Part of the periods with work in which throttling is a matter of course; the usual alert in Kubernetes set-ups
/// is 25 %, by when tail latency has long suffered.
const THROTTLED: f64 = 0.1;

/// Use of the quota below which throttling comes from bursts, not from a lack of CPU.
const BURSTY: f64 = 0.8;

/// Quotas can be saved up for bursts.
const BURST: (u32, u32) = (5, 14);

/// Part of the time stood still, percent, below which throttling is a matter of course however many periods it is in.
const STILL_PCT: f64 = 0.5;

/// A suggested quota is the demand seen and something more, for a quota of just what is wanted throttles still, ...
const MORE: f64 = 1.05;
/// ... rounded up to steps of this much, percent of one CPU.
const STEP_PCT: f64 = 25.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let (mut findings, mut limited) = (Vec::new(), 0);
    for (index, group) in observation.groups.iter().enumerate() {
        let Some(quota) = group.quota else { continue };
        let Some(quota_pct) = quota.pct() else { continue };
        limited += 1;
        let index = index as u32;
        let subject = group_name(observation, index);
        let Some((throttled, periods)) = group.throttled_periods else {
            // One that is idle has nothing to throttle.
            if group.cpu_pct.is_none_or(|pct| pct >= ACTIVE_PCT) {
                findings
                    .push((0.0, rule.unknown(subject, "its throttled periods (cpu.stat) could not be read")));
            }
            continue;
        };
        if throttled == 0 || periods == 0 {
            continue;
        }
        let share = throttled as f64 / periods as f64;
        let used_pct = observation.group_cpu_pct(index);
        let time = group
            .throttled_pct
            .map_or(String::new(), |pct| format!("; stood still {pct:.0} % of the time (summed over CPUs)"));
        let bursty = used_pct < BURSTY * quota_pct;
        let cap = 100.0 * f64::from(observation.host.cpus.max(1));
        let demand = group_demand_pct(observation, index).max(quota_pct * 1.25);
        let pct = ((demand * MORE / STEP_PCT).ceil() * STEP_PCT).min(cap.max(quota_pct * 1.25));
        let raise = fix::set_quota(input, index, pct);
        // The kernel allows a burst of one quota at most.
        let most = quota.quota_usec.value().unwrap_or(0);
        let fix = if bursty && quota.burst_usec < most && is_since(input, BURST) != Some(false) {
            format!("{}\n# or a higher limit:\n{raise}", fix::set_burst(input, index, most))
        } else {
            raise
        };
        let burst = match quota.burst_usec {
            0 => String::new(),
            usec => format!(", burst {usec} us"),
        };
        let finding = rule.fail(
            subject,
            format!(
                "throttled in {throttled} of {periods} periods ({:.0} %), quota {quota_pct:.1} % of one CPU \
                 ({} us each {} us{burst}), used {used_pct:.1} %{time}",
                100.0 * share,
                quota.quota_usec,
                quota.period_usec,
            ),
            if bursty {
                "on average it stays below its limit, yet bursts stop it for the rest of a period: tail latency up to one period"
            } else {
                "it wants more than it may have: each time all its threads stop until the next period, whatever the host has free"
            },
            fix,
        );
        let stands = group.throttled_pct.is_none_or(|pct| pct >= STILL_PCT);
        let severity = if share >= THROTTLED && stands { Severity::Warning } else { Severity::Info };
        findings.push((share, finding.severity(severity)));
    }
    findings.sort_by(|a, b| b.0.total_cmp(&a.0));
    let findings = findings.into_iter().map(|(_, finding)| finding).collect();
    Ok(rule.or_pass(findings, format!("{limited} groups with a quota, none throttled")))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Known;

    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn throttling_fails_with_the_numbers_and_a_higher_quota() {
        let mut world = World::new(2);
        let web = world.group("/web", 1024);
        world.quota(web, 10_000, 100_000, Some((0, 10))).used(web, 5.0);
        assert_eq!(world.only("quota-throttled").status, Status::Pass);
        world.quota(web, 10_000, 100_000, Some((9, 10))).used(web, 9.9);
        world.task("spin", 9.9).wait(90.0).in_group(web);
        let finding = world.only("quota-throttled");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert!(
            finding.evidence.starts_with("throttled in 9 of 10 periods (90 %), quota 10.0 %"),
            "{}",
            finding.evidence
        );
        // The spinner wants 99.9 %: with 100 % it would be throttled still, in some periods.
        assert!(finding.fix.unwrap().ends_with("echo 125000 > /sys/fs/cgroup/cpu/web/cpu.cfs_quota_us"));
    }

    #[test]
    fn bursts_get_burst_and_rare_throttling_is_only_said() {
        let mut world = World::new(2);
        let web = world.group("/web", 1024);
        world.quota(web, 100_000, 100_000, Some((1, 20))).used(web, 30.0);
        let finding = world.only("quota-throttled");
        assert_eq!(finding.severity, Severity::Info);
        assert!(finding.fix.unwrap().starts_with("echo 100000 > /sys/fs/cgroup/cpu/web/cpu.cfs_burst_us"));
    }

    #[test]
    fn burst_is_advised_only_where_there_is_more_of_it() {
        let mut world = World::new(2);
        let web = world.group("/web", 1024);
        world.quota(web, 100_000, 100_000, Some((1, 20))).used(web, 30.0);
        let is_advised = |world: &World| world.only("quota-throttled").fix.unwrap().contains("cfs_burst_us");
        for (release, advised) in
            [("5.13.9", false), ("4.19.0-27-amd64", false), ("5.14.0", true), ("?", true)]
        {
            world.facts.release = Known::Value(release.into());
            assert_eq!(is_advised(&world), advised, "{release}");
        }
        for (usec, advised) in [(50_000, true), (100_000, false)] {
            world.observation.groups[web as usize].quota.as_mut().unwrap().burst_usec = usec;
            assert_eq!(is_advised(&world), advised, "{usec}");
        }
        let finding = world.only("quota-throttled");
        assert!(finding.evidence.contains("each 100000 us, burst 100000 us)"), "{}", finding.evidence);
        assert!(finding.fix.unwrap().starts_with("echo 150000 > "));
    }

    #[test]
    fn throttling_that_takes_no_time_is_no_warning() {
        let mut world = World::new(2);
        let web = world.group("/web", 1024);
        world.quota(web, 100_000, 100_000, Some((1, 10))).used(web, 99.9);
        let severity = |world: &World| world.only("quota-throttled").severity;
        assert_eq!(severity(world.stood_still(web, 0.3)), Severity::Info);
        assert_eq!(severity(world.stood_still(web, 3.0)), Severity::Warning);
    }

    #[test]
    fn unread_periods_are_unknown() {
        let mut world = World::new(2);
        let web = world.group("/web", 1024);
        world.quota(web, 100_000, 100_000, None);
        assert_eq!(world.only("quota-throttled").status, Status::Unknown);
    }
}
