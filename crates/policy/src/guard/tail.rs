//! Whether more of somebody's waits are long.
//!
//! The question is asked at one length: the bucket's edge that about one in a hundred of the baseline's waits exceeds (or a
//! bound that a user stated). Waits of one window resemble each other, so windows are what is counted: evidence from the
//! counts is a likelihood ratio of Poisson counts, and its logarithm is divided by how much more windows differ than Poisson
//! counts do. The baseline's own share is an estimate as well, so that the two counts are compared (given their sum, the
//! candidate's is binomial), not the candidate's with one in a hundred.

use evenkeel_base::Histogram;

use super::Open;

/// Share of the baseline's waits beyond its 99th percentile.
pub(crate) const TAIL: f64 = 0.01;
/// Growth of the share that evidence is sought for, as a ratio, and the part of the bet on it: where a share does not change, what is
/// a little worse than no growth wins soonest; a change that frees a CPU for somebody makes most of his long waits go.
const LIKELY: [(f64, f64); 2] = [(1.2, 0.85), (0.3, 0.15)];
/// The same, for evidence against, in multiples of the limit.
const WORSE: [(f64, f64); 3] = [(1.5, 1.0 / 3.0), (2.5, 1.0 / 3.0), (5.0, 1.0 / 3.0)];
/// Waits below this are not told apart from none, ns.
pub(crate) const FLOOR_NS: u64 = 200_000;

/// Waits of one scope by length, window by window.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tail {
    bound_ns: Option<u64>,
    baseline: Vec<Histogram>,
    candidate: Vec<Histogram>,
}

/// Waits beyond an edge, and all, of each window.
pub(crate) type Counts = Vec<(f64, f64)>;

impl Tail {
    /// Before any window; `bound_ns` is what 99 of 100 waits are to keep, if somebody said so.
    pub fn new(bound_ns: Option<u64>) -> Self {
        Self { bound_ns, ..Self::default() }
    }

    pub fn add(&mut self, waits: Histogram, candidate: bool) {
        if candidate { &mut self.candidate } else { &mut self.baseline }.push(waits);
    }

    /// Forgets all but so many windows, the last ones.
    pub fn keep_last(&mut self, baseline: usize, candidate: usize) {
        for (windows, most) in [(&mut self.baseline, baseline), (&mut self.candidate, candidate)] {
            windows.drain(..windows.len().saturating_sub(most));
        }
    }

    /// Waits counted so far, under both.
    pub fn waits(&self) -> f64 {
        self.baseline.iter().chain(&self.candidate).map(|window| window.total() as f64).sum()
    }

    /// The limit, ns: where the question is asked; and whether the baseline's share there is the standard.
    pub fn edge_ns(&self) -> Option<(u64, bool)> {
        let pool: Histogram = self.baseline.iter().sum();
        let found = pool.edge_beyond(TAIL).map(|edge| edge.max(Histogram::edge_below(FLOOR_NS)));
        match (self.bound_ns.map(Histogram::edge_below), found) {
            (Some(bound), Some(found)) if pool.beyond(bound) > TAIL * pool.total() as f64 => {
                Some((found, true))
            }
            (Some(bound), _) => Some((bound, false)),
            (None, Some(found)) => Some((found, true)),
            (None, None) => None,
        }
    }

    /// The shares of long waits, if the limit is not shown to be kept. Few waits are no reason to doubt: the monitor looks on.
    pub fn doubt(&self, limit: f64, enough: f64, min_waits: f64) -> Option<Open> {
        let (edge, relative) = self.edge_ns()?;
        if self.waits() < min_waits {
            return None;
        }
        let (before, after) = (counts(&self.baseline, edge), counts(&self.candidate, edge));
        let question = Question { usual: TAIL, most: limit, growth: relative.then_some(limit / TAIL) };
        question.doubt(&before, &after, enough)
    }

    /// 99th percentile of the baseline's waits, ns.
    pub fn baseline_p99_ns(&self) -> Option<u64> {
        p99_ns(&self.baseline)
    }

    /// 99th percentile of the candidate's waits, ns.
    pub fn candidate_p99_ns(&self) -> Option<u64> {
        p99_ns(&self.candidate)
    }
}

/// Whether a share of long ones is kept under a candidate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    /// The share that there usually is, or that somebody stated.
    pub usual: f64,
    /// The share that must be excluded.
    pub most: f64,
    /// Where the baseline's share is the standard: the growth, as a ratio, that must be excluded.
    pub growth: Option<f64>,
}

