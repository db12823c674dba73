use super::*;
use proptest::prelude::*;

pub(crate) fn target() -> Target {
    let split =
        Split { ran_s: 4.0, waited_s: 1.0, throttled_s: Some(3.0), stolen_s: Some(0.0), slept_s: 2.0 };
    Target {
        schema: "evenkeel.why/v1",
        target: "container:web".into(),
        source: "bpf",
        wall_s: 5.0,
        threads: 2,
        shares: split.shares(),
        wanted_s: split.wanted_s(),
        split,
        blocked_s: Some(0.5),
        stopped_s: Some(0.0),
        interrupted_s: Some(0.01),
        migrations: Some(3),
        preemptions: Some(100),
        voluntary: Some(50),
        wait_histogram_usec: Some(Waits {
            count: 150,
            p50_usec: Some(12.0),
            p99_usec: Some(4100.0),
            max_usec: Some(28_000.0),
            buckets: vec![
                Bucket { from: 8, to: 16, count: 140 },
                Bucket { from: 16, to: 32, count: 0 },
                Bucket { from: 4096, to: 8192, count: 10 },
            ],
        }),
        blame: Some(vec![Blame {
            kind: Kind::Task,
            name: "hog<script>".into(),
            tgid: Some(7),
            tid: Some(7),
            container: Some("batch".into()),
            pod: None,
            cgroup: Some("/docker/batch".into()),
            own: false,
            seconds: 0.9,
            share_pct: 90.0,
        }]),
        throttled_by: vec![ThrottledBy {
            cgroup: Some("/docker/web".into()),
            seconds: Some(3.0),
            quota_usec: Some(50_000),
            period_usec: Some(100_000),
            periods: Some([40, 50]),
        }],
        ..Target::default()
    }
}

pub(crate) fn host() -> Host {
    let group = |name: &str, waited_s| Group {
        name: name.into(),
        pod: None,
        kind: "container",
        split: Split { waited_s, ..target().split },
        shares_of_wanted: Split { waited_s, ..target().split }.shares_of(8.0),
        wait_histogram_usec: target().wait_histogram_usec.unwrap_or_default(),
    };
    Host {
        schema: "evenkeel.why-all/v1",
        started: None,
        wall_s: 5.0,
        cpus: 2,
        groups: vec![group("web", 1.0), group("batch", 0.5)],
        culprits: vec![
            Column { kind: Kind::Container, name: "batch".into(), group: Some(1), seconds: 1.2 },
            Column { kind: Kind::Softirq, name: "NET_RX".into(), group: None, seconds: 0.3 },
        ],
        matrix: vec![
            Cell { victim: 0, culprit: 0, seconds: 0.9, share_pct: 90.0 },
            Cell { victim: 0, culprit: 1, seconds: 0.1, share_pct: 10.0 },
            Cell { victim: 1, culprit: 0, seconds: 0.3, share_pct: 60.0 },
        ],
        at_least: false,
        lost: 0,
    }
}

#[test]
fn what_is_not_known_is_not_nothing() {
    let split = Split { ran_s: 1.0, slept_s: 1.0, ..Split::default() };
    let shares = split.shares().unwrap();
    assert_eq!((shares.ran, shares.throttled), (50.0, None));
    assert_eq!(Split::default().shares(), None);
    let mut sum = Split { throttled_s: Some(1.0), stolen_s: Some(2.0), ..Split::default() };
    sum.add(&Split { stolen_s: Some(1.0), ..split });
    assert_eq!((sum.ran_s, sum.throttled_s, sum.stolen_s), (1.0, None, Some(3.0)));
}

#[test]
fn the_document_has_the_contracts_fields() {
    let document = serde_json::to_value(target()).unwrap();
    for field in [
        "schema",
        "wall_s",
        "ran_s",
        "waited_s",
        "throttled_s",
        "stolen_s",
        "slept_s",
        "wait_histogram_usec",
        "blame",
    ] {
        assert!(!document[field].is_null(), "{field}");
    }
    assert_eq!(document["blame"][0]["kind"], "task");
    assert_eq!(document["blame"][0]["share_pct"], 90.0);
}

