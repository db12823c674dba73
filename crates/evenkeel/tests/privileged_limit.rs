//! `run --cpu-limit auto` on the real kernel: the scope's cgroup is held under the edge of a hypervisor's rule, which a quota
//! on a cgroup inside it plays, and everything is put back. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_lab::tenant::cgroup::Hierarchies;
use evenkeel_model::credit::{Meter, Rule};
use scene::{Agent, Group, Process, evenkeel, json, run, turn};

/// Use above 20 % over two seconds is punished by 97 %.
const WINDOW: Rule =
    Rule::Window { window_s: 2.0, above: 0.2, below: 0.2, stolen: 0.97, counts_stolen: true };
const STEP: Duration = Duration::from_millis(10);

/// A cgroup with an endless job in a cgroup inside it, whose quota plays the hypervisor.
struct Machine {
    job: Process,
    group: Group,
    dir: PathBuf,
    inner: PathBuf,
    v2: bool,
    meter: Meter,
    stepped: Instant,
    used_s: f64,
    held_back: bool,
}

impl Machine {
    fn new(name: &str) -> Self {
        let group = Group::new(name);
        let hierarchies = Hierarchies::find().unwrap();
        let dir = hierarchies.cpu_mount().join(&group.path[1..]);
        let v2 = hierarchies.is_v2();
        if v2 {
            fs::write(dir.join("cgroup.subtree_control"), "+cpu").unwrap();
        }
        let inner = dir.join("vcpu");
        fs::create_dir(&inner).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo 0 >{}/cgroup.procs; while :; do :; done", inner.display())]);
        let job = Process::spawn(command);
        let meter = Meter::new(WINDOW);
        Self { job, group, dir, inner, v2, meter, stepped: Instant::now(), used_s: 0.0, held_back: false }
    }

    fn used_s(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.job.pid())).unwrap();
        text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
    }

    /// The limit of the outer cgroup, CPUs.
    fn limit(&self) -> Option<f64> {
        let number = |name: &str| fs::read_to_string(self.dir.join(name)).unwrap().trim().parse::<f64>().ok();
        if self.v2 {
            let text = fs::read_to_string(self.dir.join("cpu.max")).unwrap();
            let (quota, period) = text.trim().split_once(' ').unwrap();
            return Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?);
        }
        Some(number("cpu.cfs_quota_us")? / number("cpu.cfs_period_us")?).filter(|limit| *limit > 0.0)
    }

    fn hold_back(&mut self, hold: bool) {
        if hold == self.held_back {
            return;
        }
        // 3 % of a CPU; a period long enough for the least quota.
        let (file, text) = match (self.v2, hold) {
            (true, true) => ("cpu.max", "1000 33000"),
            (true, false) => ("cpu.max", "max"),
            (false, true) => {
                fs::write(self.inner.join("cpu.cfs_period_us"), "50000").unwrap();
                ("cpu.cfs_quota_us", "1500")
            }
            (false, false) => ("cpu.cfs_quota_us", "-1"),
        };
        // The kernel refuses more than the outer group has at the moment; then at the next step.
        self.held_back = fs::write(self.inner.join(file), text).is_ok() == hold;
    }

    fn step(&mut self) {
        let seconds = self.stepped.elapsed().as_secs_f64().max(1e-6);
        self.stepped = Instant::now();
        let used = self.used_s();
        let given = ((used - self.used_s) / seconds).min(1.0);
        self.used_s = used;
        let wanted = if self.held_back { self.limit().unwrap_or(1.0).max(given) } else { given };
        self.meter.pass(wanted.min(1.0), given, seconds);
        self.hold_back(self.meter.throttles());
        std::thread::sleep(STEP);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.job.0.kill();
        let _ = self.job.0.wait();
        for _ in 0..100 {
            if fs::remove_dir(&self.inner).is_ok() {
                return;
            }
            std::thread::sleep(STEP);
        }
    }
}

#[test]
fn a_scope_is_held_under_the_edge_and_put_back() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new("limit");
    let found = machine.group.files();
    let scope = machine.group.scope();
    let args = ["run", "--scope", &scope, "--cpu-limit", "auto", "--guarantees-only", "-o", "json"];

    // Killed while a limit is in force: `restore` takes it off.
    let mut agent = Agent::start(evenkeel(dir.path(), &args), dir.path());
    let began = Instant::now();
    while machine.limit().is_none() {
        assert!(began.elapsed() < Duration::from_secs(30), "no limit was ever set: {}", agent.words());
        machine.step();
    }
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    machine.hold_back(false);
    assert_eq!(run(dir.path(), &["restore"]).status.code(), Some(0));
    assert_eq!(machine.group.files(), found);

    // With time to learn the rule: most of the time its limit is near the edge, and what it gets is no token.
    machine.meter = Meter::new(WINDOW);
    let timed = [&args[..], &["--for", "14s"]].concat();
    let mut agent = Agent::start(evenkeel(dir.path(), &timed), dir.path());
    let (before, began, mut near) = (machine.used_s(), Instant::now(), 0);
    while agent.process.try_wait().unwrap().is_none() {
        machine.step();
        near += usize::from(machine.limit().is_some_and(|limit| (0.1..0.3).contains(&limit)));
    }
    let share = (machine.used_s() - before) / began.elapsed().as_secs_f64();
    machine.hold_back(false);
    let output = agent.end();
    let document = json(&output);
    let limit = &document["cpu_limit"];
    let told = format!("{:.1} % of a CPU; {limit:#}; {}", 100.0 * share, agent.words());
    assert_eq!(limit["group"], machine.group.path, "{told}");
    assert!(limit["onsets"].as_u64().unwrap() >= 1, "{told}");
    assert!(limit["why"].as_str().unwrap().contains("is punished"), "{told}");
    assert!(agent.words().contains("cpu limit of "), "{told}");
    // Without a limit it is 0.4 s and then 3 %: 5.8 % of 14 s.
    assert!(share > 0.08 && near > 100, "{near} steps near the edge, {told}");
    assert_eq!(machine.group.files(), found);
}

#[test]
fn a_scope_without_a_cgroup_of_its_own_is_not_limited_and_that_is_said() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let group = Group::new("shared");
    let (one, _other) = (group.duty(10, "wall"), group.duty(10, "wall"));
    let found = group.files();
    let args = ["run", "--scope", &one.scope(), "--cpu-limit", "auto", "--for", "2s", "-o", "json"];
    let output = run(dir.path(), &args);
    let document = json(&output);
    let why = document["cpu_limit"]["why"].as_str().unwrap();
    assert!(why.contains("1 tasks more than the scope"), "{document:#}");
    assert!(
        scene::text(&output.stderr).contains("cpu limit: none is set"),
        "{}",
        scene::text(&output.stderr)
    );
    assert_eq!((&document["cpu_limit"]["limit_pct"], group.files()), (&serde_json::Value::Null, found));
    let wrong =
        run(dir.path(), &["run", "--scope", &one.scope(), "--cpu-limit", "auto", "--instance", "x9.huge"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(scene::text(&wrong.stderr).contains("t1.micro"), "{}", scene::text(&wrong.stderr));
}
