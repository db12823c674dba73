//! Records on disk: one JSON file of a result folder, whole at any instant.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::FILE;

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Not a record of this version.
    #[error("{path}: {what}")]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        what: String,
    },
}

/// A document kept as [`FILE`] of a result folder.
pub trait OnDisk: Serialize + DeserializeOwned {
    /// The `schema` it must carry.
    const SCHEMA: &'static str;

    /// The `schema` it carries.
    fn schema(&self) -> &str;
}

/// Reads [`FILE`] of a result folder, or the file itself.
///
/// # Errors
/// Unreadable, or not a document of this schema.
pub fn load<T: OnDisk>(path: &Path) -> Result<T, RecordError> {
    let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    let text = evenkeel_kernfs::input::read_text(&path)
        .map_err(|error| RecordError::Io { path: path.clone(), error })?;
    let record: T = serde_json::from_str(&text)
        .map_err(|e| RecordError::Form { path: path.clone(), what: e.to_string() })?;
    if record.schema() != T::SCHEMA {
        let what = format!("schema {:?}, expected {:?}", record.schema(), T::SCHEMA);
        return Err(RecordError::Form { path, what });
    }
    Ok(record)
}

/// Writes [`FILE`] into a folder, which must exist. What was there stays until the new one is whole on disk.
///
/// # Errors
/// As the file system.
pub fn save(record: &impl OnDisk, folder: &Path) -> Result<(), RecordError> {
    let path = folder.join(FILE);
    let temporary = folder.join(".record.json.new");
    let written = (|| {
        let mut file = File::create(&temporary)?;
        let mut text = serde_json::to_vec(record).map_err(io::Error::other)?;
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
