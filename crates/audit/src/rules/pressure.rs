//! Tasks do not wait for CPU (pressure stall information).

use evenkeel_base::TaskView;
use evenkeel_base::facts::Unknown;

use crate::view::{ACTIVE_PCT, is_throttled};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "pressure",
    severity: Severity::Warning,
    about: "tasks do not wait for a CPU much of the time (PSI)",
    check,
};

/// Percent of wall time with at least one task waiting, over a minute, that ordinary servers stay below; short
/// waits at wake-ups make some percent on any busy host.
const SUSTAINED_PCT: f64 = 20.0;

/// Over the last ten seconds, below which pressure of the last minute is over by now.
const OVER_PCT: f64 = 10.0;

/// Over ten seconds alone: a burst, worth knowing.
const BURST_PCT: f64 = 20.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let psi = input.facts.pressure.get()?;
    let evidence = format!(
        "some task was ready and did not run {:.1} % of the last 10 s, {:.1} % of the last minute, {:.1} % of the last 5 minutes",
        psi.some_avg10, psi.some_avg60, psi.some_avg300
    );
    let severity = if psi.some_avg60 >= SUSTAINED_PCT && psi.some_avg10 >= OVER_PCT {
        Severity::Warning
    } else if psi.some_avg60 >= SUSTAINED_PCT || psi.some_avg10 >= BURST_PCT {
        Severity::Info
    } else {
        return Ok(vec![rule.pass("host", evidence)]);
    };
    let mut waiting: Vec<_> = input
        .observation
        .tasks
        .iter()
        // A wait is counted when it ends, so an interval can hold part of a wait from before it.
        .filter_map(|task| task.wait_pct.filter(|pct| *pct >= ACTIVE_PCT).map(|pct| (pct.min(100.0), task)))
        .collect();
    waiting.sort_by(|a, b| b.0.total_cmp(&a.0));
    // The kernel counts what a quota holds back as ready, too.
    let held = |task: &TaskView| task.group.is_some_and(|group| is_throttled(input.observation, group));
    let who: Vec<String> = waiting
        .iter()
        .take(5)
        .map(|(pct, task)| {
            let held = if held(task) { ", throttled by its quota" } else { "" };
            format!("{} ({}) {pct:.0} %{held}", task.id, task.comm)
        })
        .collect();
    if !waiting.is_empty() && waiting.iter().all(|(_, task)| held(task)) {
        return Ok(vec![
            rule.fail(
                "host",
                format!("{evidence}; kept from running now: {}", who.join(", ")),
                "quotas hold these tasks back, whatever the CPUs have free",
                "evenkeel check   # rule quota-throttled: the quotas, and higher ones",
            )
            .severity(severity),
        ]);
    }
    let evidence = match waiting.first() {
        Some(_) => format!("{evidence}; waiting most now: {}", who.join(", ")),
        None => format!("{evidence}; no task waits now"),
    };
    let why = match waiting.first() {
        Some((_, task)) => format!("evenkeel why pid:{}   # who has the CPU meanwhile", task.id.tgid),
        None => "evenkeel ps --by container   # who has the CPU".to_owned(),
    };
    Ok(vec![
        rule.fail(
            "host",
            evidence,
            "requests are answered later than the work they need takes",
            format!("{why}\nevenkeel plan --scope all   # what could be evened out; if all CPUs are full: less work or more CPUs"),
        )
        .severity(severity),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn sustained_pressure_fails_a_burst_is_said_none_passes() {
        let mut world = World::new(2);
        world.pressure(1.0, 2.0);
        assert_eq!(world.only("pressure").status, Status::Pass);
        world.pressure(60.0, 5.0);
        assert_eq!(world.only("pressure").severity, Severity::Info);
        world.pressure(2.0, 55.0);
        assert_eq!(world.only("pressure").severity, Severity::Info, "it is over");
        world.pressure(60.0, 55.0);
        world.task("redis", 40.0).wait(50.0);
        let finding = world.only("pressure");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert!(finding.evidence.contains("100 (redis) 50 %"), "{}", finding.evidence);
        assert!(finding.fix.unwrap().starts_with("evenkeel why pid:100 "));
    }

    #[test]
    fn what_a_quota_holds_back_is_not_called_a_want_of_cpus() {
        let mut world = World::new(2);
        world.pressure(60.0, 55.0);
        let web = world.group("/web", 1024);
        world.task("spin", 10.0).wait(90.0).in_group(web);
        world.stood_still(web, 90.0);
        let finding = world.only("pressure");
        assert!(finding.evidence.contains("kept from running now: 100 (spin) 90 %, throttled by its quota"));
        assert!(finding.consequence.unwrap().starts_with("quotas hold"));
        assert!(finding.fix.unwrap().contains("quota-throttled"));
        // Somebody else waits as well.
        world.task("redis", 40.0).wait(50.0);
        let finding = world.only("pressure");
        assert!(finding.consequence.unwrap().starts_with("requests"), "{}", finding.evidence);
        assert!(
            finding.evidence.contains("100 (spin) 90 %, throttled by its quota, "),
            "{}",
            finding.evidence
        );
    }

    #[test]
    fn without_psi_it_is_unknown() {
        let mut world = World::new(2);
        world.facts.pressure = World::denied("/proc/pressure/cpu");
        assert_eq!(world.only("pressure").status, Status::Unknown);
    }
}
