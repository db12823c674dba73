//! When a change in force is held out: short blocks under the baseline at random times, and what they cost.
//!
//! ```text
//!            |  change  |  change  | settle | baseline | settle |  change  |  change  |
//!  idle ...  |  window  |  window  |        |  window  |        |  window  |  window  |  ... idle
//! ```
//!
//! All five windows of a block have one length, drawn for the block, so that nothing locks to it. The block's place in its
//! period is random: the mean of the windows around less the one in the middle is then free of whatever comes and goes by
//! itself, a steady drift included. A period is as long as the share of time under the baseline wants it, settling
//! counted. More than the share is taken for a while where there is a question, paid for from what was saved before.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use serde::{Deserialize, Serialize};

evenkeel_base::defaults! {
/// How a change is held out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HoldoutRules {
    /// Share of the time under the baseline, on average over [`Self::average_s`]; 0 turns it off.
    pub share: f64 = 0.05,
    /// Share once the effect is known well.
    pub narrow_share: f64 = 0.01,
    /// Share at most while there is a question, four times [`Self::share`] at most.
    pub close_share: f64 = 0.20,
    /// Time after the decision during which there is a question anyhow, seconds: is anybody hurt?
    pub probation_s: f64 = 120.0,
    /// Time over which the share is an average, seconds.
    pub average_s: f64 = 7200.0,
    /// Usual length of a window, seconds.
    pub window_s: f64 = 3.0,
    /// Time given to settings to take hold, seconds, at each end.
    pub settle_s: f64 = 0.3,
}
}

/// Lengths of windows are within this share of the usual one.
const JITTER: f64 = 0.2;
/// Most that a share may be exceeded by for a while.
const CLOSE: f64 = 4.0;

/// Whose settings are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    Change,
    Baseline,
}

/// What is to be done until an instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Whose settings are to be in force.
    pub arm: Arm,
    /// Whether a window is to be measured from now until then.
    pub measure: bool,
    /// Until when, seconds.
    pub until_s: f64,
}

/// How eagerly to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eagerness {
    /// The effect is known well.
    Narrow,
    Usual,
    /// There is a question.
    Close,
}

/// The phases of a block in order: whose settings, and whether a window is measured or settings settle.
const BLOCK: [(Arm, bool); 7] = [
    (Arm::Change, true),
    (Arm::Change, true),
    (Arm::Baseline, false),
    (Arm::Baseline, true),
    (Arm::Change, false),
    (Arm::Change, true),
    (Arm::Change, true),
];

#[derive(Debug, Clone)]
pub struct Holdout {
    rules: HoldoutRules,
    rng: Pcg32,
    since_s: f64,
    /// Where the running period ends; the next block lies in the one that begins there.
    period_end_s: f64,
    /// Length of the next or running block's windows.
    window_s: f64,
    /// Phase of a running block.
    phase: Option<usize>,
    /// When the step ends.
    until_s: f64,
    /// When the step began.
    began_s: f64,
    /// Time under the baseline that may still be taken beyond the usual share, seconds.
    credit_s: f64,
    credited_s: f64,
    baseline_s: f64,
    eagerness: Eagerness,
}

impl Holdout {
    /// A change was kept now.
    pub fn new(rules: HoldoutRules, now_s: f64, seed: u64) -> Self {
        let share = if rules.share.is_finite() { rules.share.clamp(0.0, 0.5) } else { 0.0 };
        let rules = HoldoutRules {
            share,
            narrow_share: rules.narrow_share.min(share),
            close_share: rules.close_share.min(CLOSE * share).max(share),
            ..rules
        };
        let mut holdout = Self {
            rules,
            rng: Pcg32::seed_from_u64(seed),
            since_s: now_s,
            period_end_s: now_s,
            window_s: rules.window_s,
            phase: None,
            until_s: now_s,
            began_s: now_s,
            credit_s: share * rules.average_s,
            credited_s: now_s,
            baseline_s: 0.0,
            eagerness: Eagerness::Close,
        };
        holdout.plan(now_s);
        holdout
    }

