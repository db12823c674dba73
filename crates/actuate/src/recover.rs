//! After a crash: reading what a predecessor left, and putting everything back.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use evenkeel_base::{BootId, Knob, Setting, Target};

use crate::adopt;
use crate::error::ActuateError;
use crate::journal::{Contents, Header, Record, VERSION, decode};
use crate::kernel::Kernel;
use crate::ledger::snapshot;
use crate::medium::{FileMedium, Medium};
use crate::namespaces;
use crate::old;
use crate::outcome::{Recovery, RestoreReport};
use crate::undo::{Entry, SETTLE, State, first_ticks, put_back, put_back_at, still_there};

/// What a journal says that is of interest here and now.
pub(crate) struct Left {
    header: Option<Header>,
    boot: BootId,
    contents: Contents,
    /// Oldest first.
    pub entries: Vec<Entry>,
    notes: Vec<String>,
}

impl Left {
    /// First line that is damaged.
    pub fn damaged(&self) -> Option<usize> {
        self.contents.damaged.first().copied()
    }
}

/// Reads a journal; nothing is changed. `None`: there is none.
///
/// # Errors
/// It cannot be read, is of a newer version, or was written in other namespaces.
pub(crate) fn read<K: Kernel>(kernel: &mut K, medium: &mut dyn Medium) -> Result<Option<Left>, ActuateError> {
    let path = medium.name();
    let fail = |error| ActuateError::Journal { path: path.clone(), error };
    let Some(bytes) = medium.load().map_err(fail)? else { return Ok(None) };
    read_bytes(kernel, path, &bytes).map(Some)
}

fn read_bytes<K: Kernel>(kernel: &mut K, path: PathBuf, bytes: &[u8]) -> Result<Left, ActuateError> {
    let contents = old::contents(bytes).unwrap_or_else(|| decode(bytes));
    let header = contents.header().cloned();
    if let Some(header) = header.as_ref().filter(|header| header.version > VERSION) {
        return Err(ActuateError::Version { path, version: header.version });
    }
    let boot = kernel.boot_id().map_err(ActuateError::Boot)?;
    let mut notes = Vec::new();
    let mut entries = entries(&contents, &mut notes);
    if header.as_ref().is_some_and(|header| header.boot != boot) {
        let before = entries.len();
        entries.retain(|entry| kernel.outlives_boot(&entry.target, entry.knob));
        notes.push(format!(
            "the journal is of an earlier boot: {} of its {before} values ended with that boot",
            before - entries.len()
        ));
    } else if let Some(header) = &header
        && let Some(why) =
            namespaces::mismatch(kernel, &header.namespaces, &entries).map_err(ActuateError::Boot)?
    {
        return Err(ActuateError::Elsewhere { path, why });
    }
    Ok(Left { header, boot, contents, entries, notes })
}

/// What was found where an agent wrote, as its journal says, whether that agent lives or was killed.
#[derive(Debug, Default)]
pub struct Originals(HashMap<(Target, Knob), Entry>);

impl Originals {
    /// Locks and changes nothing.
    ///
    /// # Errors
    /// The journal is there and cannot be read.
    pub fn read<K: Kernel>(kernel: &mut K, state_dir: &Path) -> Result<Self, ActuateError> {
        match FileMedium::load_unlocked(state_dir)? {
            Some(bytes) => Self::of(kernel, FileMedium::journal(state_dir), &bytes),
            None => Ok(Self::default()),
        }
    }

    fn of<K: Kernel>(kernel: &mut K, path: PathBuf, bytes: &[u8]) -> Result<Self, ActuateError> {
        let mut entries = read_bytes(kernel, path, bytes)?.entries;
        // A cgroup that was made again under its name is told what to be by its maker, which may be what we told that.
        entries.retain(|entry| {
            still_there(kernel, entry) == Ok(true) || kernel.outlives_group(&entry.target, entry.knob)
        });
        Ok(Self(entries.into_iter().map(|entry| ((entry.target.clone(), entry.knob), entry)).collect()))
    }

    /// What was found where this is now, if that may be the agent's.
    pub fn found(&self, target: &Target, knob: Knob, now: Option<Setting>) -> Option<&Setting> {
        let entry = self.0.get(&(target.clone(), knob))?;
        now.is_some_and(|now| entry.was_ours(&now)).then_some(&entry.original)
    }
}

/// Puts back what the journal says. The second part is what could not be restored and must stay journaled; the caller
/// replaces or removes the journal.
pub(crate) fn recover<K: Kernel>(
    kernel: &mut K,
    medium: &mut dyn Medium,
) -> Result<(Recovery, Vec<Entry>), ActuateError> {
    match read(kernel, medium)? {
        Some(left) => undo(kernel, medium, left),
        None => Ok(Default::default()),
    }
}

