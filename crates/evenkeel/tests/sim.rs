//! `evenkeel sim`: files of both kinds, and what is refused with file, line and reason. Needs no privilege.

mod program;

use std::path::Path;

use program::{Ended, end, evenkeel};
use serde_json::Value;

#[track_caller]
fn sim(args: &[&str]) -> Ended {
    end(evenkeel(["sim"]).args(args))
}

#[track_caller]
fn done(args: &[&str]) -> String {
    sim(args).ok()
}

fn file(dir: &Path, name: &str, content: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Fails unless it is refused, naming the file, the line and the reason.
#[track_caller]
fn refused(dir: &Path, content: &str, line: usize, reason: &str) {
    let path = file(dir, "bad.toml", content);
    let words = sim(&[&path, "--seed", "1"]).refused(2, &format!("bad.toml: line {line}:"));
    assert!(words.contains(reason), "wanted {reason}\n{content}\n{words}");
}

const MACHINE: &str = "name = 'x'\nduration_s = 2\n[machine]\ncpus = 2\n[[group]]\nname = 'g'\n\
    [[group]]\nname = 'h'\nparent = 'g'\n[[task]]\ngroup = 'h'\nkind = 'closed'\npercent = 30\ncount = 2\n";
const TENANTS: &str = "name = 'x'\n[[tenant]]\nname = 'a'\nunits = '16 64x2'\nload = 'primes'\nrun_s = 1\nruns = 2\n\
    [[sweep]]\nfield = 'tenant.a.runs'\nvalues = [1, 2]\n";

#[test]
fn impossible_machines_and_settings_are_refused_with_file_line_and_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (from, to, line, reason) in [
        ("cpus = 2", "cpus = 0", 3, "logical CPUs"),
        ("cpus = 2", "cpus = 5000", 3, "logical CPUs"),
        ("cpus = 2", "cpus = -1", 4, "u32"),
        ("cpus = 2", "cpus = 2\nnodes = 3", 3, "evenly"),
        ("cpus = 2", "cpus = 2\nthreads_per_core = 0", 3, "logical CPUs"),
        ("cpus = 2", "cpus = 2\nkernel = 'six'", 3, "release"),
        ("cpus = 2", "cpus = 2\nsmt_speedup = 3.0", 3, "1.0 to 2.0"),
        ("cpus = 2", "cpus = 2\nsteal_pct = 100", 3, "0.999"),
        ("cpus = 2", "cpus = 2\nbackground_per_s = -3", 3, "10000"),
        ("cpus = 2", "cpu = 2", 4, "did you mean `cpus`"),
        ("cpus = 2", "cpus = 2\ninstance = 'm3.medum'", 3, "near: m3.medium, "),
        ("cpus = 2", "cpus = 2\ninstance = 't2.micro'", 3, "[enforcer]"),
        ("cpus = 2", "cpus = 2\ninstance = 'm3.medium'\nsteal_pct = 3", 3, "not both"),
        ("[machine]\ncpus = 2\n", "", 8, "describe it in a [machine]"),
        // A group cannot come before its parent, so it cannot be its own ancestor either.
        ("name = 'g'", "name = 'g'\nparent = 'h'", 5, "no group \"h\" before it"),
        ("name = 'h'\nparent = 'g'", "name = 'h'\nparent = 'h'", 7, "no group \"h\" before it"),
        ("name = 'h'", "name = 'g'", 7, "two groups"),
        ("name = 'g'\n", "", 5, "without a name"),
        ("name = 'g'", "name = 'g'\nweight = 0", 5, "1 to 10000"),
        ("name = 'g'", "name = 'g'\nweight = 10001", 5, "1 to 10000"),
        ("name = 'g'", "name = 'g'\nshares = 1", 5, "2 to 262144"),
        ("name = 'g'", "name = 'g'\nshares = 9\nweight = 9", 5, "not both"),
        ("name = 'g'", "name = 'g'\nquota_pct = 0", 5, "not above 0"),
        ("name = 'g'", "name = 'g'\nquota_pct = nan", 5, "not above 0"),
        ("name = 'g'", "name = 'g'\nquota_pct = 0.1", 5, "at least 1000"),
        ("name = 'g'", "name = 'g'\nquota_pct = 50\nperiod_usec = 10", 5, "1000 to 1000000"),
        ("name = 'g'", "name = 'g'\ncpus = '5-6'", 5, "no online CPU"),
        ("name = 'g'", "name = 'g'\ncpus = ''", 5, "no online CPU"),
        ("name = 'g'", "name = 'g'\ncpus = 'a-b'", 7, "a-b"),
        ("duration_s = 2", "duration_s = -2", 2, "duration_s"),
        ("duration_s = 2", "duration_s = 0", 2, "duration_s"),
        ("duration_s = 2", "duration_s = 1e300", 2, "duration_s"),
        ("duration_s = 2", "duration_s = inf", 2, "duration_s"),
        ("duration_s = 2", "duration_s = 9000000", 2, "duration_s"),
        ("duration_s = 2", "warmup_s = nan", 2, "warmup_s"),
        ("duration_s = 2", "repetitions = 0", 2, "repetitions"),
        ("duration_s = 2", "repetitions = 4000000000", 2, "repetitions"),
        ("duration_s = 2", "durations = 2", 2, "did you mean `duration_s`"),
        ("kind = 'closed'", "kind = 'close'", 12, "closed"),
        ("kind = 'closed'\n", "", 10, "needs a kind"),
        ("percent = 30", "percent = 0", 10, "above 0"),
        ("percent = 30", "percent = 130", 10, "up to 100"),
        ("percent = 30", "percent = 30\nperiod_ms = 0", 10, "10 us"),
        ("percent = 30", "percent = 30\nperiod_ms = -5", 10, "10 us"),
        ("percent = 30", "percent = 30\njitter_pct = 100", 10, "below 1"),
        ("percent = 30", "percent = 30\nnice = 20", 10, "-20 to 19"),
        ("percent = 30", "percent = 30\npolicy = 'deadline'", 10, "not simulated"),
        ("percent = 30", "percent = 30\nslice_ms = 0.01", 10, "0.1 to 100"),
        ("percent = 30", "percent = 30\nslice_ms = -1", 10, "0.1 to 100"),
        ("percent = 30", "percent = 30\ncpus = '9'", 10, "no online CPU"),
        ("percent = 30", "percent = 30\nstart_s = -1", 10, "start_s"),
        ("count = 2", "count = 0", 10, "count"),
        ("count = 2", "count = 4000000", 10, "count"),
        ("group = 'h'", "group = 'z'", 10, "no group \"z\""),
        ("kind = 'closed'", "kind = 'job'\nwork_s = -1", 10, "work_s"),
        ("kind = 'closed'", "kind = 'runs'\nevents_per_s = 1e12", 10, "event"),
        ("kind = 'closed'", "kind = 'runs'\nevents_per_s = 9\nrun_s = 0", 10, "run"),
        ("[machine]", "[[sweep]]\nfield = 'seed'\nvalues = [1, 2]\n[machine]", 3, "varies tenants"),
        ("name = 'x'", "cpus = '0'\nname = 'x'", 6, "each with its own weight"),
        ("name = 'x'", "name = x", 1, ""),
    ] {
        assert!(MACHINE.contains(from), "{from}");
        refused(dir.path(), &MACHINE.replacen(from, to, 1), line, reason);
    }
    refused(dir.path(), "", 1, "missing field");
    refused(dir.path(), "\u{0}\u{1}", 1, "");
    done(&[&file(dir.path(), "good.toml", MACHINE)]);
}

