//! How any studied record is read, written and printed.

use std::path::Path;

use anyhow::anyhow;
use evenkeel_experiment::record::{CellRecord, Record, RecordError};
use evenkeel_experiment::study::{self, study};
use evenkeel_report::lab;

use crate::cli::{Failure, Format, show};

/// A record; a folder without one is wrong usage.
pub(in crate::cli) fn load<R: CellRecord>(path: &Path) -> Result<R, Failure> {
    R::load(path).map_err(|error| match &error {
        RecordError::Io { error: io, .. } if io.kind() == std::io::ErrorKind::NotFound => Failure::Usage(
            anyhow!("{error}; name a folder that `evenkeel lab run` or `evenkeel tenants` wrote"),
        ),
        RecordError::Io { error: io, .. } if io.raw_os_error().is_some() => Failure::Cannot(error.into()),
        // It is there and no record.
        RecordError::Io { .. } | RecordError::Form { .. } => Failure::Usage(error.into()),
    })
}

/// Whether all cells are there; else it was interrupted, which is no success.
pub(in crate::cli) fn complete(record: &impl CellRecord) -> Result<(), Failure> {
    if record.is_complete() {
        return Ok(());
    }
    Err(refused!(
        "interrupted: {} of {} cells done; the command that began it goes on with the rest",
        record.cells().len(),
        record.planned()
    ))
}

/// A studied record, as its folder has it and as commands print it.
pub(in crate::cli) struct Report {
    json: String,
    text: String,
    /// Name of the table that is printed as CSV.
    csv: &'static str,
    /// Page, document and tables, by their names.
    files: Vec<(&'static str, String)>,
}

impl Report {
    /// Of a study, for people the text and the files.
    pub fn new(
        study: &impl serde::Serialize,
        text: String,
        csv: &'static str,
        files: Vec<(&'static str, String)>,
    ) -> Result<Self, Failure> {
        let json = serde_json::to_string_pretty(study).map_err(|e| Failure::Cannot(e.into()))?;
        Ok(Self { json, text, csv, files })
    }

    /// Of an experiment of the laboratory.
    pub fn of(record: &Record) -> Result<Self, Failure> {
        let study = study(record);
        let mut files = lab::csv_files(record, &study);
        files.push(("report.html", lab::page(record, &study)));
        files.push(("report.md", lab::markdown(&study)));
        Self::new(&study, lab::text(&study, show::width()), "tenants.csv", files)
    }

    /// Writes study and reports into a folder. If a file cannot be written, earlier ones stay.
    pub fn write(&self, folder: &Path) -> Result<(), Failure> {
        write(folder, study::FILE, &format!("{}\n", self.json))?;
        self.files.iter().try_for_each(|(name, text)| write(folder, name, text))
    }

    /// Prints it in the form asked for.
    pub fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Text | Format::Svg => out!("{}", self.text),
            Format::Json => outln!("{}", self.json),
            Format::Csv => {
                let table = self.files.iter().find(|(name, _)| *name == self.csv);
                out!("{}", table.map_or("", |(_, text)| text))
            }
        }
    }

    /// Prints it, and writes it into a folder where one is given. What cannot be printed is not written, either.
    pub fn show(&self, format: Format, folder: Option<&Path>) -> Result<(), Failure> {
        if format == Format::Svg {
            return Err(show::no_such_output(format, "the report of this experiment"));
        }
        folder.map_or(Ok(()), |folder| self.write(folder))?;
        self.print(format)?;
        if let Some(folder) = folder {
            say!("report: {}", folder.join("report.html").display());
        }
        Ok(())
    }
}

/// The folder, made where it is missing.
pub(super) fn made(dir: &Path) -> Result<&Path, Failure> {
    std::fs::create_dir_all(dir).map_err(|error| cannot!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// Where a record of logs or of a simulation, which can be made again, is to be kept: nothing that was measured is there.
pub(in crate::cli) fn replaceable(folder: &Path) -> Result<&Path, Failure> {
    match Record::holds_more(folder) {
        Some(what) => Err(usage!("{} holds {what}; choose another folder (--out DIR)", folder.display())),
        None => Ok(folder),
    }
}

/// Keeps a record in a folder that is [`replaceable`].
pub(in crate::cli) fn keep(record: &Record, folder: &Path) -> Result<(), Failure> {
    record.save(made(replaceable(folder)?)?).map_err(|e| Failure::Cannot(e.into()))
}

/// Writes a file whole or not at all.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let temporary = folder.join(format!(".{name}.new"));
    let written =
        std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, folder.join(name)));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        cannot!("{}: {error}", folder.join(name).display())
    })
}
