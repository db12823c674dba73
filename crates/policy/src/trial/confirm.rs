//! Confirming one candidate on fresh pairs of windows, in an order that a coin decides.

mod carry;
mod lasting;

use rand::Rng;
use rand_pcg::Pcg32;

use evenkeel_base::run::Estimate;
use evenkeel_base::stats::{self, SignBets, bets};

use super::TrialRules;
use super::objective::{Objective, Value};
use crate::guard::{Doubt, Guard, Harm, Subject};
use crate::monitor::Seen;
use crate::window::Summary;
use carry::CarryOver;
use lasting::{Aged, staying};

/// Pairs before a candidate is given up for want of a gain.
const MIN_PAIRS: usize = 5;
/// Pairs before a candidate that seems to hurt somebody makes room for another one.
const SPOILED_PAIRS: usize = 8;
/// Pairs after which a risk is accepted, where that is allowed.
const ACCEPTED_PAIRS: usize = 15;
/// Pairs that a clear gain takes until no task is shown to be hurt.
const USUAL_PAIRS: f64 = 14.0;
/// Standard errors that a gain may be underestimated by before the candidate is given up.
const BENEFIT_OF_DOUBT: f64 = 0.7;
/// Part of its CPU that background work may lose where it has less than its least share already.
const SPARED: f64 = 0.05;
/// Time that a candidate is held where its gain lasts, about, seconds.
const USUALLY_HELD_S: f64 = 10.0;
/// The candidate stays in force at least so long before its gain may be said to last, seconds.
const HELD_S: f64 = 6.0;
/// Windows in a row after which its gain must be seen to last, and the time that they take at least, seconds.
pub(super) const MOST_HELD: usize = 40;
pub(super) const MOST_HELD_S: f64 = 36.0;
/// Standard errors by which what stays must be above nothing.
const STILL_THERE: f64 = 2.9;
/// The same, held against the windows before anything was changed alone, which are fewer.
const SINCE_BEFORE: f64 = 2.3;
/// And the share of the gain at once that must stay.
const MOSTLY_THERE: f64 = 0.4;
/// Correlation of neighbouring windows that may be chance, and the most that is believed.
const CHANCE: f64 = 0.15;
const MOST_ALIKE: f64 = 0.7;
/// Few windows in a row understate their correlation, by three parts in their number or so (Kendall 1954; Marriott and Pope 1954).
const UNDERSTATED: f64 = 1.3;

/// What is said of a candidate for whose proof there was no time.
pub(super) const UNPROVED: &str = "its gain could not be proved in the time";

#[derive(Debug, Clone)]
pub(super) struct Confirmation {
    candidate: usize,
    alpha: f64,
    /// The baseline, measured along with each pair where protections are held against it.
    third: Option<usize>,
    /// Windows of the candidate that were measured before: not part of the proof.
    fresh_from: usize,
    /// Turns left of the pair, the next one last.
    order: Vec<usize>,
    baseline: Option<(Summary, Value)>,
    tried: Option<(Summary, Value)>,
    score: SignBets,
    total: Option<SignBets>,
    score_differences: Vec<f64>,
    got_differences: Vec<f64>,
    /// Scores of windows under the baseline and under the candidate, of pairs.
    scores: [Vec<f64>; 2],
    baseline_got: Vec<f64>,
    /// Scores before anything was changed.
    lead: Vec<f64>,
    scale: Option<f64>,
    /// What background work is to get at least where services count, percent of one CPU.
    least_pct: f64,
    objective: Objective,
    /// CPU got under the candidate, of pairs.
    tried_got: Vec<f64>,
    /// Pairs as the monitor goes on with them: under the candidate, under the baseline.
    seen: Vec<(Seen, Seen)>,
    guard: Guard,
    breaches: Vec<Doubt>,
    /// Windows of the candidate, of pairs.
    in_pairs: Vec<Aged>,
    /// The windows in which the candidate stays in force at the end.
    hold: Option<Vec<Aged>>,
    /// Whether the gain was seen to last.
    lasted: bool,
    /// Windows after which it must be seen.
    most_held: usize,
    carry: CarryOver,
    fresh_data: bool,
    outcome: Option<Result<(), String>>,
}

