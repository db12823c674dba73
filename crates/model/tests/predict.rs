//! What plans are predicted to do, from observations made up by hand.

use evenkeel_base::{
    Change, CpuQuota, CpuSet, GroupRef, GroupView, Limit, Nice, Observation, Plan, SchedAttr, SchedPolicy,
    Setting, Target, TaskId, TaskView, Topology,
};
use evenkeel_model::predict::{Host, Use};
use evenkeel_model::sim::Kernel;

fn id(number: u32) -> TaskId {
    TaskId { tgid: number, tid: number, start_time: u64::from(number) }
}

/// A thread in a group that got so much of a CPU, waited so long (both percent), and slept so often a second.
fn task(number: u32, group: u32, cpu_pct: f64, wait_pct: f64, sleeps_per_s: f64) -> TaskView {
    TaskView {
        cpu: Some(0),
        sched: Some(SchedAttr::DEFAULT),
        group: Some(group),
        cpu_pct,
        wait_pct: Some(wait_pct),
        voluntary_per_s: Some(sleeps_per_s),
        involuntary_per_s: Some(0.0),
        ..TaskView::of(id(number), format!("t{number}"))
    }
}

fn group(path: &str, parent: Option<u32>) -> GroupView {
    GroupView { load_weight: Some(1024), raw_weight: Some(100), ..GroupView::of(path, parent, true) }
}

fn observed(cpus: u32, groups: &[&str], tasks: Vec<TaskView>) -> Observation {
    let paths = std::iter::once(group("/", None)).chain(groups.iter().map(|path| group(path, Some(0))));
    let mut observation = Observation::of(Topology::synthetic(1, 1, cpus, 1));
    observation.host.steal_pct = Some(0.0);
    Observation { tasks, groups: paths.collect(), ..observation }
}

fn host(observation: &Observation) -> Host {
    Host::new(observation, Kernel::release(6, 18), |task| task.group.is_some_and(|g| g > 0))
}

fn plan(name: &str, changes: Vec<(Target, Setting)>) -> Plan {
    let change = |(target, to)| Change { target, to, why: String::new() };
    Plan { name: name.into(), changes: changes.into_iter().map(change).collect(), ..Plan::default() }
}

fn cgroup(path: &str) -> Target {
    Target::Group(GroupRef { path: path.into(), v2: true })
}

fn after(host: &Host, plan: Plan, number: u32) -> Use {
    host.predict(&[plan]).unwrap()[0].tasks[&id(number)].1
}

#[test]
fn leaving_all_as_found_changes_nothing_and_what_was_observed_comes_out_again() {
    // Two that always want the one CPU: half of it each.
    let observation =
        observed(1, &["/a", "/b"], vec![task(10, 1, 50.0, 50.0, 0.0), task(11, 2, 50.0, 50.0, 0.0)]);
    let predictions = host(&observation).predict(&[Plan::default()]).unwrap();
    let p = &predictions[0];
    assert_eq!(p.before, p.after);
    assert_eq!(p.cpu_change_pct(), Some(0.0));
    assert!((p.before.got_pct - 100.0).abs() < 2.0, "{p:?}");
    for number in [10, 11] {
        let (before, _) = p.tasks[&id(number)];
        assert!((before.got_pct - 50.0).abs() < 3.0, "{p:?}");
    }
    assert_eq!(p.task_in_words(id(99)), None);
    let words = p.in_words();
    assert!(words.starts_with("CPU +0.0 %, wait per CPU second ") && words.contains(" to "), "{words}");
}

#[test]
fn weights_quotas_cpusets_and_nice_do_what_the_kernel_does_with_them() {
    let observation =
        observed(1, &["/a", "/b"], vec![task(10, 1, 50.0, 50.0, 0.0), task(11, 2, 50.0, 50.0, 0.0)]);
    let found = host(&observation);
    let near = |plan: Plan, wanted: f64| {
        let name = plan.name.clone();
        let got = after(&found, plan, 10).got_pct;
        assert!((got - wanted).abs() < 3.0, "{name}: {got}, not {wanted}");
    };
    near(plan("weight", vec![(cgroup("/a"), Setting::Weight(300))]), 75.0);
    let quota = CpuQuota { quota_usec: Limit::Value(20_000), ..CpuQuota::UNLIMITED };
    near(plan("quota", vec![(cgroup("/a"), Setting::Quota(quota))]), 20.0);
    // Nice acts within a group only: between two groups it moves nothing.
    let nice = SchedAttr { nice: Nice::new(5), ..SchedAttr::DEFAULT };
    near(plan("nice", vec![(Target::Task(id(10)), Setting::Sched(nice))]), 50.0);
    let together = observed(1, &["/a"], vec![task(10, 1, 50.0, 50.0, 0.0), task(11, 1, 50.0, 50.0, 0.0)]);
    let got = after(&host(&together), plan("nice", vec![(Target::Task(id(10)), Setting::Sched(nice))]), 10);
    assert!((got.got_pct - 100.0 * 335.0 / (335.0 + 1024.0)).abs() < 3.0, "{got:?}");
    // Two on two CPUs have one each; kept to one they share it, by cpuset or by affinity.
    let two = observed(2, &["/a", "/b"], vec![task(10, 1, 99.0, 0.5, 0.0), task(11, 2, 99.0, 0.5, 0.0)]);
    let one_cpu = || CpuSet::first_n(1);
    for (a, b) in [
        ((cgroup("/a"), Setting::Cpuset(one_cpu())), (cgroup("/b"), Setting::Cpuset(one_cpu()))),
        (
            (Target::Task(id(10)), Setting::Affinity(one_cpu())),
            (Target::Task(id(11)), Setting::Affinity(one_cpu())),
        ),
    ] {
        let p = host(&two).predict(&[plan("one CPU", vec![a, b])]).unwrap();
        assert!(p[0].before.got_pct > 190.0 && (p[0].after.got_pct - 100.0).abs() < 3.0, "{p:?}");
        assert!((p[0].cpu_change_pct().unwrap() + 50.0).abs() < 3.0, "{p:?}");
    }
}

