//! The programs of `quota_use` on this kernel. Needs root.

mod load;

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::quota_use::{QuotaUse, Usual};
use evenkeel_linux::testing::TestCgroup;
use load::{Process, SPIN, turn};

fn inode(group: &TestCgroup) -> u64 {
    std::fs::metadata(group.dir()).unwrap().ino()
}

fn in_group(group: &TestCgroup) -> Process {
    let process = Process::shell(SPIN);
    group.add(process.pid()).unwrap();
    process
}

/// Thousandths of a CPU used in what is remembered.
fn rate(counted: &QuotaUse) -> f64 {
    let (_, windows) = counted.last(60).unwrap();
    let sum =
        |of: fn(&evenkeel_bpf::quota_use::Used) -> u32| windows.iter().map(|w| f64::from(of(w))).sum::<f64>();
    1000.0 * sum(|w| w.used_us) / sum(|w| w.took_us)
}

#[test]
fn any_number_of_cgroups_is_left_out() {
    let _turn = turn();
    let (pod, batch) = (TestCgroup::new("quota-many").unwrap(), TestCgroup::new("quota-last").unwrap());
    let strangers = (1 << 40)..(1 << 40) + 300;
    let without: Vec<u64> = strangers.chain([inode(&batch)]).collect();
    QuotaUse::start(&kernel_types().unwrap(), inode(&pod), &without).unwrap();
}

#[test]
fn what_is_below_counts_but_for_background_work() {
    let _turn = turn();
    let pod = TestCgroup::new("quota").unwrap();
    let service = pod.child("service").unwrap();
    let inner = service.child("inner").unwrap();
    let batch = pod.child("batch").unwrap();
    let mut counted = QuotaUse::start(&kernel_types().unwrap(), inode(&pod), &[inode(&batch)]).unwrap();

    let background = in_group(&batch);
    let outside = Process::shell(SPIN);
    std::thread::sleep(Duration::from_millis(700));
    assert!(rate(&counted) < 20.0, "background work and strangers: {}", rate(&counted));
    drop((background, outside));

    counted.take();
    counted.set_usual(Usual { least: 0, most: 300 }).unwrap();
    assert!(!counted.take(), "nothing is used");
    let before = counted.last(1).unwrap().0;
    let began = Instant::now();
    let spinner = in_group(&inner);
    evenkeel_linux::testing::until("word of it", || counted.take());
    let windows = counted.last(1).unwrap().0 - before;
    assert!(windows <= 20, "word of it after {:?}, {windows} windows", began.elapsed());
    std::thread::sleep(Duration::from_millis(700));
    let ran = rate(&counted);
    assert!(ran > 300.0, "{ran}");

    counted.set_usual(Usual::ALL).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    counted.take();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!counted.take(), "all is usual");
    // It ends before its cgroup.
    drop(spinner);
}