impl Confirmation {
    /// Of a candidate with its share of the error budget; by the windows before anything was changed, and those in which it was
    /// screened.
    pub fn new(
        (candidate, alpha): (usize, f64),
        rules: &TrialRules,
        (lead, tried): (&[Summary], &[Summary]),
        objective: &Objective,
        scale: Option<f64>,
    ) -> Self {
        let mut guard = objective.guard(rules.guard, lead, tried);
        lead.iter().for_each(|window| guard.waits(window, false));
        Self {
            candidate,
            alpha,
            third: None,
            fresh_from: 0,
            order: Vec::new(),
            baseline: None,
            tried: None,
            score: SignBets::new(scale),
            total: None,
            score_differences: Vec::new(),
            got_differences: Vec::new(),
            scores: [Vec::new(), Vec::new()],
            baseline_got: Vec::new(),
            lead: objective.scores(lead),
            scale,
            least_pct: rules.least_pct,
            objective: objective.clone(),
            tried_got: Vec::new(),
            seen: Vec::new(),
            guard,
            breaches: Vec::new(),
            in_pairs: Vec::new(),
            hold: None,
            lasted: false,
            most_held: MOST_HELD,
            carry: CarryOver { before: None, first: Vec::new(), stretch: 1.0 },
            fresh_data: false,
            outcome: None,
        }
    }

    /// Time that a confirmation takes where the candidate clearly helps, about, seconds.
    pub fn usual_s(turn_s: f64) -> f64 {
        2.0 * USUAL_PAIRS * turn_s + USUALLY_HELD_S
    }

    /// So many windows in a row under the candidate are enough to see whether its gain lasts.
    pub fn hold_for(&mut self, windows: usize) {
        self.most_held = windows;
    }

    /// The baseline is measured along with each pair.
    pub fn compare_too(&mut self, third: Option<usize>) {
        self.third = third;
    }

    /// So many windows of the candidate were measured before.
    pub fn fresh(&mut self, windows: usize) {
        self.fresh_from = windows;
    }

    pub fn fresh_from(&self) -> usize {
        self.fresh_from
    }

    pub fn candidate(&self) -> usize {
        self.candidate
    }

    /// Its share of the error budget.
    #[cfg(test)]
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Whose turn it is.
    pub fn up(&self) -> usize {
        self.order.last().copied().unwrap_or(self.candidate)
    }

    /// By how much windows are longer than usual, and the time to settle, seconds.
    pub fn pace(&self, settle_s: f64) -> (f64, f64) {
        let stretch = self.carry.stretch;
        (stretch.sqrt(), if stretch > 1.0 { settle_s.max(0.25) * stretch } else { settle_s })
    }

    /// Tosses the coin for the next pair.
    pub fn deal(&mut self, rng: &mut Pcg32) {
        self.order = if rng.random::<bool>() { vec![self.candidate, 0] } else { vec![0, self.candidate] };
        if let Some(third) = self.third {
            self.order.insert(rng.random_range(0..=self.order.len()), third);
        }
    }

