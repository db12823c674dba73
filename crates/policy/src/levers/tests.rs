use std::sync::Arc;

use evenkeel_base::sched::MAX_SLICE_NS;
use evenkeel_base::{
    Change, CpuSet, GroupView, HostView, Knob, Observation, SchedAttr, SchedPolicy, Setting, Target, TaskId,
    TaskView, Topology,
};
use proptest::prelude::*;

use super::*;

mod background;

/// A host of `cpus` CPUs; each task is (percent, bursts per second, group index).
pub(crate) fn host(cpus: u32, groups: &[(&str, Option<u32>)], tasks: &[(f64, f64, u32)]) -> Observation {
    let topology = Topology::synthetic(1, 1, cpus, 1);
    Observation {
        host: HostView::evenly(cpus, 50.0),
        tasks: tasks
            .iter()
            .enumerate()
            .map(|(i, &(pct, per_s, group))| TaskView {
                ppid: 50,
                cpu: Some(0),
                affinity: Some(topology.online.clone()),
                sched: Some(SchedAttr::DEFAULT),
                group: Some(group),
                cpu_pct: pct,
                wait_pct: Some(0.0),
                voluntary_per_s: Some(per_s),
                involuntary_per_s: Some(0.0),
                ..TaskView::of(
                    TaskId { tgid: 100 + i as u32, tid: 100 + i as u32, start_time: 5 },
                    format!("t{i}"),
                )
            })
            .collect(),
        groups: groups
            .iter()
            .map(|(path, parent)| GroupView {
                load_weight: Some(1024),
                raw_weight: Some(1024),
                ..GroupView::of(*path, *parent, false)
            })
            .collect(),
        ..Observation::of(topology)
    }
}

fn scene(observation: &Observation, features: Features) -> Scene<'_> {
    Scene::new(observation, features, |_| true)
}

#[test]
fn as_found_sets_the_same_properties_to_what_they_are() {
    let mut observation = host(
        2,
        &[("/", None), ("/a", Some(0)), ("/b", Some(0))],
        &[(60.0, 5.0, 1), (10.0, 50.0, 1), (20.0, 10.0, 2)],
    );
    let reniced = SchedAttr { nice: evenkeel_base::Nice::new(3), ..SchedAttr::DEFAULT };
    observation.tasks[0].sched = Some(reniced);
    observation.groups[2].raw_weight = Some(300);
    let scene = scene(&observation, Features::MODERN);
    let real = with_pull(&scene, plans(&scene));
    let same = as_found(&scene, real.clone());
    let properties = |plan: &Plan| -> Vec<_> {
        plan.changes.iter().map(|change| (change.target.clone(), change.knob())).collect()
    };
    // Only what moves waiting work alone has nothing to set.
    let real: Vec<&Plan> = real.iter().filter(|plan| !plan.only_pulls()).collect();
    assert!(real.len() > 4 && real.len() == same.len(), "{}", same.len());
    let mut knobs = std::collections::BTreeSet::new();
    for (real, same) in real.into_iter().zip(&same) {
        assert_eq!((properties(real), same.pull.len()), (properties(same), 0), "{}", real.name);
        assert_eq!(same.name, format!("{} (as found)", real.name));
        for change in &same.changes {
            knobs.insert(change.knob());
            let found = match &change.target {
                Target::Task(id) if change.knob() == evenkeel_base::Knob::Sched => {
                    Setting::Sched(if id.tid == 100 { reniced } else { SchedAttr::DEFAULT })
                }
                Target::Task(_) => Setting::Affinity(observation.topology.online.clone()),
                Target::Group(group) => Setting::Weight(if group.path == "/b" { 300 } else { 1024 }),
                Target::Net(_) | Target::Host => panic!("{change:?}"),
            };
            assert_eq!(change.to, found, "{}", real.name);
        }
    }
    assert_eq!(knobs.len(), 3, "{knobs:?}");
}

