//! The programs of `why` on this kernel: what they count against what the kernel itself counts, and what they leave
//! behind. Needs root.

mod load;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::why::{
    Cell, Culprit, Histogram, Probe, ScopeNumber, Seen, Waited, Watch, WatchOptions, scope_of,
};
use evenkeel_linux::testing::{TestCgroup, TestChild, schedstat, until};
use load::{Process, turn};

fn whole(seen: &Seen) -> Cell {
    let mut sum = Cell::default();
    for cell in &seen.cells {
        sum.ran_ns += cell.ran_ns;
        sum.waited_ns += cell.waited_ns;
        sum.throttled_ns += cell.throttled_ns;
        sum.stolen_ns += cell.stolen_ns;
        sum.slept_ns += cell.slept_ns;
        sum.stopped_ns += cell.stopped_ns;
        sum.preempted += cell.preempted;
        sum.waits.merge(&cell.waits);
    }
    sum
}

fn watch(watch: Watch) -> Probe {
    watch_with(watch, WatchOptions::default())
}

fn watch_with(watch: Watch, options: WatchOptions) -> Probe {
    Probe::start(&kernel_types().unwrap(), &watch, &options).unwrap()
}

/// Waits of the scopes it is told of.
fn scopes() -> Probe {
    watch_with(Watch::Scopes, WatchOptions { waits_only: true, ..WatchOptions::default() })
}

fn put(probe: &mut Probe, process: &Process, scope: ScopeNumber, children: bool) {
    let (tgid, start_time) = process.named();
    probe.put(tgid, start_time, scope, children).unwrap();
}

fn pool<K>(parts: impl IntoIterator<Item = (K, Histogram)>) -> Histogram {
    let mut all = Histogram::default();
    parts.into_iter().for_each(|(_, part)| all.merge(&part));
    all
}

fn ended_since(probe: &Probe, earlier: &Waited) -> Histogram {
    pool(probe.waited().unwrap().since(earlier))
}

fn inode(group: &TestCgroup) -> u64 {
    fs::metadata(group.dir()).unwrap().ino()
}

#[test]
fn run_and_wait_agree_with_the_kernels_counters_and_the_hog_is_to_blame() {
    let _turn = turn();
    let target = Process::hog(0);
    let hogs = [Process::hog(0), Process::hog(0)];
    let probe = watch(Watch::Processes(vec![target.named()]));
    let before = target.schedstat();
    let hogs_before = hogs.each_ref().map(Process::schedstat);
    std::thread::sleep(Duration::from_secs(3));
    let after = target.schedstat();
    let hogs_after = hogs.each_ref().map(Process::schedstat);
    let seen = probe.finish().unwrap();
    assert_eq!(seen.lost, 0);
    let sum = whole(&seen);
    let wall = (seen.interval_ns.1 - seen.interval_ns.0) as f64;
    let near = |what: &str, ours: u64, theirs: f64| {
        // Two percent, and what may happen between the readings: a slice on a busy machine.
        let allowed = 0.02 * theirs + 0.01 * wall;
        assert!((ours as f64 - theirs).abs() < allowed, "{what}: {ours} against {theirs} in {wall}");
    };
    near("ran", sum.ran_ns, after[0] - before[0]);
    near("waited", sum.waited_ns, after[1] - before[1]);
    near("all", sum.ran_ns + sum.waited_ns + sum.stolen_ns + sum.throttled_ns + sum.slept_ns, wall);
    assert!(sum.waits.total() > 10 && sum.preempted > 10, "{} {}", sum.waits.total(), sum.preempted);
    // It never sleeps and cannot leave, so whatever the hogs ran, they ran while it waited.
    let mut blamed = 0;
    for (hog, (old, new)) in hogs.iter().zip(hogs_before.iter().zip(&hogs_after)) {
        let ours: u64 = seen
            .blame
            .iter()
            .filter(|b| matches!(&b.culprit, Culprit::Task { tgid, comm, .. } if *tgid == hog.pid() && comm == "sh"))
            .map(|b| b.ns)
            .sum();
        near("a hog's part", ours, new[0] - old[0]);
        blamed += ours;
    }
    assert!(blamed > 0, "{:?}", seen.blame);
    let all: u64 = seen.blame.iter().map(|b| b.ns).sum();
    near("blame in sum", all, sum.waited_ns as f64);
}

