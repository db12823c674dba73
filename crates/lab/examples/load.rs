//! `evenkeel load` without the rest of the binary: what this crate's own tests start as tenants.

use clap::Parser;
use evenkeel_workload::Kind;
use evenkeel_workload::load::{Common, LoadSpec, run, stop_flag_on_signals};

#[derive(Parser)]
enum Cli {
    Load {
        #[command(subcommand)]
        kind: Kind,
        #[command(flatten)]
        common: Common,
    },
    /// A tenant of an experiment.
    #[command(subcommand)]
    Lab(Lab),
    /// First process of a virtual machine.
    Guest(evenkeel_lab::vm::guest::Guest),
}

#[derive(clap::Subcommand)]
enum Lab {
    /// Does what the order says.
    Tenant {
        /// The order.
        order: std::path::PathBuf,
    },
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (kind, common) = match Cli::parse() {
        Cli::Load { kind, common } => (kind, common),
        Cli::Lab(Lab::Tenant { order }) => {
            std::process::exit(i32::from(evenkeel_lab::runner::run_tenant(&order)))
        }
        Cli::Guest(guest) => return Ok(evenkeel_lab::vm::guest::main(&guest)?),
    };
    let report = run(&LoadSpec { kind, common }, stop_flag_on_signals())?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
