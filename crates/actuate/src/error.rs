//! Why nothing can be changed.

use std::path::PathBuf;

use crate::kernel::KernelError;
use crate::medium::OpenError;
use crate::outcome::Recovery;

/// Why nothing can be changed.
#[derive(Debug, thiserror::Error)]
pub enum ActuateError {
    /// The state directory is in use or cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{path}: {error}; nothing is changed without a journal")]
    Journal { path: PathBuf, error: std::io::Error },
    /// The journal was written by a newer evenkeel.
    #[error("{path} has format {version}, this evenkeel knows up to {known}; restore with the evenkeel that wrote it",
        known = crate::journal::VERSION)]
    Version { path: PathBuf, version: u32 },
    /// The journal a predecessor left is damaged. What is readable was restored; nothing new is written this time.
    #[error("{path} is damaged in line {line}: what is readable was restored ({}), the file is kept as {kept}; \
        compare the tasks it names with your expectations, then start again",
        evenkeel_base::text::count(recovery.report.put_back.len(), "value"),
        kept = recovery.kept_aside.as_deref().unwrap_or(path).display())]
    Damaged {
        path: PathBuf,
        /// First damaged line, from 1.
        line: usize,
        /// What was done about it.
        recovery: Box<Recovery>,
    },
    /// The journal was written in namespaces in which its numbers and names mean something else than here.
    #[error("{path} cannot be restored from here, and nothing was changed: {why}")]
    Elsewhere { path: PathBuf, why: String },
    #[error("cannot tell which boot this is: {0}")]
    Boot(KernelError),
}