#[test]
fn slices_follow_bursts() {
    // 20 % in 10 bursts a second: 20 ms each; 5 %: 5 ms; a spinner that never sleeps: the longest
    let observation = host(2, &[("/", None)], &[(20.0, 10.0, 0), (5.0, 10.0, 0), (90.0, 0.0, 0)]);
    let plan = plan_named("batch+slice by burst", &scene(&observation, Features::MODERN)).unwrap();
    let slices: Vec<u64> = plan
        .changes
        .iter()
        .map(|c| match &c.to {
            Setting::Sched(attr) if attr.policy == SchedPolicy::Batch => attr.slice_ns.unwrap(),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(slices, [40_000_000, 10_000_000, MAX_SLICE_NS]);
}

#[test]
fn bursts_that_fit_the_default_slice_keep_it() {
    let observation = host(2, &[("/", None)], &[(10.0, 100.0, 0), (10.0, 10.0, 0)]);
    let plan = plan_named("batch+slice by burst", &scene(&observation, Features::MODERN)).unwrap();
    let slices: Vec<_> = plan
        .changes
        .iter()
        .map(|c| match &c.to {
            Setting::Sched(attr) => attr.slice_ns,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(slices, [None, Some(20_000_000)]);
}

#[test]
fn short_work_goes_first_and_long_work_is_not_cut() {
    // Bursts of 1 ms, 10 ms, 11 ms and without end.
    let observation =
        host(2, &[("/", None)], &[(10.0, 100.0, 0), (20.0, 20.0, 0), (22.0, 20.0, 0), (90.0, 0.0, 0)]);
    let plan = plan_named("short first", &scene(&observation, Features::MODERN)).unwrap();
    let attrs: Vec<_> = plan
        .changes
        .iter()
        .map(|c| match &c.to {
            Setting::Sched(attr) => (attr.policy, attr.slice_ns.unwrap()),
            other => panic!("{other}"),
        })
        .collect();
    let (other, batch) = (SchedPolicy::Other, SchedPolicy::Batch);
    assert_eq!(attrs, [(other, 1 << 21), (other, 1 << 24), (batch, 1 << 24), (batch, MAX_SLICE_NS)]);
    let nice = plan_named("short first+nice", &scene(&observation, Features::MODERN)).unwrap();
    assert!(nice.changes.iter().any(|c| matches!(&c.to, Setting::Sched(attr) if attr.nice.get() < 0)));
}

#[test]
fn old_kernels_get_old_levers() {
    let old = Features::default();
    let observation =
        host(2, &[("/", None), ("/a", Some(0)), ("/b", Some(0))], &[(20.0, 10.0, 1), (40.0, 10.0, 2)]);
    let names: Vec<String> = plans(&scene(&observation, old)).into_iter().map(|p| p.name).collect();
    assert_eq!(names, ["weights", "batch", PUBLISHED_RECIPE]);
}

#[test]
fn weights_follow_the_loads_of_sibling_groups() {
    let observation =
        host(2, &[("/", None), ("/a", Some(0)), ("/b", Some(0))], &[(10.0, 10.0, 1), (40.0, 10.0, 2)]);
    let plan = plan_named("weights", &scene(&observation, Features::default())).unwrap();
    let weights: Vec<_> = plan.changes.iter().map(|c| c.to.clone()).collect();
    assert_eq!(weights, [Setting::Weight(512), Setting::Weight(2048)]);
}

#[test]
fn an_idle_group_has_no_weight_to_set_and_is_no_measure_for_the_others() {
    let groups = [("/", None), ("/a", Some(0)), ("/b", Some(0)), ("/idle", Some(0))];
    let mut observation = host(2, &groups, &[(10.0, 10.0, 1), (40.0, 10.0, 2), (90.0, 0.0, 3)]);
    observation.groups[3].idle = true;
    let plan = plan_named("weights", &scene(&observation, Features::default())).unwrap();
    let weights: Vec<_> = plan.changes.iter().map(|c| c.to.clone()).collect();
    assert_eq!(weights, [Setting::Weight(512), Setting::Weight(2048)]);
    observation.groups[2].idle = true;
    assert!(plan_named("weights", &scene(&observation, Features::default())).is_none(), "with nobody");
}

#[test]
fn who_is_sched_idle_gets_no_nice_value_and_is_no_measure_for_the_others() {
    let mut observation = host(2, &[("/", None)], &[(10.0, 10.0, 0), (40.0, 10.0, 0), (40.0, 10.0, 0)]);
    let idle = Some(SchedAttr { policy: SchedPolicy::Idle, ..SchedAttr::DEFAULT });
    observation.tasks[2].sched = idle;
    for (lever, features) in [
        ("nice", Features::default()),
        ("short first+nice", Features::MODERN),
        ("batch+slice by burst+nice", Features::MODERN),
    ] {
        let plan = plan_named(lever, &scene(&observation, features)).unwrap();
        let nice = plan.changes.iter().filter_map(|change| match (&change.target, &change.to) {
            (Target::Task(id), Setting::Sched(attr)) => Some((id.tid, attr.nice.get())),
            _ => None,
        });
        let set: Vec<_> = nice.filter(|(_, nice)| *nice != 0).collect();
        assert_eq!(set, [(100, 3), (101, -3)], "{lever}");
    }
    observation.tasks[1].sched = idle;
    let scene = scene(&observation, Features::MODERN);
    let proposes = |name: &str| plan_named(name, &scene).is_some();
    assert!(!proposes("short first+nice") && proposes("batch+long slice"));
    // Nor on the one CPU where both are placed.
    let mut observation = host(1, &[("/", None)], &[(10.0, 10.0, 0), (80.0, 10.0, 0)]);
    observation.tasks[1].sched = idle;
    let plan = plan_named("placement+nice", &self::scene(&observation, Features::default()));
    let changes = plan.map(|plan| plan.changes).unwrap_or_default();
    assert!(!changes.iter().any(|change| matches!(change.to, Setting::Sched(_))), "{changes:?}");
}

#[test]
fn newborns_count_for_their_group_and_strangers_against_it() {
    let groups = [("/", None), ("/a", Some(0)), ("/b", Some(0))];
    let mut observation = host(2, &groups, &[(10.0, 10.0, 1), (20.0, 10.0, 2), (20.0, 10.0, 2)]);
    // Born since the slow facts of the scope's tasks were read.
    observation.tasks[2].sched = None;
    let plan = plan_named("weights", &scene(&observation, Features::default())).unwrap();
    let weights: Vec<_> = plan.changes.iter().map(|c| c.to.clone()).collect();
    assert_eq!(weights, [Setting::Weight(512), Setting::Weight(2048)]);
    let stranger = observation.tasks[2].id;
    let scene = Scene::new(&observation, Features::default(), |task| task.id != stranger);
    assert!(plan_named("weights", &scene).is_none(), "half of /b is somebody else's");
    // Nor is it the scope's where the stranger sleeps.
    observation.tasks[2].cpu_pct = 0.0;
    let scene = Scene::new(&observation, Features::default(), |task| task.id != stranger);
    assert!(plan_named("weights", &scene).is_none());
}

#[test]
fn realtime_needs_permission_and_budgets_parents_first() {
    let observation = host(2, &[("/", None), ("/a", Some(0)), ("/a/b", Some(1))], &[(10.0, 10.0, 2)]);
    assert!(plan_named("realtime", &scene(&observation, Features::MODERN)).is_none());
    let allowed = Features { realtime: true, ..Features::MODERN };
    let plan = plan_named("realtime", &scene(&observation, allowed)).unwrap();
    let kinds: Vec<_> = plan.changes.iter().map(|c| c.knob().name()).collect();
    assert_eq!(kinds, ["rt-runtime", "rt-runtime", "sched"]);
}

#[test]
fn untouchables_are_no_subjects() {
    let mut observation =
        host(2, &[("/", None)], &[(20.0, 1.0, 0), (20.0, 1.0, 0), (20.0, 1.0, 0), (0.01, 1.0, 0)]);
    observation.tasks[0].kernel_thread = true;
    observation.tasks[1].id.tgid = 1;
    observation.tasks[2].sched = Some(SchedAttr { policy: SchedPolicy::Fifo, ..SchedAttr::DEFAULT });
    assert!(scene(&observation, Features::MODERN).tasks.is_empty());
    assert!(plans(&scene(&observation, Features::MODERN)).is_empty());
}

#[test]
fn waiting_work_is_moved_beside_every_lever_that_does_not_pin() {
    let mut observation = host(2, &[("/", None)], &[(20.0, 10.0, 0), (40.0, 10.0, 0)]);
    observation.tasks[0].affinity = Some(CpuSet::single(1));
    let allowed = Features { realtime: true, rt_groups: false, ..Features::MODERN };
    let scene = scene(&observation, allowed);
    let plans = with_pull(&scene, plans(&scene));
    assert!(plans[0].name == PULL && plans[0].only_pulls());
    assert!(plans.iter().all(|plan| plan.is_realtime() == (plan.name == REALTIME)));
    assert_eq!(plans.iter().filter(|plan| plan.only_pulls()).count(), 1);
    assert!(plans[0].changes.is_empty() && !plans[0].is_default());
    for plan in &plans {
        let pins = [PUBLISHED_RECIPE, REALTIME].contains(&plan.name.as_str());
        assert_eq!(plan.pull.is_empty(), pins, "{}", plan.name);
        assert_eq!(plan.name.ends_with(PULL), !pins, "{}", plan.name);
        // The other one has no choice.
        assert!(pins || plan.pull == [observation.tasks[1].id], "{}", plan.name);
    }
}

#[test]
fn nobody_is_moved_where_no_cpu_is_beside_another() {
    // Two CPUs, each with a cache of its own.
    let mut observation = host(2, &[("/", None)], &[(20.0, 10.0, 0), (40.0, 10.0, 0)]);
    observation.topology = Arc::new(Topology::synthetic(1, 2, 1, 1));
    assert!(beside(&observation.topology).is_empty());
    let scene = scene(&observation, Features::MODERN);
    assert_eq!(with_pull(&scene, plans(&scene)), plans(&scene));
    let mut four = Topology::synthetic(1, 2, 2, 1);
    four.isolated = CpuSet::single(3);
    assert_eq!(beside(&four), [CpuSet::first_n(2)], "an isolated CPU is next to none");
}

proptest! {
    /// Plans never leave the effective cpuset, never use offline or isolated CPUs, never name a task out of scope, and
    /// set each property of a target once.
    #[test]
    fn plans_stay_inside(
        tasks in proptest::collection::vec((0.0f64..100.0, 0.0f64..200.0, 0u32..3), 0..30),
        cpuset in proptest::collection::vec(0u32..8, 1..8),
        isolated in proptest::collection::vec(0u32..8, 0..3),
        slice in any::<bool>(),
        realtime in any::<bool>(),
    ) {
        let mut observation = host(8, &[("/", None), ("/a", Some(0)), ("/b", Some(0))], &tasks);
        let cpuset: CpuSet = cpuset.into_iter().collect();
        Arc::make_mut(&mut observation.topology).isolated = isolated.into_iter().collect();
        for group in &mut observation.groups {
            group.cpuset = Some(cpuset.clone());
        }
        let features = Features { task_slice: slice, realtime, ..Features::MODERN };
        let scene = Scene::new(&observation, features, |t| t.id.tid % 2 == 0);
        let isolated = observation.topology.isolated.clone();
        for plan in with_pull(&scene, plans(&scene)) {
            prop_assert!(plan.pull.iter().all(|id| id.tid % 2 == 0), "{}", plan.name);
            let mut seen = std::collections::HashSet::new();
            for change in &plan.changes {
                prop_assert!(seen.insert((change.target.clone(), change.knob())), "{} twice", plan.name);
                if let Target::Task(id) = &change.target {
                    prop_assert_eq!(id.tid % 2, 0);
                }
                if let Setting::Affinity(cpus) = &change.to {
                    prop_assert!(!cpus.is_empty() && cpus.is_subset(&cpuset));
                    let room = !cpuset.difference(&isolated).is_empty();
                    prop_assert!(!room || !cpus.intersects(&isolated));
                }
                if let Setting::Sched(attr) = &change.to {
                    prop_assert!(attr.slice_ns.is_none_or(|ns| (100_000..=MAX_SLICE_NS).contains(&ns)));
                    prop_assert!(realtime || !attr.policy.is_realtime());
                }
            }
        }
    }
}

#[test]
fn burst_is_for_who_is_throttled_below_his_quota() {
    let quota = |usec| {
        Some(evenkeel_base::CpuQuota {
            quota_usec: evenkeel_base::Limit::Value(usec),
            ..evenkeel_base::CpuQuota::UNLIMITED
        })
    };
    let of = |edit: &dyn Fn(&mut GroupView)| {
        let mut observation = host(2, &[("/", None), ("/api", Some(0))], &[(30.0, 50.0, 1)]);
        let group = &mut observation.groups[1];
        (group.quota, group.throttled_periods, group.cpu_pct) = (quota(50_000), Some((2, 10)), Some(30.0));
        edit(group);
        let scene = scene(&observation, Features::MODERN);
        (may_burst(&scene), plan_named("burst", &scene).map(|plan| plan.changes[0].to.clone()))
    };
    let propose = |edit: &dyn Fn(&mut GroupView)| of(edit).1;
    // A longer look may tell more, unless there is no quota or all the burst that may be.
    assert_eq!(of(&|group| group.throttled_periods = Some((0, 10))), (true, None));
    assert_eq!(of(&|group| group.quota = None), (false, None));
    assert_eq!(of(&|group| group.quota.as_mut().unwrap().burst_usec = 50_000), (false, None));
    assert!(of(&|group| group.quota.as_mut().unwrap().burst_usec = 49_999).0);
    let Some(Setting::Quota(set)) = propose(&|_| {}) else { panic!("nothing is proposed") };
    assert_eq!((set.quota_usec.value(), set.burst_usec), (Some(50_000), 50_000));
    assert!(
        propose(&|group| group.cpu_pct = Some(47.0)).is_some(),
        "seconds of much use are no reason against it"
    );
    assert_eq!(propose(&|group| group.cpu_pct = Some(49.0)), None, "nothing is left to save up");
    assert_eq!(propose(&|group| group.throttled_periods = Some((0, 10))), None);
    assert_eq!(propose(&|group| group.quota = None), None);
    assert_eq!(propose(&|group| group.throttled_periods = None), None, "unknown is no reason");

    // Next to background work it is the services' cgroups that may have it.
    let mut observation = host(2, &[("/", None), ("/api", Some(0)), ("/work", Some(0))], &[(30.0, 50.0, 2)]);
    for group in &mut observation.groups[1..] {
        (group.quota, group.throttled_periods, group.cpu_pct) = (quota(50_000), Some((2, 10)), Some(30.0));
    }
    let features = Features { background: true, ..Features::MODERN };
    let mut scene = scene(&observation, features);
    assert_eq!((plan_named("burst", &scene), quota_period_usec(&scene)), (None, None));
    assert!(!may_burst(&scene));
    scene.services = vec![false, true, false];
    assert!(may_burst(&scene));
    let plan = plan_named("burst", &scene).unwrap();
    assert_eq!(plan.changes.iter().map(|change| change.target.to_string()).collect::<Vec<_>>(), ["/api"]);
    assert_eq!(quota_period_usec(&scene), Some(100_000));
}

#[test]
fn a_scheduler_is_proposed_where_it_is_offered_and_nothing_goes_with_it() {
    let observation = host(2, &[("/", None)], &[(60.0, 5.0, 0), (10.0, 50.0, 0)]);
    for background in [false, true] {
        let features = |scx| Features { background, scx, ..Features::MODERN };
        let names = |scx| -> Vec<String> {
            let scene = scene(&observation, features(scx));
            let plans = with_pull(&scene, plans(&scene)).into_iter();
            plans.filter(|plan| plan.scheduler().is_some()).map(|plan| plan.name).collect()
        };
        assert_eq!(names([false; 4]), Vec::<String>::new());
        assert_eq!(names([true, false, true, false]), ["scx_bpfland", "scx_rusty"]);
        assert_eq!(names([false, true, false, true]), ["scx_lavd", "scx_flash"]);
    }
    let offered = Features { scx: [true; 4], ..Features::MODERN };
    let plan = plan_named("scx_lavd", &scene(&observation, offered)).unwrap();
    let Change { target, to, .. } = &plan.changes[0];
    assert_eq!((plan.changes.len(), target, to.to_string().as_str()), (1, &Target::Host, "scx_lavd"));
    let nobody = Scene::new(&observation, offered, |_| false);
    assert!(plan_named("scx_lavd", &nobody).is_none(), "for nobody");
}

#[test]
fn background_work_makes_way_for_the_tasks_of_services_cgroups() {
    let observation = host(
        2,
        &[("/", None), ("/batch", Some(0)), ("/redis", Some(0))],
        &[(90.0, 5.0, 1), (90.0, 5.0, 1), (10.0, 900.0, 2), (0.0, 1.0, 2)],
    );
    let features = Features { background: true, ..Features::MODERN };
    let mut scene = Scene::new(&observation, features, |task| task.group == Some(1));
    assert_eq!(plan_named(ASIDE, &scene), None, "no cgroup of services alone");
    scene.services = vec![false, false, true];
    let plan = plan_named(ASIDE, &scene).unwrap();
    let tids = |ids: &[TaskId]| ids.iter().map(|id| id.tid).collect::<Vec<_>>();
    assert_eq!((tids(&plan.pull), tids(&plan.before)), (vec![100, 101], vec![102, 103]));
    assert!(plan.changes.is_empty() && !plan.is_default());
    assert!(plans(&scene).contains(&plan));
    // With a single CPU that they may use, they cannot go anywhere.
    let mut pinned = observation;
    for task in &mut pinned.tasks {
        task.affinity = Some(CpuSet::single(1));
    }
    let mut scene = Scene::new(&pinned, features, |task| task.group == Some(1));
    scene.services = vec![false, false, true];
    assert_eq!(plan_named(ASIDE, &scene), None);
}
