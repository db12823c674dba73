//! Statistics of small samples, with intervals. Pure; the same values give the same numbers everywhere.

use evenkeel_base::run::Estimate;
use evenkeel_base::stats::{mean, quantile, sd, standard_error, t_factor};
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::decide::{Mean, Quantile, Sample};

/// What a sample looks like.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub n: usize,
    pub mean: f64,
    /// 95 % interval of the mean: Student's t over the repetitions, over the runs of a single one; `None` for a single value.
    pub mean_interval: Option<[f64; 2]>,
    pub median: f64,
    /// 95 % interval of the median, by values of the sample; `None` where there are too few.
    pub median_interval: Option<[f64; 2]>,
    pub min: f64,
    pub max: f64,
    /// Standard deviation of the sample (n - 1); 0 for one value.
    pub sd: f64,
    /// Percentiles.
    pub p5: f64,
    pub p25: f64,
    pub p75: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Summary {
    /// The mean with its interval; a single value is its own.
    pub fn estimate(&self) -> Estimate {
        let [low, high] = self.mean_interval.unwrap_or([self.mean; 2]);
        Estimate { value: self.mean, low, high }
    }
}

/// Summary of values that come in groups (the runs of each repetition): values of one group resemble each other, so the
/// intervals go by groups. Values that are not finite are left out; `None` when nothing is left.
pub fn summary(groups: &[Vec<f64>]) -> Option<Summary> {
    let groups: Vec<Vec<f64>> = groups
        .iter()
        .map(|group| group.iter().copied().filter(|v| v.is_finite()).collect::<Vec<_>>())
        .filter(|group| !group.is_empty())
        .collect();
    let mut all = groups.concat();
    all.sort_by(f64::total_cmp);
    let at = |q| quantile(&all, q);
    let (min, max, n) = (*all.first()?, *all.last()?, all.len());
    let mean_interval = mean_interval(&groups);
    let median_interval = Quantile::of(&Sample::of(&groups)?, 0.5).interval(0.05);
    let median_interval = Some(median_interval).filter(|ends| ends.iter().all(|end| end.is_finite()));
    Some(Summary {
        n,
        mean: mean(&all)?,
        mean_interval,
        median: at(0.5)?,
        median_interval,
        min,
        max,
        sd: sd(&all).unwrap_or_default(),
        p5: at(0.05)?,
        p25: at(0.25)?,
        p75: at(0.75)?,
        p95: at(0.95)?,
        p99: at(0.99)?,
    })
}

/// 95 % interval of the mean of values in groups, by Student's t: what is independent are groups, or values where there is
/// one group. Groups may differ in size (the error of a ratio of their sums to their sizes: Cochran 1977, section 6.3).
/// `None` for one value.
fn mean_interval(groups: &[Vec<f64>]) -> Option<[f64; 2]> {
    let all = groups.concat();
    let mean = mean(&all)?;
    let off = |group: &[f64]| group.iter().map(|v| v - mean).sum::<f64>().powi(2);
    let offs: Vec<f64> = match groups {
        [one] => one.chunks(1).map(off).collect(),
        several => several.iter().map(|group| off(group)).collect(),
    };
    let k = offs.len() as f64;
    let error = (offs.iter().sum::<f64>() * k / (k - 1.0)).sqrt() / all.len() as f64;
    let margin = t_factor(k - 1.0, 0.05) * error;
    (offs.len() > 1).then_some([mean - margin, mean + margin])
}

/// Mean of a few independent values with its interval by Student's t; a single value is its own.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let values: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let value = mean(&values)?;
    let [low, high] = mean_interval(&[values]).unwrap_or([value; 2]);
    Some(Estimate { value, low, high })
}

/// Blocks that a single group is cut into for [`log_sd`].
const BLOCKS: usize = 50;

/// Natural logarithm of the standard deviation of values in groups, with its error by the jackknife that leaves out a
/// group, or of one group a block of consecutive values (Shao and Tu 1995, section 2.2). `None` for fewer than three
/// groups or blocks, or without spread.
pub fn log_sd(groups: &[Vec<f64>]) -> Option<Mean> {
    let mut groups: Vec<Vec<f64>> = groups
        .iter()
        .map(|group| group.iter().copied().filter(|v| v.is_finite()).collect::<Vec<_>>())
        .filter(|group| !group.is_empty())
        .collect();
    if let [one] = groups.as_slice() {
        groups = one.chunks(one.len().div_ceil(BLOCKS)).map(<[f64]>::to_vec).collect();
    }
    let log = |values: &[f64]| sd(values).filter(|sd| *sd > 0.0).map(f64::ln);
    let value = log(&groups.concat())?;
    let without = |left_out: usize| {
        let rest = groups.iter().enumerate().filter(|(index, _)| *index != left_out);
        log(&rest.flat_map(|(_, group)| group.iter().copied()).collect::<Vec<_>>())
    };
    let each: Vec<f64> = (0..groups.len()).map(without).collect::<Option<_>>()?;
    let n = each.len();
    let error = standard_error(&each).filter(|_| n > 2)? * (n as f64 - 1.0);
    Some(Mean { error: Some(error), n, freedom: n as f64 - 1.0, ..Mean::of(&[value])? })
}

