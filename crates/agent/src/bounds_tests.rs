//! No write ever targets anything outside of the scope: random hosts, scopes, promises, labels and plans; pids reused, tasks
//! moved and cgroups recreated meanwhile. The fake kernel's log of writes is judged by a reckoning of the test's own.
//!
//! `EVENKEEL_SCOPE_PLANS` says how many plans are carried out, `EVENKEEL_SCOPE_SEED` where the draws begin.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use evenkeel_actuate::Options;
use evenkeel_actuate::fake::{Event, FakeKernel, FakeMedium, World};
use evenkeel_base::{ContainerView, CpuSet, GroupView, HostView, Nice, PodView, SchedAttr, Topology};
use evenkeel_policy::guarantee::{CpuAmount, Reservation};
use evenkeel_policy::levers::{self, Features, Scene};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use super::*;
use crate::component::with_changes;
use crate::guarantee::{CPU_LABEL, Guarantees, Keeper, LabelRules, Source, WAIT_LABEL};
use crate::testing;
use crate::trusted::Trusted;

/// Path, parent, container, pod.
type GroupRow = (&'static str, Option<usize>, Option<usize>, Option<usize>);
const GROUPS: [GroupRow; 10] = [
    ("/", None, None, None),
    ("/a", Some(0), None, None),
    ("/a/x", Some(1), Some(0), None),
    ("/a/y", Some(1), None, None),
    ("/b", Some(0), None, None),
    ("/pods", Some(0), None, None),
    ("/pods/p1", Some(5), None, Some(0)),
    ("/pods/p1/c", Some(6), Some(1), Some(0)),
    ("/pods/p2", Some(5), None, Some(1)),
    ("/pods/p2/c", Some(8), Some(2), Some(1)),
];
const CONTAINERS: [(&str, &str); 3] = [("plain", "docker"), ("api", "containerd"), ("db", "containerd")];
const PODS: [(&str, &str); 2] = [("prod", "p1"), ("dev", "p2")];
/// Beyond what a kernel hands out, so that counters of these tasks are those of nobody.
const FIRST_TID: u32 = 5_000_000;
const CPUS: u32 = 2;

#[derive(Debug, Clone)]
enum Term {
    Pid(u32),
    /// Names end in the thread's number: those with this last digit.
    Digit(u32),
    Cgroup(&'static str),
    Container(&'static str),
    Pod(&'static str, &'static str),
    All,
}

impl Term {
    fn draw(random: &mut Pcg32) -> Self {
        match random.random_range(0..12) {
            0..2 => Self::Pid(FIRST_TID + random.random_range(0..12)),
            2..4 => Self::Digit(random.random_range(0..4)),
            4..8 => Self::Cgroup(GROUPS[random.random_range(0..GROUPS.len())].0),
            8..10 => Self::Container(CONTAINERS[random.random_range(0..3)].0),
            10 => {
                let (namespace, name) = PODS[random.random_range(0..2)];
                Self::Pod(namespace, name)
            }
            _ => Self::All,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Pid(pid) => format!("pid:{pid}"),
            Self::Digit(digit) => format!("comm:{digit}$"),
            Self::Cgroup(path) => format!("cgroup:{path}"),
            Self::Container(name) => format!("container:{name}"),
            Self::Pod(namespace, name) => format!("pod:{namespace}/{name}"),
            Self::All => "all".to_owned(),
        }
    }

    fn has(&self, task: &Task) -> bool {
        let (path, _, container, pod) = GROUPS[task.group];
        match self {
            Self::Pid(pid) => task.id.tgid == *pid,
            Self::Digit(digit) => task.id.tid % 10 == *digit,
            Self::Cgroup("/") => true,
            Self::Cgroup(at) => path == *at || path.starts_with(&format!("{at}/")),
            Self::Container(name) => container.is_some_and(|c| CONTAINERS[c].0 == *name),
            Self::Pod(namespace, name) => pod.is_some_and(|p| PODS[p] == (*namespace, *name)),
            Self::All => true,
        }
    }
}

#[derive(Debug, Clone)]
struct Task {
    id: TaskId,
    group: usize,
    kernel: bool,
    pct: f64,
}

/// Terms included and excluded.
type Terms = (Vec<Term>, Vec<Term>);

fn is_in((include, exclude): &Terms, task: &Task) -> bool {
    let included =
        if include.is_empty() { GROUPS[task.group].2.is_some() } else { include.iter().any(|t| t.has(task)) };
    included && !task.kernel && task.id.tgid != 1 && !exclude.iter().any(|t| t.has(task))
}

fn scope_of((include, exclude): &Terms) -> Scope {
    let texts = include.iter().map(Term::text).chain(exclude.iter().map(|t| format!("!{}", t.text())));
    Scope::parse(&texts.collect::<Vec<_>>()).unwrap()
}

/// A host and what is asked of it.
struct Case {
    world: World,
    tasks: Vec<Task>,
    terms: Terms,
    guarantees: Vec<(Terms, Guarantee)>,
    labels: Vec<Option<String>>,
    annotations: Vec<Option<String>>,
    rules: Option<LabelRules>,
    /// Values before anything was changed.
    found: BTreeMap<(Target, Knob), Setting>,
}

impl Case {
    fn draw(random: &mut Pcg32) -> Self {
        let world = World::new(CPUS);
        let mut tasks = Vec::new();
        for n in 0..random.random_range(2..12) {
            let id = world.add_task(FIRST_TID + n, 1);
            let group = random.random_range(0..GROUPS.len());
            world.move_to(id.tid, GROUPS[group].0);
            let kernel = random.random_bool(0.05);
            if kernel {
                world.make_kernel_thread(id.tid);
            }
            let pct = if random.random_bool(0.2) { 0.0 } else { random.random_range(0.5..90.0) };
            tasks.push(Task { id, group, kernel, pct });
        }
        for (path, _, _, _) in &GROUPS[1..] {
            let weight = [2, 102, 512, 1024, 2048, 20_000][random.random_range(0..6)];
            world.add_group(
                path,
                false,
                &[Setting::Weight(weight), Setting::GroupIdle(false), Setting::RtRuntime(0)],
            );
        }
        let terms = |random: &mut Pcg32, most: usize| -> Vec<Term> {
            (0..random.random_range(0..=most)).map(|_| Term::draw(random)).collect()
        };
        let scope = (terms(random, 3), terms(random, 1));
        let mut guarantees = Vec::new();
        for n in 0..random.random_range(0..3) {
            let of = (vec![Term::draw(random)], Vec::new());
            let cpu = random.random_bool(0.9).then(|| CpuAmount::OfCpu(random.random_range(1.0..95.0)));
            let wait_p99_ns = cpu.is_none().then_some(2_000_000);
            let promise = Reservation { cpu, wait_p99_ns, ..Reservation::default() };
            let guarantee = Guarantee {
                name: format!("guarantee {n}"),
                scope: scope_of(&of),
                promise,
                source: Source::Config,
            };
            guarantees.push((of, guarantee));
        }
        let ask =
            |random: &mut Pcg32| random.random_bool(0.7).then(|| format!("{}%", random.random_range(1..120)));
        let rules = random.random_bool(0.7).then(|| LabelRules {
            trusted: Trusted {
                namespaces: [vec![], vec!["prod".to_owned()], vec!["*".to_owned()]]
                    [random.random_range(0..3)]
                .clone(),
                runtimes: [vec![], vec!["docker".to_owned()]][random.random_range(0..2)].clone(),
            },
            max: CpuAmount::OfCpu(random.random_range(10.0..120.0)),
            total: None,
            wait_p99_ns: Some(1_000_000),
        });
        let labels = (0..3).map(|_| ask(random)).collect();
        let annotations = (0..2).map(|_| ask(random)).collect();
        let found = world.values();
        Self { world, tasks, terms: scope, guarantees, labels, annotations, rules, found }
    }

    fn labelled(&self, value: &Option<String>) -> Vec<(String, String)> {
        let wait = (WAIT_LABEL.to_owned(), "3ms".to_owned());
        value.iter().flat_map(|cpu| [(CPU_LABEL.to_owned(), cpu.clone()), wait.clone()]).collect()
    }

    /// What an observer would see now.
    fn observe(&self) -> Observation {
        let topology = Topology::synthetic(1, 1, CPUS, 1);
        let values = self.world.values();
        let weight = |path: &str| {
            let target = Target::Group(GroupRef { path: path.to_owned(), v2: false });
            match values.get(&(target, Knob::Weight)) {
                Some(Setting::Weight(raw)) => Some(*raw),
                _ => None,
            }
        };
        let used = |index: usize| -> f64 {
            let prefix = if index == 0 { String::new() } else { GROUPS[index].0.to_owned() };
            let inside = |t: &&Task| {
                GROUPS[t.group].0 == GROUPS[index].0 || GROUPS[t.group].0.starts_with(&format!("{prefix}/"))
            };
            self.tasks.iter().filter(inside).map(|t| t.pct).sum()
        };
        let groups = GROUPS.iter().enumerate().map(|(index, (path, parent, _, _))| GroupView {
            load_weight: weight(path),
            raw_weight: weight(path),
            cpu_pct: Some(used(index)),
            ..GroupView::of(*path, parent.map(|p| p as u32), false)
        });
        let view = |task: &Task| TaskView {
            ppid: 1,
            kernel_thread: task.kernel,
            cpu: Some(0),
            affinity: Some(topology.online.clone()),
            sched: match self.world.sched(task.id) {
                Some(Setting::Sched(attr)) => Some(attr),
                _ => None,
            },
            group: Some(task.group as u32),
            container: GROUPS[task.group].2.map(|c| c as u32),
            pod: GROUPS[task.group].3.map(|p| p as u32),
            cpu_pct: task.pct,
            wait_pct: Some(task.pct / 3.0),
            voluntary_per_s: Some(20.0),
            involuntary_per_s: Some(1.0),
            ..TaskView::of(task.id, format!("task-{}", task.id.tid))
        };
        let containers = CONTAINERS.iter().enumerate().map(|(n, (name, runtime))| ContainerView {
            id: format!("{n}").repeat(64),
            labels: self.labelled(&self.labels[n]),
            pod: n.checked_sub(1).map(|p| p as u32),
            group: GROUPS.iter().position(|g| g.2 == Some(n)).map(|g| g as u32),
            ..ContainerView::of(*name, runtime)
        });
        let pods = PODS.iter().enumerate().map(|(n, (namespace, name))| PodView {
            uid: format!("uid-{n}"),
            annotations: self.labelled(&self.annotations[n]),
            group: GROUPS.iter().position(|g| g.3 == Some(n)).map(|g| g as u32),
            ..PodView::of(namespace, name)
        });
        Observation {
            host: HostView::evenly(CPUS, 75.0),
            tasks: self.tasks.iter().map(view).collect(),
            groups: groups.collect(),
            containers: containers.collect(),
            pods: pods.collect(),
            ..Observation::of(topology)
        }
    }

    fn is_mine(&self, task: &Task) -> bool {
        is_in(&self.terms, task) || self.guarantees.iter().any(|(terms, _)| is_in(terms, task))
    }

    /// Cgroups that may have their weight written, as things are now: those of the scope alone, and those above a promise
    /// of the configuration.
    fn weights(&self) -> BTreeSet<&'static str> {
        let below = |path: &str, at: &str| path == at || path.starts_with(&format!("{at}/"));
        GROUPS[1..]
            .iter()
            .map(|(path, ..)| *path)
            .filter(|path| {
                let inside: Vec<&Task> =
                    self.tasks.iter().filter(|t| !t.kernel && below(GROUPS[t.group].0, path)).collect();
                let own = !inside.is_empty() && inside.iter().all(|t| self.is_mine(t));
                let promised = self.guarantees.iter().any(|(terms, guarantee)| {
                    guarantee.promise.cpu.is_some() && inside.iter().any(|t| is_in(terms, t))
                });
                own || promised
            })
            .collect()
    }

    /// Something happens on the host between looking and writing.
    fn meanwhile(&mut self, random: &mut Pcg32) {
        for _ in 0..random.random_range(0..3) {
            let at = random.random_range(0..self.tasks.len());
            let tid = self.tasks[at].id.tid;
            match random.random_range(0..3) {
                0 => {
                    let group = random.random_range(0..GROUPS.len());
                    self.tasks[at].group = group;
                    self.world.move_to(tid, GROUPS[group].0);
                }
                1 if self.tasks.len() > 1 => {
                    self.tasks.remove(at);
                    self.world.happens(Event::Reuse(tid));
                }
                _ => {
                    let path = GROUPS[random.random_range(1..GROUPS.len())].0;
                    let group = GroupRef { path: path.into(), v2: false };
                    self.world.happens(Event::RemoveGroup(group.clone(), true));
                    // Made again it is as the kernel makes them, and that is what was found of it.
                    for to in [Setting::Weight(1024), Setting::RtRuntime(0)] {
                        self.world.put(&Target::Group(group.clone()), &to);
                        self.found.insert((Target::Group(group.clone()), to.knob()), to);
                    }
                }
            }
        }
    }

    /// What was written since is within the scope, or puts back what was found.
    fn judge(&self, since: usize, weights: &BTreeSet<&str>) -> Result<usize, String> {
        let written = self.world.written();
        for (target, to) in &written[since..] {
            let allowed = match target {
                Target::Task(id) => self.tasks.iter().any(|t| t.id == *id && self.is_mine(t)),
                Target::Group(group) => {
                    matches!(to, Setting::Weight(_)) && weights.contains(group.path.as_str())
                }
                Target::Net(_) | Target::Host => false,
            };
            let original = self.found.get(&(target.clone(), to.knob())) == Some(to);
            if !allowed && !original {
                return Err(format!("{target:?} got {to}"));
            }
        }
        Ok(written.len())
    }

    /// A plan that nobody in their senses would make.
    fn hostile(&self, random: &mut Pcg32) -> Plan {
        let mut changes = Vec::new();
        for task in &self.tasks {
            let to = match random.random_range(0..3) {
                0 => Setting::Sched(SchedAttr {
                    nice: Nice::new(random.random_range(-20..20)),
                    ..SchedAttr::DEFAULT
                }),
                1 => Setting::Affinity(CpuSet::single(random.random_range(0..CPUS))),
                _ => continue,
            };
            changes.push(Change { target: Target::Task(task.id), to, why: String::new() });
        }
        for (path, ..) in &GROUPS[1..] {
            let to = match random.random_range(0..4) {
                0 => Setting::Weight(random.random_range(2..200_000)),
                1 => Setting::RtRuntime(1000),
                2 => Setting::GroupIdle(true),
                _ => continue,
            };
            let target = Target::Group(GroupRef { path: (*path).to_owned(), v2: false });
            changes.push(Change { target, to, why: String::new() });
        }
        // The flag of an idle group is one of the scope's own groups only, and not judged here.
        changes.retain(|change| change.knob() != Knob::GroupIdle);
        Plan { changes, ..Plan::default() }
    }

    /// Some turns of the loop; how many plans were carried out.
    fn play(&mut self, random: &mut Pcg32) -> Result<u64, String> {
        let medium = Box::new(FakeMedium(self.world.clone()));
        let kernel = FakeKernel(self.world.clone());
        let (mut actuator, _) = Actuator::open_on(kernel, medium, Options::default()).unwrap();
        let stated: Vec<Guarantee> = self.guarantees.iter().map(|(_, guarantee)| guarantee.clone()).collect();
        let scope = scope_of(&self.terms);
        let guarantees = Guarantees {
            stated: stated.clone(),
            labels: self.rules.clone(),
            task_slice: true,
            ..Guarantees::default()
        };
        let mut keeper = Keeper::new(guarantees, scope.clone());
        let mut bounds = Bounds::default();
        let features =
            Features { task_slice: true, default_slice_ns: Some(2_800_000), ..Features::default() };
        let (mut plans, mut judged) = (0, 0);
        for _ in 0..random.random_range(1..4) {
            // As `Agent::measured`.
            let observation = self.observe();
            bounds = Bounds::reckon(&bounds, &observation, &scope, &stated, false, None);
            let weights = self.weights();
            let found = |target: &Target, knob, now| actuator.found(target, knob, now);
            let found = crate::as_found::as_found(observation.clone(), found);
            if keeper.is_needed(&observation) {
                keeper.missing_details(&observation);
                keeper.resolve(&found, &bounds, Instant::now());
            }
            // As `Agent::propose` and `Agent::set`.
            let ours = |task: &TaskView| scope.has(task, &found) && !keeper.governs(task.id);
            let mut candidates = levers::plans(&Scene::new(&found, features, ours));
            candidates.push(Plan::default());
            candidates.push(self.hostile(random));
            let plan = candidates.swap_remove(random.random_range(0..candidates.len()));
            let wanted = keeper.tick(Instant::now(), true);
            self.meanwhile(random);
            set(&mut actuator, &with_changes(&plan, keeper.changes().collect()), &bounds);
            judged = self.judge(judged, &weights).map_err(|why| format!("{why} by {}", plan.name))?;
            plans += 1;
            // As `Promises::correct`.
            self.meanwhile(random);
            let changes = wanted.unwrap_or_default();
            let report = amend(&mut actuator, &changes, &bounds);
            keeper.learn(&report, Instant::now());
            judged = self.judge(judged, &weights).map_err(|why| format!("{why} by a promise"))?;
            plans += u64::from(!changes.is_empty());
        }
        actuator.close();
        let back = self.judge(judged, &BTreeSet::new());
        // At the end everything goes back: nothing but what was found is written.
        let written = self.world.written();
        let strange = written[judged..]
            .iter()
            .find(|(target, to)| self.found.get(&(target.clone(), to.knob())) != Some(to));
        match (back, strange) {
            (_, None) => Ok(plans),
            (_, Some((target, to))) => Err(format!("{target:?} got {to} at the end")),
        }
    }
}

#[test]
fn nothing_outside_the_scope_is_ever_written() {
    let number = |name: &str, usual: u64| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (wanted, first) = (number("EVENKEEL_SCOPE_PLANS", 3000), number("EVENKEEL_SCOPE_SEED", 1));
    let (mut plans, mut writes) = (0, 0);
    for seed in first.. {
        if plans >= wanted {
            break;
        }
        let mut random = Pcg32::seed_from_u64(seed);
        let mut case = Case::draw(&mut random);
        match case.play(&mut random) {
            Ok(more) => plans += more,
            Err(why) => panic!(
                "EVENKEEL_SCOPE_SEED={seed}: {why}; scope {:?}, promises {:?}, {:?}",
                scope_of(&case.terms).texts(),
                case.guarantees
                    .iter()
                    .map(|(_, g)| (g.scope.texts().to_vec(), g.promise))
                    .collect::<Vec<_>>(),
                case.tasks,
            ),
        }
        writes += case.world.written().len();
    }
    println!("{plans} plans, {writes} writes");
    assert!(writes as u64 > plans, "something is written at all: {writes} writes in {plans} plans");
}

#[test]
fn of_services_cgroups_the_quota_alone_may_be_changed() {
    let mut observation =
        testing::observation(&[("/", None), ("/api", Some(0)), ("/mixed", Some(0)), ("/work", Some(0))]);
    observation.tasks = vec![
        testing::task(7, "redis", 1),
        testing::task(8, "redis", 2),
        testing::task(9, "other", 2),
        testing::task(10, "cc", 3),
    ];
    let scope = Scope::parse(&["cgroup:/work"]).unwrap();
    let mut bounds = Bounds::reckon(&Bounds::default(), &observation, &scope, &[], false, None);
    bounds.add_services(&observation, |task| task.comm == "redis");
    let allowed = |path: &str, to: Setting| bounds.allows(&testing::change(path, to));
    let quota = || Setting::Quota(evenkeel_base::CpuQuota::UNLIMITED);
    assert_eq!(
        ["/api", "/mixed", "/work", "/"].map(|path| allowed(path, quota())),
        [true, false, true, false]
    );
    assert!(!allowed("/api", Setting::Weight(9)) && allowed("/work", Setting::Weight(9)));
    assert!(!bounds.has_task(observation.tasks[0].id), "its tasks may not");
}

#[test]
fn a_scopes_own_cgroups_are_the_named_one_or_the_innermost_that_hold_it() {
    let groups = [("/", None), ("/d", Some(0)), ("/d/a", Some(1)), ("/d/a/x", Some(2)), ("/b", Some(0))];
    let mut host = testing::observation(&groups);
    let tops = |host: &Observation, named| own_tops(host, |task| task.comm == "api", named);
    host.tasks = vec![testing::task(7, "api", 3), testing::task(8, "job", 4)];
    // What comes and goes elsewhere below /d is none of it.
    assert_eq!(tops(&host, None), [3]);
    assert_eq!((tops(&host, Some(2)), tops(&host, Some(1))), (vec![2], vec![1]), "it is all that is named");
    host.tasks.push(testing::task(9, "api", 2));
    assert_eq!(tops(&host, None), [2]);
    host.tasks.push(testing::task(10, "api", 4));
    assert_eq!(tops(&host, None), [2], "/b holds another one");
    host.tasks.push(testing::task(11, "job", 1));
    assert_eq!(tops(&host, Some(1)), [2], "and so does what is named");
    host.tasks.remove(1);
    assert_eq!(tops(&host, Some(4)), [2, 4]);
    host.tasks.push(testing::task(12, "api", 0));
    assert_eq!(tops(&host, None), [2, 4], "the root is nobody's");
}
