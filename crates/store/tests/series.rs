//! The course of one, minute by minute, from a real file.

use std::collections::BTreeMap;

use evenkeel_base::{GroupSample, Histogram, Matcher, Sample, TaskId, TaskSample};
use evenkeel_store::{Limits, Step, Store, TaskInfo};

const S: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * S;
/// 14:00 UTC of some day that no thinning reaches.
fn two_o_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    now / MINUTE * MINUTE - 5 * MINUTE
}

const WEB: TaskId = TaskId { tgid: 1, tid: 1, start_time: 10 };
const BATCH: TaskId = TaskId { tgid: 2, tid: 2, start_time: 10 };

fn info(container: &str) -> TaskInfo {
    TaskInfo {
        comm: "x".into(),
        group: Some(format!("/docker/{container}")),
        container: Some(container.into()),
        pod: Some(format!("prod/{container}")),
    }
}

fn task(id: TaskId, ran_ns: u64, waited_ns: Option<u64>) -> TaskSample {
    TaskSample { id, cpu: Some(0), ran_ns, waited_ns, timeslices: None, voluntary: None, involuntary: None }
}

/// A host `at` seconds after it began to be watched: web gets a quarter of a CPU and waits as long, batch half of one.
fn sample(wall_ns: u64, at: u64, tasks: Vec<TaskSample>) -> Sample {
    let group = |path: &str, usage_ns, throttled_ns| GroupSample {
        path: path.into(),
        usage_ns: Some(usage_ns),
        nr_periods: None,
        nr_throttled: None,
        throttled_ns: Some(throttled_ns),
    };
    Sample {
        monotonic_ns: 1000 * S + at * S,
        wall_ns,
        cpus: Vec::new(),
        tasks,
        groups: vec![group("/docker/batch", at * S / 2, at * S / 10), group("/docker/web", at * S / 4, 0)],
        exited: Vec::new(),
    }
}

fn both(at: u64) -> Vec<TaskSample> {
    vec![task(WEB, at * S / 4, Some(at * S / 4)), task(BATCH, at * S / 2, None)]
}

struct History {
    _dir: tempfile::TempDir,
    store: Store,
}

fn history(names: [&str; 2]) -> History {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(&dir.path().join("history.db"), Limits::default()).unwrap();
    store.name_task(WEB, info(names[0]));
    store.name_task(BATCH, info(names[1]));
    History { _dir: dir, store }
}

impl History {
    fn add(&mut self, sample: &Sample) {
        self.store.add_sample(sample).unwrap();
    }

    fn steps(&mut self, who: &str, from_ns: u64, to_ns: u64, every_ns: u64) -> Vec<Step> {
        self.store.flush().unwrap();
        self.store.series(&evenkeel_store::who(who).unwrap(), from_ns, to_ns, every_ns).unwrap().steps
    }
}

fn near(value: Option<f64>, expected: f64) -> bool {
    value.is_some_and(|value| (value - expected).abs() < 0.01)
}

