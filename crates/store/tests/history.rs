//! The history as its users see it: kept exactly, thinned honestly, bounded, and surviving bad luck.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

use evenkeel_base::run::{ChangeRecord, RunRecord, SelfCost, Stage};
use evenkeel_base::{CpuTimes, GroupSample, Sample, TaskId, TaskSample};
use evenkeel_store::block::{BlockReader, BlockWriter};
use evenkeel_store::{Infos, Limits, PromiseTime, Recorder, Store, StoreError, TaskInfo};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rand::{Rng, SeedableRng};

mod host;
use host::{S, dir, now_ns, read_all, sample, stage, task};

fn counters() -> impl Strategy<Value = [Option<u64>; 6]> {
    proptest::array::uniform6(proptest::option::of(any::<u64>()))
}

prop_compose! {
    fn any_sample()(
        monotonic_ns in any::<u64>(),
        wall_ns in any::<u64>(),
        cpus in proptest::collection::btree_map(0u32..6, counters(), 0..5),
        tasks in proptest::collection::btree_map((0u32..5, 0u32..5, 0u64..3), counters(), 0..12),
        groups in proptest::collection::btree_map("[/a-c]{0,3}", counters(), 0..5),
    ) -> Sample {
        Sample {
            monotonic_ns,
            wall_ns,
            cpus: cpus.into_iter().map(|(cpu, f)| CpuTimes {
                cpu, busy_ns: f[0].unwrap_or(0), idle_ns: f[1].unwrap_or(1), irq_ns: f[2].unwrap_or(2), steal_ns: f[3],
            }).collect(),
            tasks: tasks.into_iter().map(|((tgid, tid, start_time), f)| TaskSample {
                id: TaskId { tgid, tid, start_time },
                cpu: f[0].map(|n| n as u32),
                ran_ns: f[1].unwrap_or(0),
                waited_ns: f[2], timeslices: f[3], voluntary: f[4], involuntary: f[5],
            }).collect(),
            groups: groups.into_iter().map(|(path, f)| GroupSample {
                path, usage_ns: f[0], nr_periods: f[1], nr_throttled: f[2], throttled_ns: f[3],
            }).collect(),
            exited: Vec::new(),
        }
    }
}

proptest! {
    #[test]
    fn a_block_gives_back_what_was_put_in(samples in proptest::collection::vec(any_sample(), 1..8)) {
        let mut writer = BlockWriter::default();
        let mut infos = Infos::new();
        for sample in &samples {
            writer.push(sample);
            for task in sample.tasks.iter().filter(|t| t.id.tid % 2 == 0) {
                let info = TaskInfo { comm: format!("t{}", task.id.tgid), group: Some("/g".into()), ..TaskInfo::default() };
                infos.insert(task.id, info.into());
            }
        }
        let mut reader = BlockReader::new(&writer.finish(&infos).unwrap()).unwrap();
        for sample in &samples {
            prop_assert_eq!(reader.advance().unwrap(), Some(sample));
        }
        prop_assert_eq!(reader.advance().unwrap(), None);
        prop_assert_eq!(reader.names(), &infos);
    }

    #[test]
    fn damaged_blocks_are_refused_or_read_but_never_panic(
        samples in proptest::collection::vec(any_sample(), 1..4),
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut writer = BlockWriter::default();
        for sample in &samples {
            writer.push(sample);
        }
        let block = writer.finish(&Infos::new()).unwrap();
        let mut plain = zstd::bulk::decompress(&block, 1 << 20).unwrap();
        for (at, byte) in &hits {
            let at = at.index(plain.len());
            plain[at] = *byte;
        }
        if let Ok(mut reader) = BlockReader::new(&zstd::bulk::compress(&plain, 1).unwrap()) {
            while let Ok(Some(_)) = reader.advance() {}
        }
    }
}

