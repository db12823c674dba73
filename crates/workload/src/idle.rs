//! `idle`: is there and does nothing.

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::burn::monotonic_ns;
use crate::load::{Context, LoadError};

/// Parameters: none.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Idle {}

impl Workload for Idle {
    fn wanted_pct(&self) -> Option<f64> {
        Some(0.0)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        while !context.over() {
            context.sleep(monotonic_ns() + 3_600_000_000_000);
        }
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        vec!["idle".into()]
    }
}
