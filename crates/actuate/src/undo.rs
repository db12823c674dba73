//! Putting one property of one target back, and telling whose value is there now.

use std::time::Duration;

use evenkeel_base::{CpuSet, Knob, SchedPolicy, Setting, Target};

use crate::adopt;
use crate::journal::Origin;
use crate::kernel::{Kernel, KernelError};
use crate::outcome::{Item, RestoreReport};
use crate::value::{Reverse, all_cpus, attainable, is_all_cpus, is_kept_as, is_lifted, reverse, same};

/// What is known of one property of one target that was ever written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub target: Target,
    pub knob: Knob,
    pub original: Setting,
    /// Values of ours that are in the journal.
    pub wrote: Vec<Setting>,
    /// CPUs to one of which the journal says it may be pinned for an instant, see [`crate::Actuator::lend`]. Nobody is born of
    /// it then: it waits. So it says nothing about descendants.
    pub lent: CpuSet,
    pub origin: Origin,
    pub state: State,
    /// Order of the last write, for undoing the newest first.
    pub sequence: u64,
    /// How many of `wrote` are on disk; 0: the original is not either.
    pub journaled: usize,
    pub rewrite: bool,
}

/// Where an entry stands, as far as we know.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    /// Read from a predecessor's journal, or a write failed half-way: look before saying anything.
    Unknown,
    /// It has its original value, or never got another.
    Back,
    Ours(Setting),
    /// Somebody else changed it while it had this value of ours, parts of which may be there.
    Disputed(Setting),
    /// The original cannot be set now; this value of ours stands in for it, see [`attainable`].
    StandIn(Setting),
    /// Somebody else's value is there.
    Foreign,
    /// The target is no more.
    Gone,
}

impl State {
    /// Whether something of ours may be there.
    pub fn may_be_ours(&self) -> bool {
        matches!(self, Self::Ours(_) | Self::Unknown | Self::Disputed(_))
    }

    /// Whether there is something to restore: a value that stands in for the original does until it can be.
    pub fn is_to_restore(&self) -> bool {
        self.may_be_ours() || matches!(self, Self::StandIn(_))
    }
}

