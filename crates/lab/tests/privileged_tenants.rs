//! Tenants on the real kernel: released together, in cgroups of their own, nothing left behind.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::binary;
use evenkeel_lab::launch::sweep_stale;
use evenkeel_lab::mounts::CgroupMounts;
use evenkeel_lab::tenant::{Layout, Starter, Tenants};
use evenkeel_linux::cgroupfs::processes;
use evenkeel_linux::testing::{comm, until};
use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::{LoadSampler, LoadSpec};

fn duty(percent: f64, kind: DutyKind) -> LoadSpec {
    let period = Duration::from_millis(20);
    LoadSpec::new(Kind::Duty(Duty { percent, period, jitter: 50.0, kind, seed: 3 })).named("ek-lab-test")
}

fn cpu_dir(path: &str) -> PathBuf {
    CgroupMounts::find().unwrap().cpu_mount().join(path.trim_start_matches('/'))
}

fn exists(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[test]
fn each_place_holds_its_loads_and_is_gone_afterwards() {
    for (place, groups) in [(Layout::Process, 0), (Layout::OneCgroup, 1), (Layout::CgroupEach, 3)] {
        let specs = vec![duty(2.0, DutyKind::Closed); 3];
        let tenants = Tenants::spawn(&binary(), &specs, place).unwrap();
        let made = tenants.groups();
        assert_eq!(made.len(), groups, "{place:?}");
        assert_eq!(tenants.members.len(), 3);
        assert!((tenants.wanted_pct() - 6.0).abs() < 1e-9);
        for member in &tenants.members {
            assert_eq!(comm(member.pid), "ek-lab-test");
            match &member.cgroup {
                None => assert_eq!(place, Layout::Process),
                Some(group) => {
                    assert!(processes(&cpu_dir(&group.path)).contains(&member.pid));
                    assert!(made.contains(group));
                }
            }
        }
        let pids: Vec<u32> = tenants.members.iter().map(|m| m.pid).collect();
        drop(tenants);
        assert!(pids.iter().all(|pid| !exists(*pid)), "{place:?}: processes left");
        assert!(made.iter().all(|g| !cpu_dir(&g.path).exists()), "{place:?}: groups left");
    }
}

#[test]
fn held_loads_begin_only_when_released_and_then_together() {
    let specs = vec![duty(1.0, DutyKind::Wall); 4];
    let tenants = Starter::new(binary(), Layout::Process).hold(&specs).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!((0..4).all(|i| tenants.progress(i).unwrap().started_ns == 0));
    let start = tenants.release();
    until("all started", || (0..4).all(|i| tenants.progress(i).unwrap().started_ns != 0));
    for i in 0..4 {
        let progress = tenants.progress(i).unwrap();
        assert!(progress.started_ns >= start, "began {} ns early", start - progress.started_ns);
        assert_eq!(progress.late_ns, progress.started_ns - start);
    }
}

/// The load's own account and the kernel's agree, and an undisturbed closed load gets what its cycles asked for.
#[test]
fn what_a_load_tells_agrees_with_the_kernel() {
    let tenants = Tenants::spawn(&binary(), &[duty(10.0, DutyKind::Closed)], Layout::OneCgroup).unwrap();
    let gauge = tenants.gauge();
    until("started", || tenants.progress(0).unwrap().cycles > 2);
    let (from, told_from) = (gauge.read(), tenants.progress(0).unwrap());
    std::thread::sleep(Duration::from_secs(3));
    let (to, told_to) = (gauge.read(), tenants.progress(0).unwrap());
    let window = gauge.window(&from, &to);
    let got = window[0].got_pct;
    let wall_ns = (to.tasks[0].unwrap().0 - from.tasks[0].unwrap().0) as f64;
    let told = (told_to.cpu_ns - told_from.cpu_ns) as f64 / wall_ns * 100.0;
    // A statement is at most 10 ms old, 0.33 points of 3 s; schedstat a tick.
    assert!((got - told).abs() < 1.0, "the kernel says {got} %, the load {told} %");
    // Whatever the neighbours do: work asked for by finished cycles was done, and no more.
    let wanted = (told_to.wanted_ns - told_from.wanted_ns) as f64;
    let done = (told_to.cpu_ns - told_from.cpu_ns) as f64;
    assert!((done / wanted - 1.0).abs() < 0.1, "asked {wanted}, did {done}");
    let fulfilment = LoadSampler::fulfilment(&window).unwrap();
    assert!(fulfilment <= 1.1, "{fulfilment}");
    // Time not spent working was spent sleeping or waiting: the period stretched by no more than what it waited.
    assert!(fulfilment + window[0].waited_pct / 100.0 > 0.75, "{window:?}");
}

/// Run by the test below in a process of its own: starts tenants and says who they are.
#[test]
#[ignore = "the child of the test below, which runs it"]
fn child_that_is_killed() {
    // Started from a short-lived thread, whose end must not end the loads.
    let tenants = std::thread::spawn(|| {
        Tenants::spawn(&binary(), &vec![duty(1.0, DutyKind::Open); 2], Layout::CgroupEach).unwrap()
    });
    let tenants = tenants.join().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let pids: Vec<String> = tenants.members.iter().map(|m| m.pid.to_string()).collect();
    let groups: Vec<String> = tenants.groups().into_iter().map(|g| g.path).collect();
    fs::write(
        std::env::var_os("EK_LAB_CHILD").unwrap(),
        format!("{} {}\n", pids.join(" "), groups.join(" ")),
    )
    .unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_starter_leaves_no_load_and_the_next_start_sweeps_its_groups() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("who");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_killed", "--nocapture", "--ignored"])
        .env("EK_LAB_CHILD", &file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("tenants up", || fs::read_to_string(&file).is_ok_and(|t| t.ends_with('\n')));
    let text = fs::read_to_string(&file).unwrap();
    let (groups, pids): (Vec<&str>, Vec<&str>) = text.split_whitespace().partition(|w| w.starts_with('/'));
    let pids: Vec<u32> = pids.iter().map(|p| p.parse().unwrap()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| exists(*pid)));
    assert!(groups.len() == 2 && groups.iter().all(|g| cpu_dir(g).exists()));
    child.kill().unwrap();
    child.wait().unwrap();
    until("loads gone", || pids.iter().all(|pid| !exists(*pid)));
    until("groups swept", || {
        sweep_stale();
        groups.iter().all(|g| !cpu_dir(g).exists())
    });
}
