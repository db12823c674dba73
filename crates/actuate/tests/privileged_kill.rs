//! `kill -9` at random instants of a process that changes real tasks and cgroups all the time.
//!
//! `EVENKEEL_KILL_ROUNDS` sets the number of kills (default 10).

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_actuate::{Actuator, Kernel, Linux, Options, restore};
use evenkeel_base::{CpuQuota, CpuSet, Knob, Limit, Nice, SchedAttr, SchedPolicy, Setting, Target};
use evenkeel_linux::process;
use evenkeel_linux::testing::{TestProcess, awaited};
use rand::{Rng, SeedableRng};
use support::{TestGroup, batch, plan, state_dir};

fn shell(script: &str) -> TestProcess {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    TestProcess::spawn(command)
}

fn target(shell: &TestProcess) -> Target {
    Target::Task(Linux::new().unwrap().identity(shell.pid()).unwrap().id)
}

const SLEEPING: &str = "sleep 1000 & wait";
/// Computes, and forks for every pause.
const DUTY: &str = "while :; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; sleep 0.02; done";
/// Forks children, grandchildren and orphans that live for a while.
const FORKING: &str = "while :; do sleep 0.7 & (sleep 0.7 & sleep 0.1) & (sleep 0.7 &); sleep 0.03; done";

/// Members of a process group: number and whether the task is still there when read.
fn members(group: u32) -> Vec<u32> {
    let is_member = |pid: &u32| process::stat(*pid, *pid).is_ok_and(|stat| stat.process_group == group);
    process::all().into_iter().filter(is_member).collect()
}

/// What every process of the group has; those that end meanwhile are left out.
fn state(kernel: &mut Linux, group: u32) -> Vec<(u32, Setting, Setting)> {
    members(group)
        .into_iter()
        .filter_map(|pid| {
            let target = Target::Task(kernel.identity(pid).ok()?.id);
            Some((pid, kernel.read(&target, Knob::Sched).ok()?, kernel.read(&target, Knob::Affinity).ok()?))
        })
        .collect()
}

#[test]
#[ignore = "the victim of the test below, which starts it"]
fn victim() {
    let dir = std::env::var("EVENKEEL_KILL_DIR").unwrap();
    let pids = std::env::var("EVENKEEL_KILL_PIDS").unwrap();
    let groups = std::env::var("EVENKEEL_KILL_GROUPS").unwrap();
    let mut kernel = Linux::new().unwrap();
    let tasks: Vec<Target> =
        pids.split(' ').map(|pid| Target::Task(kernel.identity(pid.parse().unwrap()).unwrap().id)).collect();
    let groups: Vec<Target> = groups.split(' ').map(|json| serde_json::from_str(json).unwrap()).collect();
    let (mut actuator, _) = Actuator::open(kernel, Path::new(&dir), Options::default()).unwrap();
    println!("ready");
    let mut random = rand::rngs::StdRng::seed_from_u64(u64::from(std::process::id()));
    loop {
        let mut changes = Vec::new();
        for task in &tasks {
            if random.random_bool(0.7) {
                changes
                    .push((task.clone(), batch(random.random_range(5..9), random.random_range(0..3) * 50)));
            }
            if random.random_bool(0.3) {
                changes.push((task.clone(), Setting::Affinity(CpuSet::single(random.random_range(0..2)))));
            }
        }
        for group in &groups {
            match random.random_range(0..4) {
                0 => changes.push((group.clone(), Setting::Weight(random.random_range(10..500)))),
                1 => {
                    let quota = CpuQuota {
                        quota_usec: Limit::Value(random.random_range(10_000..90_000)),
                        period_usec: random.random_range(20_000..200_000),
                        burst_usec: 0,
                    };
                    changes.push((group.clone(), Setting::Quota(quota)));
                }
                2 => changes.push((group.clone(), Setting::GroupIdle(true))),
                _ => {}
            }
        }
        let report = actuator.set(&plan(changes), &|_| true);
        for (change, why) in report.problems() {
            // Lines of the test harness go to stdout, too; the parent looks for this word.
            println!("problem {:?} {} {why}", change.target, change.to);
        }
        std::thread::sleep(Duration::from_millis(random.random_range(0..8)));
    }
}