proptest! {
    // Each case writes a file of its own.
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(48)
    })]

    #[test]
    fn thinning_keeps_what_counters_mean(
        steps in proptest::collection::vec((1u64..4, 0u64..1_000_000_000), 30..200),
        full_rate_s in 5u64..40,
    ) {
        let (_dir, path) = dir();
        let span: u64 = steps.iter().map(|step| step.0).sum();
        let start = now_ns() - (span + 1) * S;
        let limits = Limits {
            full_rate: Duration::from_secs(full_rate_s), ten_s: Duration::from_secs(60), block_seconds: 7, ..Limits::default()
        };
        let mut all = Vec::new();
        let mut at = 0;
        let mut ran = 0;
        let mut store = Store::open(&path, limits).unwrap();
        for (step, more) in steps {
            at += step;
            ran += more;
            let mut now = sample(start, at, 3, 3);
            now.tasks[1].ran_ns = ran;
            store.add_sample(&now).unwrap();
            all.push(now);
        }
        store.flush().unwrap();
        drop(store);
        let store = Store::open(&path, limits).unwrap();
        let kept = read_all(&store);
        // What is kept is exactly what was read then, in order: so every rate between kept instants is unchanged.
        let mut rest = all.iter();
        for sample in &kept {
            prop_assert!(rest.any(|s| s == sample), "a kept sample was never taken, or is out of order");
        }
        prop_assert_eq!(kept.first(), all.first());
        prop_assert_eq!(kept.last(), all.last());
        // And those young enough are all there.
        let young = |s: &&Sample| s.wall_ns + full_rate_s * S > start + (span + 1) * S;
        prop_assert_eq!(kept.iter().filter(young).count(), all.iter().filter(young).count());
    }
}

#[test]
fn rates_over_thinned_data_equal_rates_over_all_of_it() {
    let start = now_ns() - 3 * 3600 * S;
    let limits = Limits { full_rate: Duration::from_secs(600), ..Limits::default() };
    let (_keep, thinned_path) = dir();
    let (_keep2, full_path) = dir();
    let everything = Limits { full_rate: Duration::from_secs(86_400), ..Limits::default() };
    let mut thinned = Store::open(&thinned_path, limits).unwrap();
    let mut full = Store::open(&full_path, everything).unwrap();
    for at in 0..3600 {
        thinned.add_sample(&sample(start, at, 20, 7)).unwrap();
        full.add_sample(&sample(start, at, 20, 7)).unwrap();
    }
    thinned.flush().unwrap();
    full.flush().unwrap();
    drop(thinned);
    let thinned = Store::open(&thinned_path, limits).unwrap();
    let usage = thinned.usage().unwrap();
    assert!(usage.samples[1] >= 300 && usage.samples[0] < 700, "{usage:?}");
    assert_eq!(full.usage().unwrap().samples, [3600, 0, 0]);
    let (from, to) = (start + 600 * S, start + 1200 * S);
    let kept: Vec<_> = thinned.samples(from, to).unwrap().map(|s| s.unwrap().sample.wall_ns).collect();
    let (from, to) = (kept[0], kept[kept.len() - 1]);
    let (a, b) = (thinned.rates(from, to).unwrap().unwrap(), full.rates(from, to).unwrap().unwrap());
    assert!(a.samples < b.samples);
    assert_eq!(a.seconds, b.seconds);
    assert_eq!(a.tasks.len(), 7);
    for (a, b) in a.tasks.iter().zip(&b.tasks) {
        assert_eq!((a.id, a.cpu_pct, a.wait_pct), (b.id, b.cpu_pct, b.wait_pct));
    }
    // Task 7 runs 7 ms a second.
    assert!((a.tasks[6].cpu_pct - 0.7).abs() < 1e-9);
    assert_eq!((a.groups.clone(), a.cpus.clone()), (b.groups, b.cpus));
    assert_eq!(a.cpus[0].busy_pct, 50.0);
    assert_eq!(a.cpus[0].steal_pct, None);
}

#[test]
fn a_task_born_between_samples_counts_whole_one_come_into_view_does_not() {
    let (_dir, path) = dir();
    let mut store = Store::open(&path, Limits::default()).unwrap();
    let start = now_ns() - 100 * S;
    let mut second = sample(start, 1, 1, 0);
    let mut born = task(50, S / 2);
    born.id.start_time = 100_050; // ticks: 1000.5 s after boot, the samples are at 1000 s and 1001 s
    second.tasks.push(born);
    second.tasks.push(task(60, 77 * S));
    store.name_task(born.id, TaskInfo { comm: "make".into(), ..TaskInfo::default() });
    store.add_sample(&sample(start, 0, 1, 0)).unwrap();
    store.add_sample(&second).unwrap();
    store.flush().unwrap();
    let rates = store.rates(0, u64::MAX).unwrap().unwrap();
    assert_eq!(rates.tasks.len(), 1);
    assert_eq!((rates.tasks[0].id, rates.tasks[0].cpu_pct), (born.id, 50.0));
    assert_eq!(rates.tasks[0].info.as_ref().unwrap().comm, "make");
}