#[test]
fn each_minute_has_its_own_figures_and_the_ones_without_any_are_unknown() {
    let start = two_o_clock();
    let mut history = history(["web", "batch"]);
    // The first minute, half of the third; nothing in the second and from then on.
    for at in (0..=60).chain(120..=150) {
        if at == 120 {
            // Another agent.
            let path = history._dir.path().join("history.db");
            history.store.flush().unwrap();
            history.store = Store::open(&path, Limits::default()).unwrap();
            history.store.name_task(WEB, info("web"));
            history.store.name_task(BATCH, info("batch"));
        }
        history.add(&sample(start + at * S, at, both(at)));
    }
    let steps = history.steps("container:web", start, start + 5 * MINUTE, MINUTE);
    let seconds: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
    assert_eq!(seconds, [60.0, 0.0, 30.0, 0.0, 0.0]);
    let begins: Vec<u64> = steps.iter().map(|step| (step.from_ns - start) / MINUTE).collect();
    assert_eq!(begins, [0, 1, 2, 3, 4]);
    for at in [0, 2] {
        assert!(near(steps[at].cpu_pct, 25.0) && near(steps[at].wait_pct, 25.0), "{:?}", steps[at]);
        assert!(near(steps[at].throttled_pct, 0.0), "{:?}", steps[at]);
    }
    for at in [1, 3, 4] {
        let step = &steps[at];
        assert_eq!((step.cpu_pct, step.wait_pct, step.throttled_pct), (None, None, None), "{step:?}");
    }
    // What is not counted is not zero, and a cgroup's throttling is its own.
    let batch = &history.steps("pod:batch", start, start + MINUTE, MINUTE)[0];
    assert!(near(batch.cpu_pct, 50.0) && near(batch.throttled_pct, 10.0), "{batch:?}");
    assert_eq!(batch.wait_pct, None);
    // Above both there is no throttling that is one's own, and who is not there is unknown.
    let all = &history.steps("cgroup:/docker", start, start + MINUTE, MINUTE)[0];
    assert!(near(all.cpu_pct, 75.0) && all.throttled_pct.is_none(), "{all:?}");
    for both in ["pod:prod/*", "pod:pr*/*", "comm:^x$", "cgroup:/"] {
        let step = &history.steps(both, start, start + MINUTE, MINUTE)[0];
        assert!(near(step.cpu_pct, 75.0), "{both}: {step:?}");
    }
    let process = &history.steps("pid:2", start, start + MINUTE, MINUTE)[0];
    assert!(near(process.cpu_pct, 50.0), "{process:?}");
    for nobody in
        ["container:we", "container:WEB", "pod:dev/web", "pod:pr/*", "comm:^$", "cgroup:/dock", "pid:3"]
    {
        let step = &history.steps(nobody, start, start + MINUTE, MINUTE)[0];
        assert_eq!((step.seconds, step.cpu_pct), (60.0, None), "{nobody}");
    }
}

#[test]
fn a_cgroup_that_is_shared_is_throttled_for_all_in_it() {
    let start = two_o_clock();
    let mut history = history(["batch", "batch"]);
    for at in 0..=60 {
        history.add(&sample(start + at * S, at, both(at)));
    }
    let one = &history.steps("pid:2", start, start + MINUTE, MINUTE)[0];
    assert!(near(one.cpu_pct, 50.0) && one.throttled_pct.is_none(), "{one:?}");
    let all = &history.steps("container:batch", start, start + MINUTE, MINUTE)[0];
    assert!(near(all.cpu_pct, 75.0) && near(all.throttled_pct, 10.0), "{all:?}");
}

/// Jobs that lived between two samples are in the cgroup's counter, and may have had another name.
#[test]
fn of_a_name_the_cpu_of_its_cgroup_is_not_all_its_own() {
    let start = two_o_clock();
    let mut history = history(["web", "batch"]);
    for at in 0..=60 {
        history.add(&sample(start + at * S, at, vec![task(WEB, at * S / 10, None)]));
    }
    let mut cpu = |who: &str| history.steps(who, start, start + MINUTE, MINUTE)[0].cpu_pct;
    assert!(near(cpu("container:web"), 25.0) && near(cpu("comm:^x$"), 10.0));
}

#[test]
fn the_quota_of_a_cgroup_above_holds_back_those_in_it_while_they_wait() {
    let start = two_o_clock();
    let mut history = history(["web", "batch"]);
    for at in 0..=60 {
        let mut sample = sample(start + at * S, at, both(at));
        let throttled_ns = Some(at * S / 5);
        let above = GroupSample { path: "/docker".into(), throttled_ns, ..sample.groups[1].clone() };
        sample.groups.insert(0, above);
        history.add(&sample);
    }
    let mut throttled = |who: &str| history.steps(who, start, start + MINUTE, MINUTE)[0].throttled_pct;
    assert!(near(throttled("container:web"), 20.0) && near(throttled("cgroup:/docker"), 20.0));
    // Nobody knows whether batch waited: then its own quota alone counts.
    assert!(near(throttled("container:batch"), 10.0));
}

#[test]
fn who_is_there_and_idle_got_nothing_and_who_came_later_is_unknown_before() {
    let start = two_o_clock();
    let mut history = history(["web", "batch"]);
    for at in 0..=120 {
        let mut tasks = vec![task(BATCH, 5 * S, Some(S))];
        if at == 70 {
            history.store.name_task(WEB, info("web"));
        }
        if at >= 70 {
            tasks.insert(0, task(WEB, (at - 70) * S / 2, Some(0)));
        }
        let mut sample = sample(start + at * S, at, tasks);
        sample.groups.clear();
        history.add(&sample);
    }
    let batch = history.steps("container:batch", start, start + 2 * MINUTE, MINUTE);
    assert!(batch.iter().all(|s| s.cpu_pct == Some(0.0) && s.wait_pct == Some(0.0)), "{batch:?}");
    let web = history.steps("container:web", start, start + 2 * MINUTE, MINUTE);
    assert_eq!((web[0].seconds, web[0].cpu_pct), (60.0, None));
    assert!(near(web[1].cpu_pct, 100.0 * 25.0 / 60.0), "{web:?}");
}

