//! Tasks whose affinity somebody else of this process changes and changes back, many times a second.

use evenkeel_base::{CpuSet, Knob, Setting, Target, TaskId};
use evenkeel_linux::sys;

use super::{Actuator, verdict};
use crate::kernel::{Kernel, KernelError};
use crate::outcome::Verdict;
use crate::undo::{Entry, State, widest};
use crate::value::{attainable, original_of, same};

/// A task whose affinity may be changed for an instant.
#[derive(Debug, Clone, PartialEq)]
pub struct TemporaryPin {
    pub id: TaskId,
    /// The affinity as it reads now.
    pub present: CpuSet,
    /// What is to be written afterwards: all ones where no one asked for less.
    pub original: CpuSet,
}

/// What came of moving a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// It is queued on the other CPU, and has its affinity back (or has ended).
    Yes,
    /// Nothing was changed: it is gone, or somebody else has pinned it, whose it is then.
    No,
    /// It could not be unpinned: for [`Actuator::suspect`].
    Pinned,
}

/// Attempts to take a pin off.
const ATTEMPTS: u32 = 3;

impl TemporaryPin {
    /// Moves a task that waits to another CPU, at once: pins it there and takes the pin off. There is no other way to move a
    /// task of the fair class. A task that runs is moved, too, which interrupts it: the caller sees to it that it waits.
    pub fn move_to(&self, cpu: u32) -> Moved {
        let tid = self.id.tid;
        let is_free = || sys::getaffinity(tid).is_ok_and(|now| now == self.present);
        if !self.present.contains(cpu) || !is_free() || sys::setaffinity(tid, &CpuSet::single(cpu)).is_err() {
            return Moved::No;
        }
        let unpin = |_| match sys::setaffinity(tid, &self.original) {
            Ok(()) => true,
            Err(error) => error.raw_os_error() == Some(libc::ESRCH),
        };
        if (0..ATTEMPTS).any(unpin) { Moved::Yes } else { Moved::Pinned }
    }
}

impl<K: Kernel> Actuator<K> {
    /// Writes to the journal that each of these tasks may be found on a single one of its CPUs, should this process be
    /// killed, and what it is to have then. From then on the caller may call [`TemporaryPin::move_to`], from any thread.
    ///
    /// Left out are tasks that are gone or may not be touched, and those whose affinity somebody has changed since it was
    /// first seen.
    ///
    /// # Errors
    /// The journal cannot be written: then no task may be moved.
    pub fn lend(&mut self, tasks: &[TaskId], cpus: &CpuSet) -> Result<Vec<TemporaryPin>, KernelError> {
        let mut lent = Vec::new();
        let mut lines = Vec::new();
        for &id in tasks {
            let Ok((index, present)) = self.lendable(id) else { continue };
            let Setting::Affinity(original) = self.entries[index].original.clone() else { continue };
            lines.push((index, present.intersection(cpus)));
            lent.push(TemporaryPin { id, present, original });
        }
        self.ledger.lend(&mut self.entries, &lines)?;
        self.ledger.compact_if_grown(&mut self.kernel, &self.entries);
        Ok(lent)
    }

    /// What was lent may not be back: it is looked at, and put back, with the next plan.
    pub fn suspect(&mut self, id: TaskId) {
        if let Some(&index) = self.index.get(&(Target::Task(id), Knob::Affinity)) {
            self.entries[index].state = State::Unknown;
        }
    }

    /// The entry of a task's affinity, new if need be, where it has its original value. Of a task whose CPUs are not in its cpuset the
    /// kernel takes no mask without others, and nobody asked for those.
    fn lendable(&mut self, id: TaskId) -> Result<(usize, CpuSet), Verdict> {
        let target = Target::Task(id);
        let facts = self.admit(id)?;
        let present = self.kernel.read(&target, Knob::Affinity).map_err(verdict)?;
        let widest = widest(&mut self.kernel, &target, Knob::Affinity)
            .ok_or_else(|| Verdict::Refused("its cpuset is not known".to_owned()))?;
        let Setting::Affinity(cpus) = present.clone() else { return Err(Verdict::Unchanged) };
        if let Some(&index) = self.index.get(&(target.clone(), Knob::Affinity)) {
            let Entry { original, state, .. } = &self.entries[index];
            let is_found = same(&present, original, Some(&widest)) && *state == State::Back;
            return match is_found && attainable(original, Some(&widest)) == *original {
                true => Ok((index, cpus)),
                false => Err(Verdict::Conflict(present)),
            };
        }
        let origin = self.origin(&target, Knob::Affinity, facts)?;
        Ok((self.insert(Entry::new(target, original_of(&present, Some(&widest)), origin)), cpus))
    }
}
