//! How single runs are distributed, and what changed of that: the middle, the slow end, the spread.
//!
//! Of a time p50, p90 and p99; of a rate, whose slow end is the low one, p50, p10 and p1. Their intervals assume no shape
//! ([`crate::decide::Quantile`]). What a sample is too small for is not given, and the row says what is lacking.

use evenkeel_base::run::Estimate;
use evenkeel_base::text::bracketed;
use serde::{Deserialize, Serialize};

use super::matching::{Match, Place};
use super::{Changes, NOTABLE_PCT, letter};
use crate::decide::{Claim, Decision, Draft, Figure, Quantile, Said, Sample, Verdict, page_beside};
use crate::record::RunRecord;
use crate::study::{self, sample, stats};

/// Confidence of the intervals shown: 1 - this.
const SHOWN: f64 = 0.05;

/// One feature of how the runs of a tenant are distributed, in each study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DistributionRow {
    pub point: String,
    /// Tenant, or the units of those that are compared together.
    pub tenant: String,
    /// Of each run: `run_s` (length), `events_per_s`, `waited_s` (waited for a CPU by the kernel's account).
    pub quantity: String,
    /// `p50`, `p90`, `p99` (of a rate `p50`, `p10`, `p1`); `p90-p10`; `p99/p50` (of a rate `p50/p1`); `sd`, the standard
    /// deviation; `slowest/fastest`, of the runs seen.
    pub feature: String,
    /// Runs in each study.
    pub runs: Vec<usize>,
    /// In each study, with a 95 % interval (`slowest/fastest`: as seen, without one); `None` where it cannot be had.
    pub values: Vec<Option<Estimate>>,
    /// Why a study has no value: `153 of 368 runs`, independent runs that the sample is worth, and those needed.
    pub lacking: Vec<Option<String>>,
    /// Change of each against the first, percent, with its own 95 % interval.
    pub changes_pct: Vec<Option<Estimate>>,
    /// As of [`super::ComparedRow`]; empty for `sd` and `slowest/fastest`, which are shown and not decided.
    pub verdict: String,
}

/// What is recorded of single runs, and whether more is better.
type OfRuns = (&'static str, bool, fn(&RunRecord) -> Option<f64>);
const OF_RUNS: [OfRuns; 3] = [
    ("run_s", false, RunRecord::length_s),
    ("events_per_s", true, sample::events_per_s),
    ("waited_s", false, |run| run.account.waited_s),
];

/// A row whose verdict waits for how many others there are.
pub(super) struct Found {
    row: DistributionRow,
    pub changes: Changes,
}

impl Found {
    pub(super) fn decided(self, alpha: f64) -> DistributionRow {
        let asked = self.changes.figures.iter().any(Option::is_some);
        let is_quantile = !matches!(self.row.feature.as_str(), "sd" | "slowest/fastest");
        let verdict = if asked || is_quantile { self.changes.word(alpha) } else { "" };
        DistributionRow { verdict: verdict.into(), ..self.row }
    }
}

/// A feature of a sample that has an interval at every level.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Feature {
    At(f64),
    /// The second less the first.
    Between(f64, f64),
    /// The first over the second.
    Over(f64, f64),
}

