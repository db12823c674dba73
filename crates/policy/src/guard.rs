//! The guard: a candidate must be shown to hurt no one, with the burden of proof on the candidate.
//!
//! Everyone who is guarded has limits on what he may lose. Each limit must be shown to be kept at its own error probability;
//! since *all* must be shown, no correction is made for their number (an intersection-union test: the chance that a
//! candidate passes which breaks any one limit is at most that limit's own error probability). What cannot be shown in the
//! time is reported, and the candidate is not kept.
//!
//! Questions are asked of fresh pairs of windows, one under the baseline and one under the candidate, whose order a coin
//! decides. Had somebody lost exactly what he may lose, then what he got under the candidate, less `1 - loss` times what he
//! got under the baseline, would be as likely positive as negative whatever its size ([`flips`]; the probability of an error
//! holds for all looks together). That harm is shown is found by [`SignBets`], which hold whenever one stops. CPU is judged
//! by the CPU got, by the CPU got of the time in which he was runnable, or by how much longer he waits, whichever shows most: who
//! loses CPU to a setting was runnable meanwhile, so that a loss shows in all, but the last two vary less with what he happens to want.
//!
//! [`flips`]: evenkeel_base::stats::flips
//! [`SignBets`]: evenkeel_base::stats::SignBets

mod tail;
mod track;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::TaskId;
use serde::{Deserialize, Serialize};

use crate::window::{Owner, Rates, Summary};
pub use tail::Tail;
pub(crate) use tail::{Counts, FLOOR_NS, Question, TAIL, p99_ns, sum};
pub use track::Open;
use track::Track;

evenkeel_base::defaults! {
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuardLimits {
    /// Share of its CPU that a task of the scope may lose (0.10 is a tenth).
    pub cpu_loss: f64 = 0.10,
    /// Factor by which its wait per unit of work may grow.
    pub wait_factor: f64 = 1.5,
    /// Share of its CPU that a container, virtual machine or top-level cgroup outside the scope may lose.
    pub outside_cpu_loss: f64 = 0.05,
    /// Share of waits that may be longer than the baseline's 99th percentile, of who is outside the scope, or a service.
    pub tail_share: f64 = 0.025,
    /// Who uses less CPU than this, percent of one CPU, is judged together with the rest of its cgroup.
    pub min_cpu_pct: f64 = 1.0,
    /// So is who waits less often than this while a candidate is confirmed.
    pub min_waits: f64 = 200.0,
    /// Waits below this many seconds per second of work are not told apart from none: twice nothing is nothing.
    pub wait_floor: f64 = 0.02,
    /// Error probability of each question.
    pub alpha: f64 = 0.05,
}
}

/// Times the limit.
const SEEMS: f64 = 1.3;

impl GuardLimits {
    /// Longest wait per unit of work that is allowed to who waited so long before.
    pub fn longest_wait(&self, before: f64) -> f64 {
        self.wait_factor * before.max(self.wait_floor)
    }

    /// Whether a wait per unit of work is so long that somebody seems to be hurt, whatever else is tried: no proof, but a reason to
    /// try others first. A few windows are wrong by a quarter more often than not.
    fn seems_to_hurt(&self, before: f64, after: f64) -> bool {
        after > SEEMS * self.longest_wait(before)
    }

    /// The same of a doubt. Of CPU that somebody does not get the estimate says little, for he may want less.
    pub(crate) fn is_beyond(&self, doubt: &Doubt) -> bool {
        let Doubt { before, after, .. } = *doubt;
        let more = if doubt.subject == Subject::Rest { self.min_cpu_pct / 100.0 } else { 0.0 };
        match doubt.harm {
            Harm::Cpu => false,
            Harm::Wait => self.seems_to_hurt(before, after - more),
            Harm::Tail => after > self.tail_share && after > before * self.tail_share / TAIL,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A task of the scope.
    Task(TaskId),
    /// Tasks of the scope that are small or wait rarely, of one owner, or of all whose tasks do so rarely even together.
    Pool(Option<Owner>),
    /// A container, virtual machine or top-level cgroup outside the scope.
    Outside(Owner),
    /// What is small outside the scope, together: it may lose [`GuardLimits::min_cpu_pct`] more, and wait so much longer.
    Rest,
    /// A scope that is protected by name.
    Protected(String),
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Task(id) => write!(f, "task {id}"),
            Self::Pool(Some(owner)) => write!(f, "what is small or waits rarely in {owner}"),
            Self::Pool(None) => write!(f, "what is small or waits rarely in the scope"),
            Self::Outside(owner) => write!(f, "{owner}, outside the scope,"),
            Self::Rest => write!(f, "the rest of the host"),
            Self::Protected(name) => write!(f, "{name}, which is protected,"),
        }
    }
}