    pub fn record(&mut self, turn: usize, window: Summary, age_s: f64, rng: &mut Pcg32) {
        let value = self.objective.value(&window);
        let aged = Aged { age_s, seconds: window.seconds, score: value.score };
        if turn == 0 || turn == self.candidate {
            self.guard.waits(&window, turn == self.candidate);
        }
        if let Some(hold) = &mut self.hold {
            hold.push(aged);
            self.fresh_data = true;
            return;
        }
        let before = self.carry.before.replace(turn);
        if self.order.pop().is_none() {
            // The first window after the gain was seen to last: the coin is tossed again.
            self.deal(rng);
            return;
        }
        if Some(turn) != self.third {
            if self.baseline.is_none() && self.tried.is_none() {
                let after = before.map(|before| before == self.candidate);
                self.carry.first.extend(after.map(|after| (after, turn == self.candidate, value.score)));
            }
            if turn == self.candidate {
                self.in_pairs.push(aged);
            }
            let slot = if turn == self.candidate { &mut self.tried } else { &mut self.baseline };
            *slot = Some((window, value));
        }
        if self.order.is_empty() {
            if let Some((baseline, tried)) = self.baseline.take().zip(self.tried.take()) {
                self.seen.push((tried.1.seen(&tried.0), baseline.1.seen(&baseline.0)));
                self.pair(&baseline, &tried);
            }
            self.carry.review();
            self.deal(rng);
        }
    }

    fn pair(&mut self, (before, old): &(Summary, Value), (after, new): &(Summary, Value)) {
        self.fresh_data = true;
        self.score.add(new.score - old.score);
        self.score_differences.push(new.score - old.score);
        self.got_differences.push(new.got - old.got);
        self.scores[0].push(old.score);
        self.scores[1].push(new.score);
        self.baseline_got.push(old.got);
        self.tried_got.push(new.got);
        if let Some((new, old)) = new.total.zip(old.total) {
            self.total.get_or_insert_with(|| SignBets::new(self.scale)).add(new - old);
        }
        self.guard.pair(before, after);
    }

    /// Draws what conclusions there are; true when the confirmation ended. Where others wait for their turn, time is not spent on
    /// one that seems to hurt somebody.
    pub fn review(&mut self, rules: &TrialRules, breaches: Vec<Doubt>, others: bool) -> bool {
        if !std::mem::take(&mut self.fresh_data) || self.ended() {
            return false;
        }
        self.breaches = breaches;
        let doubts = self.doubts();
        // Time for harm to show is given all the same.
        let accepts = rules.accept_risk && self.pairs() >= ACCEPTED_PAIRS;
        let spoiled = others && !rules.accept_risk && self.pairs() >= SPOILED_PAIRS;
        let spoils = |doubt: &&Doubt| doubt.proved || spoiled && rules.guard.is_beyond(doubt);
        self.outcome = match doubts.iter().find(spoils) {
            Some(doubt) if doubt.proved => Some(Err(doubt.to_string())),
            Some(doubt) => Some(Err(format!("by estimate {}", Doubt { proved: true, ..doubt.clone() }))),
            None if self.hold.is_some() => match self.lasts() {
                // Long waits are rare: they are counted on, in pairs again.
                Some(Ok(())) if !(doubts.is_empty() || accepts) => {
                    self.hold = None;
                    self.lasted = true;
                    None
                }
                outcome => outcome,
            },
            None => {
                let clear = |doubt: &Doubt| accepts || doubt.harm == Harm::Tail && !self.lasted;
                if self.helps(rules.min_gain) && doubts.iter().all(clear) {
                    if self.lasted {
                        self.outcome = Some(Ok(()));
                        return true;
                    }
                    self.hold = Some(Vec::new());
                    self.order.clear();
                }
                self.hopeless(rules.min_gain).then(|| Err("no gain that is worth a change".to_owned()))
            }
        };
        self.ended()
    }

    /// The gain is proved, worth a change, and not one of fewer waits for less CPU.
    fn helps(&self, min_gain: f64) -> bool {
        let enough = 1.0 / self.alpha;
        let (Some(score), Some(got)) =
            (stats::mean(&self.score_differences), stats::estimate_at(&self.got_differences, 0.10))
        else {
            return false;
        };
        let worth = self.worth(min_gain);
        self.score.most() >= enough
            && self.total.as_ref().is_none_or(|total| total.most() >= enough)
            && score >= worth
            && (self.objective.is_for_services() || got.value >= 0.0 && got.low >= -worth)
    }

