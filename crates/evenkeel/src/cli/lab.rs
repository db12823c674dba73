//! `evenkeel lab`: experiments.

use std::path::PathBuf;

use clap::Subcommand;

use super::{Global, Outcome};

mod compare;
mod import;
mod job;
mod list;
mod merge;
mod neighbour;
pub(super) mod progress;
pub(super) mod report;
pub(super) mod run;
pub(super) mod written;

/// Experiments on this host: what CPU limits, weights and neighbours really do.
///
/// Built-in experiments reproduce published tables on this host; files describe experiments of one's own. Results go
/// to a folder, from which reports are made.
///
/// Example: evenkeel lab run cpu-units-equal --quick
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::Args),
    Run(run::Args),
    Report(report::Args),
    Compare(compare::Args),
    Import(import::Args),
    Job(job::Args),
    Merge(merge::Args),
    /// What `run` starts as a tenant.
    #[command(hide = true)]
    Tenant {
        /// Its order.
        order: PathBuf,
    },
}

impl Args {
    /// Whether it runs something; the others read and write results.
    pub fn changes(&self) -> bool {
        matches!(self.command, Command::Run(_))
    }

    /// Whether it may draw: the report of `neighbour` does, those of other experiments say that they do not.
    pub fn draws(&self) -> bool {
        matches!(self.command, Command::Report(_))
    }
}

pub fn run(global: &Global, args: Args) -> Outcome {
    match args.command {
        Command::List(args) => list::run(global, args),
        Command::Run(args) => run::run(global, args),
        Command::Report(args) => report::run(global, args),
        Command::Compare(args) => compare::run(global, args),
        Command::Import(args) => import::run(global, args),
        Command::Job(args) => job::run(global, &args),
        Command::Merge(args) => merge::run(global, &args),
        Command::Tenant { order } => Ok(evenkeel_lab::runner::run_tenant(&order)),
    }
}
