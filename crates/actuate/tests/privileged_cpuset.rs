//! A cpuset of the real kernel that is moved while a task in it has an affinity of ours. Needs root.

mod support;

use evenkeel_actuate::{Actuator, Kernel, Linux, Options, restore};
use evenkeel_base::{CpuSet, GroupRef, Setting, Target};
use evenkeel_linux::Root;
use evenkeel_linux::group::Cgroup;
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::sys;
use evenkeel_linux::testing::TestCgroup;
use support::{Child, plan, state_dir};

#[test]
fn an_affinity_whose_cpus_are_not_in_the_cpuset_any_more_goes_back() {
    let Some(hierarchy) = Hierarchies::read(&Root::host()).unwrap().cpuset else { return };
    let cpus: Vec<u32> = sys::usable_cpus().iter().collect();
    let [one, other, ..] = cpus[..] else { return };
    if hierarchy.v2 {
        Cgroup::new(&hierarchy.mount_point, true).enable(&["cpuset"]).unwrap();
    }
    let group = TestCgroup::on(&hierarchy, "cpuset").unwrap();
    if !hierarchy.v2 {
        group.inherit_cpuset().unwrap();
    }
    let has = |cpus: &str| group.write("cpuset.cpus", cpus).unwrap();
    let both = format!("{one},{other}");
    for ours in [one, other] {
        let original = if ours == one { other } else { one };
        has(&both);
        let (dir, child) = (state_dir(), Child::sleeping());
        group.add(child.id()).unwrap();
        let affinity = |cpu: u32| Setting::Affinity(CpuSet::single(cpu));
        Linux::new().unwrap().write(&child.target(), &affinity(original)).unwrap();
        let (mut actuator, _) =
            Actuator::open(Linux::new().unwrap(), dir.path(), Options::default()).unwrap();
        assert_eq!(actuator.set(&plan(vec![(child.target(), affinity(ours))]), &|_| true).applied(), 1);
        has(&ours.to_string());
        drop(actuator);
        let report = restore(dir.path(), Linux::new().unwrap()).unwrap().report;
        assert_eq!((report.put_back.len(), report.failed.len()), (1, 0), "{report:?}");
        assert!(!dir.path().join("journal").exists());
        assert_eq!(child.facts().1, affinity(ours), "all that there is");
        has(&both);
        assert!(sys::getaffinity(child.id()).unwrap().contains(original));
    }
}

/// Both are ours: the affinity, which is the newer, goes back before the cpuset has the task's own CPU again.
#[test]
fn an_affinity_and_the_cpuset_around_it_go_back() {
    let Some(hierarchy) = Hierarchies::read(&Root::host()).unwrap().cpuset else { return };
    let cpus: Vec<u32> = sys::usable_cpus().iter().collect();
    let [one, other, ..] = cpus[..] else { return };
    if hierarchy.v2 {
        Cgroup::new(&hierarchy.mount_point, true).enable(&["cpuset"]).unwrap();
    }
    let group = TestCgroup::on(&hierarchy, "cpuset-both").unwrap();
    if !hierarchy.v2 {
        group.inherit_cpuset().unwrap();
    }
    group.write("cpuset.cpus", &format!("{one},{other}")).unwrap();
    let path = GroupRef { path: group.path().to_owned(), v2: hierarchy.v2 };
    for killed in [false, true] {
        let (dir, child) = (state_dir(), Child::sleeping());
        group.add(child.id()).unwrap();
        let affinity = |cpu: u32| Setting::Affinity(CpuSet::single(cpu));
        Linux::new().unwrap().write(&child.target(), &affinity(one)).unwrap();
        // With two CPUs it has the one left already.
        let options = Options { rewrite: true, ..Options::default() };
        let (mut actuator, _) = Actuator::open(Linux::new().unwrap(), dir.path(), options).unwrap();
        let narrow = (Target::Group(path.clone()), Setting::Cpuset(CpuSet::single(other)));
        let pin = (child.target(), affinity(other));
        for changes in [vec![pin.clone()], vec![narrow, pin]] {
            let report = actuator.set(&plan(changes.clone()), &|_| true);
            assert_eq!(report.in_force(), changes.len(), "{report:?}");
        }
        // What is known of a cpuset counts for 50 ms.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let report = if killed {
            drop(actuator);
            restore(dir.path(), Linux::new().unwrap()).unwrap().report
        } else {
            actuator.close()
        };
        assert!(report.is_clean() && report.put_back.len() == 2, "{report:?}");
        assert_eq!(child.facts().1, affinity(one), "killed: {killed}");
    }
}
