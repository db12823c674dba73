//! Who else carries our values: what was born while a parent or a sibling thread was tuned, and who took a tuned
//! thread's place.
//!
//! A task copies its parent's class, nice, slice and affinity at `fork`, and never afterwards: it is enough to look at
//! each task once after its birth. It is recognised by ancestry (the chain of parents, and threads of the same
//! process); a child made with `CLONE_PARENT`, which has its maker's parent, by its program's stack being where its
//! maker's is; an orphan, whose parent is now pid 1 or another ancestor that takes in orphans, by the tuned task's
//! cgroup and by carrying exactly a value that was written; where several tuned tasks fit, process group, session and
//! name decide.
//!
//! A thread that calls `exec` takes over number and start time of its process's main thread (`de_thread` in
//! `fs/exec.c`), and keeps its own attributes: see [`follow_execs`].

use std::collections::{BTreeSet, HashMap};

use evenkeel_base::{CpuSet, Knob, SchedAttr, Setting, Target, TaskId};

use crate::journal::Origin;
use crate::kernel::{Kernel, KernelError, TaskFacts};
use crate::undo::{Entry, State};
use crate::value::{inherited, reverse, same};

/// Properties a child inherits.
const INHERITED: [Knob; 2] = [Knob::Affinity, Knob::Sched];

/// Longest chain of parents followed.
const MAX_CHAIN: usize = 64;

/// What came of looking for descendants.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Not yet journaled, with the parent's original as theirs.
    pub entries: Vec<Entry>,
    /// Who could not be looked at, and why.
    pub unseen: Vec<String>,
    /// Who may have inherited a value of ours or chosen it, and is left alone.
    pub doubtful: Vec<String>,
}

/// Finds descendants among the tasks born since `since_ticks` that carry values of ours and are not among the entries.
pub(crate) fn find<K: Kernel>(
    kernel: &mut K,
    entries: &[Entry],
    since_ticks: u64,
) -> Result<Found, KernelError> {
    let mut by_process: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut known = BTreeSet::new();
    for (index, entry) in entries.iter().enumerate() {
        if let (Target::Task(id), true) = (&entry.target, INHERITED.contains(&entry.knob)) {
            by_process.entry(id.tgid).or_default().push(index);
            known.insert((*id, entry.knob));
        }
    }
    if by_process.is_empty() {
        return Ok(Found::default());
    }
    let processes = by_process.keys().copied().collect();
    let mut born = kernel.tasks_born_since(since_ticks, &processes)?;
    born.tasks.sort_by_key(|facts| (facts.id.start_time, facts.id.tid));
    let unseen = born.unseen.map(|error| format!("descendants: {error}")).into_iter().collect();
    let processes = born.tasks.iter().filter(|f| f.id.tid == f.id.tgid).map(|f| (f.id.tgid, f)).collect();
    let mut search =
        Search { kernel, processes, by_process, found: Found { unseen, ..Found::default() }, entries };
    for facts in &born.tasks {
        if facts.kernel_thread || facts.id.tid == 1 {
            continue;
        }
        for knob in INHERITED {
            if known.contains(&(facts.id, knob)) {
                continue;
            }
            match search.look(facts, knob) {
                // It ended meanwhile.
                Ok(()) | Err(KernelError::Gone) => {}
                Err(error) => search.found.unseen.push(format!("{} of {}: {error}", knob.name(), facts.id)),
            }
        }
    }
    Ok(search.found)
}

struct Search<'a, K> {
    kernel: &'a mut K,
    /// Those born since, by number.
    processes: HashMap<u32, &'a TaskFacts>,
    by_process: HashMap<u32, Vec<usize>>,
    found: Found,
    entries: &'a [Entry],
}

/// A task as it is looked at.
struct Seen<'a> {
    facts: &'a TaskFacts,
    knob: Knob,
    present: Setting,
    widest: Option<CpuSet>,
}

