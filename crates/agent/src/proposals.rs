//! What the levers propose for what was observed.

use std::collections::HashSet;

use evenkeel_base::run::KERNEL_DEFAULT;
use evenkeel_base::{Change, GroupRef, Knob, Observation, Plan, Setting, Target, TaskId, TaskView};
use evenkeel_policy::levers::{self, Scene};

use crate::agent::Agent;
use crate::bounds::own_groups;

impl Agent {
    /// The plans that the levers propose for what was studied; each relative to the host as found.
    pub fn propose(&self, observation: &Observation) -> Vec<Plan> {
        let found = self.found(observation.clone());
        let scene = self.scene(&found);
        let plain = levers::plans(&scene);
        let mut all = if self.pulls() { levers::with_pull(&scene, plain.clone()) } else { plain.clone() };
        let named = &self.config.levers;
        if !named.is_empty() {
            // Each may be named without what moves waiting work. Where no task can be moved both are the same plan, which
            // would share the error budget with itself.
            all.retain(|plan| !plain.contains(plan));
            all = [plain, all].concat();
            all.retain(|plan| named.contains(&plan.name));
        }
        // What moves background work has to be there, and that it helps has not been seen: only by name.
        all.retain(|plan| plan.before.is_empty() || self.controls.pull() && !named.is_empty());
        all.retain(|plan| !self.decisions.barred.contains(&plan.name));
        if self.config.limit.is_some() {
            // Limits of one cgroup have one who sets them.
            all.retain(|plan| !limits_any(plan, |group| self.controls.bounds().has_group(group)));
        }
        if self.config.as_found { levers::as_found(&scene, all) } else { all }
    }

    /// Whether plans may move waiting work: background work is to wait.
    fn pulls(&self) -> bool {
        self.controls.pull() && !self.has_background()
    }

    /// The plan of one lever by name, whatever the configuration allows.
    pub fn propose_named(&self, name: &str, observation: &Observation) -> Option<Plan> {
        let found = self.found(observation.clone());
        levers::plan_named(name, &self.scene(&found))
    }

    pub(crate) fn found(&self, observation: Observation) -> Observation {
        self.controls.as_found(observation)
    }

    pub(crate) fn scene<'a>(&self, found: &'a Observation) -> Scene<'a> {
        let promised = self.components.promises.keeper();
        let ours = |task: &TaskView| self.config.scope.has(task, found) && !promised.governs(task.id);
        let mut scene = Scene::new(found, self.features(), ours);
        if self.has_background() {
            scene.services = own_groups(found, |task| self.config.service_of(task, found).is_some());
        }
        if !self.features().deadline {
            return scene;
        }
        let services = self.config.protect.iter();
        scene.serving(services.filter_map(|service| {
            let in_service = move |task: &TaskView| service.scope.has(task, found);
            Some((in_service, service.protection.wait_p99_ns?))
        }))
    }
}

/// The empty plan: everything as found.
pub fn default_plan() -> Plan {
    Plan {
        name: KERNEL_DEFAULT.to_owned(),
        why: "the baseline: nothing is changed".to_owned(),
        ..Plan::default()
    }
}

pub(crate) fn tasks_of(plan: &Plan) -> HashSet<TaskId> {
    plan.changes
        .iter()
        .filter_map(|change| match &change.target {
            Target::Task(id) => Some(*id),
            Target::Group(_) | Target::Net(_) | Target::Host => None,
        })
        .chain(plan.pull.iter().copied())
        .collect()
}

/// Whether a plan limits one of these cgroups.
fn limits_any(plan: &Plan, is_one: impl Fn(&GroupRef) -> bool) -> bool {
    let limits = |change: &Change| match &change.target {
        Target::Group(group) => change.knob() == Knob::Quota && is_one(group),
        _ => false,
    };
    plan.changes.iter().any(limits)
}

/// Whether a plan pins tasks, so that placement has to be watched.
pub(crate) fn pins(plan: &Plan) -> bool {
    plan.changes.iter().any(|change| matches!(change.to, Setting::Affinity(_)))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::CpuQuota;

    use super::*;
    use crate::testing;

    #[test]
    fn a_plan_knows_whom_it_changes_or_moves_and_whether_it_pins() {
        let id = |tid| TaskId { tgid: tid, tid, start_time: 1 };
        let change = |target, to| Change { target, to, why: String::new() };
        let nice = || Setting::Sched(evenkeel_base::SchedAttr::DEFAULT);
        let batch = |to| testing::change("/batch", to);
        let plan = |changes| Plan { changes, ..Plan::default() };
        let mixed = plan(vec![change(Target::Task(id(1)), nice()), batch(Setting::Weight(1))]);
        assert_eq!(tasks_of(&mixed), [id(1)].into());
        assert_eq!(tasks_of(&Plan { pull: vec![id(2)], ..mixed.clone() }), [id(1), id(2)].into());
        assert!(!pins(&mixed) && !pins(&plan(vec![batch(Setting::Cpuset(Default::default()))])));
        let pinned = change(Target::Task(id(1)), Setting::Affinity(Default::default()));
        assert!(pins(&plan([mixed.changes, vec![pinned]].concat())));
    }

    #[test]
    fn proposals_know_the_default_slice() {
        let agent = testing::agent("comm:^none$", |_| {});
        assert_eq!(agent.features().default_slice_ns, evenkeel_linux::sys::default_slice_ns());
    }

    #[test]
    fn a_limit_of_the_scope_is_told_from_its_weight_and_from_a_services_burst() {
        let plan = |path: &str, to| Plan { changes: vec![testing::change(path, to)], ..Plan::default() };
        let quota = || Setting::Quota(CpuQuota::UNLIMITED);
        let limits = |plan: Plan| limits_any(&plan, |of| of.path == "/batch");
        assert!(limits(plan("/batch", quota())));
        assert!(!limits(plan("/api", quota())) && !limits(plan("/batch", Setting::Weight(1))));
    }
}
