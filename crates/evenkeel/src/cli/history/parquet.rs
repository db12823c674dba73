//! A table of the history as a Parquet file.

use std::path::Path;

use anyhow::Context;
use evenkeel_report::Table;

use crate::cli::Failure;

/// Writes the file and gives the line that is printed. `about` goes into the file's metadata next to the schema's name.
pub(super) fn write<'a, T: 'a>(
    file: &Path,
    table: &Table<T>,
    rows: impl IntoIterator<Item = &'a T>,
    mut about: Vec<(&str, String)>,
) -> Result<String, Failure> {
    about.push(("schema", "evenkeel.history/v1".to_owned()));
    let bytes = table.parquet(rows, &about).context("cannot write Parquet").map_err(Failure::Cannot)?;
    std::fs::write(file, bytes)
        .with_context(|| format!("cannot write {}", file.display()))
        .map_err(Failure::Cannot)?;
    Ok(format!("{}\n", file.display()))
}
