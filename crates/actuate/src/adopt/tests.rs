//! Who is taken for a descendant of a tuned task, and who is not, rule by rule.

use super::*;
use crate::fake::{Event, FakeKernel, World};
use evenkeel_base::{Nice, SchedPolicy};

fn nice(nice: i32) -> Setting {
    Setting::Sched(SchedAttr { nice: Nice::new(nice), ..SchedAttr::DEFAULT })
}

fn batch(nice: i32) -> Setting {
    Setting::Sched(SchedAttr { policy: SchedPolicy::Batch, nice: Nice::new(nice), ..SchedAttr::DEFAULT })
}

fn cpus(cpus: &str) -> Setting {
    Setting::Affinity(cpus.parse().unwrap())
}

/// A host in which process 10 is a child of 5.
fn world() -> (World, TaskId) {
    let world = World::new(4);
    world.add_task(5, 1);
    let id = world.add_task(10, 5);
    (world, id)
}

fn kernel(world: &World) -> FakeKernel {
    FakeKernel(world.clone())
}

/// What is known of a task that gets a value now.
fn tuned(world: &World, id: TaskId, original: Setting, ours: Setting) -> Entry {
    let mut kernel = kernel(world);
    let facts = kernel.identity(id.tid).unwrap();
    let since = (kernel.now_ticks(), ancestors(&mut kernel, &facts).unwrap());
    let origin = origin_of(&mut kernel, &facts, ours.knob(), since).unwrap();
    world.put(&Target::Task(id), &ours);
    Entry {
        wrote: vec![ours.clone()],
        state: State::Ours(ours),
        ..Entry::new(Target::Task(id), original, origin)
    }
}

fn fork(world: &World, parent: u32, child: u32) -> TaskId {
    born(world, child, Event::Fork { parent, child, orphan: false })
}

fn orphan(world: &World, parent: u32, child: u32) -> TaskId {
    born(world, child, Event::Fork { parent, child, orphan: true })
}

fn beside(world: &World, maker: u32, child: u32) -> TaskId {
    born(world, child, Event::ForkBeside { maker, child })
}

fn born(world: &World, child: u32, event: Event) -> TaskId {
    world.happen(event);
    kernel(world).identity(child).unwrap().id
}

/// Who is found, with what each is to have.
fn found(world: &World, entries: &[Entry]) -> Vec<(u32, Setting)> {
    let since = entries.iter().map(|entry| entry.origin.since_ticks).min().unwrap();
    let found = find(&mut kernel(world), entries, since).unwrap().entries;
    let of = |entry: Entry| {
        let present = kernel(world).read(&entry.target, entry.knob).unwrap();
        assert_eq!((&entry.wrote, &entry.state), (&vec![present.clone()], &State::Ours(present)));
        match entry.target {
            Target::Task(id) => (id.tid, entry.original),
            other => panic!("{other:?}"),
        }
    };
    found.into_iter().map(of).collect()
}

#[test]
fn a_child_has_our_value_from_its_parent_if_that_had_it_by_then() {
    let (world, id) = world();
    let first = tuned(&world, world.add_task(20, 1), nice(1), batch(1));
    let child = fork(&world, 10, 100);
    let mut entry = tuned(&world, id, nice(3), batch(5));
    // By its own choice.
    world.put(&Target::Task(child), &batch(5));
    assert_eq!(found(&world, &[first.clone(), entry.clone()]), []);
    // A tick is long: what was written in the tick of its birth may be older than it.
    entry.origin.since_ticks = child.start_time;
    assert_eq!(found(&world, &[first.clone(), entry.clone()]), [(100, nice(3))]);
    // Whatever program it runs, what it has as a whole is ours.
    world.run_another_program(100);
    assert_eq!(found(&world, &[first.clone(), entry.clone()]), [(100, nice(3))]);
    // What passed through a parent cannot be younger than that.
    let grandchild = fork(&world, 100, 200);
    world.put(&Target::Task(child), &nice(9));
    assert_eq!(found(&world, &[first.clone(), entry.clone()]), [(200, nice(3))]);
    entry.origin.since_ticks = grandchild.start_time;
    assert_eq!(found(&world, &[first, entry]), []);
}

