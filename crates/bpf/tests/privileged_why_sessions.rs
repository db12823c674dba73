//! The programs of `why` and tasks in no cgroup of the cpu controller, whose sessions have groups of their own (autogroup). Needs root.

mod load;

use std::process::Command;
use std::time::Duration;

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::why::{Cell, Probe, Watch, WatchOptions};
use evenkeel_linux::testing::{TestCgroup, TestChild, until};
use load::{Process, SPIN, turn};

const HOG: [&str; 6] = ["taskset", "-c", "0", "sh", "-c", SPIN];

/// A hog in a session of its own.
fn session() -> Process {
    let mut command = Command::new("setsid");
    command.args(HOG);
    let process = Process::start(command);
    until("it spins", || process.comm() == "sh");
    process
}

#[test]
fn a_session_is_not_throttled_whoever_has_the_memory_of_one_that_ended() {
    let _turn = turn();
    let (first, _other) = (session(), Process::hog(0));
    let watch = Watch::Processes(vec![first.named()]);
    let mut probe = Probe::start(&kernel_types().unwrap(), &watch, &WatchOptions::default()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let second = session();
    let (tgid, start_time) = second.named();
    probe.add_process(tgid, start_time).unwrap();
    drop(first);
    // The kernel frees its group a little later, and gives the memory to others.
    std::thread::sleep(Duration::from_millis(400));
    let tight = CpuQuota { quota_usec: Limit::Value(1_000), period_usec: 100_000, burst_usec: 0 };
    let groups: Vec<_> = (0..40).map(|n| TestCgroup::new(&format!("bpf-tight{n}")).unwrap()).collect();
    let start = |group: &TestCgroup| {
        group.set_quota(&tight).unwrap();
        TestChild(group.command().args(HOG).spawn().unwrap())
    };
    let hogs: Vec<_> = groups.iter().map(start).collect();
    std::thread::sleep(Duration::from_millis(1500));
    let seen = probe.finish().unwrap();
    // Who is to end needs CPU.
    groups.iter().for_each(|group| group.set_quota(&CpuQuota::UNLIMITED).unwrap());
    drop(hogs);
    let sum = |of: fn(&Cell) -> u64| seen.cells.iter().map(of).sum::<u64>();
    assert!(sum(|cell| cell.waited_ns) > 100_000_000, "{:?}", seen.cells);
    assert_eq!(sum(|cell| cell.throttled_ns), 0, "{:?}", seen.cells);
}
