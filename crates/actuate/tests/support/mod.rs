//! Children to experiment on; they end with their guard.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use evenkeel_actuate::{Kernel, Linux};
use evenkeel_base::{Change, Knob, Nice, Plan, SchedAttr, SchedPolicy, Setting, Target, TaskId};
use evenkeel_linux::testing::TestCgroup;

pub fn state_dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// SCHED_BATCH with a nice value and, where this kernel has slices, one of these milliseconds.
pub fn batch(nice: i32, slice_ms: u64) -> Setting {
    let slices = Linux::new().unwrap().has_task_slice();
    Setting::Sched(SchedAttr {
        policy: SchedPolicy::Batch,
        nice: Nice::new(nice),
        slice_ns: (slices && slice_ms > 0).then_some(slice_ms * 1_000_000),
        ..SchedAttr::DEFAULT
    })
}

pub fn plan(changes: Vec<(Target, Setting)>) -> Plan {
    let change = |(target, to)| Change { target, to, why: "test".into() };
    Plan { name: "test".into(), changes: changes.into_iter().map(change).collect(), ..Plan::default() }
}

/// A process of ours.
pub struct Child {
    child: std::process::Child,
    pipes: Option<(ChildStdin, BufReader<ChildStdout>)>,
    born: Vec<u32>,
}

impl Child {
    pub fn sleeping() -> Self {
        let child = Command::new("sleep").arg("300").spawn().unwrap();
        Self { child, pipes: None, born: Default::default() }
    }

    /// A shell that forks when told.
    pub fn forking() -> Self {
        let mut child = Command::new("sh")
            .args(["-c", "read x; sleep 300 & echo $!; (sleep 300 & echo $!); read x"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipes = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, pipes: Some(pipes), born: Default::default() }
    }

    /// A child of it, and an orphaned grandchild.
    pub fn fork_and_orphan(&mut self) -> Vec<u32> {
        let (input, output) = self.pipes.as_mut().expect("a forking child");
        input.write_all(b"go\n").unwrap();
        for _ in 0..2 {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            self.born.push(line.trim().parse().unwrap());
        }
        self.born.clone()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn task(&self) -> TaskId {
        Linux::new().unwrap().identity(self.id()).unwrap().id
    }

    pub fn target(&self) -> Target {
        Target::Task(self.task())
    }

    /// Class, nice, slice; affinity.
    pub fn facts(&self) -> (Setting, Setting) {
        let mut kernel = Linux::new().unwrap();
        let target = self.target();
        (kernel.read(&target, Knob::Sched).unwrap(), kernel.read(&target, Knob::Affinity).unwrap())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for &pid in &self.born {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// A cgroup of the cpu controller, v1 or v2, removed with its guard.
pub struct TestGroup(TestCgroup);

impl TestGroup {
    /// Makes `/evenkeel-test-NAME-PID`.
    pub fn new(name: &str) -> Self {
        Self(TestCgroup::new(&format!("test-{name}")).unwrap())
    }

    pub fn target(&self) -> Target {
        Target::Group(evenkeel_base::GroupRef { path: self.0.path().to_owned(), v2: self.0.is_v2() })
    }

    pub fn put(&self, v1: &str, v2: &str, value: &str) {
        self.0.write(if self.0.is_v2() { v2 } else { v1 }, value).unwrap();
    }

    pub fn add(&self, pid: u32) {
        self.0.add(pid).unwrap();
    }

    /// All files of the cpu controller that hold a setting.
    pub fn files(&self) -> std::collections::BTreeMap<String, String> {
        self.0.settings()
    }
}
