//! `run --cpu-limit auto` on the real kernel: the scope's cgroup is held under the threshold of a steal emulator's rule, and
//! everything is restored. Needs root.

mod scene;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_lab::mounts::CgroupMounts;
use evenkeel_lab::steal::{StealEmulator, TICK, limit_of, vcpu_inside};
use evenkeel_linux::group::Cgroup;
use evenkeel_linux::testing::schedstat;
use evenkeel_model::credit::Rule;
use scene::{Agent, Group, Process, begin, run};

/// Use above 20 % over two seconds is throttled by 97 %.
const WINDOW: Rule =
    Rule::Window { window_s: 2.0, above: 0.2, below: 0.2, stolen: 0.97, counts_stolen: true };

/// A cgroup with an endless job in a cgroup inside it, from which the emulator steals.
struct Machine {
    job: Process,
    group: Group,
    /// With the limit that `run` sets.
    outer: Cgroup,
    inner: Cgroup,
    emulator: StealEmulator,
}

impl Machine {
    fn new(name: &str) -> Self {
        let group = Group::new(name);
        let mounts = CgroupMounts::find().unwrap();
        let (dir, v2) = (mounts.cpu_mount().join(&group.path()[1..]), mounts.is_v2());
        if v2 {
            fs::write(dir.join("cgroup.subtree_control"), "+cpu").unwrap();
        }
        let inner = vcpu_inside(&Cgroup::new(&dir, v2)).unwrap();
        let mut command = Command::new("sh");
        let script = format!("echo 0 >{}/cgroup.procs; while :; do :; done", inner.dir().display());
        command.args(["-c", &script]);
        let job = Process::spawn(command);
        Self { job, group, outer: Cgroup::new(dir, v2), inner, emulator: StealEmulator::new(WINDOW, 1.0) }
    }

    fn used_ns(&self) -> u64 {
        schedstat(self.job.pid())[0]
    }

    /// The rule begins again, with nothing used yet.
    fn begin(&mut self) {
        self.emulator.release(&self.inner);
        self.emulator = StealEmulator::new(WINDOW, 1.0);
        self.emulator.begin(&self.inner, self.used_ns(), limit_of(&self.outer));
    }

    fn tick(&mut self) {
        self.emulator.tick(Some(&self.inner), self.used_ns(), limit_of(&self.outer));
        std::thread::sleep(TICK);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.job.0.kill();
        let _ = self.job.0.wait();
        for _ in 0..100 {
            if fs::remove_dir(self.inner.dir()).is_ok() {
                return;
            }
            std::thread::sleep(TICK);
        }
    }
}

#[test]
fn a_scope_is_held_under_the_edge_and_put_back() {
    let (_turn, dir) = begin();
    let mut machine = Machine::new("limit");
    let found = machine.group.files();
    let scope = machine.group.scope();
    let args = ["run", "--scope", &scope, "--cpu-limit", "auto", "--guarantees-only", "-o", "json"];

    // Killed while a limit is in force: `restore` takes it off.
    let mut agent = Agent::run(dir.path(), &args);
    let began = Instant::now();
    machine.begin();
    while limit_of(&machine.outer).is_none() {
        assert!(began.elapsed() < Duration::from_secs(30), "no limit was ever set: {}", agent.words());
        machine.tick();
    }
    agent.kill();
    machine.emulator.release(&machine.inner);
    run(dir.path(), &["restore"]).with(0);
    assert_eq!(machine.group.files(), found);

    // With time to learn the rule: most of the time its limit is near the edge, and what it gets is no token.
    machine.begin();
    let timed = [&args[..], &["--for", "24s"]].concat();
    let mut agent = Agent::run(dir.path(), &timed);
    let (before, began, mut near) = (machine.used_ns(), Instant::now(), 0);
    while agent.process.try_wait().unwrap().is_none() {
        machine.tick();
        near += usize::from(limit_of(&machine.outer).is_some_and(|limit| (0.1..0.3).contains(&limit)));
    }
    let share = (machine.used_ns() - before) as f64 / 1e9 / began.elapsed().as_secs_f64();
    machine.emulator.release(&machine.inner);
    let output = agent.end();
    let document = output.json();
    let limit = &document["cpu_limit"];
    let told = format!("{:.1} % of a CPU; {limit:#}; {}", 100.0 * share, agent.words());
    assert_eq!(limit["group"], machine.group.path(), "{told}");
    assert!(limit["onsets"].as_u64().unwrap() >= 1, "{told}");
    assert!(limit["why"].as_str().unwrap().contains("is throttled"), "{told}");
    assert!(agent.words().contains("cpu limit of "), "{told}");
    // Without a limit it is 0.4 s and then 3 %: 4.6 % of 24 s.
    assert!(share > 0.08 && near > 100, "{near} steps near the edge, {told}");
    assert_eq!(machine.group.files(), found);
}

#[test]
fn a_scope_without_a_cgroup_of_its_own_is_not_limited_and_that_is_said() {
    let (_turn, dir) = begin();
    let group = Group::new("shared");
    let (one, _other) = (group.duty(10, "wall"), group.duty(10, "wall"));
    let found = group.files();
    let args = ["run", "--scope", &one.scope(), "--cpu-limit", "auto", "--for", "2s", "-o", "json"];
    let output = run(dir.path(), &args);
    let document = output.json();
    let why = document["cpu_limit"]["why"].as_str().unwrap();
    assert!(why.contains("1 tasks more than the scope"), "{document:#}");
    assert!(output.stderr.contains("cpu limit: none is set"), "{output}");
    assert_eq!((&document["cpu_limit"]["limit_pct"], group.files()), (&serde_json::Value::Null, found));
    let args = ["run", "--scope", &one.scope(), "--cpu-limit", "auto", "--instance", "x9.huge"];
    run(dir.path(), &args).refused(2, "did you mean \"t2.large\"");
}
