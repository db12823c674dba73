//! The flight recorder on this kernel, against what `why` counts over the same time. Needs root.

use std::process::Command;
use std::time::Duration;

use evenkeel_base::TaskView;
use evenkeel_bpf::flight::Recorder;
use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::why::{Cell, Culprit, Probe, Watch, WatchOptions};
use evenkeel_linux::process::start_time;
use evenkeel_linux::testing::TestChild;
use evenkeel_linux::{Root, sys};
use evenkeel_observe::flight::{Account, Recording, account, trace};
use evenkeel_observe::{Detail, Observer, ObserverOptions};

/// A shell that ends with the test, with what it started.
struct Shell(TestChild);

impl Shell {
    fn start(script: &str) -> Self {
        Self(TestChild::shell_on(0, script))
    }

    fn id(&self) -> (u32, u64) {
        let pid = self.0.id();
        (pid, start_time(pid, pid).unwrap())
    }
}

fn recorder(seconds: f64) -> Recorder {
    let cpus = evenkeel_linux::sys::usable_cpus().len() as u32;
    Recorder::start(&kernel_types().unwrap(), cpus, seconds).unwrap()
}

fn recording(recorder: &Recorder, from_ns: u64) -> Recording {
    let mut observer = Observer::new(&Root::host(), ObserverOptions::default()).unwrap();
    let sample = observer.sample().unwrap();
    let observation = observer.observe(&sample, &sample, &Detail::None).unwrap();
    let cpu = observer.hierarchies().and_then(|found| found.cpu.clone());
    let now = sys::monotonic_ns();
    let wall = sys::wall_ns() as i64 - now as i64;
    Recording::new(recorder.since(from_ns), observation, cpu.as_ref(), wall)
}

fn of(recording: &Recording, interval: (u64, u64), is_it: impl Fn(&TaskView) -> bool) -> Account {
    account(recording, &recording.threads(), interval, is_it)
}

#[test]
fn a_recording_agrees_with_what_why_counts() {
    let target =
        Shell::start("while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.005; done");
    let hog = Shell::start("while :; do :; done");
    std::thread::sleep(Duration::from_millis(300));
    let recorder = recorder(60.0);
    let watch = Watch::Processes(vec![target.id()]);
    let probe = Probe::start(&kernel_types().unwrap(), &watch, &WatchOptions::default()).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let seen = probe.finish().unwrap();
    let recording = recording(&recorder, 0);
    let pid = target.id().0;
    let account = of(&recording, seen.interval_ns, |view| view.id.tgid == pid);
    let sum = |field: fn(&Cell) -> u64| seen.cells.iter().map(field).sum::<u64>();
    let wall = seen.interval_ns.1 - seen.interval_ns.0;
    let near = |what: &str, ours: u64, theirs: u64| {
        assert!(
            ours.abs_diff(theirs) < theirs / 50 + wall / 200,
            "{what}: {ours} against {theirs} of {wall}"
        );
    };
    near("ran", account.ran_ns + account.stolen_ns, sum(|cell| cell.ran_ns + cell.stolen_ns));
    near("waited", account.waited_ns, sum(|cell| cell.waited_ns));
    near("asleep", account.slept_ns + account.blocked_ns, sum(|cell| cell.slept_ns + cell.disk_ns));
    assert!(sum(|cell| cell.waited_ns) > wall / 10, "the two must have met for this to show anything");
    // Others may have had the CPU, too.
    let hog = hog.id().0;
    let ours = account.blame.iter().filter(|((tid, _), _)| *tid == hog).map(|(_, ns)| ns).sum();
    let is_hog = |culprit: &Culprit| matches!(culprit, Culprit::Task { tid, .. } if *tid == hog);
    let theirs = seen.blame.iter().filter(|one| is_hog(&one.culprit)).map(|one| one.ns).sum();
    near("the hog's part", ours, theirs);
    assert!(theirs > 0);
    assert_eq!(account.unseen, 0);
    let waits = seen.cells.iter().map(|cell| cell.waits.total()).sum::<u64>();
    assert!(account.waits.total().abs_diff(waits) <= waits / 20 + 3, "{} of {waits}", account.waits.total());
}

#[test]
fn who_ended_is_known_by_name_and_lived_no_longer() {
    let recorder = recorder(60.0);
    let began = sys::monotonic_ns();
    let mut shell =
        Command::new("sh").args(["-c", "for i in 1 2 3 4 5; do sleep 0.02; done"]).spawn().unwrap();
    assert!(shell.wait().unwrap().success());
    std::thread::sleep(Duration::from_millis(300));
    let end = sys::monotonic_ns();
    let recording = recording(&recorder, began);
    // Another test's may be among them, each of which sleeps 5 ms.
    let sleeps = of(&recording, (began, end), |view| view.comm == "sleep");
    assert!(sleeps.threads >= 5, "{sleeps:?}");
    let most = sleeps.threads * 200_000_000;
    assert!((100_000_000..most).contains(&sleeps.slept_ns), "{} threads: {sleeps:?}", sleeps.threads);
    let mut bytes = Vec::new();
    trace(&recording, &mut bytes).unwrap();
    let has = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
    assert!(has("sleep") && has("CPUs used"));
}

#[test]
fn a_small_ring_keeps_the_end_and_says_since_when() {
    let _busy = Shell::start("while :; do sleep 0.001; done");
    let recorder = recorder(0.01);
    std::thread::sleep(Duration::from_secs(2));
    let now = sys::monotonic_ns();
    let snapshot = recorder.since(0);
    assert!(snapshot.from_ns > now - 1_900_000_000, "{} of {now}", snapshot.from_ns);
    for events in &snapshot.cpus {
        assert!(events.is_sorted_by_key(|event| event.when_ns) && events.len() <= 4096, "{}", events.len());
    }
    assert!(snapshot.cpus.iter().flatten().count() > 100);
}
