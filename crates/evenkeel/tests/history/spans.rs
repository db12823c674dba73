//! Times shorter than what is between samples.

use evenkeel_base::{CpuTimes, Sample};
use evenkeel_store::{Limits, Store};
use serde_json::Value;

use super::{S, document, now_ns};

#[test]
fn a_short_time_of_a_thinned_history_is_told_by_the_samples_around_it() {
    let state = tempfile::tempdir().unwrap();
    let start = now_ns() / S * S - 600 * S;
    let mut store = Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    for at in [0, 60, 120] {
        let cpu = CpuTimes { cpu: 0, busy_ns: at * S / 2, idle_ns: at * S / 2, irq_ns: 0, steal_ns: None };
        let (monotonic_ns, wall_ns) = ((1000 + at) * S, start + at * S);
        store.add_sample(&Sample { monotonic_ns, wall_ns, cpus: vec![cpu], ..Sample::default() }).unwrap();
    }
    drop(store);
    let time = |at: u64| evenkeel_report::time::rfc3339(start + at * S).unwrap();
    let covered = |from, to| {
        let span = ["history", "--by", "cpu", "--from", &time(from), "--to", &time(to)];
        document(state.path(), &span)["rates"]["covered_s"].clone()
    };
    assert_eq!((covered(65, 115), covered(0, 120)), (60.0.into(), 120.0.into()));
    // What was recorded just before it says nothing of a time.
    assert_eq!((covered(121, 150), covered(125, 200)), (Value::Null, Value::Null));
}
