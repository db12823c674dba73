use super::*;
use crate::decide::decide;
use crate::record::{Ended, StealRecord};
use crate::study::study;
use crate::study::testing::{cell, record, tenant};
use proptest::prelude::*;

fn tried(rows: &[(Option<f64>, f64, f64)]) -> Vec<Tried> {
    let sure = |v: f64| Mean::of(&[v, v, v]).unwrap();
    rows.iter()
        .map(|&(limit_pct, real_s, stolen)| Tried { limit_pct, real_s: sure(real_s), stolen: sure(stolen) })
        .collect()
}

fn told(tried: &[Tried]) -> Option<Stealing> {
    let claims = claims(tried)?;
    classify(&claims.all.iter().map(|(f, c)| decide(f, *c, 0.01)).collect::<Vec<_>>())
}

#[test]
fn the_sources_three_machines_are_told_apart() {
    // t1.micro: 187 min without a limit, most of it stolen; 90, 75 and 87 min under 25, 30 and 40 %.
    let micro = tried(&[
        (None, 187.0, 0.88),
        (Some(25.0), 90.1, 0.0),
        (Some(30.0), 75.1, 0.01),
        (Some(40.0), 87.4, 0.3),
    ]);
    assert_eq!(told(&micro), Some(Stealing::ThrottledBurst));
    // m3.medium: 40-50 % stolen all the time.
    let shared = tried(&[(None, 31.7, 0.45), (Some(50.0), 60.0, 0.44), (Some(25.0), 120.0, 0.46)]);
    assert_eq!(told(&shared), Some(Stealing::SharedCore));
    // t2.micro: credits last, or run out in the middle.
    let credits = tried(&[(None, 14.8, 0.2), (Some(50.0), 20.0, 0.05), (Some(10.0), 96.0, 0.0)]);
    assert_eq!(told(&credits), Some(Stealing::Credits));
    let nothing = tried(&[(None, 10.0, 0.0), (Some(50.0), 20.0, 0.0)]);
    assert_eq!(told(&nothing), Some(Stealing::Nothing));
    assert_eq!(told(&nothing[1..]), None);
    assert_eq!(told(&[]), None);
    // One run of each says nothing.
    let single: Vec<Tried> = micro
        .iter()
        .map(|t| Tried {
            real_s: Mean::of(&[t.real_s.value]).unwrap(),
            stolen: Mean::of(&[t.stolen.value]).unwrap(),
            ..*t
        })
        .collect();
    assert_eq!(told(&single), None);
}

const WINDOW: Rule =
    Rule::Window { window_s: 100.0, above: 0.33, below: 0.3, stolen: 0.97, counts_stolen: true };

/// A job of so many seconds under a limit and a rule, `stolen` of them.
fn job(limit: Option<f64>, rule: Option<Rule>, seconds: f64, stolen_s: f64) -> Cell {
    let mut job = tenant("job", None, &[(0.0, seconds, 1000.0)]);
    job.workload = "primes --events 1000".into();
    job.limits.quota_pct = limit;
    (job.total.user_s, job.total.sys_s, job.total.stolen_s) = (Some(0.5), Some(0.0), Some(stolen_s));
    let enforcer = rule.map(|rule| StealRecord {
        rule,
        time_scale: 100.0,
        demanded_s: 1.0,
        given_s: 0.5,
        stolen_s,
        ..StealRecord::default()
    });
    Cell { enforcer, ..cell(vec![job]) }
}

