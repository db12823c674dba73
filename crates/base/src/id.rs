//! Who a task is, in a way that survives pid reuse.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identity of one thread. Numbers are reused by the kernel; together with the start time they are not
/// (within one boot, see [`BootId`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct TaskId {
    /// Thread group: what users call the process id.
    pub tgid: u32,
    /// The thread; equals `tgid` for the main thread.
    pub tid: u32,
    /// Start time in clock ticks (`_SC_CLK_TCK`, 100 per second) since boot: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tid == self.tgid {
            write!(f, "{}", self.tgid)
        } else {
            write!(f, "{}/{}", self.tgid, self.tid)
        }
    }
}

/// `/proc/sys/kernel/random/boot_id`: a journal or a history of another boot says nothing about today's tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootId(pub String);

/// Whether a cgroup of this name is that of a systemd unit.
pub fn is_unit_name(name: &str) -> bool {
    [".service", ".scope", ".slice"].iter().any(|kind| name.ends_with(kind))
}