#[test]
fn a_history_with_a_sample_a_minute_has_a_figure_for_each() {
    let start = two_o_clock();
    let mut history = history(["web", "batch"]);
    // 61 s apart, beginning at half of a minute: no two in one minute, and one minute would get none.
    for at in [0, 61, 122, 183, 244] {
        history.add(&sample(start + 30 * S + at * S, at, both(at)));
    }
    let steps = history.steps("container:web", start, start + 5 * MINUTE, MINUTE);
    let seconds: Vec<f64> = steps.iter().map(|step| step.seconds.round()).collect();
    assert_eq!(seconds, [30.0, 60.0, 60.0, 60.0, 34.0]);
    assert!(steps.iter().all(|step| near(step.cpu_pct, 25.0)), "{steps:?}");
    // The sample before the time asked for begins its first minute.
    let steps = history.steps("container:web", start + MINUTE, start + 2 * MINUTE, MINUTE);
    assert_eq!((steps.len(), steps[0].seconds.round()), (1, 60.0));
    // In one step it is all together.
    let all = history.steps("container:web", start, start + 5 * MINUTE, 1000 * MINUTE);
    let seconds: f64 = all.iter().map(|step| step.seconds).sum();
    assert!((seconds - 244.0).abs() < 1e-6, "{all:?}");
}

#[test]
fn a_clock_that_is_set_makes_no_time_and_loses_no_more_than_a_sample() {
    let start = two_o_clock();
    let hour = 60 * MINUTE;
    for (jump, after, expected) in [
        // Set back by an hour, in a block: the rest is an hour earlier.
        (-1_i64, 45, [(0, 46.0), (-60, 14.0)]),
        // Between two blocks: they are read by their walls' time, the earlier one first, and do not follow each other.
        (-1, 30, [(0, 30.0), (-60, 29.0)]),
        // Set forward by an hour: the rest is an hour later.
        (1, 30, [(0, 31.0), (60, 29.0)]),
    ] {
        let mut history = history(["web", "batch"]);
        for at in 0..=60_u64 {
            let wall = (start + at * S) as i64 + if at > after { jump * hour as i64 } else { 0 };
            history.add(&sample(wall as u64, at, both(at)));
        }
        let steps = history.steps("container:web", start - hour, start + hour + MINUTE, MINUTE);
        assert_eq!(steps.len(), 121);
        for (minute, seconds) in expected {
            let step = &steps[(60 + minute) as usize];
            assert!((step.seconds - seconds).abs() < 1e-6, "{jump} {step:?}");
            assert!(near(step.cpu_pct, 25.0), "{jump} {step:?}");
        }
        assert_eq!(steps.iter().filter(|step| step.seconds > 0.0).count(), 2, "{jump}");
        // All together, none twice.
        let again = history.steps("container:web", start - hour, start + hour + MINUTE, 1000 * hour);
        let seconds: f64 = again.iter().map(|step| step.seconds).sum();
        let sum: f64 = expected.iter().map(|(_, seconds)| seconds).sum();
        assert!((seconds - sum).abs() < 1e-6, "{jump} {again:?}");
    }
}

