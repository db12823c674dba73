//! Neighbours' weights are not absurdly far apart.

use evenkeel_base::facts::Unknown;
use evenkeel_base::load_weight;

use crate::view::{ACTIVE_PCT, found_by_run, group_demand_pct, group_name, siblings};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "weights-spread",
    severity: Severity::Warning,
    about: "weights of neighbour groups are not absurdly far apart",
    check,
};

/// Ratio from which the lighter group starves next to a busy heavier one. With slices of about 3 ms it runs 3 ms of
/// every 768 or more. Kubernetes' BestEffort pods (shares 2 next to 1024) are beyond it by design.
const ABSURD: u64 = 256;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let mut findings = Vec::new();
    for (parent, children) in siblings(observation) {
        // Load weight, group, and the number in its file: as it is now, and no heavier than it was found before a run raised it.
        let (mut now, mut found) = (Vec::new(), Vec::new());
        let is_sandbox =
            |group: u32| observation.containers.iter().any(|c| c.group == Some(group) && c.is_sandbox());
        for &group in children.iter().filter(|group| !is_sandbox(**group)) {
            // Who was made idle is to wait for the others.
            let view = observation.groups.get(group as usize).filter(|view| !view.idle);
            let Some(view) = view else { continue };
            match view.load_weight {
                Some(weight) => {
                    let present = (weight, group, view.raw_weight.unwrap_or_default());
                    let before = found_by_run(input, view, "weight");
                    let before = before.and_then(|words| words.strip_prefix("weight ")?.parse().ok());
                    let before = before.map(|raw| (load_weight(raw, view.v2), group, raw));
                    now.push(present);
                    found.push(before.map_or(present, |before| before.min(present)));
                }
                None if view.raw_weight.is_some() => {
                    findings
                        .push(rule.unknown(group_name(observation, group), "its weight could not be read"));
                }
                None => {}
            }
        }
        // Those who want CPU now come before all others.
        let busy = |group: u32| group_demand_pct(observation, group) >= ACTIVE_PCT;
        let pair = |both: bool| {
            let counts = |entry: &&(u64, u32, u64)| !both || busy(entry.1);
            let (low, high) = (now.iter().filter(counts).min()?, found.iter().filter(counts).max()?);
            (high.0 / low.0.max(1) >= ABSURD).then_some((*low, *high, both))
        };
        let Some(((low, light, low_raw), (high, heavy, high_raw), both)) = pair(true).or_else(|| pair(false))
        else {
            continue;
        };
        let share = 100.0 * low as f64 / (low as f64 + high as f64).max(1.0);
        let finding = rule.fail(
            group_name(observation, light),
            format!(
                "weight {low_raw} against {high_raw} of {} (1 : {}){}",
                group_name(observation, heavy),
                high / low.max(1),
                if both { ", both want CPU now" } else { "" }
            ),
            format!(
                "where both want the same CPU it gets {share:.2} % of that: it can stand still for seconds, and whoever waits \
                 for its answer or for a lock it holds stands still with it (both are in {})",
                group_name(observation, parent)
            ),
            fix::set_weight(input, light, high as f64 / 100.0),
        );
        findings.push(finding.severity(if both { Severity::Warning } else { Severity::Info }));
    }
    Ok(rule.or_pass(findings, format!("no neighbours' weights differ by a factor of {ABSURD} or more")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn a_starving_neighbour_fails() {
        let mut world = World::new(1);
        world.group("/a", 1024);
        world.group("/b", 102_400);
        assert_eq!(world.only("weights-spread").status, Status::Pass);
        let mut world = World::new(1);
        let (a, b) = (world.group("/a", 2), world.group("/b", 1024));
        assert_eq!(world.only("weights-spread").severity, Severity::Info);
        world.task("x", 1.0).wait(90.0).in_group(a);
        world.task("y", 99.0).in_group(b);
        let finding = world.only("weights-spread");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert_eq!(finding.subject, "cgroup /a");
        assert!(
            finding.evidence.starts_with("weight 2 against 1024 of cgroup /b (1 : 512)"),
            "{}",
            finding.evidence
        );
        assert!(finding.consequence.unwrap().contains("0.19 %"));
    }

    #[test]
    fn one_that_starves_is_not_hidden_by_lighter_ones_that_want_nothing() {
        let mut world = World::new(1);
        let [_, a, b, _] = [("/0", 2), ("/a", 2), ("/b", 1024), ("/c", 2048)].map(|(p, w)| world.group(p, w));
        world.task("x", 1.0).wait(90.0).in_group(a);
        world.task("y", 99.0).in_group(b);
        let finding = world.only("weights-spread");
        assert_eq!((finding.severity, &*finding.subject), (Severity::Warning, "cgroup /a"));
        assert!(finding.evidence.starts_with("weight 2 against 1024 of cgroup /b"), "{}", finding.evidence);
    }

    #[test]
    fn the_pause_container_of_a_pod_is_as_it_should_be() {
        let mut world = World::new(1);
        let (pause, app) = (world.group("/kubepods/pod1/p", 2), world.group("/kubepods/pod1/app", 2048));
        for (group, name) in [(pause, "pause"), (app, "app")] {
            world.observation.containers.push(evenkeel_base::ContainerView {
                pod: Some(0),
                group: Some(group),
                ..evenkeel_base::ContainerView::of(name, "containerd")
            });
        }
        assert_eq!(world.only("weights-spread").status, Status::Pass);
        // Another container of that weight is a finding, by whatever name outside of pods.
        world.observation.containers[0].pod = None;
        assert_eq!(world.only("weights-spread").status, Status::Fail);
    }

    #[test]
    fn who_was_made_idle_waits_as_it_should() {
        let mut world = World::v2(1);
        let (idle, other) = (world.group("/idle", 1), world.group("/other", 100));
        world.task("x", 1.0).wait(90.0).in_group(idle);
        world.task("y", 99.0).in_group(other);
        world.observation.groups[idle as usize].idle = true;
        assert_eq!(world.only("weights-spread").status, Status::Pass);
    }

    #[test]
    fn what_a_run_has_raised_is_as_heavy_as_it_was_found() {
        let mut world = World::new(1);
        world.group("/a", 1024);
        world.group("/promised", 262_144);
        assert_eq!(world.only("weights-spread").subject, "cgroup /a");
        world.set_by_run("/promised", "weight", "weight 2048");
        assert_eq!(world.only("weights-spread").status, Status::Pass);
        // Too far apart as found, too.
        world.group("/tiny", 2);
        let evidence = world.only("weights-spread").evidence;
        assert!(evidence.starts_with("weight 2 against 2048 of cgroup /promised (1 : 1024)"), "{evidence}");
        // One that was raised hides no other light one.
        let mut world = World::new(1);
        for (path, weight) in [("/raised", 4096), ("/light", 4), ("/heavy", 2048)] {
            world.group(path, weight);
        }
        world.set_by_run("/raised", "weight", "weight 2");
        let finding = world.only("weights-spread");
        assert_eq!((finding.status, &*finding.subject), (Status::Fail, "cgroup /light"));
        assert!(finding.evidence.starts_with("weight 4 against 2048"), "{}", finding.evidence);
    }

    #[test]
    fn an_unread_weight_is_unknown() {
        let mut world = World::new(1);
        let a = world.group("/a", 2);
        world.observation.groups[a as usize].load_weight = None;
        assert_eq!(world.only("weights-spread").status, Status::Unknown);
    }
}
