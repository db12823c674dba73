//! Who is promised what, and what of it fits.

use std::collections::BTreeMap;
use std::time::Instant;

use evenkeel_base::{CpuSet, Observation};
use evenkeel_policy::guarantee::Admission;
use evenkeel_policy::guarantee::admit::{AdmissionRequest, Supply};
use evenkeel_policy::guarantee::verdict::TOLERANCE_PCT;

use super::keeper::Keeper;
use super::solver::left_for;

/// Cgroups whose quotas are named in one message.
const MOST_NAMED: usize = 3;
/// Weight of the newest observation in smoothed values.
const NEWEST: f64 = 0.5;

impl Keeper {
    /// The promise of each task: the first whose scope it matches. Updates what tasks would use.
    pub(super) fn match_tasks(&mut self, observation: &Observation, now: Instant) -> Vec<Option<usize>> {
        let mut counts = vec![0u32; self.guarantees.len()];
        let mut seen = BTreeMap::new();
        let owner: Vec<Option<usize>> = observation
            .tasks
            .iter()
            .map(|task| {
                let guarantee = self
                    .guarantees
                    .iter()
                    .position(|guarantee| self.is_about(guarantee, task, observation))?;
                counts[guarantee] += 1;
                seen.insert(task.id, guarantee);
                let pct = (task.cpu_pct + task.wait_pct.unwrap_or(0.0)).min(100.0);
                let demand = self.observed.demand.entry(task.id).or_insert(pct);
                *demand += NEWEST * (pct - *demand);
                Some(guarantee)
            })
            .collect();
        for (id, guarantee) in &seen {
            if !self.observed.seen.is_empty()
                && !self.observed.seen.contains_key(id)
                && self.guarantees[*guarantee].tasks > 0
            {
                self.observed.born.insert(*guarantee, now);
            }
        }
        self.observed.demand.retain(|id, _| seen.contains_key(id));
        self.observed.seen = seen;
        let behind: Vec<Option<String>> =
            (0..counts.len()).map(|index| self.behind(index, counts[index], observation, &owner)).collect();
        for ((guarantee, count), behind) in self.guarantees.iter_mut().zip(counts).zip(behind) {
            guarantee.behind = behind;
            if count == 0 && (guarantee.tasks > 0 || guarantee.lever.is_empty()) {
                if guarantee.tasks > 0 || self.messages.is_new(&format!("waiting {}", guarantee.stated.name))
                {
                    let note = format!("guarantee {}: {}", guarantee.stated.name, guarantee.waits_for());
                    self.messages.notes.push(note);
                }
                guarantee.forget();
            }
            guarantee.tasks = count;
            guarantee.pct = guarantee.stated.promise.cpu.map(|amount| amount.pct(observation.host.cpus));
        }
        owner
    }

    /// For a promise without tasks: another that has tasks of its scope.
    fn behind(
        &self,
        index: usize,
        count: u32,
        observation: &Observation,
        owner: &[Option<usize>],
    ) -> Option<String> {
        let guarantee = self.guarantees.get(index).filter(|_| count == 0)?;
        let mut owned = observation.tasks.iter().zip(owner).filter(|(_, owner)| owner.is_some());
        let (_, first) = owned.find(|(task, _)| self.is_about(guarantee, task, observation))?;
        Some(self.guarantees.get((*first)?)?.stated.name.clone())
    }