#[test]
fn children_of_children_and_threads_are_found_with_their_own_familys_original() {
    let (world, id) = world();
    let other = |tid: u32, original: i32| tuned(&world, world.add_task(tid, 5), nice(original), batch(5));
    let entries = [other(20, 7), tuned(&world, id, nice(3), batch(5)), other(21, 8)];
    for (parent, child) in [(10, 100), (100, 200), (200, 300), (300, 400)] {
        fork(&world, parent, child);
    }
    let thread = world.add_thread(10, 11, 5);
    world.put(&Target::Task(thread), &batch(5));
    // That it belongs to the process is enough.
    world.run_another_program(11);
    let originals: Vec<_> = [100, 200, 300, 400, 11].map(|tid| (tid, nice(3))).into();
    assert_eq!(found(&world, &entries), originals);
    // Neither threads of the kernel nor pid 1, whatever they have.
    world.make_kernel_thread(400);
    world.put(&Target::Task(kernel(&world).identity(1).unwrap().id), &batch(5));
    world.change(1, |facts| (facts.ppid, facts.id.start_time) = (10, thread.start_time));
    assert_eq!(found(&world, &entries)[3..], originals[4..]);
}

#[test]
fn what_is_ours_in_part_goes_back_in_a_copy_of_the_tuned_program_only() {
    let (world, id) = world();
    let entries = [tuned(&world, id, nice(3), batch(0))];
    let child = fork(&world, 10, 100);
    world.put(&Target::Task(child), &batch(9));
    assert_eq!(found(&world, &entries), [(100, nice(9))], "its class is ours, its nice value is its own");
    world.run_another_program(100);
    assert_eq!(found(&world, &entries), []);
    // A part that is what every task has was there without us.
    let child = fork(&world, 10, 101);
    world.put(&Target::Task(child), &nice(0));
    assert_eq!(found(&world, &entries), []);
}

#[test]
fn affinities_are_judged_by_what_the_cpuset_leaves_of_them() {
    let (world, id) = world();
    let entries = [tuned(&world, id, cpus("0-2"), cpus("0-1"))];
    fork(&world, 10, 100);
    world.set_cpuset(100, "1-3".parse().unwrap());
    assert_eq!(found(&world, &entries), [(100, cpus("0-2"))]);
}

#[test]
fn a_child_made_beside_its_maker_is_told_by_its_program() {
    let (world, id) = world();
    let entry = tuned(&world, id, nice(3), batch(5));
    let entries = [entry.clone()];
    let child = beside(&world, 10, 100);
    assert_eq!(found(&world, &entries), [(100, nice(3))]);
    // A child of it, whatever it has made of itself since.
    fork(&world, 100, 200);
    world.put(&Target::Task(child), &nice(9));
    assert_eq!(found(&world, &entries), [(200, nice(3))]);
    world.happen(Event::Vanish(200));
    world.put(&Target::Task(child), &batch(5));
    // Elsewhere, or with what the maker had, it is nobody's.
    world.move_to(100, "/elsewhere");
    assert_eq!(found(&world, &entries), []);
    world.move_to(100, "/5");
    let both = Entry { wrote: vec![batch(5), nice(3)], ..entry.clone() };
    world.put(&Target::Task(child), &nice(3));
    assert_eq!(found(&world, std::slice::from_ref(&both)), []);
    world.put(&Target::Task(child), &batch(5));
    // Another program with the maker's name: it cannot be told, and that is said.
    let doubts = |world: &World| find(&mut kernel(world), &entries, 0).unwrap().doubtful.len();
    assert_eq!(doubts(&world), 0);
    world.run_another_program(100);
    assert_eq!((found(&world, &entries), doubts(&world)), (vec![], 1));
    world.change(100, |facts| facts.comm = "another".into());
    assert_eq!(doubts(&world), 0);
    // The maker ran another program by then itself.
    world.run_another_program(10);
    beside(&world, 10, 101);
    assert_eq!(found(&world, &entries), [(101, nice(3))]);
    // Whoever has the maker's number now is not the maker.
    world.happen(Event::Vanish(10));
    world.happen(Event::Vanish(101));
    let stranger = world.add_task(10, 5);
    world.put(&Target::Task(stranger), &batch(5));
    beside(&world, 10, 102);
    world.put(&Target::Task(stranger), &nice(0));
    assert_eq!(found(&world, &entries), []);
}

