//! Forgetting who ended: a tuned process may have children without end, and a scope new tasks.

use std::collections::HashSet;

use evenkeel_base::{Target, TaskId};

use super::Actuator;
use crate::kernel::Kernel;
use crate::outcome::RestoreReport;
use crate::undo::{Entry, State, put_back_at};

/// Entries that are kept in any case.
pub(super) const ROOM: usize = 500;

fn task(entry: &Entry) -> Option<TaskId> {
    if let Target::Task(id) = entry.target { Some(id) } else { None }
}

/// Whoever has a value of ours by birth alone: the journal does not know of it.
fn is_by_birth(entry: &Entry) -> bool {
    task(entry).is_some() && entry.origin.descendant && entry.journaled == 0 && entry.lent.is_empty()
}

impl<K: Kernel> Actuator<K> {
    /// Forgets cgroups that are gone, unless a plan names them, for they may be made again; and tasks that are gone, at the second
    /// look: by then their own children are known, and so is the main thread whose place one took by `exec`. One from which a living
    /// child or main thread has its value stays: in the journal nothing else tells of that.
    pub(super) fn forget_ended(&mut self, is_named: &dyn Fn(&Entry) -> bool, report: &mut RestoreReport) {
        if self.entries.len() < self.room {
            return;
        }
        let mut ended: HashSet<TaskId> = self.entries.iter().filter_map(task).collect();
        ended.retain(|id| self.kernel.is_alive(*id) == Ok(false));
        let before = std::mem::take(&mut self.ended);
        if before.is_empty() && !ended.is_empty() {
            self.ended = ended;
            return;
        }
        ended.retain(|id| before.contains(id));
        let has_ended = |entry: &Entry| task(entry).is_some_and(|id| ended.contains(&id));
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if has_ended(entry) && !is_by_birth(entry) && entry.state.may_be_ours() {
                put_back_at(&mut self.kernel, &mut self.entries, index, report);
            }
        }
        let family = |entry: &Entry| (entry.knob, entry.origin.since_ticks);
        let living = self.entries.iter().filter(|entry| is_by_birth(entry) && !has_ended(entry));
        let families: HashSet<_> = living.filter(|entry| entry.state.may_be_ours()).map(family).collect();
        // A main thread whose place one took by `exec` is not in the journal either.
        let process = |entry: &Entry| task(entry).map(|id| (entry.knob, id.tgid));
        let unwritten = self.entries.iter().filter(|entry| entry.journaled == 0 && !has_ended(entry));
        let taken: HashSet<_> = unwritten.filter(|entry| entry.state.may_be_ours()).map(process).collect();
        self.entries.retain(|entry| match entry.target {
            Target::Task(_) if has_ended(entry) => {
                !is_by_birth(entry) && (families.contains(&family(entry)) || taken.contains(&process(entry)))
            }
            Target::Task(_) => true,
            _ => entry.state != State::Gone || is_named(entry),
        });
        self.reindex();
        self.room = ROOM.max(2 * self.entries.len());
    }
}
