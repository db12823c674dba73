//! Promised waits: whose are counted one by one, and where the counts go.

use std::collections::BTreeMap;

use evenkeel_base::Observation;

use super::keeper::Keeper;
use super::ward::Waits;
use crate::meter::Meter;

/// Promises whose waits are counted one by one: each has programs of its own in the kernel.
const MOST: usize = 8;

/// What counts the waits of each promise of short waits, by its name.
pub(super) type Meters = BTreeMap<String, Meter>;

impl Keeper {
    /// Hands out what was counted since the last observation, and follows who is there now. Promises beyond [`MOST`], and
    /// all where programs in the kernel cannot be had, keep the estimate from counters.
    pub fn count_waits(&mut self, observation: &Observation) {
        let promised = |name: &String| {
            self.wards.iter().any(|w| w.goal.name == *name && w.goal.promise.wait_p99_ns.is_some())
        };
        self.meters.retain(|name, _| promised(name));
        for ward in self.wards.iter_mut().filter(|ward| ward.goal.promise.wait_p99_ns.is_some()) {
            let name = &ward.goal.name;
            if !self.meters.contains_key(name) {
                if self.meters.len() == MOST {
                    continue;
                }
                let meter = Meter::start();
                if let Some(why) = meter.problem() {
                    self.notes.push(format!(
                        "guarantee {name}: its waits are means for each switch from /proc, less than a 99th percentile: {why}"
                    ));
                }
                self.meters.insert(name.clone(), meter);
            }
            let Some(meter) = self.meters.get_mut(name) else { continue };
            match meter.take() {
                Some(waits) if meter.problem().is_none() => ward.waits.add_exact(waits),
                // The ticks say as much as counters can.
                _ if ward.waits.is_estimated() => continue,
                _ => ward.waits = Waits::default(),
            }
            meter.follow(observation.tasks.iter().filter(|task| ward.goal.scope.has(task, observation)));
        }
    }
}