impl Entry {
    /// Somebody else's value was found where ours is to go. Nothing goes back now: what is left of ours does when no plan names it
    /// any more.
    pub fn dispute(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Unknown) {
            State::Ours(value) | State::Disputed(value) => State::Disputed(value),
            State::Unknown => State::Unknown,
            State::Back | State::StandIn(_) | State::Foreign | State::Gone => State::Foreign,
        };
    }

    /// The values of ours that may be there. One of before was not left by us: who sets it means it. Only where it is not known how
    /// far a write came, as after a kill, it may be any.
    pub fn ours(&self) -> &[Setting] {
        match &self.state {
            State::Ours(value) | State::Disputed(value) | State::StandIn(value) => {
                std::slice::from_ref(value)
            }
            State::Unknown => &self.wrote,
            State::Back | State::Foreign | State::Gone => &[],
        }
    }

    /// Whether the kubelet's new value was found where ours is to go. Then that is what goes back at the end: the kubelet has no
    /// opinion on ours, it says again what its pods ask for, which may be more or less than before.
    pub fn follow_kubelet(&mut self, present: &Setting) -> bool {
        self.is_kubelets() && self.follow(present)
    }

    /// Whether somebody else's new value was found; it is the original from now on.
    pub fn follow(&mut self, present: &Setting) -> bool {
        if self.ours().contains(present) || *present == self.original {
            return false;
        }
        self.original = present.clone();
        self.wrote.clear();
        (self.journaled, self.state) = (0, State::Back);
        true
    }

    /// Whether the kubelet sets this property again whenever its pods change.
    fn is_kubelets(&self) -> bool {
        self.knob == Knob::Weight && matches!(&self.target, Target::Group(group) if group.is_kubelets())
    }

    /// Whether the task has this policy from us and not from where it was found.
    pub fn gave_policy(&self, policy: SchedPolicy) -> bool {
        let is = |setting: &Setting| matches!(setting, Setting::Sched(attr) if attr.policy == policy);
        !is(&self.original) && self.ours().iter().any(is)
    }

    /// A property about to be touched for the first time.
    pub fn new(target: Target, original: Setting, origin: Origin) -> Self {
        Self {
            target,
            knob: original.knob(),
            original,
            wrote: Vec::new(),
            lent: CpuSet::new(),
            origin,
            state: State::Back,
            sequence: 0,
            journaled: 0,
            rewrite: false,
        }
    }

    /// Whether a cgroup made again under its name has this from an owner that was told a value of ours.
    pub fn is_kept(&self, present: &Setting) -> bool {
        self.ours().iter().any(|ours| is_kept_as(ours, present))
    }

    /// Whether a BPF scheduler that we started, and did not end, is not there any more: the kernel ejected it, or somebody ended
    /// it. It is not started again; other values that go back to the original are no reason not to set them again.
    pub fn is_lost(&self, present: &Setting) -> bool {
        self.knob == Knob::Scheduler
            && *present == self.original
            && matches!(self.state, State::Ours(_) | State::Disputed(_) | State::Foreign)
    }

    /// Whether a value is one that was ours at any time.
    pub fn was_ours(&self, present: &Setting) -> bool {
        self.wrote.contains(present) || self.is_loan(present)
    }

    /// Whether a value is one that only an instant of a loan leaves.
    pub fn is_loan(&self, present: &Setting) -> bool {
        matches!(present, Setting::Affinity(cpus) if cpus.len() == 1 && cpus.is_subset(&self.lent))
            && *present != self.original
    }

    /// Whether a value is one that only a write that was cut short leaves: cgroup v1 has two files for a quota.
    fn is_cut_short(&self, present: &Setting) -> bool {
        self.state == State::Unknown
            && matches!(&self.target, Target::Group(group) if !group.v2)
            && is_lifted(&self.original, &self.wrote, present)
    }

    pub fn item(&self, found: Option<Setting>, note: Option<String>) -> Item {
        Item {
            target: self.target.clone(),
            knob: self.knob,
            comm: matches!(self.target, Target::Task(_)).then(|| self.origin.comm.clone()),
            found,
            original: self.original.clone(),
            descendant: self.origin.descendant,
            note,
        }
    }
}

/// The target an entry is about, by its present name: a link may have been renamed. `None`: it exists no more.
pub(crate) fn locate<K: Kernel>(kernel: &mut K, entry: &Entry) -> Result<Option<Target>, KernelError> {
    let (target, identity) = (&entry.target, entry.origin.identity);
    let is_there = match target {
        Target::Task(id) => kernel.is_alive(*id)?,
        Target::Group(_) | Target::Net(_) | Target::Host => match kernel.identity_of(target, entry.knob) {
            Ok(found) => found == identity,
            Err(KernelError::Gone) => false,
            Err(error) => return Err(error),
        },
    };
    Ok(if is_there { Some(target.clone()) } else { kernel.renamed(target, identity) })
}

/// Whether the target an entry is about still exists under its name.
pub(crate) fn still_there<K: Kernel>(kernel: &mut K, entry: &Entry) -> Result<bool, KernelError> {
    Ok(locate(kernel, entry)?.is_some_and(|target| target == entry.target))
}

/// The widest affinity, where it matters for comparing values of this knob.
pub(crate) fn widest<K: Kernel>(kernel: &mut K, target: &Target, knob: Knob) -> Option<CpuSet> {
    match (target, knob) {
        (Target::Task(id), Knob::Affinity) => kernel.widest_affinity(*id).ok(),
        _ => None,
    }
}

/// Whether a value written had to be judged by the widest affinity and that is not known.
fn cannot_compare(written: &Setting, widest: Option<&CpuSet>) -> bool {
    widest.is_none() && matches!(written, Setting::Affinity(cpus) if is_all_cpus(cpus))
}

