//! Real loads in real cgroups for the loop to work on; all of it ends with its guards.
#![allow(dead_code)]

#[path = "../program/mod.rs"]
mod program;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use evenkeel_actuate::{Kernel, Linux};
use evenkeel_base::{CpuQuota, Knob, Setting, Target, TaskId};
use evenkeel_linux::cgroupfs::processes;
use evenkeel_linux::testing::{TestCgroup, TestChild, comm};
pub use evenkeel_linux::testing::{TestProcess as Process, together, turn, until};
pub use program::{Ended, end};

/// A turn, as loads of two tests at once would make each other's trials longer, and a directory for the program's state.
pub fn begin() -> (RwLockWriteGuard<'static, ()>, tempfile::TempDir) {
    (turn(), tempfile::tempdir().unwrap())
}

/// The same for one that does not mind loads of others.
pub fn begin_together() -> (RwLockReadGuard<'static, ()>, tempfile::TempDir) {
    (together(), tempfile::tempdir().unwrap())
}

/// What a test begins with, and [`crowd`] in a cgroup of this name.
pub fn with_crowd<T>(
    (turn, dir): (T, tempfile::TempDir),
    name: &str,
) -> (T, tempfile::TempDir, Group, Vec<Process>) {
    let group = Group::new(name);
    let loads = crowd(&group);
    (turn, dir, group, loads)
}

/// The binary with a state directory.
pub fn evenkeel(state: &Path, args: &[&str]) -> Command {
    let mut command = program::evenkeel(["--state-dir"]);
    command.arg(state).args(args);
    command
}

/// Runs it to its end.
#[track_caller]
pub fn run(state: &Path, args: &[&str]) -> Ended {
    end(&mut evenkeel(state, args))
}

/// Fails unless `run` tells that everything went back.
#[track_caller]
pub fn assert_all_back(document: &serde_json::Value) {
    assert_eq!(document["restored"]["failed"], 0, "{document:#}");
    assert_eq!(document["restored"]["conflicts"], 0, "{document:#}");
}

/// A configuration file with a time within which decisions are to fall: little of it goes to a baseline, so that something is
/// tried after two or three seconds.
pub fn hurried(dir: &Path, decide_within: &str) -> String {
    hurried_with(dir, decide_within, "")
}

/// The same with other tables behind it.
pub fn hurried_with(dir: &Path, decide_within: &str, more: &str) -> String {
    let text =
        format!("[run]\ndecide_within = \"{decide_within}\"\ncloser_look = \"0s\"\ninterval = \"200ms\"\n");
    configured(dir, &(text + more))
}

