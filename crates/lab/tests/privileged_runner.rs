//! Experiments on the real kernel: released together, accounted for, resumed, and nothing left behind. One at a
//! time: shares are only what they are while nobody else of this program runs.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use common::binary;
use evenkeel_base::CpuSet;
use evenkeel_experiment::file::Experiment;
use evenkeel_experiment::record::{Cell, CellRecord, Ended, MergedShard, Record, TenantRecord};
use evenkeel_experiment::study::study;
use evenkeel_lab::runner::{About, Options, Run, RunError, run};
use evenkeel_linux::sys::usable_cpus;
use evenkeel_linux::testing::{made_by, turn};

fn experiment(text: &str) -> Experiment {
    Experiment::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn run_in(folder: &Path, experiment: &Experiment, stop: &AtomicBool) -> Result<Record, RunError> {
    let options = Options { binary: binary(), ..Options::default() };
    run(
        experiment,
        &About::default(),
        &options,
        &mut Run { folder, again: false, stop, progress: &mut |_| {} },
    )
}

/// Runs it alone and looks that nothing of this process is left.
fn done(text: &str) -> Record {
    let _alone = turn();
    let dir = tempfile::tempdir().unwrap();
    let record = run_in(dir.path(), &experiment(text), &AtomicBool::new(false)).unwrap();
    assert!(record.is_complete());
    let kept = Record::load(dir.path()).unwrap();
    assert_eq!(kept, record);
    assert_eq!(made_by("lab", std::process::id()), Vec::<PathBuf>::new());
    record
}

fn cpu_s(tenant: &TenantRecord) -> f64 {
    tenant.runs.iter().map(|run| run.account.cpu_s().unwrap()).sum()
}

fn tenant<'a>(cell: &'a Cell, name: &str) -> &'a TenantRecord {
    cell.tenants.iter().find(|t| t.name == name).unwrap()
}

#[test]
fn weights_share_one_cpu_in_proportion() {
    let cpu = usable_cpus().first().unwrap();
    let record = done(&format!(
        "name = 'weights'\ncpus = '{cpu}'\n[[tenant]]\nname = 'c'\nunits = '1 2 4'\nload = 'primes'\nrun_s = 2\n"
    ));
    let cell = &record.cells[0];
    let got: Vec<f64> = cell.tenants.iter().map(cpu_s).collect();
    // The last event of each keeps the CPU a moment longer; others of the host may take some from all.
    assert!((got[1] / got[0] - 2.0).abs() < 0.3 && (got[2] / got[0] - 4.0).abs() < 0.6, "{got:?}");
    for t in &cell.tenants {
        assert_eq!(t.ended, Ended::Done);
        assert_eq!(t.limits.cpus, Some(CpuSet::single(cpu)));
        let run = &t.runs[0];
        assert_eq!(run.cpus, Some(CpuSet::single(cpu)));
        assert!(run.events.unwrap() > 0 && run.start_s >= 0.0 && run.end_s >= 1.9, "{run:?}");
        assert!(run.account.waited_s.unwrap() > 0.3 && run.account.involuntary.unwrap() > 10, "{run:?}");
        assert!(t.release.woken_late_usec.unwrap() <= t.release.first_instruction_late_usec.unwrap());
    }
    let factor = cell.tenants[0].limits.unit_factor.unwrap();
    let weight = |t: &TenantRecord| t.limits.shares.or(t.limits.weight).unwrap() as f64;
    assert!(cell.tenants.iter().all(|t| weight(t) == factor * t.units.unwrap() as f64));
    assert!(cell.predicted.as_ref().is_some_and(|all| all.len() == 3));
    assert!(cell.host.harness_cpu_pct.is_some());
}