    /// What is to be done now.
    pub fn step(&self) -> Step {
        let (arm, measure) = self.phase.map_or((Arm::Change, false), |phase| BLOCK[phase]);
        Step { arm, measure, until_s: self.until_s }
    }

    /// Whether a block is under way.
    pub fn in_block(&self) -> bool {
        self.phase.is_some()
    }

    /// The step is over. True when it was a block's last: another one is planned.
    pub fn advance(&mut self, now_s: f64) -> bool {
        self.account(now_s);
        let next = self.phase.map_or(0, |phase| phase + 1);
        self.began_s = now_s;
        if let Some((_, measure)) = BLOCK.get(next) {
            self.phase = Some(next);
            self.until_s = now_s + if *measure { self.window_s } else { self.rules.settle_s };
            return false;
        }
        self.phase = None;
        self.plan(now_s);
        true
    }

    /// Whatever was under way comes to nothing; the change is to be in force.
    pub fn abort(&mut self, now_s: f64) {
        self.account(now_s);
        self.phase = None;
        self.began_s = now_s;
        self.plan(now_s);
    }

    /// How eagerly to look from now on. More eagerly: at once, while there is credit, for the running period's time is given up; less: from
    /// the next block on.
    pub fn be(&mut self, eagerness: Eagerness, now_s: f64) {
        let before = std::mem::replace(&mut self.eagerness, eagerness);
        let afford = self.credit_s >= self.window_s + self.rules.settle_s;
        if self.phase.is_none() && eagerness == Eagerness::Close && before != eagerness && afford {
            self.period_end_s = now_s;
            self.plan(now_s);
        }
    }

    /// Share of the time since the change was kept that was under the baseline.
    pub fn share(&self, now_s: f64) -> f64 {
        let under_way = if self.step().arm == Arm::Baseline { now_s - self.began_s } else { 0.0 };
        let time = now_s - self.since_s;
        if time > 0.0 { (self.baseline_s + under_way) / time } else { 0.0 }
    }

    /// When the change was kept.
    pub fn since_s(&self) -> f64 {
        self.since_s
    }

    fn account(&mut self, now_s: f64) {
        let share = self.rules.share;
        let saved = share * (now_s - self.credited_s).max(0.0);
        self.credited_s = now_s;
        self.credit_s = (self.credit_s + saved).min(share * self.rules.average_s);
        if self.step().arm == Arm::Baseline {
            let time = (now_s - self.began_s).max(0.0);
            self.baseline_s += time;
            self.credit_s -= time;
        }
    }

