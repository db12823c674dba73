//! What there is in the world, and what happens to it.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::{CpuSet, GroupRef, HostScheduler, Knob, NetKnob, SchedAttr, Setting, Target, TaskId};

use super::Event;
use crate::kernel::{KernelError, Namespaces, TaskFacts};
use crate::value::inherited;

#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) facts: TaskFacts,
    pub(super) sched: SchedAttr,
    pub(super) affinity: CpuSet,
    pub(super) cpuset: CpuSet,
}

impl Task {
    pub(super) fn effective(&self) -> CpuSet {
        let cpus = self.affinity.intersection(&self.cpuset);
        if cpus.is_empty() { self.cpuset.clone() } else { cpus }
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) boot: String,
    pub(super) ticks: u64,
    pub(super) cpus: CpuSet,
    pub(super) tasks: BTreeMap<u32, Task>,
    pub(super) groups: BTreeMap<GroupRef, (u64, BTreeMap<Knob, Setting>)>,
    pub(super) journal: Option<Vec<u8>>,
    pub(super) decision: Option<Vec<u8>>,
    pub(super) aside: Vec<Vec<u8>>,
    pub(super) operations: u64,
    pub(super) events: BTreeMap<u64, Vec<Event>>,
    pub(super) disk_full: bool,
    /// Writes to the disk that were waited for.
    pub(super) waits: u64,
    pub(super) births: u64,
    pub(super) written: Vec<(Target, Setting)>,
    pub(super) ended: BTreeSet<TaskId>,
    /// Main threads that ended while others of their process live, by number.
    pub(super) zombies: BTreeMap<u32, TaskFacts>,
    /// Cgroups whose owner remembers what is written.
    pub(super) owned: BTreeMap<GroupRef, BTreeMap<Knob, Setting>>,
    /// Those of them whose owner does so until the next boot.
    pub(super) until_boot: BTreeSet<GroupRef>,
    pub(super) namespaces: Namespaces,
    pub(super) sees_every_cgroup: bool,
    /// Tasks that cannot be looked at where all of them are.
    pub(super) hidden: BTreeSet<u32>,
    pub(super) links: BTreeMap<String, u64>,
    pub(super) net: BTreeMap<NetKnob, String>,
    pub(super) scheduler: HostScheduler,
}

impl State {
    pub(super) fn store(&mut self, target: &Target, to: &Setting) -> Result<(), KernelError> {
        match (target, to) {
            (Target::Task(id), Setting::Sched(attr)) => {
                let task = self.tasks.get_mut(&id.tid).ok_or(KernelError::Gone)?;
                let nice = if attr.policy.is_realtime() { task.sched.nice } else { attr.nice };
                task.sched = SchedAttr { nice, ..*attr };
            }
            (Target::Task(id), Setting::Affinity(cpus)) => {
                let task = self.tasks.get_mut(&id.tid).ok_or(KernelError::Gone)?;
                if !cpus.intersects(&task.cpuset) {
                    return Err(KernelError::Invalid("no such CPU".into()));
                }
                task.affinity = cpus.clone();
            }
            (Target::Group(group), to) => {
                let (_, values) = self.groups.get_mut(group).ok_or(KernelError::Gone)?;
                let idle = values.get(&Knob::GroupIdle) == Some(&Setting::GroupIdle(true));
                if idle && to.knob() == Knob::Weight {
                    return Err(KernelError::Invalid("an idle group has no weight".into()));
                }
                values.insert(to.knob(), to.clone());
                // sched_group_set_idle() in kernel/sched/fair.c: the weight is lost.
                if let Setting::GroupIdle(idle) = to {
                    let weight = match (idle, group.v2) {
                        // Since Linux 6.12.
                        (true, true) => 1,
                        (true, false) => 3,
                        (false, true) => 100,
                        (false, false) => 1024,
                    };
                    values.insert(Knob::Weight, Setting::Weight(weight));
                }
            }
            (Target::Net(knob), Setting::Net(value)) => {
                *self.net.get_mut(knob).ok_or(KernelError::Gone)? = value.clone();
            }
            (Target::Host, Setting::Scheduler(scheduler)) => self.scheduler = scheduler.clone(),
            _ => return Err(KernelError::Invalid("not a property of that".into())),
        }
        Ok(())
    }

