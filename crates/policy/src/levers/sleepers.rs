//! Short slices for groups that sleep between short pieces of work and lose their turn, or take others'.
//!
//! A group that is owed time takes that lag along when it sleeps, up to two slices of it (`update_entity_lag`, `PLACE_LAG`).
//! Two that work in pieces of microseconds and wake each other always come back with all of it, and the queue's average
//! virtual time stands still for everybody else. With the shortest slice there is next to nothing to take along. Where tasks
//! have no slice of their own, more weight does at times: docs/tenants.md, "Groups that lose their turn".

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::sched::STARVED_LIFT;
use evenkeel_base::{Change, GroupRef, Plan, SchedAttr, SchedPolicy, Setting, Target, TaskView};

use super::weights::rounded;
use super::{Lever, MIN_SLICE_NS, Scene};
use evenkeel_audit::fair;

/// Name of the lever, and the beginning of the names of plans that do more.
pub const SLEEPERS: &str = "sleepers";

/// Sleeps a second of a group's tasks from which it counts as one that mostly sleeps.
const SLEEPS_PER_S: f64 = 20.0;

/// Tasks of the scope's groups that lost their turn, or mostly sleep and wait longer than they work, get the shortest slice;
/// on kernels without slices of a task's own the groups weigh [`STARVED_LIFT`] times as much.
pub struct Sleepers;

/// Whether a plan gives groups their turn.
pub fn gives_turns(plan: &Plan) -> bool {
    plan.name.split('+').next() == Some(SLEEPERS)
}

impl Lever for Sleepers {
    fn name(&self) -> &'static str {
        SLEEPERS
    }

    fn why(&self) -> &'static str {
        "who works in short pieces and sleeps in between keeps its turn, and no other's"
    }

    fn propose(&self, scene: &Scene<'_>) -> Option<Vec<Change>> {
        let observation = scene.observation;
        let due = fair::due_pct(observation, &BTreeMap::new()).unwrap_or_default();
        let lost: BTreeSet<u32> = fair::lost_turn(observation, &due).iter().map(|one| one.group).collect();
        let mut changes = Vec::new();
        for (index, group) in (0u32..).zip(&observation.groups) {
            if group.parent.is_none() || scene.own.get(index as usize) != Some(&true) {
                continue;
            }
            let members: Vec<&TaskView> =
                observation.tasks.iter().filter(|task| task.group == Some(index)).collect();
            let sum =
                |of: &dyn Fn(&TaskView) -> Option<f64>| -> f64 { members.iter().filter_map(|t| of(t)).sum() };
            let (got, waited) = (sum(&|t| Some(t.cpu_pct)), sum(&|t| t.wait_pct));
            let short_pieces = sum(&|t| t.voluntary_per_s) >= SLEEPS_PER_S && waited >= got;
            if !lost.contains(&index) && !short_pieces {
                continue;
            }
            let why =
                format!("its group works {got:.0} % and waits {waited:.0} % of one CPU in short pieces");
            if scene.features.task_slice {
                changes.extend(members.iter().filter_map(|task| shortest_slice(task, &why)));
            } else if let Some(raw) = group.raw_weight {
                let to = rounded(group, raw.saturating_mul(STARVED_LIFT) as f64);
                let target = Target::Group(GroupRef { path: group.path.clone(), v2: group.v2 });
                changes.extend((to != raw).then_some(Change { target, to: Setting::Weight(to), why }));
            }
        }
        (!changes.is_empty()).then_some(changes)
    }
}

fn shortest_slice(task: &TaskView, why: &str) -> Option<Change> {
    let found = task.sched.filter(|attr| attr.policy.is_fair() && attr.policy != SchedPolicy::Idle)?;
    let attr = SchedAttr { slice_ns: Some(MIN_SLICE_NS), ..found };
    (attr != found).then(|| Change {
        target: Target::Task(task.id),
        to: Setting::Sched(attr),
        why: why.to_owned(),
    })
}