impl Feature {
    /// Features of a quantity, with their names.
    fn all(more_is_better: bool) -> [(&'static str, Self); 5] {
        let spread = ("p90-p10", Self::Between(0.1, 0.9));
        if more_is_better {
            let tail = ("p50/p1", Self::Over(0.5, 0.01));
            [("p50", Self::At(0.5)), ("p10", Self::At(0.1)), ("p1", Self::At(0.01)), spread, tail]
        } else {
            let tail = ("p99/p50", Self::Over(0.99, 0.5));
            [("p50", Self::At(0.5)), ("p90", Self::At(0.9)), ("p99", Self::At(0.99)), spread, tail]
        }
    }

    /// The quantile that needs most runs.
    fn hardest(self) -> f64 {
        match self {
            Self::At(at) | Self::Between(_, at) => at,
            Self::Over(a, b) if (a - 0.5).abs() > (b - 0.5).abs() => a,
            Self::Over(_, b) => b,
        }
    }

    /// Its figure; what is lacking where the sample gives no interval at 95 %.
    fn of(self, sample: &std::sync::Arc<Sample>) -> Result<Figure, String> {
        let hardest = Quantile::of(sample, self.hardest());
        if !hardest.interval(SHOWN).iter().all(|end| end.is_finite()) {
            return Err(format!("{} of {} runs", hardest.effective(SHOWN), hardest.needed(SHOWN)));
        }
        let at = |at: f64| Figure::Quantile(Quantile::of(sample, at));
        Ok(match self {
            Self::At(share) => at(share),
            Self::Between(low, high) => at(high).less(at(low)),
            Self::Over(a, b) => at(a).over(at(b)),
        })
    }
}

fn sample_of(place: &Place<'_>, of: fn(&RunRecord) -> Option<f64>) -> Option<std::sync::Arc<Sample>> {
    Sample::of(&place.groups(of))
}

pub(super) fn rows(one: &Match<'_>) -> Vec<Found> {
    let mut rows = Vec::new();
    for (quantity, more_is_better, of) in OF_RUNS.into_iter().filter(|q| one.is_comparable(q.0)) {
        let groups: Vec<Option<Vec<Vec<f64>>>> =
            one.sides.iter().map(|side| Some(side.as_ref()?.groups(of))).collect();
        let samples: Vec<_> = groups.iter().map(|groups| Sample::of(groups.as_ref()?)).collect();
        if samples.first().is_none_or(Option::is_none) {
            continue;
        }
        let runs: Vec<usize> = samples.iter().map(|s| s.as_ref().map_or(0, |s| s.count())).collect();
        let found = |feature: &str, values, lacking, changes_pct, figures| Found {
            row: DistributionRow {
                point: one.point.clone(),
                tenant: one.tenant.clone(),
                quantity: quantity.into(),
                feature: feature.into(),
                runs: runs.clone(),
                values,
                lacking,
                changes_pct,
                verdict: String::new(),
            },
            // A spread or a tail that grows is worse, whatever is counted.
            changes: Changes { figures, more_is_better: more_is_better && is_level(feature) },
        };
        for (name, feature) in Feature::all(more_is_better) {
            let figures: Vec<Option<Result<Figure, String>>> =
                samples.iter().map(|s| s.as_ref().map(|s| feature.of(s))).collect();
            let lacking = figures.iter().map(|f| f.as_ref()?.as_ref().err().cloned()).collect();
            let figures: Vec<Option<Figure>> = figures.into_iter().map(|f| f?.ok()).collect();
            let changes = changes(&figures);
            let values = figures.iter().map(|f| finite(f.as_ref()?.estimate(SHOWN)?)).collect();
            let changes_pct = changes.iter().map(|f| finite(f.as_ref()?.estimate(SHOWN)?)).collect();
            rows.push(found(name, values, lacking, changes_pct, changes));
        }
        // The interval of a standard deviation leans on the fourth moment: enough to be shown, not to be decided.
        let sds: Vec<Option<Figure>> =
            groups.iter().map(|groups| Some(Figure::Ratio(stats::log_sd(groups.as_ref()?)?))).collect();
        let none = vec![None; samples.len()];
        let values = sds.iter().map(|f| finite(f.as_ref()?.estimate(SHOWN)?)).collect();
        let changes_pct = changes(&sds).iter().map(|f| finite(f.as_ref()?.estimate(SHOWN)?)).collect();
        rows.push(found("sd", values, none.clone(), changes_pct, Vec::new()));
        // Extremes of what was seen: they grow with the number of runs and have no interval.
        let seen = samples.iter().map(|s| {
            let [least, most] = s.as_ref()?.ends();
            let value = Some(most / least).filter(|_| least > 0.0)?;
            Some(Estimate { value, low: value, high: value })
        });
        rows.push(found("slowest/fastest", seen.collect(), none, vec![None; samples.len() - 1], Vec::new()));
    }
    rows
}

/// Whether a feature is a value of runs, and not a spread of them.
fn is_level(feature: &str) -> bool {
    !feature.contains(['-', '/']) && feature != "sd"
}

fn finite(e: Estimate) -> Option<Estimate> {
    (e.value.is_finite() && e.is_bounded()).then_some(e)
}

/// Changes against the first, percent.
fn changes(figures: &[Option<Figure>]) -> Vec<Option<Figure>> {
    let change = |to: &Option<Figure>| {
        let change = to.clone()?.percent_more(figures.first()?.clone()?);
        // Of a spread of 0 there are no percents.
        change.value().is_some().then_some(change)
    };
    figures.iter().skip(1).map(change).collect()
}

/// Whether the runs of each match are as long in the other studies as in the first: the middle and the slow end together.
/// The features are among the `claims` that the page's tables decide.
pub(super) fn verdicts(matches: &[Match<'_>], claims: usize) -> Vec<Verdict> {
    let mut drafts = Vec::new();
    for one in matches.iter().filter(|one| one.is_comparable("run_s")) {
        let samples: Vec<_> =
            one.sides.iter().map(|side| sample_of(side.as_ref()?, RunRecord::length_s)).collect();
        for (index, sample) in samples.iter().enumerate().skip(1) {
            let (Some(Some(first)), Some(later)) = (samples.first(), sample) else { continue };
            let changed: Vec<(&str, Figure)> = Feature::all(false)
                .into_iter()
                .filter_map(|(name, feature)| {
                    let change = feature.of(later).ok()?.percent_more(feature.of(first).ok()?);
                    change.value().is_some().then_some((name, change))
                })
                .collect();
            drafts.extend(draft(one, index, changed));
        }
    }
    page_beside(drafts, claims)
}

fn draft<'a>(one: &Match<'_>, index: usize, changed: Vec<(&'a str, Figure)>) -> Option<Draft<'a>> {
    let levels: Vec<Figure> =
        changed.iter().filter(|(name, _)| is_level(name)).map(|(_, figure)| figure.clone()).collect();
    let names: Vec<&str> = changed.iter().map(|(name, _)| *name).collect();
    if levels.is_empty() {
        return None;
    }
    let who = format!("{}{}", study::prefix(&one.point), one.tenant);
    let who = who.trim().to_owned();
    let mut claims = vec![(Figure::Deviation(levels), Claim::AtMost(NOTABLE_PCT))];
    claims.extend(changed.into_iter().map(|(_, figure)| (figure, Claim::AtMost(0.0))));
    let about = format!("{who}, {}", letter(index));
    let words = move |d: &[Decision]| {
        let each: Vec<String> =
            names.iter().zip(&d[1..]).map(|(name, d)| format!("{name} {}", percent(d))).collect();
        let says = match d[0].holds {
            Some(true) => format!("as long in {} as in A, within {NOTABLE_PCT} %", letter(index)),
            Some(false) => format!("not as long in {} as in A", letter(index)),
            None => {
                format!("open whether they are as long in {} as in A, within {NOTABLE_PCT} %", letter(index))
            }
        };
        let says = if d[0].holds.is_none() { says } else { format!("they are {says}") };
        Some(Said {
            holds: d[0].holds,
            text: format!("Runs of {who}: {says}: {}.", each.join(", ")),
            shown: Some(0),
        })
    };
    let statistic = ("largest change of p50, p90 and p99 of the length of a run", "%");
    Some(Draft::with("runs-as-long", &about, statistic, claims, words).decided_already())
}

/// `+1.2 % [0.8, 1.9]`.
fn percent(decision: &Decision) -> String {
    match (decision.value, decision.interval) {
        (Some(value), Some([low, high])) if low.is_finite() && high.is_finite() => {
            let [low, high] = [low, high].map(|end| format!("{end:+.1}"));
            format!("{value:+.1} % {}", bracketed(low, high))
        }
        (Some(value), _) => format!("{value:+.1} % [no interval]"),
        (None, _) => "?".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Side, compare};
    use super::*;
    use crate::decide::{decide, each};
    use crate::study::testing::{cell, record, tenant};
    use evenkeel_base::stats::binomial;
    use rand::{Rng, SeedableRng};

    type Random = rand_pcg::Pcg64;

    /// Lengths of runs as they are: a least time, a tail, stamps of a tenth of a millisecond, and each group a little off.
    fn drawn(random: &mut Random, groups: usize, runs: usize) -> Vec<Vec<f64>> {
        (0..groups)
            .map(|_| {
                let off = if groups > 1 { 1.0 + 0.01 * random.random::<f64>() } else { 1.0 };
                let one = |random: &mut Random| {
                    let late = -random.random::<f64>().max(1e-12).ln();
                    (1e4 * off * (1.0 + 0.1 * late)).round() / 1e4
                };
                (0..runs).map(|_| one(random)).collect()
            })
            .collect()
    }

    /// Changes of all features that both samples give.
    fn changed(a: &[Vec<f64>], b: &[Vec<f64>]) -> Vec<Figure> {
        let (a, b) = (Sample::of(a).unwrap(), Sample::of(b).unwrap());
        let change = |(_, f): (&str, Feature)| Some(f.of(&b).ok()?.percent_more(f.of(&a).ok()?));
        Feature::all(false).into_iter().filter_map(change).collect()
    }

    /// A planted change is decided at the level of a page with so many claims.
    const CLAIMS: usize = 40;

    #[test]
    fn a_planted_change_of_twice_the_half_width_is_found() {
        let mut random = Random::seed_from_u64(21);
        let rounds = 400;
        for at in [0.5, 0.9] {
            let mut found = 0;
            for _ in 0..rounds {
                let (a, b) = (drawn(&mut random, 1, 250), drawn(&mut random, 1, 250));
                let figure =
                    |groups: &[Vec<f64>]| Figure::Quantile(Quantile::of(&Sample::of(groups).unwrap(), at));
                let [low, high] = figure(&b).over(figure(&a)).interval(each(CLAIMS)).unwrap();
                // Half of the interval of the logarithm, twice.
                let planted: Vec<f64> = b[0].iter().map(|v| v * (high / low)).collect();
                let change = figure(&[planted]).percent_more(figure(&a));
                found += u64::from(decide(&change, Claim::AtMost(0.0), each(CLAIMS)).no());
            }
            assert!(found * 100 >= 95 * rounds, "p{}: {found} of {rounds}", 100.0 * at);
        }
    }

    #[test]
    fn equal_distributions_are_not_called_different() {
        let mut random = Random::seed_from_u64(22);
        // One repetition, and several whose runs resemble each other.
        for (groups, runs) in [(1, 60), (1, 400), (5, 60)] {
            let rounds = 80;
            let mut wrong = 0;
            for _ in 0..rounds {
                // Three tenants: any figure of the page called different is a wrong page.
                let changes: Vec<Figure> = (0..3)
                    .flat_map(|_| {
                        let (a, b) = (drawn(&mut random, groups, runs), drawn(&mut random, groups, runs));
                        changed(&a, &b)
                    })
                    .collect();
                let alpha = each(changes.len());
                let differs =
                    |f: &Figure| f.interval(alpha).is_some_and(|[low, high]| low > 0.0 || high < 0.0);
                wrong += u64::from(changes.iter().any(differs));
            }
            let least = binomial::lower(wrong, rounds, 0.01);
            assert!(least <= 0.05, "{wrong} of {rounds} pages with {groups} x {runs} runs");
        }
    }

    /// One tenant whose runs last so long.
    fn side(name: &str, lengths: &[f64]) -> Side {
        let mut at = 0.0;
        let runs: Vec<(f64, f64, f64)> = lengths
            .iter()
            .map(|length| {
                at += length;
                (at - length, at, 1000.0)
            })
            .collect();
        let of = |runs| record(vec![("p", cell(vec![tenant("a", Some(64), runs)]))]);
        // Distributions come from the record; a study of few runs is made faster.
        Side { record: of(&runs), ..Side::of(name, of(&runs[..20])) }
    }

    /// Ten seconds and a little; every tenth one takes `slow` longer.
    fn lengths(count: usize, slow: f64) -> Vec<f64> {
        (0..count)
            .map(|n| 10.0 + 0.01 * ((n * 37 % 100) as f64 / 100.0) + if n % 10 == 3 { slow } else { 0.0 })
            .collect()
    }

    #[test]
    fn a_tail_that_grew_is_told_from_a_middle_that_did_not() {
        let result = compare(&[side("before", &lengths(1000, 0.1)), side("after", &lengths(1000, 2.0))]);
        let verdict = |quantity: &str, feature: &str| {
            let row = result.distributions.iter().find(|r| r.quantity == quantity && r.feature == feature);
            row.unwrap_or_else(|| panic!("{feature}")).verdict.clone()
        };
        assert_eq!((verdict("run_s", "p50"), verdict("run_s", "p99")), ("same".into(), "worse".into()));
        assert_eq!(
            (verdict("run_s", "p99/p50"), verdict("events_per_s", "p1")),
            ("worse".into(), "worse".into())
        );
        assert_eq!(
            (verdict("run_s", "sd"), verdict("run_s", "slowest/fastest")),
            (String::new(), String::new())
        );
        assert!(!result.distributions.iter().any(|r| r.quantity == "waited_s"), "not recorded");
        let [one] = result.verdicts.as_slice() else { panic!("{:?}", result.verdicts) };
        assert_eq!(one.holds, Some(false), "{one:?}");
        assert!(one.text.contains("not as long in B as in A: p50 +0.0 % ["), "{}", one.text);
        let again = compare(&[side("before", &lengths(1000, 0.1)), side("after", &lengths(1000, 0.1))]);
        assert!(again.distributions.iter().all(|r| r.verdict != "worse" && r.verdict != "better"));
    }

    #[test]
    fn what_a_sample_is_too_small_for_is_said() {
        let result = compare(&[side("a", &lengths(100, 0.1)), side("b", &lengths(400, 0.1))]);
        let row = |feature: &str| {
            let of = |r: &&DistributionRow| r.quantity == "run_s" && r.feature == feature;
            result.distributions.iter().find(of).unwrap()
        };
        let p99 = row("p99");
        assert_eq!(p99.lacking, [Some("100 of 368 runs".to_owned()), None]);
        assert!(p99.values[0].is_none() && p99.values[1].is_some() && p99.changes_pct == [None]);
        assert_eq!(p99.verdict, "unknown");
        let p90 = row("p90");
        assert!(
            p90.values.iter().all(|v| v.is_some_and(|e| e.low <= e.value && e.value <= e.high)),
            "{p90:?}"
        );
        assert_eq!((p90.runs.as_slice(), row("sd").changes_pct[0].is_some()), ([100, 400].as_slice(), true));
        assert!((row("slowest/fastest").values[0].unwrap().value - 1.01).abs() < 2e-3);
    }
}
