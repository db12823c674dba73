//! What a kill of the writer costs, and what others read meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_base::Sample;
use evenkeel_base::run::RunRecord;
use evenkeel_store::{Limits, Store, StoreError, TaskInfo};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

mod host;
use host::{S, dir, now_ns, read_all, sample, stage, task};

#[test]
fn a_killed_writer_loses_at_most_the_last_seconds() {
    let (dir, path) = dir();
    let mut store = Store::open(&path, Limits { block_samples: 10, ..Limits::default() }).unwrap();
    let start = now_ns() - 100 * S;
    let run = store.begin_run(&RunRecord::default()).unwrap();
    for at in 0..25 {
        store.add_sample(&sample(start, at, 5, 5)).unwrap();
    }
    store.add_stage(run, &stage("trial", 1)).unwrap();
    // What is on disk at this instant is what a kill leaves.
    for cut in [0usize, 1, 100, 5000] {
        let copy = dir.path().join(format!("copy-{cut}.db"));
        fs::copy(&path, &copy).unwrap();
        let mut wal = fs::read(dir.path().join("history.db-wal")).unwrap();
        wal.truncate(wal.len() - cut);
        fs::write(dir.path().join(format!("copy-{cut}.db-wal")), wal).unwrap();
        let after = Store::open(&copy, Limits::default()).unwrap();
        assert_eq!(after.note(), None, "cut {cut}");
        let samples = read_all(&after);
        let all: Vec<_> = (0..25).map(|at| sample(start, at, 5, 5)).collect();
        assert_eq!(samples[..], all[..samples.len()], "cut {cut}");
        if cut == 0 {
            // Blocks end with 9 and 19; 23 is the last that was committed.
            assert_eq!((samples.len(), after.last_run().unwrap().unwrap().record.stages.len()), (24, 1));
        }
    }
    std::mem::forget(store);
}

/// Copies what is on disk, as a kill leaves it.
fn killed(path: &Path) -> (tempfile::TempDir, PathBuf) {
    let (keep, copy) = dir();
    for suffix in ["", "-wal"] {
        let name = |path: &Path| format!("{}{suffix}", path.display());
        fs::copy(name(path), name(&copy)).unwrap();
    }
    (keep, copy)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(24)
    })]

    /// Killed after any sample: what is read is the beginning of what was added, names included, and lacks the last seconds at most.
    /// That is so for a reader meanwhile, too, and once what was left is a block.
    #[test]
    fn a_kill_at_any_instant_loses_the_last_seconds_at_most(
        steps in proptest::collection::vec((50u64..9_000, any::<u64>(), 0u32..6, any::<bool>()), 1..80),
        killed_after in any::<prop::sample::Index>(),
        tail_seconds in 0u64..6,
    ) {
        let (_dir, path) = dir();
        let killed_after = killed_after.index(steps.len());
        let start = now_ns() - 900 * S;
        let limits = Limits { tail_seconds, block_samples: 20, full_rate: Duration::from_secs(86_400), ..Limits::default() };
        let mut store = Store::open(&path, limits).unwrap();
        let mut all: Vec<Sample> = Vec::new();
        let mut at_ns = 0;
        let mut interval = 0;
        for (step_ms, ran_ns, born, flushed) in steps.into_iter().take(killed_after + 1) {
            interval = step_ms * 1_000_000;
            at_ns += interval;
            let mut now = sample(start, 0, 3, 0);
            now.monotonic_ns += at_ns;
            now.wall_ns += at_ns;
            now.tasks[1].ran_ns = ran_ns;
            now.tasks.push(task(100 + born, 7));
            let info = TaskInfo { comm: format!("born-{born}"), ..TaskInfo::default() };
            store.name_task(now.tasks[3].id, info);
            store.add_sample(&now).unwrap();
            if flushed && born == 0 {
                store.flush().unwrap();
            }
            all.push(now);
        }
        let check = |store: &Store, what: &str| {
            let mut samples = store.samples(0, u64::MAX).unwrap();
            let read: Vec<Sample> = samples.by_ref().map(|sample| sample.unwrap().sample).collect();
            assert_eq!(read[..], all[..read.len()], "{what}");
            for sample in &read {
                let born = sample.tasks[3].id;
                assert_eq!(samples.names()[&born].comm, format!("born-{}", born.tgid - 100), "{what}");
            }
            let lost = all[all.len() - 1].monotonic_ns - read[read.len() - 1].monotonic_ns;
            assert!(lost <= tail_seconds * S, "{what}: {lost} ns are lost, the last interval was {interval} ns");
            assert_eq!(store.usage().unwrap().samples[0], read.len() as u64, "{what}");
            read.len()
        };
        let read = check(&Store::open_read_only(&path).unwrap().unwrap(), "read meanwhile");
        let (_keep, copy) = killed(&path);
        std::mem::forget(store);
        prop_assert_eq!(check(&Store::open(&copy, limits).unwrap(), "after the kill"), read);
        // Later it is old, and becomes a block.
        let old = Limits { full_rate: Duration::from_secs(10), ten_s: Duration::from_secs(1), ..limits };
        let before = Store::open_read_only(&copy).unwrap().unwrap().usage().unwrap();
        drop(Store::open(&copy, old).unwrap());
        let after = Store::open(&copy, limits).unwrap();
        prop_assert_eq!(&read_all(&after)[0], &all[0]);
        let db = rusqlite::Connection::open(&copy).unwrap();
        let left: i64 = db.query_row("SELECT count(*) FROM tail", [], |row| row.get(0)).unwrap();
        prop_assert_eq!((left, after.usage().unwrap().span_ns.unwrap().0), (0, before.span_ns.unwrap().0));
    }
}

