//! A host that is played, for tests of what an actuator does to it.
#![allow(dead_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use evenkeel_actuate::fake::{Crashed, Event, FakeKernel, FakeMedium, World};
use evenkeel_actuate::{ActuateError, Actuator, Options, Recovery, RestoreReport, SetReport, restore_on};
use evenkeel_base::{
    Change, CpuQuota, CpuSet, GroupRef, NetKnob, Nice, Plan, SchedAttr, SchedPolicy, Setting, Target, TaskId,
};

/// Threads of the host.
pub const TASKS: [u32; 6] = [10, 11, 12, 13, 14, 15];

/// Of those threads that have one among them: their parent.
pub const PARENTS: [(u32, u32); 3] = [(12, 10), (14, 11), (15, 12)];

/// The thread that is not a main thread; it belongs to the first process.
pub const THREAD: u32 = 13;

/// The link there is, named as [`World::values`] names it.
pub const LINK: &str = "if1013";

pub struct Host {
    pub world: World,
    pub tasks: Vec<TaskId>,
    pub groups: Vec<GroupRef>,
    pub nets: Vec<NetKnob>,
    /// Never to be written: kernel thread, real-time, out of scope, pid 1.
    pub forbidden: Vec<Target>,
}

pub fn host() -> Host {
    let world = World::new(4);
    let mut tasks = vec![world.add_task(10, 1), world.add_task(11, 1), world.add_task(12, 10)];
    tasks.extend([world.add_thread(10, 13, 1), world.add_task(14, 11), world.add_task(15, 12)]);
    // 11 was restricted by its user, 14 reniced, 15 sits in a cpuset
    world.put(&Target::Task(tasks[1]), &Setting::Affinity("0-2".parse().unwrap()));
    let reniced = SchedAttr { nice: Nice::new(3), slice_ns: Some(7_000_000), ..SchedAttr::DEFAULT };
    world.put(&Target::Task(tasks[4]), &Setting::Sched(reniced));
    world.set_cpuset(15, "2-3".parse().unwrap());
    // No plan gives anybody this value: a child of it could not be told from one of its process's tuned main thread.
    let reniced = SchedAttr { nice: Nice::new(12), ..SchedAttr::DEFAULT };
    world.put(&Target::Task(tasks[3]), &Setting::Sched(reniced));
    let kthread = world.add_task(20, 0);
    world.make_kernel_thread(20);
    let fifo = world.add_task(21, 1);
    let realtime = SchedAttr { policy: SchedPolicy::Fifo, rt_priority: 5, ..SchedAttr::DEFAULT };
    world.put(&Target::Task(fifo), &Setting::Sched(realtime));
    let outsider = world.add_task(22, 1);
    let init = TaskId { tgid: 1, tid: 1, start_time: 1001 };
    let v1 = [Setting::Weight(512), Setting::GroupIdle(false), Setting::Quota(CpuQuota::UNLIMITED)];
    let v2 = [Setting::Weight(100), Setting::GroupIdle(false), Setting::Cpuset(CpuSet::new())];
    let groups = vec![world.add_group("/a", false, &v1), world.add_group("/b", true, &v2)];
    // Its index, too, is 1015.
    let queue = NetKnob::RpsCpus { link: LINK.into(), queue: 0 };
    let nets = vec![queue, NetKnob::SockFlowEntries];
    world.add_net(&nets[0], "1");
    world.add_net(&nets[1], "0");
    let fenced = world.add_group("/out", false, &v1);
    let mut forbidden: Vec<Target> = [kthread, fifo, outsider, init].map(Target::Task).to_vec();
    forbidden.push(Target::Group(fenced));
    Host { world, tasks, groups, nets, forbidden }
}

/// A host, and an actuator at work on it.
pub fn opened() -> (Host, Actuator<FakeKernel>) {
    let host = host();
    let (actuator, _) = host.open().unwrap();
    (host, actuator)
}

impl Host {
    pub fn task(&self, number: usize) -> Target {
        Target::Task(self.tasks[number])
    }

    pub fn group(&self, number: usize) -> Target {
        Target::Group(self.groups[number].clone())
    }

    /// A property of the link.
    pub fn net(&self) -> Target {
        Target::Net(self.nets[0].clone())
    }

    /// Acts, while something happens at this of its operations; `None` if it had no such operation.
    pub fn meanwhile<T>(&self, at: u64, event: Event, act: impl FnOnce() -> T) -> Option<T> {
        let at = self.world.operations() + at;
        self.world.at(at, event);
        let done = act();
        (self.world.operations() > at).then_some(done)
    }

    pub fn open(&self) -> Result<(Actuator<FakeKernel>, Recovery), ActuateError> {
        self.open_with(Options { allow_realtime: true, allow_scx: true, ..Options::default() })
    }

    pub fn open_with(&self, options: Options) -> Result<(Actuator<FakeKernel>, Recovery), ActuateError> {
        let medium = Box::new(FakeMedium(self.world.clone()));
        Actuator::open_on(FakeKernel(self.world.clone()), medium, options)
    }

    pub fn restore(&self) -> Result<Recovery, ActuateError> {
        restore_on(&mut FakeKernel(self.world.clone()), &mut FakeMedium(self.world.clone()))
    }

    pub fn in_scope(change: &Change) -> bool {
        let target = &change.target;
        !matches!(target, Target::Task(id) if id.tid == 22)
            && !matches!(target, Target::Group(group) if group.path == "/out")
    }

    /// Opens, sets the plans one after the other, closes. The restore report if it came that far.
    pub fn live(&self, plans: &[Plan]) -> Result<(Vec<SetReport>, RestoreReport), Crashed> {
        catch_unwind(AssertUnwindSafe(|| match self.open() {
            Ok((mut actuator, _)) => {
                let sets = plans.iter().map(|plan| actuator.set(plan, &Self::in_scope)).collect();
                (sets, actuator.close())
            }
            Err(_) => (Vec::new(), RestoreReport::default()),
        }))
        .map_err(|payload| *payload.downcast::<Crashed>().expect("only crashes unwind"))
    }
}

pub fn batch(nice: i32) -> Setting {
    Setting::Sched(SchedAttr { policy: SchedPolicy::Batch, nice: Nice::new(nice), ..SchedAttr::DEFAULT })
}

pub fn all(_: &Change) -> bool {
    true
}

pub fn plan(changes: Vec<(Target, Setting)>) -> Plan {
    let change = |(target, to)| Change { target, to, why: String::new() };
    Plan { changes: changes.into_iter().map(change).collect(), ..Plan::default() }
}
