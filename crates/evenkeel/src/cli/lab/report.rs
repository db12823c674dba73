//! `evenkeel lab report`: study and reports of a result folder, made anew from its record alone.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use evenkeel_experiment::record::{Record, RecordError};
use evenkeel_experiment::study::{self, Study, study};
use evenkeel_report::lab;

use crate::cli::{Failure, Format, Global, Outcome, show};

/// Study a result folder and make its reports anew, from its record alone.
///
/// Writes study.json, report.html (one file, readable offline), report.md (GitHub tables) and CSV files into the
/// folder, and prints verdicts and figures. Nothing is measured: the same record gives the same reports.
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
    if evenkeel_lab::fairness::record::is_one(&args.folder) {
        return crate::cli::tenants::report_again(global, &args.folder);
    }
    let record = load(&args.folder)?;
    let folder = if args.folder.is_dir() {
        args.folder.as_path()
    } else {
        args.folder.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
    };
    let study = if args.dry_run { study(&record) } else { make(&record, folder)? };
    print(global.output, &record, &study)?;
    if !args.dry_run {
        say!("{}", folder.join("report.html").display());
    }
    Ok(0)
}

/// A record; a folder without one is wrong usage.
pub(super) fn load(path: &Path) -> Result<Record, Failure> {
    Record::load(path).map_err(|error| match &error {
        RecordError::Io { error: io, .. } if io.kind() == std::io::ErrorKind::NotFound => {
            Failure::Usage(anyhow!("{error}; name a folder that `evenkeel lab run` wrote"))
        }
        RecordError::Form { .. } => Failure::Usage(error.into()),
        RecordError::Io { .. } => Failure::Cannot(error.into()),
    })
}

/// Studies a record and writes all reports into a folder.
///
/// # Errors
/// A file that cannot be written; earlier ones stay.
pub(in crate::cli) fn make(record: &Record, folder: &Path) -> Result<Study, Failure> {
    let study = study(record);
    let json = serde_json::to_string_pretty(&study).map_err(|e| Failure::Cannot(e.into()))?;
    write(folder, study::FILE, &(json + "\n"))?;
    write(folder, "report.html", &lab::page(record, &study))?;
    write(folder, "report.md", &lab::markdown(&study))?;
    for (name, text) in lab::csv_files(record, &study) {
        write(folder, name, &text)?;
    }
    Ok(study)
}

/// Writes a file whole or not at all.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let temporary = folder.join(format!(".{name}.new"));
    let written =
        std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, folder.join(name)));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        Failure::Cannot(anyhow!("{}: {error}", folder.join(name).display()))
    })
}

/// Prints a study in the form asked for.
pub(in crate::cli) fn print(format: Format, record: &Record, study: &Study) -> Result<(), Failure> {
    match format {
        Format::Text => out!("{}", lab::text(study, show::width()))?,
        Format::Json => {
            outln!("{}", serde_json::to_string_pretty(study).map_err(|e| Failure::Cannot(e.into()))?)?;
        }
        Format::Csv => {
            let files = lab::csv_files(record, study);
            out!("{}", files.iter().find(|(name, _)| *name == "tenants.csv").map_or("", |(_, text)| text))?;
        }
        Format::Svg => return Err(show::no_such_output(format, "lab")),
    }
    Ok(())
}
