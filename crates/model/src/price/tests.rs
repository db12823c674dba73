use proptest::prelude::*;

use super::*;
use crate::families;

fn ask(minutes: f64, threads: u32, busy: f64) -> Ask {
    Ask::new(minutes, threads, busy, None).unwrap()
}

fn on(name: &str, ask: &Ask) -> Reckoned {
    reckon(&Machine::from(&families::of(name).unwrap()), ask)
}

/// Minutes of a run.
fn minutes(name: &str, ask: &Ask) -> f64 {
    on(name, ask).time_s().unwrap() / 60.0
}

#[track_caller]
fn near(a: f64, b: f64) {
    assert!((a / b - 1.0).abs() < 0.005, "{a} against {b}");
}

#[test]
fn what_is_no_job_is_refused_in_words() {
    for minutes in [0.0, -0.0, -5.0, f64::NAN, f64::INFINITY, 1e300] {
        let error = Ask::new(minutes, 1, 1.0, None).unwrap_err();
        assert!(error.to_string().contains("CPU minutes"), "{error}");
    }
    for busy in [0.0, -1.0, 1.1, f64::NAN] {
        assert!(matches!(Ask::new(1.0, 1, busy, None), Err(AskError::Busy(_))), "{busy}");
    }
    for every in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(Ask::new(1.0, 1, 1.0, Some(every)), Err(AskError::Every(_))), "{every}");
    }
    assert_eq!(Ask::new(1.0, 0, 1.0, None), Err(AskError::Threads(0)));
    assert_eq!(Ask::new(1.0, u32::MAX, 1.0, None), Err(AskError::Threads(u32::MAX)));
    assert!(Ask::new(MAX_CPU_MINUTES, MAX_THREADS, MIN_BUSY, Some(1.0)).is_ok());
}

/// By hand, from the documents.
#[test]
fn times_are_those_of_arithmetic() {
    // t2.micro: 30 credits less 6 an hour earned last 33 1/3 minutes at full speed; then a tenth.
    near(minutes("t2.micro", &ask(30.0, 1, 1.0)), 30.0);
    near(minutes("t2.micro", &ask(100.0, 1, 1.0)), 33.333 + (100.0 - 33.333) * 10.0);
    near(on("t2.micro", &ask(100.0, 1, 1.0)).plain.throttled_after_s.unwrap(), 2000.0);
    // t3.micro: nothing at the start; two CPUs of 10 % are 20 % for a single thread, too.
    near(minutes("t3.micro", &ask(10.0, 1, 1.0)), 50.0);
    near(minutes("t3.micro", &ask(10.0, 2, 1.0)), 50.0);
    // t3.2xlarge: 3.2 CPUs for ever, so three threads are never held back and eight are.
    near(minutes("t3.2xlarge", &ask(90.0, 3, 1.0)), 30.0);
    near(minutes("t3.2xlarge", &ask(96.0, 8, 1.0)), 30.0);
    // e2-micro: an eighth of each CPU.
    near(minutes("e2-micro", &ask(10.0, 1, 1.0)), 80.0);
    near(minutes("e2-micro", &ask(10.0, 2, 1.0)), 40.0);
    near(minutes("e2-micro", &ask(10.0, 64, 1.0)), 40.0);
    // shared-cpu-1x: 5 s at the start, beyond the sixteenth: 5 / (1 - 1/16) = 5 1/3 s.
    let fly = on("shared-cpu-1x", &ask(1.0, 1, 1.0));
    assert!((fly.plain.throttled_after_s.unwrap() - 5.333).abs() < 0.2, "{fly:?}");
    near(fly.time_s().unwrap(), 5.333 + (60.0 - 5.333) * 16.0);
    // m3.medium: 45 % stolen. Pauses last as long as ever: 11 minutes of pauses next to 11 of work.
    near(minutes("m3.medium", &ask(11.0, 1, 1.0)), 20.0);
    near(minutes("m3.medium", &ask(11.0, 1, 0.5)), 31.0);
}

/// Machine repair, one repairer: two threads that work and pause equally long keep a CPU busy 4/5 of the time.
#[test]
fn threads_beyond_the_cpus_use_the_pauses_of_the_others() {
    near(asked(2, 1, 0.5, 1.0), 0.8);
    near(asked(1, 1, 0.5, 1.0), 0.5);
    near(asked(3, 3, 0.25, 1.0), 0.75);
    near(asked(2, 2, 0.5, 0.5), 4.0 / 3.0);
    near(asked(4096, 64, 0.9, 1.0), 64.0);
    near(asked(4096, 64, 1.0, 0.5), 64.0);
    near(asked(4096, 4096, 0.001, 1.0), 4.096);
}

