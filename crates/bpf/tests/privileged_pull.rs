//! The programs of `pull` on this kernel. Needs root and two CPUs.

mod load;

use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, CpuSet, Limit, TaskId};
use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::pull::{Offer, Role, Watch};
use evenkeel_linux::testing::TestCgroup;
use load::{Process, SPIN, turn};

/// Two spinners on CPU 0 while CPU 1 has time: whatever wakes there and sleeps again shows that one of them waits.
fn crowded() -> [Process; 2] {
    let spinners = [Process::shell(SPIN), Process::shell(SPIN)];
    for spinner in &spinners {
        spinner.pin("0");
    }
    spinners
}

/// What is offered in a while, as long as CPU 1 wakes up now and then.
fn offers(watch: &mut Watch, time: Duration) -> Vec<(Offer, bool)> {
    let waker = Process::shell("while :; do sleep 0.01; done");
    waker.pin("1");
    let until = Instant::now() + time;
    let mut seen = Vec::new();
    while Instant::now() < until {
        while let Some(offer) = watch.take() {
            let holds = watch.holds(&offer);
            seen.push((offer, holds));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    seen
}

fn watch() -> Watch {
    Watch::start(&kernel_types().unwrap(), &[CpuSet::first_n(2)]).unwrap()
}

#[test]
fn who_waits_beside_an_idle_cpu_is_offered() {
    let _turn = turn();
    let mut watch = watch();
    let spinners = crowded();
    let (followed, other) = (spinners[0].id(), spinners[1].id());
    watch.follow(followed, Role::MovedWhenWaiting).unwrap();
    let seen = offers(&mut watch, Duration::from_secs(2));
    assert!(seen.len() > 5, "{} offers", seen.len());
    for (offer, _) in &seen {
        assert_eq!((offer.tid, offer.from, offer.to), (followed.tid, 0, Some(1)), "not {}", other.tid);
    }
    assert!(
        seen.iter().any(|(_, holds)| *holds),
        "it waits half of the time: often still when looked at again"
    );
    watch.forget(followed.tid);
    // What was on its way.
    while watch.take().is_some() {}
    assert!(offers(&mut watch, Duration::from_millis(300)).is_empty(), "it is followed no longer");
}

#[test]
fn a_later_task_of_the_same_number_is_not_meant() {
    let _turn = turn();
    let mut watch = watch();
    let spinners = crowded();
    let id = spinners[0].id();
    watch.follow(TaskId { start_time: id.start_time - 1, ..id }, Role::MovedWhenWaiting).unwrap();
    assert!(offers(&mut watch, Duration::from_millis(500)).is_empty());
}

#[test]
fn who_has_run_out_of_quota_is_not_offered_over_and_over() {
    let _turn = turn();
    let group = TestCgroup::new("pull").unwrap();
    let tenth = CpuQuota { quota_usec: Limit::Value(10_000), period_usec: 100_000, burst_usec: 0 };
    group.set_quota(&tenth).unwrap();
    let spinner = Process::shell(SPIN);
    group.add(spinner.pid()).unwrap();
    let mut watch = watch();
    watch.follow(spinner.id(), Role::MovedWhenWaiting).unwrap();
    let seen = offers(&mut watch, Duration::from_secs(2)).len();
    assert!(seen < 210, "{seen} offers in 2 s, each of which wakes a thread");
    // It ends before its cgroup.
    drop(spinner);
}

#[test]
fn who_holds_a_cpu_that_a_service_wakes_on_is_offered_and_nobody_else() {
    let _turn = turn();
    let mut watch = watch();
    let spinners = crowded();
    let (background, other) = (spinners[0].id(), spinners[1].id());
    let service = Process::shell("exec perl -e 'select(undef, undef, undef, 0.02) while 1'");
    service.pin("0");
    watch.follow(background, Role::Background).unwrap();
    let seen = offers(&mut watch, Duration::from_secs(1));
    assert!(seen.is_empty(), "an idle CPU next to it is no reason, {} offers", seen.len());
    watch.follow(service.id(), Role::Served).unwrap();
    let seen = offers(&mut watch, Duration::from_secs(2));
    assert!(seen.len() > 5, "{} offers", seen.len());
    assert!(seen.len() < 210, "{} offers in 2 s: one in 10 ms at most", seen.len());
    for (offer, _) in &seen {
        assert_eq!((offer.tid, offer.from), (background.tid, 0), "not {}", other.tid);
    }
    assert!(seen.iter().any(|(_, holds)| *holds), "it is still there when looked at again");
    watch.forget(service.id().tid);
    while watch.take().is_some() {}
    assert!(offers(&mut watch, Duration::from_millis(300)).is_empty(), "nobody is served any longer");
}