/// Puts one of the entries back and adds the result to the report. Before a main thread is said to have somebody else's
/// value, it is looked whether another thread of its process has taken its place.
pub(crate) fn put_back_at<K: Kernel>(
    kernel: &mut K,
    entries: &mut Vec<Entry>,
    index: usize,
    report: &mut RestoreReport,
) {
    let main = match entries[index].target {
        Target::Task(id) if id.tid == id.tgid => Some(id.tgid),
        _ => None,
    };
    if main.is_some() && !put_back_if(kernel, &mut entries[index], true, report) {
        // Who could not be looked at is looked at again when everything else is back.
        for other in adopt::follow_execs(kernel, entries, main).places {
            if other != index {
                put_back(kernel, &mut entries[other], report);
            }
        }
    } else if main.is_some() {
        return;
    }
    put_back(kernel, &mut entries[index], report);
}

/// Puts one entry back and adds the result to the report.
pub(crate) fn put_back<K: Kernel>(kernel: &mut K, entry: &mut Entry, report: &mut RestoreReport) {
    put_back_if(kernel, entry, false, report);
}

/// With `wholly`, nothing is done about a value that is not ours as a whole; whether something was.
fn put_back_if<K: Kernel>(
    kernel: &mut K,
    entry: &mut Entry,
    wholly: bool,
    report: &mut RestoreReport,
) -> bool {
    // The journal knows it by its first name.
    let mut renamed: Option<Entry> = None;
    let (state, result) = loop {
        let place = renamed.as_ref().unwrap_or(entry);
        let Some((state, result)) = attempt(kernel, place, wholly) else { return false };
        // Not gone but renamed, before or while it was restored.
        match (&state, locate(kernel, place)) {
            (State::Gone, Ok(Some(target))) if target != place.target => {
                renamed = Some(Entry { target, ..place.clone() });
            }
            _ => break (state, result),
        }
    };
    evenkeel_linux::fault::point("actuate.restored");
    // It may have stood in for its original since the pass before.
    if let (State::StandIn(_), Done::Back(item)) = (&entry.state, &result) {
        report.put_back.retain(|before| (&before.target, before.knob) != (&item.target, item.knob));
    }
    if let State::StandIn(mask) = &state
        && !entry.wrote.contains(mask)
    {
        entry.wrote.push(mask.clone());
    }
    entry.state = state;
    match result {
        Done::Later => {}
        Done::Back(item) => report.put_back.push(item),
        Done::Already(item) => report.already.push(item),
        Done::Gone(item) => report.gone.push(item),
        Done::Conflict(item) => report.conflicts.push(item),
        Done::Failed(item) => report.failed.push(item),
    }
    true
}

enum Done {
    /// What stands in for its original does so still.
    Later,
    Back(Item),
    Already(Item),
    Gone(Item),
    Conflict(Item),
    Failed(Item),
}

