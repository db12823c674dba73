//! A hostile host, on the kernel this runs on: tasks end and others get their numbers at once, owners change what is in force, cgroups
//! are removed and made again under the same name, the actuator is left without a word and comes back. Needs root.
//!
//! `EVENKEEL_HOSTILE_EVENTS` sets the number of events (default 400).

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use evenkeel_actuate::{Actuator, Kernel, Linux, Options, RestoreReport, Verdict, restore};
use evenkeel_base::{CpuSet, Nice, SchedAttr, Setting, Target};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Child, TestGroup, batch, plan, state_dir};

/// Two tasks of one number are told apart by the tick in which they were born.
const TICK: Duration = Duration::from_millis(20);

/// A task, and what its owner gave it.
struct Task {
    child: Child,
    target: Target,
    own: (Setting, Setting),
    born: Instant,
}

impl Task {
    fn new(random: &mut StdRng) -> Self {
        let child = Child::sleeping();
        let target = child.target();
        let mut task = Self { own: child.facts(), target, child, born: Instant::now() };
        task.is_changed_by_its_owner(random);
        task
    }

    /// Values that no plan has.
    fn is_changed_by_its_owner(&mut self, random: &mut StdRng) {
        let nice = Nice::new(random.random_range(10..20));
        let own = Setting::Sched(SchedAttr { nice, ..SchedAttr::DEFAULT });
        Linux::new().unwrap().write(&self.target, &own).unwrap();
        self.own.0 = own;
    }
}

/// A cgroup, and what its owner gave it.
struct Group {
    group: TestGroup,
    files: BTreeMap<String, String>,
}

impl Group {
    fn new(name: &str, random: &mut StdRng) -> Self {
        let group = TestGroup::new(name);
        group.put("cpu.shares", "cpu.weight", &random.random_range(600..900).to_string());
        Self { files: group.files(), group }
    }
}

struct World {
    tasks: Vec<Task>,
    groups: Vec<Option<Group>>,
    /// Tasks that have ended.
    gone: Vec<Target>,
    recycled: usize,
}

impl World {
    fn new(random: &mut StdRng) -> Self {
        let tasks = (0..8).map(|_| Task::new(random)).collect();
        let groups = (0..2).map(|n| Some(Group::new(&format!("hostile-{n}"), random))).collect();
        Self { tasks, groups, gone: Vec::new(), recycled: 0 }
    }

    /// Some of what there is, and some of what there was.
    fn draw(&self, random: &mut StdRng) -> Vec<(Target, Setting)> {
        let mut changes = Vec::new();
        let gone = self.gone.iter().rev().take(3);
        for target in self.tasks.iter().map(|task| &task.target).chain(gone) {
            if random.random_bool(0.6) {
                changes.push((target.clone(), batch(random.random_range(1..9), 50)));
            }
            if random.random_bool(0.3) {
                changes.push((target.clone(), Setting::Affinity(CpuSet::single(0))));
            }
        }
        for group in self.groups.iter().flatten() {
            if random.random_bool(0.6) {
                changes.push((group.group.target(), Setting::Weight(random.random_range(10..500))));
            }
        }
        changes
    }

    /// A task ends, and another has its number.
    fn recycle(&mut self, random: &mut StdRng) {
        let at = random.random_range(0..self.tasks.len());
        let old = self.tasks.remove(at);
        let number = old.child.id();
        std::thread::sleep(TICK.saturating_sub(old.born.elapsed()));
        self.gone.push(old.target.clone());
        drop(old);
        fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
        let new = Task::new(random);
        self.recycled += usize::from(new.child.id() == number);
        self.tasks.push(new);
    }

    /// A cgroup goes, or comes with values of its own.
    fn regroup(&mut self, random: &mut StdRng) {
        let at = random.random_range(0..self.groups.len());
        self.groups[at] = match self.groups[at].take() {
            Some(_) => None,
            None => Some(Group::new(&format!("hostile-{at}"), random)),
        };
    }

    /// Everything is as its owner gave it.
    fn check(&self, event: usize, what: &str) {
        for task in &self.tasks {
            assert_eq!(task.child.facts(), task.own, "event {event}, {what}: {:?}", task.target);
        }
        for group in self.groups.iter().flatten() {
            assert_eq!(group.group.files(), group.files, "event {event}, {what}: {:?}", group.group.target());
        }
    }
}

#[test]
fn no_event_costs_an_original_and_no_task_pays_for_its_number() {
    let events: usize = std::env::var("EVENKEEL_HOSTILE_EVENTS").map_or(400, |text| text.parse().unwrap());
    let drawn = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("EVENKEEL_HOSTILE_SEED").map_or_else(|_| drawn(), |text| text.parse().unwrap());
    println!("EVENKEEL_HOSTILE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let dir = state_dir();
    let open = || {
        let (actuator, recovery) =
            Actuator::open(Linux::new().unwrap(), dir.path(), Options::default()).unwrap();
        assert!(is_kept(&recovery.report), "{:?}", recovery.report);
        actuator
    };
    let mut world = World::new(&mut random);
    let mut actuator = open();
    let (mut applied, mut conflicts) = (0, 0);
    for event in 0..events {
        match random.random_range(0..10) {
            0..=3 => {
                let changes = world.draw(&mut random);
                let report = actuator.set(&plan(changes), &|_| true);
                for change in &report.changes {
                    match &change.verdict {
                        Verdict::Applied(_) => applied += 1,
                        Verdict::Conflict(_) => conflicts += 1,
                        Verdict::Unchanged => {}
                        Verdict::Gone => {
                            assert!(is_gone(&change.target, &world), "event {event}: {change:?}")
                        }
                        other => panic!("event {event}: {other:?} of {change:?}"),
                    }
                }
                assert!(is_kept(&report.back), "event {event}: {:?}", report.back);
            }
            4 | 5 => world.recycle(&mut random),
            6 => {
                let at = random.random_range(0..world.tasks.len());
                world.tasks[at].is_changed_by_its_owner(&mut random);
            }
            7 => world.regroup(&mut random),
            8 => {
                // As killed: what is in force and the journal stay.
                drop(actuator);
                if random.random_bool(0.5) {
                    let report = restore(dir.path(), Linux::new().unwrap()).unwrap().report;
                    assert!(is_kept(&report), "event {event}: {report:?}");
                    world.check(event, "restored after a kill");
                }
                actuator = open();
                world.check(event, "started after a kill");
            }
            _ => {
                let report = actuator.set(&plan(vec![]), &|_| true);
                assert!(is_kept(&report.back), "event {event}: {report:?}");
                world.check(event, "everything taken back");
            }
        }
    }
    let report = actuator.close();
    assert!(is_kept(&report), "{report:?}");
    world.check(events, "closed");
    println!(
        "{events} events: {} numbers recycled, {applied} changes made, {conflicts} left to their owners; 0 lost, 0 on another task",
        world.recycled
    );
    // Others on this host may take a number before ours do.
    assert!(world.recycled > events / 10 && applied > events && conflicts > 0, "nothing was tried");
}

/// Nothing is lost: what is not as found is what its owner made of it.
fn is_kept(report: &RestoreReport) -> bool {
    report.failed.is_empty() && report.unseen.is_empty()
}

fn is_gone(target: &Target, world: &World) -> bool {
    match target {
        Target::Task(_) => world.gone.contains(target),
        Target::Group(_) => false,
        other => panic!("{other:?}"),
    }
}
