//! `evenkeel lab report`: study and reports of a result folder, made again from its record alone.

use std::path::{Path, PathBuf};

use evenkeel_experiment::record::{CellRecord, Record};
use evenkeel_lab::fairness::record::TenantsRecord;
use evenkeel_lab::neighbour::record::NeighbourRecord;

use super::written::{Report, complete, load};
use super::{merge, neighbour};
use crate::cli::{Global, Outcome, tenants};

/// Study a result folder and make its reports again, from its record alone.
///
/// Writes study.json, report.html (one file, readable offline), report.md (GitHub tables) and CSV files into the
/// folder, and prints verdicts and figures. Nothing is measured: the same record gives the same reports. Exit status 1: cells
/// are missing, as after an interruption.
///
/// Example: evenkeel lab report evenkeel-lab/cpu-units-equal
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Result folder (or its record.json).
    folder: PathBuf,
    /// Write nothing, only print.
    #[arg(long)]
    dry_run: bool,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if NeighbourRecord::is_one(&args.folder) {
        return neighbour::report(global, &load(&args.folder)?, folder_of(&args));
    }
    if TenantsRecord::is_one(&args.folder) {
        return tenants::report(global, &load(&args.folder)?, folder_of(&args));
    }
    let record: Record = load(&args.folder)?;
    Report::of(&record)?.show(global.output, folder_of(&args))?;
    if record.merged.is_empty() { complete(&record).map(|()| 0) } else { merge::whole(&record) }
}

/// Where reports are written, if anywhere.
fn folder_of(args: &Args) -> Option<&Path> {
    let parent = || args.folder.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = if args.folder.is_dir() { &args.folder } else { parent() };
    (!args.dry_run).then_some(folder)
}