#[test]
fn everybody_is_watched_by_group() {
    let _turn = turn();
    let _hogs = [Process::hog(0), Process::hog(0), Process::hog(1), Process::hog(1)];
    let probe = watch(Watch::All);
    std::thread::sleep(Duration::from_secs(1));
    let seen = probe.finish().unwrap();
    assert_eq!(seen.lost, 0);
    let sum = whole(&seen);
    let wall = (seen.interval_ns.1 - seen.interval_ns.0) as f64;
    let cpus = evenkeel_linux::sys::usable_cpus().len() as f64;
    assert!(sum.ran_ns as f64 > 1.5 * wall, "four hogs on two CPUs: {} in {wall}", sum.ran_ns);
    assert!(sum.ran_ns as f64 <= 1.02 * cpus * wall, "more than there is: {} in {wall}", sum.ran_ns);
    let all: u64 = seen.blame.iter().map(|b| b.ns).sum();
    assert!(
        (all as f64 - sum.waited_ns as f64).abs() < 0.03 * sum.waited_ns as f64,
        "{all} {}",
        sum.waited_ns
    );
    assert!(seen.blame.iter().any(|b| matches!(b.culprit, Culprit::Group(_))), "{:?}", seen.blame);
}

#[test]
fn waits_are_told_while_the_watch_goes_on() {
    let _turn = turn();
    let hogs = [Process::hog(0), Process::hog(0)];
    let mut probe = watch(Watch::Processes(Vec::new()));
    let total = |waited: &Waited, earlier: &Waited| {
        waited.since(earlier).map(|(_, waits)| waits.total()).sum::<u64>()
    };
    std::thread::sleep(Duration::from_millis(500));
    let nobody = probe.waited().unwrap();
    assert_eq!(total(&nobody, &Waited::default()), 0, "nobody is meant yet");
    // One that comes later; the other is not meant.
    let (tgid, start_time) = hogs[0].named();
    probe.add_process(tgid, start_time).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let first = probe.waited().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let second = probe.waited().unwrap();
    let counts = [total(&first, &nobody), total(&second, &first)];
    assert!(counts.iter().all(|count| *count > 5), "two hogs take turns: {counts:?}");
    // Each is as long as the other's slice: what is waited in sum is about half of the time, less what others take.
    let waits = pool(second.since(&first));
    let seen = probe.finish().unwrap();
    let whole = whole(&seen).waits;
    assert!(whole.total() >= counts[0] + counts[1], "{} {counts:?}", whole.total());
    assert!(waits.quantile(0.5).unwrap() > 100_000 && waits.longest() <= whole.longest(), "{waits:?}");
}

#[test]
fn a_wait_belongs_to_the_window_in_which_it_began_and_counts_while_it_goes_on() {
    let _turn = turn();
    let victim = Process::hog(0);
    let mut probe = watch(Watch::Processes(vec![victim.named()]));
    let hog = Process::realtime_hog();
    // The victim gets no CPU from here on: real-time tasks have it for most of a second.
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    probe.begin_window(false).unwrap();
    let first = probe.waited().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let at_least = began.elapsed();
    let open = pool(probe.open_waits().unwrap());
    let at_most = began.elapsed();
    assert_eq!(open.total(), 1, "{open:?}");
    let longest = Duration::from_nanos(open.longest().unwrap());
    // A bucket is a quarter of an octave.
    assert!(longest >= at_least.mul_f64(0.8) && longest <= at_most.mul_f64(1.2), "{longest:?} {at_least:?}");
    drop(hog);
    std::thread::sleep(Duration::from_millis(300));
    let ended = ended_since(&probe, &first);
    assert!(
        ended.longest() < Some(200_000_000),
        "a wait of an earlier window is counted when it ends: {ended:?}"
    );
}

#[test]
fn time_held_back_by_a_quota_is_part_of_a_wait_where_that_is_asked_for() {
    let _turn = turn();
    // It runs for 10 ms and is held back for 190 ms, as long as no other is on its CPU.
    let quota = CpuQuota { quota_usec: Limit::Value(10_000), period_usec: 200_000, burst_usec: 0 };
    let (group, hog) = (TestCgroup::new("bpf-held").unwrap(), Process::hog(0));
    group.set_quota(&quota).unwrap();
    group.add(hog.pid()).unwrap();
    let longest = |throttled_waits| {
        let options = WatchOptions { waits_only: true, throttled_waits, ..WatchOptions::default() };
        let mut probe = watch_with(Watch::Processes(vec![hog.named()]), options);
        probe.begin_window(false).unwrap();
        let open = pool((0..12).flat_map(|_| {
            std::thread::sleep(Duration::from_millis(90));
            probe.open_waits().unwrap()
        }));
        let ended = ended_since(&probe, &Waited::default());
        [ended.longest().unwrap_or(0), open.longest().unwrap_or(0)]
    };
    let (with, without) = (longest(true), longest(false));
    assert!(
        with.iter().zip(without).all(|(with, without)| *with > 100_000_000 && *with > 3 * without),
        "{with:?} {without:?}"
    );
}

