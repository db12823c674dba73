//! After a crash: reading what a predecessor left, and putting everything back.

use std::collections::HashMap;

use evenkeel_base::{Knob, Target};

use crate::actuator::{ActuateError, first_ticks};
use crate::adopt;
use crate::journal::{Contents, Header, Record, VERSION, decode};
use crate::kernel::Kernel;
use crate::ledger::snapshot;
use crate::medium::Medium;
use crate::outcome::{Recovery, RestoreReport};
use crate::undo::{Entry, SETTLE, State, put_back};

/// Puts back what the journal says. The second part is what could not be put back and must stay journaled; the caller
/// replaces or removes the journal.
pub(crate) fn recover<K: Kernel>(
    kernel: &mut K,
    medium: &mut dyn Medium,
) -> Result<(Recovery, Vec<Entry>), ActuateError> {
    let path = medium.name();
    let fail = |error| ActuateError::Journal { path: path.clone(), error };
    let Some(bytes) = medium.load().map_err(fail)? else { return Ok(Default::default()) };
    let contents = decode(&bytes);
    let header = contents.header().cloned();
    if let Some(header) = header.as_ref().filter(|header| header.version > VERSION) {
        return Err(ActuateError::Version { path, version: header.version });
    }
    let boot = kernel.boot_id().map_err(ActuateError::Boot)?;
    let mut recovery =
        Recovery { left_behind: true, pid: header.as_ref().map(|header| header.pid), ..Recovery::default() };
    let report = &mut recovery.report;
    let mut entries = entries(&contents, report);
    if header.as_ref().is_some_and(|header| header.boot != boot) {
        let before = entries.len();
        entries.retain(|entry| kernel.outlives_boot(&entry.target, entry.knob));
        report.notes.push(format!(
            "the journal is of an earlier boot: {} of its {before} values ended with that boot",
            before - entries.len()
        ));
    }
    put_all_back(kernel, &mut entries, report);
    entries.retain(|entry| entry.state == State::Unknown);
    for entry in &mut entries {
        // Descendants that could not be put back were in no journal yet: the next one must have them.
        entry.journaled = entry.wrote.len();
    }
    let Some(&line) = contents.damaged.first() else { return Ok((recovery, entries)) };
    recovery.kept_aside = Some(medium.set_aside().map_err(fail)?);
    if !entries.is_empty() {
        let header = header.unwrap_or(Header { version: VERSION, boot, pid: std::process::id(), since: 0 });
        medium.replace(&snapshot(&header, &entries)).map_err(fail)?;
    }
    Err(ActuateError::Damaged { path, line, recovery: Box::new(recovery) })
}

/// What the records say, oldest first.
fn entries(contents: &Contents, report: &mut RestoreReport) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut index: HashMap<(Target, Knob), usize> = HashMap::new();
    for (number, record) in contents.records.iter().enumerate() {
        match record {
            Record::Header(_) => {}
            Record::Found { target, original, origin } => {
                let key = (target.clone(), original.knob());
                // A cgroup made anew under its old name is another one.
                let same = |&at: &usize| entries[at].origin.group_id == origin.group_id;
                if !index.get(&key).is_some_and(same) {
                    let entry = Entry::new(target.clone(), original.clone(), origin.clone());
                    entries.push(Entry { state: State::Unknown, ..entry });
                    index.insert(key, entries.len() - 1);
                }
            }
            Record::Wrote { target, to } => match index.get(&(target.clone(), to.knob())) {
                Some(&index) => {
                    let entry = &mut entries[index];
                    entry.wrote.push(to.clone());
                    entry.journaled = entry.wrote.len();
                    entry.sequence = number as u64;
                }
                None => report
                    .notes
                    .push(format!("{target:?}: the original of {} is in a damaged line", to.knob().name())),
            },
            Record::Lent { target, cpus } => match index.get(&(target.clone(), Knob::Affinity)) {
                Some(&index) => {
                    let entry = &mut entries[index];
                    entry.lent = entry.lent.union(cpus);
                    entry.sequence = number as u64;
                }
                None => report
                    .notes
                    .push(format!("{target:?}: the original of its affinity is in a damaged line")),
            },
        }
    }
    // Without a value of ours nothing was written.
    entries.retain(|entry| !entry.wrote.is_empty() || !entry.lent.is_empty());
    entries
}

/// Puts all entries back, newest first, then their descendants, until no more turn up.
pub(crate) fn put_all_back<K: Kernel>(kernel: &mut K, entries: &mut Vec<Entry>, report: &mut RestoreReport) {
    pass(kernel, entries, |state| matches!(state, State::Unknown | State::Ours(_)), report);
    // What one refuses another may have been in the way of: a group's real-time budget, say, under real-time tasks.
    if !report.failed.is_empty() && !report.put_back.is_empty() {
        report.failed.clear();
        pass(kernel, entries, |state| *state == State::Unknown, report);
    }
    let since = first_ticks(entries);
    for wait in std::iter::once(None).chain(SETTLE.map(Some)) {
        if let Some(wait) = wait {
            if !any_busy(kernel, entries) {
                break;
            }
            kernel.pause(wait);
        }
        loop {
            match adopt::find(kernel, entries, since) {
                Ok(found) if found.is_empty() => break,
                Ok(mut found) => {
                    for entry in &mut found {
                        put_back(kernel, entry, report);
                    }
                    entries.extend(found);
                }
                Err(error) => {
                    report.notes.push(format!("descendants could not be looked for: {error}"));
                    return;
                }
            }
        }
    }
}

fn pass<K: Kernel>(
    kernel: &mut K,
    entries: &mut [Entry],
    which: impl Fn(&State) -> bool,
    report: &mut RestoreReport,
) {
    let mut order: Vec<usize> = (0..entries.len()).filter(|&index| which(&entries[index].state)).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(entries[index].sequence));
    for index in order {
        put_back(kernel, &mut entries[index], report);
    }
}

/// Whether a task that was tuned may be in the middle of a `fork`.
fn any_busy<K: Kernel>(kernel: &mut K, entries: &[Entry]) -> bool {
    entries.iter().any(|entry| match &entry.target {
        Target::Task(id) if entry.state != State::Gone => {
            kernel.identity(id.tid).is_ok_and(|facts| facts.busy && facts.id == *id)
        }
        _ => false,
    })
}