#[test]
fn children_of_somebody_else_who_lives_are_nobodys() {
    let (world, id) = world();
    for (parent, child) in [(10, 40), (40, 41)] {
        fork(&world, parent, child);
    }
    let entries = [tuned(&world, id, nice(3), batch(5))];
    let child = fork(&world, 41, 100);
    world.put(&Target::Task(child), &batch(5));
    assert_eq!(found(&world, &entries), []);
    // 41 takes in orphans, but none of another family.
    world.change(41, |facts| facts.reaper = true);
    assert_eq!(found(&world, &entries), []);
    // 5 is an ancestor that does.
    world.change(5, |facts| facts.reaper = true);
    world.run_another_program(100);
    world.change(100, |facts| facts.ppid = 5);
    assert_eq!(found(&world, &entries), [(100, nice(3))]);
}

#[test]
fn orphans_belong_to_their_closest_relation() {
    let (world, _) = world();
    let made = |tid: u32| {
        let id = fork(&world, 10, tid);
        world.change(tid, |facts| (facts.cgroup, facts.session) = ("0::/one\n".into(), 1));
        id
    };
    let one = tuned(&world, made(11), nice(1), batch(5));
    for (change, tid) in [
        (|facts: &mut TaskFacts| facts.process_group = 77) as fn(&mut TaskFacts),
        |facts| facts.session = 77,
        |facts| facts.comm = "another".into(),
    ]
    .into_iter()
    .zip(12..)
    {
        let id = made(tid);
        world.change(tid, change);
        let other = tuned(&world, id, nice(2), batch(5));
        orphan(&world, 11, 100);
        // Of equals the last one counts.
        assert_eq!(found(&world, &[one.clone(), other]), [(100, nice(1))], "{tid}");
        world.happen(Event::Vanish(tid));
    }
    world.move_to(100, "/elsewhere");
    assert_eq!(found(&world, std::slice::from_ref(&one)), []);
    world.move_to(100, "/one");
    let late = Entry { origin: Origin { since_ticks: u64::MAX, ..one.origin.clone() }, ..one.clone() };
    let first = tuned(&world, made(20), nice(1), batch(1));
    orphan(&world, 11, 100);
    assert_eq!(found(&world, &[first, late]), [], "born before");
}

/// An orphan with what every task has, in the process group of 10, which was given that.
fn ordinary(change: impl Fn(&World, &mut Vec<Entry>)) -> Vec<(u32, Setting)> {
    let (world, id) = world();
    let mates = [fork(&world, 10, 12), fork(&world, 10, 13)];
    mates.iter().for_each(|mate| world.put(&Target::Task(*mate), &nice(3)));
    let mut entries = vec![tuned(&world, id, nice(3), nice(0))];
    orphan(&world, 10, 100);
    change(&world, &mut entries);
    found(&world, &entries).into_iter().filter(|(tid, _)| *tid == 100).collect()
}

#[test]
fn orphans_with_what_every_task_has_are_told_by_their_process_group() {
    let id = |world: &World, tid: u32| kernel(world).identity(tid).unwrap().id;
    let put = |world: &World, tid: u32, to: Setting| world.put(&Target::Task(id(world, tid)), &to);
    let adopted = vec![(100, nice(3))];
    assert_eq!(ordinary(|_, _| {}), adopted);
    assert_eq!(ordinary(|world, _| put(world, 12, nice(0))), [], "it may be a child of 12");
    assert_eq!(ordinary(|world, _| put(world, 5, nice(0))), adopted, "5 is of another group");
    let young = |world: &World, entries: &mut Vec<Entry>| {
        put(world, 12, nice(0));
        world.run_another_program(12);
        world.change(12, |facts| facts.ppid = 5);
        entries[0].origin.since_ticks = id(world, 12).start_time;
    };
    assert_eq!(ordinary(young), adopted, "12 is no older than the change");
    // A mate that is tuned itself says nothing, unless that is what it had.
    let tune = |world: &World, entries: &mut Vec<Entry>, original: i32| {
        let entry = tuned(world, id(world, 12), nice(original), nice(0));
        entries.push(Entry { origin: Origin { since_ticks: 1, ..entry.origin.clone() }, ..entry });
    };
    assert_eq!(ordinary(|world, entries| tune(world, entries, 4)), adopted);
    assert_eq!(ordinary(|world, entries| tune(world, entries, 0)), []);
    assert_eq!(ordinary(|world, _| world.move_to(100, "/elsewhere")), []);
    assert_eq!(ordinary(|world, _| world.change(100, |facts| facts.session = 77)), []);
    let late = |world: &World, entries: &mut Vec<Entry>| {
        entries.push(tuned(world, id(world, 5), nice(3), batch(7)));
        entries[1].origin.since_ticks = 1;
        entries[0].origin.since_ticks = id(world, 100).start_time + 1;
    };
    assert_eq!(ordinary(late), [], "born before");
    let no_leader = |world: &World, entries: &mut Vec<Entry>| {
        entries[0].target = Target::Task(id(world, 12));
        put(world, 10, nice(3));
    };
    assert_eq!(ordinary(no_leader), []);
    // The same of CPUs: all of them are what every task has.
    let (world, id) = world();
    let entries = [tuned(&world, id, cpus("0-2"), cpus("0-3"))];
    orphan(&world, 10, 100);
    assert_eq!(found(&world, &entries), [(100, cpus("0-2"))]);
    world.move_to(100, "/elsewhere");
    assert_eq!(found(&world, &entries), []);
    let child = fork(&world, 10, 11);
    let entries = [tuned(&world, child, cpus("0-2"), cpus("0-1"))];
    orphan(&world, 11, 100);
    assert_eq!(found(&world, &entries), [(100, cpus("0-2"))], "some of them are not");
}

