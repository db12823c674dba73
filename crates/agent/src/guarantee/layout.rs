//! The promises of one observation as settings can carry them: a snapshot that the ticks work on until the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_base::{
    CpuSet, GroupView, Observation, SchedAttr, SchedPolicy, Target, TaskId, TaskView, is_unit_name,
};
use evenkeel_linux::{cgroup, machine};
use evenkeel_policy::guarantee::tree::{self, EntityShare, SchedEntity, Siblings};
use serde::Serialize;

/// What a entity is on the host.
#[derive(Debug, Clone)]
pub struct EntityFacts {
    pub target: Target,
    /// A task's attributes as found.
    pub sched: Option<SchedAttr>,
    pub group: Option<GroupView>,
    pub name: String,
    /// Changed through its owner's program (Docker, systemd): that is slow, so it is done seldom.
    pub owned: bool,
    /// Largest load weight.
    pub heaviest: f64,
    /// Load weight before anything was changed.
    pub found: f64,
    /// The same, as the group's file had it.
    pub found_raw: Option<u64>,
    /// What is done with it, for people.
    pub role: Role,
}

/// Why something has its weight changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It belongs to the scope and carries a promise.
    Carries,
    /// It holds others, too, and a promise below it needs more than it has.
    Ancestor,
    /// It belongs to the scope, is promised nothing, and gives way to a sibling that is.
    Lends,
}

impl Role {
    pub fn why(self) -> &'static str {
        match self {
            Self::Carries => "promised share",
            Self::Ancestor => "promised share; holds others than the scope, too",
            Self::Lends => "gives way to a promised share",
        }
    }
}

/// A cgroup that holds others than the scope, too, on the way to a promised one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ancestor {
    pub group: String,
    /// Whether its weight is changed.
    pub changed: bool,
}

/// What promises cost those outside the scope who share a cgroup's CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutsideCost {
    /// The cgroup that they share with a promise.
    #[serde(rename = "group")]
    pub node: String,
    /// Cgroups among them that are active now.
    pub neighbours: Vec<String>,
    /// What is left to all of them together when everybody wants everything, percent of one CPU: as found.
    pub before_pct: f64,
    /// The same with the settings that keep the promises.
    pub after_pct: f64,
}

#[derive(Debug, Default)]
pub struct Layout {
    /// Reservation of each promised task.
    pub owner: BTreeMap<TaskId, usize>,
    /// Attributes of promised tasks as found, where they may be changed.
    pub sched: BTreeMap<TaskId, SchedAttr>,
    /// Unpromised tasks that share a cgroup with promised ones: their nice values must stand still.
    pub mates: BTreeSet<TaskId>,
    pub carriers: Vec<EntityShare>,
    /// Tasks of each carrier.
    pub members: Vec<Vec<TaskId>>,
    pub contests: Vec<Siblings>,
    /// Slack of each siblings, percent of one CPU.
    pub slack: Vec<f64>,
    /// Load weight for one point in each siblings.
    pub per_point: BTreeMap<Option<u32>, f64>,
    pub held: HashMap<SchedEntity, EntityFacts>,
    /// A weight reached its largest value.
    pub limited: bool,
    /// What it costs whom outside the scope.
    pub costs: Vec<OutsideCost>,
}

impl Layout {
    /// What a siblings has at most: its promises, and what they leave.
    pub fn capacity(&self, siblings: &Siblings) -> f64 {
        let at = self.contests.iter().position(|c| c.node == siblings.node);
        let slack = at.and_then(|at| self.slack.get(at)).copied().unwrap_or(0.0);
        slack + siblings.children.iter().map(|child| child.points).sum::<f64>()
    }
}

/// CPUs a task may use: affinity as found within its effective cpuset, online.
pub fn allowed(observation: &Observation, task: &TaskView) -> CpuSet {
    let mut cpus = observation.topology.online.clone();
    if let Some(affinity) = &task.affinity {
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
pub fn may_carry(task: &TaskView) -> bool {
    task.sched.is_some_and(|attr| attr.policy.is_fair())
}

/// Files of cgroups that an owner's program writes, see `evenkeel_actuate`: units, slices, Docker's containers and libvirt's machines.
pub fn is_owned(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or(path);
    cgroup::is_container_id(last) || is_unit_name(last) || machine::named(last).is_some()
}

/// The load weight of a entity before anything was changed.
pub fn found(observation: &Observation, entity: SchedEntity) -> f64 {
    const DEFAULT: f64 = 1024.0;
    match entity {
        SchedEntity::Group(index) => observation
            .groups
            .get(index as usize)
            .map_or(DEFAULT, |group| group.load_weight.map_or(DEFAULT, |weight| weight as f64)),
        SchedEntity::Task(index) => {
            let task = observation.tasks.get(index);
            let sched = task.and_then(|task| task.sched);
            sched.map_or(DEFAULT, |attr| f64::from(attr.nice.weight()))
        }
    }
}

/// What carries the promises, and who it belongs to on the host.
pub fn held(observation: &Observation, entity: SchedEntity, role: Role) -> Option<EntityFacts> {
    let found = found(observation, entity);
    let heaviest = tree::heaviest(observation, entity);
    match entity {
        SchedEntity::Group(index) => {
            let group = observation.groups.get(index as usize)?;
            // The root group and one whose weight is unknown cannot be changed.
            group.raw_weight?;
            group.parent?;
            Some(EntityFacts {
                target: Target::Group(group.reference()),
                sched: None,
                group: Some(group.clone()),
                name: format!("weight of {}", group.path),
                owned: is_owned(&group.path),
                heaviest,
                found,
                found_raw: group.raw_weight,
                role,
            })
        }
        SchedEntity::Task(index) => {
            let task = observation.tasks.get(index)?;
            let mut sched = task.sched?;
            if !sched.policy.is_fair() {
                return None;
            }
            if sched.policy == SchedPolicy::Idle {
                // Its weight of 3 cannot carry anything.
                sched.policy = SchedPolicy::Other;
            }
            Some(EntityFacts {
                target: Target::Task(task.id),
                sched: Some(sched),
                group: None,
                name: format!("nice of {} {}", task.id, task.comm),
                owned: false,
                // Room for corrections above.
                heaviest: heaviest / 2.0,
                found,
                found_raw: None,
                role,
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
        for owned in [
            format!("/docker/{id}"),
            format!("/system.slice/docker-{id}.scope"),
            "/a/b.service".into(),
            "/machine/qemu-1-db.libvirt-qemu".into(),
        ] {
            assert!(is_owned(&owned), "{owned}");
        }
        assert!(!is_owned("/docker") && !is_owned("/kubepods/burstable") && !is_owned("/"));
    }
}
