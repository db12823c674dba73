//! What came of setting and of putting back.

use std::path::PathBuf;

use evenkeel_base::{Knob, Setting, Target};
use serde::Serialize;

use crate::kernel::KernelError;

/// A change that is in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// Value just before.
    pub from: Setting,
    /// Value read back afterwards; differs from the one asked for where the kernel clamps.
    pub now: Setting,
    /// Nothing of ours was ever there: a cgroup that was made again under its name is another one.
    pub first: bool,
}

/// What came of one change.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Applied(Applied),
    /// It had that value already; nothing was written.
    Unchanged,
    /// The task ended or the cgroup was removed.
    Gone,
    /// Not allowed, whatever the plan says.
    Refused(String),
    /// The kernel or the journal failed; nothing was changed, or it was taken back.
    Failed(KernelError),
    /// Somebody else changed it meanwhile: left as found now. What is left of ours in it goes back when no plan names it any more.
    Conflict(Setting),
}

/// One change of a plan and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeOutcome {
    /// What was to be changed.
    pub target: Target,
    pub knob: Knob,
    pub to: Setting,
    pub verdict: Verdict,
}

/// What [`crate::Actuator::set`] did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SetReport {
    /// One entry for each change of the plan, in its order.
    pub changes: Vec<ChangeOutcome>,
    /// What went back because the plan no longer names it, descendants included.
    pub back: RestoreReport,
}

impl SetReport {
    pub fn applied(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Applied(_)))
    }

    /// Number of changes in force: written now or there already.
    pub fn in_force(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Applied(_) | Verdict::Unchanged))
    }

    /// Changes that are not in force although their target lives, each with the reason in words.
    pub fn problems(&self) -> impl Iterator<Item = (&ChangeOutcome, String)> {
        self.changes.iter().filter_map(|change| {
            let why = match &change.verdict {
                Verdict::Refused(why) => format!("refused: {why}"),
                Verdict::Failed(error) => error.to_string(),
                Verdict::Conflict(found) => format!("changed by somebody else to {found}"),
                _ => return None,
            };
            Some((change, why))
        })
    }

    fn count(&self, of: impl Fn(&Verdict) -> bool) -> usize {
        self.changes.iter().filter(|c| of(&c.verdict)).count()
    }
}

/// One property of one target, in a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Item {
    pub target: Target,
    pub knob: Knob,
    /// The task's name when it was first changed; `None` for a cgroup.
    pub comm: Option<String>,
    /// Value found when it was restored; `None` when it could not be read.
    pub found: Option<Setting>,
    pub original: Setting,
    /// It inherited our value from a tuned parent.
    pub descendant: bool,
    /// What went wrong or was left alone, in words.
    pub note: Option<String>,
}

impl Item {
    /// Which property of whom, and what went wrong.
    pub fn in_words(&self) -> String {
        let why = self.note.as_deref().map_or_else(String::new, |note| format!(" ({note})"));
        format!("{} of {}{why}", self.knob.name(), self.target)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RestoreReport {
    /// Written back and verified.
    pub put_back: Vec<Item>,
    /// Already had its original value.
    pub already: Vec<Item>,
    /// Ended or removed meanwhile.
    pub gone: Vec<Item>,
    /// Changed by somebody else: left as it is. Of a task's class, nice and slice only the parts that were ours went
    /// back.
    pub conflicts: Vec<Item>,
    /// Could not be put back; the journal keeps the original for the next attempt.
    pub failed: Vec<Item>,
    /// Who may have inherited a value of ours and could not be looked at; the journal is kept for the next attempt.
    pub unseen: Vec<String>,
    /// Remarks on the whole, such as a journal of another boot.
    pub notes: Vec<String>,
}

impl RestoreReport {
    /// Nothing is left that differs from what was found.
    pub fn is_clean(&self) -> bool {
        self.conflicts.is_empty() && self.is_finished()
    }

    /// Nothing is left to be tried again: what differs from what was found is somebody else's.
    pub fn is_finished(&self) -> bool {
        self.failed.is_empty() && self.unseen.is_empty()
    }

    /// Adds what another journal came to.
    pub fn append(&mut self, mut other: Self) {
        self.put_back.append(&mut other.put_back);
        self.already.append(&mut other.already);
        self.gone.append(&mut other.gone);
        self.conflicts.append(&mut other.conflicts);
        self.failed.append(&mut other.failed);
        self.unseen.append(&mut other.unseen);
        self.notes.append(&mut other.notes);
    }

    /// Nothing had to be looked at.
    pub fn is_empty(&self) -> bool {
        self.put_back.is_empty() && self.already.is_empty() && self.gone.is_empty() && self.is_clean()
    }
}

/// What [`crate::Actuator::open`] found of a predecessor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recovery {
    /// A journal was left behind: the predecessor did not end as it should.
    pub left_behind: bool,
    /// The predecessor's pid, where its journal says.
    pub pid: Option<u32>,
    pub report: RestoreReport,
    /// Where an unreadable journal was kept.
    pub kept_aside: Option<PathBuf>,
}
