//! What may be written at all: reckoned from an observation and the scope, and asked by the actuator about every change,
//! whatever plan it comes from.
//!
//! - *Tasks*: those of the scope, and of the scopes that the configuration's promises name.
//! - *Cgroups of their own*: those that hold such tasks and no others (threads of the kernel and evenkeel itself aside).
//! - *Ancestors*: cgroups above them that hold others, too. Only their weight, and only where a promise of the
//!   configuration needs it; `evenkeel plan` lists them. With `--allow realtime` also `cpu.rt_runtime_us`, without which
//!   the kernel refuses real-time classes below them.
//! - *Cgroups of services* next to background work: only their quota, for its burst.
//! - *The host's scheduler*: with `--allow scx`, where the scope is the whole host.
//!
//! Before a plan is carried out, its tasks are looked at once more: one that has moved to another cgroup since the
//! observation is left alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use evenkeel_actuate::{Actuator, Kernel, SetReport};
use evenkeel_base::{Change, GroupRef, Knob, Observation, Plan, Setting, Target, TaskId, TaskView};
use evenkeel_linux::cgroup;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_policy::guarantee::tree::Reach;

use crate::scope::{Scope, is_own};
use crate::stated::Guarantee;

/// Observations for which a cgroup that is empty stays in the scope: processes come and go.
const EMPTY_FOR: u32 = 8;

/// CPU of a scope below which its parts say nothing, percent of one CPU.
const LEAST_USED_PCT: f64 = 5.0;

/// A task that may be changed, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    group: Option<String>,
    comm: String,
}

impl Member {
    fn of(task: &TaskView, observation: &Observation) -> Self {
        let group = observation.group_of(task).map(|group| group.path.clone());
        Self { group, comm: task.comm.clone() }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    tasks: HashMap<TaskId, Member>,
    /// Cgroups that hold no one else, and for how many observations they have been empty.
    groups: BTreeMap<GroupRef, u32>,
    ancestors: BTreeSet<GroupRef>,
    realtime: BTreeSet<GroupRef>,
    /// Cgroups that hold services alone.
    services: BTreeSet<GroupRef>,
    /// Scopes, to be asked about a path that a task has moved to.
    scopes: Vec<Scope>,
    by_name: bool,
    cpu: Option<Hierarchy>,
    /// The scope is the whole host, and the user allowed what is the host's.
    host: bool,
}

impl Bounds {
    /// Reckons them again; `before` are those of the last observation. `promises` are the configuration's.
    pub fn reckon(
        before: &Self,
        observation: &Observation,
        scope: &Scope,
        promises: &[Guarantee],
        realtime: bool,
        cpu: Option<&Hierarchy>,
    ) -> Self {
        let scopes: Vec<Scope> = std::iter::once(scope)
            .chain(promises.iter().map(|guarantee| &guarantee.scope))
            .cloned()
            .collect();
        let is_mine = |task: &TaskView| scopes.iter().any(|scope| scope.has(task, observation));
        let reference = |index: u32| reference(observation, index);
        let tasks: HashMap<TaskId, Member> = observation
            .tasks
            .iter()
            .filter(|task| is_mine(task))
            .map(|task| (task.id, Member::of(task, observation)))
            .collect();
        let own = own_groups(observation, |task| tasks.contains_key(&task.id));
        let mut groups: BTreeMap<GroupRef, u32> = own
            .iter()
            .zip(0..)
            .filter(|(own, _)| **own)
            .filter_map(|(_, index)| Some((reference(index)?, 0)))
            .collect();
        let seen: HashSet<&str> = observation.groups.iter().map(|group| group.path.as_str()).collect();
        for (group, empty) in &before.groups {
            if !seen.contains(group.path.as_str()) && *empty < EMPTY_FOR {
                groups.insert(group.clone(), empty + 1);
            }
        }
        let above = |wanted: &dyn Fn(&TaskView) -> bool| -> BTreeSet<GroupRef> {
            let of: BTreeSet<u32> =
                observation.tasks.iter().filter(|task| wanted(task)).filter_map(|task| task.group).collect();
            of.into_iter()
                .flat_map(|group| observation.path_to_root(group))
                .filter_map(reference)
                .filter(|group| !groups.contains_key(group))
                .collect()
        };
        let promised = |task: &TaskView| {
            promises
                .iter()
                .any(|guarantee| guarantee.promise.cpu.is_some() && guarantee.scope.has(task, observation))
        };
        let ancestors = above(&promised);
        let realtime = if realtime { above(&|task| scope.has(task, observation)) } else { BTreeSet::new() };
        let by_name = scopes.iter().any(Scope::reads_names);
        Self {
            tasks,
            groups,
            ancestors,
            realtime,
            services: BTreeSet::new(),
            scopes,
            by_name,
            cpu: cpu.cloned(),
            host: before.host,
        }
    }

