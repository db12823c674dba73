//! A kernel and a disk in memory that fail, lose tasks, reuse numbers, are meddled with, fork and crash at any
//! operation one names. For tests, here and in the crates above.
//!
//! ```
//! use evenkeel_actuate::fake::{FakeKernel, FakeMedium, World};
//! use evenkeel_actuate::{Actuator, Options};
//! use evenkeel_base::{Change, Nice, Plan, SchedAttr, Setting, Target};
//!
//! let world = World::new(4);
//! let task = world.add_task(10, 1);
//! let (mut actuator, _) =
//!     Actuator::open_on(FakeKernel(world.clone()), Box::new(FakeMedium(world.clone())), Options::default()).unwrap();
//! let to = Setting::Sched(SchedAttr { nice: Nice::new(5), ..SchedAttr::DEFAULT });
//! let change = Change { target: Target::Task(task), to: to.clone(), why: "a try".into() };
//! let plan = Plan { changes: vec![change], ..Plan::default() };
//! assert_eq!(actuator.set(&plan, &|_| true).applied(), 1);
//! assert_eq!(world.sched(task), Some(to));
//! actuator.set(&Plan::default(), &|_| true);
//! assert_eq!(world.sched(task), Some(Setting::Sched(SchedAttr::DEFAULT)));
//! ```

mod medium;
mod state;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_base::{
    BootId, CpuSet, GroupRef, HostScheduler, Knob, NetKnob, SchedAttr, Setting, Target, TaskId,
};

use crate::kernel::{Born, Kernel, KernelError, Namespaces, TaskFacts};
use state::{State, Task};

/// What unwinds through the actuator when the world stops: catch it with `std::panic::catch_unwind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crashed;

/// What happens just before the operation it is planned for.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The process ends, as by `kill -9`; an append under way is left half-done.
    Crash,
    Fail(KernelError),
    /// A task ends.
    Vanish(u32),
    /// A task ends and its number goes to a newcomer, a child of pid 1 in another cgroup.
    Reuse(u32),
    /// Another manager sets a value, if the target is there.
    Meddle(Target, Setting),
    /// A task has a child of this number.
    Fork {
        /// The parent; nothing happens when it is not there.
        parent: u32,
        child: u32,
        /// The child is reparented to pid 1 at once.
        orphan: bool,
    },
    /// A task has a child of this number by `CLONE_PARENT`: its parent is the maker's.
    ForkBeside {
        /// The maker; nothing happens when it is not there.
        maker: u32,
        child: u32,
    },
    /// A thread calls `exec`: all others of its process end, and it takes over the main thread's number.
    Exec(u32),
    /// A link gets another name.
    RenameLink(String, String),
    /// A cgroup is removed, and perhaps made again under the same name.
    RemoveGroup(GroupRef, bool),
    /// Nothing can be written to the disk from now on.
    DiskFull,
}

/// Everything there is; clones are the same world. It outlives the actuator.
#[derive(Debug, Clone)]
pub struct World(Arc<Mutex<State>>);

#[derive(Debug, Clone)]
pub struct FakeKernel(pub World);

/// The world's disk, which holds one journal and one decision.
#[derive(Debug, Clone)]
pub struct FakeMedium(pub World);

