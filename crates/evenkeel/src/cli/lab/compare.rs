//! `evenkeel lab compare`: result folders side by side.

use std::path::PathBuf;

use evenkeel_experiment::study::compare::{Side, published};
use evenkeel_experiment::study::{compare, platforms};
use evenkeel_report::lab;

use super::written::{load, made, write};
use crate::cli::{Failure, Format, Global, Outcome, show};

/// Set result folders side by side: what changed in means and in how runs are distributed, with intervals.
///
/// Points are matched by label and tenants by place in the list. Where the lists differ (4 containers, 8 containers),
/// tenants are matched by units and load; a note says that the others leave them different amounts. With --platforms: what a
/// unit is worth on each host, and with --units whether the units its vendor publishes carry over.
///
/// Example: evenkeel lab compare results/before results/after
///
/// Example: evenkeel lab compare --platforms router small --units 1255=A,732=B
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Result folders; the first is what the others are held against.
    #[arg(required = true, num_args = 2.., value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Compare hosts: what a unit is worth on each.
    #[arg(long)]
    platforms: bool,
    /// Units that the vendor publishes for a platform; FOLDER is its letter (A is the first) or its name.
    #[arg(long, value_name = "UNITS=FOLDER", value_delimiter = ',', requires = "platforms")]
    units: Vec<String>,
    /// Also write a page and GitHub tables there: compare.html and .md, or platforms.html and .md.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if global.output == Format::Csv {
        return Err(show::no_such_output(global.output, "lab compare"));
    }
    let names: Vec<String> = args.folders.iter().map(|folder| folder.display().to_string()).collect();
    let units = published(&args.units, &names).map_err(|e| Failure::Usage(e.into()))?;
    let mut sides: Vec<Side> = Vec::new();
    for (folder, name) in args.folders.iter().zip(&names) {
        sides.push(Side::of(name, load(folder)?));
    }
    if args.platforms {
        let view = platforms(&sides, &units);
        match global.output {
            Format::Json => out!("{}", show::pretty(&view)?)?,
            _ => out!("{}", lab::platforms_text(&view, show::width()))?,
        }
        if let Some(out) = &args.out {
            let out = made(out)?;
            write(out, "platforms.html", &lab::platforms_html(&view))?;
            write(out, "platforms.md", &lab::platforms_markdown(&view))?;
        }
        return Ok(0);
    }
    let comparison = compare(&sides);
    if comparison.rows.is_empty() {
        let why = match (comparison.unmatched.as_slice(), comparison.matched.as_slice()) {
            ([], []) => "they have no tenants.".to_owned(),
            ([], _) => "their runs were cut off or failed, and count nothing.".to_owned(),
            (unmatched, _) => unmatched.join(" "),
        };
        return Err(usage!(
            "these results have nothing in common: {why} Compare runs of the same experiment, or of tenants with the same \
             units (or see --platforms)"
        ));
    }
    match global.output {
        Format::Json => out!("{}", show::pretty(&comparison)?)?,
        _ => out!("{}", lab::compare_text(&comparison, show::width()))?,
    }
    if let Some(out) = &args.out {
        let out = made(out)?;
        write(out, "compare.html", &lab::compare_html(&comparison))?;
        write(out, "compare.md", &lab::compare_markdown(&comparison))?;
    }
    Ok(0)
}
