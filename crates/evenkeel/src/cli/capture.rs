//! `evenkeel capture`.

use super::{Failure, Global, Outcome};

/// Not written yet.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_global: &Global, _args: Args) -> Outcome {
    Err(Failure::Cannot(anyhow::anyhow!("capture is not written yet")))
}