impl World {
    /// A host with that many CPUs, pid 1 and nothing else.
    pub fn new(cpus: u32) -> Self {
        let state =
            State { boot: "boot-1".into(), ticks: 1000, cpus: CpuSet::first_n(cpus), ..State::default() };
        let world = Self(Arc::new(Mutex::new(state)));
        world.add_task(1, 0);
        world
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process of this number, with default values, in the cgroup `/PPID`.
    pub fn add_task(&self, tid: u32, ppid: u32) -> TaskId {
        self.add_thread(tid, tid, ppid)
    }

    pub fn add_thread(&self, tgid: u32, tid: u32, ppid: u32) -> TaskId {
        let mut state = self.lock();
        state.ticks += 1;
        let id = TaskId { tgid, tid, start_time: state.ticks };
        let facts = TaskFacts {
            id,
            ppid,
            process_group: tgid,
            session: 1,
            comm: format!("task-{tid}"),
            kernel_thread: false,
            policy: None,
            cgroup: format!("0::/{ppid}\n"),
            reaper: tid == 1,
            busy: false,
            image: state.tasks.get(&tgid).map_or(id.start_time, |leader| leader.facts.image),
        };
        let cpuset = state.cpus.clone();
        let task = Task { facts, sched: SchedAttr::DEFAULT, affinity: crate::all_cpus(), cpuset };
        state.tasks.insert(tid, task);
        id
    }

    /// Changes what is known of a task.
    pub fn change(&self, tid: u32, change: impl FnOnce(&mut TaskFacts)) {
        if let Some(task) = self.lock().tasks.get_mut(&tid) {
            change(&mut task.facts);
        }
    }

    /// Makes a task a thread of the kernel.
    pub fn make_kernel_thread(&self, tid: u32) {
        self.change(tid, |facts| facts.kernel_thread = true);
    }

    /// Restricts the cpuset of a task.
    pub fn set_cpuset(&self, tid: u32, cpus: CpuSet) {
        if let Some(task) = self.lock().tasks.get_mut(&tid) {
            task.cpuset = cpus;
        }
    }

    /// Moves a task to a cgroup.
    pub fn move_to(&self, tid: u32, cgroup: &str) {
        self.change(tid, |facts| facts.cgroup = format!("0::{cgroup}\n"));
    }

    pub fn happens(&self, event: Event) {
        self.lock().happen(event);
    }

    /// Adds a cgroup with these values.
    pub fn add_group(&self, path: &str, v2: bool, values: &[Setting]) -> GroupRef {
        let group = GroupRef { path: path.into(), v2 };
        let mut state = self.lock();
        state.ticks += 1;
        let id = state.ticks;
        let values = values.iter().map(|value| (value.knob(), value.clone())).collect();
        state.groups.insert(group.clone(), (id, values));
        group
    }

    /// Adds a property of the network; one of a link adds the link.
    pub fn add_net(&self, knob: &NetKnob, value: &str) {
        let mut state = self.lock();
        state.ticks += 1;
        let index = state.ticks;
        if let Some(link) = knob.link() {
            state.links.entry(link.to_owned()).or_insert(index);
        }
        state.net.insert(knob.clone(), value.to_owned());
    }

    /// Whether all cgroups can be seen from here.
    pub fn set_sees_every_cgroup(&self, sees: bool) {
        self.lock().sees_every_cgroup = sees;
    }

    /// From now on a task cannot be looked at where all of them are.
    pub fn hide(&self, tid: u32) {
        self.lock().hidden.insert(tid);
    }

    /// Looks at the world from other namespaces from now on.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        self.lock().namespaces = namespaces;
    }

    pub fn happen(&self, event: Event) {
        self.lock().happen(event);
    }

    /// Sets a value as the world's own doing, unrecorded.
    pub fn put(&self, target: &Target, to: &Setting) {
        let _ = self.lock().store(target, to);
    }

    /// Plans an event for an operation, counted from the world's beginning.
    pub fn at(&self, operation: u64, event: Event) {
        self.lock().events.entry(operation).or_default().push(event);
    }

    /// Forgets planned events; the disk has room again.
    pub fn calm(&self) {
        let mut state = self.lock();
        state.events.clear();
        state.disk_full = false;
    }

    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// How many writes to the disk were waited for.
    pub fn waits(&self) -> u64 {
        self.lock().waits
    }

    /// Gives a cgroup an owner that remembers what is written, as Docker does.
    pub fn own(&self, group: &GroupRef) {
        self.lock().owned.insert(group.clone(), BTreeMap::new());
    }

    /// Gives a cgroup an owner that remembers what is written until the next boot, as systemd does.
    pub fn own_until_boot(&self, group: &GroupRef) {
        self.own(group);
        self.lock().until_boot.insert(group.clone());
    }

    /// What the owner of a cgroup remembers.
    pub fn remembered(&self, group: &GroupRef, knob: Knob) -> Option<Setting> {
        self.lock().owned.get(group)?.get(&knob).cloned()
    }

    /// A task calls `exec`: same task, other program.
    pub fn run_another_program(&self, tid: u32) {
        let mut state = self.lock();
        state.ticks += 1;
        let now = state.ticks;
        if let Some(task) = state.tasks.get_mut(&tid) {
            task.facts.image = now;
        }
    }

    /// Starts another boot: same tasks and values, by chance.
    pub fn reboot(&self) {
        self.lock().boot.push('+');
    }

    pub fn written(&self) -> Vec<(Target, Setting)> {
        self.lock().written.clone()
    }

