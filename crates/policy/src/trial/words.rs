//! A trial's verdicts in words.

use evenkeel_base::run::Estimate;
use evenkeel_base::stats;

use super::confirm::UNPROVED;
use super::{Course, Trial, Verdict};
use crate::guard::{Doubt, p99_ns};
use crate::requests::slow_share;
use crate::window::Summary;

impl Trial {
    pub(super) fn explain(&self, candidate: usize, winner: usize, verdicts: &[Verdict]) -> String {
        let verdict = &verdicts[candidate];
        if candidate == 0 {
            return if let Some(better) = self.refused(verdicts).filter(|_| winner == 0) {
                better
            } else if winner == 0 && self.course == Course::Stopped {
                "kept: the run was stopped before anything was shown to be better".to_owned()
            } else if winner == 0 {
                "kept: nothing tried is shown to be better".to_owned()
            } else if let Some(doubt) = self.broken(0) {
                format!("taken back: {doubt}")
            } else {
                "the present state, for comparison".to_owned()
            };
        }
        let waits = if self.objective.is_for_services() { String::new() } else { self.waits(verdict) };
        let gain = self.claim(verdict) + &waits + &self.protected(verdict);
        if candidate == winner {
            // The host as found needs no proof.
            return match self.broken(0).filter(|_| self.winner.is_none()) {
                Some(doubt) => {
                    format!("kept: instead of the present state, for {doubt}; nothing is shown to be better")
                }
                // Which the user accepts.
                None => {
                    let risk =
                        in_words(&verdict.doubts).map_or_else(String::new, |doubts| format!("; {doubts}"));
                    format!("kept: {gain}{risk}")
                }
            };
        }
        let out = &self.entries[candidate].out;
        let not_confirmed = match self.winner {
            None if self.course == Course::Stopped => "the run was stopped before it was confirmed",
            None => "no time was left to confirm it",
            Some(_) => "another was confirmed before it",
        };
        match (out, verdict.windows, verdict.pairs) {
            (Some(out), 0, _) => format!("not tried: {out}"),
            (None, 0, _) if self.course == Course::Stopped => "not tried: the run was stopped".to_owned(),
            (None, 0, _) => "not tried: no time was left".to_owned(),
            (Some(out), _, 0) => format!("taken back: {out}"),
            (None, _, 0) => format!("taken back: {not_confirmed}"),
            (Some(out), ..) => format!("taken back: {out}; {gain}"),
            (None, ..) => format!("taken back: {}; {gain}", self.undecided(candidate, verdict)),
        }
    }

    /// Which of the others is shown to be better, and why it is not kept all the same.
    fn refused(&self, verdicts: &[Verdict]) -> Option<String> {
        let proved = |c: usize| self.confirmation(c).is_some_and(|c| c.proved(self.rules.min_gain));
        let at_least = |c: usize| verdicts[c].score_gain.map_or(f64::NEG_INFINITY, |gain| gain.low);
        let better = (1..verdicts.len()).filter(|c| proved(*c));
        let best = better.max_by(|a, b| at_least(*a).total_cmp(&at_least(*b)))?;
        let but = self.entries[best].out.clone().unwrap_or_else(|| self.undecided(best, &verdicts[best]));
        Some(format!("kept: one is better, {}, but {but}", self.claim(&verdicts[best])))
    }

    /// What time was lacking for.
    fn undecided(&self, candidate: usize, verdict: &Verdict) -> String {
        let confirmation = self.confirmation(candidate);
        let proved = confirmation.is_some_and(|c| c.proved(self.rules.min_gain));
        match (proved, in_words(&verdict.doubts)) {
            (false, _) if self.course == Course::Stopped => {
                "the run was stopped before its gain was proved".to_owned()
            }
            (true, None) if self.course == Course::Stopped => {
                "the run was stopped before it was seen whether its gain lasts".to_owned()
            }
            (false, _) => UNPROVED.to_owned(),
            (true, None) => "there was no time to see whether its gain lasts".to_owned(),
            (true, Some(doubts)) => doubts,
        }
    }