proptest! {
    #[test]
    fn more_threads_or_more_cpus_never_ask_for_less(
        threads in 1u32..400, cpus in 1u32..64, busy in MIN_BUSY..=1.0, rate in 0.05..=1.0f64
    ) {
        let asks = asked(threads, cpus, busy, rate);
        prop_assert!(asks <= f64::from(cpus.min(threads)) * (1.0 + 1e-9), "{asks}");
        prop_assert!(asks <= f64::from(threads) * busy / (busy + (1.0 - busy) * rate) * (1.0 + 1e-9), "{asks}");
        prop_assert!(asked(threads + 1, cpus, busy, rate) >= asks * (1.0 - 1e-9));
        prop_assert!(asked(threads, cpus + 1, busy, rate) >= asks * (1.0 - 1e-9));
        prop_assert!(asked(threads, cpus, busy, 0.9 * rate) >= asks * (1.0 - 1e-9));
    }
}

#[test]
fn a_limit_helps_where_use_is_punished_and_nowhere_else() {
    let build = ask(20.5, 1, 0.91);
    let found = on("t1.micro", &build);
    let (limit, outcome) = found.best.unwrap();
    // 32.9 % are free of 91 % of the limit: 36 %.
    assert!((limit - 0.36).abs() < 1e-9, "{limit}");
    assert!(outcome.real_s < Some(0.4 * found.plain.real_s.unwrap()), "{found:?}");
    for family in families::known() {
        let best = reckon(&Machine::from(&family), &build).best;
        assert_eq!(best.is_some(), matches!(family.rule, Rule::Penalty { .. }), "{}", family.name);
    }
    // A job within the burst: a limit would only cost.
    assert_eq!(on("t1.micro", &ask(0.1, 1, 1.0)).best, None);
}

#[test]
fn what_runs_every_so_often_finds_its_credits_full_or_falls_behind() {
    // 6 credits an hour: five are earned again, seven are not.
    let hourly = |minutes| on("t2.micro", &Ask::new(minutes, 1, 1.0, Some(3600.0)).unwrap());
    assert_eq!((hourly(5.0).behind, hourly(5.0).start), (false, Some(144.0)));
    near(hourly(5.0).time_s().unwrap(), 300.0);
    assert_eq!((hourly(7.0).behind, hourly(7.0).time_s()), (true, None));
    // Without a rule the clock decides.
    let plain = |minutes| reckon(&Machine::plain(1), &Ask::new(minutes, 1, 1.0, Some(3600.0)).unwrap());
    assert!(!plain(59.9).behind && plain(60.1).behind);
    assert_eq!(Ask::new(1.0, 1, 1.0, Some(3600.0)).unwrap().paid_s(7.0), 3600.0);
    assert_eq!(ask(1.0, 1, 1.0).paid_s(7.0), 7.0);
}

#[test]
fn beyond_its_credits_an_unlimited_one_pays() {
    let machine = |name| Machine::from(&families::of(name).unwrap());
    // t3.micro, two CPUs for an hour: 120 used, 12 earned, 108 minutes to pay.
    let out = reckon_unlimited(&machine("t3.micro"), &ask(120.0, 2, 1.0)).unwrap();
    near(out.outcome.real_s.unwrap(), 3600.0);
    near(out.surplus_cpu_hours, 1.8);
    // t2.micro: 30 more at the start.
    near(reckon_unlimited(&machine("t2.micro"), &ask(60.0, 1, 1.0)).unwrap().surplus_cpu_hours, 0.4);
    let hourly = |minutes| Ask::new(minutes, 2, 1.0, Some(3600.0)).unwrap();
    assert_eq!(reckon_unlimited(&machine("t3.micro"), &hourly(12.0)).unwrap().surplus_cpu_hours, 0.0);
    near(reckon_unlimited(&machine("t3.micro"), &hourly(42.0)).unwrap().surplus_cpu_hours, 0.5);
    assert!(reckon_unlimited(&machine("t1.micro"), &ask(1.0, 1, 1.0)).is_none());
}

#[test]
fn what_takes_more_than_two_weeks_is_not_done() {
    // 10 % for two weeks are 2016 minutes.
    assert_eq!(on("t2.micro", &ask(2500.0, 1, 1.0)).time_s(), None);
    assert!(on("t2.micro", &ask(2000.0, 1, 1.0)).time_s().is_some());
}