#[test]
fn impossible_tenants_are_refused_as_lab_run_does() {
    let dir = tempfile::tempdir().unwrap();
    for (from, to, line, reason) in [
        ("units = '16 64x2'", "units = '16 64y2'", 4, "64y2"),
        ("units = '16 64x2'", "weight = 0", 2, "1 to 10000"),
        ("units = '16 64x2'", "shares = 1", 2, "2 to 262144"),
        ("run_s = 1", "run_s = -1", 2, "run_s"),
        ("run_s = 1", "run_s = inf", 2, "run_s"),
        ("run_s = 1", "cpus = ''\nrun_s = 1", 2, "cpus is empty"),
        ("run_s = 1", "runs_s = 1", 6, "did you mean `run_s`"),
        ("values = [1, 2]", "values = [1, 0]", 8, "runs 0"),
        ("tenant.a.runs", "tenant.b.runs", 8, "no tenant \"b\""),
        ("load = 'primes'", "load = 'primez'", 2, "workloads are duty"),
    ] {
        assert!(TENANTS.contains(from), "{from}");
        refused(dir.path(), &TENANTS.replacen(from, to, 1), line, reason);
    }
}

#[test]
fn tenants_give_the_tables_of_lab_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "tenants.toml", TENANTS);
    let machine = ["--cpus", "2", "--kernel", "6.18", "--events-per-s", "1000"];
    let with = |more: &[&str]| {
        let args: Vec<&str> =
            [&path as &str].into_iter().chain(machine).chain(more.iter().copied()).collect();
        done(&args)
    };
    let table = with(&[]);
    for part in ["simulated: 2 CPUs, Linux 6.18", "EVENTS/s", "runs 1", "runs 2", "a1 (16 units)"] {
        assert!(table.contains(part), "no {part}:\n{table}");
    }
    // The same for the same seed, whatever the time of day.
    assert_eq!(table, with(&[]));
    let study: Value = serde_json::from_str(&with(&["-o", "json"])).unwrap();
    assert_eq!(study["schema"], "evenkeel.lab-study/v1");
    let tenants = study["points"][1]["tenants"].as_array().unwrap();
    let rate = |n: usize| tenants[n]["events_per_s"]["mean"].as_f64().unwrap();
    // 16 : 64 : 64 on two CPUs.
    assert!((rate(0) / 222.0 - 1.0).abs() < 0.1 && (rate(1) / 889.0 - 1.0).abs() < 0.05, "{tenants:#?}");
    assert!(with(&["-o", "csv"]).lines().count() == 7);

    let out = dir.path().join("out");
    with(&["--out", out.to_str().unwrap()]);
    for name in ["record.json", "study.json", "report.html", "report.md", "tenants.csv"] {
        assert!(out.join(name).is_file(), "{name}");
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("every figure is the model"), "the report must say that nothing was measured");
    assert!(page.contains("How this was simulated") && !page.contains("How this was measured"));
}