    /// How waits changed.
    fn waits(&self, verdict: &Verdict) -> String {
        let present: Vec<f64> = self.entries[0].windows.iter().filter_map(Summary::wait_per_ran).collect();
        match (stats::mean(&present), verdict.wait_per_ran) {
            (Some(before), Some(after)) => {
                format!(", waits {before:.2} -> {:.2} s per second of work", after.value)
            }
            _ => String::new(),
        }
    }

    /// What protected scopes wait, and how many of their own requests are slow.
    fn protected(&self, verdict: &Verdict) -> String {
        let found = self.entries[self.guarded.default].protected.iter().map(|windows| p99_ns(windows));
        let all = self.guarded.targets.iter().zip(found.zip(&verdict.protected_ns));
        let ms = |ns: u64| ns as f64 / 1e6;
        let waits = all.filter_map(|(protection, (before, after))| {
            let (before, after) = (ms(before?), ms((*after)?));
            Some(format!(", {} waits {before:.2} -> {after:.2} ms in the 99th percentile", protection.name))
        });
        let slow = self.guarded.targets.iter().enumerate().filter_map(|(index, protection)| {
            let before = self.request_tail(index, self.guarded.default, 0).shares().1?;
            let after = slow_share(verdict.requests.get(index)?)?;
            Some(format!(
                ", {:.2} -> {:.2} % of the requests to {} take more than {}",
                100.0 * before,
                100.0 * after,
                protection.name,
                protection.requests?.bound_words()
            ))
        });
        let slow: Vec<String> = slow.collect();
        waits.chain(slow).collect()
    }

    /// What is claimed: the lower bound; the estimate, which is biased upwards when one stops at a success, stands behind it.
    fn claim(&self, verdict: &Verdict) -> String {
        if self.objective.is_for_services() {
            return for_services(verdict);
        }
        let at_least = |gain: Estimate, what: &str| {
            format!("at least {:+.1} points of {what} (estimate {:+.1})", gain.low, gain.value)
        };
        match (verdict.gain_pct, verdict.score_gain) {
            (Some(cpu), _) if cpu.low.is_finite() && cpu.low > 0.0 => at_least(cpu, "CPU"),
            (Some(cpu), Some(score)) if score.low.is_finite() => {
                format!("{}, CPU alone {:+.1}", at_least(score, "CPU and waits together"), cpu.value)
            }
            (Some(cpu), _) => {
                format!("estimate {:+.1} points of CPU, of {} pairs of windows", cpu.value, verdict.pairs)
            }
            _ => "not confirmed".to_owned(),
        }
    }
}

/// The first, and how many more there are; `None` without any.
fn in_words(doubts: &[Doubt]) -> Option<String> {
    match doubts {
        [] => None,
        [doubt] => Some(doubt.to_string()),
        [doubt, more @ ..] => Some(format!("{doubt}, and {} more", more.len())),
    }
}

/// A factor, with as many digits as tell it from 1.
fn times(factor: f64) -> String {
    let digits = (-(factor - 1.0).abs().log10()).ceil().clamp(1.0, 3.0) as usize;
    format!("{factor:.digits$}")
}

/// The same where services count: the score is less the logarithm of the delays.
fn for_services(verdict: &Verdict) -> String {
    let Some(score) = verdict.score_gain else { return "not confirmed".to_owned() };
    let by = score.value.exp();
    let gain = if score.low.is_finite() && score.low > 0.0 {
        format!(
            "requests are delayed at least {} times less by waits for a CPU (estimate {})",
            times(score.low.exp()),
            times(by)
        )
    } else {
        let by = if by >= 1.0 {
            format!("{} times less", times(by))
        } else {
            format!("{} times more", times(1.0 / by))
        };
        format!(
            "requests are delayed {by} by waits for a CPU, by estimate of {} pairs of windows",
            verdict.pairs
        )
    };
    let cpu = verdict.gain_pct.map(|cpu| format!(", {:+.1} points of CPU for background work", cpu.value));
    gain + &cpu.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::times;

    #[test]
    fn a_factor_just_above_one_is_not_written_as_one() {
        let factors = [1.0, 1.0004, 1.0042, 1.04, 1.1, 1.26, 12.34];
        assert_eq!(factors.map(times), ["1.000", "1.000", "1.004", "1.04", "1.1", "1.3", "12.3"]);
    }
}