/// Those that find no room share a place, and no quota is known to hold them back.
#[test]
fn a_target_of_many_cgroups_has_each_of_them() {
    let _turn = turn();
    let top = TestCgroup::new("bpf-many").unwrap();
    let probe = watch(Watch::Groups(vec![inode(&top)]));
    // The kernel gives the memory of strangers that are gone to those below.
    let stranger = |n| TestCgroup::new(&format!("bpf-gone{n}")).unwrap().command().arg("true").status();
    (0..40).for_each(|n| assert!(stranger(n).unwrap().success()));
    std::thread::sleep(Duration::from_millis(500));
    let below: Vec<TestCgroup> = (0..80).map(|n| top.child(&format!("c{n}")).unwrap()).collect();
    let _children: Vec<TestChild> =
        below.iter().map(|group| TestChild(group.command().args(["sleep", "60"]).spawn().unwrap())).collect();
    let has_tasks = |group: &TestCgroup| group.text("cgroup.procs").is_some_and(|pids| !pids.is_empty());
    until("all are there", || below.iter().all(has_tasks));
    std::thread::sleep(Duration::from_millis(300));
    let seen = probe.finish().unwrap();
    let known = seen.cells.iter().filter(|cell| cell.cgroup.is_some()).count();
    let rest: u64 = seen.cells.iter().filter(|cell| cell.cgroup.is_none()).map(|cell| cell.slept_ns).sum();
    assert_eq!((known, rest), (below.len(), 0));
}

#[test]
fn scopes_are_counted_apart_and_nobody_is_blamed() {
    let _turn = turn();
    let hogs = [Process::hog(0), Process::hog(0), Process::hog(0)];
    let mut probe = scopes();
    let mut last = probe.waited().unwrap();
    let mut seen = |probe: &Probe| {
        std::thread::sleep(Duration::from_millis(700));
        let now = probe.waited().unwrap();
        let mut totals = [0; 3];
        for (cell, waits) in now.since(&last) {
            totals[usize::from(scope_of(cell).unwrap())] += waits.total();
        }
        last = now;
        totals
    };
    assert_eq!(seen(&probe), [0; 3], "nobody is meant yet");
    put(&mut probe, &hogs[0], 1, false);
    put(&mut probe, &hogs[1], 2, false);
    let [nobody, first, second] = seen(&probe);
    assert!(nobody == 0 && first > 5 && second > 5, "{nobody} {first} {second}");
    put(&mut probe, &hogs[0], 2, false);
    let [_, left, both] = seen(&probe);
    // A wait that went on may still end in the scope in which it began.
    assert!(left <= 1 && both > first + second / 2, "{left} {both}, {first} and {second} before");
    put(&mut probe, &hogs[0], 0, false);
    put(&mut probe, &hogs[1], 0, false);
    let [nobody, _, second] = seen(&probe);
    assert!(nobody > 5 && second <= 2, "{nobody} {second}");
    let open = probe.open_waits().unwrap();
    assert!(open.keys().all(|cell| scope_of(*cell) == Some(0)), "{open:?}");
    let seen = probe.finish().unwrap();
    // What goes on at the end is owed to whoever has the CPU, who is not looked at.
    let named = seen.blame.iter().any(|blame| blame.culprit != Culprit::Idle);
    assert!(!named && seen.lost == 0, "{:?}", seen.blame);
}

/// Instructions the kernel's verifier may walk at a start. They were 586,000, and 3 s of the kernel's CPU, when functions
/// were walked through for every state in which they are called; 52,000 and 0.1 s now.
const VERIFIED: u32 = 100_000;

#[test]
fn a_start_gives_the_verifier_little_work() {
    let _turn = turn();
    let walked = watch(Watch::All).verified_instructions().unwrap();
    let all: u32 = walked.iter().map(|(_, count)| count).sum();
    assert!(walked.iter().any(|(name, count)| name == "on_switch" && *count > 100), "{walked:?}");
    assert!(walked.len() >= 10 && all < VERIFIED, "{all} instructions in all: {walked:?}");
}

/// Numbers of loaded programs with these names, also those of others on this host.
fn loaded(names: &[&str]) -> Vec<u32> {
    let all = aya::programs::loaded_programs().flatten();
    let ours = all.filter(|program| program.name_as_str().is_some_and(|name| names.contains(&name)));
    ours.map(|program| program.id()).collect()
}

