//! A full disk, on a small file system of its own.

use evenkeel_base::run::RunRecord;
use evenkeel_base::{Sample, TaskId, TaskSample};
use evenkeel_store::{Limits, Recorder, Store};
use rand::{Rng, SeedableRng};

/// 3,000 tasks, whose counters are to be filled in.
fn sample(at: u64) -> Sample {
    let task = |n| TaskSample { id: TaskId { tgid: n, tid: n, start_time: 10 }, ..TaskSample::default() };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Sample {
        monotonic_ns: at * 1_000_000_000,
        wall_ns: now.as_nanos() as u64,
        tasks: (1..=3000).map(task).collect(),
        ..Sample::default()
    }
}

#[test]
fn a_full_disk_is_an_error_and_the_recorder_goes_on() {
    // A file system of its own, one megabyte, unmounted and gone at the end.
    struct Mount(tempfile::TempDir);
    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0.path()).status();
        }
    }
    let mount = Mount(tempfile::tempdir().unwrap());
    let status = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "evenkeel-test"])
        .arg(mount.0.path())
        .status()
        .unwrap();
    assert!(status.success(), "this test mounts a small tmpfs and needs root");
    let path = mount.0.path().join("history.db");
    let mut recorder = Recorder::open(&path, Limits { block_samples: 1, ..Limits::default() });
    recorder.begin_run(&RunRecord::default());
    recorder.flush();
    assert!(recorder.is_recording() && recorder.take_notes().is_empty());
    assert!(recorder.run_id().is_some());
    let mut random = rand_pcg::Pcg64::seed_from_u64(2);
    for at in 0..50 {
        let mut now = sample(at);
        for task in &mut now.tasks {
            task.ran_ns = random.random();
        }
        recorder.add_sample(&now, None);
    }
    recorder.flush();
    assert!(!recorder.is_recording());
    let notes = recorder.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("no space left"), "{notes:?}");
    assert!(recorder.take_notes().is_empty());
    drop(recorder);
    // What was committed before is still there and readable.
    let store = Store::open_read_only(&path).unwrap().unwrap();
    assert!(store.usage().unwrap().samples[0] > 0);
    assert_eq!(store.runs().unwrap().len(), 1);
    drop(store);
}
