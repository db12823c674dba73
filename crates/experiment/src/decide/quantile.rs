//! Quantiles of a sample, with an interval at any level of confidence and without a shape assumed.
//!
//! The ends of the interval are values of the sample: the l-th and the u-th in ascending order enclose the quantile with an
//! error of at most `alpha` by the binomial distribution (order statistics: David and Nagaraja 2003, section 7.1). Far in a
//! tail a small sample has no such values; then an end is infinite.
//!
//! Values that come in groups (the runs of each repetition, or of each tenant) resemble each other. How far the groups'
//! shares of values below the quantile differ says how many independent values the sample is worth, and the number of groups
//! how well that is known (effective sample size: Korn and Graubard 1998).

use std::sync::Arc;

use evenkeel_base::stats::{binomial, quantile, t_factor};

/// Values and the groups they came in.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// All, ascending.
    all: Vec<f64>,
    /// Each ascending, none empty.
    groups: Vec<Vec<f64>>,
}

impl Sample {
    /// Of values in groups. Values that are not finite are left out; `None` when nothing is left.
    pub fn of(groups: &[Vec<f64>]) -> Option<Arc<Self>> {
        let ascending = |values: &mut dyn Iterator<Item = f64>| {
            let mut values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let all = ascending(&mut groups.iter().flatten().copied());
        let groups = groups.iter().map(|group| ascending(&mut group.iter().copied()));
        let groups: Vec<Vec<f64>> = groups.filter(|group| !group.is_empty()).collect();
        (!all.is_empty()).then(|| Arc::new(Self { all, groups }))
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Smallest and largest.
    pub fn ends(&self) -> [f64; 2] {
        let first = self.all.first().copied().unwrap_or(f64::NAN);
        [first, self.all.last().copied().unwrap_or(first)]
    }
}

/// A quantile of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantile {
    sample: Arc<Sample>,
    /// The share of values below it, 0 to 1.
    at: f64,
    /// How many times as many values, in as many groups, are taken for granted.
    times: f64,
}

impl Quantile {
    /// The value that the share `at` (0 to 1) of the sample's values lies below.
    pub fn of(sample: &Arc<Sample>, at: f64) -> Self {
        Self { sample: sample.clone(), at: at.clamp(0.0, 1.0), times: 1.0 }
    }

    /// Estimate, interpolated between the values next to it.
    pub fn value(&self) -> f64 {
        quantile(&self.sample.all, self.at).unwrap_or(f64::NAN)
    }

    /// Independent values that the sample is worth for this quantile at error probability `alpha`.
    pub fn effective(&self, alpha: f64) -> u64 {
        let (n, groups) = (self.sample.all.len() as f64, self.sample.groups.len() as f64);
        let independent = self.at * (1.0 - self.at) / n;
        if groups < 2.0 || independent <= 0.0 {
            return (n * self.times) as u64;
        }
        let value = self.value();
        let below = |values: &[f64]| values.partition_point(|v| *v <= value) as f64;
        let share = below(&self.sample.all) / n;
        let squares = self.sample.groups.iter().map(|g| ((below(g) - share * g.len() as f64) / n).powi(2));
        let variance = squares.sum::<f64>() * groups / (groups - 1.0);
        // Groups that seem more alike than chance allows are not worth more than independent values.
        let alike = (independent / variance).min(1.0);
        let (n, groups) = (n * self.times, groups * self.times);
        let known = t_factor(n - 1.0, alpha) / t_factor(groups - 1.0, alpha);
        (n * alike * known.powi(2)).floor() as u64
    }

    /// What so many times as many values, in as many groups, would give if they spread alike.
    pub(super) fn grown(&self, times: f64) -> Self {
        Self { times: self.times * times, ..self.clone() }
    }

    /// Whether its values are of one group.
    pub(super) fn is_of_runs(&self) -> bool {
        self.sample.groups.len() == 1
    }

    /// Fewest independent values of which an interval at error probability `alpha` can be had.
    pub fn needed(&self, alpha: f64) -> u64 {
        let rarer = self.at.min(1.0 - self.at);
        ((alpha / 2.0).ln() / (1.0 - rarer).ln()).ceil().max(1.0) as u64
    }

