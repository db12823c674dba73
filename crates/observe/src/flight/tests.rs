use std::collections::BTreeMap;

use evenkeel_base::{CpuQuota, GroupView, Limit, Topology};
use evenkeel_bpf::flight::Ended;
use proptest::prelude::*;

use super::*;

fn task(tid: u32, comm: &str) -> TaskView {
    let one = EndedThread { when_ns: 0, tid, tgid: tid, comm: comm.to_owned(), cgroup: 0 };
    ended_view(&one, &observation(Vec::new()), None, None)
}

fn observation(tasks: Vec<TaskView>) -> Observation {
    Observation { tasks, ..Observation::of(Topology::synthetic(1, 1, 2, 1)) }
}

/// The account of one thread; who is to blame by number.
fn of(recording: &Recording, interval: (u64, u64), tid: u32) -> (Account, BTreeMap<u32, u64>) {
    let account = account(recording, &recording.threads(), interval, |view| view.id.tid == tid);
    let blame = account.blame.iter().map(|((tid, _), ns)| (*tid, *ns)).collect();
    (account, blame)
}

fn recording(tasks: Vec<TaskView>, cpus: Vec<Vec<(u64, What)>>, to_ns: u64) -> Recording {
    let cpus = cpus.into_iter().map(|all| all.into_iter().map(|(at, what)| Event::new(at, what)).collect());
    let snapshot = Snapshot { from_ns: 0, to_ns, cpus: cpus.collect(), ended: Vec::new() };
    Recording::of(snapshot, observation(tasks), Vec::new(), 1_000)
}

const WANTS_ON: Left = Left::Runnable { held: false };
const HELD: Left = Left::Runnable { held: true };

fn switch(next: u32, left: Left) -> What {
    What::Switch { next, priority: 120, left }
}

fn wakeup(tid: u32, cpu: u32) -> What {
    What::Wakeup { tid, cpu, held: false, born: false }
}

/// CPU 0: 7 wakes at 10, waits behind 8 until 30, runs until 50, is preempted by 8, runs again from 60 to 70, and sleeps.
fn example() -> Recording {
    let events = vec![
        (5, switch(8, Left::Asleep)),
        (10, wakeup(7, 0)),
        (30, switch(7, WANTS_ON)),
        (50, switch(8, WANTS_ON)),
        (60, switch(7, Left::Asleep)),
        (70, switch(0, Left::Blocked)),
    ];
    recording(vec![task(7, "seven"), task(8, "eight"), task(9, "nine")], vec![events], 100)
}

#[test]
fn time_is_split_and_the_one_who_ran_is_to_blame() {
    let (seven, blame) = of(&example(), (0, 100), 7);
    assert_eq!((seven.ran_ns, seven.waited_ns, seven.slept_ns, seven.blocked_ns), (30, 30, 10, 30));
    assert_eq!(blame, BTreeMap::from([(8, 30)]));
    assert_eq!((seven.waits.total(), seven.longest_ns), (2, 20));
    assert_eq!((seven.preempted, seven.voluntary, seven.migrated), (1, 1, 0));
    assert_eq!((seven.threads, seven.unseen), (1, 0));
}

#[test]
fn a_part_of_it_counts_its_own_time() {
    let (seven, blame) = of(&example(), (20, 55), 7);
    assert_eq!((seven.ran_ns, seven.waited_ns, seven.slept_ns), (20, 15, 0));
    assert_eq!(blame, BTreeMap::from([(8, 15)]));
    // One ended at 30 and had lasted 20; the other goes on and has lasted 5.
    assert_eq!((seven.waits.total(), seven.longest_ns), (2, 20));
    assert_eq!(seven.preempted, 1);
}

#[test]
fn who_did_nothing_is_unknown_not_asleep() {
    let (nine, _) = of(&example(), (0, 100), 9);
    assert_eq!((nine.threads, nine.unseen, nine.slept_ns, nine.waited_ns), (0, 1, 0, 0));
}

#[test]
fn who_starves_waits_until_the_end() {
    let events = vec![(10, switch(8, Left::Asleep)), (20, wakeup(7, 0))];
    let recording = recording(vec![task(7, "seven"), task(8, "eight")], vec![events], 90);
    let (seven, blame) = of(&recording, (0, 90), 7);
    assert_eq!((seven.waited_ns, seven.longest_ns, seven.waits.total()), (70, 70, 1));
    assert_eq!(blame, BTreeMap::from([(8, 70)]));
}