impl<K: Kernel> Search<'_, K> {
    fn elder(&self, index: usize) -> &Entry {
        self.entries.get(index).unwrap_or_else(|| &self.found.entries[index - self.entries.len()])
    }

    fn elders(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().chain(&self.found.entries)
    }

    fn look(&mut self, facts: &TaskFacts, knob: Knob) -> Result<(), KernelError> {
        let present = self.kernel.read(&Target::Task(facts.id), knob)?;
        let widest = match knob {
            Knob::Affinity => Some(self.kernel.widest_affinity(facts.id)?),
            _ => None,
        };
        let seen = Seen { facts, knob, present, widest };
        let chain = self.chain(facts);
        // A value that is ours as a whole says more than one that is in part, and so does kinship.
        let original = self.by_ancestry(&seen, &chain, true);
        let original = match original {
            None => self.by_sibling(&seen, &chain)?,
            found => found,
        };
        // A part of it that is what every task has was there without us.
        let in_part = || if is_ordinary(&seen) { None } else { self.by_ancestry(&seen, &chain, false) };
        let original = original.or_else(in_part);
        let original = match original {
            None => self.by_lost_parent(&seen, chain.last().map_or(0, |(process, _)| *process))?,
            found => found,
        };
        match original {
            Some((original, since_ticks)) => self.adopt(seen, original, since_ticks),
            None => Ok(()),
        }
    }

    /// What it is to have, by a process it descends from, and since when that was tuned.
    fn by_ancestry(&self, seen: &Seen<'_>, chain: &[(u32, u64)], whole: bool) -> Option<(Setting, u64)> {
        let widest = seen.widest.as_ref();
        // A part of a value may be anybody's: it counts in a copy of the tuned process only, which runs its program.
        let is_copy = |elder: &Entry| [0, elder.origin.image].contains(&seen.facts.image);
        for (process, oldest) in chain {
            for &index in self.by_process.get(process).into_iter().flatten() {
                let elder = self.elder(index);
                if elder.knob != seen.knob || elder.origin.since_ticks > *oldest {
                    continue;
                }
                let original = inherited(&elder.original);
                let ours: Vec<Setting> = elder.wrote.iter().map(inherited).collect();
                if same(&seen.present, &original, widest) {
                    continue;
                }
                if let Some(reverse) = reverse(&original, &ours, &seen.present, widest)
                    && (!reverse.partial || (!whole && is_copy(elder)))
                {
                    return Some((reverse.to, elder.origin.since_ticks));
                }
            }
        }
        None
    }

    /// What it is to have if a task with the same parent made it, or a process it descends from, by `CLONE_PARENT`. The
    /// program tells: who was started by that parent itself and runs a program of its own chose its values itself.
    fn by_sibling(
        &mut self,
        seen: &Seen<'_>,
        chain: &[(u32, u64)],
    ) -> Result<Option<(Setting, u64)>, KernelError> {
        let facts = seen.facts;
        let line: Vec<&TaskFacts> = std::iter::once(facts)
            .chain(chain.iter().map_while(|(process, _)| self.processes.get(process).copied()))
            .collect();
        let mut doubtful = false;
        for member in line {
            let fits = |elder: &&Entry| {
                let parent = elder.origin.ancestors.first().copied().unwrap_or(1);
                parent == member.ppid.max(1)
                    && elder.origin.since_ticks <= member.id.start_time
                    && carries(elder, seen)
            };
            let elders: Vec<Entry> = self.elders().filter(fits).cloned().collect();
            for elder in &elders {
                let Target::Task(id) = &elder.target else { continue };
                let image = match self.kernel.identity(id.tid) {
                    Ok(now) if now.id == *id => now.image,
                    Ok(_) | Err(KernelError::Gone) => 0,
                    Err(error) => return Err(error),
                };
                if member.image != 0 && [elder.origin.image, image].contains(&member.image) {
                    return Ok(Some((inherited(&elder.original), elder.origin.since_ticks)));
                }
                doubtful |= member.id == facts.id && elder.origin.comm == facts.comm;
            }
        }
        if doubtful && !is_ordinary(seen) {
            self.found.doubtful.push(format!(
                "{} ({}) has {}, as a task had that was changed and has the same parent: inherited (CLONE_PARENT) or its \
                 own choice; left as it is",
                facts.id, facts.comm, seen.present
            ));
        }
        Ok(None)
    }

    /// The process's own number for a thread, then its parents, upwards as long as they were born since themselves; the
    /// last is the first that was not, tuned or not: what it passed on was its own, not its parents'. With each, the
    /// start time of the oldest on the way to it: a value written later cannot have come down this way.
    fn chain(&mut self, facts: &TaskFacts) -> Vec<(u32, u64)> {
        let mut chain = Vec::new();
        let mut oldest = facts.id.start_time;
        let mut next = Some(facts.ppid);
        if facts.id.tid != facts.id.tgid {
            chain.push((facts.id.tgid, oldest));
            let Some(main) = self.processes.get(&facts.id.tgid) else { return chain };
            (next, oldest) = (Some(main.ppid), oldest.min(main.id.start_time));
        }
        while let Some(process) = next.filter(|&process| process > 1 && chain.len() < MAX_CHAIN) {
            chain.push((process, oldest));
            let Some(born) = self.processes.get(&process) else { return chain };
            (next, oldest) = (Some(born.ppid), oldest.min(born.id.start_time));
        }
        chain.push((1, oldest));
        chain
    }

    /// What it is to have if it is an orphan; `top` is the process its chain of parents ends with.
    fn by_lost_parent(&mut self, seen: &Seen<'_>, top: u32) -> Result<Option<(Setting, u64)>, KernelError> {
        let ended = |error| match error {
            // Whose parent that was has another one now, and is to be looked at again.
            KernelError::Gone => {
                KernelError::Io { path: format!("/proc/{top}"), error: "has just ended".to_owned() }
            }
            other => other,
        };
        // A child of a living process that takes in no orphans was born there: it is no child of a tuned task.
        if top > 1 && !self.kernel.identity(top).map_err(ended)?.reaper {
            return Ok(None);
        }
        if is_ordinary(seen) {
            return self.by_process_group(seen);
        }
        let fits =
            |elder: &&Entry| (top <= 1 || elder.origin.ancestors.contains(&top)) && carries(elder, seen);
        // Several tuned tasks may have had the same value: the closest relation counts.
        let closeness = |elder: &&Entry| {
            let origin = &elder.origin;
            (
                origin.process_group == seen.facts.process_group,
                origin.session == seen.facts.session,
                origin.comm == seen.facts.comm,
            )
        };
        let elder = self.elders().filter(fits).max_by_key(closeness);
        Ok(elder.map(|elder| (inherited(&elder.original), elder.origin.since_ticks)))
    }

    /// What an orphan is to have whose value is what every task has. It says little about where the orphan comes from, so it
    /// counts only where a tuned process leads the orphan's process group, and no one else in that group could have passed
    /// such a value on.
    fn by_process_group(&mut self, seen: &Seen<'_>) -> Result<Option<(Setting, u64)>, KernelError> {
        let facts = seen.facts;
        let is = |value: &Setting| same(&seen.present, &inherited(value), seen.widest.as_ref());
        let of_group = |entry: &&Entry| {
            let origin = &entry.origin;
            entry.knob == seen.knob
                && (origin.process_group, origin.session) == (facts.process_group, facts.session)
        };
        if self.elders().filter(of_group).any(|entry| is(&entry.original)) {
            return Ok(None);
        }
        let leads = |entry: &&Entry| {
            matches!(entry.target, Target::Task(id) if id.tgid == facts.process_group)
                && entry.origin.cgroup == facts.cgroup
                && entry.origin.since_ticks <= facts.id.start_time
                && entry.wrote.iter().any(is)
        };
        let Some(elder) = self.elders().filter(of_group).find(leads) else { return Ok(None) };
        let (original, since_ticks) = (inherited(&elder.original), elder.origin.since_ticks);
        let known: BTreeSet<TaskId> = self
            .elders()
            .filter(of_group)
            .filter_map(|entry| match entry.target {
                Target::Task(id) => Some(id),
                _ => None,
            })
            .collect();
        let born = self.kernel.tasks_born_since(0, &BTreeSet::new())?;
        for other in born.tasks {
            let mate = other.process_group == facts.process_group && other.id.start_time < since_ticks;
            if !mate || known.contains(&other.id) {
                continue;
            }
            match self.kernel.read(&Target::Task(other.id), seen.knob) {
                Ok(value) if is(&value) => return Ok(None),
                Ok(_) | Err(KernelError::Gone) => {}
                Err(error) => return Err(error),
            }
        }
        // Who could not be looked at may be such a mate.
        born.unseen.map_or(Ok(Some((original, since_ticks))), Err)
    }

    fn adopt(&mut self, seen: Seen<'_>, original: Setting, since_ticks: u64) -> Result<(), KernelError> {
        let Seen { facts, present, .. } = seen;
        let origin = origin_of(self.kernel, facts, seen.knob, (since_ticks, vec![facts.ppid]))?;
        let origin = Origin { descendant: true, ..origin };
        let index = self.entries.len() + self.found.entries.len();
        self.by_process.entry(facts.id.tgid).or_default().push(index);
        let entry = Entry::new(Target::Task(facts.id), original, origin);
        self.found.entries.push(Entry { wrote: vec![present.clone()], state: State::Ours(present), ..entry });
        Ok(())
    }
}

