//! Experiments as `lab run` takes them, simulated.

use evenkeel_base::CpuSet;
use evenkeel_experiment::file::{StealSpec, TenantSpec};
use evenkeel_experiment::study::study;

use super::*;

fn host(cpus: u32) -> Host {
    Host {
        cpus: Some(cpus),
        kernel: Some("6.12.0".into()),
        tenants_v2: Some(true),
        primes_per_s: Some(1000.0),
        primes_per_s_all: Some(1000.0 * f64::from(cpus)),
        ..Host::default()
    }
}

fn run(text: &str, cpus: u32) -> Result<Record, RunError> {
    let experiment = Experiment::parse(text).unwrap();
    super::simulate(&experiment, &About::default(), &host(cpus), &mut |_| {})
}

#[track_caller]
fn near(what: &str, value: Option<f64>, wanted: f64, tolerance: f64) {
    assert!(value.is_some_and(|v| (v / wanted - 1.0).abs() <= tolerance), "{what}: {value:?}, not {wanted}");
}

#[test]
fn units_sweeps_and_repetitions_give_the_tables_of_lab_run() {
    let text = "name = 'units'\nrepetitions = 2\ncpus = '0'\n[[tenant]]\nname = 'c'\nunits = '64x2'\nload = 'primes'\n\
                run_s = 2\nruns = 3\n[[sweep]]\nfield = 'tenant.c.units'\nvalues = ['64x2', '16 64']\n";
    let record = run(text, 2).unwrap();
    assert_eq!((record.cells.len(), record.planned_cells, record.is_complete()), (4, 4, true));
    let study = study(&record);
    assert_eq!(study.points.len(), 2);
    let point = &study.points[1];
    assert_eq!((point.label.as_str(), point.repetitions), ("units 16 64", 2));
    near("share of 16", point.tenants[0].share_pct.map(|s| s.value), 20.0, 0.06);
    near("events of both", point.together.events_per_s.map(|e| e.value), 1000.0, 0.04);
    near("equal", study.points[0].tenants[1].events_per_s.map(|s| s.mean), 500.0, 0.04);
    assert!(study.points[0].tenants[0].run_s.unwrap().mean >= 2.0);
    // Nobody may take it for a measurement.
    assert!(study.missed.iter().any(|m| m.contains("simulated")), "{:?}", study.missed);
    // The same file, the same record, but for the stamps.
    let again = run(text, 2).unwrap();
    assert_eq!(record.cells, again.cells);
}

#[test]
fn what_was_cut_off_took_longer_than_its_time_limit() {
    let text = "name = 'long'\ntime_limit_s = 2\n[[tenant]]\nname = 'a'\nload = 'primes'\nevents = 9000\n";
    let study = study(&run(text, 1).unwrap());
    let tenant = &study.points[0].tenants[0];
    assert!(tenant.cut_off && tenant.elapsed_s.is_some_and(|e| e.value >= 2.0), "{:?}", tenant.elapsed_s);
}

#[test]
fn work_of_so_many_events_is_shared_by_threads() {
    // 2000 events on two CPUs of 1000 a second: a second a run; under a quota of 50 % four.
    let text = "name = 'work'\n[[tenant]]\nname = 'a'\nload = 'primes'\nevents = 2000\nthreads = 2\nruns = 3\n\
                [[sweep]]\nfield = 'tenant.a.quota_pct'\nvalues = ['none', 50]\n";
    let record = run(text, 2).unwrap();
    let of = |cell: usize| &record.cells[cell].tenants[0];
    assert_eq!((of(0).runs.len(), of(0).runs[2].events), (3, Some(2000)));
    for run in &of(0).runs {
        near("a run", Some(run.end_s - run.start_s), 1.0, 0.05);
        near("its events", run.events_per_s, 2000.0, 0.05);
    }
    near("limited", Some(of(1).total.real_s), 12.0, 0.06);
    near("its CPU", of(1).total.cpu_s(), 6.0, 0.03);
    assert!(of(1).total.throttled_s.is_some_and(|s| s > 1.0) && of(0).total.throttled_s.is_none());
}

#[test]
fn a_sieve_is_simulated_by_its_divisions() {
    let text = "name = 'sieve'\n[[tenant]]\nname = 'b'\nload = 'sieve --from 1000001 --to 1000400'\nthreads = 3\n\
                [[sweep]]\n[[sweep.point]]\nlabel = 'one CPU'\nset = {'tenant.b.cpus' = '0'}\n\
                [[sweep.point]]\nlabel = 'both'\n[[sweep.point]]\nlabel = 'two of it'\nset = {'tenant.b.count' = 2}\n";
    let record = run(text, 2).unwrap();
    let end = |cell: usize| record.cells[cell].seconds;
    // Divisions of primes and of the rest, against those of an event.
    let divisions: u64 = (1_000_001..=1_000_400).map(crate::cost::of_a_number).sum();
    let wanted = divisions as f64 / crate::cost::of_a_pass(10_000) as f64 / 1000.0;
    near("one CPU", Some(end(0)), wanted, 0.05);
    near("half the time on both", Some(end(1)), wanted / 2.0, 0.08);
    near("two share", Some(end(2)), wanted, 0.08);
    assert_eq!(record.cells[2].tenants[1].runs[0].events, Some(400));
}

