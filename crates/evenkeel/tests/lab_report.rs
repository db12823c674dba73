//! `evenkeel lab import`, `report` and `compare`: logs in, the same result folder out, made again from its record.

mod program;

use std::path::{Path, PathBuf};

use program::end_in as evenkeel;
use serde_json::Value;

#[track_caller]
fn done(args: &[&str], dir: &Path) -> String {
    evenkeel(dir, args).ok()
}

#[track_caller]
fn json(args: &[&str], dir: &Path) -> Value {
    evenkeel(dir, &[&["-o", "json"], args].concat()).json()
}

/// Two containers of 16 and 32 units, ten runs each, at rates in proportion times `factor`.
fn logs(dir: &Path, factor: f64) -> Vec<PathBuf> {
    [("small", 16u32), ("large", 32)]
        .into_iter()
        .map(|(name, units)| {
            let mut text = format!("cpu_units: {units}\nnb_threads: 1\ntarget: sysbench\n");
            for n in 0..10 {
                let rate = factor * f64::from(units) * (50.0 + 0.1 * f64::from(n % 3));
                text += &format!(
                    "Start test {n}: 2026-01-01T10:00:{:02}.000000\n    events per second:  {rate:.2}\nEnd   test {n}: 2026-01-01T10:00:{:02}.900000\n",
                    n * 2,
                    n * 2 + 1
                );
            }
            let path = dir.join(format!("{name}-{factor}.log"));
            std::fs::write(&path, text).unwrap();
            path
        })
        .collect()
}

fn import(dir: &Path, factor: f64, out: &str) -> String {
    let logs = logs(dir, factor);
    let mut args = vec!["lab", "import", "--out", out, "--cpus", "1"];
    args.extend(logs.iter().map(|path| path.to_str().unwrap()));
    done(&args, dir)
}

#[test]
fn logs_become_a_result_folder_that_can_be_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let text = import(dir.path(), 1.0, "a");
    assert!(text.contains("Weights hold within") && text.contains("large-1"), "{text}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("a").join(name)).unwrap();
    let names = ["study.json", "report.html", "report.md", "runs.csv", "tenants.csv", "verdicts.csv"];
    let before: Vec<String> = names.iter().map(|name| read(name)).collect();
    assert!(before[1].starts_with("<!DOCTYPE html>") && before[2].contains("| tenant |"));
    assert_eq!(before[3].lines().count(), 1 + 20);
    // The record alone is enough, and gives the same.
    for name in names {
        std::fs::remove_file(dir.path().join("a").join(name)).unwrap();
    }
    // It has no drawing: nothing is written before that is said.
    evenkeel(dir.path(), &["-o", "svg", "lab", "report", "a"]).with(2);
    assert!(!names.iter().any(|name| dir.path().join("a").join(name).exists()));
    let json = json(&["lab", "report", "a"], dir.path());
    assert_eq!(json["schema"], "evenkeel.lab-study/v1");
    assert!(json["verdicts"][0]["test"]["value"].is_number(), "{}", json["verdicts"]);
    assert_eq!(names.iter().map(|name| read(name)).collect::<Vec<_>>(), before);
    assert!(
        done(&["-o", "csv", "lab", "report", "--dry-run", "a"], dir.path()).starts_with("point,tenant,units")
    );
}

#[test]
fn a_report_of_an_interrupted_experiment_is_written_and_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    import(dir.path(), 1.0, "a");
    let path = dir.path().join("a/record.json");
    let mut record: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    record["planned_cells"] = 3.into();
    std::fs::write(&path, record.to_string()).unwrap();
    let output = evenkeel(dir.path(), &["lab", "report", "a"]).with(1);
    assert!(output.stdout.contains("Weights hold within"), "{}", output.stdout);
    assert!(output.stderr.contains("interrupted: 1 of 3 cells done"), "{}", output.stderr);
}

#[test]
fn a_file_that_is_no_record_is_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in [("empty", &b""[..]), ("binary", b"\xff\x00")] {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        for command in ["lab", "tenants"] {
            evenkeel(dir.path(), &[command, "report", name]).refused(2, name);
        }
    }
}

#[test]
fn what_was_measured_is_replaced_by_nothing_that_can_be_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let sim =
        ["sim", "cpu-units-alone", "--quick", "--cpus", "2", "--kernel", "6.12", "--events-per-s", "1000"];
    let sim = [&sim[..], &["--out", "r"]].concat();
    done(&sim, dir.path());
    done(&sim, dir.path());
    // As it would be had it been measured.
    let path = dir.path().join("r/record.json");
    let mut record: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    record["requirements"] = Value::Array(Vec::new());
    std::fs::write(&path, record.to_string()).unwrap();
    let log = logs(dir.path(), 1.0).remove(0);
    for command in [&sim[..], &["lab", "import", "--out", "r", log.to_str().unwrap()]] {
        evenkeel(dir.path(), command).refused(2, "r holds results that were measured");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), record.to_string());
}

