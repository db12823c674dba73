//! The comparison: kernel default, published recipe, evenkeel's choice and the real-time ceiling take turns in short
//! blocks, in random order within each round. Settings that are compared lie seconds apart, never minutes: what comes
//! and goes on the host meets all of them alike, and differences are taken within a round.

use std::time::Duration;

use evenkeel_agent::{Watcher, default_plan};
use evenkeel_base::Plan;
use evenkeel_report::demo::{self, DemoRun, Role};
use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::live::Live;
use super::{SETTLE, push_stage};
use crate::cli::Failure;
use crate::cli::known::{Known, StageResult};

/// Length of a block: twelve periods of the loads. What a comparison does not need, the decision has.
const BLOCK: Duration = Duration::from_millis(1200);
/// Rounds: more short blocks tell more than fewer long ones.
const ROUNDS: u32 = 4;
/// Time of a comparison of all four settings, at most.
pub(super) const LONGEST: Duration = BLOCK.saturating_add(SETTLE).saturating_mul(4 * ROUNDS);

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
    pub fn fulfilment(&self) -> demo::Arm {
        demo::Arm { role: self.role, blocks: self.blocks.iter().map(|block| block.fulfilment).collect() }
    }
}

/// Lets the arms take turns; every block is a stage of the run. Afterwards the host is as found.
pub(super) fn compare(
    known: &mut Known,
    run: &mut DemoRun,
    arms: &mut [Arm],
    seed: u64,
    watcher: &mut Live,
) -> Result<(), Failure> {
    let mut rng = rand_pcg::Pcg32::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..arms.len()).collect();
    for _ in 0..ROUNDS {
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
