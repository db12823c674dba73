//! Groups get the share of the CPU that weights and demand entitle them to.

use evenkeel_base::facts::Unknown;
use evenkeel_base::sched::{STARVED_LIFT, TAKER_PART};

use crate::fair::{self, LostTurn};
use crate::view::{autogroups, demand_pct, group_name, list, siblings};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "starved-group",
    severity: Severity::Warning,
    about: "groups get the share of the CPU that their weight and their demand entitle them to",
    check,
};

/// Who got less than this next to it, percent of one CPU, is not named.
const NAMED_PCT: f64 = 10.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    if observation.tasks.iter().all(|task| task.wait_pct.is_none()) {
        return Err(Unknown("the kernel does not tell how long tasks wait (schedstats)".into()));
    }
    let Some(due_pct) = fair::due_pct(observation, &autogroups(input)) else {
        return Err(Unknown("fair shares could not be reckoned".into()));
    };
    let by_parent = siblings(observation);
    let findings = fair::lost_turn(observation, &due_pct)
        .into_iter()
        .map(|LostTurn { group, got_pct: got, due_pct: due }| {
            let view = observation.groups.get(group as usize);
            let weight = view.and_then(|v| v.load_weight).unwrap_or(1024);
            let wanted: f64 = observation.tasks_in(group).map(demand_pct).sum();
            let beside = view.and_then(|v| by_parent.get(&v.parent?)).into_iter().flatten();
            let mut beside: Vec<(f64, u32)> = beside
                .filter(|other| **other != group)
                .map(|other| (observation.group_cpu_pct(*other), *other))
                .filter(|(pct, _)| *pct >= NAMED_PCT)
                .collect();
            beside.sort_by(|a, b| b.0.total_cmp(&a.0));
            let who = match beside.len() {
                0 => "tasks of its parent's own group".to_owned(),
                _ => list(beside.iter().map(|(pct, at)| format!("{} ({pct:.0} %)", group_name(observation, *at)))),
            };
            rule.fail(
                group_name(observation, group),
                format!(
                    "got {got:.0} % of one CPU in {:.1} s; its tasks wanted {wanted:.0} %, and {due:.0} % is its fair share \
                     by weight {}; beside {who}",
                    observation.interval_s,
                    view.and_then(|v| v.raw_weight).unwrap_or(weight)
                ),
                "its tasks lose their turn on the CPU: requests it answers stand still meanwhile, for whole seconds at worst",
                match beside.first() {
                    // Who is throttled now and then cannot keep its lead for long.
                    Some(&(pct, taker)) => format!(
                        "{}   # a little below what it takes: it pauses now and then, and the turn passes on",
                        fix::set_quota(
                            input,
                            taker,
                            (TAKER_PART * pct).max(due_pct.get(taker as usize).copied().unwrap_or(pct))
                        )
                    ),
                    None => format!(
                        "{}   # {STARVED_LIFT} times, which helps at times, as does starting it by `evenkeel exec --slice 0.1ms`",
                        fix::set_weight(input, group, weight.saturating_mul(STARVED_LIFT) as f64)
                    ),
                },
            )
        })
        .collect();
    Ok(rule.or_pass(findings, "every group that wanted CPU got at least half of its fair share"))
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::{TaskExt, World};

    /// Eight servers of a group that wait, next to a group that has the CPUs.
    fn world(got: f64) -> World {
        let mut world = World::new(2);
        let (a, b) = (world.group("/a", 1024), world.group("/b", 1024));
        for n in 0..8 {
            world.thread(200 + n, "server", got / 8.0).wait(99.0 - got / 8.0).in_group(a);
        }
        for n in 0..2 {
            world.thread(300 + n, "other", 99.0 - got / 2.0).wait(got / 2.0).in_group(b);
        }
        world
    }

    #[test]
    fn a_group_that_loses_its_turn_fails_and_an_even_one_passes() {
        let finding = world(3.0).only("starved-group");
        assert_eq!((finding.status, finding.subject.as_str()), (Status::Fail, "cgroup /a"));
        assert!(finding.evidence.starts_with("got 3 % of one CPU"), "{}", finding.evidence);
        assert!(finding.evidence.contains("100 % is its fair share by weight 1024"), "{}", finding.evidence);
        assert!(finding.evidence.contains("cgroup /b (195 %)"), "{}", finding.evidence);
        let fix = finding.fix.unwrap();
        assert!(fix.contains("echo 176000 > /sys/fs/cgroup/cpu/b/cpu.cfs_quota_us"), "{fix}");
        assert_eq!(world(90.0).only("starved-group").status, Status::Pass);
        // A little less than half of what is due.
        assert_eq!(world(51.0).only("starved-group").status, Status::Pass);
        assert_eq!(world(49.0).only("starved-group").status, Status::Fail);
    }

    #[test]
    fn a_light_group_that_gets_what_its_weight_gives_is_not_starved() {
        let mut world = world(3.0);
        world.observation.groups[1].load_weight = Some(16);
        assert_eq!(world.only("starved-group").status, Status::Pass);
    }

    #[test]
    fn a_throttled_group_is_the_quotas_matter() {
        let mut world = world(3.0);
        world.observation.groups[1].throttled_pct = Some(80.0);
        assert_eq!(world.only("starved-group").status, Status::Pass);
    }

    #[test]
    fn what_the_hypervisor_took_is_no_neighbours_fault() {
        let mut world = World::new(1);
        let (a, b) = (world.group("/a", 1024), world.group("/b", 1024));
        world.thread(200, "one", 20.0).wait(80.0).in_group(a);
        world.thread(300, "other", 20.0).wait(80.0).in_group(b);
        assert_eq!(world.run("starved-group").len(), 2, "half of the CPU was idle, it seems");
        world.observation.host.per_cpu[0].steal_pct = Some(60.0);
        assert_eq!(world.only("starved-group").status, Status::Pass);
    }

    #[test]
    fn without_waits_nothing_is_known() {
        let mut world = world(3.0);
        world.observation.tasks.iter_mut().for_each(|task| task.wait_pct = None);
        assert_eq!(world.only("starved-group").status, Status::Unknown);
    }
}
