//! The comparison: kernel default, published recipe, evenkeel's choice and the real-time ceiling take turns in short
//! blocks, in random order within each round. Settings that are compared lie seconds apart, never minutes: what comes
//! and goes on the host meets all of them alike, and differences are taken within a round.

use std::time::Duration;

use evenkeel_agent::{Watcher, default_plan};
use evenkeel_base::Plan;
use evenkeel_base::run::Estimate;
use evenkeel_base::stats;
use evenkeel_report::demo::{DemoRun, Role};
use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::live::Live;
use super::{SETTLE, push_stage};
use crate::cli::Failure;
use crate::cli::known::{Known, StageResult};

/// Length of a block: sixteen periods of the loads. What a comparison does not need, the decision has.
const BLOCK: Duration = Duration::from_millis(1600);
/// Least and most rounds. Three give an interval at all; more than six tell little more.
const ROUNDS: (usize, usize) = (3, 6);

/// Time of the shortest comparison of all four settings.
pub(super) fn shortest() -> Duration {
    (BLOCK + SETTLE) * 4 * ROUNDS.0 as u32
}

/// One of the settings that take turns.
pub(super) struct Arm {
    pub role: Role,
    pub name: String,
    /// `None`: the same loads under SCHED_FIFO.
    pub plan: Option<Plan>,
    pub blocks: Vec<StageResult>,
}

impl Arm {
    pub fn new(role: Role, name: &str, plan: Option<Plan>) -> Self {
        Self { role, name: name.to_owned(), plan, blocks: Vec::new() }
    }

    /// Fulfilment of each block; `None` where a block was cut short.
    fn values(&self) -> Vec<Option<f64>> {
        self.blocks.iter().map(|block| block.fulfilment).collect()
    }

    /// Fulfilment: the mean of the blocks with its 95 % interval over blocks.
    pub fn estimate(&self) -> Option<Estimate> {
        stats::estimate(&self.values().into_iter().flatten().collect::<Vec<_>>())
            .filter(|e| e.low.is_finite())
    }
}

/// Gain of one arm over another: the mean of the differences within rounds, with its 95 % interval over rounds.
pub(super) fn gain(over: &Arm, arm: &Arm) -> Option<Estimate> {
    let pairs = over.values().into_iter().zip(arm.values());
    let differences: Vec<f64> = pairs.filter_map(|(over, arm)| Some(arm? - over?)).collect();
    stats::estimate(&differences).filter(|e| e.low.is_finite())
}

/// Share of the gap between default and ceiling that an arm closes: gains over gaps of the same rounds, with the 95 %
/// interval of the jackknife (delete one round at a time; Tukey 1958).
pub(super) fn ratio(default: &Arm, arm: &Arm, ceiling: &Arm) -> Option<Estimate> {
    let rounds = default.values().into_iter().zip(arm.values()).zip(ceiling.values());
    let pairs: Vec<(f64, f64)> =
        rounds.filter_map(|((default, arm), top)| Some((arm? - default?, top? - default?))).collect();
    let (gains, gaps) = pairs.iter().fold((0.0, 0.0), |(a, b), (gain, gap)| (a + gain, b + gap));
    let n = pairs.len() as f64;
    let left_out: Vec<f64> = pairs
        .iter()
        .map(|(gain, gap)| n * gains / gaps - (n - 1.0) * (gains - gain) / (gaps - gap))
        .collect();
    let spread = stats::estimate(&left_out)?;
    let (value, half) = (gains / gaps, (spread.high - spread.low) / 2.0);
    (value.is_finite() && half.is_finite()).then_some(Estimate {
        value,
        low: value - half,
        high: value + half,
    })
}

/// Lets the arms take turns for this long; every block is a stage of the run. Afterwards the host is as found.
pub(super) fn compare(
    known: &mut Known,
    run: &mut DemoRun,
    arms: &mut [Arm],
    (time, seed): (Duration, u64),
    watcher: &mut Live,
) -> Result<(), Failure> {
    let mut rng = rand_pcg::Pcg32::seed_from_u64(seed);
    let round = (BLOCK + SETTLE).as_secs_f64() * arms.len() as f64;
    let rounds = ((time.as_secs_f64() / round) as usize).clamp(ROUNDS.0, ROUNDS.1);
    let mut order: Vec<usize> = (0..arms.len()).collect();
    for _ in 0..rounds {
        order.shuffle(&mut rng);
        for &arm in &order {
            if watcher.stopping() {
                break;
            }
            let arm = &mut arms[arm];
            watcher.stage(&arm.name);
            let from = watcher.clock_s() + SETTLE.as_secs_f64();
            let block = match &arm.plan {
                Some(plan) => {
                    known.agent.set(plan);
                    known.settle(SETTLE, watcher);
                    known.stage(BLOCK, watcher)?
                }
                None => known.ceiling(SETTLE, BLOCK, watcher)?,
            };
            push_stage(run, &arm.name, arm.role, from, &block);
            arm.blocks.push(block);
        }
    }
    known.agent.set(&default_plan());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(role: Role, values: &[Option<f64>]) -> Arm {
        let blocks = values.iter().map(|value| StageResult { fulfilment: *value, ..StageResult::default() });
        Arm { blocks: blocks.collect(), ..Arm::new(role, "", None) }
    }

    #[test]
    fn what_comes_and_goes_cancels_within_a_round() {
        // The host was disturbed in the second round: both arms lost 0.3.
        let default = arm(Role::Default, &[Some(0.80), Some(0.50), Some(0.81), Some(0.79)]);
        let choice = arm(Role::Final, &[Some(0.90), Some(0.60), Some(0.91), Some(0.90)]);
        let gain = gain(&default, &choice).unwrap();
        assert!(gain.low > 0.08 && gain.high < 0.12, "{gain:?}");
        let (before, after) = (default.estimate().unwrap(), choice.estimate().unwrap());
        assert!(before.high > after.low, "the arms alone could not tell: {before:?} {after:?}");
    }

    #[test]
    fn the_gap_closed_has_the_interval_of_its_rounds() {
        let default = arm(Role::Default, &[Some(0.80), Some(0.50), Some(0.80), Some(0.80)]);
        let ceiling = arm(Role::Ceiling, &[Some(0.90), Some(0.60), Some(0.90), Some(0.90)]);
        let half = arm(Role::Final, &[Some(0.85), Some(0.55), Some(0.85), Some(0.85)]);
        let closed = ratio(&default, &half, &ceiling).unwrap();
        assert!((closed.value - 0.5).abs() < 1e-9 && closed.high - closed.low < 1e-9, "{closed:?}");
        let unsteady = arm(Role::Final, &[Some(0.90), Some(0.50), Some(0.90), Some(0.80)]);
        let closed = ratio(&default, &unsteady, &ceiling).unwrap();
        assert!((closed.value - 0.5).abs() < 1e-9 && closed.low < 0.0 && closed.high > 1.0, "{closed:?}");
    }

    #[test]
    fn a_block_cut_short_is_no_block() {
        let default = arm(Role::Default, &[Some(0.8), None, Some(0.8)]);
        let choice = arm(Role::Final, &[Some(0.9), Some(0.9), Some(0.9)]);
        assert!((gain(&default, &choice).unwrap().value - 0.1).abs() < 1e-12);
        assert_eq!(gain(&default, &arm(Role::Final, &[Some(0.9)])), None, "one pair has no interval");
    }
}