/// In what way somebody may be hurt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Gets less CPU.
    Cpu,
    /// Waits longer per unit of work.
    Wait,
    /// More of its waits are long.
    Tail,
}

/// A limit that is not shown to be kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Doubt {
    pub subject: Subject,
    pub harm: Harm,
    /// Value under the baseline (percent of a CPU, seconds waited per second of work or, by the rest of the host, per second,
    /// share of waits; of requests a hundredth for each time that they are as many as are promised).
    pub before: f64,
    /// Value under the candidate.
    pub after: f64,
    /// The harm itself is shown, not only not excluded.
    pub proved: bool,
    /// In other words, where these say more.
    pub detail: Option<String>,
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { subject, before, after, .. } = self;
        let not = if self.proved { "" } else { "it cannot be excluded that " };
        if let Some(detail) = &self.detail {
            return write!(f, "{not}{detail}");
        }
        match self.harm {
            Harm::Cpu => write!(f, "{not}{subject} loses too much CPU: {before:.1} to {after:.1} %"),
            Harm::Wait => {
                let per = if *subject == Subject::Rest { "second" } else { "second of work" };
                write!(f, "{not}{subject} waits too long: {after:.2} instead of {before:.2} s per {per}")
            }
            Harm::Tail => write!(
                f,
                "{not}{subject} has too many long waits: {:.1} instead of {:.1} %",
                100.0 * after,
                100.0 * before
            ),
        }
    }
}

/// CPU and waits of one subject in one window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Use {
    pub got: f64,
    pub waited: Option<f64>,
}

impl Use {
    const NONE: Self = Self { got: 0.0, waited: Some(0.0) };

    /// Unknown waits make the sum's unknown.
    fn add(&mut self, other: Self) {
        self.got += other.got;
        self.waited = self.waited.zip(other.waited).map(|(a, b)| a + b);
    }

    /// Waits per unit of work; `None` where they are not known, or nothing was got.
    fn wait_per_got(&self) -> Option<f64> {
        (self.got > 0.0).then_some(self.waited? / self.got)
    }
}

/// The guard of one candidate's confirmation. Who is guarded is settled before the first fresh pair.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    limits: GuardLimits,
    /// Tasks judged each for itself.
    single: BTreeSet<TaskId>,
    /// Tasks that wait so rarely that limits are shown to be kept for their sum only, and for each by estimate.
    rare: BTreeSet<TaskId>,
    /// Owners whose tasks that are not judged each for itself wait often enough together; those of all others are one sum.
    pools: BTreeSet<Owner>,
    /// Owners outside the scope judged each for itself.
    outside: BTreeSet<Owner>,
    tracks: BTreeMap<Subject, Track>,
    tails: BTreeMap<Owner, Tail>,
}

/// Waits are counted over about this long in a confirmation, seconds; half of it is the candidate's.
const CONFIRMATION_S: f64 = 20.0;