/// Ratio of two independent means with an interval (Fieller's, by the delta method on the logarithm); `None` unless
/// both are above 0.
pub fn ratio(a: Estimate, b: Estimate) -> Option<Estimate> {
    if !(a.value > 0.0 && b.value > 0.0) {
        return None;
    }
    let value = a.value / b.value;
    let relative = |e: Estimate| (e.high - e.low) / 2.0 / e.value;
    let margin = relative(a).hypot(relative(b));
    Some(Estimate { value, low: value * (-margin).exp(), high: value * margin.exp() })
}

/// Difference of two independent means with an interval.
pub fn difference(a: Estimate, b: Estimate) -> Estimate {
    let value = a.value - b.value;
    let margin = ((a.high - a.low) / 2.0).hypot((b.high - b.low) / 2.0);
    Estimate { value, low: value - margin, high: value + margin }
}

/// A straight line through points by least squares.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub slope: f64,
    /// 95 % interval of the slope by resampling the points; `None` for fewer than four.
    pub slope_interval: Option<[f64; 2]>,
    pub intercept: f64,
    /// Share of the variance explained.
    pub r2: f64,
}

/// Fits a line; `None` for fewer than two different x.
pub fn line(points: &[(f64, f64)]) -> Option<Line> {
    let (slope, intercept, r2) = least_squares(points)?;
    let mut slopes = Vec::new();
    if points.len() >= 4 {
        let mut random = rand_pcg::Pcg64::seed_from_u64(0x11e);
        for _ in 0..1000 {
            let drawn: Vec<_> =
                (0..points.len()).map(|_| points[random.random_range(0..points.len())]).collect();
            slopes.extend(least_squares(&drawn).map(|(slope, ..)| slope));
        }
        slopes.sort_by(f64::total_cmp);
    }
    let ends = quantile(&slopes, 0.025).zip(quantile(&slopes, 0.975));
    Some(Line { slope, slope_interval: ends.map(|(a, b)| [a, b]), intercept, r2 })
}

fn least_squares(points: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    let n = points.len() as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in points {
        xx += (x - mx).powi(2);
        xy += (x - mx) * (y - my);
        yy += (y - my).powi(2);
    }
    // Without points there is no mean.
    if xx.is_nan() || mx.is_nan() || xx <= 1e-12 * mx.abs().max(1.0) {
        return None;
    }
    let slope = xy / xx;
    let r2 = if yy > 0.0 { (xy * xy / (xx * yy)).clamp(0.0, 1.0) } else { 1.0 };
    Some((slope, my - slope * mx, r2))
}

