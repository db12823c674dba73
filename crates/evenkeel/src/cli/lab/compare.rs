//! `evenkeel lab compare`: result folders side by side.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use evenkeel_experiment::study::{Study, compare, platforms, study};
use evenkeel_report::lab;

use super::report::{load, write};
use crate::cli::{Failure, Format, Global, Outcome, show};

/// Set result folders side by side: what changed, with intervals.
///
/// Points are matched by label and tenants by place in the list. With --platforms: what a unit is worth on each host.
///
/// Example: evenkeel lab compare results/before results/after
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Result folders; the first is what the others are held against.
    #[arg(required = true, num_args = 2.., value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Compare hosts: what a unit is worth on each.
    #[arg(long)]
    platforms: bool,
    /// Also write compare.html and compare.md there.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if matches!(global.output, Format::Svg | Format::Csv) {
        return Err(show::no_such_output(global.output, "lab compare"));
    }
    let mut studies: Vec<(String, Study)> = Vec::new();
    for folder in &args.folders {
        studies.push((name(folder), study(&load(folder)?)));
    }
    let json = |value: serde_json::Result<String>| value.map_err(|e| Failure::Cannot(e.into()));
    if args.platforms {
        let view = platforms(&studies);
        match global.output {
            Format::Json => outln!("{}", json(serde_json::to_string_pretty(&view))?)?,
            _ => out!("{}", lab::platforms_text(&view, show::width()))?,
        }
        if let Some(out) = &args.out {
            write(made(out)?, "platforms.md", &lab::platforms_markdown(&view))?;
        }
        return Ok(0);
    }
    let comparison = compare(&studies);
    if comparison.rows.iter().all(|row| row.values.iter().skip(1).all(Option::is_none)) {
        return Err(Failure::Usage(anyhow!(
            "these results have no point in common: compare runs of the same experiment (or see --platforms)"
        )));
    }
    match global.output {
        Format::Json => outln!("{}", json(serde_json::to_string_pretty(&comparison))?)?,
        _ => out!("{}", lab::compare_text(&comparison, show::width()))?,
    }
    if let Some(out) = &args.out {
        let out = made(out)?;
        write(out, "compare.html", &lab::compare_html(&comparison))?;
        write(out, "compare.md", &lab::compare_markdown(&comparison))?;
    }
    Ok(0)
}

/// The folder, made where it is missing.
fn made(dir: &Path) -> Result<&Path, Failure> {
    std::fs::create_dir_all(dir).map_err(|error| Failure::Cannot(anyhow!("{}: {error}", dir.display())))?;
    Ok(dir)
}

fn name(folder: &Path) -> String {
    folder.display().to_string()
}
