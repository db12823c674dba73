//! What happens after a decision: a change in force is watched for as long as it is in force.
//!
//! - [`Holdout`] runs short blocks under the baseline at random times, each next to windows under the change.
//! - [`Sequence`] turns the differences into the effect since the change was kept, with an interval that holds at every
//!   time it is looked at.
//! - [`Watch`] tells whom the change hurts, task by task.
//! - [`OnlineControl`] holds the share of false keeps over a run with many decisions.
//!
//! [`Monitor`] is all of that for one change: a clock goes in, what is to be in force comes out, measured windows go in, and
//! in the end a reason why the change has to go. It goes when the interval's upper end is below the least gain, when the
//! evidence of a loss reaches 20, or when somebody is a victim; never because little is known.
//!
//! The interval since the change was kept is slow to notice that a gain vanished after half a day. When four blocks in a
//! row are nearer to nothing than to what the change brought, a closer look begins: blocks come more often, and what is
//! measured from then on, and nothing of what raised the question, is judged alone.

mod fdr;
mod holdout;
mod sequence;
mod unit;
mod victims;

use std::collections::VecDeque;

use evenkeel_base::run::{Effect, EffectNow, HourlyEffect};
use serde::{Deserialize, Serialize};

use crate::requests::{RequestTarget, Requests};

pub use fdr::{OnlineControl, discoveries};
pub use holdout::{Arm, Eagerness, Holdout, HoldoutRules, Step};
pub use sequence::Sequence;
pub use unit::Unit;
pub use victims::{Comparison, Loss, Seen, Subject, Usage, Victim, VictimLimits, Watch};

evenkeel_base::defaults! {
/// How a change in force is watched.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorRules {
    /// When it is held out.
    pub holdout: HoldoutRules,
    /// Share of the time at most in which a change is held out that protects somebody by name; 0: never.
    pub protecting_share: f64,
    /// Whom it may not hurt, and how far.
    pub victims: VictimLimits,
    /// Gain of the score, as a ratio to the CPU got, below which a change is not worth its risk.
    pub min_gain: f64 = 0.01,
    /// Error probability of the intervals (two-sided).
    pub alpha: f64 = 0.05,
    /// E-value of a loss at which a change goes.
    pub loss_evidence: f64 = 20.0,
}
}

/// Blocks in a row that raise a question.
const QUESTION: usize = 4;
/// Blocks of a closer look after which a good mean ends it.
const LOOK: u64 = 8;
/// After this time victims are looked for with new eyes, at a budget that falls with the square of the number of times:
/// what hurts since an hour ago is not outweighed by a day in which it did not.
const ERA_S: f64 = 7200.0;
/// Pairs are not believed that gains vary by less than this part of what they are taken to vary by before anything is known.
const STEADIEST: f64 = 10.0;
/// Sum of the inverse squares.
const SQUARES: f64 = 1.644_934_066_848_226_4;

/// Why a change has to go.
#[derive(Debug, Clone, PartialEq)]
pub enum Leave {
    /// It hurts somebody.
    Victims(Vec<Victim>),
    /// Its gain is below the least gain: upper end of the interval.
    NoGain(f64),
    /// It makes worse what it was to improve: e-value of there being no loss.
    Loss(f64),
}

/// What the decision knew, for as long as there is nothing newer.
#[derive(Debug, Clone, Default)]
pub struct Decided {
    /// What gains are counted in.
    pub unit: Unit,
    /// Gain of the score.
    pub gain: f64,
    /// Gain of CPU got, percent of one CPU: value, lower and upper end.
    pub cpu_pct: Option<(f64, f64, f64)>,
    /// Change of the 99th percentile of waits, ms: value, lower and upper end.
    pub wait_p99_ms: Option<(f64, f64, f64)>,
    /// Pairs of windows, under the change and under the baseline.
    pub pairs: Vec<(Seen, Seen)>,
    /// Whether the change protects somebody by name: then it is held out for [`MonitorRules::protecting_share`] at most.
    pub protects: bool,
}

/// A change in force, watched.
#[derive(Debug, Clone)]
pub struct Monitor {
    rules: MonitorRules,
    decided: Decided,
    holdout: Holdout,
    /// Windows of the running block.
    change: Vec<Seen>,
    baseline: Option<Seen>,
    /// Gain of the score: this decides.
    gain: Sequence,
    cpu_pct: Sequence,
    wait_p99_ms: Sequence,
    by_hour: Vec<Sequence>,
    recent: VecDeque<f64>,
    /// Number and sum of the gains before the recent ones.
    before: (u64, f64),
    look: Option<Sequence>,
    watch: Watch,
    era: u32,
}