#[test]
fn lengths_of_waits_are_of_their_minute_and_their_container() {
    let start = two_o_clock();
    let mut history = history(["web", "batch"]);
    for at in 0..=240 {
        history.add(&sample(start + at * S, at, both(at)));
    }
    let lengths = |ns: u64| Histogram::of(&[(ns, 100)]);
    let minute = start / MINUTE;
    let mut add = |minute: u64, waits: &[(&str, u64)]| {
        let waits: BTreeMap<_, _> =
            waits.iter().map(|(name, ns)| ((*name).to_owned(), lengths(*ns))).collect();
        history.store.add_waits(minute, &waits).unwrap();
    };
    add(minute, &[("web", 1_000_000), ("batch", 64_000_000)]);
    // Counted, and none of web's; not counted in the third.
    add(minute + 1, &[("batch", 64_000_000)]);
    add(minute + 3, &[("web", 8_000_000), ("we'b", 64_000_000)]);
    let steps = history.steps("container:web", start, start + 4 * MINUTE, MINUTE);
    let counts: Vec<Option<u64>> = steps.iter().map(|s| s.waits.as_ref().map(Histogram::total)).collect();
    assert_eq!(counts, [Some(100), Some(0), None, Some(100)]);
    let p99 = |step: &Step| step.waits.as_ref().and_then(|waits| waits.quantile(0.99)).unwrap();
    assert!((1_000_000..1_300_000).contains(&p99(&steps[0])), "{}", p99(&steps[0]));
    assert!((8_000_000..10_500_000).contains(&p99(&steps[3])), "{}", p99(&steps[3]));
    assert_eq!(steps[1].waits.as_ref().unwrap().quantile(0.99), None);
    // Who was not there waited for nothing, which is not known.
    let nobody = history.steps("container:nobody", start, start + MINUTE, MINUTE);
    assert!(nobody[0].waits.is_none(), "{nobody:?}");
    // Of more minutes together; and of a cgroup, of which none are counted.
    let all = history.steps("container:web", start, start + 4 * MINUTE, 10_000 * MINUTE);
    assert_eq!(all.iter().filter_map(|s| s.waits.as_ref()).map(Histogram::total).sum::<u64>(), 200);
    let group = history.steps("cgroup:/docker/web", start, start + MINUTE, MINUTE);
    assert!(group[0].waits.is_none() && near(group[0].cpu_pct, 25.0), "{group:?}");
}

#[test]
fn names_are_data() {
    let start = two_o_clock();
    let hostile = "a'; DROP TABLE waits; --\u{1b}[2J:%_*\n";
    let mut history = history([hostile, "%"]);
    for at in 0..=60 {
        history.add(&sample(start + at * S, at, both(at)));
    }
    let waits = Histogram::of(&[(1_000_000, 7)]);
    history.store.add_waits(start / MINUTE, &BTreeMap::from([(hostile.to_owned(), waits)])).unwrap();
    let who = Matcher::Container(hostile.into());
    history.store.flush().unwrap();
    let step = &history.store.series(&who, start, start + MINUTE, MINUTE).unwrap().steps[0];
    assert_eq!(step.waits.as_ref().map(Histogram::total), Some(7));
    assert!(near(step.cpu_pct, 25.0), "{step:?}");
    // No pattern, and nothing is gone.
    let step = &history.steps("container:%", start, start + MINUTE, MINUTE)[0];
    assert_eq!(step.waits.as_ref().map(Histogram::total), Some(0));
    assert!(near(step.cpu_pct, 50.0), "{step:?}");
}

#[test]
fn the_ends_of_time_are_no_trouble() {
    let mut history = history(["web", "batch"]);
    for (at, wall) in [0, 1, u64::MAX / 2, i64::MAX as u64].into_iter().enumerate() {
        history.add(&sample(wall, at as u64, both(at as u64)));
    }
    for (from, to, every) in
        [(0, 1, 1), (5, 5, MINUTE), (9, 2, MINUTE), (u64::MAX - 1, u64::MAX, u64::MAX), (0, 60, 0)]
    {
        let steps = history.steps("container:web", from, to, every);
        assert!(steps.len() <= 60, "{from} {to} {every}: {}", steps.len());
    }
}

#[test]
fn two_processes_that_had_one_number_are_told_apart() {
    let start = two_o_clock();
    let mut history = history(["web", "batch"]);
    let late = TaskId { start_time: 104_000, ..BATCH };
    for at in 0..=60 {
        let second = match at {
            0..40 => task(BATCH, at * S / 2, None),
            _ => task(late, (at - 40) * S / 4, None),
        };
        if at == 40 {
            history.store.name_task(late, TaskInfo { comm: "sshd".into(), ..info("batch") });
        }
        history.add(&sample(start + at * S, at, vec![task(WEB, at * S / 4, None), second]));
    }
    history.store.flush().unwrap();
    let of = |who: &str| {
        history.store.series(&evenkeel_store::who(who).unwrap(), start, start + MINUTE, MINUTE).unwrap()
    };
    let seen: Vec<_> =
        of("pid:2").processes.into_iter().map(|(first, comm)| ((first - start) / S, comm)).collect();
    assert_eq!(seen, [(0, Some("x".to_owned())), (40, Some("sshd".to_owned()))]);
    assert_eq!((of("pid:1").processes.len(), of("container:web").processes.len()), (1, 0));
}
