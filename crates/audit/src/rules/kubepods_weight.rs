//! System services keep their turn next to all pods together (kubernetes#139790).

use evenkeel_base::facts::Unknown;
use evenkeel_base::{TaskView, is_kubepods};

use crate::view::{demand_pct, group_name, is_throttled, siblings};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "kubepods-weight",
    severity: Severity::Warning,
    about: "system services get the CPU they want next to all pods together, whose weight grows with the CPUs of the node",
    check,
};

/// Who weighs at most this part of what all pods weigh is outweighed.
const PART: u64 = 4;
/// Seconds waited per second of work from which a service is short of CPU, and what it wants at least, percent of one CPU.
const WAITS: f64 = 1.0;
const WANTS_PCT: f64 = 2.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let groups = &observation.groups;
    let ends_so = |path: &str| path.rsplit('/').next().is_some_and(is_kubepods);
    let Some(pods) = groups.iter().position(|group| ends_so(&group.path)) else {
        return Ok(vec![rule.pass("host", "no kubelet's cgroup of pods is here")]);
    };
    let pods = pods as u32;
    let weight = |index: u32| groups.get(index as usize).and_then(|group| group.load_weight);
    let Some(pods_weigh) = weight(pods) else {
        return Err(Unknown("the weight of the pods' cgroup could not be read".into()));
    };
    let parent = groups.get(pods as usize).and_then(|group| group.parent);
    let by_parent = siblings(observation);
    let beside = parent.and_then(|parent| by_parent.get(&parent)).into_iter().flatten();
    let findings = beside
        .filter(|at| **at != pods && !groups.get(**at as usize).is_some_and(|group| group.idle))
        .filter_map(|at| {
            let weighs = weight(*at).filter(|weighs| weighs * PART <= pods_weigh)?;
            let got = observation.group_cpu_pct(*at);
            // What waits for its own quota is not outweighed.
            let free = |task: &&TaskView| !task.group.is_some_and(|group| is_throttled(observation, group));
            let waited: f64 = observation.tasks_in(*at).filter(free).filter_map(|task| task.wait_pct).sum();
            let wanted: f64 = observation.tasks_in(*at).map(demand_pct).sum();
            (wanted >= WANTS_PCT && waited > WAITS * got).then(|| {
                let name = group_name(observation, *at);
                rule.fail(
                    name.clone(),
                    format!(
                        "weighs {weighs} against all pods' {pods_weigh} ({:.0} to 1); got {got:.1} % of one CPU and waited {:.1} s \
                         per second of work; the pods used {:.0} %",
                        pods_weigh as f64 / weighs.max(1) as f64,
                        waited / got.max(0.01),
                        observation.group_cpu_pct(pods)
                    ),
                    "kubelet, container runtime and sshd are among what waits: nodes become NotReady under load",
                    format!(
                        "{}   # lasting: CPUWeight= of the unit, or --system-reserved of the kubelet",
                        fix::set_weight(input, *at, pods_weigh as f64)
                    ),
                )
            })
        })
        .collect();
    Ok(rule.or_pass(findings, "no service next to the pods' cgroup is outweighed and waits"))
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::{TaskExt, World};

    /// A node's pods, and a system service that waits so much.
    fn world(pods_weigh: u64, wait_pct: f64) -> World {
        let mut world = World::new(4);
        let (pods, system) = (world.group("/kubepods", pods_weigh), world.group("/system.slice", 1024));
        for n in 0..8 {
            world.thread(300 + n, "pod", 48.0).wait(50.0).in_group(pods);
        }
        world.thread(200, "kubelet", 5.0).wait(wait_pct).in_group(system);
        world
    }

    #[test]
    fn a_service_that_all_pods_outweigh_and_that_waits_fails() {
        let finding = world(4096, 40.0).only("kubepods-weight");
        assert_eq!((finding.status, finding.subject.as_str()), (Status::Fail, "cgroup /system.slice"));
        assert!(
            finding.evidence.contains("weighs 1024 against all pods' 4096 (4 to 1)"),
            "{}",
            finding.evidence
        );
        assert!(finding.evidence.contains("waited 8.0 s per second of work"), "{}", finding.evidence);
        assert_eq!(world(4096, 2.0).only("kubepods-weight").status, Status::Pass, "it hardly waits");
        assert_eq!(
            world(2048, 40.0).only("kubepods-weight").status,
            Status::Pass,
            "its weight is not the reason"
        );
        let mut nested = world(4096, 40.0);
        nested.observation.groups[1].path = "/kubelet-kubepods.slice".into();
        assert_eq!(nested.only("kubepods-weight").status, Status::Fail);
    }

    #[test]
    fn a_service_that_waits_for_its_own_quota_is_not_outweighed() {
        let mut world = world(4096, 40.0);
        world.observation.groups[2].throttled_pct = Some(40.0);
        assert_eq!(world.only("kubepods-weight").status, Status::Pass);
    }

    #[test]
    fn who_was_made_idle_is_outweighed_on_purpose() {
        let mut world = world(4096, 40.0);
        world.observation.groups[2].idle = true;
        assert_eq!(world.only("kubepods-weight").status, Status::Pass);
    }

    #[test]
    fn without_pods_there_is_nothing_to_say_and_without_a_weight_it_is_unknown() {
        assert_eq!(World::new(2).only("kubepods-weight").status, Status::Pass);
        let mut world = world(4096, 40.0);
        world.observation.groups[1].load_weight = None;
        assert_eq!(world.only("kubepods-weight").status, Status::Unknown);
    }
}
