//! The injector: a victim, and antagonists of seven kinds that take its CPU time.
//!
//! Each knows its truth: what must be named, and from when to when. evenkeel has no part in it.
//!
//! ```text
//! /evenkeel-antagonists-PID
//!   machine            the steal emulator's quota
//!     pod              a quota that the victim shares with a sibling
//!       victim         its own quota
//!       sibling-N
//!   antagonist-N       whoever else wants the victim's CPU
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_lab::steal::{StealEmulator, TICK, limit_of};
use evenkeel_linux::group::Cgroup;
use evenkeel_linux::testing::{TestCgroup, TestProcess, schedstat};
use evenkeel_model::credit::Rule;
use rand::Rng;

/// Loads that are ours.
const BINARY: &str = env!("CARGO_BIN_EXE_evenkeel");
/// Where the victim runs; who shares only a quota with it runs on the other one.
const CPU: &str = "0";

evenkeel_base::named! {
/// What takes the victim's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Task = "task",
    Container = "container",
    Forks = "forks",
    Softirq = "softirq",
    OwnQuota = "own-quota",
    SiblingsQuota = "siblings-quota",
    Steal = "steal",
}
}

/// What was done to the victim.
#[derive(Debug, Clone)]
pub struct Injected {
    pub kind: Kind,
    /// What must be named: the culprit as `/metrics` has it.
    pub name: String,
    /// Seconds since 1970.
    pub start_s: f64,
    pub end_s: f64,
}

impl Injected {
    /// A line of the log.
    pub fn line(&self) -> String {
        let Self { kind, name, start_s, end_s } = self;
        serde_json::json!({"kind": kind.name(), "name": name, "start": start_s, "end": end_s}).to_string()
    }
}

pub fn now_s() -> f64 {
    evenkeel_linux::sys::wall_ns() as f64 / 1e9
}

fn start(group: &TestCgroup, cpu: &str, command: &[&str]) -> TestProcess {
    let mut run = group.command();
    run.args(["taskset", "-c", cpu]).args(command);
    TestProcess::spawn(run)
}

/// The victim and its place. Fields are ended in their order: the inner groups first.
pub struct Scene {
    victim: TestProcess,
    own: TestCgroup,
    pod: TestCgroup,
    machine: TestCgroup,
    top: TestCgroup,
    path: String,
    count: usize,
}

/// What an antagonist is made of; all of it goes with it.
#[derive(Default)]
struct Parts {
    processes: Vec<TestProcess>,
    groups: Vec<TestCgroup>,
}

impl Scene {
    /// A victim that works for 2 ms in each 8 ms, 25 % of its CPU.
    pub fn start() -> Self {
        let top = TestCgroup::new("antagonists").unwrap();
        // Whoever else works on this host hardly matters then.
        top.set(("cpu.shares", 65_536), ("cpu.weight", 10_000)).unwrap();
        let machine = top.child("machine").unwrap();
        let pod = machine.child("pod").unwrap();
        let own = pod.child("victim").unwrap();
        let duty =
            ["load", "duty", "--percent", "25", "--period", "8ms", "--name", "victim", "--seconds", "86400"];
        let victim = start(&own, CPU, &[&[BINARY], &duty[..]].concat());
        let path = top.path().to_owned();
        Self { victim, own, pod, machine, top, path, count: 0 }
    }

    /// As evenkeel calls it.
    pub fn victim(&self) -> String {
        format!("{}/machine/pod/victim", self.path)
    }

    /// Whether a culprit is one that is injected, at this time or another. The hypervisor's steal never is: where it is named,
    /// this host is a virtual machine that is really stolen from.
    pub fn is_ours(&self, culprit: &str) -> bool {
        culprit != self.victim()
            && (culprit.contains(&self.path)
                || culprit == "softirq NET_RX"
                || culprit.starts_with("quota of"))
    }