    /// The quota of cgroups that hold nothing but these tasks, too.
    pub fn add_services(&mut self, observation: &Observation, is_service: impl Fn(&TaskView) -> bool) {
        let own = own_groups(observation, is_service).into_iter().zip(0..).filter(|(own, _)| *own);
        self.services.extend(own.filter_map(|(_, index)| reference(observation, index)));
    }

    /// What is the host's may be changed from now on.
    pub fn allow_host(&mut self) {
        self.host = true;
    }

    /// Tasks of these scopes, too, whose cgroups stay as they are.
    pub fn add_tasks<'a>(&mut self, observation: &Observation, scopes: impl Iterator<Item = &'a Scope>) {
        for scope in scopes {
            let theirs = observation.tasks.iter().filter(|task| scope.has(task, observation));
            self.tasks.extend(theirs.map(|task| (task.id, Member::of(task, observation))));
            self.by_name |= scope.reads_names();
            self.scopes.push(scope.clone());
        }
    }

    /// Whether a change may be made.
    pub fn allows(&self, change: &Change) -> bool {
        match &change.target {
            Target::Task(id) => self.has_task(*id),
            Target::Group(group) if self.has_group(group) => true,
            Target::Group(group) => match change.knob() {
                Knob::Weight => self.is_ancestor(group),
                Knob::RtRuntime => self.realtime.contains(group),
                Knob::Quota => self.services.contains(group),
                _ => false,
            },
            // A scope names tasks; the network's settings are the user's own (`evenkeel net`).
            Target::Net(_) => false,
            Target::Host => self.host,
        }
    }