#[test]
fn who_had_a_cpu_when_it_began_did_not_wait_for_it_until_it_came_again() {
    // 7 has had the CPU since 10, 9 has waited since before, and 8 takes the CPU for a moment.
    let events = [
        (10, switch(7, Left::Asleep)),
        (50, switch(8, WANTS_ON)),
        (52, switch(9, Left::Asleep)),
        (90, switch(7, Left::Asleep)),
        (95, switch(0, Left::Asleep)),
    ];
    let events = events.into_iter().map(|(at, what)| Event::new(at, what)).collect();
    let snapshot = Snapshot { from_ns: 20, to_ns: 100, cpus: vec![events], ended: Vec::new() };
    let tasks = vec![task(7, "seven"), task(8, "eight"), task(9, "nine")];
    let recording = Recording::of(snapshot, observation(tasks), Vec::new(), 1_000);
    let (seven, blame) = of(&recording, (0, 100), 7);
    assert_eq!((seven.ran_ns, seven.waited_ns, seven.longest_ns, seven.slept_ns), (35, 40, 40, 5));
    assert_eq!(blame, BTreeMap::from([(8, 2), (9, 38)]));
    let (nine, blame) = of(&recording, (0, 100), 9);
    assert_eq!((nine.ran_ns, nine.waited_ns, nine.longest_ns, nine.slept_ns), (38, 32, 32, 10));
    assert_eq!(blame, BTreeMap::from([(7, 30), (8, 2)]));
}

#[test]
fn time_behind_a_quota_is_nobodys_fault() {
    let events = vec![(10, switch(7, Left::Asleep)), (20, switch(8, HELD)), (70, switch(7, Left::Asleep))];
    let recording = recording(vec![task(7, "seven"), task(8, "eight")], vec![events], 80);
    let (seven, blame) = of(&recording, (0, 80), 7);
    // Until 10 it was runnable, or it would have been woken.
    assert_eq!((seven.ran_ns, seven.throttled_ns, seven.waited_ns), (20, 50, 10));
    assert!(blame.is_empty(), "who had the CPU before the first switch is not known: {:?}", blame);
    assert_eq!((seven.waits.total(), seven.preempted), (1, 0));
}

#[test]
fn who_is_moved_waits_for_another() {
    let zero = vec![(1, switch(8, Left::Asleep)), (10, wakeup(7, 0)), (40, What::Migrate { tid: 7, cpu: 1 })];
    let one = vec![(1, switch(9, Left::Asleep)), (60, switch(7, WANTS_ON))];
    let tasks = vec![task(7, "seven"), task(8, "eight"), task(9, "nine")];
    let (seven, blame) = of(&recording(tasks, vec![zero, one], 100), (0, 100), 7);
    assert_eq!(blame, BTreeMap::from([(8, 30), (9, 20)]));
    assert_eq!((seven.waits.total(), seven.longest_ns, seven.migrated, seven.ran_ns), (1, 50, 1, 40));
}

#[test]
fn stolen_time_is_not_time_on_a_cpu() {
    let events =
        vec![(10, switch(7, Left::Asleep)), (60, What::Stolen { ns: 20 }), (60, switch(0, Left::Asleep))];
    let (seven, _) = of(&recording(vec![task(7, "seven")], vec![events], 60), (0, 60), 7);
    assert_eq!((seven.ran_ns, seven.stolen_ns, seven.waited_ns), (30, 20, 10));
}

#[test]
fn who_ends_is_gone_and_its_number_anothers() {
    let events = [
        (10, switch(7, Left::Asleep)),
        // The end is told before the last switch.
        (30, switch(8, Left::Ended)),
        (40, What::Wakeup { tid: 7, cpu: 0, held: false, born: true }),
        (50, switch(7, Left::Asleep)),
    ];
    let events = events.map(|(at, what)| Event::new(at, what)).to_vec();
    let ended = Ended { when_ns: 25, tid: 7, tgid: 7, comm: "old".into(), cgroup: 0 };
    let snapshot = Snapshot { from_ns: 0, to_ns: 60, cpus: vec![events], ended: vec![ended] };
    let tasks = vec![task(7, "new"), task(8, "eight")];
    let recording = Recording::of(snapshot, observation(tasks), Vec::new(), 0);
    let named = |comm: &str| account(&recording, &recording.threads(), (0, 60), |view| view.comm == comm);
    let (old, new) = (named("old"), named("new"));
    assert_eq!((old.ran_ns, old.waited_ns, old.slept_ns, old.threads), (20, 10, 0, 1));
    assert_eq!((new.ran_ns, new.waited_ns, new.threads, new.unseen), (10, 10, 1, 0));
    assert_eq!(new.slept_ns, 0, "it was not there before");
}

