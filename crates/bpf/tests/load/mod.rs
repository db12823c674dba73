//! Processes to watch; they end with their guard.
#![allow(dead_code)]

use std::process::{Command, Stdio};

use evenkeel_base::TaskId;
use evenkeel_linux::process::start_time;
pub use evenkeel_linux::testing::turn;
use evenkeel_linux::testing::{TestChild, comm, schedstat, until};

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
        let hog = Self::on(cpu, SPIN);
        until("the hog spins", || hog.comm() == "sh");
        hog
    }

    /// A shell with a script on a CPU.
    pub fn on(cpu: u32, script: &str) -> Self {
        Self(TestChild::shell_on(cpu, script))
    }

    /// Leaves the first CPU to no ordinary task.
    pub fn realtime_hog() -> Self {
        let mut command = Command::new("chrt");
        command.args(["-f", "10", "taskset", "-c", "0", "sh", "-c", SPIN]);
        Self::start(command)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn comm(&self) -> String {
        comm(self.pid())
    }

    pub fn id(&self) -> TaskId {
        let pid = self.pid();
        TaskId { tgid: pid, tid: pid, start_time: start_time(pid, pid).unwrap() }
    }

    /// Identity as `why` takes it.
    pub fn named(&self) -> (u32, u64) {
        let id = self.id();
        (id.tgid, id.start_time)
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
