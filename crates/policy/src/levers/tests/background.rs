//! Levers for background work next to services.

use super::*;

#[test]
fn background_work_yields_by_its_highest_own_cgroups_and_by_task_elsewhere() {
    let observation = host(
        2,
        &[
            ("/", None),
            ("/batch", Some(0)),
            ("/batch/a", Some(1)),
            ("/mixed", Some(0)),
            ("/mixed/b", Some(3)),
        ],
        &[(60.0, 5.0, 2), (10.0, 50.0, 3), (20.0, 10.0, 4), (30.0, 10.0, 3)],
    );
    let features = Features { background: true, ..Features::MODERN };
    // The last task, in /mixed, is not background work.
    let scene = Scene::new(&observation, features, |task| task.id.tid != 103);
    let changes = |name: &str| -> Vec<String> {
        let plan = plan_named(name, &scene).unwrap();
        let target = |change: &Change| match &change.target {
            Target::Group(group) => group.path.clone(),
            Target::Task(id) => id.tid.to_string(),
            Target::Net(_) | Target::Host => unreachable!(),
        };
        plan.changes.iter().map(|change| format!("{} {}", target(change), change.to)).collect()
    };
    let idle = changes("idle groups");
    assert_eq!(idle[..2], ["/batch idle 1", "/mixed/b idle 1"], "{idle:?}");
    assert!(idle.len() == 3 && idle[2].starts_with("101 "), "{idle:?}");
    assert_eq!(changes("least weight")[..2], ["/batch weight 2", "/mixed/b weight 2"]);
    assert_eq!(changes("idle tasks").len(), 3);
    assert_eq!(changes("nice 19").len(), 3);
    let names: Vec<String> = plans(&scene).into_iter().map(|plan| plan.name).collect();
    assert_eq!(names, ["idle groups", "least weight", "idle tasks", "nice 19"]);
    // Without a cgroup of its own, settings of tasks are all there is.
    let alone = Scene::new(&observation, features, |task| task.id.tid == 101);
    let names: Vec<String> = plans(&alone).into_iter().map(|plan| plan.name).collect();
    assert_eq!(names, ["idle tasks", "nice 19"]);
    // In a cgroup of its own, they would not be felt outside of it.
    let apart = |observation: &Observation| -> Vec<String> {
        let scene = Scene::new(observation, features, |task| task.id.tid == 100);
        plans(&scene).into_iter().map(|plan| plan.name).collect()
    };
    assert_eq!(apart(&observation), ["idle groups", "least weight"]);
    // Without the controller it is not one.
    let mut bare = observation;
    bare.groups[1].raw_weight = None;
    bare.groups[2].raw_weight = None;
    assert_eq!(apart(&bare), ["idle tasks", "nice 19"]);
}

#[test]
fn a_cgroup_that_is_idle_already_is_not_told_to_yield() {
    let groups = [("/", None), ("/idle", Some(0)), ("/batch", Some(0))];
    let mut observation = host(2, &groups, &[(60.0, 5.0, 1), (20.0, 10.0, 2), (30.0, 10.0, 0)]);
    observation.groups[1].idle = true;
    let features = Features { background: true, ..Features::MODERN };
    let proposed = |background: &[u32]| -> Vec<String> {
        let scene = Scene::new(&observation, features, |task| background.contains(&task.id.tid));
        let plans = plans(&scene).into_iter();
        plans.flat_map(|plan| plan.changes).map(|change| format!("{} {}", change.target, change.to)).collect()
    };
    assert_eq!(proposed(&[100]), Vec::<String>::new());
    assert_eq!(proposed(&[100, 101]), ["/batch idle 1", "/batch weight 2"]);
}

#[test]
fn a_task_that_is_sched_idle_already_is_not_told_to_come_last() {
    let mut observation = host(2, &[("/", None)], &[(60.0, 5.0, 0), (20.0, 10.0, 0), (30.0, 10.0, 0)]);
    observation.tasks[0].sched = Some(SchedAttr { policy: SchedPolicy::Idle, ..SchedAttr::DEFAULT });
    let features = Features { background: true, ..Features::MODERN };
    let told = |background: &[u32]| -> Vec<String> {
        let scene = Scene::new(&observation, features, |task| background.contains(&task.id.tid));
        plans(&scene).iter().map(|plan| format!("{} of {}", plan.name, plan.changes.len())).collect()
    };
    assert_eq!(told(&[100]), Vec::<String>::new());
    assert_eq!(told(&[100, 101]), ["idle tasks of 1", "nice 19 of 1"]);
}

