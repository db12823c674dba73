//! What the blocks say: fulfilment under each setting, gains within rounds, and what may be said of all runs together.

use evenkeel_base::run::Estimate;
use evenkeel_base::stats::{estimate, estimate_at, median};

use super::{DemoReport, DemoRun, Role, split};

/// Chance that any verdict of a report is wrong.
const REPORT_ALPHA: f64 = 0.05;

/// One of the settings that took turns.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Arm {
    pub role: Role,
    /// Fulfilment of its block in each round; `None` where it was cut short.
    pub blocks: Vec<Option<f64>>,
}

/// The rounds that are whole, a row of fulfilments each, in the order of the arms; an arm that lacks more than half of
/// its blocks is `None` and spoils no round. All figures are of these rounds: a mean over other blocks than the gain
/// next to it could say the opposite.
fn whole_rounds(arms: &[Arm]) -> Vec<Vec<Option<f64>>> {
    let rounds = arms.iter().map(|arm| arm.blocks.len()).max().unwrap_or(0);
    let counts =
        |arm: &Arm| 2 * arm.blocks.iter().flatten().filter(|v| v.is_finite()).count() >= rounds.max(1);
    let at = |arm: &Arm, round: usize| arm.blocks.get(round).copied().flatten().filter(|v| v.is_finite());
    (0..rounds)
        .filter(|round| arms.iter().filter(|arm| counts(arm)).all(|arm| at(arm, *round).is_some()))
        .map(|round| arms.iter().map(|arm| at(arm, round).filter(|_| counts(arm))).collect())
        .collect()
}

fn bounded(estimate: Option<Estimate>) -> Option<Estimate> {
    estimate.filter(Estimate::is_bounded)
}

/// Share of the gap that is closed: gains over gaps of the same rounds, with the 95 % interval of the jackknife (delete
/// one round at a time; Tukey 1958).
fn ratio(pairs: &[(f64, f64)]) -> Option<Estimate> {
    let (gains, gaps) = pairs.iter().fold((0.0, 0.0), |(a, b), (gain, gap)| (a + gain, b + gap));
    let n = pairs.len() as f64;
    let left_out: Vec<f64> = pairs
        .iter()
        .map(|(gain, gap)| n * gains / gaps - (n - 1.0) * (gains - gain) / (gaps - gap))
        .collect();
    let spread = estimate(&left_out)?;
    let (value, half) = (gains / gaps, (spread.high - spread.low) / 2.0);
    bounded(value.is_finite().then_some(Estimate { value, low: value - half, high: value + half }))
}

impl DemoRun {
    /// Fills in what the blocks of the comparison say. Where no arm is evenkeel's choice, that is the kernel's default.
    pub fn compare(&mut self, arms: &[Arm]) {
        let rounds = whole_rounds(arms);
        let of = |role: Role| -> Option<Vec<f64>> {
            let index = arms.iter().position(|arm| arm.role == role)?;
            rounds.iter().map(|round| round.get(index).copied().flatten()).collect()
        };
        let default = of(Role::Default);
        let chosen =
            if arms.iter().any(|arm| arm.role == Role::Final) { of(Role::Final) } else { default.clone() };
        let ceiling = of(Role::Ceiling);
        let mean = |values: &Option<Vec<f64>>| split(bounded(values.as_deref().and_then(estimate)));
        (self.default_fulfilment, self.default_interval) = mean(&default);
        (self.published_recipe_fulfilment, self.published_recipe_interval) = mean(&of(Role::Recipe));
        (self.final_fulfilment, self.final_interval) = mean(&chosen);
        (self.realtime_ceiling, self.realtime_ceiling_interval) = mean(&ceiling);
        let over_default = |values: &Option<Vec<f64>>| -> Vec<f64> {
            let pairs = default.iter().flatten().zip(values.iter().flatten());
            pairs.map(|(default, value)| value - default).collect()
        };
        let (gains, gaps) = (over_default(&chosen), over_default(&ceiling));
        (self.gain, self.gain_interval) = split(bounded(estimate(&gains)));
        // A gap is one only beyond its interval.
        (self.gap_closed, self.gap_closed_interval) = (None, None);
        if gains.len() == gaps.len() && bounded(estimate(&gaps)).is_some_and(|gap| gap.low > 0.0) {
            let pairs: Vec<(f64, f64)> = gains.iter().copied().zip(gaps).collect();
            (self.gap_closed, self.gap_closed_interval) = split(ratio(&pairs));
        }
        self.gain_rounds = gains;
    }

    /// The gain with an interval that is wrong with this chance; of documents without rounds the 95 % interval they have.
    fn gain_at(&self, alpha: f64) -> Option<Estimate> {
        if !self.gain_rounds.is_empty() {
            return bounded(estimate_at(&self.gain_rounds, alpha));
        }
        let [low, high] = self.gain_interval?;
        Some(Estimate { value: self.gain?, low, high })
    }

    fn is_compared(&self) -> bool {
        self.default_fulfilment.is_some() && self.final_fulfilment.is_some()
    }
}

/// How a run's end compares with its kernel default: by the interval of the gain within rounds, at a level at which the
/// verdicts on all runs of a report hold together at 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Better beyond the interval.
    Better,
    /// Not told apart, or unknown.
    Unclear,
    /// Worse beyond the interval.
    Worse,
}