#[test]
fn folders_are_compared_with_intervals() {
    let dir = tempfile::tempdir().unwrap();
    import(dir.path(), 1.0, "a");
    import(dir.path(), 1.2, "b");
    let text = done(&["lab", "compare", "a", "b", "--out", "c"], dir.path());
    assert!(text.contains("+20.0 %"), "{text}");
    assert!(dir.path().join("c/compare.html").exists() && dir.path().join("c/compare.md").exists());
    let json = json(&["lab", "compare", "a", "b"], dir.path());
    assert_eq!(json["schema"], "evenkeel.lab-compare/v1");
    let text = done(&["lab", "compare", "--platforms", "a", "b"], dir.path());
    assert!(text.contains("do not carry over"), "{text}");
    assert!(json["distributions"][0]["feature"] == "p50" && json["level_pct"].is_number(), "{json}");
}

/// A container alone, so many runs, at about this many events a second.
fn alone(dir: &Path, per_s: f64, out: &str) {
    let mut text = "cpu_units: 512\nnb_threads: 1\ntarget: sysbench\n".to_owned();
    for n in 0..10 {
        let per_s = per_s * (1.0 + 0.001 * f64::from(n));
        text += &format!(
            "Start test {n}: 2021-05-12T16:3{n}:00.5\n    events per second:  {per_s}\nEnd   test {n}: 2021-05-12T16:3{n}:10.6\n"
        );
    }
    let log = dir.join(format!("{out}.log"));
    std::fs::write(&log, text).unwrap();
    done(&["lab", "import", log.to_str().unwrap(), "--out", out], dir);
}

#[test]
fn published_units_are_held_against_what_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    alone(dir.path(), 1158.0, "router");
    alone(dir.path(), 228.0, "small");
    let compare = ["lab", "compare", "--platforms", "router", "small"];
    let with = |units: &[&'static str]| -> Vec<&'static str> { [compare.as_slice(), units].concat() };
    let text = done(&with(&["--units", "1255=A,732=B", "--out", "c"]), dir.path());
    assert!(text.contains("do not carry over from A to B"), "{text}");
    for name in ["platforms.html", "platforms.md"] {
        let page = std::fs::read_to_string(dir.path().join("c").join(name)).unwrap();
        assert!(page.contains("What published units promise"), "{name}: {page}");
    }
    let json = json(&with(&["--units", "router=1255", "--units", "732=small"]), dir.path());
    let ratio = json["promises"][0]["ratio"]["value"].as_f64().unwrap();
    assert!((ratio - 228.0 / (1158.0 * 732.0 / 1255.0)).abs() < 1e-6, "{json}");
    assert_eq!(json["hosts"][1]["published_units"], 732.0);
    for (units, part) in [
        ("1255=A,732=C", "no folder is called `C`; there are A (router), B (small)"),
        ("1255=A,0=B", "more than 0"),
        ("1255=A,732=A", "name each folder once"),
        ("1255=A,much=B", "`much` is not a number"),
        ("1255=A", "name a second"),
    ] {
        evenkeel(dir.path(), &with(&["--units", units])).refused(2, part);
    }
    let ended = evenkeel(dir.path(), &["lab", "compare", "router", "small", "--units", "1=A,2=B"]);
    assert!(ended.stderr.contains("--platforms"), "{ended}");
}

#[test]
fn what_cannot_be_compared_is_said() {
    let dir = tempfile::tempdir().unwrap();
    alone(dir.path(), 1158.0, "router");
    import(dir.path(), 1.0, "two");
    let stderr = evenkeel(dir.path(), &["lab", "compare", "router", "two"]).refused(2, "it has 16, 32");
    assert!(stderr.contains("the same units"), "{stderr}");
    // There are tenants, of which nothing is known: the time limit ended each in its only run, which counted nothing.
    let path = dir.path().join("two/record.json");
    let mut record: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for tenant in record["cells"][0]["tenants"].as_array_mut().unwrap() {
        tenant["ended"] = serde_json::json!({"how": "time-limit", "detail": "9 s"});
        tenant["runs"] = serde_json::json!([{"end_s": 9.0, "cut_off": true}]);
    }
    std::fs::write(&path, record.to_string()).unwrap();
    evenkeel(dir.path(), &["lab", "compare", "two", "two"]).refused(2, "runs were cut off or failed");
}

#[test]
fn mistakes_are_wrong_usage_and_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bad.log"), "cpu_units: 64\nStart test 1: yesterday\n").unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    std::fs::write(dir.path().join("record.json"), "{\n\"schema\": 5}").unwrap();
    for (args, part) in [
        (vec!["lab", "import", "bad.log"], "bad.log:2:"),
        (vec!["lab", "import", "none.log"], "none.log"),
        (vec!["lab", "import", "."], "is a folder: name the logs in it"),
        (vec!["lab", "import", "bad.log", "--from", "noon"], "noon"),
        (vec!["lab", "report", "empty"], "record.json"),
        (vec!["lab", "report", "record.json"], "line 2"),
        (vec!["lab", "compare", "empty"], "DIR"),
    ] {
        evenkeel(dir.path(), &args).refused(2, part);
    }
}