    pub fn journal(&self) -> Option<Vec<u8>> {
        self.lock().journal.clone()
    }

    /// What is remembered next to it.
    pub fn decision(&self) -> Option<Vec<u8>> {
        self.lock().decision.clone()
    }

    /// Puts other bytes in place of the journal.
    pub fn set_journal(&self, bytes: Option<Vec<u8>>) {
        self.lock().journal = bytes;
    }

    pub fn set_aside(&self) -> Vec<Vec<u8>> {
        self.lock().aside.clone()
    }

    /// Class, nice and slice of a task; `None` when it is gone.
    pub fn sched(&self, id: TaskId) -> Option<Setting> {
        let state = self.lock();
        state.tasks.get(&id.tid).filter(|t| t.facts.id == id).map(|t| Setting::Sched(t.sched))
    }

    /// All values of all tasks, cgroups, links and of the host (links are called `ifINDEX`); affinities as the mask asked for, so that all ones are told from a list.
    pub fn values(&self) -> BTreeMap<(Target, Knob), Setting> {
        let state = self.lock();
        let mut values = BTreeMap::new();
        for task in state.tasks.values() {
            let target = Target::Task(task.facts.id);
            values.insert((target.clone(), Knob::Sched), Setting::Sched(task.sched));
            values.insert((target, Knob::Affinity), Setting::Affinity(task.affinity.clone()));
        }
        for (group, (_, settings)) in &state.groups {
            for (knob, value) in settings {
                values.insert((Target::Group(group.clone()), *knob), value.clone());
            }
        }
        for (knob, value) in &state.net {
            let link = knob.link().and_then(|link| state.links.get(link));
            let knob = link.map_or_else(|| knob.clone(), |index| knob.on_link(&format!("if{index}")));
            values.insert((Target::Net(knob), Knob::Net), Setting::Net(value.clone()));
        }
        values.insert((Target::Host, Knob::Scheduler), Setting::Scheduler(state.scheduler.clone()));
        values
    }
}

fn stop() -> ! {
    std::panic::resume_unwind(Box::new(Crashed))
}

impl FakeKernel {
    fn begin(&self) -> Result<MutexGuard<'_, State>, KernelError> {
        let mut state = self.0.lock();
        let (result, crash) = state.step();
        if crash {
            drop(state);
            stop();
        }
        result.map(|()| state)
    }
}

impl Kernel for FakeKernel {
    fn boot_id(&mut self) -> Result<BootId, KernelError> {
        Ok(BootId(self.0.lock().boot.clone()))
    }

    fn now_ticks(&mut self) -> u64 {
        self.0.lock().ticks
    }

    fn read(&mut self, target: &Target, knob: Knob) -> Result<Setting, KernelError> {
        let state = self.begin()?;
        match (target, knob) {
            (Target::Task(id), Knob::Sched) => {
                state.tasks.get(&id.tid).map(|t| Setting::Sched(t.sched)).ok_or(KernelError::Gone)
            }
            (Target::Task(id), Knob::Affinity) => {
                state.tasks.get(&id.tid).map(|t| Setting::Affinity(t.effective())).ok_or(KernelError::Gone)
            }
            (Target::Group(group), knob) => {
                let (_, values) = state.groups.get(group).ok_or(KernelError::Gone)?;
                values.get(&knob).cloned().ok_or_else(|| KernelError::Unsupported(knob.name().into()))
            }
            (Target::Net(knob), _) => state.net.get(knob).cloned().map(Setting::Net).ok_or(KernelError::Gone),
            (Target::Host, Knob::Scheduler) => Ok(Setting::Scheduler(state.scheduler.clone())),
            _ => Err(KernelError::Unsupported(knob.name().into())),
        }
    }

