//! What an earlier plan set does not stay where this one's change of it is refused or fails.

use std::collections::HashMap;

use evenkeel_base::{Change, Knob, Setting, Target};

use super::Actuator;
use crate::kernel::Kernel;
use crate::outcome::{RestoreReport, SetReport, Verdict};
use crate::undo::State;

fn is_refused(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Refused(_) | Verdict::Failed(_))
}

impl<K: Kernel> Actuator<K> {
    pub(super) fn drop_if_refused(
        &mut self,
        change: &Change,
        wanted: &HashMap<(&Target, Knob), usize>,
        number: usize,
        verdict: &Verdict,
        back: &mut RestoreReport,
    ) {
        let knob = change.knob();
        if !is_refused(verdict) || wanted.get(&(&change.target, knob)) != Some(&number) {
            return;
        }
        let Some(index) = self.entry_of(&change.target, knob) else { return };
        let is_ours = match self.entries[index].state {
            State::Ours(_) | State::Disputed(_) | State::StandIn(_) => true,
            // After a write that failed it was tried; a weight may have to wait until its group is idle no more.
            State::Unknown => matches!(verdict, Verdict::Refused(_)) && knob != Knob::Weight,
            State::Back | State::Foreign | State::Gone => false,
        };
        if is_ours {
            self.put_back(index, back);
        }
    }

    /// The weights that writing `cpu.idle` made the kernel forget go back where a group is idle no more, unless one of these changes has
    /// given it another.
    pub(super) fn give_weights_back(&mut self, changes: &[Change], report: &mut SetReport) {
        for change in changes.iter().filter(|change| matches!(change.knob(), Knob::GroupIdle | Knob::Weight))
        {
            let target = &change.target;
            let Some(index) = self.entry_of(target, Knob::Weight) else { continue };
            let is_set = |report: &SetReport| {
                let mut of_weight =
                    report.changes.iter().filter(|done| done.target == *target && done.knob == Knob::Weight);
                of_weight.any(|done| !is_refused(&done.verdict))
            };
            if self.entries[index].state == State::Unknown
                && !is_set(report)
                && self.kernel.read(target, Knob::GroupIdle) == Ok(Setting::GroupIdle(false))
            {
                self.put_back(index, &mut report.back);
            }
        }
    }
}