#[test]
fn a_restart_is_a_gap_not_a_rate() {
    let (_dir, path) = dir();
    let start = now_ns() - 1000 * S;
    for session in 0..2 {
        let mut store = Store::open(&path, Limits::default()).unwrap();
        for at in 0..10 {
            store.add_sample(&sample(start, session * 500 + at, 4, 4)).unwrap();
        }
    }
    let store = Store::open_read_only(&path).unwrap().unwrap();
    let rates = store.rates(0, u64::MAX).unwrap().unwrap();
    assert_eq!((rates.samples, rates.seconds), (20, 18.0));
    assert!((rates.tasks[3].cpu_pct - 0.4).abs() < 1e-9);
}

#[test]
fn the_size_stays_bounded_over_a_long_run() {
    let (_dir, path) = dir();
    let limits =
        Limits { max_bytes: 2 << 20, full_rate: Duration::from_secs(7 * 86_400), ..Limits::default() };
    let mut store = Store::open(&path, limits).unwrap();
    let mut random = rand_pcg::Pcg64::seed_from_u64(1);
    let start = now_ns() - 86_400 * S;
    let mut largest = 0;
    let run = store.begin_run(&RunRecord::default()).unwrap();
    for at in 0..4000 {
        let mut now = sample(start, at, 300, 0);
        for task in &mut now.tasks {
            task.ran_ns = random.random();
        }
        store.add_sample(&now).unwrap();
        store.add_stage(run, &Stage { predicted: None, ..stage("trial", at) }).unwrap();
        largest = largest.max(store.usage().unwrap().disk_bytes);
    }
    assert!(largest <= limits.max_bytes, "{largest} bytes");
    let usage = store.usage().unwrap();
    assert!(usage.samples[0] > 60 && usage.samples[0] < 4000, "{usage:?}");
    // The newest are what is kept.
    store.flush().unwrap();
    assert_eq!(read_all(&store).last().unwrap().wall_ns, start + 3999 * S);
}

#[test]
fn age_bounds_samples_and_runs() {
    let (_dir, path) = dir();
    let mut store = Store::open(&path, Limits::default()).unwrap();
    let old = now_ns() - 40 * 86_400 * S;
    let record = RunRecord { started_ns: old, ..RunRecord::default() };
    store.begin_run(&record).unwrap();
    store.begin_run(&record).unwrap();
    for at in 0..100 {
        store.add_sample(&sample(old, at, 5, 5)).unwrap();
    }
    drop(store);
    let store = Store::open(&path, Limits::default()).unwrap();
    let usage = store.usage().unwrap();
    assert_eq!((usage.samples, usage.runs), ([0, 0, 0], 1), "the last run is kept, the rest is too old");
}

#[test]
fn a_clock_that_leaps_ahead_and_back_takes_nothing_away() {
    let (_dir, path) = dir();
    let mut store = Store::open(&path, Limits::default()).unwrap();
    let (start, ahead) = (now_ns() - 300 * S, 40 * 86_400 * S);
    let record = RunRecord { started_ns: start, ..RunRecord::default() };
    let first = store.begin_run(&record).unwrap();
    store.begin_run(&record).unwrap();
    let minute = start / (60 * S);
    let time = PromiseTime { watched_s: 60.0, broken_s: 6.0 };
    store.add_promise_time("web", minute, time).unwrap();
    for at in 0..300 {
        let leap = if (100..200).contains(&at) { ahead } else { 0 };
        store.add_sample(&sample(start + leap, at, 5, 5)).unwrap();
        if at == 150 {
            store.add_promise_time("web", (start + leap) / (60 * S), time).unwrap();
        }
    }
    store.flush().unwrap();
    let before = store.samples(start, start + 99 * S).unwrap().count();
    assert!(before >= 2, "{before} of the samples before the leap are left");
    assert!(store.run(first).is_ok());
    assert_eq!(store.promise_day("web", minute).unwrap(), Some(time));
}

fn change(knob: &str, to: &str) -> ChangeRecord {
    ChangeRecord {
        task: Some(TaskId { tgid: 5, tid: 6, start_time: 7 }),
        comm: Some("x".into()),
        group: None,
        knob: knob.into(),
        from: "other nice 0".into(),
        to: to.into(),
        why: "longer slice".into(),
        effect: None,
        at_ns: 9,
    }
}