    /// Puts the next block somewhere into its period.
    fn plan(&mut self, now_s: f64) {
        let rules = self.rules;
        self.window_s = rules.window_s * self.rng.random_range(1.0 - JITTER..1.0 + JITTER);
        let cost = self.window_s + rules.settle_s;
        let share = match self.eagerness {
            Eagerness::Narrow => rules.narrow_share,
            Eagerness::Close if self.credit_s >= cost => rules.close_share,
            Eagerness::Close | Eagerness::Usual => rules.share,
        };
        if share <= 0.0 {
            self.until_s = f64::INFINITY;
            return;
        }
        let length = 5.0 * self.window_s + 2.0 * rules.settle_s;
        let begins = self.period_end_s.max(now_s);
        self.period_end_s = begins + cost / share;
        let room = (cost / share - length).max(0.0);
        self.until_s = begins + room * self.rng.random::<f64>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs for a while: (instants at which windows under the baseline began, share).
    fn run(rules: HoldoutRules, eagerness: Eagerness, seconds: f64, seed: u64) -> (Vec<f64>, f64) {
        let mut holdout = Holdout::new(rules, 100.0, seed);
        holdout.be(eagerness, 100.0);
        let mut begins = Vec::new();
        let mut now = 100.0;
        loop {
            let step = holdout.step();
            if step.arm == Arm::Baseline && step.measure {
                begins.push(now);
            }
            if step.until_s > 100.0 + seconds {
                return (begins, holdout.share(100.0 + seconds));
            }
            now = step.until_s;
            holdout.advance(now);
        }
    }

    #[test]
    fn the_share_is_what_was_asked_for() {
        for (eagerness, expected) in [(Eagerness::Usual, 0.05), (Eagerness::Narrow, 0.01)] {
            let (begins, share) = run(HoldoutRules::default(), eagerness, 36_000.0, 1);
            assert!((share / expected - 1.0).abs() < 0.06, "{eagerness:?} {share}");
            // About three seconds in a minute.
            assert!((begins.len() as f64 * 3.3 / 36_000.0 / expected - 1.0).abs() < 0.06, "{}", begins.len());
        }
    }

    #[test]
    fn a_question_is_looked_at_closely_while_there_is_credit() {
        let (_, share) = run(HoldoutRules::default(), Eagerness::Close, 1800.0, 2);
        assert!((0.18..0.21).contains(&share), "{share}");
        // 360 s in two hours, and what was saved beforehand.
        let (_, share) = run(HoldoutRules::default(), Eagerness::Close, 36_000.0, 2);
        assert!((0.05..0.062).contains(&share), "{share}");
    }

    #[test]
    fn questions_that_come_and_go_are_not_looked_at_beyond_the_credit() {
        let mut holdout = Holdout::new(HoldoutRules::default(), 0.0, 7);
        let mut now = 0.0;
        while now < 36_000.0 {
            now = holdout.step().until_s;
            if holdout.advance(now) {
                holdout.be(Eagerness::Usual, now);
                holdout.be(Eagerness::Close, now);
            }
        }
        let share = holdout.share(now);
        assert!((0.05..0.062).contains(&share), "{share}");
    }

    #[test]
    fn none_means_none_and_little_means_little() {
        let off = HoldoutRules { share: 0.0, ..HoldoutRules::default() };
        assert_eq!(run(off, Eagerness::Close, 36_000.0, 3), (vec![], 0.0));
        let little = HoldoutRules { share: 0.005, ..HoldoutRules::default() };
        let (_, share) = run(little, Eagerness::Close, 36_000.0, 3);
        assert!(share < 0.0062, "{share}");
    }

    #[test]
    fn blocks_begin_at_random_times_and_are_of_random_lengths() {
        let (begins, _) = run(HoldoutRules::default(), Eagerness::Usual, 36_000.0, 4);
        let phases: Vec<f64> = begins.iter().map(|at| at % 10.0).collect();
        for tenth in 0..10 {
            let here = phases.iter().filter(|p| (tenth as f64..tenth as f64 + 1.0).contains(*p)).count();
            // 54 expected in each.
            assert!((25..90).contains(&here), "{tenth}: {here}");
        }
        let (again, _) = run(HoldoutRules::default(), Eagerness::Usual, 36_000.0, 4);
        let (other, _) = run(HoldoutRules::default(), Eagerness::Usual, 36_000.0, 5);
        assert_eq!(begins, again);
        assert_ne!(begins, other);
    }

    #[test]
    fn a_block_that_is_cut_short_leaves_the_change_in_force() {
        let mut holdout = Holdout::new(HoldoutRules::default(), 0.0, 6);
        let mut now = 0.0;
        while holdout.step().arm == Arm::Change {
            now = holdout.step().until_s;
            holdout.advance(now);
        }
        assert!(holdout.in_block());
        let next_s = holdout.period_end_s;
        holdout.abort(now + 0.1);
        let step = holdout.step();
        assert!(step.until_s >= next_s, "the next one has its place in the next period");
        assert_eq!((step.arm, step.measure, holdout.in_block()), (Arm::Change, false, false));
        assert!(step.until_s > now && (holdout.baseline_s - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_block_lies_somewhere_in_its_period() {
        let mut holdout = Holdout::new(HoldoutRules::default(), 0.0, 9);
        holdout.eagerness = Eagerness::Usual;
        let (mut places, mut lengths) = (Vec::new(), Vec::new());
        for period in 0..2000 {
            let begins = 1e3 * f64::from(period);
            holdout.period_end_s = begins + 10.0;
            holdout.plan(begins);
            let (window, cost) = (holdout.window_s, holdout.window_s + 0.3);
            let length = cost / 0.05;
            assert!((holdout.period_end_s - begins - 10.0 - length).abs() < 1e-6);
            places.push((holdout.until_s - begins - 10.0) / (length - 5.0 * window - 0.6));
            lengths.push(window);
        }
        for (seen, low, high) in [(places, 0.0, 1.0), (lengths, 2.4, 3.6)] {
            let least = seen.iter().copied().fold(f64::INFINITY, f64::min);
            let most = seen.iter().copied().fold(0.0, f64::max);
            let near = 0.01 * (high - low);
            assert!(least >= low - 1e-6 && least < low + near, "{least} to {most}");
            assert!(most <= high + 1e-6 && most > high - near, "{least} to {most}");
        }
    }

    #[test]
    fn windows_of_a_block_are_of_one_length_and_none_begins_before_now() {
        let mut holdout = Holdout::new(HoldoutRules::default(), 0.0, 9);
        let window_s = holdout.window_s;
        let mut now = holdout.step().until_s;
        assert_ne!(window_s, 3.0);
        for (_, measure) in BLOCK {
            holdout.advance(now);
            assert_eq!(holdout.step().until_s, now + if measure { window_s } else { 0.3 });
            now = holdout.step().until_s;
        }
        // Late, and where a block is longer than its period.
        holdout.period_end_s = 0.0;
        holdout.plan(500.0);
        assert!(holdout.until_s >= 500.0 && holdout.period_end_s > 500.0);
        let half = Holdout::new(HoldoutRules { share: 0.5, ..HoldoutRules::default() }, 700.0, 9);
        assert_eq!((half.until_s, half.period_end_s > 700.0), (700.0, true));
    }

    #[test]
    fn time_is_saved_up_to_the_average_and_spent_under_the_baseline() {
        let mut holdout = Holdout::new(HoldoutRules::default(), 100.0, 9);
        assert_eq!(holdout.credit_s, 360.0);
        holdout.credit_s = 0.0;
        holdout.account(140.0);
        assert_eq!(holdout.credit_s, 2.0);
        holdout.account(130.0);
        assert_eq!(holdout.credit_s, 2.0, "a clock that goes back saves nothing");
        holdout.account(1e6);
        assert_eq!(holdout.credit_s, 360.0);
        (holdout.phase, holdout.began_s, holdout.credited_s) = (Some(3), 1000.0, 1000.0);
        assert!((holdout.share(1000.5) - 0.5 / 900.5).abs() < 1e-12);
        holdout.account(1002.0);
        assert_eq!((holdout.credit_s, holdout.baseline_s), (358.0, 2.0));
        holdout.phase = None;
        assert_eq!((holdout.share(1100.0), holdout.share(100.0)), (0.002, 0.0));
    }

    #[test]
    fn a_question_is_looked_at_at_once_where_a_block_can_be_afforded() {
        let asked = |phase: Option<usize>, before: Eagerness, to: Eagerness, off: f64| {
            let mut holdout = Holdout::new(HoldoutRules::default(), 0.0, 9);
            (holdout.phase, holdout.eagerness, holdout.period_end_s) = (phase, before, 1e6);
            holdout.credit_s = holdout.window_s + 0.3 + off;
            holdout.be(to, 50.0);
            holdout.period_end_s < 1e6 && holdout.until_s >= 50.0
        };
        let (usual, close) = (Eagerness::Usual, Eagerness::Close);
        assert!(asked(None, usual, close, 0.0) && !asked(None, usual, close, -1e-9));
        assert!(!asked(Some(1), usual, close, 0.0) && !asked(None, close, close, 0.0));
        assert!(!asked(None, usual, usual, 9.0) && !asked(None, close, usual, 9.0));
    }

    #[test]
    fn shares_that_are_none_or_too_large() {
        let of = |share: f64| Holdout::new(HoldoutRules { share, ..HoldoutRules::default() }, 0.0, 1).rules;
        assert_eq!(
            [of(f64::NAN).share, of(f64::INFINITY).share, of(-1.0).share, of(0.9).share],
            [0.0, 0.0, 0.0, 0.5]
        );
        assert_eq!((of(0.02).close_share, of(0.3).close_share, of(0.002).narrow_share), (0.08, 0.3, 0.002));
    }
}