#[test]
fn killed_at_random_instants_everything_is_as_found() {
    let rounds: u32 = std::env::var("EVENKEEL_KILL_ROUNDS").map_or(10, |text| text.parse().unwrap());
    let dir = state_dir();
    let (a, b) = (TestGroup::new("a"), TestGroup::new("b"));
    a.put("cpu.shares", "cpu.weight", "512");
    b.put("cpu.cfs_quota_us", "cpu.max", "150000");
    let scripts = [SLEEPING, SLEEPING, DUTY, DUTY, FORKING, FORKING];
    let shells: Vec<TestProcess> = scripts.map(shell).into();
    let mut kernel = Linux::new().unwrap();
    a.add(shells[3].pid());
    // Two were not as the kernel makes them; their children born from now on neither.
    let slices = kernel.has_task_slice();
    let own = SchedAttr {
        policy: SchedPolicy::Other,
        nice: Nice::new(2),
        slice_ns: slices.then_some(7_000_000),
        ..SchedAttr::DEFAULT
    };
    for index in [1, 5] {
        for pid in members(shells[index].pid()) {
            let Ok(facts) = kernel.identity(pid) else { continue };
            let _ = kernel.write(&Target::Task(facts.id), &Setting::Sched(own));
        }
    }
    let pinned = target(&shells[1]);
    kernel.write(&pinned, &Setting::Affinity(CpuSet::single(0))).unwrap();
    let children: Vec<u32> =
        members(shells[1].pid()).into_iter().filter(|pid| *pid != shells[1].pid()).collect();
    // Those that were on their way into life meanwhile are not: until they have ended.
    let odd = |kernel: &mut Linux| {
        state(kernel, shells[5].pid()).into_iter().find(|(_, sched, _)| *sched != Setting::Sched(own))
    };
    awaited(30, || odd(&mut kernel).map_or(Ok(()), |odd| Err(format!("{odd:?}"))));

    let original = |kernel: &mut Linux, shell: &TestProcess| {
        let target = target(shell);
        (kernel.read(&target, Knob::Sched).unwrap(), kernel.read(&target, Knob::Affinity).unwrap())
    };
    let before: Vec<_> = shells.iter().map(|shell| original(&mut kernel, shell)).collect();
    let files = (a.files(), b.files());
    let pids: Vec<String> = shells.iter().map(|shell| shell.pid().to_string()).collect();
    let groups = [&a, &b].map(|group| serde_json::to_string(&group.target()).unwrap()).join(" ");
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    let (mut changed, mut put_back, mut descendants) = (0, 0, 0);
    for round in 0..rounds {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--ignored", "--nocapture", "--test-threads=1"])
            .env("EVENKEEL_KILL_DIR", dir.path())
            .env("EVENKEEL_KILL_PIDS", pids.join(" "))
            .env("EVENKEEL_KILL_GROUPS", &groups)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("ready")), "the victim did not start");
        std::thread::sleep(Duration::from_micros(random.random_range(0..150_000)));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let problems: Vec<_> = lines.filter(|line| line.contains("problem")).collect();
        assert!(problems.is_empty(), "round {round}: {problems:?}");
        changed += usize::from((a.files(), b.files()) != files);
        let report = if round % 2 == 0 {
            restore(dir.path(), Linux::new().unwrap()).unwrap().report
        } else {
            // the next start does the same
            let (actuator, recovery) =
                Actuator::open(Linux::new().unwrap(), dir.path(), Options::default()).unwrap();
            assert!(actuator.close().is_empty());
            recovery.report
        };
        assert!(report.is_clean(), "round {round}: {report:?}");
        put_back += report.put_back.len();
        descendants += report.put_back.iter().filter(|item| item.descendant).count();
        for (shell, before) in shells.iter().zip(&before) {
            assert_eq!(original(&mut kernel, shell), *before, "round {round}, pid {}", shell.pid());
            for (pid, sched, affinity) in state(&mut kernel, shell.pid()) {
                if children.contains(&pid) {
                    continue; // older than the pinning of its parent
                }
                assert_eq!(
                    (sched, affinity),
                    *before,
                    "round {round}, pid {pid} of the group of {}",
                    shell.pid()
                );
            }
        }
        assert_eq!((a.files(), b.files()), files, "round {round}");
    }
    println!("{rounds} kills: {put_back} values put back, {descendants} of descendants");
    assert!(
        changed > 0 && put_back > 0 && descendants > 0,
        "{changed} {put_back} {descendants}: nothing was tried"
    );
}
