//! Figures with what is known of their error, at any level of confidence.

use evenkeel_base::run::Estimate;
use evenkeel_base::stats::{mean, standard_error, t_factor};

use super::quantile::Quantile;

/// A mean of independent values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    pub value: f64,
    /// Its standard error; `None` where a single value shows none.
    pub error: Option<f64>,
    /// Degrees of freedom of that error.
    pub freedom: f64,
    /// Values it comes from: repetitions, or runs where there is one repetition.
    pub n: usize,
    /// They are runs: how much repetitions differ is not known.
    pub of_runs: bool,
    /// The truth may be larger without bound: something was cut off.
    pub at_least: bool,
    /// The truth may be smaller without bound.
    pub at_most: bool,
}

impl Mean {
    /// Of independent values; `None` of none, or where one is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        let value = mean(values).filter(|v| v.is_finite())?;
        let n = values.len();
        Some(Self {
            value,
            error: standard_error(values),
            freedom: n as f64 - 1.0,
            n,
            of_runs: false,
            at_least: false,
            at_most: false,
        })
    }

    /// Of values that come in groups (the runs of each repetition): values of one group resemble each other, so with
    /// several groups their means are the sample.
    pub fn of_groups(groups: &[Vec<f64>]) -> Option<Self> {
        let groups: Vec<&Vec<f64>> = groups.iter().filter(|g| !g.is_empty()).collect();
        match groups.as_slice() {
            [one] => Some(Self { of_runs: true, ..Self::of(one)? }),
            several => Self::of(&several.iter().map(|g| mean(g)).collect::<Option<Vec<f64>>>()?),
        }
    }

    /// Values that are lower bounds in part: runs that were cut off.
    #[must_use]
    pub fn cut_off(self, cut: bool) -> Self {
        Self { at_least: self.at_least || cut, ..self }
    }

    /// Times a constant, which is known exactly.
    #[must_use]
    pub fn times(self, by: f64) -> Self {
        let swap = by < 0.0;
        Self {
            value: self.value * by,
            error: self.error.map(|e| e * by.abs()),
            at_least: if swap { self.at_most } else { self.at_least },
            at_most: if swap { self.at_least } else { self.at_most },
            ..self
        }
    }

    #[must_use]
    pub fn plus(self, by: f64) -> Self {
        Self { value: self.value + by, ..self }
    }

    /// A sum of independent means, each times a weight (Welch; degrees of freedom by Satterthwaite). `None` of nothing.
    pub fn sum(parts: &[(f64, Self)]) -> Option<Self> {
        let mut errors = Some((0.0, 0.0));
        for (weight, part) in parts {
            errors = errors.zip(part.error).map(|((all, fourth), error)| {
                let squared = (weight * error).powi(2);
                (all + squared, fourth + squared.powi(2) / part.freedom.max(1.0))
            });
        }
        let least = parts.iter().map(|(_, p)| p.freedom).min_by(f64::total_cmp)?;
        let freedom = match errors {
            Some((all, fourth)) if fourth > 0.0 => all * all / fourth,
            _ => least,
        };
        let open = |up: bool| {
            parts
                .iter()
                .any(|(w, p)| if (*w > 0.0) == up { p.at_least && *w != 0.0 } else { p.at_most && *w != 0.0 })
        };
        Some(Self {
            value: parts.iter().map(|(w, p)| w * p.value).sum(),
            error: errors.map(|(all, _)| all.sqrt()),
            freedom,
            n: parts.iter().map(|(_, p)| p.n).min()?,
            of_runs: parts.iter().any(|(_, p)| p.of_runs),
            at_least: open(true),
            at_most: open(false),
        })
    }

    /// This less another, independent one.
    pub fn less(self, other: Self) -> Option<Self> {
        Self::sum(&[(1.0, self), (-1.0, other)])
    }

    /// Its natural logarithm, by the delta method; `None` unless it is above 0.
    pub fn ln(self) -> Option<Self> {
        (self.value > 0.0).then(|| Self {
            value: self.value.ln(),
            error: self.error.map(|e| e / self.value),
            ..self
        })
    }

    /// This over another, independent one.
    pub fn over(self, other: Self) -> Option<Figure> {
        self.ln()?.less(other.ln()?).map(Figure::Ratio)
    }

    /// What so many times as many values would give, if they spread alike.
    fn grown(self, times: f64) -> Self {
        let more = (self.n as f64 * times - 1.0) / (self.n as f64 - 1.0);
        Self { error: self.error.map(|e| e / times.sqrt()), freedom: self.freedom * more, ..self }
    }

    fn interval(&self, alpha: f64) -> [f64; 2] {
        let margin = match self.error {
            None => f64::INFINITY,
            Some(0.0) => 0.0,
            Some(error) => t_factor(self.freedom, alpha) * error,
        };
        [
            if self.at_most { f64::NEG_INFINITY } else { self.value - margin },
            if self.at_least { f64::INFINITY } else { self.value + margin },
        ]
    }
}

