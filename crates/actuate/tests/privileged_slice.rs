//! The kernel's default slice changes while a task has one of ours. Needs root, and debugfs.

mod support;

use std::process::{Command, Stdio};

use evenkeel_actuate::{Actuator, Linux, Options};
use evenkeel_linux::sys;
use support::{Child, batch, plan, state_dir};

/// Sets the default slice, as the kernel does when CPUs come online. In a mount namespace of its own: debugfs need not be mounted here.
fn put(ns: u64) -> bool {
    let script = "mount -t debugfs none /mnt && echo \"$1\" >/mnt/sched/base_slice_ns";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", &ns.to_string()]);
    command.stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The default slice as it was, once this is dropped.
struct Found(u64);

impl Drop for Found {
    fn drop(&mut self) {
        assert!(put(self.0) || std::thread::panicking());
    }
}

#[test]
#[ignore = "needs a kernel that is not locked down, which refuses the file: with --ignored"]
fn a_slice_goes_back_to_the_default_of_the_moment() {
    let found = sys::default_slice_ns().unwrap();
    assert!(put(found), "debugfs takes no base_slice_ns here");
    let back = Found(found);
    let probe = sys::DefaultSlice::new().unwrap();
    let dir = state_dir();
    let (child, asleep) = (Child::sleeping(), Child::sleeping());
    let before = child.facts();
    let (mut actuator, _) = Actuator::open(Linux::new().unwrap(), dir.path(), Options::default()).unwrap();
    for times in [2, 3] {
        let report = actuator.set(&plan(vec![(child.target(), batch(5, 100))]), &|_| true);
        assert_eq!(report.applied(), 1, "{report:?}");
        assert!(put(times * found));
        assert_eq!(probe.ns(), Some(times * found));
        let report = actuator.set(&plan(vec![]), &|_| true).back;
        assert!(report.is_clean() && report.put_back.len() == 1, "{report:?}");
        assert_eq!(child.facts(), before);
    }
    // Who sleeps since before has the default of then: that is no slice of its own.
    let report = actuator.set(&plan(vec![(asleep.target(), batch(3, 0))]), &|_| true);
    assert_eq!(report.applied(), 1, "{report:?}");
    assert!(actuator.close().is_clean());
    assert_eq!(asleep.facts(), before);
    drop(back);
    assert_eq!(probe.ns(), Some(found));
}