    /// What quotas allow the tasks of a promise together, percent, if that is less than promised, so that no weight helps; and so in
    /// words.
    fn limited(
        &self,
        index: usize,
        observation: &Observation,
        owner: &[Option<usize>],
    ) -> Option<(f64, String)> {
        let asked = self.guarantees[index].pct?;
        // What each cgroup passes on, and whose quotas say so. Those below one come after it, so the last has all of its own.
        let mut open: BTreeMap<u32, (f64, Vec<u32>)> = BTreeMap::new();
        for (task, _) in observation.tasks.iter().zip(owner).filter(|(_, owner)| **owner == Some(index)) {
            open.insert(task.group?, (f64::INFINITY, Vec::new()));
        }
        let (mut all, mut whose) = (0.0, Vec::new());
        while let Some((at, (mut allowed, mut by))) = open.pop_last() {
            let group = observation.groups.get(at as usize)?;
            let quota = group.quota.and_then(|quota| quota.pct());
            if let Some(quota) = quota.filter(|quota| *quota < allowed) {
                (allowed, by) = (quota, vec![at]);
            }
            let (sum, of) = match observation.path_to_root(at).nth(1) {
                Some(parent) => {
                    let (sum, of) = open.entry(parent).or_default();
                    (sum, of)
                }
                None => (&mut all, &mut whose),
            };
            *sum += allowed;
            of.extend(by);
        }
        let path = |at: &u32| Some(observation.groups.get(*at as usize)?.path.as_str());
        let mut paths = whose.iter().filter_map(path).take(MOST_NAMED).collect::<Vec<_>>().join(", ");
        let more = whose.len().saturating_sub(MOST_NAMED);
        if more > 0 {
            paths += &format!(" and {more} more");
        }
        let (quotas, allow) = if whose.len() == 1 { ("quota", "allows") } else { ("quotas", "allow") };
        let why =
            format!("asks {asked:.0}, but the {quotas} of {paths} {allow} {all:.0} (percent of one CPU)");
        (!whose.is_empty() && all + TOLERANCE_PCT < asked).then_some((all, why))
    }

    /// What CPUs can give, stolen time smoothed.
    pub(super) fn supply(&mut self, observation: &Observation) -> Supply {
        let cpus = observation.host.per_cpu.iter();
        for cpu in cpus {
            let new = cpu.steal_pct.unwrap_or(0.0).clamp(0.0, 100.0);
            let stolen = self.observed.stolen.entry(cpu.cpu).or_insert(new);
            *stolen += 0.1 * (new - *stolen);
        }
        let stolen =
            |cpu: u32| self.observed.stolen.get(&cpu).copied().filter(|pct| *pct >= 0.5).unwrap_or(0.0);
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
        let mut sets = vec![CpuSet::new(); self.guarantees.len()];
        for (owner, cpus) in owner.iter().zip(cpus) {
            if let Some(guarantee) = owner {
                sets[*guarantee] = sets[*guarantee].union(cpus);
            }
        }
        let asking: Vec<usize> =
            (0..self.guarantees.len()).filter(|&i| self.guarantees[i].pct.is_some()).collect();
        let limits: BTreeMap<String, (f64, String)> = asking
            .iter()
            .filter_map(|&i| {
                let limit = self.limited(i, observation, owner)?;
                Some((self.guarantees[i].stated.name.clone(), limit))
            })
            .collect();
        let asks: Vec<AdmissionRequest> = asking
            .iter()
            .map(|&i| AdmissionRequest {
                name: self.guarantees[i].stated.name.clone(),
                pct: self.guarantees[i].pct.unwrap_or(0.0),
                // One who waits for its tasks may come anywhere.
                cpus: if sets[i].is_empty() { observation.topology.online.clone() } else { sets[i].clone() },
                priority: self.guarantees[i].stated.promise.priority,
            })
            .collect();
        let answers = self.observed.admissions.decide(&asks, supply, &|admitted, ask, promisable| {
            let left = left_for(&observation.topology, admitted, ask, promisable);
            limits.get(&ask.name).map_or(left, |(allowed, _)| left.min(*allowed))
        });
        for ((&index, ask), answer) in asking.iter().zip(&asks).zip(&answers) {
            let evicted =
                matches!(answer, Admission::Refused { gives_way_to, .. } if !gives_way_to.is_empty());
            let what = if evicted { "evicted" } else { "refused" };
            let limit = limits.get(&ask.name).map(|(_, why)| why.clone());
            let refusal = limit.or_else(|| answer.refusal(ask));
            let guarantee = &mut self.guarantees[index];
            if let Some(refusal) = &refusal
                && guarantee.refusal.is_none()
            {
                self.messages
                    .notes
                    .push(format!("guarantee {}: {what}: it {refusal}", guarantee.stated.name));
            } else if refusal.is_none() && guarantee.refusal.is_some() {
                self.messages
                    .notes
                    .push(format!("guarantee {}: restored: it fits now", guarantee.stated.name));
            }
            guarantee.refusal = refusal;
        }
    }
}