#[test]
fn neighbours_in_the_background_take_their_part_and_are_not_waited_for() {
    let text = "name = 'bg'\ncpus = '0'\n[[tenant]]\nname = 'a'\nload = 'spin'\nbackground = true\nweight = 300\n\
                [[tenant]]\nname = 'b'\nload = 'primes'\nrun_s = 3\n[[tenant]]\nname = 'd'\n\
                load = 'duty --percent 10 --period 50ms'\nrun_s = 3\nplace = 'process'\n";
    let record = run(text, 1).unwrap();
    let [a, b, d] = record.cells[0].tenants.as_slice() else { panic!("{record:?}") };
    // What the duty load leaves, 1 : 3.
    near("b", b.total.cpu_s().map(|s| s / b.total.real_s), 0.225, 0.1);
    near("a", a.total.cpu_s().map(|s| s / a.total.real_s), 0.675, 0.1);
    assert_eq!((a.runs_planned, a.ended.clone(), d.place.as_str()), (0, Ended::Done, "process"));
    assert!(d.total.cpu_s().is_some_and(|s| s > 0.1 && s < 0.35), "{d:?}");
    assert!(record.cells[0].seconds < 4.5);
}

#[test]
fn what_cannot_be_simulated_is_told_and_the_rest_goes_on() {
    let text = "name = 'own'\n[[tenant]]\nname = 'a'\nload = 'primes'\nrun_s = 1\n[[sweep]]\nname = 'what'\n\
                [[sweep.point]]\nlabel = 'primes'\n[[sweep.point]]\nlabel = 'stream'\nset = {'tenant.a.load' = 'stream'}\n\
                [[sweep.point]]\nlabel = 'far'\nset = {'tenant.a.cpus' = '7'}\n";
    let record = run(text, 2).unwrap();
    let why = |cell: usize| record.cells[cell].point.unavailable.clone().unwrap_or_default();
    assert_eq!((record.cells[0].tenants.len(), why(0).as_str()), (1, ""));
    assert!(why(1).contains("tenant a") && why(1).contains("memory"), "{}", why(1));
    assert!(why(2).contains("no online CPU"), "{}", why(2));
    let missed = study(&record).missed;
    assert!(missed.iter().any(|m| m.contains("stream: not simulated")), "{missed:?}");
    for (tenant, part) in [
        ("command = ['make', '-j4']", "\"make\" demands is not known"),
        ("load = 'sieve --read own'", "reads of files"),
        ("load = 'duty --percent 5'\nevents = 9", "for a time only"),
        ("load = 'primes'\nevents = 5\nrun_s = 1000", "whichever comes first"),
        ("load = 'primes'\nrun_s = 900000", "worth simulating"),
        ("load = 'primez'\nrun_s = 1", "workloads are"),
    ] {
        let text = format!("name = 'x'\n[[tenant]]\nname = 'a'\n{tenant}\n");
        let error = run(&text, 2).unwrap_err();
        assert!(
            matches!(error, RunError::Missing(_)) && error.to_string().contains(part),
            "{tenant}: {error}"
        );
    }
    // The one command whose work is known.
    let text = "name = 'x'\n[[tenant]]\nname = 'a'\ncommand = ['sysbench', 'cpu', '--time=2', 'run']\n";
    let record = run(text, 2).unwrap();
    near("sysbench", record.cells[0].tenants[0].runs[0].events_per_s, 1000.0, 0.02);
}

#[test]
fn siblings_slow_each_other_once() {
    // Four threads on two cores of two: together 1.3 times what two alone do.
    let host = Host { threads_per_core: Some(2), primes_per_s_all: Some(2600.0), ..host(4) };
    let spec = |threads| TenantSpec {
        load: Some("primes".into()),
        run_s: Some(2.0),
        threads,
        ..TenantSpec::new("a")
    };
    let rate = |threads| {
        let mut experiment = Experiment::new("x", "");
        experiment.tenants = vec![spec(threads)];
        cell(&experiment, &host, 0, 1e6).unwrap()[0].runs[0].events_per_s
    };
    near("all", rate(4), 2600.0, 0.02);
    near("one", rate(1), 1000.0, 0.02);
}

#[test]
fn a_job_under_a_rule_is_the_credit_models() {
    let mut experiment = Experiment::new("x", "");
    experiment.enforcer =
        Some(StealSpec { rule: credit::Rule::Constant { stolen: 0.5 }, instance: None, time_scale: 10.0 });
    let job = TenantSpec { load: Some("primes".into()), events: Some(2000), ..TenantSpec::new("a") };
    experiment.tenants = vec![job.clone()];
    let one = &cell(&experiment, &host(2), 0, 1e6).unwrap()[0];
    near("real", Some(one.total.real_s), 4.0, 0.02);
    near("stolen", one.total.stolen_s, 2.0, 0.03);
    experiment.tenants = vec![TenantSpec { cpus: Some(CpuSet::first_n(1)), count: 2, ..job }];
    assert!(cell(&experiment, &host(2), 0, 1e6).unwrap_err().contains("one tenant"));
}