impl Question {
    /// The shares, unless the limit is shown to be kept.
    pub fn doubt(self, before: &Counts, after: &Counts, enough: f64) -> Option<Open> {
        let Self { usual, most: limit, growth } = self;
        let ((x0, n0), (x1, n1)) = (sum(before), sum(after));
        let spread = dispersion(&[before, after]);
        let mean = |of: &dyn Fn(f64) -> f64, ratios: &[(f64, f64)]| {
            ratios.iter().map(|(ratio, part)| part * (of(*ratio) / spread).exp()).sum::<f64>()
        };
        // What is a little worse than no growth must lie well within the limit, or what is beyond it would win.
        let likely = |most: f64| LIKELY.map(|(ratio, part)| (ratio.min(most.sqrt()), part));
        let relative = growth.filter(|_| x0 > 0.0);
        let (kept, broken) = if let Some(most) = relative {
            let evidence = |ratio: f64| {
                let part = |ratio: f64| ratio * n1 / (n0 + ratio * n1).max(1e-9);
                let (new, old) = (part(ratio), part(most));
                if n1 == 0.0 {
                    return 0.0;
                }
                x1 * (new / old).ln() + x0 * ((1.0 - new) / (1.0 - old)).ln()
            };
            (mean(&evidence, &likely(most)), mean(&|ratio| evidence(most * ratio), &WORSE))
        } else {
            let evidence = |share: f64| x1 * (share / limit).ln() + n1 * (limit - share);
            let kept = mean(&|ratio| evidence(usual * ratio), &likely(limit / usual));
            (kept, mean(&|ratio| evidence(limit * ratio), &WORSE))
        };
        let share = |x: f64, n: f64| if n > 0.0 { x / n } else { 0.0 };
        // Who stated a bound wants it kept, not only not missed by much.
        let within = growth.is_some() || share(x1, n1) <= usual;
        let shown = within && kept >= enough;
        let proved = broken >= enough * enough;
        (!shown).then(|| Open { before: share(x0, n0), after: share(x1, n1), proved })
    }
}

/// The 99th percentile of the waits of windows, ns; `None` without any wait.
pub(crate) fn p99_ns(windows: &[Histogram]) -> Option<u64> {
    windows.iter().sum::<Histogram>().quantile(1.0 - TAIL)
}

fn counts(windows: &[Histogram], edge: u64) -> Counts {
    windows.iter().map(|window| (window.beyond(edge), window.total() as f64)).collect()
}

pub(crate) fn sum(counts: &Counts) -> (f64, f64) {
    counts.iter().fold((0.0, 0.0), |(x, n), count| (x + count.0, n + count.1))
}

/// How much more the windows' counts differ than Poisson counts of one share for each setting: Pearson's chi-square over its
/// degrees of freedom; never less than 1.
fn dispersion(settings: &[&Counts]) -> f64 {
    let (mut squares, mut freedom) = (0.0, 0usize);
    for counts in settings {
        let (x, n) = sum(counts);
        let busy = counts.iter().filter(|count| count.1 > 0.0);
        if x > 0.0 {
            let share = x / n;
            freedom += busy.clone().count() - 1;
            squares += busy.map(|(x, n)| (x - share * n).powi(2) / (share * n)).sum::<f64>();
        }
    }
    if freedom == 0 { 1.0 } else { (squares / freedom as f64).max(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_differ_as_counts_do_or_by_so_much_more() {
        let of = |settings: &[&[(f64, f64)]]| {
            let counts: Vec<Counts> = settings.iter().map(|windows| windows.to_vec()).collect();
            dispersion(&counts.iter().collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), 1.0);
        assert_eq!(of(&[&[(5.0, 100.0)]]), 1.0, "of one window nothing is known");
        // 5 are expected in each; off by 4, their squares are 16 / 5 each.
        let two = [(1.0, 100.0), (9.0, 100.0)];
        assert!((of(&[&two]) - 6.4).abs() < 1e-12);
        assert_eq!(of(&[&[(4.0, 100.0), (6.0, 100.0)]]), 1.0, "never less than counts");
        // What has no long waits, a single window, and one without waits say nothing.
        let none = [(0.0, 100.0); 3];
        assert!((of(&[&two, &none, &[(5.0, 100.0)]]) - 6.4).abs() < 1e-12);
        assert!((of(&[&[two[0], (0.0, 0.0), two[1]]]) - 6.4).abs() < 1e-12);
        // 6.4 and 0.4 of two degrees of freedom.
        assert!((of(&[&two, &[(4.0, 100.0), (6.0, 100.0)]]) - 3.4).abs() < 1e-12);
    }
}