fn machines() -> impl Strategy<Value = Machine> {
    let known: Vec<Machine> = families::known().iter().map(Machine::from).collect();
    prop_oneof![prop::sample::select(known), (1u32..64).prop_map(Machine::plain)]
}

fn asks() -> impl Strategy<Value = (f64, u32, f64, Option<f64>)> {
    (-3.0..6.0f64, 1u32..100, MIN_BUSY..=1.0, prop::option::of(1.0..1e7))
        .prop_map(|(power, threads, busy, every_s)| (10f64.powf(power), threads, busy, every_s))
}

fn order(time: Option<f64>) -> f64 {
    time.unwrap_or(f64::INFINITY)
}

proptest! {
    #[test]
    fn time_never_falls_when_the_job_grows(
        machine in machines(), (minutes, threads, busy, every_s) in asks(), more in 1.0..3.0f64
    ) {
        let at = |minutes: f64| Ask::new(minutes.min(MAX_CPU_MINUTES), threads, busy, every_s).unwrap();
        let (small, large) = (reckon(&machine, &at(minutes)), reckon(&machine, &at(minutes * more)));
        prop_assert!(order(small.time_s()) <= order(large.time_s()) * (1.0 + 1e-9), "{small:?} {large:?}");
        prop_assert!(order(small.plain.real_s) <= order(large.plain.real_s) * (1.0 + 1e-9), "{small:?} {large:?}");
    }

    #[test]
    fn numbers_are_numbers_and_nothing_is_faster_than_the_cpus(
        machine in machines(), (minutes, threads, busy, every_s) in asks()
    ) {
        let ask = Ask::new(minutes, threads, busy, every_s).unwrap();
        let out = reckon(&machine, &ask);
        let cpus = f64::from(threads.min(machine.cpus));
        // Threads beyond the number of CPUs fill the others' pauses.
        let fastest = 60.0 * minutes / cpus.min(f64::from(threads) * busy);
        if let Some(time) = out.time_s() {
            prop_assert!(time.is_finite() && time >= fastest * (1.0 - 1e-6) - 1e-6, "{time} under {fastest}");
        }
        for outcome in [&out.plain, out.outcome()] {
            prop_assert!(outcome.charged_s.is_finite() && outcome.stolen_s.is_finite(), "{outcome:?}");
            prop_assert!(outcome.stolen_s >= -1e-6 && outcome.credits.is_none_or(|c| c >= 0.0), "{outcome:?}");
        }
        prop_assert!(machine.sustained() > 0.0 && machine.sustained() <= f64::from(machine.cpus));
    }

    #[test]
    fn a_family_without_a_rule_takes_the_job_divided_by_its_threads(
        cpus in 1u32..64, threads in 1u32..100, minutes in 0.01..10_000.0f64, busy in 0.1..=1.0f64
    ) {
        let busy = if threads > cpus { 1.0 } else { busy };
        let expected = 60.0 * minutes / (f64::from(threads.min(cpus)) * busy);
        let time = reckon(&Machine::plain(cpus), &ask(minutes, threads, busy)).time_s();
        if expected > credit::GIVE_UP_S * 1.001 {
            prop_assert_eq!(time, None);
        } else if expected < credit::GIVE_UP_S * 0.999 {
            prop_assert!((time.unwrap() / expected - 1.0).abs() < 1e-6, "{time:?} {expected}");
        }
    }

    #[test]
    fn money_is_hours_by_price(hour in 0.0..100.0f64, paid_s in 0.0..1e7f64) {
        let money = money(hour, paid_s);
        prop_assert!(money.is_finite() && (money - hour * (paid_s / 3600.0)).abs() <= 1e-9 * money.max(1.0));
    }

    #[test]
    fn unlimited_is_never_slower_and_pays_no_more_than_was_used(
        machine in machines(), (minutes, threads, busy, every_s) in asks()
    ) {
        let ask = Ask::new(minutes, threads, busy, every_s).unwrap();
        let free = reckon_unlimited(&machine, &ask);
        prop_assert_eq!(free.is_some(), matches!(machine.rule, Rule::Credits { .. }));
        if let Some(free) = free {
            let held = reckon(&machine, &ask);
            prop_assert!(order(free.outcome.real_s) <= order(held.plain.real_s) * (1.0 + 1e-9) + 1e-6);
            prop_assert!((0.0..=minutes / 60.0).contains(&free.surplus_cpu_hours), "{free:?}");
        }
    }
}
