//! [`Actuator`]: makes the host what was found plus a plan.

mod ended;
mod lend;
mod prepare;
mod refused;
mod restore;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use evenkeel_base::{Change, Knob, Plan, Setting, Target, TaskId};

pub use lend::{Moved, TemporaryPin};
pub use restore::{restore, restore_on};

use crate::adopt;
use crate::error::ActuateError;
use crate::kernel::{Kernel, KernelError};
use crate::ledger::{Ledger, survives};
use crate::medium::{FileMedium, Medium};
use crate::options::Options;
use crate::outcome::{Applied, ChangeOutcome, Recovery, RestoreReport, SetReport, Verdict};
use crate::recover;
use crate::undo::{Entry, State, first_ticks, heal_stranger, locate, put_back_at, widest};
use crate::value::same;

/// Margin by which a fork may show up later than its start time says, clock ticks.
const BIRTH_MARGIN_TICKS: u64 = 200;

/// Changes scheduling state, and knows how to take every change back.
///
/// Dropping it leaves changes and journal in place (`evenkeel restore` undoes them); [`Actuator::close`] puts
/// everything back.
pub struct Actuator<K: Kernel> {
    kernel: K,
    ledger: Ledger,
    options: Options,
    entries: Vec<Entry>,
    index: HashMap<(Target, Knob), usize>,
    births: Option<u64>,
    scanned_ticks: u64,
    /// Tasks that were gone at the last look; and how many entries there may be before the next.
    ended: HashSet<TaskId>,
    room: usize,
}

impl<K: Kernel> Actuator<K> {
    /// Takes the state directory's lock, puts back what a killed predecessor left, and starts a fresh journal.
    ///
    /// # Errors
    /// Another agent at work (named), a state directory that cannot be written, a damaged journal.
    pub fn open(kernel: K, state_dir: &Path, options: Options) -> Result<(Self, Recovery), ActuateError> {
        Self::open_on(kernel, Box::new(FileMedium::open(state_dir)?), options)
    }

    /// As [`Actuator::open`], with the journal kept elsewhere.
    pub fn open_on(
        mut kernel: K,
        mut medium: Box<dyn Medium>,
        options: Options,
    ) -> Result<(Self, Recovery), ActuateError> {
        let (recovery, remaining) = recover::recover(&mut kernel, medium.as_mut())?;
        Ok((Self::start(kernel, medium, options, remaining)?, recovery))
    }

    /// As [`Actuator::open`], but what a predecessor set stays set and is known: for settings that stay until
    /// [`restore`].
    ///
    /// # Errors
    /// As [`Actuator::open`]; a damaged journal is dealt with in the same way.
    pub fn resume(kernel: K, state_dir: &Path, options: Options) -> Result<Self, ActuateError> {
        Self::resume_on(kernel, Box::new(FileMedium::open(state_dir)?), options)
    }

    /// As [`Actuator::resume`], with the journal kept elsewhere.
    pub fn resume_on(
        mut kernel: K,
        mut medium: Box<dyn Medium>,
        options: Options,
    ) -> Result<Self, ActuateError> {
        let entries = match recover::read(&mut kernel, medium.as_mut())? {
            Some(left) if left.damaged().is_some() => recover::undo(&mut kernel, medium.as_mut(), left)?.1,
            Some(left) => left.entries,
            None => Vec::new(),
        };
        Self::start(kernel, medium, options, entries)
    }

    fn start(
        mut kernel: K,
        medium: Box<dyn Medium>,
        options: Options,
        entries: Vec<Entry>,
    ) -> Result<Self, ActuateError> {
        let boot = kernel.boot_id().map_err(ActuateError::Boot)?;
        let ledger = Ledger::start(medium, boot, kernel.namespaces(), &entries)?;
        let (index, ended) = Default::default();
        let (births, scanned_ticks, room) = (None, 0, ended::ROOM);
        let mut actuator =
            Self { kernel, ledger, options, entries, index, births, scanned_ticks, ended, room };
        actuator.reindex();
        Ok(actuator)
    }

    /// Ends and leaves in place what is set, until [`restore`]. Without anything set no journal is left.
    pub fn leave(mut self) -> std::io::Result<()> {
        let is_known = |entry: &Entry| entry.journaled > 0 || !entry.lent.is_empty();
        if self.entries.iter().any(is_known) { Ok(()) } else { self.ledger.finish() }
    }

