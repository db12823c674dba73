//! `evenkeel load` without the rest of the binary: what this crate's own tests start as tenants.

use clap::Parser;
use evenkeel_lab::load::{Common, LoadSpec, run, stop_flag_on_signals};
use evenkeel_lab::workload::Kind;

#[derive(Parser)]
enum Cli {
    Load {
        #[command(subcommand)]
        kind: Kind,
        #[command(flatten)]
        common: Common,
    },
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Cli::Load { kind, common } = Cli::parse();
    let report = run(&LoadSpec { kind, common }, stop_flag_on_signals())?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