    /// An interval that holds the quantile with an error of at most `alpha`; an end is infinite where the sample is too small.
    pub fn interval(&self, alpha: f64) -> [f64; 2] {
        let worth = self.effective(alpha);
        let (all, value) = (&self.sample.all, self.value());
        let scale = all.len() as f64 / worth.max(1) as f64;
        // Largest rank that too many values are seldom above, smallest that too many are seldom below.
        let low = last(worth, |rank| binomial::at_most(rank - 1, worth, self.at) <= alpha / 2.0);
        let high = last(worth, |rank| binomial::at_least(rank, worth, self.at) > alpha / 2.0) + 1;
        let low = low.checked_sub(1).and_then(|below| all.get((below as f64 * scale).floor() as usize));
        let rank = (high as f64 * scale).ceil() as usize;
        let high = if high <= worth { all.get(rank.min(all.len()).saturating_sub(1)) } else { None };
        [low.map_or(f64::NEG_INFINITY, |v| v.min(value)), high.map_or(f64::INFINITY, |v| v.max(value))]
    }

    /// Repetitions or tenants, or runs where there is one of them.
    pub(super) fn n(&self) -> usize {
        let groups = self.sample.groups.len();
        if groups > 1 { groups } else { self.sample.all.len() }
    }
}

/// The last of `1..=most` for which `fits` holds, which holds up to some number and not beyond; 0 where it holds for none.
fn last(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most + 1);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn one(values: Vec<f64>, at: f64) -> Quantile {
        Quantile::of(&Sample::of(&[values]).unwrap(), at)
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Median of 10: the 2nd and the 9th enclose it with 97.9 %, the 3rd and the 8th with 89.1 % only.
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(one(ten.clone(), 0.5).interval(0.05), [2.0, 9.0]);
        assert_eq!(one(ten.clone(), 0.5).interval(0.12), [3.0, 8.0]);
        assert_eq!(one(ten, 0.5).value(), 5.5);
        // Five values do not enclose a median with 95 %: 1 - 2 / 2^5; six do.
        let up_to = |n: u32| one((1..=n).map(f64::from).collect(), 0.5);
        assert_eq!(up_to(5).interval(0.05), [f64::NEG_INFINITY, f64::INFINITY]);
        assert_eq!(up_to(6).interval(0.05), [1.0, 6.0]);
        assert_eq!((up_to(5).needed(0.05), up_to(6).effective(0.05)), (6, 6));
    }

    #[test]
    fn a_tail_needs_many_values() {
        let of = |n: u32| one((1..=n).map(f64::from).collect(), 0.99);
        assert_eq!(of(100).needed(0.05), 368);
        assert!(of(367).interval(0.05)[1].is_infinite() && of(368).interval(0.05)[1].is_finite());
        // The other tail is the same.
        assert_eq!(one(vec![1.0], 0.01).needed(0.05), 368);
    }

    #[test]
    fn groups_that_differ_are_worth_less() {
        let group = |from: f64| (0..50).map(|n| from + f64::from(n)).collect::<Vec<f64>>();
        let alike = Sample::of(&[0.0; 10].map(group)).unwrap();
        let far = Sample::of(&[0.0, 30.0, 60.0, 90.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0].map(group))
            .unwrap();
        let worth = |sample: &Arc<Sample>| Quantile::of(sample, 0.5).effective(0.05);
        assert!(worth(&alike) > 300 && worth(&alike) < 500, "{}", worth(&alike));
        assert!(worth(&far) < 20, "{}", worth(&far));
        // Two groups at most tell nothing with certainty.
        let two = Sample::of(&[group(0.0), group(1.0)]).unwrap();
        assert!(Quantile::of(&two, 0.5).interval(0.001)[0].is_infinite());
        assert!(Sample::of(&[vec![f64::NAN], vec![]]).is_none());
    }

    #[test]
    fn the_truth_is_enclosed_as_often_as_said() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(99);
        for (at, n, groups) in [(0.5, 30, 1), (0.9, 60, 1), (0.9, 300, 6)] {
            let rounds = 600;
            let missed = (0..rounds)
                .filter(|_| {
                    // Exponential, and each group with a scale of its own.
                    let sample: Vec<Vec<f64>> = (0..groups)
                        .map(|_| (0..n / groups).map(|_| -random.random::<f64>().max(1e-12).ln()).collect())
                        .collect();
                    let [low, high] = Quantile::of(&Sample::of(&sample).unwrap(), at).interval(0.05);
                    let truth = -(1.0f64 - at).ln();
                    truth < low || truth > high
                })
                .count() as u64;
            let least = binomial::lower(missed, rounds, 0.01);
            assert!(least <= 0.05, "{missed} of {rounds} at {at} with {n} in {groups}");
        }
    }
}
