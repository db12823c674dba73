//! Containers of one host had their shares made into weights by one formula (runc#4772).

use evenkeel_base::CpuShares;
use evenkeel_base::facts::Unknown;

use crate::view::{group_name, list, siblings};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "shares-curves",
    severity: Severity::Warning,
    about: "containers side by side had their shares converted to weights by one formula (cgroup v2)",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let weight = |group: u32| {
        let view = observation.groups.get(group as usize).filter(|view| view.v2)?;
        view.raw_weight
    };
    let containers: Vec<u32> = observation.containers.iter().filter_map(|c| c.group).collect();
    // 1024 shares, every runtime's default, by the old formula and by the one of runc 1.3.2 and crun 1.23: the only two
    // weights of which one can tell by which they were made.
    let linear = u64::from(CpuShares::DEFAULT.to_weight_linear().get());
    let curve = u64::from(CpuShares::DEFAULT.to_weight_curve().get());
    let mut findings = Vec::new();
    for children in siblings(observation).into_values() {
        let of = |wanted: u64| -> Vec<u32> {
            children
                .iter()
                .copied()
                .filter(|at| containers.contains(at) && weight(*at) == Some(wanted))
                .collect()
        };
        let (old, new) = (of(linear), of(curve));
        let (Some(first), false) = (old.first(), new.is_empty()) else { continue };
        findings.push(rule.fail(
            list(old.iter().map(|at| group_name(observation, *at))),
            format!(
                "cpu.weight {linear}, which is 1024 shares by the old formula, next to {} with {curve}, which is 1024 shares by the \
                 new one, or no shares at all",
                list(new.iter().map(|at| group_name(observation, *at)))
            ),
            format!(
                "1024 shares are the default, yet they get {linear} : {curve} where they compete: it depends on the runtime that made \
                 them, or on whether shares were named"
            ),
            format!(
                "{}\n# lasting: one version of runc (1.3.2 or later) or crun (1.23 or later) for all, then recreate the containers",
                fix::set_weight(input, *first, 1024.0)
            ),
        ));
    }
    Ok(rule.or_pass(findings, format!("{} containers, no two formulas side by side", containers.len())))
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::World;

    fn world(weights: &[u64]) -> World {
        let mut world = World::v2(2);
        for (n, weight) in weights.iter().enumerate() {
            let group = world.group(&format!("/docker/{n}"), *weight);
            world.container(&format!("c{n}"), "docker", group);
        }
        world
    }

    #[test]
    fn both_defaults_side_by_side_fail() {
        let finding = world(&[39, 100, 39]).only("shares-curves");
        assert_eq!((finding.status, &*finding.subject), (Status::Fail, "container c0, container c2"));
        assert!(finding.evidence.contains("by the new one, or no shares at all"), "{}", finding.evidence);
        assert!(finding.consequence.unwrap().contains("39 : 100"));
    }

    #[test]
    fn one_formula_or_none_passes() {
        for weights in [&[39, 39][..], &[100, 100], &[100, 50], &[]] {
            assert_eq!(world(weights).only("shares-curves").status, Status::Pass, "{weights:?}");
        }
    }
}