#[test]
fn whose_parent_ends_meanwhile_is_an_orphan_or_unseen() {
    for at in 0..20 {
        let (world, id) = world();
        world.change(5, |facts| facts.reaper = true);
        let entries = [tuned(&world, id, nice(3), batch(5))];
        fork(&world, 10, 100);
        world.run_another_program(100);
        world.change(100, |facts| facts.ppid = 5);
        world.at(world.operations() + at, Event::Vanish(5));
        let found = find(&mut kernel(&world), &entries, 0).unwrap();
        let is_unseen = found.unseen.iter().any(|who| who.starts_with("sched of 100"));
        assert!(found.entries.len() == 1 || is_unseen, "{at}: {found:?}");
    }
}

#[test]
fn who_could_not_be_looked_at_is_unseen_and_no_reason_to_adopt_others() {
    let (world, id) = world();
    let entries = [tuned(&world, id, nice(3), batch(5))];
    fork(&world, 10, 100);
    fork(&world, 10, 101);
    world.hide(101);
    let found = find(&mut kernel(&world), &entries, 0).unwrap();
    assert_eq!((found.entries.len(), found.unseen.len()), (1, 1), "{found:?}");
    // 12 could have passed on what every task has, were it not hidden.
    let hidden = |world: &World, _: &mut Vec<Entry>| world.hide(12);
    assert_eq!(ordinary(|_, _| {}), [(100, nice(3))]);
    assert_eq!(ordinary(hidden), []);
}

#[test]
fn ancestors_are_followed_upwards_once_and_not_for_ever() {
    let of = |world: &World, tid: u32| {
        let mut kernel = kernel(world);
        let facts = kernel.identity(tid).unwrap();
        ancestors(&mut kernel, &facts).unwrap()
    };
    let (world, _) = world();
    world.add_task(11, 10);
    assert_eq!((of(&world, 11), of(&world, 5)), (vec![10, 5], vec![]));
    world.change(5, |facts| facts.ppid = 10);
    assert_eq!(of(&world, 11), [10, 5], "a circle, by a number that was used again meanwhile");
    for tid in 100..200 {
        world.add_task(tid, tid - 1);
    }
    assert_eq!(of(&world, 199).len(), 64);
}

/// Thread 11 of process 10, tuned, has called `exec`; what is known of it, after a change.
fn followed(
    process: Option<u32>,
    change: impl Fn(&World, &mut Vec<Entry>),
) -> (World, Vec<usize>, Vec<Entry>) {
    let (world, main) = world();
    world.put(&Target::Task(main), &nice(1));
    let thread = world.add_thread(10, 11, 5);
    let mut entries = vec![tuned(&world, thread, nice(3), batch(5))];
    entries[0].journaled = 1;
    assert_eq!(entries[0].origin.leader, Some(nice(1)));
    world.happen(Event::Exec(11));
    change(&world, &mut entries);
    let followed = follow_execs(&mut kernel(&world), &mut entries, process);
    assert_eq!(followed.unseen, None);
    (world, followed.places, entries)
}

