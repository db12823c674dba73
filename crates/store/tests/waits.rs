//! Lengths of waits in the history.

use std::collections::BTreeMap;

use evenkeel_base::Histogram;
use evenkeel_store::{Limits, Recorder, Store};

const MINUTE_NS: u64 = 60_000_000_000;

fn waits(container: &str, ns: u64, count: u64) -> BTreeMap<String, Histogram> {
    let mut histogram = Histogram::default();
    histogram.add_many(ns, count);
    BTreeMap::from([(container.to_owned(), histogram)])
}

#[test]
fn minutes_add_up_and_are_read_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    let mut recorder = Recorder::open(&path, Limits::default());
    // Within a minute, in the next, after it was written, and of somebody else.
    recorder.add_waits(1000, &waits("web", 1_000_000, 98));
    recorder.add_waits(1000, &waits("web", 9_000_000, 2));
    recorder.add_waits(1001, &waits("web", 5_000_000, 10));
    recorder.flush();
    recorder.add_waits(1001, &waits("web", 5_000_000, 10));
    recorder.add_waits(1001, &waits("db", 50_000, 1));
    recorder.flush();
    assert!(recorder.take_notes().is_empty());
    drop(recorder);
    let store = Store::open_read_only(&path).unwrap().unwrap();
    let first = store.waits(1000 * MINUTE_NS, 1001 * MINUTE_NS).unwrap();
    assert_eq!((first.len(), first["web"].total()), (1, 100));
    let p50 = first["web"].quantile(0.5).unwrap();
    assert!((800_000..1_250_000).contains(&p50), "{p50}");
    let p99 = first["web"].quantile(0.99).unwrap();
    assert!((8_000_000..12_000_000).contains(&p99), "{p99}");
    let all = store.waits(0, u64::MAX).unwrap();
    assert_eq!((all["web"].total(), all["db"].total()), (120, 1));
    assert!(store.waits(1002 * MINUTE_NS, u64::MAX).unwrap().is_empty());
}

#[test]
fn a_history_without_any_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    let store = Store::open(&path, Limits::default()).unwrap();
    assert!(store.waits(0, u64::MAX).unwrap().is_empty());
}

#[test]
fn they_are_bounded_by_age_and_by_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    let limits = Limits { max_bytes: 1 << 20, ..Limits::default() };
    let mut store = Store::open(&path, limits).unwrap();
    let many: BTreeMap<String, Histogram> =
        (0..400).flat_map(|n| waits(&format!("c{n}"), 1_000_000, 1)).collect();
    for minute in [10, 5000, 5001, 5002] {
        store.add_waits(minute, &many).unwrap();
    }
    assert!(store.waits(0, 4999 * MINUTE_NS).unwrap().is_empty(), "a day is over");
    // 1 MiB is 1024 lines: the oldest minute of three had to go.
    let kept = store.waits(0, u64::MAX).unwrap();
    assert!(kept.values().all(|waits| waits.total() == 2), "{:?}", kept.values().next());
}
