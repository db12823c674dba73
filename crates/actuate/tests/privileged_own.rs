//! The agent's own thread on the real kernel. Needs root.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_actuate::{Raised, TurnGuard};
use evenkeel_base::{Nice, SchedAttr, SchedPolicy};
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

/// It weighs least whatever its nice value.
#[test]
fn an_idle_thread_is_raised_out_of_its_class_and_put_back() {
    let idle = SchedPolicy::Idle.raw();
    for nice in [0, -12] {
        on_a_thread(|| {
            let attr = RawSchedAttr { nice, ..sys::sched_getattr(0).unwrap() };
            sys::sched_setattr(0, &attr).unwrap();
            sys::sched_setattr(0, &RawSchedAttr { policy: idle, ..attr }).unwrap();
            let before = mine();
            assert!(Raised::thread(Nice::new(0), Some(1_000_000)).unwrap().is_none(), "not asked for");
            let raised = Raised::thread(Nice::new(-7), Some(1_000_000)).unwrap().unwrap();
            assert_eq!((sys::sched_getattr(0).unwrap().policy, mine().0), (SchedPolicy::Other.raw(), -7));
            drop(raised);
            assert_eq!((sys::sched_getattr(0).unwrap().policy, mine()), (idle, before));
        });
    }
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

#[test]
fn a_thread_is_urgent_only_once_it_has_lost_its_turn() {
    let policy = |tid: u32| sys::sched_getattr(tid).unwrap().policy;
    let fifo = SchedPolicy::Fifo.raw();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let spins = scope.spawn({
            let done = &done;
            move || {
                // What looks is free to run elsewhere.
                let guard = TurnGuard::of_this_thread().unwrap();
                pin_to_cpu_0();
                tell.send((own_tid(), guard)).unwrap();
                // Not for ever, should this test fail meanwhile.
                spin_until(Duration::from_secs(5), || done.load(Ordering::Relaxed));
            }
        });
        let (tid, guard) = told.recv().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(policy(tid), 0, "it runs, and stays as it is");
        // Whoever is more urgent than all that is given to it takes its turn.
        let takes = scope.spawn(|| {
            pin_to_cpu_0();
            let attr = SchedAttr {
                policy: SchedPolicy::Fifo,
                rt_priority: 2,
                reset_on_fork: true,
                ..SchedAttr::DEFAULT
            };
            sys::sched_setattr(0, &RawSchedAttr::encode(&attr)).unwrap();
            spin_until(Duration::from_millis(700), || false);
        });
        takes.join().unwrap();
        assert_eq!(policy(tid), fifo);
        drop(guard);
        assert_eq!(policy(tid), 0, "put back");
        done.store(true, Ordering::Relaxed);
        spins.join().unwrap();
    });
}

fn spin_until(most: Duration, done: impl Fn() -> bool) {
    let until = Instant::now() + most;
    while Instant::now() < until && !done() {
        std::hint::spin_loop();
    }
}

fn pin_to_cpu_0() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(0);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}