fn ours() -> usize {
    loaded(&["on_switch", "on_wakeup", "on_migrate", "on_irq_entry", "on_timer", "seed"]).len()
}

/// The kernel frees them after a grace period.
#[track_caller]
fn until_gone() {
    until("no program of this kind is loaded on this host", || ours() == 0);
}

/// Set for a process that loads the programs and waits to be killed.
const HOLD: &str = "EVENKEEL_HOLD_PROBE";

#[test]
fn hold_the_programs_when_told_to() {
    let Some(file) = std::env::var_os(HOLD).map(PathBuf::from) else { return };
    let _probe = watch(Watch::All);
    fs::write(file, "ready").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn nothing_is_left_behind_also_after_a_kill() {
    let _turn = turn();
    until_gone();
    for _ in 0..20 {
        let probe = watch(Watch::All);
        assert!(ours() > 0, "the programs are not found by their names");
        drop(probe);
    }
    until_gone();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ready");
    for _ in 0..3 {
        let _ = fs::remove_file(&file);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "hold_the_programs_when_told_to"]).env(HOLD, &file).stdout(Stdio::null());
        let holder = Process::start(command);
        until("the holder has loaded them", || file.exists());
        assert!(ours() > 0);
        drop(holder);
        until_gone();
    }
}

/// The programs know a cgroup's scheduling group by its address, which the kernel uses again.
#[test]
fn a_cgroup_at_the_address_of_one_that_is_gone_is_not_taken_for_it() {
    let _turn = turn();
    let probe = watch(Watch::All);
    let mut made = Vec::new();
    for n in 0..25 {
        let group = TestCgroup::new(&format!("bpf-{n}")).unwrap();
        made.push(inode(&group));
        // It sleeps there before it works: that it is in another cgroup is seen when it wakes.
        let script = "sleep 0.01; i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done";
        assert!(group.command().args(["sh", "-c", script]).status().unwrap().success());
        drop(group);
        // Its memory is free once nobody can look at it any more.
        std::thread::sleep(Duration::from_millis(60));
    }
    let seen = probe.look().unwrap();
    let ran = |id: &u64| seen.cells.iter().any(|cell| cell.cgroup == Some(*id) && cell.ran_ns > 0);
    let missing = made.iter().filter(|id| !ran(id)).count();
    assert_eq!(missing, 0, "{missing} of {} ran under another's name", made.len());
}

/// Links by which programs with our names are attached, also those of others on this host.
fn attached() -> BTreeSet<u32> {
    let ours = loaded(&["on_switch"]);
    let links = aya::programs::loaded_links().flatten();
    links.filter(|link| ours.contains(&link.program_id())).map(|link| link.id()).collect()
}

/// Waited, ns, and times that a CPU was got, of both, by the kernel's own counters.
fn got(processes: &[Process]) -> [f64; 2] {
    [1, 2].map(|of| processes.iter().map(|process| schedstat(process.pid())[of] as f64).sum())
}

#[test]
fn turns_stand_for_the_time_between_them_and_a_border_makes_no_long_wait() {
    let _turn = turn();
    let group = TestCgroup::new("bpf-turns").unwrap();
    let hogs = [Process::hog(0), Process::hog(0)];
    for hog in &hogs {
        group.add(hog.pid()).unwrap();
    }
    let id = inode(&group);
    let mut probe = watch_with(Watch::All, WatchOptions { in_turns: true, ..WatchOptions::default() });
    probe.rest().unwrap();
    let (before, mut begun) = (got(&hogs), Instant::now());
    let (mut waited, mut waits, mut all) = (0.0, 0.0, Histogram::default());
    let (mut spent, mut turns) = (0, 0.0);
    // Pauses that have nothing to do with the hogs' slices.
    for pause in [90, 913, 211, 47, 333, 148, 271, 402] {
        std::thread::sleep(Duration::from_millis(pause));
        let others = attached();
        probe.resume().unwrap();
        let ours = &attached() - &others;
        std::thread::sleep(Duration::from_millis(170));
        spent += probe.spent().unwrap()[0];
        let (seen, counts) = probe.rest().unwrap();
        assert!(!ours.is_empty() && !ours.is_subset(&attached()), "a probe that rests is attached: {ours:?}");
        // The turn itself, as the programs have it.
        let turn = (seen.interval_ns.1 - seen.interval_ns.0) as f64;
        let factor = begun.elapsed().as_nanos() as f64 / turn;
        begun = Instant::now();
        turns += turn;
        let cell = seen.cells.iter().find(|cell| cell.cgroup == Some(id)).expect("the hogs were seen");
        waited += factor * cell.waited_ns as f64;
        for (_, ended) in counts.since(&Waited::default()).filter(|(of, _)| *of == Some(id)) {
            waits += factor * ended.total() as f64;
            all.merge(&ended);
        }
    }
    let after = got(&hogs);
    let near = |what: &str, ours: f64, theirs: f64| {
        assert!((ours / theirs - 1.0).abs() < 0.2, "{what}: {ours} against {theirs}");
    };
    near("waited", waited, after[0] - before[0]);
    near("waits", waits, after[1] - before[1]);
    // Another real-time hog on this host may take its time, too, but not that of the longest pause.
    assert!(all.longest() < Some(700_000_000), "{all:?}");
    assert!(spent > 0 && (spent as f64) < 0.3 * turns, "{spent} ns in {turns}");
}