fn attempt<K: Kernel>(kernel: &mut K, entry: &Entry, wholly: bool) -> Option<(State, Done)> {
    let failed = |state: State, found: Option<Setting>, error: String| {
        (state, Done::Failed(entry.item(found, Some(error))))
    };
    // Until something is written, what was there by our hand still is.
    let as_before = || entry.state.clone();
    match still_there(kernel, entry) {
        Ok(true) => {}
        Ok(false) => return Some(ended(kernel, entry)),
        Err(error) => return Some(failed(as_before(), None, error.to_string())),
    }
    let present = match kernel.read(&entry.target, entry.knob) {
        Ok(present) => present,
        Err(KernelError::Gone) => return Some(ended(kernel, entry)),
        Err(error) => return Some(failed(as_before(), None, error.to_string())),
    };
    let widest = widest(kernel, &entry.target, entry.knob);
    // The file may have been restored while its owner could not be told, or this run wrote there what it had found.
    let is_untold = entry.state == State::Unknown && is_remembered(kernel, entry);
    let is_passing = entry.is_loan(&present) || entry.is_cut_short(&present);
    let passing = is_passing.then(|| Reverse { to: entry.original.clone(), partial: false });
    let reverse = passing.or_else(|| reverse(&entry.original, entry.ours(), &present, widest.as_ref()));
    let Some(reverse) = reverse else {
        if same(&present, &entry.original, widest.as_ref()) {
            if is_untold && let Err(error) = kernel.write_back(&entry.target, &entry.original) {
                return Some(failed(as_before(), Some(present), error.to_string()));
            }
            let state = if entry.is_lost(&present) { State::Foreign } else { State::Back };
            return Some((state, Done::Already(entry.item(Some(present), None))));
        }
        if wholly {
            return None;
        }
        if hides_slice(entry, &present) {
            return Some(failed(as_before(), Some(present), HIDDEN.to_owned()));
        }
        let note = "changed by somebody else; left as it is".to_owned();
        return Some((State::Foreign, Done::Conflict(entry.item(Some(present), Some(note)))));
    };
    if wholly && reverse.partial {
        return None;
    }
    // An affinity reads as what of it is in the cpuset: the same may be there by another mask, which would show when that grows.
    if reverse.to == present && !entry.rewrite && !is_untold && entry.knob != Knob::Affinity {
        return Some((State::Back, Done::Already(entry.item(Some(present), None))));
    }
    let to = attainable(&reverse.to, widest.as_ref());
    if entry.state == State::StandIn(to.clone()) {
        return Some((as_before(), Done::Later));
    }
    match kernel.write_back(&entry.target, &to) {
        Ok(()) => {}
        Err(KernelError::Gone) => return Some(ended(kernel, entry)),
        Err(error) => {
            let untouched = kernel.read(&entry.target, entry.knob).is_ok_and(|now| now == present);
            // A mask that stands in is among what was written; of what is not done only that is kept.
            let is_known = untouched && !matches!(entry.state, State::StandIn(_));
            let state = if is_known { as_before() } else { State::Unknown };
            return Some(failed(state, Some(present), error.to_string()));
        }
    }
    let read = kernel.read(&entry.target, entry.knob);
    match still_there(kernel, entry) {
        Ok(true) => {}
        Ok(false) => {
            if let Target::Task(id) = &entry.target {
                heal_stranger(kernel, id.tid, &to, &present);
            }
            return Some(ended(kernel, entry));
        }
        Err(error) => return Some(failed(State::Unknown, Some(present), error.to_string())),
    }
    Some(match read {
        Ok(now) if same(&now, &to, widest.as_ref()) || cannot_compare(&to, widest.as_ref()) => {
            if reverse.partial && hides_slice(entry, &to) {
                failed(as_before(), Some(present), HIDDEN.to_owned())
            } else if reverse.partial {
                let note = "partly changed by somebody else; only our part was restored".to_owned();
                (State::Foreign, Done::Conflict(entry.item(Some(present), Some(note))))
            } else {
                let elsewhere = "none of its CPUs is in its cpuset now; it may use all of that".to_owned();
                let is_elsewhere = to != reverse.to;
                let done = Done::Back(entry.item(Some(present), is_elsewhere.then_some(elsewhere)));
                (if is_elsewhere { State::StandIn(to) } else { State::Back }, done)
            }
        }
        Ok(now) => {
            let note = format!("wrote {to}, but it reads {now}");
            failed(State::Unknown, Some(present), note)
        }
        Err(KernelError::Gone) => ended(kernel, entry),
        Err(error) => failed(State::Unknown, Some(present), error.to_string()),
    })
}

/// Why a slice of ours cannot be restored now. To take the task out of that class for a moment would be a change of somebody else's.
const HIDDEN: &str = "somebody gave it a real-time class, and the kernel keeps its slice until it has another class; restore again then";

/// Whether a task that is not real-time by us may have a slice of ours, which is in force again when it leaves that class
/// (`__setscheduler_params` and `_sched_setscheduler` in `kernel/sched/syscalls.c`).
fn hides_slice(entry: &Entry, present: &Setting) -> bool {
    let (Setting::Sched(found), Setting::Sched(now)) = (&entry.original, present) else { return false };
    let is_own = |ours: &Setting| matches!(ours, Setting::Sched(ours) if ours.policy.is_fair() && ours.slice_ns != found.slice_ns);
    now.policy.is_realtime() && entry.wrote.iter().any(is_own)
}

/// Whether the owner of a cgroup keeps our value for the next one of that name. That a unit is not idle it says by its weight, which has
/// an entry of its own: telling it both would make the weight the default.
fn is_remembered<K: Kernel>(kernel: &mut K, entry: &Entry) -> bool {
    entry.original != Setting::GroupIdle(false) && kernel.outlives_group(&entry.target, entry.knob)
}

