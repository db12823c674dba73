//! Names and files of a running cell, and what the dead left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::RunError;
use super::groups::Places;
use crate::tenant::{PREFIX, is_alive};

/// Where pages, orders and answers live: memory, visible to bind mounts.
const SHARED_MEMORY: &str = "/dev/shm";

/// Numbers the cells of this process, for names.
static CELLS: AtomicU32 = AtomicU32::new(0);

/// A name no other cell has: `evenkeel-lab-PID-xN`.
pub(crate) fn fresh_name() -> String {
    format!("{PREFIX}{}-x{}", std::process::id(), CELLS.fetch_add(1, Ordering::Relaxed))
}

/// Whether a name was given by [`fresh_name`] in a process that is dead.
pub(crate) fn is_stale(name: &str) -> bool {
    let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once("-x")).and_then(|(pid, number)| {
        number.parse::<u32>().ok()?;
        pid.parse::<u32>().ok()
    });
    owner.is_some_and(|pid| !is_alive(pid))
}

fn base() -> PathBuf {
    let memory = Path::new(SHARED_MEMORY);
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Ends and removes what experiments of dead starters left: processes, cgroups, files. How many groups and folders.
pub fn sweep_stale() -> usize {
    let mut removed = Places::find().map_or(0, |places| places.sweep(is_stale));
    for entry in fs::read_dir(base()).into_iter().flatten().flatten() {
        let stale = entry.file_name().to_str().is_some_and(is_stale);
        removed += usize::from(stale && fs::remove_dir_all(entry.path()).is_ok());
    }
    removed
}

/// A folder for a cell; removed on drop.
#[derive(Debug)]
pub(crate) struct Scratch(pub PathBuf);

impl Scratch {
    pub fn make(name: &str) -> Result<Self, RunError> {
        let path = base().join(name);
        fs::create_dir(&path).map_err(|e| RunError::system(format!("cannot make {}", path.display()), e))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            tracing::warn!("cannot remove {}: {e}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_dead_are_stale() {
        assert!(!is_stale(&fresh_name()));
        assert!(is_stale(&format!("{PREFIX}4194305-x0")));
        for other in ["docker", "evenkeel-lab-4194305-0", "evenkeel-lab-x-x1", "evenkeel-lab-4194305-x"] {
            assert!(!is_stale(other), "{other}");
        }
    }
}