#[test]
fn background_work_gets_what_services_leave_of_a_quota_that_they_share() {
    let groups =
        [("/", None), ("/pod", Some(0)), ("/pod/api", Some(1)), ("/pod/batch", Some(1)), ("/batch", Some(0))];
    // A service of 4 % in a quota of 20 of each 320 ms, background work next to it there and elsewhere.
    let tasks = [(4.0, 50.0, 2), (2.0, 0.0, 3), (90.0, 0.0, 4)];
    let quota = |usec, period_usec| {
        let quota_usec = evenkeel_base::Limit::Value(usec);
        Some(evenkeel_base::CpuQuota { quota_usec, period_usec, burst_usec: 0 })
    };
    let limits = |name: &str, edit: &dyn Fn(&mut Observation)| -> Option<Vec<String>> {
        let mut observation = host(2, &groups, &tasks);
        observation.groups[1].quota = quota(20_000, 320_000);
        observation.groups[1].throttled_periods = Some((8, 12));
        edit(&mut observation);
        let background = |task: &TaskView| matches!(task.group, Some(3..=5));
        let scene = Scene::new(&observation, Features { background: true, ..Features::MODERN }, background);
        let limit = |change: &Change| match (&change.target, change.to.clone()) {
            (Target::Group(group), Setting::Quota(to)) => {
                format!("{} {:?} of {}", group.path, to.quota_usec.value(), to.period_usec)
            }
            other => panic!("{other:?}"),
        };
        let plan = plan_named(name, &scene)?;
        let (limits, rest): (Vec<&Change>, Vec<&Change>) =
            plan.changes.iter().partition(|change| change.knob() == Knob::Quota);
        // Who may use most of what is left comes after services on a CPU, too.
        let idle = rest.iter().filter(|change| change.to == Setting::GroupIdle(true)).count();
        assert_eq!((idle, rest.len()), if name == "headroom" { (limits.len(), idle) } else { (0, 0) });
        // The kernel's least, too: it goes with the quota.
        assert_eq!(plan.follow.len(), limits.len());
        Some(limits.into_iter().map(limit).collect())
    };
    // 6.25 - 1.25 * 4 = 1.25 %, of which the kernel takes nothing shorter than 1 ms.
    assert_eq!(limits("headroom", &|_| {}).unwrap(), ["/pod/batch Some(4000) of 320000"]);
    assert_eq!(limits("tight headroom", &|_| {}).unwrap(), ["/pod/batch Some(1600) of 320000"]);
    assert_eq!(limits("tightest headroom", &|_| {}).unwrap(), ["/pod/batch Some(1000) of 800000"]);
    // A slice of 5 ms is gone each time background work runs, however short: half of a quota of two, all of a quota of one.
    let of_slices = |slices: u64| {
        move |observation: &mut Observation| {
            observation.groups[1].quota = quota(5_000 * slices, 80_000 * slices);
        }
    };
    for slices in [1, 2] {
        let least = limits("tightest headroom", &of_slices(slices)).unwrap();
        assert_eq!(least, ["/pod/batch Some(1000) of 1000000"]);
        for looser in ["headroom", "tight headroom"] {
            assert_eq!(limits(looser, &of_slices(slices)).is_some(), slices == 2, "{looser}");
        }
    }
    // Who runs first does not help then.
    let no_longer = |observation: &mut Observation| observation.groups[1].throttled_periods = Some((0, 9));
    let of = |edit: &dyn Fn(&mut Observation)| {
        let mut observation = host(2, &groups, &tasks);
        observation.groups[1].quota = quota(20_000, 320_000);
        edit(&mut observation);
        let background = |task: &TaskView| matches!(task.group, Some(3 | 4));
        let scene = Scene::new(&observation, Features { background: true, ..Features::MODERN }, background);
        plans(&scene).into_iter().map(|plan| plan.name).collect::<Vec<_>>()
    };
    assert_eq!(of(&|_| {}), ["headroom", "tight headroom", "tightest headroom"]);
    assert_eq!(of(&no_longer), ["idle groups", "least weight"]);
    // Several share what is left as they want it.
    let two = |observation: &mut Observation| {
        let mut third = observation.groups[3].clone();
        third.path = "/pod/more".into();
        observation.groups.push(third);
        let mut task = observation.tasks[1].clone();
        (task.group, task.id.tid, task.cpu_pct) = (Some(5), 500, 6.0);
        observation.tasks.push(task);
        observation.groups[1].quota = quota(20_000, 80_000);
    };
    assert_eq!(
        limits("headroom", &two).unwrap(),
        ["/pod/batch Some(4000) of 80000", "/pod/more Some(12000) of 80000"]
    );
    // Nothing is left: the least that there is.
    let greedy = |observation: &mut Observation| observation.tasks[0].cpu_pct = 7.0;
    assert_eq!(limits("headroom", &greedy).unwrap(), ["/pod/batch Some(1000) of 1000000"]);
    // A quota that holds no task back, none, one of background work alone, and a limit that is as tight already.
    assert_eq!(limits("headroom", &|o| o.groups[1].throttled_periods = Some((0, 12))), None);
    assert_eq!(limits("headroom", &|o| o.groups[1].quota = None), None);
    assert_eq!(
        limits("tight headroom", &|o| {
            o.groups[3].quota = o.groups[1].quota.take();
        }),
        None
    );
    assert_eq!(limits("headroom", &|o| o.groups[3].quota = quota(1_000, 100_000)), None);
}

