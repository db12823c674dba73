//! Choosing settings by trial: candidates take turns in interleaved measurement windows; losers drop out early; what
//! stays must beat the present state beyond its interval and hurt nobody beyond the guard.
//!
//! Candidate 0 is always the present state. The race is pure: the caller applies the candidate that
//! [`Race::up`] names, measures a window, and hands it to [`Race::record`].

mod words;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg32;
use serde::{Deserialize, Serialize};

use evenkeel_base::Histogram;
use evenkeel_base::run::Estimate;

use crate::guard::{self, GuardLimits, Sure, Violation};
use crate::protect::{self, Breach, Protection};
use crate::window::Summary;
use evenkeel_base::stats::{self, estimate};
use words::describe;

/// How a race is run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RaceRules {
    /// Rounds before anything is concluded.
    pub min_rounds: usize,
    /// Rounds after which the race ends whatever is known.
    pub max_rounds: usize,
    /// Gain of the score that counts as better, as a ratio to the CPU got (0.01 is one percent): below it a change
    /// is not worth its risk even if it is real.
    pub min_gain: f64,
    /// Points of CPU that a point of waiting is worth in the score, see [`Summary::score`].
    pub wait_price: f64,
    /// Error probability of the two-sided intervals that decide.
    pub alpha: f64,
    /// Limits of the guard.
    pub guard: GuardLimits,
    /// Seed of the order in which candidates take turns.
    pub seed: u64,
}

impl Default for RaceRules {
    fn default() -> Self {
        Self {
            min_rounds: 4,
            max_rounds: 12,
            min_gain: 0.01,
            wait_price: 0.1,
            alpha: 0.10,
            guard: GuardLimits::default(),
            seed: 1,
        }
    }
}

/// What became of one candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Windows measured.
    pub windows: usize,
    /// CPU got by the scope, percent of one CPU.
    pub got_pct: Option<Estimate>,
    /// Gain of CPU got over the present state, percent of one CPU.
    pub gain_pct: Option<Estimate>,
    /// Gain of the score (CPU got and waits together) over the present state, points of CPU.
    pub score_gain: Option<Estimate>,
    /// Seconds waited per second of work, over all windows.
    pub wait_per_ran: Option<Estimate>,
    /// Estimated fulfilment (a label).
    pub fulfilment: Option<Estimate>,
    /// Limits of the guard it passed.
    pub violations: Vec<Violation>,
    /// Limits of protections it passed. Of the present state: those it passes itself.
    pub breaches: Vec<Breach>,
    /// 99th percentile of waits of each protected scope, ns; `None` where none were seen.
    pub protected_ns: Vec<Option<u64>>,
    /// Whether it was chosen.
    pub kept: bool,
    /// In words.
    pub why: String,
}

/// Outcome of a race.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Index of the chosen candidate; 0 is "leave as it is".
    pub winner: usize,
    /// One per candidate.
    pub verdicts: Vec<Verdict>,
    /// Rounds completed.
    pub rounds: usize,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    windows: Vec<Summary>,
    /// Waits of the protected scopes in each window: by protection, then by window.
    protected: Vec<Vec<Histogram>>,
    out: Option<String>,
}

/// A race between candidates.
#[derive(Debug)]
pub struct Race {
    rules: RaceRules,
    entries: Vec<Entry>,
    turn: Vec<usize>,
    rng: Pcg32,
    rounds: usize,
    protections: Vec<Protection>,
    /// The candidate that is the host as found.
    default: usize,
    /// What the user allowed by name.
    favoured: Option<usize>,
}

/// Turns of a round with so many challengers: each once, the present state as often as the square root of their number.
pub fn turns(challengers: usize) -> usize {
    challengers + ((challengers as f64).sqrt().round() as usize).max(1)
}

impl Race {
    /// A race of the present state (0) against `challengers` others.
    pub fn new(challengers: usize, rules: RaceRules) -> Self {
        let mut race = Self {
            rules,
            entries: vec![Entry::default(); challengers + 1],
            turn: Vec::new(),
            rng: Pcg32::seed_from_u64(rules.seed),
            rounds: 0,
            protections: Vec::new(),
            default: 0,
            favoured: None,
        };
        race.deal();
        race
    }

    /// A candidate that the user allowed by name stays in the race as long as it may still turn out best, and wins where
    /// nothing is known to be better.
    pub fn favour(&mut self, candidate: Option<usize>) {
        self.favoured = candidate;
    }

