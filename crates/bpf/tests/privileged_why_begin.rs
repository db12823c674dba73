//! The programs of `why` and who has a CPU already when the watch begins. Needs root.

mod load;

use std::time::Duration;

use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::why::{Culprit, Probe, Watch, WatchOptions};
use evenkeel_linux::testing::until;
use load::{Process, turn};

#[test]
fn who_had_the_cpu_before_is_to_blame_though_it_was_not_seen_to_come() {
    let _turn = turn();
    let victim = Process::hog(0);
    // The victim gets no CPU from here on: real-time tasks have it for most of a second.
    let hog = Process::realtime_hog();
    until("it spins", || hog.comm() == "sh");
    let watch = Watch::Processes(vec![victim.named()]);
    let probe = Probe::start(&kernel_types().unwrap(), &watch, &WatchOptions::default()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let seen = probe.finish().unwrap();
    let sum = |is: &dyn Fn(&Culprit) -> bool| -> u64 {
        seen.blame.iter().filter(|blame| is(&blame.culprit)).map(|blame| blame.ns).sum()
    };
    let idle = sum(&|culprit| *culprit == Culprit::Idle);
    let hogs = sum(&|culprit| matches!(culprit, Culprit::Task { tid, .. } if *tid == hog.pid()));
    assert!(hogs > 100_000_000 && idle < hogs / 10, "{:?}", seen.blame);
}
