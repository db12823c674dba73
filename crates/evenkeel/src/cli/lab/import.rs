//! `evenkeel lab import`: logs of others into the same study.

use std::path::PathBuf;

use evenkeel_experiment::import::{ImportError, Options, import, stamp};
use jiff::Timestamp;

use super::written::{Report, keep};
use crate::cli::{Failure, Global, Outcome};

/// Study logs of sysbench or openssl runs that others made: one file a tenant.
///
/// Reads files with start and end stamps (cpu_units:, nb_threads:, target:, Start test N:, End test N:) around the
/// output of `sysbench cpu` or `openssl speed`, and plain sysbench output. Writes the same result folder as
/// `lab run`.
///
/// Example: evenkeel lab import router/*.log --skip-first 1 --skip-last 1 --out results/router
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Log files.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Leave out so many runs at the beginning of each log.
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_first: usize,
    /// Leave out so many runs at the end of each log.
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_last: usize,
    /// Only runs that began at or after this (2026-01-31T12:00:00, UTC unless it names an offset).
    #[arg(long, value_name = "STAMP", value_parser = stamp)]
    from: Option<Timestamp>,
    /// Only runs that ended at or before this.
    #[arg(long, value_name = "STAMP", value_parser = stamp)]
    to: Option<Timestamp>,
    /// CPUs of the host the logs are from; without it the study does not say what weights allow.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Result folder; unless given, evenkeel-lab/import here.
    #[arg(long, value_name = "DIR", default_value = "evenkeel-lab/import")]
    out: PathBuf,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    let options = Options {
        skip_first: args.skip_first,
        skip_last: args.skip_last,
        from: args.from,
        to: args.to,
        cpus: args.cpus,
    };
    let record = import(&args.logs, &options).map_err(|error| match &error {
        ImportError::Io { path, error: io } if io.kind() == std::io::ErrorKind::IsADirectory => {
            usage!("{0} is a folder: name the logs in it, such as {0}/*.log", path.display())
        }
        ImportError::Io { error: io, .. } if io.kind() != std::io::ErrorKind::NotFound => {
            Failure::Cannot(error.into())
        }
        _ => Failure::Usage(error.into()),
    })?;
    keep(&record, &args.out)?;
    Report::of(&record)?.show(global.output, Some(&args.out)).map(|()| 0)
}
