//! What comes out of a trial.

use evenkeel_base::run::Estimate;

use super::Objective;
use crate::guard::Doubt;
use crate::monitor::Seen;
use crate::requests::Requests;

/// What became of one candidate.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verdict {
    pub windows: usize,
    /// Length of these together.
    pub seconds: f64,
    /// Fresh pairs of windows that confirm it, or do not.
    pub pairs: usize,
    /// Evidence from them that it helps: as good as a bet won at these odds.
    pub evidence: f64,
    /// CPU got by the scope, percent of one CPU.
    pub got_pct: Option<Estimate>,
    /// Gain of CPU got over the present state, percent of one CPU. The lower end is what is claimed: it holds at every
    /// stopping time.
    pub gain_pct: Option<Estimate>,
    /// Gain of the score (CPU got and waits together) over the present state, points of CPU.
    pub score_gain: Option<Estimate>,
    /// Seconds waited per second of work, over all windows.
    pub wait_per_ran: Option<Estimate>,
    /// Estimated fulfilment (a label).
    pub fulfilment: Option<Estimate>,
    /// Limits of the guard, protections included, that were not shown to be kept.
    pub doubts: Vec<Doubt>,
    /// 99th percentile of waits of each protected scope, ns; `None` where none were seen.
    pub protected_ns: Vec<Option<u64>>,
    /// Each protected scope's own requests in the windows in which they were counted.
    pub requests: Vec<Vec<Requests>>,
    pub kept: bool,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Index of the chosen candidate; 0 is "leave as it is".
    pub winner: usize,
    pub verdicts: Vec<Verdict>,
    /// Whether any candidate came as far as fresh pairs.
    pub confirmed: bool,
    /// Pairs of windows that proved the winner: under it, and under the present state. None where that was kept.
    pub pairs: Vec<(Seen, Seen)>,
    /// What was weighed.
    pub objective: Objective,
}

impl Decision {
    /// What the winner gains in the score, as a ratio to the CPU got in the pairs that proved it; 0 where there are none.
    pub fn gain(&self) -> f64 {
        let pairs = &self.pairs;
        let got = pairs.iter().map(|(new, old)| f64::midpoint(new.cpu_pct, old.cpu_pct)).sum::<f64>()
            / pairs.len().max(1) as f64;
        let gain = self.verdicts[self.winner].score_gain.map_or(0.0, |gain| gain.value);
        self.objective.unit().gain(gain, got).unwrap_or(0.0)
    }
}
