//! A race's verdicts in words.

use super::{Race, Verdict};
use crate::guard::{Harm, Sure, Victim, Violation};
use crate::protect;
use crate::window::Summary;
use evenkeel_base::stats;

impl Race {
    /// How waits changed, in words.
    fn waits(&self, verdict: &Verdict) -> String {
        let present: Vec<f64> = self.entries[0].windows.iter().filter_map(Summary::wait_per_ran).collect();
        match (stats::mean(&present), verdict.wait_per_ran) {
            (Some(before), Some(after)) => {
                format!(", waits {before:.2} -> {:.2} s per second of work", after.value)
            }
            _ => String::new(),
        }
    }

    /// What protected scopes wait, in words.
    fn protected(&self, verdict: &Verdict) -> String {
        let found = self.entries[self.default].protected.iter().map(|windows| protect::p99_ns(windows));
        let all = self.protections.iter().zip(found.zip(&verdict.protected_ns));
        let ms = |ns: u64| ns as f64 / 1e6;
        all.filter_map(|(protection, (before, after))| {
            let (before, after) = (ms(before?), ms((*after)?));
            Some(format!(", {} waits {before:.2} -> {after:.2} ms in the 99th percentile", protection.name))
        })
        .collect()
    }

    pub(super) fn explain(&self, candidate: usize, winner: usize, verdict: &Verdict) -> String {
        if let Some(out) = &self.entries[candidate].out {
            let tried = verdict.windows > 0;
            return if tried { format!("taken back: {out}") } else { format!("not tried: {out}") };
        }
        if candidate == 0 {
            return if winner == 0 {
                "kept: nothing tried beats it beyond its interval".to_owned()
            } else if let Some(harm) = self.harm(verdict, Sure::Probable) {
                format!("taken back: {harm}")
            } else {
                "the present state, for comparison".to_owned()
            };
        }
        let gain = verdict.gain_pct.filter(|g| g.low.is_finite() && g.high.is_finite()).map_or_else(
            || "too few windows for an interval".to_owned(),
            |g| format!("{:+.1} points of CPU ({:+.1} to {:+.1})", g.value, g.low, g.high),
        ) + &self.waits(verdict)
            + &self.protected(verdict);
        if candidate == winner {
            format!("kept: {gain}")
        } else if self.better(verdict) {
            format!("taken back: {gain}, but another is at least as good")
        } else if let Some(harm) = self.harm(verdict, Sure::Probable) {
            format!("taken back: {harm}")
        } else {
            format!("taken back: {gain}, not beyond its interval")
        }
    }
}

pub(super) fn describe(violation: &Violation) -> String {
    let who = match violation.victim {
        Victim::Task(id) => format!("task {id}"),
        Victim::Outside => "the rest of the host".to_owned(),
    };
    match violation.harm {
        Harm::Cpu => format!("{who} falls from {:.1} to {:.1} % CPU", violation.before, violation.after),
        Harm::Wait => format!(
            "{who} waits {:.2} s per second of work instead of {:.2} s",
            violation.after, violation.before
        ),
    }
}
