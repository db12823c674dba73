//! Who is promised what, and what of it fits.

use std::collections::BTreeMap;
use std::time::Instant;

use evenkeel_base::{CpuSet, Observation};
use evenkeel_policy::guarantee::Admission;
use evenkeel_policy::guarantee::admit::{Ask, Supply};

use super::keeper::Keeper;
use super::solver::left_for;

/// Weight of the newest observation in smoothed values.
const NEWEST: f64 = 0.5;

impl Keeper {
    /// The promise of each task: the first whose scope it matches. Updates what tasks would use.
    pub(super) fn match_tasks(&mut self, observation: &Observation, now: Instant) -> Vec<Option<usize>> {
        let mut counts = vec![0u32; self.wards.len()];
        let mut seen = BTreeMap::new();
        let owner: Vec<Option<usize>> = observation
            .tasks
            .iter()
            .map(|task| {
                let ward = self.wards.iter().position(|ward| self.is_about(ward, task, observation))?;
                counts[ward] += 1;
                seen.insert(task.id, ward);
                let pct = (task.cpu_pct + task.wait_pct.unwrap_or(0.0)).min(100.0);
                let demand = self.demand.entry(task.id).or_insert(pct);
                *demand += NEWEST * (pct - *demand);
                Some(ward)
            })
            .collect();
        for (id, ward) in &seen {
            if !self.seen.is_empty() && !self.seen.contains_key(id) && self.wards[*ward].tasks > 0 {
                self.born.insert(*ward, now);
            }
        }
        self.demand.retain(|id, _| seen.contains_key(id));
        self.seen = seen;
        for (ward, count) in self.wards.iter_mut().zip(counts) {
            if count == 0 && (ward.tasks > 0 || ward.lever.is_empty()) {
                if ward.tasks > 0 || self.told.insert(format!("waiting {}", ward.goal.name)) {
                    let note = format!(
                        "guarantee {}: no task matches its scope; it stands for when one does",
                        ward.goal.name
                    );
                    self.notes.push(note);
                }
                ward.forget();
            }
            ward.tasks = count;
            ward.pct = ward.goal.promise.cpu.map(|amount| amount.pct(observation.host.cpus));
        }
        owner
    }

    /// What CPUs can give, stolen time smoothed.
    pub(super) fn supply(&mut self, observation: &Observation) -> Supply {
        let cpus = observation.host.per_cpu.iter();
        for cpu in cpus {
            let new = cpu.steal_pct.unwrap_or(0.0).clamp(0.0, 100.0);
            let stolen = self.stolen.entry(cpu.cpu).or_insert(new);
            *stolen += 0.1 * (new - *stolen);
        }
        let stolen = |cpu: u32| self.stolen.get(&cpu).copied().filter(|pct| *pct >= 0.5).unwrap_or(0.0);
        Supply {
            cpus: observation.topology.online.iter().map(|cpu| (cpu, 100.0 - stolen(cpu))).collect(),
            reserved_pct: self.config.reserved.map_or(0.0, |amount| amount.pct(observation.host.cpus)),
        }
    }

    pub(super) fn admit(
        &mut self,
        observation: &Observation,
        owner: &[Option<usize>],
        cpus: &[CpuSet],
        supply: &Supply,
    ) {
        let mut sets = vec![CpuSet::new(); self.wards.len()];
        for (owner, cpus) in owner.iter().zip(cpus) {
            if let Some(ward) = owner {
                sets[*ward] = sets[*ward].union(cpus);
            }
        }
        let asking: Vec<usize> = (0..self.wards.len()).filter(|&i| self.wards[i].pct.is_some()).collect();
        let asks: Vec<Ask> = asking
            .iter()
            .map(|&i| Ask {
                name: self.wards[i].goal.name.clone(),
                pct: self.wards[i].pct.unwrap_or(0.0),
                // One who waits for its tasks may come anywhere.
                cpus: if sets[i].is_empty() { observation.topology.online.clone() } else { sets[i].clone() },
                priority: self.wards[i].goal.promise.priority,
            })
            .collect();
        let answers = self.admissions.decide(&asks, supply, &|admitted, ask, promisable| {
            left_for(&observation.topology, admitted, ask, promisable)
        });
        for ((&index, ask), answer) in asking.iter().zip(&asks).zip(&answers) {
            let refusal = answer.refusal(ask);
            let ward = &mut self.wards[index];
            if let Some(refusal) = &refusal
                && ward.refusal.is_none()
            {
                let evicted =
                    matches!(answer, Admission::Refused { gives_way_to, .. } if !gives_way_to.is_empty());
                let what = if evicted { "evicted" } else { "refused" };
                self.notes.push(format!("guarantee {}: {what}: it {refusal}", ward.goal.name));
            } else if refusal.is_none() && ward.refusal.is_some() {
                self.notes.push(format!("guarantee {}: restored: it fits now", ward.goal.name));
            }
            ward.refusal = refusal;
        }
    }
}
