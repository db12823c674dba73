//! Quotas that the real kernel refuses: in cgroup v1 a group's share of time may not exceed its parent's. Needs root.

mod support;

use evenkeel_actuate::{Actuator, Linux, Options, restore};
use evenkeel_base::{CpuQuota, GroupRef, Limit, Setting, Target};
use evenkeel_linux::testing::TestCgroup;
use support::{plan, state_dir};

fn quota(usec: u64, period_usec: u64) -> CpuQuota {
    CpuQuota { quota_usec: Limit::Value(usec), period_usec, burst_usec: 0 }
}

/// A group of 400 % and one of 300 % below it; `None` where the kernel does not compare them, as in cgroup v2.
fn family(name: &str) -> Option<(TestCgroup, TestCgroup)> {
    let parent = TestCgroup::new(&format!("quota-{name}")).unwrap();
    if parent.is_v2() {
        return None;
    }
    let child = parent.child("below").unwrap();
    parent.set_quota(&quota(400_000, 100_000)).unwrap();
    child.set_quota(&quota(300_000, 100_000)).unwrap();
    Some((parent, child))
}

#[test]
fn a_refused_quota_leaves_the_one_that_was_there() {
    let Some((parent, child)) = family("refused") else { return };
    for (burst_usec, before) in
        [(0, quota(5_000, 10_000)), (2_000, quota(50_000, 100_000)), (0, quota(50_000, 500_000))]
    {
        parent.set_quota(&quota(400_000, 100_000)).unwrap();
        let before = CpuQuota { burst_usec, ..before };
        // Without a file for bursts (before Linux 5.14) there is none to keep.
        if child.number::<u64>("cpu.cfs_burst_us").is_none() && burst_usec > 0 {
            continue;
        }
        child.set_quota(&before).unwrap();
        parent.set_quota(&quota(200_000, 100_000)).unwrap();
        let refused = child.set_quota(&quota(300_000, 100_000)).unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL), "{refused}");
        assert_eq!(child.quota(), Some(before));
    }
}

#[test]
fn a_limit_whose_parent_was_lowered_meanwhile_goes_back_when_there_is_room_for_it() {
    let Some((parent, child)) = family("back") else { return };
    let found = child.quota();
    let dir = state_dir();
    let open = || Actuator::open(Linux::new().unwrap(), dir.path(), Options::default()).unwrap();
    let target = Target::Group(GroupRef { path: child.path().to_owned(), v2: false });
    let (mut actuator, _) = open();
    let ours = quota(5_000, 10_000);
    assert_eq!(actuator.set(&plan(vec![(target, Setting::Quota(ours))]), &|_| true).applied(), 1);
    parent.set_quota(&quota(200_000, 100_000)).unwrap();
    let report = actuator.close();
    assert_eq!((report.failed.len(), report.conflicts.len()), (1, 0), "{report:?}");
    assert_eq!(child.quota(), Some(ours), "not without any");
    parent.set_quota(&quota(400_000, 100_000)).unwrap();
    let (actuator, recovery) = open();
    assert_eq!(recovery.report.put_back.len(), 1, "{recovery:?}");
    assert_eq!(child.quota(), found);
    assert!(actuator.close().is_clean());
}

/// In the order of the last writes the kernel refuses all but one at first, and the next after each.
#[test]
fn limits_of_groups_within_groups_go_back_whatever_their_order() {
    let Some((parent, child)) = family("order") else { return };
    let grandchild = child.child("below").unwrap();
    let groups = [&grandchild, &child, &parent];
    let found = quota(50_000, 100_000);
    groups.iter().for_each(|group| group.set_quota(&found).unwrap());
    let change = |group: &TestCgroup, usec: u64| {
        let target = Target::Group(GroupRef { path: group.path().to_owned(), v2: false });
        (target, Setting::Quota(quota(usec, 100_000)))
    };
    for killed in [false, true] {
        let dir = state_dir();
        let (mut actuator, _) =
            Actuator::open(Linux::new().unwrap(), dir.path(), Options::default()).unwrap();
        let raised = groups.iter().rev().map(|group| change(group, 80_000)).collect();
        assert_eq!(actuator.set(&plan(raised), &|_| true).applied(), 3);
        let lowered = groups.iter().map(|group| change(group, 79_000)).collect();
        assert_eq!(actuator.set(&plan(lowered), &|_| true).applied(), 3);
        let report = if killed {
            drop(actuator);
            restore(dir.path(), Linux::new().unwrap()).unwrap().report
        } else {
            actuator.close()
        };
        assert!(report.is_clean() && report.put_back.len() == 3, "{report:?}");
        assert!(groups.iter().all(|group| group.quota() == Some(found)));
    }
}