/// What every task has by default says nothing about where it comes from.
fn is_ordinary(seen: &Seen<'_>) -> bool {
    match &seen.present {
        Setting::Affinity(cpus) => seen.widest.as_ref().is_none_or(|widest| cpus == widest),
        Setting::Sched(attr) => *attr == SchedAttr::DEFAULT,
        _ => true,
    }
}

/// Whether a task may have its value from one that was tuned before its birth, in the same cgroup. Values of another property are
/// other values.
fn carries(elder: &Entry, seen: &Seen<'_>) -> bool {
    elder.origin.since_ticks <= seen.facts.id.start_time
        && elder.origin.cgroup == seen.facts.cgroup
        && seen.present != inherited(&elder.original)
        && elder.wrote.iter().any(|wrote| inherited(wrote) == seen.present)
}

/// What is kept of a task that has a value of ours of this property since then, and whose child it is.
pub(crate) fn origin_of<K: Kernel>(
    kernel: &mut K,
    facts: &TaskFacts,
    knob: Knob,
    (since_ticks, ancestors): (u64, Vec<u32>),
) -> Result<Origin, KernelError> {
    Ok(Origin {
        since_ticks,
        ancestors,
        leader: leader(kernel, facts.id, knob)?,
        process_group: facts.process_group,
        session: facts.session,
        comm: facts.comm.clone(),
        cgroup: facts.cgroup.clone(),
        image: facts.image,
        ..Origin::default()
    })
}