    /// Whether the favoured candidate would win if more were known of it: it is in the race, is not what would win now, and
    /// not known to be below that.
    pub fn favoured_is_open(&self) -> bool {
        let Some(favoured) = self.favoured.filter(|&c| self.entries.get(c).is_some_and(|e| e.out.is_none()))
        else {
            return false;
        };
        let winner = self.decide().winner;
        winner != favoured && !self.clearly_below(favoured, winner)
    }

    /// Nobody named here may come to wait too long. `default` is the candidate that is the host as found: what waits are
    /// held against, and what is gone back to where the present state breaks a protection.
    #[must_use]
    pub fn protecting(mut self, protections: Vec<Protection>, default: usize) -> Self {
        self.default = default.min(self.entries.len().saturating_sub(1));
        for entry in &mut self.entries {
            entry.protected = vec![Vec::new(); protections.len()];
        }
        self.protections = protections;
        self
    }

    /// Takes in the waits of the protected scopes, in their order, in the window that is recorded next; `None` where
    /// they could not be measured.
    pub fn record_protected(&mut self, waits: Vec<Option<Histogram>>) {
        let Some(entry) = self.up().and_then(|candidate| self.entries.get_mut(candidate)) else { return };
        for (windows, waits) in entry.protected.iter_mut().zip(waits) {
            windows.extend(waits);
        }
    }

    /// The candidate whose settings are to be in force for the next window; `None` when the race is over.
    pub fn up(&self) -> Option<usize> {
        self.turn.last().copied()
    }

    /// Takes in a window measured under the candidate that [`Self::up`] named.
    pub fn record(&mut self, summary: Summary) {
        let Some(candidate) = self.turn.pop() else { return };
        self.entries[candidate].windows.push(summary);
        if self.turn.is_empty() {
            self.rounds += 1;
            self.drop_losers();
            if !self.over() {
                self.deal();
            }
        }
    }

    /// Takes a candidate out, for instance because its settings could not be applied.
    pub fn withdraw(&mut self, candidate: usize, why: String) {
        if candidate == 0 || candidate >= self.entries.len() {
            return;
        }
        self.entries[candidate].out.get_or_insert(why);
        self.turn.retain(|c| *c != candidate);
        if self.over() {
            self.turn.clear();
        } else if self.turn.is_empty() {
            self.deal();
        }
    }

