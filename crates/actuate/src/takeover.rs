//! Taking over what a killed predecessor left in force, instead of restoring it first.
//!
//! [`Actuator::resume`] knows every value that its journal names; [`Actuator::left`] says which of a decision's changes are
//! still what that decision made them, and writes nothing. What of them may stay is then set as any plan is: a value that is
//! there already is not written again, everything else that the journal names goes back. The originals stay in the journal
//! all the while, so that a second kill at any instant finds them.

use std::io;

use evenkeel_base::{Change, Setting, Target};

use crate::actuator::Actuator;
use crate::kernel::{Kernel, KernelError};
use crate::undo::{Entry, State, locate, widest};
use crate::value::{normalise, same};

/// What a change of a predecessor's is now.
#[derive(Debug, Clone, PartialEq)]
pub enum Left {
    /// Its value is there, on the same task or cgroup.
    InForce,
    /// The original is there: the change was held out, or on trial against the baseline.
    Original,
    /// Another value of the predecessor's is there: another setting was on trial.
    OnTrial(Setting),
    /// The task or cgroup is no more; whoever has its number or path now is another one.
    Gone,
    /// The task runs another program since.
    Exec,
    Foreign(Setting),
    /// The journal does not name it: it was never made, or was taken back.
    NotJournaled,
    /// It cannot be looked at.
    Unknown(KernelError),
}

impl Left {
    /// Whether it may be in force from now on.
    pub fn may_stay(&self) -> bool {
        matches!(self, Self::InForce | Self::Original | Self::OnTrial(_))
    }
}

impl<K: Kernel> Actuator<K> {
    /// What each of these changes, a predecessor's or ours, is now. Nothing is written.
    pub fn left(&mut self, changes: &[Change]) -> Vec<Left> {
        changes.iter().map(|change| self.left_of(change)).collect()
    }

    fn left_of(&mut self, change: &Change) -> Left {
        let Some(index) = self.entry_of(&change.target, change.knob()) else { return Left::NotJournaled };
        match self.looked_at(index, change) {
            Ok((left, state)) => {
                // While this process lives it knows what it wrote.
                if let Some(state) = state.filter(|_| self.entry_mut(index).state == State::Unknown) {
                    self.entry_mut(index).state = state;
                }
                left
            }
            Err(KernelError::Gone) => Left::Gone,
            Err(error) => Left::Unknown(error),
        }
    }

    /// What a change is, and what is known of its entry from now on.
    fn looked_at(&mut self, index: usize, change: &Change) -> Result<(Left, Option<State>), KernelError> {
        let entry = self.entry_mut(index).clone();
        let kernel = self.kernel();
        if locate(kernel, &entry)?.as_ref() != Some(&change.target) {
            return Ok((Left::Gone, None));
        }
        if runs_another_program(kernel, &entry)? {
            return Ok((Left::Exec, None));
        }
        let present = kernel.read(&change.target, entry.knob)?;
        let widest = widest(kernel, &change.target, entry.knob);
        let v2 = matches!(&change.target, Target::Group(group) if group.v2);
        let to = normalise(&change.to, &present, v2);
        if !entry.wrote[..entry.journaled].contains(&to) {
            return Ok((Left::NotJournaled, None));
        }
        let is = |value: &Setting| same(&present, value, widest.as_ref());
        Ok(if is(&to) {
            (Left::InForce, Some(State::Ours(to)))
        } else if is(&entry.original) {
            (Left::Original, Some(State::Back))
        } else if entry.wrote.iter().any(is) {
            (Left::OnTrial(present), None)
        } else {
            (Left::Foreign(present), None)
        })
    }

    /// Keeps bytes next to the journal that a successor is to know: which of the changes belong to which decision.
    pub fn remember(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.ledger_mut().remember(bytes)
    }

    /// Forgets what was remembered: a successor restores everything.
    pub fn forget(&mut self) -> io::Result<()> {
        self.ledger_mut().forget()
    }
}

/// Whether a task has called `exec` since it was first touched, as far as is known.
fn runs_another_program<K: Kernel>(kernel: &mut K, entry: &Entry) -> Result<bool, KernelError> {
    let Target::Task(id) = &entry.target else { return Ok(false) };
    let facts = kernel.identity(id.tid)?;
    if facts.id != *id {
        return Err(KernelError::Gone);
    }
    let (then, now) = (entry.origin.image, facts.image);
    Ok(then != 0 && now != 0 && then != now)
}