/// Label, limit, rule, seconds, stolen seconds.
type Row = (&'static str, Option<f64>, Option<Rule>, f64, f64);

fn limits_study(rows: &[Row]) -> Study {
    let mut cells = Vec::new();
    for wobble in [0.0, 0.01, -0.01] {
        for &(label, limit, rule, seconds, stolen) in rows {
            cells.push((label, job(limit, rule, seconds * (1.0 + wobble), stolen)));
        }
    }
    study(&record(cells))
}

#[test]
fn points_of_different_rules_are_never_one_series() {
    // Under the window rule the limit takes longer than none; the fast point is under another rule.
    let study = limits_study(&[
        ("window, no limit", None, Some(WINDOW), 5.0, 3.0),
        ("window, 60 %", Some(60.0), Some(WINDOW), 6.0, 4.0),
        ("credits, no limit", None, Some(Rule::t2_micro(2.0)), 0.5, 0.0),
        ("credits, 60 %", Some(60.0), Some(Rule::t2_micro(2.0)), 0.8, 0.0),
    ]);
    let of: Vec<_> = study.verdicts.iter().filter(|v| v.id == "does-a-limit-help").collect();
    assert_eq!(of.len(), 2);
    assert!(of.iter().all(|v| v.holds == Some(false)), "{of:#?}");
}

#[test]
fn neighbours_are_no_subject_and_one_repetition_is_undecided() {
    // A neighbour that is limited, too, makes each point a set-up of its own.
    let beside = |limit: Option<f64>, seconds: f64| {
        let mut cell = job(limit, None, seconds, 0.0);
        let mut other = tenant("a", None, &[(0.0, 9.0 - seconds, 5000.0)]);
        (other.runs_planned, other.workload) = (0, "spin".into());
        other.limits.quota_pct = limit.map(|l| 200.0 - l);
        cell.tenants.insert(0, other);
        cell
    };
    let roles = study(&record(vec![("none", beside(None, 3.0)), ("20 %", beside(Some(20.0), 1.0))]));
    assert!(roles.verdicts.iter().all(|v| v.id != "does-a-limit-help"), "{:#?}", roles.verdicts);
    let single = study(&record(vec![
        ("none", job(None, Some(WINDOW), 5.0, 3.0)),
        ("30 %", job(Some(30.0), Some(WINDOW), 1.0, 0.0)),
    ]));
    let v = single.verdicts.iter().find(|v| v.id == "does-a-limit-help").unwrap();
    assert!(v.holds.is_none() && v.text.contains("one repetition"), "{v:?}");
}

#[test]
fn a_command_that_fails_at_once_is_not_helped_by_its_limit() {
    let of = |ended: Option<Ended>, exit_status: Option<i32>| {
        let mut cells = Vec::new();
        for wobble in [0.0, 0.01, -0.01] {
            let free = job(None, Some(WINDOW), 5.0 + wobble, 4.0);
            let mut limited = job(Some(25.0), Some(WINDOW), 1.0 + wobble, 0.0);
            if let Some(ended) = &ended {
                limited.tenants[0].ended = ended.clone();
            }
            limited.tenants[0].runs[0].exit_status = exit_status;
            cells.extend([("none", free), ("25", limited)]);
        }
        let study = study(&record(cells));
        study.verdicts.into_iter().find(|v| v.id == "does-a-limit-help").and_then(|v| v.holds)
    };
    assert_eq!((of(None, None), of(None, Some(0))), (Some(true), Some(true)));
    assert_eq!((of(None, Some(2)), of(Some(Ended::Died("killed".into())), None)), (None, None));
}

#[test]
fn runs_of_so_many_seconds_are_done_no_sooner() {
    let mut cells = Vec::new();
    for wobble in [0.0, 0.01, -0.01] {
        for (label, limit, stolen) in [("none", None, 4.0), ("25", Some(25.0), 0.0)] {
            let mut cell = job(limit, Some(WINDOW), 5.0 + wobble, stolen);
            cell.tenants[0].workload = "primes --seconds 5".into();
            cells.push((label, cell));
        }
    }
    let said = study(&record(cells)).verdicts;
    assert!(said.iter().all(|v| v.id != "does-a-limit-help" && v.id != "which-rule"), "{said:?}");
}

#[test]
fn a_run_that_was_cut_off_is_a_lower_bound() {
    let mut cells = Vec::new();
    for n in 0..3 {
        let mut long = job(None, Some(WINDOW), 10.0, 9.0);
        long.tenants[0].ended = crate::record::Ended::TimeLimit("10 s".into());
        long.tenants[0].runs.clear();
        long.seconds = 10.0;
        cells.push(("none", long));
        cells.push(("30 %", job(Some(30.0), Some(WINDOW), 2.0 + f64::from(n) * 0.01, 0.0)));
    }
    let study = study(&record(cells));
    assert!(study.points[0].tenants[0].cut_off);
    let v = study.verdicts.iter().find(|v| v.id == "does-a-limit-help").unwrap();
    assert_eq!(v.holds, Some(true), "{v:?}");
    assert!(v.text.contains("at least 4.") && v.text.contains("more than 10.0 s"), "{}", v.text);
    assert!(v.text.contains("cut off"), "{}", v.text);
    assert_eq!(v.test.interval.unwrap()[1], None);
}

#[test]
fn one_run_that_was_cut_off_is_a_lower_bound_too() {
    let mut long = job(None, Some(WINDOW), 10.0, 9.0);
    long.tenants[0].ended = crate::record::Ended::TimeLimit("10 s".into());
    long.tenants[0].runs.clear();
    long.seconds = 10.0;
    let study = study(&record(vec![("none", long), ("30 %", job(Some(30.0), Some(WINDOW), 2.0, 0.0))]));
    let v = study.verdicts.iter().find(|v| v.id == "does-a-limit-help").unwrap();
    assert!(v.holds.is_none() && v.text.contains("at least 5.00 times as fast"), "{}", v.text);
}

proptest! {
    // Each case computes hours of use in steps of a tenth of a second.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_models_rules_are_told_apart(cpu_s in 600.0f64..3000.0, stolen in 0.2f64..0.7) {
        use evenkeel_model::credit::{Job, run};
        let limits = [None, Some(0.1), Some(0.2), Some(0.3), Some(0.4)];
        let see = |rule: &Rule| -> Vec<Tried> {
            let rows: Vec<_> = limits.iter().map(|limit| {
                let out = run(rule, Job { cpu_s, busy: 1.0 }, *limit);
                (limit.map(|l| 100.0 * l), out.real_s.unwrap(), out.stolen_s / (out.stolen_s + cpu_s))
            }).collect();
            tried(&rows)
        };
        prop_assert_eq!(told(&see(&Rule::Constant { stolen })), Some(Stealing::SharedCore));
        prop_assert_eq!(told(&see(&Rule::T1_MICRO_FITTED)), Some(Stealing::ThrottledBurst));
        // Few enough credits that they run out without a limit.
        prop_assert_eq!(told(&see(&Rule::Credits { start: 5.0, per_hour: 6.0, cap: 144.0 })), Some(Stealing::Credits));
        prop_assert_eq!(told(&see(&Rule::None)), Some(Stealing::Nothing));
    }
}