impl Guard {
    /// A guard of whoever is seen in windows under the baseline. `tried` are windows under the candidate that are no part of the
    /// confirmation: under it a task may wait less often.
    pub fn new(limits: GuardLimits, baseline: &[Summary], tried: &[Summary]) -> Self {
        let mut guard = Self { limits, ..Self::default() };
        let n = baseline.len().max(1) as f64;
        let mut used: BTreeMap<TaskId, f64> = BTreeMap::new();
        let mut owners: BTreeMap<&Owner, f64> = BTreeMap::new();
        for (id, rates) in baseline.iter().flat_map(|s| &s.tasks) {
            if rates.in_scope {
                *used.entry(*id).or_default() += rates.got_pct / n;
            } else if let Some(owner) = &rates.owner {
                *owners.entry(owner).or_default() += rates.got_pct / n;
            }
        }
        let least_per_s = 2.0 * limits.min_waits / CONFIRMATION_S;
        let of_scope = |id: &TaskId, rates: &Rates| rates.in_scope.then_some(*id);
        let often = [baseline, tried].map(|windows| Often::new(windows, least_per_s, of_scope));
        let large = used.into_iter().filter(|(_, got)| *got >= limits.min_cpu_pct).map(|(id, _)| id);
        let (single, rare) = large.partition(|id| often.iter().all(|often| often.has(id)));
        (guard.single, guard.rare) = (single, rare);
        let pooled = |id: &TaskId, rates: &Rates| {
            rates.owner.clone().filter(|_| rates.in_scope && !guard.single.contains(id))
        };
        let often = [baseline, tried].map(|windows| Often::new(windows, least_per_s, pooled));
        let owners_of_pools = often[0].0.keys().filter(|owner| often.iter().all(|often| often.has(owner)));
        let pools: BTreeSet<Owner> = owners_of_pools.cloned().collect();
        guard.pools = pools;
        guard.outside = owners
            .into_iter()
            .filter(|(_, got)| *got >= limits.min_cpu_pct)
            .map(|(o, _)| o.clone())
            .collect();
        // Sums that are small even so are left to the monitor.
        let mut sums: BTreeMap<Subject, f64> = BTreeMap::new();
        for (subject, used) in baseline.iter().flat_map(|summary| guard.uses(summary)) {
            *sums.entry(subject).or_default() += used.got / n;
        }
        for (subject, _) in sums.into_iter().filter(|(_, got)| *got >= limits.min_cpu_pct) {
            let loss = match subject {
                Subject::Task(_) | Subject::Pool(_) => limits.cpu_loss,
                _ => limits.outside_cpu_loss,
            };
            let track = Track::new(loss, limits);
            let track = match &subject {
                Subject::Rest => track.of_the_small(limits.min_cpu_pct),
                Subject::Task(id) if guard.rare.contains(id) => track.by_estimate(),
                _ => track,
            };
            guard.tracks.insert(subject, track);
        }
        guard
    }

    /// The scope is background work, which may lose.
    pub fn exempt_scope(&mut self) {
        self.tracks.retain(|subject, _| !matches!(subject, Subject::Task(_) | Subject::Pool(_)));
    }

    /// Takes in a fresh pair of windows.
    pub fn pair(&mut self, baseline: &Summary, candidate: &Summary) {
        let (mut before, mut after) = (self.uses(baseline), self.uses(candidate));
        for (subject, track) in &mut self.tracks {
            match before.remove(subject).zip(after.remove(subject)) {
                Some((before, after)) => track.pair(before, after),
                None => track.missed(),
            }
        }
    }

    /// Takes in a window of waits by length, of which a pair is not needed.
    pub fn waits(&mut self, summary: &Summary, candidate: bool) {
        for (owner, histogram) in summary.waits.iter().filter(|(owner, _)| self.outside.contains(*owner)) {
            let tail = self.tails.entry(owner.clone()).or_insert_with(|| Tail::new(None));
            tail.add(histogram.clone(), candidate);
        }
    }