/// A configuration file.
pub fn configured(dir: &Path, text: &str) -> String {
    let path = dir.join("evenkeel.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Levers whose trials show in the tasks themselves; among many others their turn might not come in a short time.
pub const VISIBLE: [&str; 4] = ["--lever", "batch+slice by burst", "--lever", "short first+nice"];

/// A cgroup of the cpu controller, v1 or v2, removed with its guard.
#[derive(Debug)]
pub struct Group(TestCgroup);

impl Group {
    pub fn new(name: &str) -> Self {
        Self(TestCgroup::new(name).unwrap())
    }

    /// Path below the controller's mount.
    pub fn path(&self) -> &str {
        self.0.path()
    }

    pub fn scope(&self) -> String {
        format!("cgroup:{}", self.path())
    }

    pub fn dir(&self) -> &Path {
        self.0.dir()
    }

    pub fn set_weight(&self, v1_shares: u64, v2_weight: u64) {
        self.0.set(("cpu.shares", v1_shares), ("cpu.weight", v2_weight)).unwrap();
    }

    pub fn set_quota(&self, quota: &CpuQuota) {
        self.0.set_quota(quota).unwrap();
    }

    pub fn add(&self, pid: u32) {
        self.0.add(pid).unwrap();
    }

    /// All files of the cpu controller that hold a setting.
    pub fn files(&self) -> BTreeMap<String, String> {
        self.0.settings()
    }

    /// Process numbers of those in it now.
    pub fn processes(&self) -> Vec<u32> {
        processes(self.dir())
    }

    /// Starts a program in it, in a process group of its own.
    pub fn start(&self, program: &str, args: &[&str]) -> Process {
        let mut command = self.0.command();
        command.arg(program).args(args);
        let process = Process::spawn(command);
        until("it is in its cgroup", || self.processes().contains(&process.pid()));
        process
    }

    /// Starts a built-in duty load in it.
    pub fn duty(&self, percent: u32, kind: &str) -> Process {
        let percent = percent.to_string();
        let args = ["load", "duty", "--percent", &percent, "--kind", kind, "--seconds", "600"];
        self.start(env!("CARGO_BIN_EXE_evenkeel"), &args)
    }
}

/// What a task has: class, nice and slice; affinity.
pub type Facts = (Setting, Setting);

/// What the main thread of a process has; `None` when it is gone.
pub fn facts(pid: u32) -> Option<(TaskId, Facts)> {
    thread_local!(static KERNEL: RefCell<Linux> = RefCell::new(Linux::new().unwrap()));
    KERNEL.with_borrow_mut(|kernel| {
        let id = kernel.identity(pid).ok()?.id;
        let target = Target::Task(id);
        Some((id, (kernel.read(&target, Knob::Sched).ok()?, kernel.read(&target, Knob::Affinity).ok()?)))
    })
}

/// What every process of these groups and the groups themselves have.
pub fn snapshot(groups: &[&Group]) -> (BTreeMap<TaskId, Facts>, Vec<BTreeMap<String, String>>) {
    let tasks = groups.iter().flat_map(|group| group.processes());
    let tasks = tasks.filter_map(facts).collect();
    (tasks, groups.iter().map(|group| group.files()).collect())
}

/// Eight loads that want nearly all of two CPUs, and get in each other's way.
pub fn crowd(group: &Group) -> Vec<Process> {
    let cpus = evenkeel_linux::sys::usable_cpus().len() as u32;
    let crowd: Vec<Process> = [8, 12, 20, 30, 30, 35, 35, 20]
        .iter()
        .enumerate()
        .map(|(i, percent)| {
            group.duty((percent * cpus / 2).min(90), if i % 2 == 0 { "wall" } else { "closed" })
        })
        .collect();
    until("the loads run", || {
        let pids = group.processes();
        pids.len() == crowd.len() && pids.into_iter().all(|pid| !matches!(comm(pid).as_str(), "" | "sh"))
    });
    crowd
}

/// The loop at work in the background, its words in files.
#[derive(Debug)]
pub struct Agent {
    pub process: TestChild,
    command: Command,
    words: PathBuf,
    result: PathBuf,
}

impl Agent {
    /// Starts the program with its state and its words in a directory.
    pub fn run(dir: &Path, args: &[&str]) -> Self {
        Self::start(evenkeel(dir, args), dir)
    }

    pub fn start(mut command: Command, dir: &Path) -> Self {
        let (words, result) = (dir.join("agent.stderr"), dir.join("agent.stdout"));
        command.stderr(std::fs::File::create(&words).unwrap());
        command.stdout(std::fs::File::create(&result).unwrap());
        Self { process: TestChild(command.spawn().unwrap()), command, words, result }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn words(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.words).unwrap()).into_owned()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(&mut self) -> Ended {
        let status = self.process.wait().unwrap();
        let [stdout, stderr] = [&self.result, &self.words].map(|path| std::fs::read(path).unwrap());
        Ended::of(&self.command, Output { status, stdout, stderr })
    }

    /// Asks it to end, and waits for that.
    #[track_caller]
    pub fn end_by(&mut self, signal: rustix::process::Signal) -> Ended {
        self.signal(signal);
        self.end()
    }

    /// Ends it without a chance to restore anything.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// Writes firmware of one jump to itself, for an emulated machine whose first vCPU wants all it can get.
pub fn spinning_firmware(path: &Path) {
    if cfg!(target_arch = "aarch64") {
        // `b .` where the virt board begins.
        let mut image = vec![0; 64 << 20];
        image[..4].copy_from_slice(&0x1400_0000_u32.to_le_bytes());
        std::fs::write(path, image).unwrap();
    } else {
        // `jmp .` at the reset vector, 16 bytes below the end.
        let mut image = vec![0x90; 64 << 10];
        let end = image.len();
        image[end - 16..end - 14].copy_from_slice(&[0xeb, 0xfe]);
        std::fs::write(path, image).unwrap();
    }
}