impl Monitor {
    /// A change was kept now.
    pub fn new(rules: MonitorRules, decided: Decided, now_s: f64, seed: u64) -> Self {
        let most = if decided.protects { rules.protecting_share } else { f64::INFINITY };
        let share = rules.holdout.share.min(most);
        let holdout = Holdout::new(HoldoutRules { share, ..rules.holdout }, now_s, seed);
        let mut watch = Watch::new(rules.victims);
        for (change, baseline) in &decided.pairs {
            watch.add(Comparison { change: std::slice::from_ref(change), baseline });
        }
        let unit = decided.unit;
        let sd = spread(&decided.pairs, unit, rules.holdout.window_s).unwrap_or(unit.unknown_sd());
        let got = decided.pairs.iter().map(|(_, baseline)| baseline.cpu_pct).sum::<f64>()
            / decided.pairs.len().max(1) as f64;
        let points = if unit == Unit::CpuGot { sd * got } else { 1.0 };
        Self {
            rules,
            holdout,
            change: Vec::new(),
            baseline: None,
            gain: Sequence::new(sd),
            cpu_pct: Sequence::new(points),
            wait_p99_ms: Sequence::new(1.0),
            by_hour: vec![Sequence::new(points); 24],
            recent: VecDeque::new(),
            before: (0, 0.0),
            look: None,
            watch,
            era: 1,
            decided,
        }
    }

    /// What is to be in force, and until when nothing else is.
    pub fn step(&self) -> Step {
        self.holdout.step()
    }

    /// Whether a block is under way.
    pub fn in_block(&self) -> bool {
        self.holdout.in_block()
    }

    /// Whether there ever are blocks.
    pub fn is_held_out(&self) -> bool {
        self.step().until_s.is_finite()
    }

    /// The running block comes to nothing, for something else happened meanwhile.
    pub fn abort(&mut self, now_s: f64) {
        self.change.clear();
        self.baseline = None;
        self.holdout.abort(now_s);
    }

    /// The step's time is over; `seen` is the window if one was to be measured. `hour` is that of the clock, UTC.
    /// Says why the change has to go, if it has.
    pub fn advance(&mut self, now_s: f64, hour: usize, seen: Option<Seen>) -> Option<Leave> {
        let step = self.step();
        if step.measure {
            let Some(seen) = seen else {
                self.abort(now_s);
                return None;
            };
            match step.arm {
                Arm::Change => self.change.push(seen),
                Arm::Baseline => self.baseline = Some(seen),
            }
        }
        if !self.holdout.advance(now_s) {
            return None;
        }
        let change = std::mem::take(&mut self.change);
        let baseline = self.baseline.take()?;
        self.compare(&change, &baseline, hour);
        let leave = self.judge(now_s);
        let eagerness = self.eagerness(now_s);
        self.holdout.be(eagerness, now_s);
        leave
    }

    /// The own requests of a service in one window of a block: they become known only after it. `None` where they could not be
    /// counted. What they show counts when the next block ends.
    pub fn requests(&mut self, name: &str, target: RequestTarget, requests: Option<Requests>, arm: Arm) {
        self.watch.add_requests(name, target, requests, arm == Arm::Change);
    }

    /// Takes a complete block in.
    fn compare(&mut self, change: &[Seen], baseline: &Seen, hour: usize) {
        let mean = |value: fn(&Seen) -> f64| change.iter().map(value).sum::<f64>() / change.len() as f64;
        let cpu = mean(|s| s.cpu_pct);
        let got = (cpu * change.len() as f64 + baseline.cpu_pct) / (change.len() + 1) as f64;
        if let Some(gain) = self.decided.unit.gain(mean(|s| s.score) - baseline.score, got) {
            self.gain.add(gain);
            if let Some(look) = &mut self.look {
                look.add(gain);
            }
            self.recent.push_back(gain);
            if self.recent.len() > QUESTION
                && let Some(old) = self.recent.pop_front()
            {
                self.before = (self.before.0 + 1, self.before.1 + old);
            }
        }
        if got > 0.0 {
            self.cpu_pct.add(cpu - baseline.cpu_pct);
            if let Some(sequence) = self.by_hour.get_mut(hour) {
                sequence.add(cpu - baseline.cpu_pct);
            }
        }
        let waits: Option<Vec<f64>> = change.iter().map(|s| s.wait_p99_ms).collect();
        if let (Some(waits), Some(before)) = (waits, baseline.wait_p99_ms) {
            self.wait_p99_ms.add(waits.iter().sum::<f64>() / waits.len() as f64 - before);
        }
        self.watch.add(Comparison { change, baseline });
    }

    /// Why the change has to go.
    fn judge(&mut self, now_s: f64) -> Option<Leave> {
        let alpha = self.rules.victims.alpha / (SQUARES * f64::from(self.era).powi(2));
        let victims = self.watch.victims(alpha);
        if !victims.is_empty() {
            return Some(Leave::Victims(victims));
        }
        if now_s - self.holdout.since_s() > ERA_S * f64::from(self.era) {
            self.era += 1;
            self.watch.clear();
        }
        for known in [Some(&self.gain), self.look.as_ref()].into_iter().flatten() {
            let loss = known.ln_evidence_below(0.0);
            if loss >= self.rules.loss_evidence.ln() {
                return Some(Leave::Loss(loss.exp()));
            }
            let upper = known.upper(self.rules.alpha / 2.0);
            if upper < self.worth() {
                return Some(Leave::NoGain(upper));
            }
        }
        None
    }

