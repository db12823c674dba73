//! Neighbours that compete have weights somebody chose.

use evenkeel_base::facts::Unknown;

use crate::view::{competing, group_name, is_throttled, list, siblings};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "weights-flat",
    severity: Severity::Info,
    about: "competing neighbour groups do not all have the same weight while their demands differ",
    check,
};

/// Demand of a group below which it does not compete.
const BUSY_PCT: f64 = 5.0;

/// Largest demand over smallest from which an equal division cannot suit all.
const UNEQUAL: f64 = 2.0;

/// Wait of a group's tasks, summed, from which the division is felt.
const WAITS_PCT: f64 = 10.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let mut findings = Vec::new();
    for (parent, children) in siblings(observation) {
        let busy = competing(observation, &children, BUSY_PCT);
        if busy.len() < 2 {
            continue;
        }
        let weight = |group: u32| observation.groups.get(group as usize).and_then(|view| view.raw_weight);
        let subject = format!("{} groups in {}", busy.len(), group_name(observation, parent));
        let weights: Vec<u64> = busy.iter().filter_map(|(group, _)| weight(*group)).collect();
        if weights.len() < busy.len() {
            // Without the cpu controller here, there are no weights to set.
            if !weights.is_empty() {
                findings.push(rule.unknown(subject, "not all of their weights could be read"));
            }
            continue;
        }
        let (Some(first), true) = (weights.first(), weights.iter().all(|w| Some(w) == weights.first()))
        else {
            continue;
        };
        let most = busy.iter().max_by(|a, b| a.1.total_cmp(&b.1)).copied().unwrap_or((parent, 0.0));
        let least = busy.iter().map(|(_, demand)| *demand).fold(f64::INFINITY, f64::min);
        // What waits for a quota is not short by the division.
        let waited: f64 = busy
            .iter()
            .flat_map(|(group, _)| observation.tasks_in(*group))
            .filter(|task| !task.group.is_some_and(|group| is_throttled(observation, group)))
            .filter_map(|task| task.wait_pct)
            .sum();
        if most.1 < UNEQUAL * least || waited < WAITS_PCT {
            continue;
        }
        let load = observation.groups.get(most.0 as usize).and_then(|view| view.load_weight).unwrap_or(1024);
        findings.push(rule.fail(
            subject,
            format!(
                    "all have weight {first}; they want {} of one CPU and wait {waited:.0} % together",
                    list(
                        busy.iter().map(|(group, demand)| format!(
                            "{} {demand:.0} %",
                            group_name(observation, *group)
                        ))
                    )
                ),
            "when CPU is short each gets the same part, however much it needs or matters",
            format!(
                "# if {} matters more than its neighbours, for instance twice as much:\n{}",
                group_name(observation, most.0),
                fix::set_weight(input, most.0, 2.0 * load as f64)
            ),
        ));
    }
    Ok(rule.or_pass(findings, "no neighbours compete under equal weights with unequal demands"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    fn two(weights: (u64, u64)) -> World {
        let mut world = World::new(1);
        let (a, b) = (world.group("/a", weights.0), world.group("/b", weights.1));
        world.task("big", 50.0).wait(45.0).in_group(a);
        world.task("small", 20.0).wait(5.0).in_group(b);
        world
    }

    #[test]
    fn equal_weights_under_unequal_demands_are_named() {
        assert_eq!(World::new(1).only("weights-flat").status, Status::Pass);
        assert_eq!(two((2048, 1024)).only("weights-flat").status, Status::Pass);
        let finding = two((1024, 1024)).only("weights-flat");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Info));
        assert!(
            finding.evidence.contains("all have weight 1024; they want cgroup /a 95 %"),
            "{}",
            finding.evidence
        );
        assert!(finding.fix.unwrap().ends_with("echo 2048 > /sys/fs/cgroup/cpu/a/cpu.shares"));
    }

    #[test]
    fn a_wait_for_a_quota_is_no_matter_of_weights() {
        let mut world = two((1024, 1024));
        world.observation.groups[1].throttled_pct = Some(45.0);
        assert_eq!(world.only("weights-flat").status, Status::Pass);
    }

    #[test]
    fn unread_weights_are_unknown() {
        let mut world = two((1024, 1024));
        world.observation.groups[2].raw_weight = None;
        assert_eq!(world.only("weights-flat").status, Status::Unknown);
    }
}