#[test]
fn a_quota_holds_and_is_accounted_for() {
    let record =
        done("name = 'quota'\n[[tenant]]\nname = 'q'\nquota_pct = 25\nload = 'spin'\nrun_s = 1\nruns = 2\n");
    let q = tenant(&record.cells[0], "q");
    let (real, cpu) = (q.total.real_s, cpu_s(q));
    assert!(cpu / real < 0.30 && cpu > 0.1, "{cpu} of {real}");
    // Others of the host may leave it less than its quota, so how long is not judged.
    assert!(q.total.throttled_s.unwrap() > 0.0 && q.total.throttled_count.unwrap() > 0, "{:?}", q.total);
    assert!(q.total.waited_s.unwrap() >= q.runs[0].account.waited_s.unwrap());
    assert_eq!((q.limits.quota_pct, q.limits.period_usec), (Some(25.0), Some(100_000)));
    assert_eq!(q.runs.len(), 2);
    assert!(q.runs[1].start_s >= q.runs[0].end_s);
}

#[test]
fn commands_run_as_themselves_and_failures_are_marked_while_the_rest_goes_on() {
    let record = done(
        "name = 'commands'\ntime_limit_s = 3\n\
         [[tenant]]\nname = 'good'\ncommand = ['sh', '-c', 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done']\nruns = 2\n\
         [[tenant]]\nname = 'bad'\ncommand = ['sh', '-c', 'echo it broke >&2; exit 3']\n\
         [[tenant]]\nname = 'hangs'\ncommand = ['sleep', '1000']\n\
         [[tenant]]\nname = 'long'\nload = 'primes'\nevents = 1000000000\n\
         [[tenant]]\nname = 'dies'\ncommand = ['sh', '-c', 'kill -9 $PPID']\n\
         [[tenant]]\nname = 'behind'\nload = 'duty --percent 1'\nbackground = true\n",
    );
    let cell = &record.cells[0];
    let good = tenant(cell, "good");
    assert_eq!((&good.ended, good.runs.len()), (&Ended::Done, 2));
    assert!(
        cpu_s(good) > 0.0 && good.runs[0].exit_status == Some(0) && good.runs[0].account.waited_s.is_some()
    );
    assert_eq!(tenant(cell, "bad").runs[0].exit_status, Some(3));
    assert!(cell.notes.iter().any(|n| n.contains("bad") && n.contains("it broke")), "{:?}", cell.notes);
    assert!(matches!(&tenant(cell, "hangs").ended, Ended::TimeLimit(limit) if limit == "3 s"));
    let long = tenant(cell, "long");
    let has_length = |run: &evenkeel_experiment::record::RunRecord| run.length_s().is_some();
    let lengths = |tenant: &TenantRecord| tenant.runs.iter().map(has_length).collect::<Vec<_>>();
    assert!(matches!(&long.ended, Ended::TimeLimit(_)), "{:?}", long.ended);
    assert_eq!((lengths(long), lengths(good)), (vec![false], vec![true; 2]));
    assert!(matches!(&tenant(cell, "dies").ended, Ended::Died(how) if how.contains('9')));
    assert_eq!(tenant(cell, "behind").ended, Ended::Done);
    assert!(cell.seconds < 10.0);
}

