//! Whether windows show the settings before them.

use evenkeel_base::stats;

/// First windows of pairs after each of both settings before their difference is taken seriously.
const CARRY_PAIRS: usize = 3;
/// Standard errors of that difference beyond which settings are given more time.
const CARRIES: f64 = 2.5;
/// Settle times and windows grow to at most so many times the usual.
const MOST_STRETCH: f64 = 4.0;

/// What the settings before do to a window: first windows of pairs, whose settings and predecessor coins decided.
#[derive(Debug, Clone)]
pub(super) struct CarryOver {
    /// Whose settings were in force before.
    pub before: Option<usize>,
    /// Whether the candidate's were in force before, whether they are, and the score.
    pub first: Vec<(bool, bool, f64)>,
    pub stretch: f64,
}

impl CarryOver {
    /// Gives settings more time if the ones before show in windows.
    pub fn review(&mut self) {
        let residuals = |after_candidate: bool| -> Vec<f64> {
            let mean = |under: bool| {
                stats::mean(&self.first.iter().filter(|w| w.1 == under).map(|w| w.2).collect::<Vec<_>>())
            };
            let means = [mean(false).unwrap_or_default(), mean(true).unwrap_or_default()];
            let of = self.first.iter().filter(|w| w.0 == after_candidate);
            of.map(|w| w.2 - means[usize::from(w.1)]).collect()
        };
        let (same, other) = (residuals(false), residuals(true));
        if same.len().min(other.len()) < CARRY_PAIRS || self.stretch >= MOST_STRETCH {
            return;
        }
        let error = stats::standard_error(&same).zip(stats::standard_error(&other)).map(|(a, b)| a.hypot(b));
        let effect = stats::mean(&same).zip(stats::mean(&other)).map(|(a, b)| (a - b).abs());
        if effect.zip(error).is_some_and(|(effect, error)| error > 0.0 && effect > CARRIES * error) {
            self.stretch *= 2.0;
            self.first.clear();
        }
    }
}
