//! `evenkeel lab report`: study and reports of a result folder, made anew from its record alone; and how any studied record is
//! written and printed.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use evenkeel_experiment::record::{CellRecord, Record, RecordError};
use evenkeel_experiment::study::{self, Study, study};
use evenkeel_report::lab;

use crate::cli::{Failure, Format, Global, Outcome, show, tenants};

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
        return tenants::report(global, &load(&args.folder)?, folder_of(&args));
    }
    let record: Record = load(&args.folder)?;
    Results::of(&record).show(global.output, folder_of(&args)).map(|()| 0)
}

/// Where reports are written, if anywhere.
fn folder_of(args: &Args) -> Option<&Path> {
    let parent = || args.folder.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = if args.folder.is_dir() { &args.folder } else { parent() };
    (!args.dry_run).then_some(folder)
}

/// A record; a folder without one is wrong usage.
pub(in crate::cli) fn load<R: CellRecord>(path: &Path) -> Result<R, Failure> {
    R::load(path).map_err(|error| match &error {
        RecordError::Io { error: io, .. } if io.kind() == std::io::ErrorKind::NotFound => Failure::Usage(
            anyhow!("{error}; name a folder that `evenkeel lab run` or `evenkeel tenants` wrote"),
        ),
        RecordError::Form { .. } => Failure::Usage(error.into()),
        RecordError::Io { .. } => Failure::Cannot(error.into()),
    })
}

/// Whether all cells are there; else it was interrupted, which is no success.
pub(in crate::cli) fn complete(record: &impl CellRecord) -> Result<(), Failure> {
    if record.is_complete() {
        return Ok(());
    }
    Err(Failure::No(anyhow!(
        "interrupted: {} of {} cells done; the same command goes on with the rest",
        record.cells().len(),
        record.planned()
    )))
}

/// A studied record, as its folder has it and as commands print it.
pub(in crate::cli) trait Studied {
    /// Name of the table that is printed as CSV.
    const CSV: &'static str;

    /// The study, as one document.
    fn json(&self) -> serde_json::Result<String>;

    /// For people.
    fn text(&self) -> String;

    /// Tables as CSV, by the names of their files.
    fn tables(&self) -> Vec<(&'static str, String)>;

    /// The page.
    fn page(&self) -> String;

    /// The document with GitHub tables.
    fn markdown(&self) -> String;

    /// Writes study and reports into a folder. If a file cannot be written, earlier ones stay.
    fn write(&self, folder: &Path) -> Result<(), Failure> {
        let json = self.json().map_err(|e| Failure::Cannot(e.into()))?;
        write(folder, study::FILE, &(json + "\n"))?;
        write(folder, "report.html", &self.page())?;
        write(folder, "report.md", &self.markdown())?;
        self.tables().iter().try_for_each(|(name, text)| write(folder, name, text))
    }

    /// Prints it in the form asked for.
    fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Text => out!("{}", self.text()),
            Format::Json => outln!("{}", self.json().map_err(|e| Failure::Cannot(e.into()))?),
            Format::Csv => {
                let tables = self.tables();
                out!("{}", tables.iter().find(|(name, _)| *name == Self::CSV).map_or("", |(_, text)| text))
            }
            Format::Svg => Err(show::no_such_output(format, "lab")),
        }
    }

    /// Prints it, and writes it into a folder where one is given.
    fn show(&self, format: Format, folder: Option<&Path>) -> Result<(), Failure> {
        folder.map_or(Ok(()), |folder| self.write(folder))?;
        self.print(format)?;
        if let Some(folder) = folder {
            say!("report: {}", folder.join("report.html").display());
        }
        Ok(())
    }
}

/// Results of an experiment of the laboratory.
pub(in crate::cli) struct Results<'a> {
    record: &'a Record,
    study: Study,
}

impl<'a> Results<'a> {
    /// Studies a record.
    pub fn of(record: &'a Record) -> Self {
        Self { record, study: study(record) }
    }
}

impl Studied for Results<'_> {
    const CSV: &'static str = "tenants.csv";

    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&self.study)
    }

    fn text(&self) -> String {
        lab::text(&self.study, show::width())
    }

    fn tables(&self) -> Vec<(&'static str, String)> {
        lab::csv_files(self.record, &self.study)
    }

    fn page(&self) -> String {
        lab::page(self.record, &self.study)
    }

    fn markdown(&self) -> String {
        lab::markdown(&self.study)
    }
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
