//! The agent's own thread on the real kernel. Needs root.

#![allow(clippy::unwrap_used)]

use evenkeel_actuate::Raised;
use evenkeel_base::Nice;
use evenkeel_linux::sys::{self, RawSchedAttr};

/// This thread's nice value and slice.
fn mine() -> (i32, u64) {
    let attr = sys::sched_getattr(0).unwrap();
    (attr.nice, attr.runtime)
}

/// Tests change their own thread: each gets one that ends with it.
fn on_a_thread(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}

#[test]
fn a_thread_is_raised_alone_and_put_back() {
    on_a_thread(|| {
        let before = mine();
        let raised = Raised::thread(Nice::new(-7), Some(1_000_000)).unwrap().unwrap();
        assert_eq!(raised.nice(), Nice::new(-7));
        assert_eq!(mine().0, -7);
        if sys::default_slice_ns().is_some() {
            assert_eq!(mine().1, 1_000_000);
        }
        // What it starts is as if nothing had happened.
        let child = std::process::Command::new("nice").output().unwrap();
        assert_eq!(String::from_utf8(child.stdout).unwrap().trim(), "0");
        std::thread::scope(|s| s.spawn(|| assert_eq!(mine().0, 0)).join().unwrap());
        drop(raised);
        assert_eq!(mine(), before);
    });
}

#[test]
fn it_is_put_back_from_another_thread_as_well() {
    on_a_thread(|| {
        let before = mine();
        let raised = Raised::thread(Nice::new(-3), None).unwrap().unwrap();
        std::thread::scope(|s| s.spawn(move || drop(raised)).join().unwrap());
        assert_eq!(mine(), before);
    });
}

#[test]
fn who_is_as_favoured_already_is_left_alone() {
    on_a_thread(|| {
        let attr = RawSchedAttr { nice: -12, ..sys::sched_getattr(0).unwrap() };
        sys::sched_setattr(0, &attr).unwrap();
        assert!(Raised::thread(Nice::new(-10), Some(1_000_000)).unwrap().is_none());
        assert_eq!(mine().0, -12);
    });
}

#[test]
fn what_somebody_else_set_meanwhile_is_theirs() {
    on_a_thread(|| {
        let raised = Raised::thread(Nice::new(-5), None).unwrap().unwrap();
        let attr = RawSchedAttr { nice: 4, ..sys::sched_getattr(0).unwrap() };
        sys::sched_setattr(0, &attr).unwrap();
        drop(raised);
        assert_eq!(mine().0, 4);
    });
}