/// A writer that was stopped for long finds that another one made a block of what it had committed: nothing is there twice.
#[test]
fn what_another_writer_took_for_abandoned_is_not_written_twice() {
    let (_dir, path) = dir();
    let everything = Limits { full_rate: Duration::from_secs(86_400), ..Limits::default() };
    let start = now_ns() - 100 * S;
    let mut stopped = Store::open(&path, everything).unwrap();
    for at in 0..7 {
        stopped.add_sample(&sample(start, at, 5, 5)).unwrap();
    }
    drop(
        Store::open(
            &path,
            Limits {
                full_rate: Duration::from_secs(20),
                ten_s: Duration::from_secs(86_400),
                ..Limits::default()
            },
        )
        .unwrap(),
    );
    for at in 7..12 {
        stopped.add_sample(&sample(start, at, 5, 5)).unwrap();
    }
    drop(stopped);
    let all: Vec<u64> =
        read_all(&Store::open(&path, everything).unwrap()).iter().map(|s| (s.wall_ns - start) / S).collect();
    // Those taken were thinned to one in 10 s; the first of a session is kept, those since are whole.
    assert_eq!((all[0], &all[all.len() - 7..]), (0, &[5, 6, 7, 8, 9, 10, 11][..]), "{all:?}");
    assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
}

/// Damage costs the part that it is in and what goes on from it, and is told.
#[test]
fn a_damaged_part_costs_itself_and_what_follows_it() {
    let (_dir, path) = dir();
    let limits = Limits { tail_seconds: 0, ..Limits::default() };
    let start = now_ns() - 100 * S;
    let mut store = Store::open(&path, limits).unwrap();
    for at in 0..6 {
        store.add_sample(&sample(start, at, 5, 5)).unwrap();
    }
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute("UPDATE tail SET data = x'00' WHERE part = 3", []).unwrap();
    let reader = Store::open_read_only(&path).unwrap().unwrap();
    let read: Vec<_> = reader.samples(0, u64::MAX).unwrap().collect();
    assert_eq!(read.iter().filter(|sample| sample.is_ok()).count(), 3);
    assert!(read[3].as_ref().is_err_and(StoreError::is_corrupt) && read.len() == 4);
    // One that is missing: what follows means nothing.
    db.execute("DELETE FROM tail WHERE part = 3", []).unwrap();
    assert_eq!(read_all(&reader).len(), 3);
    // The writer does not need them: it has the block.
    db.execute("DELETE FROM tail WHERE part = 1", []).unwrap();
    store.flush().unwrap();
    assert_eq!(read_all(&reader).len(), 6);
}

/// A file of the version before has no such table: it is read, and gets one when it is written.
#[test]
fn a_history_of_before_is_read_and_gone_on_with() {
    let (_dir, path) = dir();
    let start = now_ns() - 100 * S;
    let mut store = Store::open(&path, Limits::default()).unwrap();
    store.add_sample(&sample(start, 0, 5, 5)).unwrap();
    drop(store);
    rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TABLE tail").unwrap();
    let reader = Store::open_read_only(&path).unwrap().unwrap();
    assert_eq!((read_all(&reader).len(), reader.usage().unwrap().samples[0]), (1, 1));
    let mut store = Store::open(&path, Limits::default()).unwrap();
    store.add_sample(&sample(start, 10, 5, 5)).unwrap();
    assert_eq!((read_all(&reader).len(), reader.usage().unwrap().samples[0]), (2, 2));
}