    /// Puts something in the victim's way for a time.
    pub fn inject(&mut self, kind: Kind, time: Duration, rng: &mut impl Rng) -> Injected {
        self.count += 1;
        let mut parts = Parts::default();
        let start_s = now_s();
        let name = match kind {
            Kind::OwnQuota => {
                let quota = Quota::of(&self.own, rng.random_range(5.0..12.0), rng.random_range(10..=100));
                std::thread::sleep(time);
                drop(quota);
                format!("quota of {}", self.victim())
            }
            Kind::Steal => {
                self.steal(rng.random_range(0.85..0.95), time);
                format!("quota of {}/machine", self.path)
            }
            Kind::SiblingsQuota => {
                let sibling = format!("sibling-{}", self.count);
                let group = self.pod.child(&sibling).unwrap();
                let other = if evenkeel_linux::sys::usable_cpus().len() > 1 { "1" } else { CPU };
                parts.processes.push(start(&group, other, &[BINARY, "load", "spin", "--seconds", "60"]));
                parts.groups.push(group);
                let quota = Quota::of(&self.pod, rng.random_range(30.0..45.0), rng.random_range(20..=100));
                std::thread::sleep(time);
                drop(quota);
                format!("quota of {0}/machine/pod, used up by {0}/machine/pod/{sibling}", self.path)
            }
            _ => {
                let called = self.compete(kind, &mut parts, rng);
                std::thread::sleep(time);
                if kind == Kind::Softirq { "softirq NET_RX".to_owned() } else { called }
            }
        };
        drop(parts);
        Injected { kind, name, start_s, end_s: now_s() }
    }

    /// Somebody wants the victim's CPU. Returns the name of its cgroup.
    fn compete(&self, kind: Kind, parts: &mut Parts, rng: &mut impl Rng) -> String {
        let name = format!("antagonist-{}", self.count);
        let group = self.top.child(&name).unwrap();
        let mut compete = |command: &[&str]| parts.processes.push(start(&group, CPU, command));
        match kind {
            Kind::Task => {
                // One of some: the others sleep.
                compete(&[BINARY, "load", "spin", "--seconds", "60"]);
                compete(&["sleep", "60"]);
                compete(&["sleep", "60"]);
            }
            Kind::Container => {
                for _ in 0..rng.random_range(3..6) {
                    let percent = rng.random_range(40..90).to_string();
                    compete(&[
                        BINARY,
                        "load",
                        "duty",
                        "--percent",
                        &percent,
                        "--period",
                        "20ms",
                        "--seconds",
                        "60",
                    ]);
                }
            }
            Kind::Forks => {
                for _ in 0..rng.random_range(2..5) {
                    compete(&["sh", "-c", "while :; do /bin/true; done"]);
                }
            }
            _ => {
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/antagonists/flood.py");
                compete(&["python3", script, "60"]);
            }
        }
        parts.groups.push(group);
        format!("{}/{name}", self.path)
    }

    /// The steal emulator at work on what stands for the machine.
    fn steal(&self, stolen: f64, time: Duration) {
        let over = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let flag = over.clone();
            scope.spawn(move || {
                let mut emulator = StealEmulator::new(Rule::Constant { stolen }, 1.0);
                emulator.begin(&self.machine, schedstat(self.victim.pid())[0], limit_of(&self.machine));
                while !flag.load(Ordering::Relaxed) {
                    std::thread::sleep(TICK);
                    // The group has no limit of its own but the emulator's.
                    emulator.tick(Some(&self.machine), schedstat(self.victim.pid())[0], None);
                }
                emulator.release(&self.machine);
            });
            std::thread::sleep(time);
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// A quota, lifted with its guard.
struct Quota<'a>(&'a Cgroup);

impl<'a> Quota<'a> {
    /// In percent of one CPU.
    fn of(group: &'a Cgroup, percent: f64, period_ms: u64) -> Self {
        let period_usec = period_ms * 1000;
        let quota_usec = Limit::Value(((period_usec as f64 * percent / 100.0) as u64).max(1000));
        group.set_quota(&CpuQuota { quota_usec, period_usec, burst_usec: 0 }).unwrap();
        Self(group)
    }
}

impl Drop for Quota<'_> {
    fn drop(&mut self) {
        self.0.set_quota(&CpuQuota::UNLIMITED).unwrap();
    }
}
