//! Descendants: what was born while a parent or a sibling thread was tuned carries our values and goes back with them.
//!
//! A task copies its parent's class, nice, slice and affinity at `fork`, and never afterwards: it is enough to look at
//! each task once after its birth. It is recognised by ancestry (the chain of parents, and threads of the same
//! process); an orphan, whose parent is now pid 1 or another ancestor that takes in orphans, by the tuned task's cgroup and
//! by carrying exactly a value that was written; where several tuned tasks fit, process group, session and name decide.

use std::collections::{BTreeSet, HashMap};

use evenkeel_base::{Knob, SchedAttr, Setting, Target};

use crate::journal::Origin;
use crate::kernel::{Kernel, KernelError, TaskFacts};
use crate::undo::{Entry, State, widest};
use crate::value::{inherited, reverse, same};

/// Properties a child inherits.
const INHERITED: [Knob; 2] = [Knob::Affinity, Knob::Sched];

/// Longest chain of parents followed.
const MAX_CHAIN: usize = 64;

/// Finds descendants among the tasks born since `since_ticks` that carry values of ours and are not among the entries.
/// Returns new entries for them, not yet journaled, with the parent's original as theirs.
pub(crate) fn find<K: Kernel>(
    kernel: &mut K,
    entries: &[Entry],
    since_ticks: u64,
) -> Result<Vec<Entry>, KernelError> {
    let mut by_process: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut known = BTreeSet::new();
    for (index, entry) in entries.iter().enumerate() {
        if let (Target::Task(id), true) = (&entry.target, INHERITED.contains(&entry.knob)) {
            by_process.entry(id.tgid).or_default().push(index);
            known.insert((*id, entry.knob));
        }
    }
    if by_process.is_empty() {
        return Ok(Vec::new());
    }
    let processes = by_process.keys().copied().collect();
    let mut born = kernel.tasks_born_since(since_ticks, &processes)?;
    born.sort_by_key(|facts| (facts.id.start_time, facts.id.tid));
    let parents: HashMap<u32, (u32, u64)> = born
        .iter()
        .filter(|f| f.id.tid == f.id.tgid)
        .map(|f| (f.id.tgid, (f.ppid, f.id.start_time)))
        .collect();
    let mut search = Search { kernel, parents, by_process, found: Vec::new(), entries };
    for facts in &born {
        if facts.kernel_thread || facts.id.tid == 1 {
            continue;
        }
        for knob in INHERITED {
            if !known.contains(&(facts.id, knob)) {
                search.look(facts, knob);
            }
        }
    }
    Ok(search.found)
}

struct Search<'a, K> {
    kernel: &'a mut K,
    /// Of each process born since: its parent and its start time.
    parents: HashMap<u32, (u32, u64)>,
    by_process: HashMap<u32, Vec<usize>>,
    found: Vec<Entry>,
    entries: &'a [Entry],
}

impl<K: Kernel> Search<'_, K> {
    fn entry(&self, index: usize) -> &Entry {
        self.entries.get(index).unwrap_or_else(|| &self.found[index - self.entries.len()])
    }

    fn look(&mut self, facts: &TaskFacts, knob: Knob) {
        let target = Target::Task(facts.id);
        let Ok(present) = self.kernel.read(&target, knob) else { return };
        let widest = widest(self.kernel, &target, knob);
        let chain = self.chain(facts);
        for (process, oldest) in &chain {
            for index in self.by_process.get(process).cloned().unwrap_or_default() {
                let elder = self.entry(index);
                if elder.knob != knob || elder.origin.since_ticks > *oldest {
                    continue;
                }
                let original = inherited(&elder.original);
                let ours: Vec<Setting> = elder.wrote.iter().map(inherited).collect();
                if same(&present, &original, widest.as_ref()) {
                    continue;
                }
                if let Some(reverse) = reverse(&original, &ours, &present, widest.as_ref()) {
                    let since_ticks = elder.origin.since_ticks;
                    self.adopt(facts, reverse.to, present, since_ticks);
                    return;
                }
            }
        }
        // What every task has by default says nothing about where it comes from.
        let ordinary = match &present {
            Setting::Affinity(cpus) => widest.as_ref().is_none_or(|widest| cpus == widest),
            Setting::Sched(attr) => *attr == SchedAttr::DEFAULT,
            _ => true,
        };
        if !ordinary {
            self.look_for_orphan(facts, knob, present, chain.last().map_or(0, |(process, _)| *process));
        }
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
            let Some((parent, started)) = self.parents.get(&facts.id.tgid) else { return chain };
            (next, oldest) = (Some(*parent), oldest.min(*started));
        }
        while let Some(process) = next.filter(|&process| process > 1 && chain.len() < MAX_CHAIN) {
            chain.push((process, oldest));
            let Some((parent, started)) = self.parents.get(&process) else { return chain };
            (next, oldest) = (Some(*parent), oldest.min(*started));
        }
        chain.push((1, oldest));
        chain
    }

    fn look_for_orphan(&mut self, facts: &TaskFacts, knob: Knob, present: Setting, top: u32) {
        // A child of a living process that takes in no orphans was born there: it is no child of a tuned task.
        if top > 1 && !self.kernel.identity(top).is_ok_and(|facts| facts.reaper) {
            return;
        }
        let fits = |elder: &&Entry| {
            elder.knob == knob
                && matches!(elder.target, Target::Task(_))
                && elder.origin.since_ticks <= facts.id.start_time
                && elder.origin.cgroup == facts.cgroup
                && (top <= 1 || elder.origin.ancestors.contains(&top))
                && present != inherited(&elder.original)
                && elder.wrote.iter().any(|wrote| inherited(wrote) == present)
        };
        // Several tuned tasks may have had the same value: the closest relation counts.
        let closeness = |elder: &&Entry| {
            let origin = &elder.origin;
            (
                origin.process_group == facts.process_group,
                origin.session == facts.session,
                origin.comm == facts.comm,
            )
        };
        let elder = self.entries.iter().chain(&self.found).filter(fits).max_by_key(closeness);
        if let Some(elder) = elder {
            let (original, since_ticks) = (inherited(&elder.original), elder.origin.since_ticks);
            self.adopt(facts, original, present, since_ticks);
        }
    }

    fn adopt(&mut self, facts: &TaskFacts, original: Setting, present: Setting, since_ticks: u64) {
        let index = self.entries.len() + self.found.len();
        self.by_process.entry(facts.id.tgid).or_default().push(index);
        let origin = Origin {
            since_ticks,
            process_group: facts.process_group,
            session: facts.session,
            comm: facts.comm.clone(),
            cgroup: facts.cgroup.clone(),
            ancestors: vec![facts.ppid],
            group_id: 0,
            descendant: true,
        };
        let entry = Entry::new(Target::Task(facts.id), original, origin);
        self.found.push(Entry { wrote: vec![present.clone()], state: State::Ours(present), ..entry });
    }
}

/// Processes a task descends from, nearest first, pid 1 left out.
pub(crate) fn ancestors<K: Kernel>(kernel: &mut K, facts: &TaskFacts) -> Vec<u32> {
    let mut chain = Vec::new();
    let mut next = facts.ppid;
    while next > 1 && chain.len() < MAX_CHAIN && !chain.contains(&next) {
        chain.push(next);
        next = kernel.identity(next).map_or(0, |facts| facts.ppid);
    }
    chain
}