#[test]
fn a_deadline_is_for_services_that_state_a_bound_and_have_one_thread_at_work() {
    let features = Features { background: true, deadline: true, ..Features::MODERN };
    // Two services, of which the second has two threads at work, and background work.
    let tasks = [(10.0, 1000.0, 1), (0.1, 10.0, 1), (5.0, 100.0, 2), (5.0, 100.0, 2), (90.0, 0.0, 3)];
    let groups = [("/", None), ("/api", Some(0)), ("/db", Some(0)), ("/batch", Some(0))];
    let propose = |features, edit: &dyn Fn(&mut Observation), wait_ns: u64| {
        let mut observation = host(2, &groups, &tasks);
        edit(&mut observation);
        let services = [1, 2].map(|group| (move |task: &TaskView| task.group == Some(group), wait_ns));
        let scene =
            Scene::new(&observation, features, |task| task.group == Some(3)).serving(services.into_iter());
        plan_named("deadline", &scene).map(|plan| plan.changes)
    };
    let changes = propose(features, &|_| {}, 1_000_000).unwrap();
    let [Change { target: Target::Task(id), to: Setting::Sched(attr), .. }] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    // Three bursts of 0.1 ms are more than twice the demand.
    assert_eq!((id.tid, attr.to_string().as_str()), (100, "deadline 0.3 of each 1 ms"));
    assert!(attr.reset_on_fork, "it may start others, which do not inherit");
    let runtime = |wait_ns| {
        let changes = propose(features, &|_| {}, wait_ns)?;
        let Setting::Sched(attr) = changes[0].to else { return None };
        attr.slice_ns.zip(attr.period_ns)
    };
    assert_eq!(runtime(20_000_000), Some((4_000_000, 20_000_000)), "twice the demand");
    assert_eq!(runtime(5_000_000_000), Some((200_000_000, 1_000_000_000)), "the longest period");
    assert_eq!(runtime(300_000), None, "a piece of work does not fit into so short a period");
    assert_eq!(
        propose(Features { background: true, ..Features::MODERN }, &|_| {}, 1_000_000),
        None,
        "not allowed"
    );
    let pinned = |observation: &mut Observation| {
        observation.tasks[0].affinity = Some(evenkeel_base::CpuSet::first_n(1));
    };
    assert_eq!(propose(features, &pinned, 1_000_000), None, "the kernel refuses who may not run everywhere");
    let awake = |observation: &mut Observation| observation.tasks[0].voluntary_per_s = Some(0.0);
    assert_eq!(propose(features, &awake, 1_000_000), None, "who never sleeps has no bursts");
}