    /// The kernel, for reading.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Makes the host what was found plus `plan`: what was touched and is not in the plan goes back, newest first;
    /// then the plan's changes are made in their order. Of two changes of the same property the later one counts.
    ///
    /// `scope` is asked for every change of the plan; what it denies is refused. Kernel threads, pid 1, this process and
    /// real-time tasks are refused whatever it says. A property whose change is refused or fails has its original value
    /// afterwards.
    pub fn set(&mut self, plan: &Plan, scope: &dyn Fn(&Change) -> bool) -> SetReport {
        let mut report = SetReport::default();
        let wanted = last_of_each(&plan.changes);
        self.adopt_newborn(&|entry| wanted.contains_key(&(&entry.target, entry.knob)), &mut report.back);
        self.undo_others(&wanted, &mut report.back);
        self.make(&plan.changes, &wanted, scope, &mut report);
        report
    }

    /// Makes these changes on top of what is in force: nothing goes back but what is refused or fails. For settings that
    /// follow a measurement several times a second; otherwise as [`Actuator::set`].
    pub fn amend(&mut self, changes: &[Change], scope: &dyn Fn(&Change) -> bool) -> SetReport {
        let mut report = SetReport::default();
        self.adopt_newborn(&|_| true, &mut report.back);
        self.make(changes, &last_of_each(changes), scope, &mut report);
        report
    }

    fn make(
        &mut self,
        changes: &[Change],
        wanted: &HashMap<(&Target, Knob), usize>,
        scope: &dyn Fn(&Change) -> bool,
        report: &mut SetReport,
    ) {
        let mut steps: Vec<(usize, Step)> = Vec::with_capacity(changes.len());
        for (number, change) in changes.iter().enumerate() {
            let idle = wanted.get(&(&change.target, Knob::GroupIdle)).map(|&number| &changes[number].to);
            let step = if wanted.get(&(&change.target, change.knob())) != Some(&number) {
                Step::Done(Verdict::Refused("the plan names this property again further on".to_owned()))
            } else if change.knob() == Knob::Weight && idle == Some(&Setting::GroupIdle(true)) {
                Step::Done(Verdict::Refused("an idle group has no weight".to_owned()))
            } else {
                self.prepare(change, scope).unwrap_or_else(Step::Done)
            };
            steps.push((number, step));
        }
        let journaled = self.journal(&steps);
        for (number, step) in steps {
            let verdict = match (step, &journaled) {
                (Step::Done(verdict), _) => verdict,
                (Step::Write(write), Ok(())) => self.commit(write, &mut report.back),
                (Step::Write(write), Err(_)) if self.is_journaled(&write) => {
                    self.commit(write, &mut report.back)
                }
                (Step::Write(_), Err(error)) => Verdict::Failed(error.clone()),
            };
            let change = &changes[number];
            self.drop_if_refused(change, wanted, number, &verdict, &mut report.back);
            report.changes.push(ChangeOutcome {
                target: change.target.clone(),
                knob: change.knob(),
                to: change.to.clone(),
                verdict,
            });
        }
        self.give_weights_back(changes, report);
        self.ledger.compact_if_grown(&mut self.kernel, &self.entries);
    }

    /// Everything touched so far: target, original value, and our value in force (`None`: it is back, gone or
    /// somebody else's).
    pub fn touched(&self) -> impl Iterator<Item = (&Target, &Setting, Option<&Setting>)> {
        self.entries.iter().map(|entry| {
            let ours = match &entry.state {
                State::Ours(value) => Some(value),
                _ => None,
            };
            (&entry.target, &entry.original, ours)
        })
    }

    /// What was found where a value of ours may be, which is this one now if it was read. One of before may have gone since then.
    pub fn found(&self, target: &Target, knob: Knob, now: Option<Setting>) -> Option<&Setting> {
        let entry = &self.entries[self.entry_of(target, knob)?];
        let theirs = matches!(entry.state, State::Disputed(_)) && now.is_some();
        let may_be = entry.state.may_be_ours() && !theirs;
        (may_be || now.is_some_and(|now| entry.was_ours(&now))).then_some(&entry.original)
    }

    /// What is there instead of a change's value, where that is not there although it was set. If nobody here took it back, it is
    /// somebody else's doing from now on. `None`: it is in force, or that cannot be told.
    pub fn lost(&mut self, change: &Change) -> Option<Setting> {
        let index = self.entry_of(&change.target, change.knob())?;
        let present = self.kernel.read(&change.target, change.knob()).ok()?;
        if present == change.to {
            return None;
        }
        let entry = &mut self.entries[index];
        if matches!(entry.state, State::Ours(_)) {
            entry.state = State::Foreign;
        }
        Some(present)
    }

    /// Whether a cgroup has another value where one of ours was left. Managers of cgroups write what they were told again whenever
    /// something of it changes.
    pub fn has_lost_of_a_group(&mut self) -> bool {
        self.entries.iter().any(|entry| match (&entry.target, &entry.state) {
            (Target::Group(_), State::Ours(ours)) => {
                self.kernel.read(&entry.target, entry.knob).is_ok_and(|present| present != *ours)
            }
            _ => false,
        })
    }

