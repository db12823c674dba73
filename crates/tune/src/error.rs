//! Why a search could not be made.

use std::io;
use std::path::PathBuf;

/// Why a search could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{0}: another evenkeel tune is at work there")]
    Busy(PathBuf),
    #[error("{0}: this is no record of trials; name another directory with --dir")]
    Foreign(PathBuf),
    #[error(
        "{dir} holds trials of {name:?} with other parameters, commands or quantities; name another directory with \
         --dir, or start over with --fresh"
    )]
    Other { dir: PathBuf, name: String },
    #[error(
        "{dir} holds trials of another host, or of this one before it was changed ({differs}); name another directory with \
         --dir, or start over with --fresh"
    )]
    OtherHost { dir: PathBuf, differs: String },
    #[error("{path}:{line}: {what}; remove the line, or start over with --fresh")]
    Damaged {
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        what: String,
    },
    #[error(
        "something answers at {0} already, and it would be measured instead of the service: end it, or use another port"
    )]
    Taken(String),
    #[error("[simulate]: {0}")]
    Simulation(String),
    #[error("{what} failed: {why}")]
    Hopeless { what: String, why: String },
}
