//! The promises of one observation as settings can carry them: a snapshot that the ticks work on until the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_base::{
    CpuSet, GroupRef, GroupView, Observation, SchedAttr, SchedPolicy, Target, TaskId, TaskView,
};
use evenkeel_policy::guarantee::tree::{self, Bearer, Carrier, Contest};

use super::Originals;

/// What a bearer is on the host.
#[derive(Debug, Clone)]
pub struct Held {
    pub target: Target,
    /// A task's attributes as found.
    pub sched: Option<SchedAttr>,
    /// A group as observed.
    pub group: Option<GroupView>,
    /// For people.
    pub name: String,
    /// Changed through its owner's program (Docker, systemd): that is slow, so it is done seldom.
    pub owned: bool,
    /// Largest load weight.
    pub heaviest: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Layout {
    /// Promise of each promised task.
    pub owner: BTreeMap<TaskId, usize>,
    /// Attributes of promised tasks as found, where they may be changed.
    pub sched: BTreeMap<TaskId, SchedAttr>,
    /// Unpromised tasks that share a cgroup with promised ones: their nice values must stand still.
    pub mates: BTreeSet<TaskId>,
    pub carriers: Vec<Carrier>,
    /// Tasks of each carrier.
    pub members: Vec<Vec<TaskId>>,
    pub contests: Vec<Contest>,
    /// Slack of each contest, percent of one CPU.
    pub slack: Vec<f64>,
    /// Load weight for one point in each contest.
    pub per_point: BTreeMap<Option<u32>, f64>,
    pub held: HashMap<Bearer, Held>,
    /// A weight reached its largest value.
    pub limited: bool,
}

/// CPUs a task may use: affinity as found within its effective cpuset, online.
pub fn allowed(observation: &Observation, task: &TaskView, originals: &Originals) -> CpuSet {
    let mut cpus = observation.topology.online.clone();
    if let Some(affinity) = originals.affinity.get(&task.id).or(task.affinity.as_ref()) {
        cpus = cpus.intersection(affinity);
    }
    if let Some(cpuset) = observation.group_of(task).and_then(|group| group.cpuset.as_ref()) {
        let within = cpus.intersection(cpuset);
        if !within.is_empty() {
            cpus = within;
        }
    }
    cpus
}

/// Whether a task may carry: of the fair class, its attributes known.
pub fn may_carry(task: &TaskView, originals: &Originals) -> bool {
    let sched = originals.sched.get(&task.id).copied().or(task.sched);
    sched.is_some_and(|attr| attr.policy.is_fair())
}

/// Files of cgroups that an owner's program writes, see `evenkeel_actuate`: units, slices and Docker's containers.
pub fn is_owned(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or(path);
    let id = last.strip_prefix("docker-").and_then(|rest| rest.strip_suffix(".scope")).unwrap_or(last);
    let docker = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    docker || [".service", ".scope", ".slice"].iter().any(|kind| last.ends_with(kind))
}

/// What carries the promises, and who it belongs to on the host.
pub fn held(observation: &Observation, bearer: Bearer, originals: &Originals) -> Option<Held> {
    let heaviest = tree::heaviest(observation, bearer);
    match bearer {
        Bearer::Group(index) => {
            let group = observation.groups.get(index as usize)?;
            // The root group and one whose weight is unknown cannot be changed.
            group.raw_weight?;
            group.parent?;
            Some(Held {
                target: Target::Group(GroupRef { path: group.path.clone(), v2: group.v2 }),
                sched: None,
                group: Some(group.clone()),
                name: format!("weight of {}", group.path),
                owned: is_owned(&group.path),
                heaviest,
            })
        }
        Bearer::Task(index) => {
            let task = observation.tasks.get(index)?;
            let mut sched = originals.sched.get(&task.id).copied().or(task.sched)?;
            if !sched.policy.is_fair() {
                return None;
            }
            if sched.policy == SchedPolicy::Idle {
                // Its weight of 3 cannot carry anything.
                sched.policy = SchedPolicy::Other;
            }
            Some(Held {
                target: Target::Task(task.id),
                sched: Some(sched),
                group: None,
                name: format!("nice of {} {}", task.id, task.comm),
                owned: false,
                // Room for corrections above.
                heaviest: heaviest / 2.0,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_from_their_names() {
        let id = "0123456789abcdef".repeat(4);
        for owned in
            [format!("/docker/{id}"), format!("/system.slice/docker-{id}.scope"), "/a/b.service".into()]
        {
            assert!(is_owned(&owned), "{owned}");
        }
        assert!(!is_owned("/docker") && !is_owned("/kubepods/burstable") && !is_owned("/"));
    }
}