    /// Puts everything back, descendants included, and goes on living.
    pub fn restore_all(&mut self) -> RestoreReport {
        let mut report = RestoreReport::default();
        recover::put_all_back(&mut self.kernel, &mut self.entries, &mut report);
        self.reindex();
        self.births = None;
        report
    }

    /// Puts everything back and removes the journal; it stays where something could not be restored.
    pub fn close(mut self) -> RestoreReport {
        let mut report = self.restore_all();
        if report.is_finished() {
            if let Err(error) = self.ledger.finish() {
                report.notes.push(format!("the journal could not be removed: {error}"));
            }
        } else {
            report.notes.push("the journal is kept for what could not be restored".to_owned());
        }
        report
    }

    pub(crate) fn entry_of(&self, target: &Target, knob: Knob) -> Option<usize> {
        self.index.get(&(target.clone(), knob)).copied()
    }

    pub(crate) fn entry_mut(&mut self, index: usize) -> &mut Entry {
        &mut self.entries[index]
    }

    pub(crate) fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    fn insert(&mut self, entry: Entry) -> usize {
        let index = self.entries.len();
        self.index.insert((entry.target.clone(), entry.knob), index);
        self.entries.push(entry);
        index
    }

    /// Indexes what was added behind our back: main threads by [`put_back_at`].
    fn index_new(&mut self) {
        if self.entries.len() != self.index.len() {
            self.reindex();
        }
    }

    fn reindex(&mut self) {
        self.index = self
            .entries
            .iter()
            .enumerate()
            .map(|(index, entry)| ((entry.target.clone(), entry.knob), index))
            .collect();
    }

    /// Threads that called `exec`, of one process where that is given: their entries are their main thread's now.
    fn follow_execs(&mut self, process: Option<u32>) -> adopt::Followed {
        let followed = adopt::follow_execs(&mut self.kernel, &mut self.entries, process);
        if !followed.places.is_empty() {
            self.reindex();
        }
        followed
    }

    /// Takes tasks born of tuned ones under its wings, so that they go back unless the plan names them.
    fn adopt_newborn(&mut self, is_named: &dyn Fn(&Entry) -> bool, report: &mut RestoreReport) {
        let unseen = self
            .follow_execs(None)
            .unseen
            .map(|error| format!("threads that called exec: looked for later: {error}"));
        report.notes.extend(unseen);
        let births = self.kernel.births();
        let now = self.kernel.now_ticks();
        if self.entries.is_empty() || (births.is_some() && births == self.births) {
            return;
        }
        let since = self.scanned_ticks.saturating_sub(BIRTH_MARGIN_TICKS);
        match adopt::find(&mut self.kernel, &self.entries, since.max(first_ticks(&self.entries))) {
            Ok(found) => {
                for entry in found.entries {
                    self.insert(entry);
                }
                // Who could not be looked at is looked at with the next plan.
                if found.unseen.is_empty() {
                    (self.births, self.scanned_ticks) = (births, now);
                    self.forget_ended(is_named, report);
                }
            }
            Err(error) => report.notes.push(format!("descendants: looked for later: {error}")),
        }
    }

