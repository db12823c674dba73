//! Runs that did not end by themselves.

use evenkeel_base::run::{ChangeRecord, EffectNow, Estimate, RunRecord};
use evenkeel_store::{Limits, Store};
use serde_json::Value;

use super::{S, document, now_ns, ok, recorded};

/// What came after it did not run under its settings.
#[test]
fn a_killed_run_is_replayed_up_to_the_next_one() {
    let state = tempfile::tempdir().unwrap();
    let start = recorded(state.path());
    let mut store = Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    store.begin_run(&RunRecord { started_ns: start + 40 * S, ..RunRecord::default() }).unwrap();
    drop(store);
    let rates = |args: &[&str]| {
        let replay = document(state.path(), &[&["replay", "--step", "10s"], args].concat());
        let moments = replay["moments"].as_array().unwrap().clone();
        let rates = moments.iter().filter(|moment| moment["kind"] == "rates");
        (replay["runs"].clone(), rates.map(|moment| moment["settings"].clone()).collect::<Vec<_>>())
    };
    assert_eq!(rates(&["--run", "1"]).1.len(), 4);
    assert_eq!(rates(&["--run", "last"]).1, vec![Value::from("kernel default"); 2]);
    assert_eq!(rates(&["--since", "20s"]).0, Value::from(vec![2]));
}

#[test]
fn status_knows_a_killed_run_from_a_living_agent() {
    let state = tempfile::tempdir().unwrap();
    recorded(state.path());
    let journal = state.path().join("journal");
    std::fs::write(&journal, "").unwrap();
    let status = document(state.path(), &["status"]);
    assert_eq!((&status["state"], &status["agent"]), (&"killed".into(), &Value::Null));
    assert_eq!(status["self"]["rss_bytes"], 12 << 20);
    assert_eq!(status["changes"].as_array().unwrap().len(), 1);
    assert!(ok(state.path(), &["status"]).contains("evenkeel restore"));
    // As `restore` leaves it.
    std::fs::remove_file(&journal).unwrap();
    let status = document(state.path(), &["status"]);
    assert_eq!((&status["state"], &status["settings"]), (&"killed".into(), &"kernel default".into()));
    assert_eq!(status["changes"], Value::Array(Vec::new()));
    let text = ok(state.path(), &["status"]);
    assert!(text.contains("did not end by itself; nothing of it is left"), "{text}");
    assert!(!text.contains("batch nice 0"), "{text}");

    // This process takes the lock, as an agent would, and records a run of its own.
    let lock = evenkeel_actuate::FileMedium::open(state.path()).unwrap();
    let mut store = Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    let record = RunRecord { pid: std::process::id(), started_ns: now_ns(), ..RunRecord::default() };
    let run = store.begin_run(&record).unwrap();
    let status = document(state.path(), &["status"]);
    assert_eq!((&status["state"], &status["agent"]["pid"]), (&"running".into(), &std::process::id().into()));
    assert_eq!(status["fulfilment"]["now"], Value::Null);
    assert!(ok(state.path(), &["status"]).contains(&format!("pid {}", std::process::id())));
    let estimate = Some(Estimate { value: 0.99, low: 0.98, high: 1.0 });
    let effect = Some(EffectNow { blocks: 3, ..EffectNow::default() });
    let change = ChangeRecord { group: Some("/a".into()), knob: "weight".into(), ..ChangeRecord::default() };
    let record =
        RunRecord { baseline: estimate, now: estimate, effect_now: effect, changes: vec![change], ..record };
    store.finish_run(run, &record, "done").unwrap();
    drop(lock);
    let status = document(state.path(), &["status"]);
    assert_eq!((&status["state"], &status["outcome"]), (&"ended".into(), &"done".into()));
    // Its settings are gone, and with them what they bring.
    let fulfilment = &status["fulfilment"];
    assert_eq!((&fulfilment["baseline"], &fulfilment["now"]), (&0.99.into(), &Value::Null));
    assert_eq!(status["effect_now"], Value::Null);
    let left = || {
        let changes = document(state.path(), &["status"])["changes"].as_array().unwrap().len();
        (ok(state.path(), &["status"]).contains("Changes are left: `evenkeel restore`"), changes)
    };
    // It ended, and could not restore everything; `restore` did later.
    std::fs::write(&journal, "").unwrap();
    assert_eq!(left(), (true, 1));
    std::fs::remove_file(&journal).unwrap();
    assert_eq!(left(), (false, 0));
}
