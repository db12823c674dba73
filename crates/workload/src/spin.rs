//! `spin`: takes all the CPU time it is given. An event is a fixed amount of integer work (2^20 rounds).

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::burn::alu;
use crate::load::{Context, LoadError};

/// Rounds of integer work in an event: about a millisecond.
const ROUNDS: u64 = 1 << 20;

/// Parameters: none.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Spin {}

impl Workload for Spin {
    fn wanted_pct(&self) -> Option<f64> {
        Some(100.0)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        while context.claim() {
            // In pieces, so that the end is never more than a few hundred microseconds late.
            for piece in 0..8 {
                alu(ROUNDS / 8, piece);
                if context.over() {
                    return Ok(());
                }
            }
            context.done(1);
        }
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        vec!["spin".into()]
    }
}
