//! What must be known of a change before anything is written: whether it may be made, and what was there.

use evenkeel_base::{Change, HostScheduler, Knob, Setting, Target, TaskId};

use super::{Actuator, Step, Write, verdict};
use crate::adopt;
use crate::guard;
use crate::host;
use crate::journal::Origin;
use crate::kernel::{Kernel, KernelError, TaskFacts};
use crate::outcome::Verdict;
use crate::undo::{Entry, State, locate};
use crate::value::{idle_weights, normalise, original_of, same};

impl<K: Kernel> Actuator<K> {
    /// Everything that can be said about a change before anything is written. `Err` is a verdict already.
    pub(super) fn prepare(
        &mut self,
        change: &Change,
        scope: &dyn Fn(&Change) -> bool,
    ) -> Result<Step, Verdict> {
        let knob = change.knob();
        guard::change(change, &self.options).map_err(Verdict::Refused)?;
        if !scope(change) {
            return Err(Verdict::Refused("outside the scope".to_owned()));
        }
        let facts = match &change.target {
            Target::Task(id) => self.admit(*id)?,
            Target::Group(_) | Target::Net(_) | Target::Host => None,
        };
        let known = self.known(&change.target, knob)?;
        if let Setting::Sched(attr) = &change.to
            && attr.slice_ns.is_some()
            && !self.kernel.has_task_slice()
        {
            let why = "a task's own slice needs Linux 6.12 or later".to_owned();
            return Err(Verdict::Failed(KernelError::Unsupported(why)));
        }
        let present = self.kernel.read(&change.target, knob).map_err(verdict)?;
        let widest = match (&change.target, knob) {
            // Without it neither the original nor a value of ours can be told from a mask that somebody asked for: no change.
            (Target::Task(id), Knob::Affinity) => Some(self.kernel.widest_affinity(*id).map_err(verdict)?),
            _ => None,
        };
        let v2 = matches!(&change.target, Target::Group(group) if group.v2);
        let to = match (&change.target, &change.to) {
            (Target::Net(knob), Setting::Net(value)) => {
                Setting::Net(host::normal(knob, value).map_err(Verdict::Refused)?)
            }
            (_, to) => normalise(to, &present, v2),
        };
        if !self.options.rewrite && same(&present, &to, widest.as_ref()) {
            if let Some(index) = known {
                let entry = &mut self.entries[index];
                if entry.ours().contains(&to) {
                    entry.state = State::Ours(to);
                } else if matches!(entry.state, State::Ours(_)) {
                    entry.dispute();
                }
            }
            return Err(Verdict::Unchanged);
        }
        if let (Target::Net(knob), Setting::Net(value)) = (&change.target, &present)
            && let Some(why) = host::cannot_be_put_back(knob, value)
        {
            return Err(Verdict::Refused(why));
        }
        let entry = match known {
            Some(index) => {
                let entry = &mut self.entries[index];
                if entry.is_lost(&present) {
                    entry.state = State::Foreign;
                    return Err(Verdict::Conflict(present));
                }
                let ours = entry.ours().iter().any(|ours| same(&present, ours, widest.as_ref()));
                if !entry.follow_kubelet(&present)
                    && !ours
                    && !same(&present, &entry.original, widest.as_ref())
                {
                    entry.dispute();
                    return Err(Verdict::Conflict(present));
                }
                index
            }
            None => {
                if let Setting::Scheduler(HostScheduler::Other(name)) = &present {
                    return Err(Verdict::Refused(format!(
                        "another program has loaded the BPF scheduler {name}"
                    )));
                }
                if self.is_taken_over(&change.target)? {
                    return self.prepare(change, scope);
                }
                let original = original_of(&present, widest.as_ref());
                let origin = self.origin(&change.target, knob, facts)?;
                let entry = Entry::new(change.target.clone(), original, origin);
                self.insert(Entry { rewrite: self.options.rewrite, ..entry })
            }
        };
        let companion = self.weight_behind(change, &to)?;
        Ok(Step::Write(Write { entry, present, to, companion }))
    }

    /// Whether a thread that was touched has become this main thread by `exec`, and is known as that from now on: what is
    /// found there is ours.
    fn is_taken_over(&mut self, target: &Target) -> Result<bool, Verdict> {
        let Target::Task(id) = target else { return Ok(false) };
        if id.tid != id.tgid {
            return Ok(false);
        }
        let followed = self.follow_execs(Some(id.tgid));
        match followed.unseen {
            Some(error) => Err(verdict(error)),
            None => Ok(!followed.places.is_empty()),
        }
    }

    /// The entry of a property that was touched before. A cgroup or link recreated under its old name is another one, unless the cgroup's
    /// owner gave it a value of ours: what was found in the old one is the original then.
    fn known(&mut self, target: &Target, knob: Knob) -> Result<Option<usize>, Verdict> {
        let Some(&index) = self.index.get(&(target.clone(), knob)) else { return Ok(None) };
        let now = locate(&mut self.kernel, &self.entries[index]).map_err(verdict)?;
        if now.as_ref() == Some(target) {
            return Ok(Some(index));
        }
        let another = match target {
            Target::Task(_) => None,
            Target::Group(_) | Target::Net(_) | Target::Host => self.kernel.identity_of(target, knob).ok(),
        };
        if now.is_none()
            && !self.ended(index)
            && let Some(identity) = another
        {
            let present = self.kernel.read(target, knob).map_err(verdict)?;
            if self.entries[index].is_kept(&present) {
                return self.renew(index, identity, present).map(|()| Some(index)).map_err(verdict);
            }
            self.entries[index].state = State::Gone;
        }
        if another.is_some() { Ok(None) } else { Err(Verdict::Gone) }
    }

