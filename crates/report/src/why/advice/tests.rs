//! What is advised for which split.

use super::super::tests::target;
use super::super::{Split, ThrottledBy};
use super::*;

fn with(split: Split) -> Target {
    Target { shares: split.shares(), wanted_s: split.wanted_s(), split, ..target() }
}

fn facts() -> Facts {
    Facts { cpus: 2, usable: Some(2), ..Facts::default() }
}

#[test]
fn throttling_names_the_quota_and_what_would_do() {
    let advice = advise(&target(), &facts());
    assert_eq!(advice[0].lever, "quota");
    assert_eq!(
        advice[0].text,
        "throttled 30 %: quota 50 ms per 100 ms (0.50 CPU) of /docker/web with 2 threads, wanting 1.60 CPU at most; \
         raise the quota up to 160 ms per 100 ms (more is never used), or run less at once"
    );
}

#[test]
fn throttling_within_the_average_is_a_matter_of_bursts() {
    let split = Split { ran_s: 1.0, throttled_s: Some(1.0), slept_s: 8.0, ..Split::default() };
    let advice = advise(&with(split.clone()), &facts());
    assert!(
        advice[0].text.contains("comes in bursts") && advice[0].text.contains("cpu.max.burst"),
        "{advice:?}"
    );
    assert!(advice[0].text.ends_with("(a quota is used up 2 times as fast by 2 threads)"), "{advice:?}");
    let single = Target { threads: 1, ..with(split) };
    let advice = advise(&single, &facts());
    assert!(advice[0].text.ends_with("a longer period with the same ratio"), "{advice:?}");
}

#[test]
fn a_quota_that_others_used_up_is_no_matter_of_the_targets_bursts() {
    let split = Split { ran_s: 1.0, throttled_s: Some(1.0), slept_s: 8.0, ..Split::default() };
    let text = |others| {
        let facts = Facts { quota_others: others, ..facts() };
        advise(&with(split.clone()), &facts).remove(0).text
    };
    let shared = text(Some(0.35));
    assert!(shared.contains("others in that group used 0.35 CPU of it"), "{shared}");
    assert!(!shared.contains("bursts") && !shared.contains("more is never used"), "{shared}");
    assert!(text(Some(0.04)).contains("comes in bursts"), "what others use is next to nothing");
}

#[test]
fn a_competitor_is_named_with_the_lever_that_acts() {
    let split = Split { ran_s: 5.0, waited_s: 5.0, throttled_s: Some(0.0), ..Split::default() };
    let between =
        Facts { weight: Some(1024), culprit_weight: Some(2048), same_group: Some(false), ..facts() };
    let advice = advise(&with(split.clone()), &between);
    assert_eq!(advice[0].lever, "weight");
    assert!(advice[0].text.contains("90 % of that for hog<script> of container batch"), "{advice:?}");
    assert!(advice[0].text.contains("1024 (target) to 2048"), "{advice:?}");
    let within = Facts { same_group: Some(true), task_slice: Some(true), ..facts() };
    let advice = advise(&with(split.clone()), &within);
    assert!(advice[0].lever == "nice" && advice[0].text.contains("slice of one's own"), "{advice:?}");
    let pinned = Facts { usable: Some(1), idle_elsewhere_pct: Some(80.0), ..facts() };
    let advice = advise(&with(split), &pinned);
    assert!(advice[0].lever == "affinity" && advice[0].text.contains("1 of 2 CPUs"), "{advice:?}");
}

#[test]
fn own_threads_and_interrupts_are_told_apart() {
    let split = Split { ran_s: 5.0, waited_s: 5.0, throttled_s: Some(0.0), ..Split::default() };
    let mut target = with(split);
    let mut blame = target.blame.take().unwrap();
    blame[0].own = true;
    target.blame = Some(blame.clone());
    assert_eq!(advise(&target, &facts())[0].lever, "threads");
    blame[0] = Blame { kind: Kind::Softirq, own: false, name: "NET_RX".into(), ..blame[0].clone() };
    target.blame = Some(blame);
    let advice = advise(&target, &facts());
    assert!(advice[0].lever == "interrupts" && advice[0].text.contains("NET_RX"), "{advice:?}");
}

#[test]
fn who_waits_for_idle_cpus_is_not_told_to_outweigh_others() {
    let split = Split { ran_s: 5.0, waited_s: 1.0, throttled_s: Some(0.0), slept_s: 4.0, ..Split::default() };
    let mut target = with(split);
    let hog = target.blame.take().unwrap().remove(0);
    let idle = |share_pct| Blame {
        kind: Kind::Idle,
        name: "idle".into(),
        share_pct,
        seconds: share_pct / 100.0,
        ..Blame::default()
    };
    target.blame = Some(vec![idle(90.0), Blame { share_pct: 10.0, seconds: 0.1, ..hog.clone() }]);
    let advice = advise(&target, &facts());
    assert_eq!((advice.len(), advice[0].lever), (1, "none"), "{advice:?}");
    assert!(advice[0].text.contains("90 % of that for CPUs that were leaving idle"), "{advice:?}");
    // Of many, none of whom had it for long, whoever had it for longest is named.
    target.blame = Some(vec![idle(30.0), Blame { share_pct: 15.0, seconds: 0.15, ..hog }]);
    let advice = advise(&target, &facts());
    assert_eq!(advice[0].lever, "weight");
    assert!(advice[0].text.contains("most, 15 %, for hog<script>: many share its CPUs"), "{advice:?}");
}