/// As [`recover`], of what was read.
pub(crate) fn undo<K: Kernel>(
    kernel: &mut K,
    medium: &mut dyn Medium,
    left: Left,
) -> Result<(Recovery, Vec<Entry>), ActuateError> {
    let path = medium.name();
    let fail = |error| ActuateError::Journal { path: path.clone(), error };
    let damaged = left.damaged();
    let Left { header, boot, mut entries, notes, .. } = left;
    let mut recovery =
        Recovery { left_behind: true, pid: header.as_ref().map(|header| header.pid), ..Recovery::default() };
    recovery.report.notes = notes;
    put_all_back(kernel, &mut entries, &mut recovery.report);
    // Whom it was not possible to look at may descend from any of them.
    if recovery.report.unseen.is_empty() {
        entries.retain(|entry| entry.state.may_be_ours());
    }
    for entry in &mut entries {
        // Descendants that could not be restored were in no journal yet: the next one must have them.
        entry.journaled = entry.wrote.len();
    }
    let Some(line) = damaged else { return Ok((recovery, entries)) };
    let header = header.unwrap_or(Header {
        version: VERSION,
        boot,
        pid: std::process::id(),
        since: 0,
        namespaces: kernel.namespaces(),
    });
    let rest = (!entries.is_empty()).then(|| snapshot(&header, &entries));
    recovery.kept_aside = Some(medium.set_aside(rest.as_deref()).map_err(fail)?);
    Err(ActuateError::Damaged { path, line, recovery: Box::new(recovery) })
}

/// What the records say, oldest first.
fn entries(contents: &Contents, notes: &mut Vec<String>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut index: HashMap<(Target, Knob), usize> = HashMap::new();
    for (number, record) in contents.records.iter().enumerate() {
        match record {
            Record::Header(_) => {}
            Record::Found { target, original, origin } => {
                if let Err(why) = crate::guard::original(target, original) {
                    notes.push(format!("{target:?}: {original} cannot have been found there: {why}"));
                    continue;
                }
                let key = (target.clone(), original.knob());
                // A cgroup recreated under its old name is another one. A task whose number a thread took over by
                // `exec` has that thread's original from then on.
                let same = |&at: &usize| {
                    let known = &entries[at];
                    known.origin.identity == origin.identity && known.original == *original
                };
                if index.get(&key).is_some_and(same) {
                    continue;
                }
                let fresh = Entry {
                    state: State::Unknown,
                    ..Entry::new(target.clone(), original.clone(), origin.clone())
                };
                match index.get(&key) {
                    Some(&at) if entries[at].origin.identity == origin.identity => entries[at] = fresh,
                    at => {
                        if let Some(&at) = at.filter(|&&at| is_over(&entries[at], original)) {
                            entries[at].state = State::Gone;
                        }
                        entries.push(fresh);
                        index.insert(key, entries.len() - 1);
                    }
                }
            }
            Record::Wrote { target, to } => match index.get(&(target.clone(), to.knob())) {
                Some(&index) => {
                    let entry = &mut entries[index];
                    entry.wrote.push(to.clone());
                    entry.journaled = entry.wrote.len();
                    entry.sequence = number as u64;
                }
                None => notes
                    .push(format!("{target:?}: the original of {} is in a damaged line", to.knob().name())),
            },
            Record::TemporaryPin { target, cpus } => match index.get(&(target.clone(), Knob::Affinity)) {
                Some(&index) => {
                    let entry = &mut entries[index];
                    entry.lent = entry.lent.union(cpus);
                    entry.sequence = number as u64;
                }
                None => notes.push(format!("{target:?}: the original of its affinity is in a damaged line")),
            },
        }
    }
    // Without a value of ours nothing was written.
    entries.retain(|entry| !entry.wrote.is_empty() || !entry.lent.is_empty());
    entries
}

/// Whether nothing of ours was left in the next cgroup of a name, in which this was found.
fn is_over(entry: &Entry, found: &Setting) -> bool {
    matches!(entry.target, Target::Group(_)) && entry.original != *found && !entry.is_kept(found)
}

