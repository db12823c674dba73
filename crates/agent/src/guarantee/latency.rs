//! Promised waits: whose are counted one by one, and where the counts go.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::{Observation, TaskView};

use super::keeper::Keeper;
use super::state::{GuaranteeState, Waits};
use crate::runqlat_probe::{MOST, RunqLatProbe};

/// What counts the waits of promises of short waits, each of which has a scope by its name.
#[derive(Debug, Default)]
pub(super) struct RunqLatProbes {
    /// `None` while no such promise is there.
    probe: Option<RunqLatProbe>,
    scopes: BTreeMap<String, usize>,
}

impl RunqLatProbes {
    /// These promises are there now. Those beyond [`MOST`] have no scope. Gives what people are to be told.
    fn renew(&mut self, names: &BTreeSet<&str>) -> Option<String> {
        let gone: Vec<String> =
            self.scopes.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
        for name in gone {
            if let (Some(probe), Some(scope)) = (&mut self.probe, self.scopes.remove(&name)) {
                probe.follow(scope, std::iter::empty(), false);
            }
        }
        for name in names.iter().filter(|name| !self.scopes.contains_key(**name)).collect::<Vec<_>>() {
            let taken: BTreeSet<usize> = self.scopes.values().copied().collect();
            let Some(free) = (0..MOST).find(|scope| !taken.contains(scope)) else { break };
            self.scopes.insert((*name).to_owned(), free);
        }
        if names.is_empty() {
            self.probe = None;
            return None;
        }
        if self.probe.is_some() {
            return None;
        }
        note(self.probe.insert(RunqLatProbe::start()))
    }
}

fn note(probe: &RunqLatProbe) -> Option<String> {
    Some(format!("guarantees: waits are {}", probe.caveat()?))
}

impl Keeper {
    /// Hands out what was counted since the last observation, and follows who is there now. Promises beyond [`MOST`], and
    /// all where programs in the kernel cannot be had, keep the estimate from counters.
    pub fn count_waits(&mut self, observation: &Observation) {
        let promising = |guarantee: &GuaranteeState| guarantee.stated.promise.wait_p99_ns.is_some();
        let names: BTreeSet<&str> = self
            .guarantees
            .iter()
            .filter(|guarantee| promising(guarantee))
            .map(|guarantee| guarantee.stated.name.as_str())
            .collect();
        self.messages.notes.extend(self.probes.renew(&names));
        let RunqLatProbes { probe: Some(probe), scopes } = &mut self.probes else { return };
        let exact_before = probe.problem().is_none();
        let waits = probe.take(true);
        if exact_before {
            self.messages.notes.extend(note(probe));
        }
        for (index, guarantee) in self.guarantees.iter_mut().enumerate().filter(|(_, g)| promising(g)) {
            let Some(scope) = scopes.get(&guarantee.stated.name) else { continue };
            let owner = &self.layout.owner;
            let owned = |task: &&TaskView| owner.get(&task.id) == Some(&index);
            let mine: BTreeSet<u32> =
                observation.tasks.iter().filter(owned).map(|task| task.id.tgid).collect();
            let whole =
                observation.tasks.iter().filter(|task| mine.contains(&task.id.tgid)).all(|task| owned(&task));
            if probe.problem().is_some() || !whole {
                // Processes are counted as a whole: for a part of their threads, what counters say of each tick is all there
                // is.
                if !guarantee.waits.is_estimated() {
                    guarantee.waits = Waits::default();
                }
                probe.follow(*scope, std::iter::empty(), false);
                continue;
            }
            if let Some(waits) = &waits {
                let mine = waits.get(scope).cloned().unwrap_or_default();
                guarantee.waits.add_exact(observation.interval_s, mine);
            }
            // A child may belong to another promise.
            probe.follow(*scope, observation.tasks.iter().filter(owned), false);
        }
    }
}