#[test]
fn tasks_of_one_name_are_one_culprit() {
    let one = target().blame.unwrap_or_default().remove(0);
    let row = |tid, seconds, kind| Blame { tid: Some(tid), seconds, share_pct: seconds, kind, ..one.clone() };
    let list = by_name(&[row(1, 5.0, Kind::KernelThread), row(2, 3.0, Kind::Task), row(3, 4.0, Kind::Task)]);
    assert_eq!(list.len(), 2);
    assert_eq!((list[0].name.as_str(), list[0].seconds), ("hog<script> (2 threads)", 7.0));
    assert_eq!((list[0].tid, list[0].tgid, list[1].tid), (None, Some(7), Some(1)));
}

#[test]
fn whose_weight_is_compared_is_whom_advice_names() {
    let one = target().blame.unwrap_or_default().remove(0);
    let row = |tid, name: &str, share_pct| Blame {
        tid: Some(tid),
        name: name.into(),
        seconds: share_pct,
        share_pct,
        cgroup: Some(format!("/{name}")),
        ..one.clone()
    };
    // Of single threads the hog has most; of programs, the compiler.
    let blame = [row(1, "hog", 40.0), row(2, "cc1", 30.0), row(3, "cc1", 30.0)];
    let found = rival(&blame).unwrap();
    assert_eq!((found.name.as_str(), found.cgroup.as_deref()), ("cc1 (2 threads)", Some("/cc1")));
    let mut target = target();
    target.split = Split { ran_s: 5.0, waited_s: 5.0, throttled_s: Some(0.0), ..Split::default() };
    target.shares = target.split.shares();
    target.blame = Some(blame.to_vec());
    let text = advise(&target, &Facts { cpus: 2, ..Facts::default() }).remove(0).text;
    assert!(text.contains(&found.name), "{text}");
    let own = blame.map(|row| Blame { own: true, ..row });
    assert_eq!(rival(&own), None);
}

#[test]
fn quotas_within_each_other_hold_back_together_and_not_twice() {
    let mut target = target();
    let one = target.throttled_by.remove(0);
    let mut held = |rows: &[(&str, f64)]| {
        let row = |(path, seconds): &(&str, f64)| ThrottledBy {
            cgroup: Some((*path).into()),
            seconds: Some(*seconds),
            ..one.clone()
        };
        target.throttled_by = rows.iter().map(row).collect();
        target.held_back_s()
    };
    assert_eq!(held(&[]), (0.0, 0.0));
    assert_eq!(held(&[("/a", 2.0), ("/ab", 3.0)]), (5.0, 5.0), "neither is in the other");
    assert_eq!(held(&[("/a", 2.0), ("/a/b", 3.0)]), (3.0, 5.0));
    // Of different threads, those of a cgroup's cgroups add up.
    assert_eq!(held(&[("/a", 4.0), ("/a/b", 3.0), ("/a/c", 2.0)]), (5.0, 9.0));
    assert_eq!(held(&[("/", 1.0), ("/a", 4.0), ("/a/b/c", 3.0), ("/d", 2.0)]), (6.0, 10.0));
}

#[test]
fn spans_are_short() {
    let spans = [3.21, 12.0, 4100.0, 28_000.0, 1_250_000.0].map(span);
    assert_eq!(spans, ["3.2 us", "12 us", "4.1 ms", "28 ms", "1.25 s"]);
}

proptest! {
    #[test]
    fn shares_sum_to_100(times in proptest::array::uniform5(0.0f64..1e6), known: [bool; 2]) {
        let [ran_s, waited_s, throttled, stolen, slept_s] = times;
        let split = Split {
            ran_s, waited_s, slept_s,
            throttled_s: known[0].then_some(throttled),
            stolen_s: known[1].then_some(stolen),
        };
        if let Some(s) = split.shares() {
            let sum = s.ran + s.waited + s.slept + s.throttled.unwrap_or(0.0) + s.stolen.unwrap_or(0.0);
            prop_assert!((sum - 100.0).abs() < 1e-6, "{sum}");
        }
    }
}