#[test]
fn runs_remember_stages_trials_and_changes() {
    let (_dir, path) = dir();
    let mut store = Store::open(&path, Limits::default()).unwrap();
    assert_eq!(store.last_run().unwrap(), None);
    let mut record = RunRecord {
        scope: vec!["container:web".into()],
        pid: 4711,
        started_ns: now_ns(),
        settings: "kernel default".into(),
        ..RunRecord::default()
    };
    let run = store.begin_run(&record).unwrap();
    store.add_stage(run, &stage("kernel default", 1)).unwrap();
    store.add_stage(run, &stage("trial batch", 2)).unwrap();
    let (a, b) = (change("sched", "batch"), change("affinity", "cpus 1"));
    store.set_changes(run, &[a.clone(), b.clone()]).unwrap();
    let measured = ChangeRecord { effect: Some("+3 %".into()), at_ns: 99, ..a.clone() };
    store.set_changes(run, std::slice::from_ref(&measured)).unwrap();
    let window = evenkeel_store::TrialWindow {
        trial: 1,
        settings: "batch".into(),
        started_ns: 3,
        seconds: 1.5,
        cpu_pct: 140.0,
        wait_per_ran: Some(0.1),
        ..evenkeel_store::TrialWindow::default()
    };
    store.add_trial(run, &window).unwrap();
    record.settings = "batch".into();
    record.own_cost = SelfCost { cpu_pct: Some(0.4), rss_bytes: Some(1 << 20) };
    store.update_run(run, &record).unwrap();

    let reader = Store::open_read_only(&path).unwrap().unwrap();
    let live = reader.last_run().unwrap().unwrap();
    assert_eq!((live.ended_ns, live.record.settings.as_str()), (None, "batch"));
    assert_eq!(live.record.stages, [stage("kernel default", 1), stage("trial batch", 2)]);
    assert_eq!(live.record.changes, [ChangeRecord { at_ns: 9, ..measured }]);
    assert_eq!(reader.trials(run).unwrap(), [window]);
    let all = reader.changes(run).unwrap();
    assert_eq!(all.len(), 2);
    assert!(all[0].undone_ns.is_none() && all[1].undone_ns.is_some());

    store.finish_run(run, &record, "stopped by the user").unwrap();
    let done = reader.runs().unwrap();
    assert_eq!(done.len(), 1);
    assert!(done[0].ended_ns.is_some() && done[0].outcome.as_deref() == Some("stopped by the user"));
    assert!(reader.changes(run).unwrap().iter().all(|c| c.undone_ns.is_some()));
    assert!(matches!(reader.run(evenkeel_store::RunId(77)), Err(StoreError::NoRun { run: 77, .. })));
}

#[test]
fn damage_is_moved_aside_and_told() {
    let (dir, path) = dir();
    let mut store = Store::open(&path, Limits::default()).unwrap();
    let start = now_ns() - 1000 * S;
    for at in 0..300 {
        store.add_sample(&sample(start, at, 50, 50)).unwrap();
    }
    drop(store);
    // Pages in the middle overwritten.
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&[0x5a; 30_000]).unwrap();
    drop(file);
    let error = Store::open_read_only(&path)
        .map(|store| store.unwrap().rates(0, u64::MAX))
        .and_then(|r| r)
        .unwrap_err();
    assert!(error.is_corrupt(), "{error}");
    let store = Store::open(&path, Limits::default()).unwrap();
    let note = store.note().unwrap();
    assert!(note.contains("history.corrupt-1.db"), "{note}");
    assert!(dir.path().join("history.corrupt-1.db").exists());
    assert!(read_all(&store).is_empty());
    drop(store);
    // Not a database at all; and the second one gets the next number.
    fs::write(&path, b"hello, I am not a database").unwrap();
    let store = Store::open(&path, Limits::default()).unwrap();
    assert!(store.note().unwrap().contains("history.corrupt-2.db"));
    drop(store);
    // A disk that damages each is not filled with them.
    for content in ["third", "fourth", "fifth"] {
        fs::write(&path, content).unwrap();
        assert!(
            Store::open(&path, Limits::default()).unwrap().note().unwrap().contains("history.corrupt-3.db")
        );
        assert_eq!(fs::read_to_string(dir.path().join("history.corrupt-3.db")).unwrap(), content);
    }
    let kept = fs::read_dir(&dir)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("corrupt"));
    assert_eq!(kept.count(), 3);
}

#[test]
fn a_newer_file_is_left_alone() {
    let (_dir, path) = dir();
    drop(Store::open(&path, Limits::default()).unwrap());
    let db = rusqlite::Connection::open(&path).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    drop(db);
    for result in [Store::open(&path, Limits::default()).map(Some), Store::open_read_only(&path)] {
        let error = result.unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 99, .. }));
        assert!(error.to_string().contains("newer evenkeel"));
    }
}

