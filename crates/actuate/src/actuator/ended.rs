//! Forgetting who ended: a tuned process may have children without end.

use std::collections::HashSet;

use evenkeel_base::{Target, TaskId};

use super::Actuator;
use crate::kernel::Kernel;
use crate::undo::Entry;

/// Entries that are kept in any case.
pub(super) const ROOM: usize = 500;

/// Whoever has a value of ours by birth alone: the journal does not know of it.
fn by_birth(entry: &Entry) -> Option<TaskId> {
    match entry.target {
        Target::Task(id) if entry.origin.descendant && entry.journaled == 0 && entry.lent.is_empty() => {
            Some(id)
        }
        _ => None,
    }
}

impl<K: Kernel> Actuator<K> {
    /// Forgets tasks that were born of tuned ones and are gone, at the second look: by then its own children are known, and
    /// so is the main thread whose place one took by `exec`.
    pub(super) fn forget_ended(&mut self) {
        if self.entries.len() < self.room {
            return;
        }
        let mut ended: HashSet<TaskId> = self.entries.iter().filter_map(by_birth).collect();
        ended.retain(|id| self.kernel.is_alive(*id) == Ok(false));
        let before = std::mem::take(&mut self.ended);
        if before.is_empty() && !ended.is_empty() {
            self.ended = ended;
            return;
        }
        ended.retain(|id| before.contains(id));
        self.entries.retain(|entry| !by_birth(entry).is_some_and(|id| ended.contains(&id)));
        self.reindex();
        self.room = ROOM.max(2 * self.entries.len());
    }
}
