//! Promised waits: whose are counted one by one, and where the counts go.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::{Observation, TaskView};

use super::keeper::Keeper;
use super::state::{GuaranteeState, Waits};
use crate::runqlat_probe::RunqLatProbe;

/// Promises whose waits are counted one by one: each has programs of its own in the kernel.
const MOST: usize = 8;

/// What counts the waits of each promise of short waits, by its name.
pub(super) type RunqLatProbes = BTreeMap<String, RunqLatProbe>;

fn note(name: &str, meter: &RunqLatProbe) -> Option<String> {
    Some(format!("guarantee {name}: its waits are {}", meter.caveat()?))
}

impl Keeper {
    /// Hands out what was counted since the last observation, and follows who is there now. Promises beyond [`MOST`], and
    /// all where programs in the kernel cannot be had, keep the estimate from counters.
    pub fn count_waits(&mut self, observation: &Observation) {
        let promised = |name: &String| {
            self.guarantees.iter().any(|w| w.stated.name == *name && w.stated.promise.wait_p99_ns.is_some())
        };
        self.probes.retain(|name, _| promised(name));
        let promising =
            |(_, guarantee): &(usize, &mut GuaranteeState)| guarantee.stated.promise.wait_p99_ns.is_some();
        for (index, guarantee) in self.guarantees.iter_mut().enumerate().filter(promising) {
            let name = &guarantee.stated.name;
            if !self.probes.contains_key(name) {
                if self.probes.len() == MOST {
                    continue;
                }
                let meter = RunqLatProbe::start();
                self.messages.notes.extend(note(name, &meter));
                self.probes.insert(name.clone(), meter);
            }
            let Some(meter) = self.probes.get_mut(name) else { continue };
            let owner = &self.layout.owner;
            let owned = |task: &&TaskView| owner.get(&task.id) == Some(&index);
            let mine: BTreeSet<u32> =
                observation.tasks.iter().filter(owned).map(|task| task.id.tgid).collect();
            let whole =
                observation.tasks.iter().filter(|task| mine.contains(&task.id.tgid)).all(|task| owned(&task));
            if meter.problem().is_some() || !whole {
                // Processes are counted as a whole: for a part of their threads, what counters say of each tick is all there
                // is.
                if !guarantee.waits.is_estimated() {
                    guarantee.waits = Waits::default();
                }
                continue;
            }
            if let Some(waits) = meter.take() {
                guarantee.waits.add_exact(observation.interval_s, waits);
            }
            meter.follow(observation.tasks.iter().filter(owned));
            self.messages.notes.extend(note(name, meter));
        }
    }
}