#[test]
fn a_recorder_without_a_place_says_so_and_does_nothing() {
    let (dir, _) = dir();
    fs::write(dir.path().join("file"), b"").unwrap();
    let mut recorder = Recorder::open(&dir.path().join("file/history.db"), Limits::default());
    recorder.flush();
    assert_eq!(recorder.take_notes().len(), 1);
    recorder.add_sample(&sample(now_ns(), 0, 2, 2), None);
    recorder.begin_run(&RunRecord::default());
    recorder.flush();
    assert_eq!(recorder.run_id(), None);
}

/// Somebody holds the file, as a disk does that stands still: nobody waits for it, and what was given is written afterwards.
#[test]
fn what_keeps_the_file_from_being_written_keeps_nobody_waiting() {
    let (_dir, path) = dir();
    let mut recorder = Recorder::open(&path, Limits { block_samples: 1, ..Limits::default() });
    recorder.begin_run(&RunRecord::default());
    recorder.flush();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for at in 0..5 {
        recorder.add_sample(&sample(now_ns() + at * 1_000_000_000, at, 2, 2), None);
    }
    other.execute_batch("COMMIT").unwrap();
    recorder.flush();
    assert!(recorder.take_notes().is_empty());
    drop(recorder);
    assert_eq!(Store::open_read_only(&path).unwrap().unwrap().usage().unwrap().samples[0], 5);
}

/// `serve` lets a `run` write, and goes on when that has ended: what both know of counts once.
#[test]
fn the_time_in_which_another_wrote_counts_once() {
    let (_dir, path) = dir();
    let start = now_ns() - 100 * S;
    let mut one = Recorder::open(&path, Limits::default());
    let add = |recorder: &mut Recorder, seconds: std::ops::Range<u64>| {
        seconds.for_each(|at| recorder.add_sample(&sample(start, at, 2, 2), None));
        recorder.flush();
    };
    add(&mut one, 0..10);
    add(&mut Recorder::open(&path, Limits::default()), 10..50);
    add(&mut one, 50..60);
    let rates = Store::open_read_only(&path).unwrap().unwrap().rates(0, u64::MAX).unwrap().unwrap();
    assert_eq!((rates.seconds, rates.samples), (9.0 + 39.0 + 9.0, 60));
}

/// While the disk does not keep up samples are left out, which is told once; nothing grows without bound.
#[test]
fn a_disk_that_stands_still_costs_samples_and_is_told() {
    let (_dir, path) = dir();
    let mut recorder = Recorder::open(&path, Limits { block_samples: 1, ..Limits::default() });
    recorder.flush();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for at in 0..1000 {
        recorder.add_sample(&sample(now_ns() + at * 1_000_000_000, at, 2, 2), None);
    }
    let notes = recorder.take_notes();
    assert!(notes.len() == 1 && notes[0].contains("does not keep up"), "{notes:?}");
    other.execute_batch("COMMIT").unwrap();
    recorder.flush();
    drop(recorder);
    let kept = Store::open_read_only(&path).unwrap().unwrap().usage().unwrap().samples[0];
    assert!((1..=100).contains(&kept), "{kept}");
}

#[test]
fn nothing_there_is_nothing_recorded() {
    let (_dir, path) = dir();
    assert!(Store::open_read_only(&path).unwrap().is_none());
    fs::write(&path, b"").unwrap();
    assert!(Store::open_read_only(&path).unwrap().is_none());
}

#[test]
fn the_minutes_a_promise_was_broken_add_up_over_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    let mut store = Store::open(&path, Limits::default()).unwrap();
    assert_eq!(store.promise_day("a", 5000).unwrap(), None);
    let time = |watched_s, broken_s| evenkeel_store::PromiseTime { watched_s, broken_s };
    for (minute, watched, broken) in
        [(3500, 60.0, 60.0), (4000, 60.0, 30.0), (4000, 10.0, 5.0), (5000, 60.0, 0.0)]
    {
        store.add_promise_time("a", minute, time(watched, broken)).unwrap();
    }
    store.add_promise_time("b", 5000, time(60.0, 60.0)).unwrap();
    assert_eq!(store.promise_day("a", 5000).unwrap(), Some(time(130.0, 35.0)), "3500 is more than a day ago");
    assert_eq!(store.promise_day("c", 5000).unwrap(), None);
    drop(store);
    let store = Store::open_read_only(&path).unwrap().unwrap();
    assert_eq!(store.promise_day("b", 5000).unwrap(), Some(time(60.0, 60.0)));
}