/// Puts all entries back, newest first, then their descendants, until no more turn up.
pub(crate) fn put_all_back<K: Kernel>(kernel: &mut K, entries: &mut Vec<Entry>, report: &mut RestoreReport) {
    if let Some(error) = adopt::follow_execs(kernel, entries, None).unseen {
        tracing::debug!(%error, "looked at again afterwards");
    }
    pass(kernel, entries, State::is_to_restore, report);
    // What one refuses another may have been in the way of, and that another one: limits of groups within groups, or a group's
    // real-time budget under real-time tasks.
    let is_elsewhere = |entry: &Entry| matches!(entry.state, State::StandIn(_));
    let mut before = 0;
    while (!report.failed.is_empty() || entries.iter().any(is_elsewhere)) && report.put_back.len() > before {
        before = report.put_back.len();
        report.failed.clear();
        pass(kernel, entries, State::is_to_restore, report);
    }
    let since = first_ticks(entries);
    for wait in std::iter::once(None).chain(SETTLE.map(Some)) {
        if let Some(wait) = wait {
            // Who could not be looked at is looked at again.
            if report.unseen.is_empty() && !any_busy(kernel, entries) {
                break;
            }
            kernel.pause(wait);
        }
        report.unseen.clear();
        loop {
            match look_again(kernel, entries, since, report) {
                0 => break,
                _ if !report.unseen.is_empty() => break,
                _ => {}
            }
        }
    }
}

/// Finds who carries a value of ours and is not among the entries, puts it back, and makes it one of them; how many.
fn look_again<K: Kernel>(
    kernel: &mut K,
    entries: &mut Vec<Entry>,
    since: u64,
    report: &mut RestoreReport,
) -> usize {
    let mut found = Vec::new();
    let followed = adopt::follow_execs(kernel, entries, None);
    for index in followed.places {
        put_back(kernel, &mut entries[index], report);
    }
    let unseen = followed.unseen.map(|error| format!("threads that took another's number: {error}"));
    report.unseen.extend(unseen);
    match adopt::find(kernel, entries, since) {
        Ok(adopt::Found { entries, unseen, doubtful }) => {
            found = entries;
            report.unseen.extend(unseen);
            for note in doubtful {
                if !report.notes.contains(&note) {
                    report.notes.push(note);
                }
            }
        }
        Err(error) => report.unseen.push(format!("descendants: {error}")),
    }
    let number = found.len();
    for entry in &mut found {
        put_back(kernel, entry, report);
    }
    entries.extend(found);
    number
}

fn pass<K: Kernel>(
    kernel: &mut K,
    entries: &mut Vec<Entry>,
    which: impl Fn(&State) -> bool,
    report: &mut RestoreReport,
) {
    let mut order: Vec<usize> = (0..entries.len()).filter(|&index| which(&entries[index].state)).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(entries[index].sequence));
    for index in order {
        put_back_at(kernel, entries, index, report);
    }
}

/// Whether a task that was tuned may be in the middle of a `fork`, or that cannot be told.
fn any_busy<K: Kernel>(kernel: &mut K, entries: &[Entry]) -> bool {
    entries.iter().any(|entry| match &entry.target {
        Target::Task(id) if entry.state != State::Gone => match kernel.identity(id.tid) {
            Ok(facts) => facts.busy && facts.id == *id,
            Err(error) => error != crate::kernel::KernelError::Gone,
        },
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Origin;
    use evenkeel_base::GroupRef;

    #[test]
    fn what_is_found_again_is_known_already_or_counts_instead_or_is_another_one() {
        let target = Target::Group(GroupRef { path: "/a".into(), v2: true });
        let found = |identity: u64, weight: u64| Record::Found {
            target: target.clone(),
            original: Setting::Weight(weight),
            origin: Origin { identity, ..Origin::default() },
        };
        let wrote = |weight: u64| Record::Wrote { target: target.clone(), to: Setting::Weight(weight) };
        let of = |again: Record| {
            let records = vec![found(1, 100), wrote(50), again, wrote(60)];
            let contents = Contents { records, ..Contents::default() };
            let entries = entries(&contents, &mut Vec::new());
            let is = |entry: &Entry| {
                (entry.origin.identity, entry.original.clone(), entry.wrote.len(), entry.state == State::Gone)
            };
            entries.iter().map(is).collect::<Vec<_>>()
        };
        let weight = Setting::Weight;
        assert_eq!(of(found(1, 100)), [(1, weight(100), 2, false)]);
        assert_eq!(of(found(1, 70)), [(1, weight(70), 1, false)]);
        // Another cgroup of that name, which has what was found in the first one, or a value of ours from its owner, or neither:
        // then nothing of ours was left.
        assert_eq!(of(found(2, 100)), [(1, weight(100), 1, false), (2, weight(100), 1, false)]);
        assert_eq!(of(found(2, 50)), [(1, weight(100), 1, false), (2, weight(50), 1, false)]);
        assert_eq!(of(found(2, 70)), [(1, weight(100), 1, true), (2, weight(70), 1, false)]);
    }
}
