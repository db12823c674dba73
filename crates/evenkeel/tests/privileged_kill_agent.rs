//! `kill -9` of the agent at work, at random instants; then `evenkeel restore`: every surviving task and cgroup is as
//! it was found.
//!
//! `EVENKEEL_KILL_ROUNDS` sets the number of kills (default 5; `make test-kill`: 200). Half of them fall at uniformly random
//! instants of the first seconds; the others within a few milliseconds of a write to the journal, where changes are
//! being made: by the clock alone, few kills would hit one. The last falls when a change is seen to be in force, which
//! on a slow host no random instant of the others may have met.

mod scene;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_actuate::{Kernel, Linux};
use evenkeel_base::{CpuSet, Nice, SchedAttr, SchedPolicy, Setting, Target, TaskId};
use evenkeel_linux::testing::awaited;
use rand::{Rng, SeedableRng};
use scene::{Agent, Facts, Group, Process, crowd, evenkeel, facts, run};

/// Computes and forks children, grandchildren and orphans that live for a while.
const FORKING: &str = "while :; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; \
                       sleep 0.7 & (sleep 0.7 & sleep 0.1) & (sleep 0.7 &); sleep 0.03; done";
/// What is tried; a kill early in a trial of everything would see the same candidates each time.
const LEVERS: [Option<&str>; 5] = [
    Some("batch+slice+weights"),
    None,
    Some("placement+nice"),
    Some("batch+long slice+nice"),
    // Waiting tasks are pinned for instants, many times a second.
    Some("batch+slice by burst+pull"),
];
/// Latest instant of a kill after the agent's start. The first trial begins after a second.
const WITHIN: Duration = Duration::from_millis(3600);

/// Two cgroups of unequal weights, busy and forking; some of it not as the kernel makes it.
struct Host {
    // Ends before its cgroups.
    processes: Vec<Process>,
    groups: [Group; 2],
    /// By leader of a process group: what its members have.
    found: BTreeMap<u32, Facts>,
    files: Vec<BTreeMap<String, String>>,
}

impl Host {
    fn new(kernel: &mut Linux) -> Self {
        let groups = [Group::new("kill-a"), Group::new("kill-b")];
        groups[0].set_weight(512, 50);
        groups[1].set_weight(2048, 200);
        let mut processes = crowd(&groups[0]);
        processes.extend([groups[1].duty(40, "wall"), groups[1].duty(30, "closed")]);
        processes
            .extend([&groups[0], &groups[1], &groups[1]].map(|group| group.start("sh", &["-c", FORKING])));
        std::thread::sleep(Duration::from_millis(500));
        // A load and a forking shell that somebody tuned before us; children born from now on inherit it.
        let slice_ns = kernel.has_task_slice().then_some(7_000_000);
        let own =
            SchedAttr { policy: SchedPolicy::Other, nice: Nice::new(2), slice_ns, ..SchedAttr::DEFAULT };
        for index in [1, processes.len() - 1] {
            let id = kernel.identity(processes[index].pid()).unwrap().id;
            kernel.write(&Target::Task(id), &Setting::Sched(own)).unwrap();
        }
        let id = kernel.identity(processes[2].pid()).unwrap().id;
        kernel.write(&Target::Task(id), &Setting::Affinity(CpuSet::single(0))).unwrap();
        std::thread::sleep(Duration::from_millis(1200));
        let found =
            processes.iter().map(|process| (process.pid(), facts(process.pid()).unwrap().1)).collect();
        let files = groups.iter().map(Group::files).collect();
        Self { groups, processes, found, files }
    }

    /// Everything that is not as found, in words.
    fn differences(&self, kernel: &mut Linux) -> Vec<String> {
        let mut differences = Vec::new();
        for process in &self.processes {
            assert!(facts(process.pid()).is_some(), "{} has ended", process.pid());
        }
        for (group, files) in self.groups.iter().zip(&self.files) {
            let now = group.files();
            if now != *files {
                differences.push(format!("{}: {now:?}, found {files:?}", group.path()));
            }
            for pid in group.processes() {
                let Ok(leader) = kernel.identity(pid).map(|facts| facts.process_group) else { continue };
                let found = &self.found[&leader];
                let Some((id, now)) = facts(pid) else { continue };
                if now != *found {
                    differences.push(describe(id, leader, &now, found));
                }
            }
        }
        differences
    }
}