#[test]
fn a_group_that_lost_its_turn_is_told_so_before_anything_else() {
    let mut target =
        with(Split { ran_s: 2.0, waited_s: 5.0, slept_s: 3.0, throttled_s: Some(0.0), ..Split::default() });
    target.blame.iter_mut().flatten().for_each(|b| (b.own, b.kind) = (false, Kind::Softirq));
    let waits = target.wait_histogram_usec.as_mut().unwrap();
    (waits.p50_usec, waits.max_usec) = (Some(90.0), Some(791_000.0));
    let starved = Facts { group_weight: Some(1024), ..facts() };
    let advice = advise(&target, &starved);
    assert_eq!(advice[0].lever, "weight", "{advice:?}");
    assert!(advice[0].text.contains("791 ms at the longest"), "{advice:?}");
    assert!(advice[0].text.contains("from 1024 to 16384"), "{advice:?}");
    // In the root group there is no weight to raise; nor is it a lost turn where all waits are long.
    assert_eq!(advise(&target, &facts())[0].lever, "interrupts");
    target.wait_histogram_usec.as_mut().unwrap().p50_usec = Some(200_000.0);
    assert_eq!(advise(&target, &starved)[0].lever, "interrupts");
    target.wait_histogram_usec.as_mut().unwrap().max_usec = Some(2_950_000.0);
    assert!(advise(&target, &starved)[0].text.contains("2.95 s at the longest"));
}

#[test]
fn who_weighs_little_has_not_lost_its_turn_by_a_long_wait() {
    let mut target = with(Split { ran_s: 0.1, waited_s: 9.9, throttled_s: Some(0.0), ..Split::default() });
    let waits = target.wait_histogram_usec.as_mut().unwrap();
    (waits.p50_usec, waits.max_usec) = (Some(900_000.0), Some(1_600_000.0));
    let weights = |mine| Facts {
        weight: Some(mine),
        culprit_weight: Some(1024),
        group_weight: Some(mine),
        same_group: Some(false),
        ..facts()
    };
    let advice = advise(&target, &weights(2));
    assert!(advice.iter().all(|advice| !advice.text.contains("lost its turn")), "{advice:?}");
    assert!(advice[0].text.contains("2 (target) to 1024"), "{advice:?}");
    assert!(advise(&target, &weights(1024))[0].text.contains("lost its turn"));
}

#[test]
fn a_sleeper_and_a_runner_need_nothing() {
    let sleeper = with(Split { slept_s: 10.0, ..Split::default() });
    assert!(advise(&sleeper, &facts())[0].text.starts_with("slept 100 %"));
    let stopped = Target { stopped_s: Some(10.0), blocked_s: None, ..sleeper };
    assert!(advise(&stopped, &facts())[0].text.starts_with("stopped 100 %"));
    let runner = with(Split { ran_s: 9.9, waited_s: 0.1, ..Split::default() });
    assert_eq!(advise(&runner, &facts())[0].lever, "none");
}

#[test]
fn who_waits_for_a_disk_is_told_so_rather_than_to_get_more_cpu() {
    let split = Split { ran_s: 1.0, waited_s: 1.0, slept_s: 8.0, ..Split::default() };
    let target = Target { blocked_s: Some(5.0), ..with(split) };
    let first = |target: &Target, io, own| {
        let facts = Facts { io_stalled_pct: io, io_own: own, ..facts() };
        advise(target, &facts).remove(0)
    };
    let disk = first(&target, Some(43.0), true);
    assert_eq!(disk.lever, "disk");
    assert!(disk.text.contains("blocked 50 % while its cgroup was stalled on I/O 43 %"), "{disk:?}");
    assert!(first(&target, Some(43.0), false).text.contains("this host was stalled"));
    assert!(first(&target, Some(0.1), true).text.contains("locks in the kernel"));
    // Between the two, and where nothing is told, both stay possible.
    for io in [Some(3.0), None] {
        assert!(first(&target, io, true).text.contains("on disk or locks"));
    }
    // Who waits for a CPU for longer is told that, and who is hardly blocked no word of a disk.
    let split = Split { ran_s: 1.0, waited_s: 6.0, slept_s: 3.0, ..Split::default() };
    let waits = Target { blocked_s: Some(2.5), ..with(split) };
    assert!(advise(&waits, &facts()).iter().all(|advice| advice.lever != "disk"));
    let hardly = Target { blocked_s: Some(1.0), ..target };
    assert!(advise(&hardly, &facts()).iter().all(|advice| advice.lever != "disk"));
}

#[test]
fn a_wait_of_which_a_quota_may_be_the_reason_is_not_put_down_to_weights() {
    let split = Split { ran_s: 1.0, waited_s: 7.0, throttled_s: None, slept_s: 2.0, ..Split::default() };
    let mut target = with(split);
    target.blame = None;
    let advice = advise(&target, &facts());
    assert_eq!(advice[0].lever, "quota", "{advice:?}");
    assert!(advice[0].text.starts_with("waited 70 %, some of it for the quota of /docker/web (quota 50 ms"));
    target.throttled_by[0].seconds = Some(0.0);
    assert_eq!(advise(&target, &facts())[0].lever, "weight");
}

#[test]
fn little_known_still_gives_advice() {
    let split = Split { ran_s: 1.0, waited_s: 1.0, throttled_s: None, stolen_s: Some(1.0), slept_s: 0.0 };
    let mut target = with(split);
    target.blame = None;
    target.wait_histogram_usec = None;
    target.throttled_by =
        vec![ThrottledBy { cgroup: None, seconds: None, quota_usec: None, period_usec: None, periods: None }];
    let levers: Vec<_> = advise(&target, &Facts::default()).iter().map(|a| a.lever).collect();
    assert_eq!(levers, ["weight", "hypervisor"]);
}
