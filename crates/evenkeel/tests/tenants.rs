//! `tenants report` and `compare`, from a result folder that an earlier version wrote: the record stays readable, and gives the
//! same figures.

mod program;

use std::path::Path;

use serde_json::Value;

/// `tenants cpu --quick --tenants 2 --vcpus 1 --repetitions 2 --seconds 0.2` on a host of two CPUs.
const RECORD: &str = include_str!("tenants/record.json");

/// What it printed, when it ended with this status.
#[track_caller]
fn said(args: &[&str], dir: &Path, status: i32) -> String {
    let ended = program::end_in(dir, args).with(status);
    ended.stdout + &ended.stderr
}

/// A result folder `a` in a directory of its own.
fn folder() -> tempfile::TempDir {
    program::folder("a/record.json", RECORD)
}

fn json(text: &str) -> Value {
    let end = text.rfind('}').unwrap();
    serde_json::from_str(&text[..=end]).unwrap()
}

#[test]
fn an_earlier_versions_record_is_studied_and_reported() {
    let dir = folder();
    let text = said(&["tenants", "report", "a"], dir.path(), 0);
    assert!(text.contains("OFF WEIGHT %") && text.contains("! vhost-net: not met"), "{text}");
    assert!(text.contains("report: a/report.html"), "{text}");
    assert!(text.starts_with("tenants-cpu, begun 2026-11-23 08:52:21 UTC\n"), "{text}");
    assert!(text.contains("(/dev/vhost-net is not there): packets of virtual machines"), "{text}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("a").join(name)).unwrap();
    let study = json(&read("study.json"));
    assert_eq!(study["schema"], "evenkeel.lab-tenants-study/v1");
    let unequal = &study["rows"][1];
    assert_eq!(unequal["series"], "cgroup, 1 thread, weights 1:2, one CPU");
    let number = |value: &Value| value.as_f64().unwrap();
    assert!(
        (number(&unequal["weight_error_pct"]["value"]) - 2.279_332_962_076_019_4).abs() < 1e-9,
        "{unequal}"
    );
    assert!((number(&unequal["shares_pct"][0]) - 34.093_110_987_358_67).abs() < 1e-9, "{unequal}");
    assert_eq!(study["answers"][3]["id"], "weights-infeasible");
    let (csv, page, document) = (read("points.csv"), read("report.html"), read("report.md"));
    assert!(
        csv.starts_with("point,tenants,vcpus,rps,repetitions,transactions_per_s,transactions_per_s_low,")
    );
    assert!(
        csv.lines().nth(2).unwrap().starts_with("\"cgroup, 1 thread, weights 1:2, one CPU\",2,1,false,2,")
    );
    assert!(page.contains("<svg") && page.contains("with everything started again"));
    assert!(document.contains("| 2 x cgroup, 1 thread, weights 1:2, one CPU | 202.4 \\["), "{document}");
    // As an experiment of the laboratory, by the folder or the file in it.
    for of in ["a", "a/record.json"] {
        assert_eq!(json(&said(&["lab", "report", of, "-o", "json"], dir.path(), 0)), study);
    }
    assert_eq!(said(&["lab", "report", "a", "--dry-run", "-o", "csv"], dir.path(), 0), csv);
}

#[test]
fn a_record_without_all_cells_or_of_something_else_is_no_success() {
    let dir = folder();
    let mut record = json(RECORD);
    record["cells"].as_array_mut().unwrap().pop();
    std::fs::write(dir.path().join("a/record.json"), record.to_string()).unwrap();
    let text = said(&["tenants", "report", "a"], dir.path(), 1);
    assert!(text.contains("7 of 8 cells done"), "{text}");
    // The page goes round by itself.
    for page in ["report.html", "report.md"] {
        let page = std::fs::read_to_string(dir.path().join("a").join(page)).unwrap();
        assert!(page.contains("not all of it is measured yet"), "{page}");
    }
    record["schema"] = "evenkeel.other/v1".into();
    std::fs::write(dir.path().join("a/record.json"), record.to_string()).unwrap();
    assert!(said(&["tenants", "report", "a"], dir.path(), 2).contains("evenkeel.other/v1"));
    assert!(said(&["tenants", "report", "none"], dir.path(), 2).contains("evenkeel tenants"));
}

#[test]
fn a_run_agrees_with_itself() {
    let dir = folder();
    let text = said(&["tenants", "compare", "a", "a"], dir.path(), 0);
    assert!(text.contains("8 of 8 figures agree"), "{text}");
    let compared = json(&said(&["tenants", "compare", "a", "a", "-o", "json"], dir.path(), 0));
    assert_eq!(compared["schema"], "evenkeel.tenants-compare/v1");
    assert_eq!(compared["figures"][0]["figure"], "bias of CPU time, %");
}

#[test]
fn one_repetition_agrees_with_nothing() {
    let dir = folder();
    let mut record = json(RECORD);
    record["options"]["repetitions"] = 1.into();
    record["cells"].as_array_mut().unwrap().retain(|cell| cell["repetition"] == 0);
    std::fs::create_dir(dir.path().join("b")).unwrap();
    std::fs::write(dir.path().join("b/record.json"), record.to_string()).unwrap();
    let text = said(&["tenants", "compare", "a", "b"], dir.path(), 1);
    assert!(text.contains("0 of 8 figures agree within their intervals; of 8 it is open"), "{text}");
    let compared = json(&said(&["tenants", "compare", "a", "b", "-o", "json"], dir.path(), 1));
    assert_eq!(compared["figures"][0]["agree"], Value::Null);
    // Another experiment is no repetition.
    record["options"]["which"] = "tenants-net".into();
    std::fs::write(dir.path().join("b/record.json"), record.to_string()).unwrap();
    let text = said(&["tenants", "compare", "a", "b"], dir.path(), 2);
    assert!(text.contains("not the same experiment: tenants that compute, and "), "{text}");
}