    /// Whether more pairs are unlikely to show a gain.
    fn hopeless(&self, min_gain: f64) -> bool {
        let differences = &self.score_differences;
        let Some((mean, error)) = stats::mean(differences).zip(stats::standard_error(differences)) else {
            return false;
        };
        differences.len() >= MIN_PAIRS && mean + BENEFIT_OF_DOUBT * error < self.worth(min_gain)
    }

    fn worth(&self, min_gain: f64) -> f64 {
        self.objective.worth(min_gain, stats::mean(&self.baseline_got).unwrap_or_default())
    }

    /// Background work that does not get its least share, although it did before; or that loses, where it did not.
    fn starved_background(&self) -> Option<Doubt> {
        let (before, after) =
            stats::mean(&self.baseline_got).zip(stats::estimate_at(&self.tried_got, 0.10))?;
        // What it had is known with noise, so that it must not be asked for to the last point.
        let least = if before < self.least_pct { (1.0 - SPARED) * before } else { self.least_pct };
        (self.objective.is_for_services() && after.low < least).then(|| Doubt {
            subject: Subject::Pool(None),
            harm: Harm::Cpu,
            before,
            after: after.value,
            proved: after.high < least,
            detail: Some(format!(
                "background work gets {:.0} instead of {before:.0} %, of which {:.0} are its least share",
                after.value, self.least_pct
            )),
        })
    }

    /// Whether the gain is more than what the settings before had left and what is fading; `None` until known. It is held
    /// against all windows under the baseline, and against those before anything was changed alone: the others are not free
    /// of what came before them.
    fn lasts(&self) -> Option<Result<(), String>> {
        let held = self.hold.as_deref().unwrap_or_default();
        let held_s = held.last().map(|window| window.age_s + window.seconds)?;
        if held_s < HELD_S {
            return None;
        }
        let windows = [self.in_pairs.as_slice(), held].concat();
        let stays = staying(&windows)?;
        let sd = self.spread(windows.len(), stays.residuals);
        let at_once = stats::mean(&self.score_differences)?;
        let over = |baseline: &[f64], errors: f64| {
            let gain = stays.score - stats::mean(baseline)?;
            let error = sd * (stays.variance + 1.0 / baseline.len() as f64).sqrt();
            Some((gain, gain > errors * error && gain > MOSTLY_THERE * at_once))
        };
        let (gain, since_before) = over(&self.lead, SINCE_BEFORE)?;
        let (_, at_all) = over(&[self.lead.as_slice(), &self.scores[0]].concat(), STILL_THERE)?;
        if since_before && at_all {
            return Some(Ok(()));
        }
        (held.len() >= self.most_held).then(|| {
            let of = |gain: f64| match self.objective.is_for_services() {
                true => format!("delays {:.2} times as long", (-gain).exp()),
                false => format!("{gain:+.1} points"),
            };
            Err(format!(
                "its gain is not shown to last: {} at once, by estimate {} stay after {held_s:.0} s",
                of(at_once),
                of(gain)
            ))
        })
    }

    /// Standard deviation of a window's score under the same settings, larger where windows resemble the ones before: many in a row then
    /// tell less. `tried` windows under the candidate are off by so much, as a sum of squares.
    fn spread(&self, tried: usize, residuals: f64) -> f64 {
        let squares = |scores: &[f64]| stats::variance(scores) * scores.len() as f64;
        let off = squares(&self.lead) + squares(&self.scores[0]) + residuals;
        // Two means, and what stays and what fades, are taken from the same windows.
        let freedom = (self.lead.len() + self.scores[0].len() + tried) as f64 - 4.0;
        let held: Vec<f64> = self.hold.iter().flatten().map(|window| window.score).collect();
        let alike = self.alike(&held);
        (off / freedom.max(1.0) * (1.0 + alike) / (1.0 - alike)).sqrt()
    }