    fn undo_others(&mut self, wanted: &HashMap<(&Target, Knob), usize>, report: &mut RestoreReport) {
        let mut order: Vec<usize> = (0..self.entries.len())
            .filter(|&index| {
                let entry = &self.entries[index];
                let idle_wanted =
                    entry.knob == Knob::Weight && wanted.contains_key(&(&entry.target, Knob::GroupIdle));
                entry.state.is_to_restore()
                    && !wanted.contains_key(&(&entry.target, entry.knob))
                    && !idle_wanted
            })
            .collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.entries[index].sequence));
        for index in order {
            put_back_at(&mut self.kernel, &mut self.entries, index, report);
        }
        self.index_new();
        // For whoever restores after a kill.
        let is_new = |entry: &Entry| {
            matches!(entry.state, State::StandIn(_))
                && entry.journaled > 0
                && entry.journaled < entry.wrote.len()
        };
        let new = self.entries.iter().enumerate().filter(|(_, entry)| is_new(entry));
        let new: Vec<_> = new.map(|(index, _)| (index, None)).collect();
        if let Err(error) = self.record(&new) {
            report.notes.push(error.to_string());
        }
    }

    /// Puts into the journal what must be there before the writes: one append for all.
    fn journal(&mut self, steps: &[(usize, Step)]) -> Result<(), KernelError> {
        let mut writes = Vec::new();
        for (_, step) in steps {
            if let Step::Write(write) = step {
                // Before the idle flag, so that it goes back after it.
                writes.extend(write.companion.map(|index| (index, None)));
                writes.push((write.entry, Some(&write.to)));
            }
        }
        self.record(&writes)
    }

    fn record(&mut self, writes: &[(usize, Option<&Setting>)]) -> Result<(), KernelError> {
        let survives = survives(&mut self.kernel, writes.iter().map(|&(index, _)| &self.entries[index]));
        self.ledger.record(&mut self.entries, writes, survives)
    }

    fn commit(&mut self, write: Write, back: &mut RestoreReport) -> Verdict {
        let Write { entry: index, present, to, companion } = write;
        let (target, knob) = (self.entries[index].target.clone(), self.entries[index].knob);
        let entry = &mut self.entries[index];
        let present = match self.kernel.read(&target, knob) {
            Ok(now) if now == present => present,
            // Of ours: another change of this plan moved it (`cpu.idle` moves the weight).
            Ok(now) if entry.ours().contains(&now) => now,
            Ok(now) => {
                entry.dispute();
                return Verdict::Conflict(now);
            }
            Err(error) => return verdict(error),
        };
        if let Some(companion) = companion {
            self.entries[companion].sequence = self.ledger.next_sequence();
            self.entries[companion].state = State::Unknown;
        }
        let sequence = self.ledger.next_sequence();
        let first = std::mem::replace(&mut self.entries[index].sequence, sequence) == 0;
        // Many others may have been looked at since: the shorter the time from here to the write, the rarer a stranger.
        match locate(&mut self.kernel, &self.entries[index]) {
            Ok(Some(now)) if now == target => {}
            Ok(Some(_)) => return Verdict::Gone,
            Ok(None) => {
                self.ended(index);
                return Verdict::Gone;
            }
            Err(error) => return Verdict::Failed(error),
        }
        if let Err(error) = self.kernel.write(&target, &to) {
            // A write of several files may have got half-way.
            let untouched = self.kernel.read(&target, knob).is_ok_and(|now| now == present);
            if !untouched {
                self.take_back(index, back);
            }
            return verdict(error);
        }
        evenkeel_linux::fault::point("actuate.written");
        let read = self.kernel.read(&target, knob);
        match locate(&mut self.kernel, &self.entries[index]) {
            Ok(Some(now)) if now == target => {}
            // Renamed in that instant: it has the value under its new name.
            Ok(Some(_)) => {
                self.take_back(index, back);
                return Verdict::Gone;
            }
            Ok(None) => {
                if let Target::Task(id) = &target {
                    heal_stranger(&mut self.kernel, id.tid, &to, &present);
                }
                if !self.ended(index) {
                    self.take_back(index, back);
                }
                return Verdict::Gone;
            }
            Err(error) => {
                self.take_back(index, back);
                return Verdict::Failed(error);
            }
        }
        let widest = widest(&mut self.kernel, &target, knob);
        match read {
            Ok(now) if same(&now, &to, widest.as_ref()) => {
                self.entries[index].state = State::Ours(to);
                Verdict::Applied(Applied { from: present, now, first })
            }
            Ok(now) => {
                if let Target::Net(_) = target {
                    // What the kernel made of it is ours, too.
                    self.entries[index].wrote.push(now.clone());
                }
                self.take_back(index, back);
                Verdict::Failed(KernelError::Invalid(format!("wrote {to}, but it reads {now}; taken back")))
            }
            Err(error) => {
                self.take_back(index, back);
                verdict(error)
            }
        }
    }

    /// After a write that may have got half-way.
    fn take_back(&mut self, index: usize, back: &mut RestoreReport) {
        self.entries[index].state = State::Unknown;
        self.put_back(index, back);
    }

    fn put_back(&mut self, index: usize, back: &mut RestoreReport) {
        put_back_at(&mut self.kernel, &mut self.entries, index, back);
        self.index_new();
    }
}

/// Of several changes of one property the last counts.
fn last_of_each(changes: &[Change]) -> HashMap<(&Target, Knob), usize> {
    changes.iter().enumerate().map(|(i, c)| ((&c.target, c.knob()), i)).collect()
}

fn verdict(error: KernelError) -> Verdict {
    match error {
        KernelError::Gone => Verdict::Gone,
        error => Verdict::Failed(error),
    }
}

/// A change on its way.
enum Step {
    Done(Verdict),
    Write(Write),
}

struct Write {
    entry: usize,
    present: Setting,
    to: Setting,
    /// The group's weight, lost by writing `cpu.idle`.
    companion: Option<usize>,
}
