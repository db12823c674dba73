//! Tasks that are pinned for an instant by somebody else of this process: put back after a crash, and nobody else's pin is
//! taken for ours.

use evenkeel_actuate::fake::{Event, FakeKernel, FakeMedium, World};
use evenkeel_actuate::{Actuator, Options, all_cpus, restore_on};
use evenkeel_base::{Change, CpuSet, Knob, Plan, SchedAttr, SchedPolicy, Setting, Target, TaskId};

fn actuator(world: &World) -> Actuator<FakeKernel> {
    let medium = Box::new(FakeMedium(world.clone()));
    Actuator::open_on(FakeKernel(world.clone()), medium, Options::default()).unwrap().0
}

fn restore(world: &World) {
    restore_on(&mut FakeKernel(world.clone()), &mut FakeMedium(world.clone())).unwrap();
}

fn affinity(world: &World, id: TaskId) -> Setting {
    world.values()[&(Target::Task(id), Knob::Affinity)].clone()
}

fn pin(world: &World, id: TaskId, cpu: u32) {
    world.put(&Target::Task(id), &Setting::Affinity(CpuSet::single(cpu)));
}

#[test]
fn killed_in_the_instant_of_a_loan_it_goes_back() {
    let world = World::new(4);
    let (free, few) = (world.add_task(10, 1), world.add_task(11, 1));
    world.put(&Target::Task(few), &Setting::Affinity("0-2".parse().unwrap()));
    let lent = {
        let mut actuator = actuator(&world);
        let lent = actuator.lend(&[free, few], &CpuSet::first_n(4)).unwrap();
        assert!(world.written().is_empty(), "lending writes nothing but the journal");
        lent
        // Dropped: what a kill leaves.
    };
    let originals: Vec<_> = lent.iter().map(|lent| (lent.id, lent.original.clone())).collect();
    assert_eq!(originals, [(free, all_cpus()), (few, "0-2".parse().unwrap())]);
    pin(&world, free, 3);
    pin(&world, few, 1);
    restore(&world);
    assert_eq!(affinity(&world, free), Setting::Affinity(all_cpus()));
    assert_eq!(affinity(&world, few), Setting::Affinity("0-2".parse().unwrap()));
    assert_eq!(world.journal(), None);
}

#[test]
fn only_a_pin_that_a_loan_can_have_left_goes_back() {
    let world = World::new(4);
    let (here, both) = (world.add_task(10, 1), world.add_task(11, 1));
    actuator(&world).lend(&[here, both], &CpuSet::first_n(2)).unwrap();
    pin(&world, here, 3);
    let two = Setting::Affinity("0-1".parse().unwrap());
    world.put(&Target::Task(both), &two);
    restore(&world);
    assert_eq!(affinity(&world, here), Setting::Affinity(CpuSet::single(3)), "CPU 3 was never lent to");
    assert_eq!(affinity(&world, both), two, "two CPUs are no pin of ours");
}

#[test]
fn without_a_crash_a_pin_is_its_owners() {
    let world = World::new(4);
    let id = world.add_task(10, 1);
    let mut actuator = actuator(&world);
    actuator.lend(&[id], &CpuSet::first_n(4)).unwrap();
    pin(&world, id, 1);
    assert!(actuator.lend(&[id], &CpuSet::first_n(4)).unwrap().is_empty(), "it is not lent a second time");
    actuator.set(&Plan::default(), &|_| true);
    actuator.close();
    assert_eq!(affinity(&world, id), Setting::Affinity(CpuSet::single(1)));
}

#[test]
fn what_could_not_be_unpinned_goes_back_with_the_next_plan() {
    let world = World::new(4);
    let id = world.add_task(10, 1);
    let mut actuator = actuator(&world);
    actuator.lend(&[id], &CpuSet::first_n(4)).unwrap();
    pin(&world, id, 1);
    actuator.suspect(id);
    actuator.set(&Plan::default(), &|_| true);
    assert_eq!(affinity(&world, id), Setting::Affinity(all_cpus()));
    // As it was found it is lent again; not while that is in doubt.
    assert_eq!(actuator.lend(&[id], &CpuSet::first_n(4)).unwrap().len(), 1);
    actuator.suspect(id);
    assert!(actuator.lend(&[id], &CpuSet::first_n(4)).unwrap().is_empty());
}

#[test]
fn a_child_that_pins_itself_is_not_taken_for_ours() {
    let world = World::new(4);
    let parent = world.add_task(10, 1);
    let mut actuator = actuator(&world);
    actuator.lend(&[parent], &CpuSet::first_n(4)).unwrap();
    let child = world.add_task(12, 10);
    pin(&world, child, 2);
    actuator.set(&Plan::default(), &|_| true);
    actuator.close();
    assert_eq!(affinity(&world, child), Setting::Affinity(CpuSet::single(2)));
}

#[test]
fn who_may_not_be_touched_is_not_lent() {
    let world = World::new(4);
    let (kthread, fifo) = (world.add_task(20, 0), world.add_task(21, 1));
    world.make_kernel_thread(20);
    let realtime = SchedAttr { policy: SchedPolicy::Fifo, rt_priority: 5, ..SchedAttr::DEFAULT };
    world.put(&Target::Task(fifo), &Setting::Sched(realtime));
    let gone = TaskId { tgid: 77, tid: 77, start_time: 1 };
    assert!(actuator(&world).lend(&[kthread, fifo, gone], &CpuSet::first_n(4)).unwrap().is_empty());
}

#[test]
fn no_loan_without_a_journal() {
    let world = World::new(4);
    let id = world.add_task(10, 1);
    let mut lender = actuator(&world);
    for operation in world.operations()..world.operations() + 20 {
        world.at(operation, Event::DiskFull);
    }
    assert!(lender.lend(&[id], &CpuSet::first_n(4)).is_err());
}

#[test]
fn who_leaves_settings_in_place_leaves_loans_known() {
    let world = World::new(4);
    let task = world.add_task(10, 1);
    let mut actuator = actuator(&world);
    actuator.lend(&[task], &CpuSet::first_n(4)).unwrap();
    actuator.leave().unwrap();
    pin(&world, task, 3);
    restore(&world);
    assert_eq!(affinity(&world, task), Setting::Affinity(all_cpus()));
    assert_eq!(world.journal(), None);
}

#[test]
fn a_thread_that_took_the_main_threads_place_is_lent_as_that() {
    let world = World::new(4);
    let main = world.add_task(10, 1);
    let thread = world.add_thread(10, 11, 1);
    let mut actuator = actuator(&world);
    actuator.lend(&[thread], &CpuSet::first_n(4)).unwrap();
    let to = Setting::Affinity("0-1".parse().unwrap());
    let change = Change { target: Target::Task(thread), to, why: String::new() };
    actuator.set(&Plan { changes: vec![change], ..Plan::default() }, &|_| true);
    world.happen(Event::Exec(11));
    actuator.set(&Plan::default(), &|_| true);
    assert_eq!(affinity(&world, main), Setting::Affinity(all_cpus()));
    assert_eq!(actuator.lend(&[main], &CpuSet::first_n(4)).unwrap().len(), 1);
    drop(actuator);
    pin(&world, main, 3);
    restore(&world);
    assert_eq!(affinity(&world, main), Setting::Affinity(all_cpus()));
    assert_eq!(world.journal(), None);
}