    /// Whether a task belongs to the scope.
    pub fn has_task(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    /// Whether a cgroup holds the scope's tasks and no others.
    pub fn has_group(&self, group: &GroupRef) -> bool {
        self.groups.contains_key(group)
    }

    /// Whether a cgroup holds others, too, and has its weight changed where a promise needs it.
    pub fn is_ancestor(&self, group: &GroupRef) -> bool {
        self.ancestors.contains(group)
    }

    /// What may be done to a cgroup for a promise.
    pub fn reach(&self, group: &GroupRef) -> Reach {
        if self.has_group(group) {
            Reach::Own
        } else if self.is_ancestor(group) {
            Reach::Ancestor
        } else {
            Reach::Outside
        }
    }

    pub fn ancestors(&self) -> impl Iterator<Item = &GroupRef> {
        self.ancestors.iter()
    }

    /// Tasks that are not, or not known to be, where they were seen.
    fn left<K: Kernel>(&self, kernel: &mut K, ids: impl Iterator<Item = TaskId>) -> HashSet<TaskId> {
        let ids: HashSet<TaskId> = ids.filter(|id| self.has_task(*id)).collect();
        ids.into_iter()
            .filter(|id| {
                // One that is gone, or cannot be looked at, is the actuator's to judge.
                let Ok(facts) = kernel.identity(id.tid) else { return false };
                facts.id == *id && !self.is_in_place(*id, &facts.cgroup, &facts.comm)
            })
            .collect()
    }

    fn is_in_place(&self, id: TaskId, cgroup: &str, comm: &str) -> bool {
        let Some(member) = self.tasks.get(&id) else { return false };
        if self.by_name && member.comm != comm {
            return false;
        }
        let Some(group) = &member.group else { return true };
        // Nothing is known where it cannot be read.
        let Ok(places) = cgroup::parse(cgroup) else { return true };
        let path = match &self.cpu {
            Some(cpu) => {
                let path = if cpu.v2 { places.v2() } else { places.v1("cpu") };
                path.map(|path| cpu.below(path))
            }
            None => places.v1("cpu").or(places.v2()),
        };
        let Some(path) = path else { return true };
        let below = path.strip_prefix(group.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'));
        // On v2 a task may be below the group of the controller that it was seen in.
        let v2_below = self.cpu.as_ref().is_some_and(|cpu| cpu.v2)
            && below
            && !self.scopes.iter().any(|scope| scope.excludes_path(path));
        path == group || v2_below
    }
}

/// A group of an observation; `None` for the root, which has nothing to be changed.
fn reference(observation: &Observation, index: u32) -> Option<GroupRef> {
    let group = observation.groups.get(index as usize)?;
    group.parent?;
    Some(group.reference())
}

/// For each group whether only tasks that are `mine` are at or below it; who is never changed does not count.
pub(crate) fn own_groups(observation: &Observation, mine: impl Fn(&TaskView) -> bool) -> Vec<bool> {
    observation.groups_of(|task| {
        let aside = task.kernel_thread || is_own(task);
        (!aside).then(|| mine(task))
    })
}

/// Cgroups that hold only tasks that are `mine`, and together all that are in such ones: the one that is `named`, or the innermost that
/// hold them. Further up, others may come and go between two looks. The root is none of them.
pub(crate) fn own_tops(
    observation: &Observation,
    mine: impl Fn(&TaskView) -> bool,
    named: Option<u32>,
) -> Vec<u32> {
    let own = own_groups(observation, &mine);
    let parent = |at: u32| observation.groups.get(at as usize).and_then(|group| group.parent);
    let is_own = |at: &u32| own.get(*at as usize) == Some(&true) && parent(*at).is_some();
    let groups: BTreeSet<u32> =
        observation.tasks.iter().filter(|task| mine(task)).filter_map(|task| task.group).collect();
    // By the highest of them, the way down to the innermost that holds all below it.
    let mut ways: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for group in groups {
        let mut way: Vec<u32> = observation.path_to_root(group).take_while(is_own).collect();
        way.reverse();
        let Some(highest) = way.first() else { continue };
        let common = ways.entry(*highest).or_insert_with(|| way.clone());
        common.truncate(common.iter().zip(&way).take_while(|(a, b)| a == b).count());
    }
    let chosen = |way: Vec<u32>| named.filter(|at| way.contains(at)).or(way.last().copied());
    ways.into_values().filter_map(chosen).collect()
}

/// Of the CPU that a scope's own cgroups used, the share that no process used that is still there; `None` where that is not known, or
/// hardly any was used.
pub(crate) fn unseen_share(
    observation: &Observation,
    mine: impl Fn(&TaskView) -> bool,
    named: Option<u32>,
) -> Option<f64> {
    let tops = own_tops(observation, mine, named);
    let cpu_pct = |at: &u32| observation.groups.get(*at as usize)?.cpu_pct;
    let used = tops.iter().map(cpu_pct).sum::<Option<f64>>().filter(|used| *used >= LEAST_USED_PCT)?;
    let seen: f64 = tops.iter().flat_map(|top| observation.tasks_in(*top)).map(|task| task.cpu_pct).sum();
    Some((1.0 - seen / used).max(0.0))
}

fn tasks_of(changes: &[Change]) -> impl Iterator<Item = TaskId> + '_ {
    changes.iter().filter_map(|change| match &change.target {
        Target::Task(id) => Some(*id),
        Target::Group(_) | Target::Net(_) | Target::Host => None,
    })
}

/// Makes the host what was found plus this plan, within the bounds.
pub(crate) fn set<K: Kernel>(actuator: &mut Actuator<K>, plan: &Plan, bounds: &Bounds) -> SetReport {
    let left = bounds.left(actuator.kernel(), tasks_of(&plan.changes));
    actuator.set(plan, &|change| bounds.allows(change) && !is_of(change, &left))
}

/// Makes these changes on top of what is in force, within the bounds. Weights of cgroups that are idle by a plan wait for its end.
pub(crate) fn amend<K: Kernel>(actuator: &mut Actuator<K>, changes: &[Change], bounds: &Bounds) -> SetReport {
    let left = bounds.left(actuator.kernel(), tasks_of(changes));
    let idle = |target: &Target| {
        actuator.touched().any(|(of, _, ours)| of == target && ours == Some(&Setting::GroupIdle(true)))
    };
    let waits = |change: &Change| change.knob() == Knob::Weight && idle(&change.target);
    let changes: Vec<Change> = changes.iter().filter(|change| !waits(change)).cloned().collect();
    actuator.amend(&changes, &|change| bounds.allows(change) && !is_of(change, &left))
}

fn is_of(change: &Change, tasks: &HashSet<TaskId>) -> bool {
    matches!(&change.target, Target::Task(id) if tasks.contains(id))
}

#[cfg(test)]
#[path = "bounds_tests.rs"]
mod tests;