    /// Rounds completed.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// Candidates still in the race, the present state included.
    pub fn alive(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|&c| self.entries[c].out.is_none()).collect()
    }

    /// What is known now. Can be asked at any time; a race stopped early keeps the present state unless a challenger
    /// already is ahead beyond its interval.
    pub fn decide(&self) -> Decision {
        let mut verdicts: Vec<Verdict> = (0..self.entries.len()).map(|c| self.verdict(c)).collect();
        let eligible: Vec<usize> = (1..self.entries.len())
            .filter(|&c| self.entries[c].out.is_none() && self.better(&verdicts[c]))
            .collect();
        // A present state that breaks a protection is given up for the host as found.
        let stay = if self.default != 0 && breaks(&verdicts[0]) { self.default } else { 0 };
        let winner = self.favourite(&eligible, &verdicts).unwrap_or(stay);
        for (candidate, verdict) in verdicts.iter_mut().enumerate() {
            verdict.kept = candidate == winner;
            verdict.why = self.explain(candidate, winner, verdict);
        }
        Decision { winner, verdicts, rounds: self.rounds }
    }

    fn over(&self) -> bool {
        if self.rounds >= self.rules.max_rounds || self.alive().len() < 2 {
            return true;
        }
        if self.rounds < self.rules.min_rounds {
            return false;
        }
        // Settled when the challenger that leads is known to be better than the present state and than the others left.
        let score = |c: usize| stats::mean(&self.scores(c)).unwrap_or(f64::NEG_INFINITY);
        let challengers: Vec<usize> = self.alive().into_iter().filter(|&c| c != 0).collect();
        let leader = challengers.iter().copied().max_by(|&a, &b| score(a).total_cmp(&score(b)));
        leader.is_some_and(|leader| {
            self.better(&self.verdict(leader))
                && challengers.iter().all(|&c| c == leader || self.clearly_below(c, leader))
        })
    }

    /// A round: each challenger once, the present state as often as the square root of their number, for every one of
    /// them is compared with it (Dunnett's allocation).
    fn deal(&mut self) {
        self.turn = self.alive();
        let extra = turns(self.turn.len().saturating_sub(1)).saturating_sub(self.turn.len());
        self.turn.extend(std::iter::repeat_n(0, extra));
        self.turn.shuffle(&mut self.rng);
    }

    fn drop_losers(&mut self) {
        if self.rounds < 2 {
            return;
        }
        // Many challengers would leave few windows to each: fewer go on (successive halving).
        match self.rounds {
            2 => self.narrow(3),
            4 => self.narrow(2),
            _ => {}
        }
        let alive = self.alive();
        let mean_got = |c: usize| stats::mean(&self.got(c)).unwrap_or(0.0);
        // One that hurts somebody is no reason to drop one that does not.
        let harmless = alive.iter().copied().filter(|&c| {
            let verdict = self.verdict(c);
            !breaks(&verdict) && self.harm(&verdict, Sure::Certain).is_none()
        });
        let Some(best) = harmless.max_by(|&a, &b| mean_got(a).total_cmp(&mean_got(b))) else { return };
        let mut out = Vec::new();
        let needed = self.needed();
        for candidate in alive.into_iter().filter(|&c| c != 0 && c != needed) {
            let verdict = self.verdict(candidate);
            let harm = self.harm(&verdict, Sure::Certain).filter(|_| self.rounds >= 3);
            if let Some(harm) = harm {
                out.push((candidate, harm));
            } else if candidate != best && self.clearly_below(candidate, best) {
                out.push((candidate, "another candidate is clearly better".to_owned()));
            } else if self.rounds >= self.rules.min_rounds && verdict.score_gain.is_some_and(|g| g.high < 0.0)
            {
                out.push((candidate, "worse than the present state".to_owned()));
            }
        }
        for (candidate, why) in out {
            self.entries[candidate].out = Some(why);
        }
    }

    /// Whether the score of one is below another's beyond a 90 % interval (one-sided 95 %), 98 % for the favoured one: it is
    /// looked at many times and each time it could be lost to chance.
    fn clearly_below(&self, candidate: usize, best: usize) -> bool {
        let alpha = if Some(candidate) == self.favoured { 0.02 } else { 0.10 };
        stats::difference(&self.scores(best), &self.scores(candidate), alpha).is_some_and(|d| d.low > 0.0)
    }

    fn got(&self, candidate: usize) -> Vec<f64> {
        self.entries[candidate].windows.iter().map(|w| w.got_pct).collect()
    }

    fn scores(&self, candidate: usize) -> Vec<f64> {
        self.entries[candidate].windows.iter().map(|w| w.score(self.rules.wait_price)).collect()
    }

    fn gain(&self, new: &[f64], present: &[f64]) -> Option<Estimate> {
        stats::difference(new, present, self.rules.alpha)
    }

    fn verdict(&self, candidate: usize) -> Verdict {
        let windows = &self.entries[candidate].windows;
        let present = &self.entries[0].windows;
        let column =
            |f: &dyn Fn(&Summary) -> Option<f64>| estimate(&windows.iter().filter_map(f).collect::<Vec<_>>());
        Verdict {
            windows: windows.len(),
            got_pct: estimate(&self.got(candidate)),
            gain_pct: self.gain(&self.got(candidate), &self.got(0)).filter(|_| candidate != 0),
            score_gain: self.gain(&self.scores(candidate), &self.scores(0)).filter(|_| candidate != 0),
            wait_per_ran: column(&|w| w.wait_per_ran()),
            fulfilment: column(&|w| w.fulfilment),
            violations: if candidate == 0 {
                Vec::new()
            } else {
                guard::violations(&self.rules.guard, present, windows)
            },
            breaches: self.breaches(candidate),
            protected_ns: self.entries[candidate].protected.iter().map(|w| protect::p99_ns(w)).collect(),
            kept: false,
            why: String::new(),
        }
    }

    fn breaches(&self, candidate: usize) -> Vec<Breach> {
        if candidate == self.default {
            return Vec::new();
        }
        let guard = &self.rules.guard;
        // One question for each protection.
        let rules = (guard.wait_factor, guard.alpha / self.protections.len().max(1) as f64);
        let windows = self.entries[self.default].protected.iter().zip(&self.entries[candidate].protected);
        let questions = self.protections.iter().enumerate().zip(windows);
        questions
            .filter_map(|((index, protection), (default, waits))| {
                protection.breach(index, rules, default, waits)
            })
            .collect()
    }

    /// The host as found stays in a race with protections: waits are held against it.
    fn needed(&self) -> usize {
        if self.protections.is_empty() { 0 } else { self.default }
    }

    /// What forbids a candidate, in words.
    fn harm(&self, verdict: &Verdict, sure: Sure) -> Option<String> {
        let violation = verdict.violations.iter().find(|v| v.sure == Sure::Certain);
        let breach = verdict.breaches.iter().find(|breach| breach.sure >= sure);
        breach
            .and_then(|breach| Some(self.protections.get(breach.protection)?.describe(breach)))
            .or_else(|| violation.map(describe))
    }

    /// A score above the present state's beyond the interval, with no less CPU got (by the best estimate, and by no more
    /// than what would be worth a change at the interval's lower end) and no certain harm to anyone.
    fn better(&self, verdict: &Verdict) -> bool {
        let (Some(score), Some(gain), Some(base)) =
            (verdict.score_gain, verdict.gain_pct, stats::mean(&self.got(0)))
        else {
            return false;
        };
        let worth = self.rules.min_gain * base;
        score.low > 0.0
            && score.value >= worth
            && gain.value >= 0.0
            && gain.low >= -worth
            && !verdict.violations.iter().any(|v| v.sure == Sure::Certain)
            && !breaks(verdict)
    }

    /// The winner among candidates known to be better: of those that cannot be told from the one with most CPU, the
    /// one that probably passes the guard's limits for the fewest, then the one with the higher score.
    fn favourite(&self, eligible: &[usize], verdicts: &[Verdict]) -> Option<usize> {
        let score = |c: usize| stats::mean(&self.scores(c)).unwrap_or(f64::NEG_INFINITY);
        let best = eligible.iter().copied().max_by(|&a, &b| score(a).total_cmp(&score(b)))?;
        let near = eligible.iter().copied().filter(|&c| c == best || !self.clearly_below(c, best));
        if let Some(favoured) = self.favoured.filter(|&favoured| near.clone().any(|c| c == favoured)) {
            return Some(favoured);
        }
        near.min_by(|&a, &b| {
            let harm = |c: usize| verdicts[c].violations.iter().filter(|v| v.sure >= Sure::Probable).count();
            harm(a).cmp(&harm(b)).then(score(b).total_cmp(&score(a))).then(a.cmp(&b))
        })
    }

    /// Leaves only the `keep` challengers with the highest scores.
    fn narrow(&mut self, keep: usize) {
        let mut ahead: Vec<(usize, f64)> = self
            .alive()
            .into_iter()
            .filter(|&c| c != 0 && c != self.needed() && Some(c) != self.favoured)
            // Who is protected may not wait longer, so that those who make them wait give way first.
            .map(|c| match self.breaches(c).iter().any(|breach| breach.sure >= Sure::Probable) {
                true => (c, f64::NEG_INFINITY),
                false => (c, stats::mean(&self.scores(c)).unwrap_or(f64::NEG_INFINITY)),
            })
            .collect();
        ahead.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (candidate, _) in ahead.into_iter().skip(keep) {
            self.entries[candidate].out = Some("behind others after the first rounds".to_owned());
        }
    }

    /// Leaves only the `keep` most promising challengers in the race, so that what time is left goes to them: those
    /// that may still turn out better, by their best estimates. Ends the race when there is none.
    pub fn focus(&mut self, keep: usize) {
        let worth = self.rules.min_gain * stats::mean(&self.got(0)).unwrap_or(0.0);
        let mut ahead: Vec<(usize, f64)> = self
            .alive()
            .into_iter()
            .filter(|&c| c != 0)
            .filter_map(|c| {
                let verdict = self.verdict(c);
                let harmless = self.harm(&verdict, Sure::Certain).is_none();
                let score = verdict.score_gain?;
                (harmless && score.high >= worth).then_some((c, score.value))
            })
            .collect();
        let first = |c: usize| Some(c) == self.favoured;
        ahead.sort_by(|a, b| first(b.0).cmp(&first(a.0)).then(b.1.total_cmp(&a.1)));
        ahead.truncate(keep);
        let needed = self.needed();
        for candidate in self.alive().into_iter().filter(|&c| c != 0 && c != needed) {
            if !ahead.iter().any(|(c, _)| *c == candidate) {
                self.withdraw(candidate, "not among the most promising when time ran short".to_owned());
            }
        }
    }
}

/// Whether a candidate breaks a protection, as far as can be told: who asked for one need not wait for certainty.
fn breaks(verdict: &Verdict) -> bool {
    verdict.breaches.iter().any(|breach| breach.sure >= Sure::Probable)
}

#[cfg(test)]
mod tests;