#[test]
fn a_wait_that_begins_while_the_watch_rests_counts_as_long_as_it_was() {
    let _turn = turn();
    let victim = Process::hog(0);
    let group = TestCgroup::new("bpf-border").unwrap();
    group.add(victim.pid()).unwrap();
    let mut probe = watch_with(Watch::All, WatchOptions { in_turns: true, ..WatchOptions::default() });
    probe.rest().unwrap();
    let hog = Process::realtime_hog();
    std::thread::sleep(Duration::from_millis(400));
    probe.resume().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(hog);
    std::thread::sleep(Duration::from_millis(200));
    let (seen, waited) = probe.rest().unwrap();
    let ended = pool(waited.since(&Waited::default()));
    assert!(ended.longest() > Some(300_000_000), "{ended:?}");
    // Its time before the turn is not the turn's: all waits together are of this one on this CPU.
    let id = inode(&group);
    let cell = seen.cells.iter().find(|cell| cell.cgroup == Some(id)).unwrap();
    let turn = seen.interval_ns.1 - seen.interval_ns.0;
    assert!(cell.waited_ns > 50_000_000 && cell.waited_ns <= turn, "{} in {turn}", cell.waited_ns);
}

#[test]
fn children_count_from_their_first_instant_and_make_room_when_they_end() {
    let _turn = turn();
    let mut probe = scopes();
    // Each child lives for some hundredths of a second, and takes turns with the hog meanwhile.
    let hog = Process::hog(0);
    let parent = Process::on(0, "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done");
    let mut counted = |children| {
        put(&mut probe, &parent, 1, children);
        let before = probe.waited().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let now = probe.waited().unwrap();
        let mine = now.since(&before).filter(|(cell, _)| scope_of(*cell) == Some(1));
        mine.map(|(_, waits)| waits.total()).sum::<u64>()
    };
    let (alone, with_children) = (counted(false), counted(true));
    assert!(with_children > 2 * alone + 5, "{alone} {with_children}");
    drop((parent, hog));
    // More than there is room for at once.
    let many =
        Process::shell("sleep 0.3; i=0; while [ $i -lt 5000 ]; do (:); i=$((i+1)); done; exec sleep 60");
    put(&mut probe, &many, 1, true);
    until("all have ended", || many.comm() == "sleep");
    (0..100).for_each(|n| probe.put((1 << 23) + n, 1, 1, false).unwrap());
}

/// Set for a process whose threads want one CPU when it ends.
const CROWD: &str = "EVENKEEL_WHY_CROWD";

#[test]
fn end_with_threads_when_told_to() {
    if std::env::var_os(CROWD).is_none() {
        return;
    }
    let spin = || {
        (0..u64::MAX).for_each(|n| {
            std::hint::black_box(n);
        })
    };
    (0..8).for_each(|_| drop(std::thread::spawn(spin)));
    std::thread::sleep(Duration::from_millis(200));
    std::process::exit(0);
}

#[test]
fn threads_of_a_child_that_ended_before_them_wait_no_more() {
    let _turn = turn();
    let mut probe = scopes();
    let crowds = "sleep 0.3; for i in 1 2 3 4 5; do taskset -c 0 \"$0\" --exact end_with_threads_when_told_to; done; exec sleep 60";
    let mut parent = Command::new("sh");
    parent.args(["-c", crowds]).arg(std::env::current_exe().unwrap()).env(CROWD, "1").stdout(Stdio::null());
    let parent = Process::start(parent);
    put(&mut probe, &parent, 1, true);
    until("all have ended", || parent.comm() == "sleep");
    probe.begin_window(false).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let open = probe.open_waits().unwrap();
    assert!(open.keys().all(|cell| scope_of(*cell) != Some(1)), "{open:?}");
}