    /// An entry's target is no more; whether that is all. Where its owner keeps what it was told for the next one of that name, it is
    /// not: the entry stays as it is.
    pub(super) fn ended(&mut self, index: usize) -> bool {
        let entry = &mut self.entries[index];
        let is_over = !self.kernel.outlives_group(&entry.target, entry.knob);
        if is_over {
            entry.state = State::Gone;
        }
        is_over
    }

    /// A cgroup was made again, and has this value of ours from its owner: it is the entry's from now on, in the journal, too.
    fn renew(&mut self, index: usize, identity: u64, present: Setting) -> Result<(), KernelError> {
        let entry = &mut self.entries[index];
        let before = entry.clone();
        entry.origin.identity = identity;
        (entry.state, entry.journaled) = (State::Unknown, 0);
        if !entry.wrote.contains(&present) {
            entry.wrote.push(present);
        }
        let journaled = self.record(&[(index, None)]);
        if journaled.is_err() {
            self.entries[index] = before;
        }
        journaled
    }

    /// Who a task is, once it is known that it may be touched; `None` when that was found out before.
    pub(super) fn admit(&mut self, id: TaskId) -> Result<Option<TaskFacts>, Verdict> {
        let target = Target::Task(id);
        let sched = self.index.get(&(target.clone(), Knob::Sched)).copied();
        let known = sched.is_some() || self.index.contains_key(&(target.clone(), Knob::Affinity));
        let (facts, policy) = if known {
            // Its identity was looked at when it was first touched: now a cheaper look is enough.
            guard::process(id, self.kernel.own_process()).map_err(Verdict::Refused)?;
            if !self.kernel.is_alive(id).map_err(verdict)? {
                return Err(Verdict::Gone);
            }
            match self.kernel.read(&target, Knob::Sched).map_err(verdict)? {
                Setting::Sched(attr) => (None, Some(attr.policy)),
                _ => (None, None),
            }
        } else {
            let facts = self.kernel.identity(id.tid).map_err(verdict)?;
            if facts.id != id {
                return Err(Verdict::Gone);
            }
            guard::process(id, self.kernel.own_process()).map_err(Verdict::Refused)?;
            if facts.kernel_thread {
                return Err(Verdict::Refused("a kernel thread".to_owned()));
            }
            let policy = facts.policy;
            (Some(facts), policy)
        };
        let entry = sched.map(|index| &self.entries[index]);
        guard::policy(policy, |policy| entry.is_some_and(|entry| entry.gave_policy(policy)))
            .map_err(Verdict::Refused)?;
        Ok(facts)
    }

    /// Writing `cpu.idle` loses the group's weight, whoever set it, so that is remembered too.
    fn weight_behind(&mut self, change: &Change, to: &Setting) -> Result<Option<usize>, Verdict> {
        let (Setting::GroupIdle(_), Target::Group(group)) = (to, &change.target) else { return Ok(None) };
        let known = self.known(&change.target, Knob::Weight)?;
        let weight = self.kernel.read(&change.target, Knob::Weight).map_err(verdict)?;
        let index = match known {
            Some(index) => {
                self.entries[index].follow(&weight);
                index
            }
            None => {
                let origin = self.origin(&change.target, Knob::Weight, None)?;
                self.insert(Entry::new(change.target.clone(), weight, origin))
            }
        };
        for weight in idle_weights(group.v2) {
            let weight = Setting::Weight(*weight);
            if !self.entries[index].wrote.contains(&weight) {
                self.entries[index].wrote.push(weight);
            }
        }
        Ok(Some(index))
    }

    /// Whether all that a write changes is in the journal already.
    pub(super) fn is_journaled(&self, write: &Write) -> bool {
        let holds = |index: usize, to: &Setting| self.ledger.holds(&self.entries[index], to);
        let weights = match &self.entries[write.entry].target {
            Target::Group(group) => idle_weights(group.v2),
            _ => &[],
        };
        holds(write.entry, &write.to)
            && write
                .companion
                .is_none_or(|index| weights.iter().all(|&to| holds(index, &Setting::Weight(to))))
    }

    pub(super) fn origin(
        &mut self,
        target: &Target,
        knob: Knob,
        facts: Option<TaskFacts>,
    ) -> Result<Origin, Verdict> {
        let since_ticks = self.kernel.now_ticks();
        Ok(match (target, facts) {
            (Target::Group(_) | Target::Net(_) | Target::Host, _) => Origin {
                since_ticks,
                identity: self.kernel.identity_of(target, knob).map_err(verdict)?,
                ..Origin::default()
            },
            (Target::Task(_), Some(facts)) => {
                let ancestors = adopt::ancestors(&mut self.kernel, &facts).map_err(verdict)?;
                adopt::origin_of(&mut self.kernel, &facts, knob, (since_ticks, ancestors)).map_err(verdict)?
            }
            // Touched before by its other property.
            (Target::Task(id), None) => {
                let other = if knob == Knob::Sched { Knob::Affinity } else { Knob::Sched };
                let leader = adopt::leader(&mut self.kernel, *id, knob).map_err(verdict)?;
                let known =
                    self.index.get(&(target.clone(), other)).map(|&index| &self.entries[index].origin);
                Origin { since_ticks, leader, descendant: false, ..known.cloned().unwrap_or_default() }
            }
        })
    }
}