/// The target is no more. What its owner keeps for the next one of that name goes back.
fn ended<K: Kernel>(kernel: &mut K, entry: &Entry) -> (State, Done) {
    if is_remembered(kernel, entry) {
        put_back_remembered(kernel, entry)
    } else {
        (State::Gone, Done::Gone(entry.item(None, None)))
    }
}

/// Puts back what the owner of a cgroup remembers although the cgroup is not the same any more: its container or unit was
/// started again or does not run at present, or the host was booted.
fn put_back_remembered<K: Kernel>(kernel: &mut K, entry: &Entry) -> (State, Done) {
    let present = match kernel.read(&entry.target, entry.knob) {
        Ok(present) => Some(present),
        Err(KernelError::Gone) => None,
        Err(error) => return (entry.state.clone(), Done::Failed(entry.item(None, Some(error.to_string())))),
    };
    if let Some(present) = present.clone().filter(|present| !entry.is_kept(present)) {
        if present == entry.original {
            return (State::Back, Done::Already(entry.item(Some(present), None)));
        }
        let note = "changed by somebody else; left as it is".to_owned();
        return (State::Foreign, Done::Conflict(entry.item(Some(present), Some(note))));
    }
    match kernel.write_back(&entry.target, &entry.original) {
        Ok(()) => {
            let note = "its owner had remembered our value".to_owned();
            (State::Back, Done::Back(entry.item(present, Some(note))))
        }
        Err(KernelError::Gone) => (State::Gone, Done::Gone(entry.item(None, None))),
        Err(error) => (State::Unknown, Done::Failed(entry.item(present, Some(error.to_string())))),
    }
}

/// A task's number was reused between our look and our write, and the write may have hit the newcomer. It is so young
/// that it still had what it inherited: its parent's (or its main thread's) value is put there.
pub(crate) fn heal_stranger<K: Kernel>(kernel: &mut K, tid: u32, wrote: &Setting, before: &Setting) {
    for _ in 0..HEAL_ATTEMPTS {
        match try_to_heal(kernel, tid, wrote, before) {
            Ok(()) | Err(KernelError::Gone) => return,
            Err(error) => tracing::warn!(tid, %error, "the newcomer could not be restored yet"),
        }
    }
}

/// A refusal may pass; no one else will look after a newcomer.
const HEAL_ATTEMPTS: u32 = 3;

fn try_to_heal<K: Kernel>(
    kernel: &mut K,
    tid: u32,
    wrote: &Setting,
    before: &Setting,
) -> Result<(), KernelError> {
    let stranger = kernel.identity(tid)?;
    let target = Target::Task(stranger.id);
    let knob = wrote.knob();
    let present = kernel.read(&target, knob)?;
    let widest = widest(kernel, &target, knob);
    if !same(&present, wrote, widest.as_ref()) {
        return Ok(());
    }
    let elder = if stranger.id.tid == stranger.id.tgid { stranger.ppid } else { stranger.id.tgid };
    let inherited =
        kernel.identity(elder).ok().and_then(|elder| kernel.read(&Target::Task(elder.id), knob).ok());
    let value = inherited.map_or_else(|| before.clone(), |value| crate::value::inherited(&value));
    // A full mask is written as all ones, so that it stays full when the cpuset grows.
    let value = match value {
        Setting::Affinity(cpus) if Some(&cpus) == widest.as_ref() => Setting::Affinity(all_cpus()),
        value => value,
    };
    tracing::warn!(tid, %value, "a task's number was reused while it was being changed; the newcomer gets its parent's value");
    if value == present { Ok(()) } else { kernel.write(&target, &value) }
}

/// How often descendants are looked for while putting everything back, and how long is waited in between: a `fork`
/// under way copied its parent before the parent was restored, and shows up only when it is done.
pub(crate) const SETTLE: [Duration; 6] = [
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(30),
    Duration::from_millis(60),
];

/// When the first write was, clock ticks since boot.
pub(crate) fn first_ticks(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.origin.since_ticks).min().unwrap_or(0)
}
