//! `evenkeel demo`.

use super::{Failure, Global, Outcome};

/// Not written yet.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_global: &Global, _args: Args) -> Outcome {
    Err(Failure::Cannot(anyhow::anyhow!("demo is not written yet")))
}