#[test]
fn what_is_finished_is_not_run_again() {
    let _alone = turn();
    let dir = tempfile::tempdir().unwrap();
    let text = "name = 'resume'\nrepetitions = 3\n[[tenant]]\nload = 'spin'\nrun_s = 0.1\n\
        [[sweep]]\nfield = 'tenant.0.quota_pct'\nvalues = [50, 'none']\n";
    // The instant of the first cell has passed when the others go on.
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 7;
    let experiment = Experiment { start_at: Some(format!("@{soon}")), ..experiment(text) };
    let stop = AtomicBool::new(false);
    let mut cells = 0;
    let mut progress = |p: evenkeel_lab::runner::Progress<'_>| {
        cells = p.done;
        if p.done == 2 {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let calibrated = Some(Default::default());
    let options = Options { binary: binary(), calibrated, ..Options::default() };
    let mut to = Run { folder: dir.path(), again: false, stop: &stop, progress: &mut progress };
    let partial = run(&experiment, &About::default(), &options, &mut to).unwrap();
    assert_eq!((partial.cells.len(), partial.is_complete(), &partial.finished), (2, false, &None));
    let whole = run_in(dir.path(), &experiment, &AtomicBool::new(false)).unwrap();
    assert!(whole.is_complete() && whole.finished.is_some());
    // Not a digit is lost on the way: what was measured before the interruption is what is studied after it.
    assert_eq!(whole.cells[..2], partial.cells[..]);
    let kept = Record::load(dir.path()).unwrap();
    assert_eq!(kept, whole);
    let text = |record: &Record| serde_json::to_string(&study(record)).unwrap();
    assert_eq!(text(&kept), text(&whole));
    let mut seen: Vec<(usize, u32)> = whole.cells.iter().map(|c| (c.point.index, c.repetition)).collect();
    seen.sort_unstable();
    assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    // Another experiment does not go into the same folder.
    let other = Experiment { repetitions: 4, ..experiment.clone() };
    let refused = |experiment| {
        let error = run_in(dir.path(), experiment, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains("merged of shards") && error.contains("--again"), "{error}");
    };
    refused(&other);
    // Nor do cells of this host into what others measured.
    let shard = "0/2".parse().unwrap();
    let (host, began, cells) = (whole.host.clone(), whole.began.clone(), [3, 3]);
    let merged = vec![MergedShard { shard, host, began, finished: None, cells }];
    Record { merged, cells: partial.cells, ..whole }.save(dir.path()).unwrap();
    refused(&experiment);
    assert_eq!(made_by("lab", std::process::id()), Vec::<PathBuf>::new());
}

#[test]
fn what_the_host_lacks_is_said_before_anything_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    for (tenant, part) in [
        ("command = ['no-such-command-here']", "command not found: no-such-command-here"),
        ("load = 'primez'\nrun_s = 1", "workloads are duty"),
        ("load = 'spin'\nrun_s = 1\ncpus = '1000'", "asks for CPU 1000"),
    ] {
        let experiment = experiment(&format!("name = 'x'\n[[tenant]]\n{tenant}\n"));
        let error = run_in(&dir.path().join("r"), &experiment, &stop).unwrap_err().to_string();
        assert!(error.contains(part), "{tenant}: {error}");
    }
    assert!(!dir.path().join("r").join("record.json").exists());
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let experiment = experiment("name = 'x'\n[[tenant]]\nload = 'spin'\nrun_s = 0.1\n");
    let error = run_in(&file.join("below"), &experiment, &stop).unwrap_err().to_string();
    assert!(error.contains("cannot make the result folder"), "{error}");
}

#[test]
fn a_cell_over_at_once_leaves_nothing_when_stopped() {
    let _alone = turn();
    let dir = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let experiment = experiment("name = 'stopped'\n[[tenant]]\nunits = '8x5'\nload = 'spin'\nrun_s = 30\n");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(2500));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let begun = std::time::Instant::now();
        let record = run_in(dir.path(), &experiment, &stop).unwrap();
        assert!(record.cells.is_empty() && begun.elapsed().as_secs() < 20);
    });
    assert_eq!(made_by("lab", std::process::id()), Vec::<PathBuf>::new());
}

#[test]
fn the_enforcer_steals_by_its_rule() {
    let cpu = usable_cpus().iter().last().unwrap();
    let record = done(&format!(
        "name = 'enforced'\ncpus = '{cpu}'\n[enforcer]\nrule = {{ rule = 'constant', stolen = 0.5 }}\n\
         [[tenant]]\nname = 'v'\nload = 'spin'\nrun_s = 2\n"
    ));
    let cell = &record.cells[0];
    let enforcer = cell.enforcer.as_ref().unwrap();
    let v = tenant(cell, "v");
    let share = cpu_s(v) / v.total.real_s;
    // Half at most; others of the host may leave it less.
    assert!(share > 0.0 && share < 0.6, "{share}");
    assert!(enforcer.stolen_s > 0.0 && !enforcer.trace.is_empty(), "{enforcer:?}");
    assert_eq!(v.total.stolen_s, Some(enforcer.stolen_s));
}
