//! Container shares became fair weights on cgroup v2.

use evenkeel_base::facts::Unknown;
use evenkeel_base::{CpuShares, is_kubepods};

use crate::view::{group_name, list, siblings};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "shares-conversion",
    severity: Severity::Warning,
    about: "containers' shares were not converted to weights unfairly low next to plain services (cgroup v2)",
    check,
};

/// cgroup v2's weight of a new group.
const DEFAULT_WEIGHT: u64 = 100;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let owned = |group: u32| {
        observation.containers.iter().any(|c| c.group == Some(group))
            || observation.pods.iter().any(|p| p.group == Some(group))
            || observation
                .groups
                .get(group as usize)
                .is_some_and(|g| g.path.rsplit('/').next().is_some_and(is_kubepods))
    };
    let converted: Vec<u32> = (0..observation.groups.len() as u32).filter(|&group| owned(group)).collect();
    if converted.is_empty() {
        return Ok(vec![rule.pass("host", "no containers")]);
    }
    if converted.iter().all(|&group| observation.groups.get(group as usize).is_some_and(|g| !g.v2)) {
        return Ok(vec![rule.pass("host", "cgroup v1: shares are used as they are")]);
    }
    // What 1024 shares, every runtime's default, became by the old linear formula: 39.
    let linear = u64::from(CpuShares::DEFAULT.to_weight_linear().get());
    let curve = u64::from(CpuShares::DEFAULT.to_weight_curve().get());
    let mut findings = Vec::new();
    for children in siblings(observation).into_values() {
        let plain: Vec<u32> = children
            .iter()
            .copied()
            .filter(|&group| {
                !owned(group)
                    && observation.groups.get(group as usize).and_then(|g| g.raw_weight)
                        == Some(DEFAULT_WEIGHT)
            })
            .collect();
        for &group in children.iter().filter(|&&group| owned(group)) {
            let Some(view) = observation.groups.get(group as usize).filter(|view| view.v2) else { continue };
            let Some(weight) = view.raw_weight else {
                findings.push(rule.unknown(group_name(observation, group), "its weight could not be read"));
                continue;
            };
            if weight != linear || plain.is_empty() {
                continue;
            }
            let share = 100.0 * weight as f64 / (weight + DEFAULT_WEIGHT) as f64;
            findings.push(rule.fail(
                group_name(observation, group),
                format!(
                    "cpu.weight {weight}: 1024 shares by the linear conversion (the curve of runc 1.3 gives {curve}); \
                     beside {} with {DEFAULT_WEIGHT}",
                    list(plain.iter().map(|&plain| group_name(observation, plain)))
                ),
                format!("with default shares it gets {share:.0} % against one plain service's {:.0} %", 100.0 - share),
                format!(
                    "{}\n# lasting: runc 1.3 or later, or crun 1.23 or later",
                    fix::set_weight(input, group, 1024.0)
                        .replace("--cpu-shares 1024", &format!("--cpu-shares {}", shares_for(DEFAULT_WEIGHT)))
                ),
            ));
        }
    }
    Ok(rule.or_pass(
        findings,
        format!(
            "{} container or pod groups, none at the converted default next to plain services",
            converted.len()
        ),
    ))
}

/// Shares that the linear conversion turns into this weight.
fn shares_for(weight: u64) -> u64 {
    2 + ((weight.max(1) - 1) * 262_142).div_ceil(9999)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::World;

    fn world(weight: u64) -> World {
        let mut world = World::v2(2);
        let slice = world.group("/system.slice", 100);
        let web = world.group("/system.slice/docker-0123456789ab.scope", weight);
        let plain = world.group("/system.slice/nginx.service", 100);
        for group in [web, plain] {
            world.observation.groups[group as usize].parent = Some(slice);
        }
        world.container("web", "docker", web);
        world
    }

    #[test]
    fn the_linear_default_beside_services_fails() {
        assert_eq!(World::new(2).only("shares-conversion").status, Status::Pass);
        assert_eq!(world(100).only("shares-conversion").status, Status::Pass);
        let finding = world(39).only("shares-conversion");
        assert_eq!((finding.status, &*finding.subject), (Status::Fail, "container web"));
        assert!(finding.consequence.unwrap().contains("28 %"));
        assert!(finding.fix.unwrap().starts_with("docker update --cpu-shares 2598 web"));
        assert_eq!(CpuShares::new(shares_for(100)).to_weight_linear().get(), 100);
    }

    #[test]
    fn the_kubelets_own_cgroup_is_known_below_a_cgroup_root_too() {
        for path in [
            "/kubepods",
            "/kubepods.slice",
            "/foo/kubepods",
            "/foo.slice/foo-kubepods.slice",
            "/foo/kubepods.slice",
        ] {
            let mut world = World::v2(2);
            let (pods, plain) = (world.group(path, 39), world.group("/foo/nginx.service", 100));
            for group in [pods, plain] {
                world.observation.groups[group as usize].parent = Some(0);
            }
            let finding = world.only("shares-conversion");
            assert_eq!(finding.status, Status::Fail, "{path}");
            assert!(finding.subject.contains(path), "{}", finding.subject);
        }
    }

    #[test]
    fn v1_passes_and_unread_weights_are_unknown() {
        let mut v1 = World::new(2);
        let group = v1.group("/docker/0123456789ab", 1024);
        v1.container("web", "docker", group);
        assert!(v1.only("shares-conversion").evidence.contains("as they are"));
        let mut world = world(39);
        world.observation.groups[2].raw_weight = None;
        assert_eq!(world.only("shares-conversion").status, Status::Unknown);
    }
}