#[test]
fn a_thread_that_called_exec_is_its_main_thread_from_then_on() {
    let (world, places, entries) = followed(None, |_, _| {});
    let main = kernel(&world).identity(10).unwrap();
    let (old, new) = (&entries[0], &entries[1]);
    assert_eq!((places, &old.state, &new.state), (vec![1], &State::Gone, &State::Ours(batch(5))));
    assert_eq!((&new.target, &new.original, &new.wrote), (&Target::Task(main.id), &nice(3), &vec![batch(5)]));
    assert_eq!((new.journaled, &new.origin.leader), (0, &None), "the journal does not know yet");
    assert_eq!((&new.origin.comm, new.origin.image), (&main.comm, main.image));
    assert_eq!(new.origin.since_ticks, old.origin.since_ticks);
    for (process, places) in [(Some(10), vec![1]), (Some(11), vec![])] {
        assert_eq!(followed(process, |_, _| {}).1, places);
    }
    // Restored before, and the main thread got it after all.
    let (_, places, entries) = followed(None, |_, entries| entries[0].state = State::Back);
    assert_eq!((places, &entries[1].state), (vec![1], &State::Ours(batch(5))));
    // As old as the main thread is old enough; whoever got the number later is another one.
    let same_tick = |world: &World, entries: &mut Vec<Entry>| {
        entries[0].target = Target::Task(TaskId { tid: 11, ..kernel(world).identity(10).unwrap().id });
    };
    assert_eq!(followed(None, same_tick).1, [1]);
    let stranger = |world: &World, _: &mut Vec<Entry>| {
        world.happen(Event::Vanish(10));
        let id = world.add_task(10, 5);
        world.put(&Target::Task(id), &batch(5));
    };
    assert!(followed(None, stranger).1.is_empty());
    // Alive it has called nothing, whatever the main thread has.
    let alive = |world: &World, entries: &mut Vec<Entry>| {
        let id = world.add_thread(10, 11, 5);
        entries[0].target = Target::Task(id);
    };
    assert!(followed(None, alive).1.is_empty());
    // What the main thread had before is its own, and so is what the thread was found with.
    assert!(followed(None, |_, entries| entries[0].origin.leader = Some(batch(5))).1.is_empty());
    assert!(followed(None, |_, entries| entries[0].original = batch(5)).1.is_empty());
    assert!(followed(None, |_, entries| entries[0].wrote = vec![batch(6)]).1.is_empty());
}

#[test]
fn a_main_thread_that_is_known_itself_goes_on_with_both() {
    let own = |world: &World, original: Setting, ours: Setting| {
        let main = kernel(world).identity(10).unwrap().id;
        let present = kernel(world).read(&Target::Task(main), ours.knob()).unwrap();
        let entry = tuned(world, main, original, ours);
        world.put(&Target::Task(main), &present);
        entry
    };
    let (_, places, entries) = followed(None, |world, entries| {
        let mut own = own(world, nice(1), batch(7));
        own.origin.since_ticks = 1;
        entries.push(own);
    });
    assert_eq!((places, entries.len()), (vec![1], 2));
    assert_eq!((&entries[1].wrote, &entries[1].original), (&vec![batch(7), batch(5)], &nice(3)));
    assert_eq!(entries[1].origin.since_ticks, 1, "its children may have what the main thread of before had");
    // Its other property says nothing of this one.
    let (_, places, _) = followed(None, |world, entries| entries.push(own(world, cpus("0-3"), cpus("0"))));
    assert_eq!(places, [2]);
    // A value of its own: it was restored and got the thread's then, or has never been.
    for (state, places, after) in [
        (State::Back, vec![1], State::Unknown),
        // It had got another one since.
        (State::Ours(batch(7)), vec![1], State::Unknown),
        (State::Ours(batch(5)), vec![], State::Ours(batch(5))),
    ] {
        let (_, found, entries) = followed(None, |world, entries| {
            entries.push(Entry { state: state.clone(), ..own(world, nice(1), batch(5)) });
        });
        assert_eq!((found, &entries[1].state), (places, &after));
    }
    // Affinities are judged by what the cpuset leaves.
    let (_, places, _) = followed(None, |world, entries| {
        let main = kernel(world).identity(10).unwrap().id;
        world.set_cpuset(10, "1-3".parse().unwrap());
        let entry = Entry::new(entries[0].target.clone(), cpus("0-2"), entries[0].origin.clone());
        let leader = Some(cpus("3"));
        world.put(&Target::Task(main), &cpus("0-1"));
        entries[0] =
            Entry { wrote: vec![cpus("0-1")], origin: Origin { leader, ..entry.origin.clone() }, ..entry };
    });
    assert_eq!(places, [1]);
}
