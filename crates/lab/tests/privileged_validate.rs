//! The short form of `make validate`: two mixes on the real kernel and on the simulator, and a record that is gone on with.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use evenkeel_experiment::validation::{self, Record};

/// The example of this crate that measures and compares (built along with the tests).
fn validate(args: &[&str], record: &Path) -> Output {
    let tests = std::env::current_exe().unwrap();
    let binary: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples/validate");
    assert!(binary.exists(), "{} is missing: run `cargo build --examples` first", binary.display());
    // Others may be busy meanwhile: what is looked at does not depend on them.
    let mut command = Command::new(binary);
    command.args(args).arg("--record").arg(record).args(["--set", "short"]);
    command.output().unwrap()
}

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn records(path: &Path) -> Vec<Record> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn plain_mixes_come_out_as_simulated_and_an_interrupted_record_is_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("record.jsonl");
    let measure = |runs: &str| validate(&["measure", "--others", "100000", "--runs", runs], &path);
    let first = measure("1");
    assert!(first.status.success(), "{}", words(&first));
    assert_eq!(records(&path).len(), 2);
    // Killed while it wrote the next line.
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"mix\":\"short: w").unwrap();
    let second = measure("2");
    assert!(
        second.status.success() && words(&second).contains("2 runs measured, 0 left"),
        "{}",
        words(&second)
    );
    let records = records(&path);
    assert_eq!(records.len(), 4);

    let cpus = u32::try_from(evenkeel_linux::sys::usable_cpus().len()).unwrap();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let release = release.split(['.', '-']).take(2).collect::<Vec<_>>().join(".");
    let mixes = validation::set("short", cpus, &release).unwrap();
    let c = validation::compare(&mixes, &records, 2, 3).unwrap();
    let [weights, quota] = c.lines.as_slice() else { panic!("{c:?}") };
    let ratio = |f: fn(&(f64, f64)) -> f64| f(&weights.tasks[1]) / f(&weights.tasks[0]);
    let (measured, simulated) = (ratio(|t| t.0), ratio(|t| t.1));
    assert!((simulated / 3.0 - 1.0).abs() < 0.05, "{c:?}");
    assert!((measured / simulated - 1.0).abs() < 0.25, "1 : {measured:.2}, simulated 1 : {simulated:.2}");
    let (measured, simulated) = quota.tasks[0];
    assert!((simulated - 30.0).abs() < 1.5, "{c:?}");
    // Others may keep it from its quota, nobody gives it more.
    assert!(measured > 15.0 && measured < simulated + 4.0, "{measured:.1} %, simulated {simulated:.1} %");

    let compared = validate(&["compare", "--runs", "2"], &path);
    let text = words(&compared);
    assert!(compared.status.success() && text.contains("2 mixes, 3 tasks"), "{text}");
    assert!(text.contains("short: quota"), "{text}");
    // More runs than there are: nothing to compare, and it says so.
    let none = validate(&["compare", "--runs", "9"], &path);
    assert!(words(&none).contains("0 mixes"), "{}", words(&none));
    let missing = validate(&["compare"], &dir.path().join("none"));
    assert!(!missing.status.success() && words(&missing).contains("measure first"), "{}", words(&missing));
}
