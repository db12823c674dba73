//! Undo of what a process that is gone left.

use std::path::Path;

use crate::error::ActuateError;
use crate::kernel::Kernel;
use crate::medium::{FileMedium, Medium, OpenError};
use crate::outcome::Recovery;
use crate::recover;

/// Puts back what a process that is gone left, from its journal in `state_dir`, and removes the journal.
///
/// # Errors
/// As [`super::Actuator::open`]; a directory without a journal is "nothing to do".
pub fn restore<K: Kernel>(state_dir: &Path, mut kernel: K) -> Result<Recovery, ActuateError> {
    match std::fs::metadata(state_dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Recovery::default()),
        Err(error) => return Err(OpenError::Io { path: state_dir.into(), error }.into()),
        Ok(_) => {}
    }
    restore_on(&mut kernel, &mut FileMedium::open_existing(state_dir)?)
}

/// As [`restore`], with the journal kept elsewhere.
pub fn restore_on<K: Kernel>(kernel: &mut K, medium: &mut dyn Medium) -> Result<Recovery, ActuateError> {
    // Nobody is to take over what was asked to go back.
    if let Err(error) = medium.remove_decision() {
        tracing::debug!(%error, "what was remembered could not be forgotten");
    }
    let (mut recovery, remaining) = recover::recover(kernel, medium)?;
    if recovery.left_behind
        && remaining.is_empty()
        && let Err(error) = medium.remove()
    {
        recovery.report.notes.push(format!("the journal could not be removed: {error}"));
    }
    Ok(recovery)
}