/// A quantity that something can be said of.
#[derive(Debug, Clone, PartialEq)]
pub enum Figure {
    Mean(Mean),
    /// A ratio, by the mean of its natural logarithm.
    Ratio(Mean),
    /// Seen in full, no sample: the largest of all that was measured, a count.
    Observed(f64),
    Largest(Vec<Figure>),
    Smallest(Vec<Figure>),
    /// The largest distance from 0 of several.
    Deviation(Vec<Figure>),
    /// The largest less the smallest.
    Range(Vec<Figure>),
    Quantile(Quantile),
    /// The first less the second.
    Less(Box<Figure>, Box<Figure>),
    /// The first over the second, both above 0.
    Over(Box<Figure>, Box<Figure>),
}

impl Figure {
    /// This less another one. The interval is made of those of both (Zou and Donner 2008, for parts that are independent;
    /// of two quantiles of one sample it is wider than need be).
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self::Less(Box::new(self), Box::new(other))
    }

    /// This over another one; the interval likewise, of the logarithms.
    #[must_use]
    pub fn over(self, other: Self) -> Self {
        Self::Over(Box::new(self), Box::new(other))
    }

    /// How much this is more than another one, percent of the latter.
    #[must_use]
    pub fn percent_more(self, than: Self) -> Self {
        self.over(than).over(Self::Observed(0.01)).less(Self::Observed(100.0))
    }

    /// Its best estimate; `None` of several where there is none.
    pub fn value(&self) -> Option<f64> {
        let all = |parts: &[Self]| parts.iter().map(Self::value).collect::<Option<Vec<f64>>>();
        let most = |v: Vec<f64>| v.into_iter().max_by(f64::total_cmp);
        let least = |v: Vec<f64>| v.into_iter().min_by(f64::total_cmp);
        match self {
            Self::Mean(mean) => Some(mean.value),
            Self::Ratio(log) => Some(log.value.exp()),
            Self::Observed(value) => Some(*value),
            Self::Largest(parts) => most(all(parts)?),
            Self::Smallest(parts) => least(all(parts)?),
            Self::Deviation(parts) => most(all(parts)?.into_iter().map(f64::abs).collect()),
            Self::Range(parts) => Some(most(all(parts)?)? - least(all(parts)?)?),
            Self::Quantile(quantile) => Some(quantile.value()).filter(|v| v.is_finite()),
            Self::Less(a, b) => Some(a.value()? - b.value()?),
            Self::Over(a, b) => {
                let (a, b) = (a.value()?, b.value()?);
                (a > 0.0 && b > 0.0).then(|| a / b)
            }
        }
    }

    /// An interval that holds it with an error of at most `alpha`: of several, each has its part of `alpha`, so that all
    /// hold at once.
    pub fn interval(&self, alpha: f64) -> Option<[f64; 2]> {
        let all = |parts: &[Self]| {
            let each = alpha / parts.len().max(1) as f64;
            let found = parts.iter().map(|p| p.interval(each)).collect::<Option<Vec<_>>>()?;
            (!found.is_empty()).then_some(found)
        };
        let fold = |ends: &[[f64; 2]], of: fn(&[f64; 2]) -> f64, pick: fn(f64, f64) -> f64, from: f64| {
            ends.iter().map(of).fold(from, pick)
        };
        let low = |e: &[f64; 2]| e[0];
        let high = |e: &[f64; 2]| e[1];
        let (inf, none) = (f64::INFINITY, f64::NEG_INFINITY);
        Some(match self {
            Self::Mean(mean) => mean.interval(alpha),
            Self::Ratio(log) => log.interval(alpha).map(f64::exp),
            Self::Observed(value) => [*value; 2],
            Self::Largest(parts) => {
                let ends = all(parts)?;
                [fold(&ends, low, f64::max, none), fold(&ends, high, f64::max, none)]
            }
            Self::Smallest(parts) => {
                let ends = all(parts)?;
                [fold(&ends, low, f64::min, inf), fold(&ends, high, f64::min, inf)]
            }
            Self::Deviation(parts) => {
                let ends: Vec<[f64; 2]> =
                    all(parts)?.iter().map(|[l, h]| [l.max(-h).max(0.0), l.abs().max(h.abs())]).collect();
                [fold(&ends, low, f64::max, 0.0), fold(&ends, high, f64::max, 0.0)]
            }
            Self::Range(parts) => {
                let ends = all(parts)?;
                let least = fold(&ends, low, f64::max, none) - fold(&ends, high, f64::min, inf);
                let most = fold(&ends, high, f64::max, none) - fold(&ends, low, f64::min, inf);
                [least.max(0.0), most]
            }
            Self::Quantile(quantile) => quantile.interval(alpha),
            Self::Less(a, b) => apart((a.value()?, a.interval(alpha)?), (b.value()?, b.interval(alpha)?)),
            Self::Over(a, b) => {
                self.value()?;
                // What is 0 or less has no logarithm: that end is open.
                let ln = |f: &Self| Some((f.value()?.ln(), f.interval(alpha)?.map(|end| end.max(0.0).ln())));
                // An end that nothing is known of stays open: 0 would be no news of a ratio.
                apart(ln(a)?, ln(b)?).map(|end| if end.is_finite() { end.exp() } else { end })
            }
        })
    }

    /// Its estimate with its interval.
    pub fn estimate(&self, alpha: f64) -> Option<Estimate> {
        let [low, high] = self.interval(alpha)?;
        Some(Estimate { value: self.value()?, low, high })
    }

    /// Fewest values any part comes from; `None` where all was seen.
    pub(super) fn n(&self) -> Option<usize> {
        match self {
            Self::Mean(mean) | Self::Ratio(mean) => Some(mean.n),
            Self::Quantile(quantile) => Some(quantile.n()),
            Self::Less(a, b) | Self::Over(a, b) => [a.n(), b.n()].into_iter().flatten().min(),
            Self::Observed(_) => None,
            Self::Largest(p) | Self::Smallest(p) | Self::Deviation(p) | Self::Range(p) => {
                p.iter().filter_map(Self::n).min()
            }
        }
    }

    /// Parts that share `alpha`.
    pub(super) fn parts(&self) -> usize {
        match self {
            Self::Mean(_) | Self::Ratio(_) | Self::Quantile(_) => 1,
            Self::Less(a, b) | Self::Over(a, b) => a.parts().max(b.parts()),
            Self::Observed(_) => 0,
            Self::Largest(p) | Self::Smallest(p) | Self::Deviation(p) | Self::Range(p) => p.len(),
        }
    }

    /// What so many times as many values of each part would give, if they spread alike.
    pub(super) fn grown(&self, times: f64) -> Self {
        let all = |parts: &[Self]| parts.iter().map(|part| part.grown(times)).collect();
        match self {
            Self::Mean(mean) => Self::Mean(mean.grown(times)),
            Self::Ratio(mean) => Self::Ratio(mean.grown(times)),
            Self::Quantile(quantile) => Self::Quantile(quantile.grown(times)),
            Self::Observed(value) => Self::Observed(*value),
            Self::Less(a, b) => a.grown(times).less(b.grown(times)),
            Self::Over(a, b) => a.grown(times).over(b.grown(times)),
            Self::Largest(p) => Self::Largest(all(p)),
            Self::Smallest(p) => Self::Smallest(all(p)),
            Self::Deviation(p) => Self::Deviation(all(p)),
            Self::Range(p) => Self::Range(all(p)),
        }
    }

    /// Whether some part comes from the runs of one repetition.
    pub(super) fn is_of_runs(&self) -> bool {
        match self {
            Self::Mean(mean) | Self::Ratio(mean) => mean.of_runs,
            Self::Quantile(quantile) => quantile.is_of_runs(),
            Self::Observed(_) => false,
            Self::Less(a, b) | Self::Over(a, b) => a.is_of_runs() || b.is_of_runs(),
            Self::Largest(p) | Self::Smallest(p) | Self::Deviation(p) | Self::Range(p) => {
                p.iter().any(Self::is_of_runs)
            }
        }
    }

    /// Whether something in it was cut off.
    pub fn is_bound(&self) -> bool {
        match self {
            Self::Mean(mean) | Self::Ratio(mean) => mean.at_least || mean.at_most,
            Self::Less(a, b) | Self::Over(a, b) => a.is_bound() || b.is_bound(),
            Self::Observed(_) | Self::Quantile(_) => false,
            Self::Largest(p) | Self::Smallest(p) | Self::Deviation(p) | Self::Range(p) => {
                p.iter().any(Self::is_bound)
            }
        }
    }
}

/// Interval of a difference from its parts, each with its estimate and interval.
fn apart((a, [a_low, a_high]): (f64, [f64; 2]), (b, [b_low, b_high]): (f64, [f64; 2])) -> [f64; 2] {
    [a - b - (a - a_low).hypot(b_high - b), a - b + (a_high - a).hypot(b - b_low)]
}
