//! Screening: who is worth a confirmation. Nothing here decides that a candidate is kept, so any heuristic will do.

use rand::seq::SliceRandom;

use evenkeel_base::stats;

use super::{Phase, Trial};

const ROUNDS: usize = 2;
/// Shares of the error budget of the first and the second that are confirmed, where there are two.
const SPLIT: [f64; 2] = [0.8, 0.2];
/// Candidates of a second round, at most, and standard deviations behind the best beyond which there is none.
const MOST: usize = 4;
const BEHIND: f64 = 3.0;
/// Standard errors beyond which one is taken to be worse than another.
const CLEARLY: f64 = 2.0;

/// Delays of services, as a logarithm, that are taken for equal.
const ALIKE: f64 = 0.2;

impl Trial {
    pub(super) fn begin_screening(&mut self) -> Phase {
        let present = &self.entries[0].windows;
        if !present.is_empty() && !present.iter().any(|window| self.objective.has_purpose(window)) {
            let why = "every task of the scope would take any amount of CPU: more for them is no gain";
            (1..self.entries.len()).for_each(|c| self.leave_out(c, why));
            return Phase::Over;
        }
        let challengers = self.challengers();
        match challengers.len() {
            0 => Phase::Over,
            // One window tells how often tasks wait under it; background work may.
            1 if !self.objective.is_for_services() => self.round(challengers, ROUNDS - 1),
            1 => self.confirm(vec![(challengers[0], self.rules.alpha)]),
            _ => self.round(challengers, 0),
        }
    }

    /// A round is over: who is well behind goes; after the last the best are confirmed.
    pub(super) fn screened(&mut self, rounds: usize) -> Phase {
        let mut ranked = self.ranked();
        if self.entries.len() == 2 {
            return self.confirm(ranked.into_iter().map(|(c, _)| (c, self.rules.alpha)).collect());
        }
        if rounds < ROUNDS {
            let (best, sd) = (ranked.first().map(|(_, score)| *score), self.scale());
            for (at, (candidate, score)) in ranked.into_iter().enumerate() {
                let far = best.zip(sd).is_some_and(|(best, sd)| best - score > BEHIND * sd);
                // The favoured one may have been unlucky.
                if (far || at >= MOST) && !self.entries[candidate].favoured {
                    self.leave_out(candidate, "behind others in the first round");
                }
            }
            let challengers = self.challengers();
            return if challengers.is_empty() { Phase::Over } else { self.round(challengers, rounds) };
        }
        let sd = self.scale().unwrap_or(f64::INFINITY);
        let windows: Vec<usize> = self.entries.iter().map(|entry| entry.windows.len().max(1)).collect();
        let error = |a: usize, b: usize| {
            let n = |c: usize| 1.0 / windows[c] as f64;
            sd * (n(a) + n(b)).sqrt()
        };
        let base = stats::mean(&self.objective.scores(&self.entries[0].windows)).unwrap_or_default();
        let worse: Vec<usize> = ranked
            .iter()
            .skip(usize::from(self.rules.always_confirm))
            .filter(|(c, score)| *score < base - CLEARLY * error(*c, 0))
            .map(|(c, _)| *c)
            .collect();
        for candidate in worse {
            let broken = self.broken(candidate).map(|doubt| doubt.to_string());
            self.leave_out(candidate, broken.as_deref().unwrap_or("worse than the present state"));
        }
        ranked.retain(|(c, _)| self.entries[*c].out.is_none());
        let Some(&(best, ahead)) = ranked.first() else { return Phase::Over };
        let near = |(c, score): &(usize, f64)| ahead - score <= CLEARLY * error(*c, best);
        if self.objective.is_for_services() {
            // Of those that serve about as well as the best, the one that leaves background work most.
            let got = |c: usize| {
                let got: Vec<f64> = self.entries[c].windows.iter().map(|window| window.got_pct).collect();
                stats::mean(&got).unwrap_or_default()
            };
            let alike = |score: f64| ahead - score <= ALIKE;
            ranked.sort_by(|a, b| {
                let tied = alike(a.1) && alike(b.1);
                if tied { got(b.0).total_cmp(&got(a.0)) } else { b.1.total_cmp(&a.1) }
            });
        }
        let best = ranked[0].0;
        let favoured = ranked.iter().position(|(c, _)| self.entries[*c].favoured);
        if let Some(at) = favoured.filter(|at| near(&ranked[*at])) {
            let favoured = ranked.remove(at);
            ranked.insert(0, favoured);
        }
        let two = ranked.get(1).is_some_and(|second| ranked[0].0 != best || near(second));
        let survivors: Vec<(usize, f64)> = match two {
            true => ranked.iter().zip(SPLIT).map(|((c, _), part)| (*c, part * self.rules.alpha)).collect(),
            false => vec![(ranked[0].0, self.rules.alpha)],
        };
        for (candidate, _) in &ranked {
            if !survivors.iter().any(|(c, _)| c == candidate) {
                self.leave_out(*candidate, "behind others in screening");
            }
        }
        self.confirm(survivors)
    }

    fn challengers(&self) -> Vec<usize> {
        self.alive().into_iter().filter(|&c| c != 0).collect()
    }

    fn round(&mut self, mut turns: Vec<usize>, rounds: usize) -> Phase {
        turns.shuffle(&mut self.rng);
        Phase::Screen(turns, rounds)
    }

    /// Challengers by their mean score, the best first; who seems to hurt somebody comes later, who makes the protected wait last.
    fn ranked(&self) -> Vec<(usize, f64)> {
        let score = |c: usize| stats::mean(&self.objective.scores(&self.entries[c].windows));
        let mut ranked: Vec<(usize, f64)> = self
            .challengers()
            .into_iter()
            .map(|c| (c, score(c).filter(|_| self.broken(c).is_none()).unwrap_or(f64::NEG_INFINITY)))
            .collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        let windows = |c: usize| self.entries[c].windows.as_slice();
        let hurts = |c: usize| {
            let guard = self.objective.guard(self.rules.guard, self.before(), windows(c));
            self.entries[c].suspect || guard.seems_to_hurt(windows(0), windows(c))
        };
        ranked.sort_by_cached_key(|(c, score)| (*score == f64::NEG_INFINITY, hurts(*c)));
        ranked
    }

    fn leave_out(&mut self, candidate: usize, why: &str) {
        self.entries[candidate].out.get_or_insert(why.to_owned());
    }
}

#[cfg(test)]
mod tests;
