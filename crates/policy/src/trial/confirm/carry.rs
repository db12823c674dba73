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
        let mean = |under: bool| {
            stats::mean(&self.first.iter().filter(|w| w.1 == under).map(|w| w.2).collect::<Vec<_>>())
        };
        let means = [mean(false).unwrap_or_default(), mean(true).unwrap_or_default()];
        let (mut same, mut other) = (Vec::new(), Vec::new());
        for (after_candidate, under_candidate, score) in &self.first {
            let residuals = if *after_candidate { &mut other } else { &mut same };
            residuals.push(score - means[usize::from(*under_candidate)]);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of first windows with these scores after the baseline and after the candidate, all under one of them.
    fn reviewed(under: bool, after: [&[f64]; 2], stretch: f64) -> (f64, usize) {
        let mut carry = CarryOver { before: None, first: Vec::new(), stretch };
        for (candidate, scores) in [false, true].into_iter().zip(after) {
            carry.first.extend(scores.iter().map(|score| (candidate, under, *score)));
        }
        carry.review();
        (carry.stretch, carry.first.len())
    }

    #[test]
    fn what_shows_beyond_the_error_doubles_the_time() {
        for under in [false, true] {
            // Standard errors are 1 over the root of 3 each, together 0.82; 2.5 of them are 2.04.
            let after = |off: f64| reviewed(under, [&[-1.0, 0.0, 1.0], &[off - 1.0, off, off + 1.0]], 1.0);
            assert_eq!([after(2.0), after(-2.0)], [(1.0, 6); 2]);
            assert_eq!([after(2.1), after(-2.1)], [(2.0, 0); 2], "what was seen is of shorter ones");
        }
        let four: [&[f64]; 2] = [&[-1.0, 0.0, 1.0, 0.0], &[4.0, 5.0, 6.0, 5.0]];
        assert_eq!(reviewed(true, four, 2.0), (4.0, 0));
        assert_eq!(reviewed(true, four, 4.0), (4.0, 8), "no longer than that");
        assert_eq!(reviewed(true, [&[-1.0, 1.0], &[4.0, 5.0, 6.0]], 1.0), (1.0, 5), "two are too few");
        assert_eq!(reviewed(true, [&[1.0; 3], &[5.0; 3]], 1.0), (1.0, 6), "nothing is known of the error");
    }

    #[test]
    fn what_the_settings_themselves_do_is_no_trace_of_those_before() {
        let mut carry = CarryOver { before: None, first: Vec::new(), stretch: 1.0 };
        // The candidate brings 50. After it scores are 3 higher under both.
        for (after, under, score) in
            [(false, false, -1.5), (false, true, 48.5), (true, false, 1.5), (true, true, 51.5)]
        {
            carry.first.extend([-0.5, 0.5].map(|noise| (after, under, score + noise)));
        }
        carry.review();
        assert_eq!(carry.stretch, 2.0);
    }
}
