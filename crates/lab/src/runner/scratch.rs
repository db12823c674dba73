//! Names of a running cell, and what the dead left behind.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::mounts::CgroupMounts;
use crate::names::PREFIX;
use evenkeel_linux::process;

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
    owner.is_some_and(|pid| !process::is_alive(pid))
}

/// Ends and removes what experiments of dead starters left: processes, cgroups, files. How many groups and folders.
pub fn sweep_stale() -> usize {
    let groups = CgroupMounts::find().map(|mounts| mounts.stale(is_stale)).unwrap_or_default();
    groups.iter().filter(|group| group.clear()).count() + crate::private::sweep_stale()
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