/// Slope and fit of log2 y against log2 x: 1 when y is in proportion to x. Points that are not above 0 are left out.
pub fn log_line(points: &[(f64, f64)]) -> Option<Line> {
    let logs: Vec<_> =
        points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.log2(), y.log2())).collect();
    line(&logs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::stats::normal_of;
    use proptest::prelude::*;
    use rand::Rng;

    #[test]
    fn worked_examples() {
        let s = summary(&[vec![1.0, 2.0, 3.0, 4.0]]).unwrap();
        assert_eq!((s.n, s.mean, s.median, s.min, s.max, s.p25), (4, 2.5, 2.5, 1.0, 4.0, 1.75));
        // sd = sqrt(5/3), t(0.975, 3) = 3.182
        assert!((s.mean_interval.unwrap()[1] - 2.5 - 3.182 * (5.0f64 / 3.0).sqrt() / 2.0).abs() < 1e-3);
        let doubling = log_line(&[(1.0, 3.0), (2.0, 6.0), (4.0, 12.0), (8.0, 24.0)]).unwrap();
        assert!((doubling.slope - 1.0).abs() < 1e-12 && doubling.r2 > 0.999_999);
        assert_eq!(line(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(summary(&[vec![f64::NAN], vec![]]), None);
        assert_eq!(estimate(&[5.0]), Some(Estimate { value: 5.0, low: 5.0, high: 5.0 }));
    }

    #[test]
    fn a_standard_deviation_has_an_error_too() {
        // Of a normal sample ln sd has the error 1 / sqrt(2 (n - 1)).
        let mut random = rand_pcg::Pcg64::seed_from_u64(5);
        let values: Vec<f64> =
            (0..400).map(|_| (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0).collect();
        let found = log_sd(&[values]).unwrap();
        let expected = 1.0 / (2.0 * 399.0f64).sqrt();
        assert!(found.value.abs() < 3.0 * expected, "{found:?}");
        assert!((0.6..1.6).contains(&(found.error.unwrap() / expected)), "{found:?} {expected}");
        assert_eq!((log_sd(&[vec![1.0; 9]]), log_sd(&[vec![1.0, 2.0]]), log_sd(&[])), (None, None, None));
    }

    #[test]
    fn groups_that_differ_widen_the_interval() {
        let noise = |base: f64| (0..20).map(|n| base + f64::from(n % 5)).collect::<Vec<_>>();
        let together = summary(&[[noise(10.0), noise(20.0), noise(30.0)].concat()]).unwrap();
        let apart = summary(&[noise(10.0), noise(20.0), noise(30.0)]).unwrap();
        let width = |s: &Summary| s.mean_interval.map(|[a, b]| b - a).unwrap();
        assert!(width(&apart) > 1.5 * width(&together), "{} {}", width(&apart), width(&together));
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(7);
        let mut normal = || normal_of(random.random_range(1e-12..1.0), random.random());
        // Runs of one repetition; of a few, which differ as much as runs do.
        for sizes in [&[30][..], &[3, 3], &[10, 10, 10], &[12, 4, 8, 6]] {
            let (mut means, mut medians, rounds) = (0, 0, 1000);
            for _ in 0..rounds {
                let mut repetition = |size: &usize| {
                    let own = if sizes.len() > 1 { normal() } else { 0.0 };
                    (0..*size).map(|_| own + normal()).collect::<Vec<f64>>()
                };
                let s = summary(&sizes.iter().map(&mut repetition).collect::<Vec<_>>()).unwrap();
                let holds = |interval: Option<[f64; 2]>| interval.is_none_or(|[a, b]| a <= 0.0 && 0.0 <= b);
                means += u32::from(holds(s.mean_interval));
                medians += u32::from(holds(s.median_interval));
            }
            assert!(means >= 925 && medians >= 925, "{sizes:?}: {means} and {medians} of {rounds}");
        }
    }

    fn sample() -> impl Strategy<Value = Vec<f64>> {
        proptest::collection::vec(-1e6f64..1e6, 1..40)
    }

    proptest! {
        // Each case draws thousands of samples.
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_summary_is_in_order(values in sample()) {
            let s = summary(std::slice::from_ref(&values)).unwrap();
            let order = [s.min, s.p5, s.p25, s.median, s.p75, s.p95, s.p99, s.max];
            prop_assert!(order.windows(2).all(|w| w[0] <= w[1] + 1e-9), "{order:?}");
            prop_assert!(s.mean >= s.min - 1e-6 && s.mean <= s.max + 1e-6);
            if let Some([low, high]) = s.mean_interval {
                prop_assert!(low <= s.mean + 1e-6 && s.mean <= high + 1e-6);
            }
            // The order of the values and a constant added change nothing else.
            let mut back = values.clone();
            back.reverse();
            prop_assert!((summary(&[back]).unwrap().median - s.median).abs() < 1e-9);
            let shifted: Vec<f64> = values.iter().map(|v| v + 100.0).collect();
            prop_assert!((summary(&[shifted]).unwrap().mean - s.mean - 100.0).abs() < 1e-6);
        }

        #[test]
        fn a_line_is_found_again(slope in -100.0f64..100.0, intercept in -100.0f64..100.0, n in 2usize..20) {
            let points: Vec<_> = (0..n).map(|i| (i as f64, slope * i as f64 + intercept)).collect();
            let line = line(&points).unwrap();
            prop_assert!((line.slope - slope).abs() < 1e-6 && (line.intercept - intercept).abs() < 1e-6);
        }

        #[test]
        fn ratios_hold_their_value(a in 0.1f64..1e3, b in 0.1f64..1e3, wa in 0.0f64..0.5, wb in 0.0f64..0.5) {
            let e = |v: f64, w: f64| Estimate { value: v, low: v * (1.0 - w), high: v * (1.0 + w) };
            let r = ratio(e(a, wa), e(b, wb)).unwrap();
            prop_assert!(r.low <= r.value && r.value <= r.high && (r.value - a / b).abs() < 1e-9);
        }
    }
}