#[test]
fn a_number_is_whose_it_was_then() {
    let ended = Ended { when_ns: 50, tid: 7, tgid: 7, comm: "old".into(), cgroup: 0 };
    let snapshot = Snapshot { from_ns: 0, to_ns: 100, cpus: Vec::new(), ended: vec![ended] };
    let recording = Recording::of(snapshot, observation(vec![task(7, "new")]), Vec::new(), 0);
    let threads = recording.threads();
    let name = |when| Some(threads.view(threads.at(7, when)?)?.comm.as_str());
    assert_eq!((name(10), name(50), name(51)), (Some("old"), Some("old"), Some("new")));
    assert_eq!(threads.at(8, 10), None);
}

#[test]
fn what_was_written_is_read_and_nothing_else() {
    let recording = example();
    let mut bytes = Vec::new();
    recording.write(&mut bytes).unwrap();
    let again = Recording::read(bytes.as_slice()).unwrap();
    assert_eq!(again.cpus, recording.cpus);
    assert_eq!(again.interval_ns(), (0, 100));
    assert_eq!((again.wall_ns(5), again.monotonic_ns(1_005)), (1_005, 5));
    for length in [0, 1, 20, bytes.len() - 1] {
        Recording::read(&bytes[..length]).unwrap_err();
    }
    Recording::read(&b"{}\n"[..]).unwrap_err();
    let text = String::from_utf8_lossy(&bytes).replacen("[6]", "[18446744073709551615]", 1);
    let error = Recording::read(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("sums"), "{error}");
    bytes.truncate(bytes.len() - Event::BYTES);
    bytes.extend(Event::new(1, switch(0, Left::Asleep)).to_bytes());
    let error = Recording::read(bytes.as_slice()).unwrap_err().to_string();
    assert!(error.contains("time goes back"), "{error}");
}

/// A CPU with some threads, played: what happens, and what each thread really got.
fn play(steps: &[(u8, u8)]) -> (Vec<(u64, What)>, Vec<[u64; 3]>, u64) {
    const THREADS: u32 = 4;
    let (mut now, mut events) = (0, Vec::new());
    let mut truth = vec![[0; 3]; THREADS as usize];
    // 0 runs, 1 waits, 2 sleeps.
    let mut states = vec![2; THREADS as usize];
    let mut current = 0u32;
    events.push((0, switch(0, Left::Asleep)));
    for (choice, time) in steps {
        let time = u64::from(*time) + 1;
        for (sum, state) in truth.iter_mut().zip(&states) {
            sum[*state] += time;
        }
        now += time;
        let tid = 1 + u32::from(*choice) % THREADS;
        let at = tid as usize - 1;
        match states[at] {
            2 => {
                events.push((now, wakeup(tid, 0)));
                states[at] = 1;
            }
            // Whoever has the CPU makes room, or sleeps himself.
            0 => {
                events.push((now, switch(0, Left::Asleep)));
                (states[at], current) = (2, 0);
            }
            _ => {
                if current != 0 {
                    states[current as usize - 1] = 1;
                }
                events.push((now, switch(tid, WANTS_ON)));
                (states[at], current) = (0, tid);
            }
        }
    }
    (events, truth, now)
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_is_counted_twice(
        steps in prop::collection::vec((any::<u8>(), any::<u8>()), 1..200),
        cut in 0.0..1.0f64,
    ) {
        let (events, truth, end) = play(&steps);
        let tasks = (1..=4).map(|tid| task(tid, "t")).collect();
        let recording = recording(tasks, vec![events], end);
        for tid in 1..=4u32 {
            let (whole, blame) = of(&recording, (0, end), tid);
            if whole.threads == 0 {
                continue;
            }
            let got = [whole.ran_ns, whole.waited_ns, whole.slept_ns];
            prop_assert_eq!(got, truth[tid as usize - 1]);
            prop_assert_eq!(blame.values().sum::<u64>(), whole.waited_ns);
            prop_assert!(!blame.contains_key(&tid), "nobody waits for himself");
            // Two parts are the whole.
            let middle = (cut * end as f64) as u64;
            let ((first, _), (second, _)) = (of(&recording, (0, middle), tid), of(&recording, (middle, end), tid));
            prop_assert_eq!(first.waited_ns + second.waited_ns, whole.waited_ns);
            prop_assert_eq!(second.ran_ns + first.ran_ns, whole.ran_ns);
        }
    }
}

