use super::*;
use crate::study::testing::{cell, steady, tenant as runs};
use proptest::prelude::*;

fn host(cpus: u32) -> Host {
    Host { cpus: Some(cpus), ..Host::default() }
}

#[test]
fn weights_that_hold_and_weights_that_cannot() {
    // 1:2:4:8 on one CPU, in proportion.
    let four =
        |rates: [f64; 4]| cell((0..4).map(|i| steady(&format!("t{i}"), 1 << i, 5, rates[i])).collect());
    let held = four([100.0, 200.0, 400.0, 800.0]);
    let study = point(&host(1), &[&held], |_, _| None).unwrap();
    assert!(study.together.off_weights_pct.unwrap() < 1e-9, "{:?}", study.together);
    assert!((study.together.jain.unwrap() - 1.0).abs() < 1e-9);
    assert!((study.together.proportion.unwrap().slope - 1.0).abs() < 1e-9);
    // On two CPUs one thread can have one CPU at most: 1/7, 2/7, 4/7 of the other for the rest.
    let full = four([100.0, 200.0, 400.0, 700.0]);
    let study = point(&host(2), &[&full], |_, _| None).unwrap();
    assert!((study.tenants[3].feasible_pct.unwrap() - 50.0).abs() < 1e-6);
    assert!((study.tenants[3].weight_pct.unwrap() - 100.0 * 8.0 / 15.0).abs() < 1e-6);
    assert!(study.together.off_feasible_pct.unwrap() < 1e-9 && study.together.off_weights_pct.unwrap() > 5.0);
}

#[test]
fn repetitions_give_an_interval_and_failures_are_told() {
    let a = cell(vec![steady("a", 1, 3, 100.0), steady("b", 1, 3, 100.0)]);
    let mut b = cell(vec![steady("a", 1, 3, 110.0), steady("b", 1, 3, 90.0)]);
    b.tenants[1].ended = Ended::TimeLimit("9 s".into());
    let study = point(&host(2), &[&a, &b], |_, _| None).unwrap();
    let share = study.tenants[0].share_pct.unwrap();
    assert!((share.value - 52.5).abs() < 1e-9 && share.low < 50.0 && share.high > 55.0, "{share:?}");
    assert_eq!(study.tenants[1].incomplete, ["still there after 9 s"]);
    // Nobody's CPU time is known: unknown, not 0.
    assert_eq!(study.tenants[0].user_s, None);
    assert_eq!(study.tenants[0].cpu_ms_per_event, None);
    assert_eq!(study.together.woken_late_usec_max, None);
}

#[test]
fn a_run_that_did_not_do_its_work_has_no_length() {
    // The last run of b was told to end, or its command failed: it took longer than that, or nobody knows.
    let whole = [(0.0, 4.0, 400.0), (4.0, 8.0, 400.0)];
    let of = |change: &dyn Fn(&mut TenantRecord)| {
        let mut b = runs("b", None, &[(0.0, 6.0, 300.0), (6.0, 8.0, 100.0)]);
        change(&mut b);
        let study = point(&host(2), &[&cell(vec![runs("a", None, &whole), b])], |_, _| None).unwrap();
        let [all, own] = [study.together.run_s, study.tenants[1].run_s].map(|run_s| run_s.map(|s| s.mean));
        let share = study.tenants[1].share_pct.map(|s| s.value.round());
        (own, all, study.tenants[1].elapsed_s.map(|e| e.value), share)
    };
    assert_eq!(of(&|_| ()), (Some(4.0), Some(4.0), Some(8.0), Some(33.0)));
    let cut = of(&|b| {
        b.ended = Ended::TimeLimit("8 s".into());
        (b.runs[1].cut_off, b.runs[1].exit_status) = (true, Some(137));
    });
    // What it did in its time still tells its share.
    assert_eq!(cut, (Some(6.0), Some(14.0 / 3.0), Some(8.0), Some(33.0)));
    let of_old = of(&|b| {
        b.ended = Ended::TimeLimit("8 s".into());
        b.runs[1].exit_status = Some(137);
    });
    assert_eq!(of_old, cut, "a record without `cut_off`");
    let failed = of(&|b| b.runs[1].exit_status = Some(2));
    assert_eq!((failed.0, failed.1, failed.2), (Some(6.0), Some(14.0 / 3.0), None));
}

#[test]
fn waits_are_the_sources() {
    // The source's own figures: 10.013160 s idle, 10.129867 s with 20: 0.116707 s.
    let t = cell(vec![runs("a", Some(64), &[(0.0, 10.129_867, 970.0), (10.129_867, 20.259_734, 970.0)])]);
    let alone = Estimate { value: 10.013_160, low: 10.013_160, high: 10.013_160 };
    let study = point(&host(2), &[&t], |_, _| Some(alone)).unwrap();
    assert!((study.tenants[0].wait_per_run_s.unwrap().value - 0.116_707).abs() < 1e-9);
    assert!((study.tenants[0].wait_total_s.unwrap() - 0.233_414).abs() < 1e-9);
}

proptest! {
    // Each case draws thousands of samples.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn shares_sum_to_a_hundred_and_scale_does_not_matter(rates in proptest::collection::vec(10.0f64..10_000.0, 2..8), factor in 1u32..50) {
        let make = |f: f64| cell(rates.iter().map(|r| steady("t", 1, 3, (r * f).round())).collect());
        let study = point(&host(4), &[&make(f64::from(factor))], |_, _| None).unwrap();
        let sum: f64 = study.tenants.iter().map(|t| t.share_pct.unwrap().value).sum();
        prop_assert!((sum - 100.0).abs() < 1e-6);
        let j = study.together.jain.unwrap();
        prop_assert!(j <= 1.0 + 1e-9 && j >= 1.0 / rates.len() as f64 - 1e-9);
        let feasible: f64 = study.tenants.iter().map(|t| t.feasible_pct.unwrap()).sum();
        prop_assert!((feasible - 100.0).abs() < 1e-6);
    }
}
