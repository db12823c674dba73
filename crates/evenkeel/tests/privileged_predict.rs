//! What `plan` predicts, and `run` records next to what it measured, on the real kernel.

mod scene;

use scene::{begin, configured, run, with_crowd};
use serde_json::Value;

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {value:#}"))
}

#[test]
fn every_proposed_change_comes_with_what_it_would_bring() {
    let (_turn, dir, group, loads) = with_crowd(begin(), "predicted");
    let document = run(dir.path(), &["plan", "--scope", &group.scope(), "-o", "json"]).json();
    let plans = document["plans"].as_array().unwrap();
    assert!(!plans.is_empty(), "{document:#}");
    let most = 100.0 * evenkeel_linux::sys::usable_cpus().len() as f64;
    // The simulator moves no waiting work: of a plan that does nothing else nothing is predicted.
    let (moves, settings): (Vec<&Value>, Vec<&Value>) = plans.iter().partition(|plan| plan["name"] == "pull");
    assert!(moves.iter().all(|plan| plan["predicted"].is_null()), "{moves:#?}");
    assert!(!settings.is_empty(), "{document:#}");
    for &plan in &settings {
        let (before, after) =
            (number(plan, "/predicted/cpu_pct/as_found"), number(plan, "/predicted/cpu_pct/plan"));
        assert!(before > 5.0 && before <= most * 1.01 && after > 5.0 && after <= most * 1.01, "{plan:#}");
        // Simulated as found once: all plans start from the same.
        assert_eq!(before, number(settings[0], "/predicted/cpu_pct/as_found"));
        assert!(number(plan, "/predicted/wait_per_ran/plan") >= 0.0);
        let change = number(plan, "/predicted/cpu_change_pct");
        assert!((change - 100.0 * (after / before - 1.0)).abs() < 0.01, "{plan:#}");
    }
    let pids: Vec<u64> = loads.iter().map(|load| u64::from(load.pid())).collect();
    let changes = document["changes"].as_array().unwrap();
    assert!(!changes.is_empty(), "{document:#}");
    for change in changes {
        let effect = change["effect"].as_str().unwrap_or_default();
        assert!(effect.starts_with("predicted: ") && effect.contains("CPU "), "{change:#}");
        if let Some(tgid) = change["tgid"].as_u64() {
            assert!(pids.contains(&tgid), "{change:#}");
            assert!(number(change, "/predicted/cpu_pct/plan") >= 0.0);
        }
    }
    // The same in words.
    let words = run(dir.path(), &["plan", "--scope", &group.scope()]).stdout;
    assert!(words.contains("predicted for the scope: CPU "), "{words}");
}

#[test]
fn a_run_records_predicted_beside_measured() {
    let (_turn, dir, group, _loads) = with_crowd(begin(), "beside");
    let config = configured(dir.path(), "[run]\ndecide_within = \"4s\"\ninterval = \"200ms\"\n");
    let args = ["--config", &config, "run", "--scope", &group.scope(), "--for", "10s", "-o", "json"];
    let document = run(dir.path(), &args).json();
    let stages = document["stages"].as_array().unwrap();
    let trials: Vec<&Value> =
        stages.iter().filter(|s| s["kept"].is_boolean() && !s["predicted"].is_null()).collect();
    assert!(trials.len() >= 2, "no trial with a prediction: {document:#}");
    for trial in &trials {
        let (predicted, measured) = (number(trial, "/predicted/cpu_pct"), trial["cpu_pct"].as_f64());
        assert!(predicted > 0.0, "{trial:#}");
        // Others of the host come and go: a prediction that is far off is told from one that makes no sense.
        if let Some(measured) = measured.filter(|m| *m > 0.0) {
            assert!((0.4..2.5).contains(&(predicted / measured)), "{predicted:.1} % predicted: {trial:#}");
        }
    }
    assert!(trials.iter().any(|t| t["cpu_pct"].is_number()), "{document:#}");
    // It is remembered.
    let history = run(dir.path(), &["history", "--run", "1", "-o", "json"]).document();
    assert!(history.to_string().contains("\"cpu_change_pct\""), "{history:#}");
    // What was kept tells both in words.
    for change in document["changes"].as_array().unwrap() {
        let effect = change["effect"].as_str().unwrap_or_default();
        assert!(effect.contains("predicted: CPU "), "{change:#}");
    }
}
