//! `evenkeel lab merge`: one result folder of the shards of an experiment.

use std::path::{Path, PathBuf};

use evenkeel_experiment::merge::{Part, SHARDS, merge};
use evenkeel_experiment::record::{CellRecord, FILE, Record};

use super::written::{Report, load, made};
use crate::cli::{Failure, Format, Global, Outcome, show};

/// Merge the shards of one experiment, from several runs or hosts, into one result folder.
///
/// Shards are what `lab run --shard` and `sim --shard` leave, also in the pods of `lab job`. Each cell keeps the name of its
/// host. Folders of different experiments are refused, with what differs. Shards that are missing are named: exit status 1.
///
/// Example: evenkeel lab merge results/0-node-a results/1-node-b --out results/merged
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Result folders of shards, or folders that hold these.
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Result folder of the whole experiment.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Replace results that the folder holds.
    #[arg(long)]
    again: bool,
}

pub fn run(global: &Global, args: &Args) -> Outcome {
    if global.output == Format::Svg {
        return Err(show::no_such_output(global.output, "lab merge"));
    }
    let out = args.out.as_path();
    if !args.again && out.join(FILE).exists() {
        return Err(usage!(
            "{} holds results; choose another folder (--out DIR), or replace them (--again)",
            out.display()
        ));
    }
    let mut parts = Vec::new();
    for folder in &args.folders {
        for folder in shards_in(folder) {
            parts.push(Part { name: folder.display().to_string(), record: load(&folder)? });
        }
    }
    let record = merge(parts).map_err(|error| Failure::Usage(error.into()))?;
    let report = Report::of(&record)?;
    record.save(made(out)?).map_err(|error| Failure::Cannot(error.into()))?;
    report.show(global.output, Some(out))?;
    whole(&record)
}

/// Whether all cells of a merged record are there; no command measures those of a shard that is missing.
pub(super) fn whole(record: &Record) -> Outcome {
    if record.is_complete() {
        return Ok(0);
    }
    let missing = record.requirements.iter().find(|one| one.name == SHARDS);
    let evidence = missing.map_or("cells are missing", |one| one.evidence.as_str());
    Err(refused!("not all of the experiment is there: {evidence}"))
}

/// The folder itself where it holds a record, else the folders in it that do. One without any is left for the reader to refuse.
fn shards_in(folder: &Path) -> Vec<PathBuf> {
    let has_record = |path: &Path| path.join(FILE).exists();
    let below = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut below: Vec<PathBuf> = below.filter(|path| has_record(path)).collect();
    if has_record(folder) || below.is_empty() {
        return vec![folder.to_owned()];
    }
    below.sort_unstable();
    below
}
