//! More weight for groups that sleep between short pieces of work and lose their turn to groups that never sleep.

use evenkeel_base::sched::STARVED_LIFT;
use evenkeel_base::{Change, GroupRef, Setting, Target};

use super::weights::rounded;
use super::{Lever, Scene};

/// Sleeps a second of a group's tasks from which it counts as one that mostly sleeps.
const SLEEPS_PER_S: f64 = 20.0;

/// Groups of the scope that mostly sleep and wait longer than they work weigh [`STARVED_LIFT`] times as much.
pub struct Sleepers;

impl Lever for Sleepers {
    fn name(&self) -> &'static str {
        "sleepers"
    }

    fn why(&self) -> &'static str {
        "cgroups that work in short pieces and wait longer than they work weigh more, so that they keep their turn"
    }

    fn propose(&self, scene: &Scene<'_>) -> Option<Vec<Change>> {
        let mut changes = Vec::new();
        for (index, members) in scene.by_group() {
            let Some(group) = scene.observation.groups.get(index as usize) else { continue };
            let Some(raw) = group.raw_weight.filter(|_| group.parent.is_some()) else { continue };
            let sum = |of: &dyn Fn(&evenkeel_base::TaskView) -> Option<f64>| -> f64 {
                members.iter().filter_map(|at| of(scene.tasks.get(*at)?.task)).sum()
            };
            let (got, waited) = (sum(&|t| Some(t.cpu_pct)), sum(&|t| t.wait_pct));
            let starves = sum(&|t| t.voluntary_per_s) >= SLEEPS_PER_S && waited >= got;
            let to = rounded(group, raw.saturating_mul(STARVED_LIFT) as f64);
            if starves && scene.own.get(index as usize) == Some(&true) && to != raw {
                changes.push(Change {
                    target: Target::Group(GroupRef { path: group.path.clone(), v2: group.v2 }),
                    to: Setting::Weight(to),
                    why: format!("works {got:.0} % and waits {waited:.0} % of one CPU in short pieces"),
                });
            }
        }
        (!changes.is_empty()).then_some(changes)
    }
}