    /// How much windows resemble the ones before, as a correlation. Pairs show it, for they differ less than windows do, and so do
    /// the windows in a row before and after; few of either say little, so they are pooled.
    fn alike(&self, held: &[f64]) -> f64 {
        let spread = self.scores.iter().map(|scores| stats::variance(scores)).sum::<f64>() / 2.0;
        let pairs = 1.0 - stats::variance(&self.score_differences) / (2.0 * spread).max(f64::MIN_POSITIVE);
        let rows = [self.lead.as_slice(), held].map(|row| (row.len() as f64, row_correlation(row)));
        let parts = [(self.score_differences.len() as f64, Some(pairs)), rows[0], rows[1]];
        let weight: f64 = parts.iter().filter(|part| part.1.is_some()).map(|part| part.0).sum();
        let sum: f64 = parts.iter().filter_map(|(weight, alike)| Some(weight * (*alike)?)).sum();
        let alike = sum / weight.max(1.0);
        // Shrunk by what is chance: a small one to nothing, a large one hardly (James and Stein's positive part).
        (UNDERSTATED * (alike - CHANCE * CHANCE / alike.max(CHANCE))).clamp(0.0, MOST_ALIKE)
    }

    pub fn withdraw(&mut self, candidate: usize) {
        if candidate == self.candidate {
            self.outcome = Some(Err("withdrawn".to_owned()));
        } else if Some(candidate) == self.third {
            self.third = None;
            self.order.retain(|turn| *turn != candidate);
        }
    }

    /// Ends for want of time.
    pub fn give_up(&mut self) {
        self.outcome = Some(Err(UNPROVED.to_owned()));
    }

    /// Whether more time may prove it.
    pub fn promising(&self) -> bool {
        let gain = stats::mean(&self.score_differences);
        self.hold.is_some() || self.pairs() < MIN_PAIRS || gain > Some(0.0)
    }

    /// Whether the gain is proved, and it is only seen whether it lasts.
    pub fn holds(&self) -> bool {
        self.hold.is_some()
    }

    /// Whether the gain is proved, whatever the guard says.
    pub fn proved(&self, min_gain: f64) -> bool {
        self.helps(min_gain)
    }

    pub fn ended(&self) -> bool {
        self.outcome.is_some()
    }

    pub fn outcome(&self) -> Option<Result<(), String>> {
        self.outcome.clone()
    }

    pub fn doubts(&self) -> Vec<Doubt> {
        let mut doubts = self.guard.doubts();
        doubts.extend(self.breaches.iter().cloned());
        doubts.extend(self.starved_background());
        doubts
    }

    pub fn seen(&self) -> &[(Seen, Seen)] {
        &self.seen
    }

    pub fn pairs(&self) -> usize {
        self.score_differences.len()
    }

    pub fn evidence(&self) -> f64 {
        self.score.most()
    }

    pub fn gain(&self) -> Option<Estimate> {
        self.estimate(&self.got_differences)
    }

    pub fn score_gain(&self) -> Option<Estimate> {
        self.estimate(&self.score_differences)
    }

    /// The mean, and bounds that hold at every stopping time, each at the candidate's share of the error budget. Bounds are of what is
    /// typical, the mean may be beyond one of them: no more than the mean is claimed.
    fn estimate(&self, differences: &[f64]) -> Option<Estimate> {
        let less: Vec<f64> = differences.iter().map(|difference| -difference).collect();
        let value = stats::mean(differences)?;
        Some(Estimate {
            value,
            low: bets::lower_bound(differences, self.alpha, self.scale).min(value),
            high: (-bets::lower_bound(&less, self.alpha, self.scale)).max(value),
        })
    }
}

/// Correlation of neighbours in a row, without its bias by one part in its length; `None` for a short one.
fn row_correlation(row: &[f64]) -> Option<f64> {
    let mean = stats::mean(row).filter(|_| row.len() > 3)?;
    let squares: f64 = row.iter().map(|value| (value - mean).powi(2)).sum();
    let products: f64 = row.windows(2).map(|two| (two[0] - mean) * (two[1] - mean)).sum();
    (squares > 0.0).then(|| products / squares + 1.0 / row.len() as f64)
}

#[cfg(test)]
mod tests;