fn describe(id: TaskId, leader: u32, now: &Facts, found: &Facts) -> String {
    format!("{id} of {leader}: {}, {}; found {}, {}", now.0, now.1, found.0, found.1)
}

/// Waits until the journal has grown `times` times, or [`WITHIN`] is over: a journal that knows everything grows no more.
fn journal_grows(dir: &Path, times: u32) {
    let journal = dir.join("journal");
    let size = || std::fs::metadata(&journal).map_or(0, |metadata| metadata.len());
    let began = Instant::now();
    for _ in 0..times {
        let before = size();
        while size() <= before && began.elapsed() < WITHIN {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Waits until something on the host is not as found. The first trial begins after a second; a slow host may need many.
fn change_in_force(host: &Host, kernel: &mut Linux, agent: &Agent) {
    awaited(60, || match host.differences(kernel).is_empty() {
        true => Err(format!("nothing was tried: {}", agent.words())),
        false => Ok(()),
    });
}

#[test]
fn killed_at_random_instants_the_agent_leaves_nothing_that_restore_does_not_put_back() {
    let rounds: u32 = std::env::var("EVENKEEL_KILL_ROUNDS").map_or(5, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let text = "[run]\ninterval = \"100ms\"\ndecide_within = \"30s\"\ncloser_look = \"0s\"\n";
    let config = scene::configured(dir.path(), text);
    let mut kernel = Linux::new().unwrap();
    let host = Host::new(&mut kernel);
    assert_eq!(host.differences(&mut kernel), Vec::<String>::new(), "before anything was tried");
    let scopes = [host.groups[0].scope(), host.groups[1].scope()];
    let args = ["run", "--config", &config, "--scope", &scopes[0], "--scope", &scopes[1]];
    let mut random = rand::rngs::StdRng::seed_from_u64(11);
    let (mut changed, mut put_back, mut descendants, mut weights) = (0, 0, 0, 0);
    let mut round = 0;
    // What was seen in force may be taken back in the instant before the kill: then once more.
    while round < rounds || (changed == 0 && round < rounds + 10) {
        let mut command = evenkeel(&state, &args);
        let last = round + 1 >= rounds;
        if let Some(lever) = LEVERS[round as usize % LEVERS.len()].filter(|_| !last) {
            command.args(["--lever", lever]);
        }
        let mut agent = Agent::start(command, dir.path());
        if last {
            change_in_force(&host, &mut kernel, &agent);
        } else if (round as usize / LEVERS.len()) % 2 == 1 {
            std::thread::sleep(WITHIN.mul_f64(random.random_range(0.0..1.0)));
        } else {
            // The first is the journal's beginning.
            journal_grows(&state, random.random_range(2..5));
            std::thread::sleep(Duration::from_micros(random.random_range(0..8000)));
        }
        assert!(agent.process.try_wait().unwrap().is_none(), "ended by itself: {}", agent.words());
        agent.kill();
        assert!(!agent.words().contains("panicked"), "{}", agent.words());
        changed += usize::from(!host.differences(&mut kernel).is_empty());
        let restored = run(&state, &["restore", "-o", "json"]).json();
        let items = restored["items"].as_array().unwrap();
        put_back += items.iter().filter(|item| item["outcome"] == "put back").count();
        descendants += items.iter().filter(|item| item["descendant"] == true).count();
        weights += items.iter().filter(|item| item["knob"] == "weight").count();
        assert_eq!(host.differences(&mut kernel), Vec::<String>::new(), "round {round}: {restored:#}");
        let again = run(&state, &["restore"]);
        assert!(again.stdout.contains("nothing to do"), "round {round}: {}", again.stdout);
        round += 1;
    }
    println!(
        "{round} kills, {changed} of them with something changed: {put_back} values put back, {descendants} of \
         descendants, {weights} of cgroups; nothing left"
    );
    assert!(changed > 0 && put_back > 0, "{changed} {put_back}: nothing was tried");
    assert!(weights > 0 || rounds < 40, "no weight of a cgroup was ever in force");
}