/// What the main thread of a thread's process has; `None` for a main thread.
pub(crate) fn leader<K: Kernel>(
    kernel: &mut K,
    id: TaskId,
    knob: Knob,
) -> Result<Option<Setting>, KernelError> {
    if id.tid == id.tgid {
        return Ok(None);
    }
    match kernel.read(&Target::Task(TaskId { tid: id.tgid, ..id }), knob) {
        Ok(value) => Ok(Some(value)),
        Err(KernelError::Gone) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What came of looking for threads that called `exec`.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// Places of the entries that are a main thread's now.
    pub places: Vec<usize>,
    /// Why not every thread could be looked at.
    pub unseen: Option<KernelError>,
}

/// Makes those entries that became a main thread by `exec` entries of that main thread. One is taken for such a thread
/// when it is gone and the main thread has a value of its, which it had not before. Looks at the threads of one process
/// only, where that is given.
pub(crate) fn follow_execs<K: Kernel>(
    kernel: &mut K,
    entries: &mut Vec<Entry>,
    process: Option<u32>,
) -> Followed {
    let mut followed = Followed::default();
    for index in 0..entries.len() {
        match follow_exec(kernel, entries, index, process) {
            Ok(place) => followed.places.extend(place),
            // It ended meanwhile.
            Err(KernelError::Gone) => {}
            Err(error) => followed.unseen = Some(error),
        }
    }
    followed
}

/// The same for one entry; gives its place.
fn follow_exec<K: Kernel>(
    kernel: &mut K,
    entries: &mut Vec<Entry>,
    index: usize,
    process: Option<u32>,
) -> Result<Option<usize>, KernelError> {
    let entry = &entries[index];
    let Target::Task(id) = entry.target else { return Ok(None) };
    let Some(before) = entry.origin.leader.clone() else { return Ok(None) };
    if process.is_some_and(|process| process != id.tgid) {
        return Ok(None);
    }
    if entry.wrote.is_empty() {
        return Ok(None);
    }
    if entry.state != State::Gone && kernel.is_alive(id)? {
        return Ok(None);
    }
    let facts = kernel.identity(id.tgid)?;
    // The main thread is older than the others; a process that got the number later is younger.
    if (facts.id.tgid, facts.id.tid) != (id.tgid, id.tgid) || facts.id.start_time > id.start_time {
        return Ok(None);
    }
    let target = Target::Task(facts.id);
    let present = kernel.read(&target, entry.knob)?;
    let widest = match entry.knob {
        Knob::Affinity => Some(kernel.widest_affinity(facts.id)?),
        _ => None,
    };
    let is = |value: &Setting| same(&present, value, widest.as_ref());
    let own = entries.iter().position(|other| other.target == target && other.knob == entry.knob);
    if let Some(own) = own.filter(|&own| entries[own].wrote.iter().any(is)) {
        // One that it has no more, or that was restored: it got the thread's.
        let again = entries[own].state != State::Foreign && !entries[own].ours().iter().any(is);
        if again {
            entries[own].state = State::Unknown;
        }
        return Ok(again.then_some(own));
    }
    if is(&before) || is(&entry.original) || !entry.wrote.iter().any(is) {
        return Ok(None);
    }
    let mut origin = Origin { comm: facts.comm, image: facts.image, leader: None, ..entry.origin.clone() };
    let mut wrote = Vec::new();
    if let Some(own) = own.map(|own| &entries[own]) {
        // Its children may have what the main thread of before had.
        origin.since_ticks = origin.since_ticks.min(own.origin.since_ticks);
        wrote.clone_from(&own.wrote);
    }
    wrote.extend(entry.wrote.iter().cloned());
    // The journal says neither of them of the main thread yet.
    let (journaled, lent) = (0, CpuSet::new());
    let taken =
        Entry { target, origin, wrote, journaled, lent, state: State::Ours(present), ..entry.clone() };
    entries[index].state = State::Gone;
    let place = own.unwrap_or(entries.len());
    match own {
        Some(own) => entries[own] = taken,
        None => entries.push(taken),
    }
    Ok(Some(place))
}

/// Processes a task descends from, nearest first, pid 1 left out.
pub(crate) fn ancestors<K: Kernel>(kernel: &mut K, facts: &TaskFacts) -> Result<Vec<u32>, KernelError> {
    let mut chain = Vec::new();
    let mut next = facts.ppid;
    while next > 1 && chain.len() < MAX_CHAIN && !chain.contains(&next) {
        chain.push(next);
        next = match kernel.identity(next) {
            Ok(facts) => facts.ppid,
            Err(KernelError::Gone) => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(chain)
}

#[cfg(test)]
mod tests;
