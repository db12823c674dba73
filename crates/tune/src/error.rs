//! Why a search could not be made.

use std::io;
use std::path::PathBuf;

/// Why a search could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A file.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another search runs there.
    #[error("{0}: another evenkeel tune is at work there")]
    Busy(PathBuf),
    /// Not a record of trials.
    #[error("{0}: this is no record of trials; name another directory with --dir")]
    Foreign(PathBuf),
    /// The record is of other parameters or commands.
    #[error(
        "{dir} holds trials of {name:?} with other parameters, commands or quantities; name another directory with \
         --dir, or start over with --fresh"
    )]
    Other {
        /// The directory.
        dir: PathBuf,
        /// Name of the search in it.
        name: String,
    },
    /// A line of the record cannot be read.
    #[error("{path}:{line}: {what}; remove the line, or start over with --fresh")]
    Damaged {
        /// The record.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// Something answers before the service was started.
    #[error(
        "something answers at {0} already, and it would be measured instead of the service: end it, or use another port"
    )]
    Taken(String),
    /// The simulation that was to show where to begin.
    #[error("[simulate]: {0}")]
    Simulation(String),
    /// Nothing could be measured.
    #[error("{what} failed: {why}")]
    Hopeless {
        /// What failed.
        what: String,
        /// The last reason.
        why: String,
    },
}