    /// Limits not shown to be kept.
    pub fn doubts(&self) -> Vec<Doubt> {
        let enough = 1.0 / self.limits.alpha;
        let questions = (2 * self.tracks.len()).max(1) as f64;
        let doubt = |subject: &Subject, harm: Harm, open: Open| Doubt {
            subject: subject.clone(),
            harm,
            before: open.before,
            after: open.after,
            proved: open.proved,
            detail: None,
        };
        let tracks = self.tracks.iter().flat_map(|(subject, track)| {
            // Whose waits are counted by length is judged by these, unless there are few, or none that they could be held against.
            let asks = |tail: &Tail| tail.waits() >= self.limits.min_waits && tail.edge_ns().is_some();
            let counted =
                matches!(subject, Subject::Outside(owner) if self.tails.get(owner).is_some_and(asks));
            let cpu = track.open_cpu(enough, questions).map(|open| doubt(subject, Harm::Cpu, open));
            let wait = track.open_wait(enough, questions).filter(|_| !counted);
            cpu.into_iter().chain(wait.map(|open| doubt(subject, Harm::Wait, open)))
        });
        let tails = self.tails.iter().filter_map(|(owner, tail)| {
            let open = tail.doubt(self.limits.tail_share, enough, self.limits.min_waits)?;
            Some(doubt(&Subject::Outside(owner.clone()), Harm::Tail, open))
        });
        tracks.chain(tails).collect()
    }

    /// Whether one of the guarded seems to be hurt by windows under the baseline and under a candidate.
    pub(crate) fn seems_to_hurt(&self, baseline: &[Summary], candidate: &[Summary]) -> bool {
        let sums = |windows: &[Summary]| {
            let mut sums: BTreeMap<Subject, Use> = BTreeMap::new();
            for (subject, used) in windows.iter().flat_map(|window| self.uses(window)) {
                sums.entry(subject).or_insert(Use::NONE).add(used);
            }
            sums
        };
        let (before, after) = (sums(baseline), sums(candidate));
        let wait = |sums: &BTreeMap<Subject, Use>, subject: &Subject| sums.get(subject)?.wait_per_got();
        // Of the small together a few windows say nothing.
        let mut single = self.tracks.keys().filter(|subject| **subject != Subject::Rest);
        single.any(|subject| {
            let waits = wait(&before, subject).zip(wait(&after, subject));
            waits.is_some_and(|(before, after)| self.limits.seems_to_hurt(before, after))
        })
    }

    /// What of the subjects was seen in a window. A task that waits rarely is one of its own and part of a sum.
    fn uses(&self, summary: &Summary) -> BTreeMap<Subject, Use> {
        let mut uses: BTreeMap<Subject, Use> = BTreeMap::new();
        for (id, rates) in &summary.tasks {
            let used = Use { got: rates.got_pct, waited: rates.waited_pct };
            let alone = self.rare.contains(id).then_some(Subject::Task(*id));
            for subject in alone.into_iter().chain([self.subject(id, rates)]) {
                uses.entry(subject).or_insert(Use::NONE).add(used);
            }
        }
        uses
    }

    fn subject(&self, id: &TaskId, rates: &Rates) -> Subject {
        match &rates.owner {
            _ if rates.in_scope && self.single.contains(id) => Subject::Task(*id),
            // Cgroups of a task each make no sums.
            owner if rates.in_scope => {
                Subject::Pool(owner.clone().filter(|owner| self.pools.contains(owner)))
            }
            Some(owner) if self.outside.contains(owner) => Subject::Outside(owner.clone()),
            _ => Subject::Rest,
        }
    }
}

/// Who waits so many times a second or more; true of who was not seen, and where waits are not counted.
struct Often<K>(BTreeMap<K, bool>);

impl<K: Ord> Often<K> {
    fn new(windows: &[Summary], per_s: f64, key: impl Fn(&TaskId, &Rates) -> Option<K>) -> Self {
        let seconds: f64 = windows.iter().map(|summary| summary.seconds).sum();
        let mut waits: BTreeMap<K, Option<u64>> = BTreeMap::new();
        for (id, rates) in windows.iter().flat_map(|summary| &summary.tasks) {
            if let Some(key) = key(id, rates) {
                let sum = waits.entry(key).or_insert(Some(0));
                *sum = sum.zip(rates.waits).map(|(a, b)| a + b);
            }
        }
        let often = |waits: u64| waits as f64 >= per_s * seconds;
        Self(waits.into_iter().map(|(key, waits)| (key, waits.is_none_or(often))).collect())
    }

    fn has(&self, key: &K) -> bool {
        self.0.get(key).copied().unwrap_or(true)
    }
}

#[cfg(test)]
mod tests;