impl DemoReport {
    fn compared(&self) -> Vec<&DemoRun> {
        self.runs.iter().filter(|run| run.is_compared()).collect()
    }

    /// A run's gain with an interval that holds together with those of all other runs at 95 %.
    pub fn gain(&self, run: &DemoRun) -> Option<Estimate> {
        run.gain_at(REPORT_ALPHA / self.compared().len().max(1) as f64)
    }

    pub fn verdict(&self, run: &DemoRun) -> Verdict {
        match self.gain(run) {
            Some(gain) if gain.low > 0.0 => Verdict::Better,
            Some(gain) if gain.high < 0.0 => Verdict::Worse,
            _ => Verdict::Unclear,
        }
    }

    pub fn answer(&self) -> String {
        let runs = self.compared();
        let all = runs.len();
        let default = median(runs.iter().filter_map(|run| run.default_fulfilment));
        let now = median(runs.iter().filter_map(|run| run.final_fulfilment));
        let (Some(default), Some(now)) = (default, now) else { return "No run was completed.".to_owned() };
        // A median over other runs than the ones next to it could not be compared with them.
        let recipes: Vec<f64> = runs.iter().filter_map(|run| run.published_recipe_fulfilment).collect();
        let recipe = median(recipes.iter().copied())
            .filter(|_| recipes.len() == all)
            .map_or_else(String::new, |value| format!("; the published recipe gave {value:.3}"));
        let count = |verdict: Verdict| runs.iter().filter(|run| self.verdict(run) == verdict).count();
        let (better, unclear, worse) =
            (count(Verdict::Better), count(Verdict::Unclear), count(Verdict::Worse));
        let counts = match (better, unclear, worse) {
            (_, 0, 0) if all == 1 => "better beyond the interval".to_owned(),
            (0, 0, _) if all == 1 => "worse beyond the interval".to_owned(),
            (_, 0, 0) => "better in every run".to_owned(),
            (0, _, 0) if all == 1 => "no difference beyond the interval".to_owned(),
            (0, _, 0) => "no difference beyond the intervals".to_owned(),
            _ => format!("better in {better} of {all} runs, unclear in {unclear}, worse in {worse}"),
        };
        let of = if all == 1 { "one run".to_owned() } else { format!("medians of {all} runs") };
        format!(
            "With evenkeel the loads got {now:.3} of the CPU they wanted, with the kernel's default \
             {default:.3}{recipe} ({of}; {counts})."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(arms: &[(Role, &[Option<f64>])]) -> DemoRun {
        let arms: Vec<Arm> =
            arms.iter().map(|(role, blocks)| Arm { role: *role, blocks: blocks.to_vec() }).collect();
        let mut run = DemoRun::default();
        run.compare(&arms);
        run
    }

    fn some(values: [f64; 4]) -> [Option<f64>; 4] {
        values.map(Some)
    }

    #[test]
    fn what_comes_and_goes_cancels_within_a_round() {
        // The host was disturbed in the second round: both arms lost 0.3.
        let run = compared(&[
            (Role::Default, &some([0.80, 0.50, 0.81, 0.79])),
            (Role::Final, &some([0.90, 0.60, 0.91, 0.90])),
        ]);
        let [low, high] = run.gain_interval.unwrap();
        assert!(low > 0.08 && high < 0.12, "{low} {high}");
        let (before, after) = (run.default_interval.unwrap(), run.final_interval.unwrap());
        assert!(before[1] > after[0], "the arms alone could not tell: {before:?} {after:?}");
    }

    #[test]
    fn the_gap_closed_has_the_interval_of_its_rounds() {
        let default = some([0.80, 0.50, 0.80, 0.80]);
        let ceiling = some([0.90, 0.60, 0.90, 0.91]);
        let closed = |choice: [f64; 4]| {
            let run = compared(&[
                (Role::Default, &default),
                (Role::Final, &some(choice)),
                (Role::Ceiling, &ceiling),
            ]);
            (run.gap_closed.unwrap(), run.gap_closed_interval.unwrap())
        };
        let (value, [low, high]) = closed([0.85, 0.55, 0.85, 0.855]);
        assert!((value - 0.5).abs() < 1e-9 && high - low < 1e-9, "{value} {low} {high}");
        let (_, [low, high]) = closed([0.90, 0.50, 0.90, 0.80]);
        assert!(low < 0.0 && high > 1.0, "{low} {high}");
    }

    #[test]
    fn a_round_with_a_block_cut_short_counts_for_nobody() {
        // The default's own mean with its second block would be above the choice's.
        let run = compared(&[
            (Role::Default, &[Some(0.5), Some(0.99), Some(0.52), Some(0.51)]),
            (Role::Final, &[Some(0.6), None, Some(0.62), Some(0.61)]),
        ]);
        assert!((run.gain.unwrap() - 0.1).abs() < 1e-12);
        assert!((run.final_fulfilment.unwrap() - run.default_fulfilment.unwrap() - 0.1).abs() < 1e-12);
        // One pair has no interval, and says nothing.
        let run = compared(&[(Role::Default, &[Some(0.5), None]), (Role::Final, &[Some(0.9), Some(0.9)])]);
        assert_eq!((run.gain, run.default_fulfilment), (None, None));
    }
}
