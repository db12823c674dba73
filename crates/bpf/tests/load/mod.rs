//! Processes to watch; they end with their guard.
#![allow(dead_code)]

use std::fs;
use std::process::{Command, Stdio};

use evenkeel_base::TaskId;
use evenkeel_linux::process::start_time;
use evenkeel_linux::testing::{TestChild, schedstat, until};

/// Tests that load programs, count them, or want a CPU: one at a time.
pub fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Computes without an end.
pub const SPIN: &str = "while :; do :; done";

/// A process that ends with the test.
pub struct Process(TestChild);

impl Process {
    pub fn start(mut command: Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn();
        Self(TestChild(child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"))))
    }

    /// A shell with a script.
    pub fn shell(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Self::start(command)
    }

    /// Spins on a CPU.
    pub fn hog(cpu: u32) -> Self {
        let cpu = cpu.to_string();
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu, "sh", "-c", SPIN]);
        let hog = Self::start(command);
        until("the hog spins", || hog.comm() == "sh");
        hog
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn comm(&self) -> String {
        fs::read_to_string(format!("/proc/{}/comm", self.pid())).unwrap_or_default().trim().to_owned()
    }

    pub fn id(&self) -> TaskId {
        let pid = self.pid();
        TaskId { tgid: pid, tid: pid, start_time: start_time(pid, pid).unwrap() }
    }

    pub fn pin(&self, cpus: &str) {
        let set = Command::new("taskset").args(["-pc", cpus, &self.pid().to_string()]).output();
        assert!(set.expect("taskset (util-linux) is needed").status.success());
    }

    /// Ran and waited, ns, by the kernel's own counters.
    pub fn schedstat(&self) -> [f64; 2] {
        let [ran_ns, waited_ns, _] = schedstat(self.pid()).map(|number| number as f64);
        [ran_ns, waited_ns]
    }
}
