//! Runs that did not end by themselves.

use evenkeel_base::run::RunRecord;
use evenkeel_store::{Limits, Store};
use serde_json::Value;

use super::{S, document, recorded};

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