#[test]
fn tenants_are_simulated_on_the_machine_of_their_file_and_with_its_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let text = "name = 'x'\nduration_s = 2\n[machine]\ncpus = 1\nkernel = '6.1'\nsteal_pct = 20\n\
                [[tenant]]\nname = 'a'\nload = 'primes'\nrun_s = 2\n[[task]]\nname = 'b'\nkind = 'closed'\npercent = 25\n";
    let path = file(dir.path(), "both.toml", text);
    let words = done(&[&path, "--events-per-s", "1000", "-o", "json"]);
    let study: Value = serde_json::from_str(&words).unwrap();
    assert!(words.contains("simulated: 1 CPU, Linux 6.1, 1000 events"), "{words}");
    let tenants = study["points"][0]["tenants"].as_array().unwrap();
    assert_eq!((tenants[0]["name"].as_str(), tenants[1]["name"].as_str()), (Some("a"), Some("b")));
    // A fifth is stolen, and b has about a quarter of the rest of the time.
    let rate = tenants[0]["events_per_s"]["mean"].as_f64().unwrap();
    assert!((500.0..680.0).contains(&rate), "{rate}");
    sim(&[&path, "--cpus", "2"]).refused(2, "describes its machine itself");
}

#[test]
fn built_in_experiments_are_simulated_by_name() {
    let table =
        done(&["cpu-units-mixed", "--quick", "--cpus", "2", "--kernel", "6.1", "--events-per-s", "500"]);
    assert!(table.contains("simulated: 2 CPUs, Linux 6.1, 500 events"), "{table}");
    assert!(table.contains("16x2 32to512"), "{table}");
    let ended = sim(&["isolation-sys", "--quick", "--cpus", "2", "--events-per-s", "500"]);
    ended.refused(3, "reads of files are not simulated");
}

