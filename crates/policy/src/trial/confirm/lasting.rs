//! What of a gain stays, and what may be fading.
//!
//! What settings before have left fades, at the slowest with a half-life of [`HALF_LIFE_S`]. So a window's score under the candidate is
//! taken for what stays, plus something that is there at once and halves every so often. Least squares over all
//! windows, young and old, tell the two apart long before the second is gone.

/// Half-life of what fades at the slowest, seconds.
pub(super) const HALF_LIFE_S: f64 = 3.0;

/// A window under the candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Aged {
    /// Time since the candidate was put in force, at the window's beginning, seconds.
    pub age_s: f64,
    pub seconds: f64,
    pub score: f64,
}

impl Aged {
    /// The mean over the window of what is 1 at first and fades as slowly as may be.
    fn fading(&self) -> f64 {
        let half_lives = (self.seconds / HALF_LIFE_S).max(1e-9);
        let mean = (1.0 - (-half_lives).exp2()) / (half_lives * std::f64::consts::LN_2);
        (-self.age_s / HALF_LIFE_S).exp2() * mean
    }
}

/// What stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Staying {
    /// The score once nothing fades any more.
    pub score: f64,
    /// Of this score, in variances of a window.
    pub variance: f64,
    /// Sum of squares of what the windows are off.
    pub residuals: f64,
}

/// What stays of the windows' scores, by least squares; `None` without windows of different ages. Nothing fades upwards.
pub(super) fn staying(windows: &[Aged]) -> Option<Staying> {
    let n = windows.len() as f64;
    let mean = |of: &dyn Fn(&Aged) -> f64| windows.iter().map(of).sum::<f64>() / n;
    let (faded, score) = (mean(&Aged::fading), mean(&|window| window.score));
    let squares =
        Some(n * mean(&|window| (window.fading() - faded).powi(2))).filter(|squares| *squares > 0.0)?;
    let slope = n * mean(&|window| (window.fading() - faded) * window.score) / squares;
    let slope = slope.max(0.0);
    let fitted = |window: &Aged| score + slope * (window.fading() - faded);
    let residuals = n * mean(&|window| (window.score - fitted(window)).powi(2));
    Some(Staying { score: score - slope * faded, variance: 1.0 / n + faded * faded / squares, residuals })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One a second, from the moment on that the candidate is in force.
    fn windows(scores: &[f64]) -> Vec<Aged> {
        let aged = |(age, score): (usize, &f64)| Aged { age_s: age as f64, seconds: 1.0, score: *score };
        scores.iter().enumerate().map(aged).collect()
    }

    #[test]
    fn what_fades_halves_and_a_window_has_its_mean() {
        let fading = |age_s: f64, seconds: f64| Aged { age_s, seconds, score: 0.0 }.fading();
        assert!((fading(0.0, 0.0) - 1.0).abs() < 1e-6);
        assert!((fading(3.0, 0.0) - 0.5).abs() < 1e-6);
        // A half-life: half of it goes in 1 / ln 2 half-lives at the first rate.
        assert!((fading(0.0, 3.0) - 0.5 / std::f64::consts::LN_2).abs() < 1e-12);
        assert!((fading(6.0, 3.0) - fading(0.0, 3.0) / 4.0).abs() < 1e-12);
    }

    #[test]
    fn what_stays_is_told_from_what_fades_before_it_is_gone() {
        let scores: Vec<f64> =
            windows(&[0.0; 6]).iter().map(|window| 105.0 + 3.0 * window.fading()).collect();
        let stays = staying(&windows(&scores)).unwrap();
        assert!((stays.score - 105.0).abs() < 1e-9 && stays.residuals < 1e-9, "{stays:?}");
        let fades: Vec<f64> = windows(&[0.0; 6]).iter().map(|window| 100.0 + 8.0 * window.fading()).collect();
        assert!((staying(&windows(&fades)).unwrap().score - 100.0).abs() < 1e-9);
    }

    #[test]
    fn the_variance_is_that_of_the_weights_of_the_windows() {
        let scores: Vec<f64> = windows(&[0.0; 7]).iter().map(|window| 5.0 + 3.0 * window.fading()).collect();
        let stays = |scores: &[f64]| staying(&windows(scores)).unwrap();
        let before = stays(&scores);
        let weight = |at: usize| {
            let mut moved = scores.clone();
            moved[at] += 0.01;
            (stays(&moved).score - before.score) / 0.01
        };
        let squares: f64 = (0..7).map(|at| weight(at).powi(2)).sum();
        assert!((squares - before.variance).abs() < 1e-6, "{squares} and {before:?}");
        assert!(((0..7).map(weight).sum::<f64>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn nothing_fades_upwards() {
        let stays = staying(&windows(&[1.0, 2.0, 3.0, 4.0, 5.0])).unwrap();
        assert!((stays.score - 3.0).abs() < 1e-12, "the mean, and no more: {stays:?}");
        // Of the mean they are off by 2, 1, 0, 1, 2.
        assert!((stays.residuals - 10.0).abs() < 1e-12, "{stays:?}");
    }

    #[test]
    fn without_windows_of_different_ages_nothing_is_known() {
        assert_eq!(staying(&[]), None);
        assert_eq!(staying(&[Aged { age_s: 1.0, seconds: 1.0, score: 5.0 }; 3]), None);
    }
}