    fn write(&mut self, target: &Target, to: &Setting) -> Result<(), KernelError> {
        let mut state = self.begin()?;
        let hit = match target {
            Target::Task(id) => Target::Task(state.tasks.get(&id.tid).ok_or(KernelError::Gone)?.facts.id),
            group => group.clone(),
        };
        let owner = match target {
            Target::Group(group) => state.owned.get_mut(group),
            Target::Task(_) | Target::Net(_) | Target::Host => None,
        };
        let is_owned = owner.map(|memory| memory.insert(to.knob(), to.clone())).is_some();
        // An idle unit and one with a weight are one property of systemd's.
        if let Target::Group(group) = target
            && state.until_boot.contains(group)
            && let Some(memory) = state.owned.get_mut(group)
        {
            match to.knob() {
                Knob::Weight => drop(memory.remove(&Knob::GroupIdle)),
                Knob::GroupIdle => drop(memory.remove(&Knob::Weight)),
                _ => {}
            }
        }
        // A scheduler of another program's can neither be replaced nor ended.
        if let (Setting::Scheduler(to), HostScheduler::Other(name)) = (to, &state.scheduler) {
            return match to {
                HostScheduler::Kernel => Ok(()),
                _ => Err(KernelError::Invalid(format!("{name} is loaded"))),
            };
        }
        match state.store(target, to) {
            Err(KernelError::Gone) if is_owned => {}
            other => other?,
        }
        // With setpriority, for a real-time class keeps the nice value there was.
        if let (Target::Task(id), Setting::Sched(attr)) = (target, to)
            && let Some(task) = state.tasks.get_mut(&id.tid)
        {
            task.sched.nice = attr.nice;
        }
        state.written.push((hit, to.clone()));
        Ok(())
    }

    fn identity(&mut self, tid: u32) -> Result<TaskFacts, KernelError> {
        let state = self.begin()?;
        let Some(task) = state.tasks.get(&tid) else {
            return state.zombies.get(&tid).cloned().ok_or(KernelError::Gone);
        };
        Ok(TaskFacts { policy: Some(task.sched.policy), ..task.facts.clone() })
    }

    /// None of the made-up numbers, one of which this process may happen to have.
    fn own_process(&self) -> u32 {
        u32::MAX
    }

    fn namespaces(&mut self) -> Namespaces {
        self.0.lock().namespaces
    }

    fn identity_of(&mut self, target: &Target, _knob: Knob) -> Result<u64, KernelError> {
        let state = self.begin()?;
        match target {
            Target::Group(group) => state.groups.get(group).map(|(id, _)| *id).ok_or(KernelError::Gone),
            Target::Net(knob) => match knob.link() {
                Some(link) => state.links.get(link).copied().ok_or(KernelError::Gone),
                None => Ok(0),
            },
            Target::Task(_) | Target::Host => Ok(0),
        }
    }

    fn every_cgroup(&mut self, _group: &GroupRef, _knob: Knob) -> Option<HashSet<u64>> {
        let state = self.0.lock();
        state.sees_every_cgroup.then(|| state.groups.values().map(|(id, _)| *id).collect())
    }

    fn renamed(&mut self, target: &Target, identity: u64) -> Option<Target> {
        let Target::Net(knob) = target else { return None };
        let state = self.0.lock();
        let name = state.links.iter().find(|(_, index)| **index == identity)?.0;
        knob.link().map(|_| Target::Net(knob.on_link(name)))
    }

    fn widest_affinity(&mut self, id: TaskId) -> Result<CpuSet, KernelError> {
        let state = self.begin()?;
        state.tasks.get(&id.tid).map(|t| t.cpuset.clone()).ok_or(KernelError::Gone)
    }

    fn has_task_slice(&mut self) -> bool {
        true
    }

    fn births(&mut self) -> Option<u64> {
        Some(self.0.lock().births)
    }

    fn tasks_born_since(
        &mut self,
        since_ticks: u64,
        _processes: &BTreeSet<u32>,
    ) -> Result<Born, KernelError> {
        let state = self.begin()?;
        let young = state.tasks.values().filter(|t| t.facts.id.start_time >= since_ticks);
        let (hidden, seen): (Vec<_>, Vec<_>) = young.partition(|t| state.hidden.contains(&t.facts.id.tid));
        let facts = |t: &Task| TaskFacts { policy: Some(t.sched.policy), ..t.facts.clone() };
        let error = || KernelError::Io { path: "stat".to_owned(), error: "cannot be read".to_owned() };
        Ok(Born { tasks: seen.into_iter().map(facts).collect(), unseen: (!hidden.is_empty()).then(error) })
    }

    fn outlives_boot(&mut self, target: &Target, knob: Knob) -> bool {
        self.outlives_group(target, knob)
            && matches!(target, Target::Group(group) if !self.0.lock().until_boot.contains(group))
    }

    fn outlives_group(&mut self, target: &Target, _knob: Knob) -> bool {
        matches!(target, Target::Group(group) if self.0.lock().owned.contains_key(group))
    }

    fn pause(&mut self, _time: Duration) {}
}