    pub(super) fn happen(&mut self, event: Event) {
        self.ticks += 1;
        match event {
            Event::Vanish(tid) => drop(self.end(tid)),
            Event::Reuse(tid) => {
                if let Some(mut task) = self.end(tid) {
                    task.facts.id = TaskId { tgid: tid, tid, start_time: self.ticks };
                    task.facts.ppid = 1;
                    task.facts.cgroup = "0::/stranger\n".into();
                    task.facts.image = self.ticks;
                    (task.sched, task.affinity) = (SchedAttr::DEFAULT, crate::all_cpus());
                    self.births += 1;
                    self.tasks.insert(tid, task);
                }
            }
            Event::Meddle(target, to) => {
                let _ = self.store(&target, &to);
            }
            Event::Fork { parent, child, orphan } => {
                let ppid = |parent: &TaskFacts| if orphan { 1 } else { parent.id.tgid };
                self.fork(parent, child, ppid);
            }
            Event::ForkBeside { maker, child } => self.fork(maker, child, |maker| maker.ppid),
            Event::Exec(tid) => self.exec(tid),
            Event::RenameLink(from, to) => {
                let Some(index) = self.links.remove(&from) else { return };
                let knobs = std::mem::take(&mut self.net).into_iter();
                self.net =
                    knobs
                        .map(|(knob, value)| {
                            if knob.link() == Some(&from) {
                                (knob.on_link(&to), value)
                            } else {
                                (knob, value)
                            }
                        })
                        .collect();
                self.links.insert(to, index);
            }
            Event::RemoveGroup(group, again) => {
                if let Some((_, values)) = self.groups.remove(&group)
                    && again
                {
                    self.groups.insert(group, (self.ticks, values));
                }
            }
            Event::DiskFull => self.disk_full = true,
            Event::Crash | Event::Fail(_) => {}
        }
    }

    /// A task ends. Children of a process of which nobody is left are pid 1's.
    fn end(&mut self, tid: u32) -> Option<Task> {
        let task = self.tasks.remove(&tid)?;
        self.ended.insert(task.facts.id);
        let tgid = task.facts.id.tgid;
        if self.tasks.values().any(|other| other.facts.id.tgid == tgid) {
            // Who ended before the other threads stays in /proc until they have, and so do the children of their process.
            if tid == tgid {
                self.zombies.insert(tgid, task.facts.clone());
            }
        } else {
            self.zombies.remove(&tgid);
            let children = self.tasks.values_mut().filter(|other| other.facts.ppid == tgid);
            children.for_each(|child| child.facts.ppid = 1);
        }
        Some(task)
    }

    /// The process that changes things ends: a scheduler that it had loaded goes with it.
    pub(super) fn process_ends(&mut self) {
        if let HostScheduler::Program(_) = self.scheduler {
            self.scheduler = HostScheduler::Kernel;
        }
    }

    pub(super) fn fork(&mut self, parent: u32, child: u32, ppid: impl Fn(&TaskFacts) -> u32) {
        let Some(mut task) = self.tasks.get(&parent).cloned() else { return };
        task.facts.ppid = ppid(&task.facts);
        task.facts.reaper = false;
        task.facts.id = TaskId { tgid: child, tid: child, start_time: self.ticks };
        if let Setting::Sched(attr) = inherited(&Setting::Sched(task.sched)) {
            task.sched = attr;
        }
        self.births += 1;
        self.tasks.insert(child, task);
    }

    pub(super) fn exec(&mut self, tid: u32) {
        let Some(mut task) = self.tasks.get(&tid).cloned() else { return };
        let Some(leader) = self.tasks.get(&task.facts.id.tgid) else { return };
        // de_thread() in fs/exec.c
        let id = leader.facts.id;
        task.facts.ppid = leader.facts.ppid;
        (task.facts.id, task.facts.comm, task.facts.image) = (id, format!("exec-{tid}"), self.ticks);
        let ended: Vec<u32> =
            self.tasks.values().filter(|t| t.facts.id.tgid == id.tgid).map(|t| t.facts.id.tid).collect();
        for tid in ended {
            if let Some(task) = self.tasks.remove(&tid).filter(|task| task.facts.id != id) {
                self.ended.insert(task.facts.id);
            }
        }
        self.tasks.insert(id.tid, task);
    }

    /// One operation begins. `Err` when it is to fail; the flag says that it is the last.
    pub(super) fn step(&mut self) -> (Result<(), KernelError>, bool) {
        let number = self.operations;
        self.operations += 1;
        self.ticks += 1;
        let mut result = Ok(());
        let mut crash = false;
        for event in self.events.get(&number).cloned().unwrap_or_default() {
            match event {
                Event::Fail(error) => result = Err(error),
                Event::Crash => {
                    crash = true;
                    self.process_ends();
                }
                event => self.happen(event),
            }
        }
        (result, crash)
    }
}
