//! Records on disk: one JSON file of a result folder, whole at any instant.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{FILE, Host};

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    /// Not a record of this version.
    #[error("{path}: {what}")]
    Form { path: PathBuf, what: String },
}

/// What every record begins with.
#[derive(Deserialize)]
struct Head {
    schema: String,
}

/// A record of cells, kept as [`FILE`] of a result folder: what any experiment leaves that is run cell by cell. A cell is
/// one repetition at one point.
pub trait CellRecord: Serialize + DeserializeOwned {
    /// The `schema` it must carry.
    const SCHEMA: &'static str;
    /// What is measured at one point once.
    type Cell;

    /// Where it was begun.
    fn host(&self) -> &Host;

    /// Cells done, in the order in which they were run.
    fn cells(&self) -> &[Self::Cell];

    /// Index of a cell's point, and its repetition.
    fn place(cell: &Self::Cell) -> (usize, u32);

    /// Number of cells when finished.
    fn planned(&self) -> usize;

    /// Adds a cell; `finished` is kept with the last one.
    fn add(&mut self, cell: Self::Cell, finished: String);

    /// Whether a cell is there already.
    fn has(&self, point: usize, repetition: u32) -> bool {
        self.cells().iter().any(|cell| Self::place(cell) == (point, repetition))
    }

    /// Whether nothing is missing.
    fn is_complete(&self) -> bool {
        self.cells().len() >= self.planned()
    }

    /// Whether a result folder, or the file in it, holds one of these records.
    fn is_one(path: &Path) -> bool {
        let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
        let text = fs::read_to_string(path).unwrap_or_default();
        serde_json::from_str::<Head>(&text).is_ok_and(|head| head.schema == Self::SCHEMA)
    }

    /// Reads [`FILE`] of a result folder, or the file itself.
    fn load(path: &Path) -> Result<Self, RecordError> {
        let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
        let text = evenkeel_linux::input::read_text(&path)
            .map_err(|error| RecordError::Io { path: path.clone(), error })?;
        let form = |what| RecordError::Form { path: path.clone(), what };
        let Head { schema } = serde_json::from_str(&text).map_err(|e| form(e.to_string()))?;
        if schema != Self::SCHEMA {
            return Err(form(format!("schema {schema:?}, expected {:?}", Self::SCHEMA)));
        }
        serde_json::from_str(&text).map_err(|e| form(e.to_string()))
    }

    /// Writes it into a folder, which must exist. What was there stays until the new one is whole on disk.
    fn save(&self, folder: &Path) -> Result<(), RecordError> {
        let path = folder.join(FILE);
        let temporary = folder.join(".record.json.new");
        let written = (|| {
            let mut file = File::create(&temporary)?;
            let mut text = serde_json::to_vec(self).map_err(io::Error::other)?;
            text.push(b'\n');
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(|error| RecordError::Io { path, error })
    }
}