/// The trace as text is not to be had without Perfetto: its words are looked for in its bytes.
fn traced(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    trace(recording, &mut bytes).unwrap();
    bytes
}

fn has(bytes: &[u8], words: &str) -> usize {
    bytes.windows(words.len()).filter(|part| *part == words.as_bytes()).count()
}

#[test]
fn promises_and_what_the_loop_did_have_tracks_of_their_own() {
    let at = |ms: u64, got, state: &str| (ms, got, state.to_owned());
    let promise = Promise {
        title: "guarantee cgroup:/web".to_owned(),
        unit: "got, % of one CPU".to_owned(),
        bound: Some(15.0),
        moments: vec![
            at(5, Some(1.0), "before"),
            at(12, Some(20.0), "kept"),
            at(13, None, "kept"),
            at(14, Some(0.0), "broken"),
        ],
    };
    let gone = Promise { title: "gone".to_owned(), moments: vec![at(1, None, "kept")], ..Promise::default() };
    let marks = vec![(3, "too early".to_owned()), (13, "kept idle groups".to_owned())];
    let mut recording = recording(vec![task(7, "seven")], Vec::new(), 5_000_000);
    recording.head.wall_ns = 10_000_000;
    let recording = recording.with_story(Story { promises: vec![promise, gone], marks });
    let bytes = traced(&recording);
    for (words, count) in [
        ("guarantee cgroup:/web", 1),
        ("changes of the loop", 1),
        ("kept idle groups", 1),
        ("broken", 1),
        ("bound: got, % of one CPU", 1),
        ("too early", 0),
        ("gone", 0),
        ("before", 0),
    ] {
        assert_eq!(has(&bytes, words), count, "{words}");
    }
    // Nothing got is written as 0, which is not unknown: tag 44 as a double.
    let value = |value: f64| [&[0xe1, 0x02][..], &value.to_le_bytes()].concat();
    let written = |number: f64| bytes.windows(10).filter(|part| *part == value(number)).count();
    assert_eq!((written(20.0), written(0.0), written(15.0)), (1, 1, 1));
    // It goes with a recording.
    let mut file = Vec::new();
    recording.write(&mut file).unwrap();
    assert_eq!(Recording::read(file.as_slice()).unwrap().story(), recording.story());
}

#[test]
fn the_counter_of_throttled_threads_names_whose_quota_it_was() {
    let group = |path: &str, parent, quota_usec: Option<u64>, throttled_pct| GroupView {
        quota: quota_usec.map(|quota| CpuQuota { quota_usec: Limit::Value(quota), ..CpuQuota::UNLIMITED }),
        throttled_pct,
        ..GroupView::of(path, parent, true)
    };
    let named = |machine: Option<f64>, slice: Option<f64>| {
        let mut observation =
            observation(vec![TaskView { group: Some(3), ..task(7, "seven") }, task(8, "eight")]);
        observation.groups = vec![
            group("/", None, None, None),
            group("/machine", Some(0), Some(50_000), machine),
            group("/machine/slice", Some(1), Some(20_000), slice),
            group("/machine/slice/web", Some(2), None, None),
        ];
        let events = [(10, switch(7, Left::Asleep)), (20, switch(8, HELD)), (70, switch(7, Left::Asleep))];
        let events = events.into_iter().map(|(at, what)| Event::new(at, what)).collect();
        let snapshot = Snapshot { from_ns: 0, to_ns: 80, cpus: vec![events], ended: Vec::new() };
        traced(&Recording::of(snapshot, observation, Vec::new(), 0))
    };
    let one = named(Some(0.0), Some(40.0));
    assert_eq!(has(&one, "threads throttled by the quota of /machine/slice"), 1);
    assert_eq!(has(&one, "/machine or"), 0);
    // Where no task was seen to be held back, it can have been either.
    assert_eq!(has(&named(None, None), "threads throttled by the quota of /machine or /machine/slice"), 1);
}