#[test]
fn what_does_not_fit_together_is_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, tenants) = (file(dir.path(), "m.toml", MACHINE), file(dir.path(), "t.toml", TENANTS));
    for (args, reason) in [
        (vec![&machine as &str, "--cpus", "4"], "describes its machine itself"),
        (vec![&machine, "--out", "/nowhere"], "describes its machine itself"),
        (vec![&tenants, "--kernel", "six"], "not a release"),
        (vec![&tenants, "--events-per-s", "-5"], "--events-per-s"),
        (vec![&tenants, "--events-per-s", "nan"], "--events-per-s"),
        (vec![&tenants, "--cpus", "0"], "--cpus"),
        (vec![&tenants, "--quick"], "built-in"),
        (vec!["no-such-thing"], "no built-in experiment"),
        (vec!["--fleet", "1"], "--fleet"),
        (vec!["--fleet", "2", "--quick"], "cannot be used with '--quick'"),
        (vec!["--fleet", "2", "--out", "x"], "cannot be used with '--out"),
        (vec!["--fleet", "2", "--cpus", "8", "--kernel", "6.1"], "cannot be used with"),
        (vec![], "FILE"),
    ] {
        sim(&args).refused(2, reason);
    }
    end(&mut evenkeel(["lab", "run", &machine])).refused(2, "evenkeel sim");
    // A command of one's own: valid, but the simulator has no say.
    let own = "name = 'x'\n[[tenant]]\nname = 'a'\ncommand = ['make', '-j4']\n";
    let ended = sim(&[&file(dir.path(), "own.toml", own), "--events-per-s", "500"]);
    let words = ended.refused(3, "\"make\" demands is not known");
    assert!(words.contains("lab run"), "{words}");
}

#[test]
fn the_document_of_tasks_has_these_fields() {
    let dir = tempfile::tempdir().unwrap();
    let runs =
        MACHINE.replace("kind = 'closed'\npercent = 30", "kind = 'runs'\nevents_per_s = 900\nrun_s = 1");
    let document: Value =
        serde_json::from_str(&done(&[&file(dir.path(), "tasks.toml", &runs), "--seed", "9", "-o", "json"]))
            .unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&document), "experiment name runs schema");
    assert_eq!((&document["schema"], &document["name"]), (&"evenkeel.sim/v1".into(), &"x".into()));
    let run = &document["runs"][0];
    assert_eq!(keys(run), "cpu_pct events fulfilment measured_s seed tasks");
    assert_eq!(run["seed"], 9);
    let task = &run["tasks"][0];
    let expected = "got_pct got_s involuntary migrations name runs throttled_s voluntary wait_histogram_usec waited_s \
        wanted_pct";
    assert_eq!(keys(task), expected);
    assert_eq!(keys(&task["runs"][0]), "end_s events events_per_s start_s");
}

/// The middle one of three.
fn middle(mut values: Vec<f64>) -> f64 {
    assert_eq!(values.len(), 3);
    values.sort_by(f64::total_cmp);
    values[1]
}

#[test]
fn what_is_called_a_median_is_none_of_the_first_repetition_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = "name = 'x'\nduration_s = 1\nrepetitions = 3\n[machine]\ncpus = 2\n[[task]]\nname = 'a'\nkind = 'closed'\n\
                percent = 45\ncount = 4\njitter_pct = 80\n";
    let path = file(dir.path(), "x.toml", text);
    let mut first_is_another = 0;
    for seed in ["1", "2", "3"] {
        let shown = done(&[&path, "--seed", seed]);
        let document: Value = serde_json::from_str(&done(&[&path, "--seed", seed, "-o", "json"])).unwrap();
        let runs = document["runs"].as_array().unwrap();
        let of =
            |pointer: &str| runs.iter().map(|run| run.pointer(pointer).unwrap().as_f64().unwrap()).collect();
        let cpus: Vec<f64> = (0..2).map(|cpu| middle(of(&format!("/cpu_pct/{cpu}")))).collect();
        let line = format!("CPU use %: {:.1} {:.1}\n", cpus[0], cpus[1]);
        assert!(shown.contains(&line), "{line}{shown}");
        for task in 0..4 {
            let p99 = |run: &Value| {
                let counts = &run["tasks"][task]["wait_histogram_usec"];
                let counts: Vec<f64> =
                    counts.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
                let all: f64 = counts.iter().sum();
                let reached = |n: &usize| counts[..=*n].iter().sum::<f64>() >= 0.99 * all;
                2f64.powi((0..counts.len()).find(reached).unwrap() as i32)
            };
            let each: Vec<f64> = runs.iter().map(p99).collect();
            let line = shown.lines().filter(|line| line.starts_with('a')).nth(task).unwrap();
            assert!(line.contains(&format!("<{} us", middle(each.clone()))), "{each:?}: {line}");
            first_is_another += usize::from(each[0] != middle(each.clone()));
        }
    }
    assert!(first_is_another > 0, "the test shows nothing");
}