    /// The least gain that is worth the change.
    fn worth(&self) -> f64 {
        self.decided.unit.worth(self.rules.min_gain)
    }

    /// What the change brought until lately; at least the least gain.
    fn expected(&self) -> f64 {
        let (count, sum) = self.before;
        let known = if count >= QUESTION as u64 { sum / count as f64 } else { self.decided.gain };
        known.max(self.worth())
    }

    fn eagerness(&mut self, now_s: f64) -> Eagerness {
        let doubtful = f64::midpoint(self.worth(), self.expected());
        if let Some(look) = &self.look {
            let better = look.values() >= LOOK && look.mean().is_some_and(|mean| mean > doubtful);
            if better || look.lower(self.rules.alpha / 2.0) > self.worth() {
                self.look = None;
                // What was looked at closely raises no question again.
                while let Some(old) = self.recent.pop_front() {
                    self.before = (self.before.0 + 1, self.before.1 + old);
                }
            }
        } else if self.recent.len() == QUESTION
            && self.recent.iter().sum::<f64>() / (QUESTION as f64) < doubtful
        {
            self.look = Some(Sequence::new(self.gain.sd()));
        }
        let narrow = || {
            let known = self.gain.estimate(self.rules.alpha);
            known.is_some_and(|e| e.high - e.low < 0.5 * e.value.abs())
        };
        if self.look.is_some() || now_s - self.holdout.since_s() < self.rules.holdout.probation_s {
            Eagerness::Close
        } else if narrow() {
            Eagerness::Narrow
        } else {
            Eagerness::Usual
        }
    }

    pub fn blocks(&self) -> u64 {
        self.gain.values()
    }

    /// Gain of the score since the change was kept.
    pub fn gain(&self) -> &Sequence {
        &self.gain
    }

    /// The effect for documents, now and at this wall clock, of a change kept at `since_ns` of the wall clock: the other clock stands still
    /// while the machine is suspended.
    pub fn effect(&self, now_s: f64, wall_ns: u64, since_ns: u64) -> EffectNow {
        let finite = |value: f64| value.is_finite().then_some(value);
        let of = |(value, low, high): (f64, f64, f64)| Effect {
            value,
            low: finite(low),
            high: finite(high),
            since_ns,
        };
        let alpha = self.rules.alpha;
        let measured = |sequence: &Sequence| {
            let estimate = sequence.estimate(alpha)?;
            Some(of((estimate.value, estimate.low, estimate.high)))
        };
        // What the decision measured is not shown as measured since.
        let known = |then: Option<(f64, f64, f64)>| then.filter(|_| self.blocks() == 0).map(of);
        let share = self.holdout.share(now_s);
        EffectNow {
            at_ns: wall_ns,
            held_out: self.blocks() > 0,
            cpu_pct: measured(&self.cpu_pct).or(known(self.decided.cpu_pct)),
            wait_p99_ms: measured(&self.wait_p99_ms).or(known(self.decided.wait_p99_ms)),
            holdout_share: Some(of((share, share, share))),
            blocks: self.blocks(),
            by_hour: self
                .by_hour
                .iter()
                .enumerate()
                .filter_map(|(hour, sequence)| {
                    Some(HourlyEffect {
                        hour: hour as u8,
                        blocks: sequence.values(),
                        cpu_pct: measured(sequence)?,
                    })
                })
                .collect(),
        }
    }
}

/// Spread of the gains of pairs, for windows of another length; `None` of fewer than three pairs. It is not below the least that is
/// believed: a block counts by the inverse of what it may vary, and pairs that happened to be alike would make the first block count for
/// all that come.
fn spread(pairs: &[(Seen, Seen)], unit: Unit, window_s: f64) -> Option<f64> {
    let gain = |(change, baseline): &(Seen, Seen)| {
        unit.gain(change.score - baseline.score, f64::midpoint(change.cpu_pct, baseline.cpu_pct))
    };
    let differences: Vec<f64> = pairs.iter().filter_map(gain).collect();
    if differences.len() < 3 {
        return None;
    }
    let seconds = pairs.iter().map(|(_, baseline)| baseline.seconds).sum::<f64>() / pairs.len() as f64;
    // A block holds one window under the baseline against four.
    let shorter = (seconds / window_s).clamp(0.05, 1.0);
    let sd = evenkeel_base::stats::sd(&differences)?;
    Some((sd * (0.625 * shorter).sqrt()).max(unit.unknown_sd() / STEADIEST))
}

#[cfg(test)]
mod tests;
