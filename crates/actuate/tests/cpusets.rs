//! Affinities of tasks whose cpuset somebody moves while they are changed, as the kubelet does with its shared pool.

mod world;

use evenkeel_actuate::Kernel;
use evenkeel_actuate::fake::FakeKernel;
use evenkeel_base::{CpuSet, Knob, Setting, Target, TaskId};
use world::{Host, all, opened, plan};

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// What the kernel shows.
fn shown(host: &Host, id: TaskId) -> String {
    FakeKernel(host.world.clone()).read(&Target::Task(id), Knob::Affinity).unwrap().to_string()
}

/// A task with this affinity gets another; its cpuset is moved, and it goes back. What it shows then, and with every CPU in its cpuset.
fn goes_back(original: &str, ours: &str, moved: &str, end: &str) -> (String, String) {
    let (host, mut actuator) = opened();
    let (id, target) = (host.tasks[0], host.task(0));
    host.world.put(&target, &Setting::Affinity(cpus(original)));
    let to = Setting::Affinity(cpus(ours));
    assert_eq!(actuator.set(&plan(vec![(target, to)]), &all).applied(), 1);
    host.world.set_cpuset(id.tid, cpus(moved));
    let report = match end {
        "next plan" => actuator.set(&plan(vec![]), &all).back,
        "close" => actuator.close(),
        _ => {
            drop(actuator);
            let report = host.restore().unwrap().report;
            assert_eq!(host.world.journal(), None);
            report
        }
    };
    assert!(report.is_clean() && report.put_back.len() == 1, "{report:?}");
    let note = report.put_back[0].note.as_deref().unwrap_or_default();
    assert_eq!(note.contains("cpuset"), !cpus(original).intersects(&cpus(moved)), "{note}");
    let now = shown(&host, id);
    host.world.set_cpuset(id.tid, CpuSet::first_n(4));
    (now, shown(&host, id))
}

#[test]
fn what_lies_outside_the_cpuset_goes_back_and_the_task_uses_all_of_that_meanwhile() {
    let cpus = |text: &str| Setting::Affinity(cpus(text)).to_string();
    for end in ["next plan", "close", "restore"] {
        for (original, ours, moved, now, later) in [
            ("0", "1", "2-3", "2-3", "0,2-3"),
            ("0", "2", "2-3", "2-3", "0,2-3"),
            // The kernel cuts it, and knows the whole.
            ("0-2", "1", "2-3", "2", "0-2"),
            // All that there was is all that there is.
            ("0-3", "1", "2-3", "2-3", "0-3"),
            // It reads as it was found while it has a mask of ours.
            ("1", "1-2", "1,3", "1", "1"),
            ("0-1", "2", "0-1", "0-1", "0-1"),
        ] {
            let expected = (cpus(now), cpus(later));
            assert_eq!(goes_back(original, ours, moved, end), expected, "{original}, {ours}, {end}");
        }
    }
}

#[test]
fn who_has_no_cpu_in_its_cpuset_is_lent_none() {
    let (host, mut actuator) = opened();
    host.world.put(&host.task(0), &Setting::Affinity(cpus("0")));
    let originals = |actuator: &mut evenkeel_actuate::Actuator<FakeKernel>| {
        let lent = actuator.lend(&[host.tasks[0]], &CpuSet::first_n(4)).unwrap();
        lent.into_iter().map(|lent| lent.original.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(originals(&mut actuator), ["0"]);
    host.world.set_cpuset(host.tasks[0].tid, cpus("2-3"));
    assert_eq!(originals(&mut actuator), [""; 0]);
    host.world.set_cpuset(host.tasks[0].tid, cpus("0,2-3"));
    assert_eq!(originals(&mut actuator), ["0"]);
}

/// Whoever pinned it is not told to do so again: its own mask is back as soon as it can be.
#[test]
fn what_stood_in_for_an_affinity_goes_back_when_the_cpuset_has_its_cpus_again() {
    for end in ["next plan", "another pin", "refused", "close", "restore"] {
        let (host, mut actuator) = opened();
        let (id, target) = (host.tasks[0], host.task(0));
        let pin = |text: &str| plan(vec![(target.clone(), Setting::Affinity(cpus(text)))]);
        host.world.put(&target, &Setting::Affinity(cpus("0")));
        assert_eq!(actuator.set(&pin("1"), &all).applied(), 1);
        host.world.set_cpuset(id.tid, cpus("2-3"));
        assert_eq!(actuator.set(&plan(vec![]), &all).back.put_back.len(), 1);
        let written = host.world.written().len();
        assert!(actuator.set(&plan(vec![]), &all).back.is_empty(), "nothing is new");
        assert_eq!(host.world.written().len(), written);
        host.world.set_cpuset(id.tid, CpuSet::first_n(4));
        let report = match end {
            "next plan" => actuator.set(&plan(vec![]), &all).back,
            "refused" => actuator.set(&pin("1"), &|_| false).back,
            "another pin" => {
                assert_eq!(actuator.set(&pin("1"), &all).applied(), 1);
                actuator.close()
            }
            "close" => actuator.close(),
            _ => {
                drop(actuator);
                host.restore().unwrap().report
            }
        };
        assert!(report.is_clean() && report.put_back.len() == 1, "{end}: {report:?}");
        assert_eq!(shown(&host, id), Setting::Affinity(cpus("0")).to_string(), "{end}");
    }
}

#[test]
fn what_stands_in_for_an_affinity_is_somebody_elses_once_it_is_changed() {
    let (host, mut actuator) = opened();
    let (id, target) = (host.tasks[0], host.task(0));
    host.world.put(&target, &Setting::Affinity(cpus("0")));
    let pin = plan(vec![(target.clone(), Setting::Affinity(cpus("1")))]);
    assert_eq!(actuator.set(&pin, &all).applied(), 1);
    host.world.set_cpuset(id.tid, cpus("2-3"));
    actuator.set(&plan(vec![]), &all);
    host.world.put(&target, &Setting::Affinity(cpus("3")));
    assert_eq!(actuator.close().conflicts.len(), 1);
    assert_eq!(shown(&host, id), Setting::Affinity(cpus("3")).to_string());
}