#[test]
fn a_load_that_sleeps_is_taken_for_a_closed_one() {
    // Computes 30 ms and sleeps 70 ms ten times a second, alone on the CPU.
    let alone = observed(1, &["/a"], vec![task(10, 1, 30.0, 0.0, 10.0)]);
    let p = host(&alone).predict(&[Plan::default()]).unwrap();
    assert!((p[0].before.got_pct - 30.0).abs() < 3.0, "{p:?}");
    // The same that waited: it would have slept for as long and wanted no more.
    let waited = observed(1, &["/a"], vec![task(10, 1, 25.0, 10.0, 8.0)]);
    let p = host(&waited).predict(&[Plan::default()]).unwrap();
    let wanted = 100.0 * 25.0 / (25.0 + 65.0);
    assert!((p[0].before.got_pct - wanted).abs() < 3.0, "{p:?}, wanted {wanted}");
}

#[test]
fn levers_are_ranked_as_they_were_measured() {
    // Nine loads of 146 % with 80 ms periods on two CPUs: batch and long slices give more than the default.
    let parts = [7., 10., 13., 16., 16., 16., 18., 19., 31.];
    let tasks = (0u32..).zip(parts).map(|(n, pct)| task(10 + n, 1, pct * 0.92, pct * 0.2, 12.0)).collect();
    let observation = observed(2, &["/a"], tasks);
    let all = |attr: SchedAttr| {
        (0..parts.len() as u32).map(|n| (Target::Task(id(10 + n)), Setting::Sched(attr))).collect()
    };
    let slice = SchedAttr { slice_ns: Some(100_000_000), ..SchedAttr::DEFAULT };
    let plans = [
        plan("as found", Vec::new()),
        plan("batch+slice", all(SchedAttr { policy: SchedPolicy::Batch, ..slice })),
    ];
    let predictions = host(&observation).predict(&plans).unwrap();
    let waits: Vec<f64> = predictions.iter().map(|p| p.after.wait_per_ran().unwrap()).collect();
    assert!(waits[1] < 0.9 * waits[0], "{waits:?}");
    assert!(predictions[1].cpu_change_pct().unwrap() > 0.5, "{predictions:?}");
}

#[test]
fn odd_observations_are_no_trouble() {
    // Nobody in the scope runs: nothing to predict.
    let idle = observed(2, &["/a"], vec![task(10, 1, 0.0, 0.0, 0.0), task(11, 0, 80.0, 0.0, 5.0)]);
    assert_eq!(host(&idle).predict(&[Plan::default()]).unwrap(), []);
    // Kernel threads, unknown waits, switches and classes, impossible percentages, vanished groups.
    let mut odd = vec![
        task(10, 1, 250.0, 900.0, 1e9),
        task(11, 1, 1e-9, 0.0, 0.0),
        task(12, 7, 20.0, 0.0, 3.0),
        task(13, 1, 60.0, 0.0, f64::INFINITY),
    ];
    (odd[2].wait_pct, odd[2].voluntary_per_s, odd[2].sched) = (None, None, None);
    odd.push(TaskView { kernel_thread: true, ..task(14, 1, 90.0, 0.0, 0.0) });
    odd.push(TaskView { affinity: Some(CpuSet::single(77)), ..task(15, 1, 10.0, 0.0, 10.0) });
    let found = host(&observed(2, &["/a"], odd));
    // A plan about tasks and groups nobody knows changes nothing.
    let unknown = plan(
        "unknown",
        vec![
            (Target::Task(id(99)), Setting::Affinity(CpuSet::first_n(1))),
            (cgroup("/gone"), Setting::Weight(7)),
            (cgroup("/a"), Setting::GroupIdle(true)),
        ],
    );
    let p = found.predict(&[unknown]).unwrap();
    assert_eq!(p[0].before, p[0].after);
    assert!(!p[0].tasks.contains_key(&id(14)), "a kernel thread is never of the scope");
    assert!(p[0].before.got_pct > 0.0 && p[0].before.got_pct <= 200.1, "{p:?}");
    // What the simulator does not know is an error, not a guess.
    let deadline = SchedAttr { policy: SchedPolicy::Deadline, ..SchedAttr::DEFAULT };
    let refused = found.predict(&[plan("deadline", vec![(Target::Task(id(10)), Setting::Sched(deadline))])]);
    assert!(refused.unwrap_err().to_string().contains("deadline"));
}
