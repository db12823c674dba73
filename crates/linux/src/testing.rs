//! For tests on the real kernel: cgroups and children that go with their guards.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::Root;
use crate::group::{Cgroup, GroupError};
use crate::mountinfo::{Hierarchies, Hierarchy};

/// Files of the cpu controller that hold a setting.
const SETTINGS: [&str; 9] = [
    "cpu.shares",
    "cpu.weight",
    "cpu.idle",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.cfs_burst_us",
    "cpu.max",
    "cpu.max.burst",
    "cpu.rt_runtime_us",
];

/// Writes files below a directory, by name and text, in directories that are made for them.
pub fn lay(dir: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("a name has a directory")).expect("makes a directory");
        fs::write(path, text).expect("writes a file");
    }
}

/// Takes an HTTP request with a body: its head, and that.
pub fn posted(stream: &mut impl Read) -> (String, Vec<u8>) {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut part).expect("a request comes");
        assert!(n > 0, "{}", String::from_utf8_lossy(&bytes));
        bytes.extend(&part[..n]);
        let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        if bytes.len() >= at + 4 + length.expect("a length").parse::<usize>().expect("a number") {
            return (head, bytes.split_off(at + 4));
        }
    }
}

static TURN: RwLock<()> = RwLock::new(());

/// One test of a program at a time: for those that want a CPU of their own, or change what all share. One that failed bars none.
pub fn turn() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Not while one has its [`turn`], but next to others: for those that load CPUs, and ask what is done and left, not how much or
/// how soon. Whoever waits for a turn has it before others join.
pub fn together() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// What a process of this number made as `evenkeel lab` or `evenkeel exec` (`kind`), by its names: cgroups, at whatever depth,
/// and files and directories in `/dev`, `/dev/shm` and `/tmp`.
pub fn made_by(kind: &str, pid: u32) -> Vec<PathBuf> {
    let prefix = format!("evenkeel-{kind}-{pid}-");
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<fs::DirEntry> =
        ["/dev", "/dev/shm", "/tmp"].iter().flat_map(|dir| entries(dir.as_ref())).collect();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let cgroups = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        words.next().filter(|_| words.next().is_some_and(|kind| kind.starts_with("cgroup")))
    });
    let mut next: Vec<PathBuf> = cgroups.map(PathBuf::from).collect();
    while let Some(dir) = next.pop() {
        let groups = entries(&dir).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        for group in groups {
            next.push(group.path());
            all.push(group);
        }
    }
    let made = all.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    made.map(fs::DirEntry::path).collect()
}

/// A cgroup that ends with its guard: what is still in it is killed.
#[derive(Debug)]
pub struct TestCgroup {
    group: Cgroup,
    path: String,
}

impl TestCgroup {
    /// Makes `/evenkeel-NAME-PID` in the hierarchy of the cpu controller, v1 or v2.
    pub fn new(name: &str) -> Result<Self, String> {
        let found = Hierarchies::read(&Root::host()).map_err(|error| error.to_string())?;
        Self::on(&found.cpu.ok_or("no cgroup hierarchy with the cpu controller is mounted")?, name)
    }

    /// The same in this hierarchy.
    pub fn on(hierarchy: &Hierarchy, name: &str) -> Result<Self, String> {
        let top = Cgroup::new(&hierarchy.mount_point, hierarchy.v2);
        let name = format!("evenkeel-{name}-{}", std::process::id());
        Self::at(&top, "", &name).map_err(|error| error.to_string())
    }

    fn at(parent: &Cgroup, path: &str, name: &str) -> Result<Self, GroupError> {
        if parent.is_v2() {
            parent.enable(&["cpu"])?;
        }
        let group = Cgroup::make(parent.dir(), name, parent.is_v2())?;
        Ok(Self { group, path: format!("{path}/{name}") })
    }

    /// Makes one below it, which is to be dropped first.
    pub fn child(&self, name: &str) -> Result<Self, GroupError> {
        Self::at(&self.group, &self.path, name)
    }

    /// A command that runs in it; what it runs is given as its arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo 0 >{}/cgroup.procs && exec \"$@\"", self.dir().display()), "sh"]);
        command
    }

    /// Its path below the hierarchy's mount point.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Writes what v1 and v2 call differently.
    pub fn set(&self, v1: (&str, u64), v2: (&str, u64)) -> Result<(), GroupError> {
        let (file, value) = if self.is_v2() { v2 } else { v1 };
        self.write(file, &value.to_string())
    }

    /// Moves a process into it.
    pub fn add(&self, pid: u32) -> Result<(), GroupError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// All files of the cpu controller that hold a setting.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let read = |name: &str| Some((name.to_owned(), fs::read_to_string(self.dir().join(name)).ok()?));
        SETTINGS.into_iter().filter_map(read).collect()
    }
}

impl Deref for TestCgroup {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.group
    }
}

impl Drop for TestCgroup {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        if !self.clear() {
            eprintln!("{} is left behind", self.dir().display());
        }
    }
}

/// A child that is killed and waited for with its guard.
#[derive(Debug)]
pub struct TestChild(pub Child);

impl TestChild {
    /// A shell with a script, on a CPU.
    ///
    /// # Panics
    /// There is no `taskset`.
    #[track_caller]
    pub fn shell_on(cpu: u32, script: &str) -> Self {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "sh", "-c", script]).stdin(Stdio::null());
        Self(command.spawn().expect("taskset (util-linux) is needed"))
    }
}

impl Deref for TestChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for TestChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for TestChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child that leads a process group; the whole group is killed with its guard.
#[derive(Debug)]
pub struct TestProcess(pub Child);

impl TestProcess {
    /// Starts a command that reads and prints nothing.
    ///
    /// # Panics
    /// It does not start.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.process_group(0).spawn().expect("the command starts"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its number as a target of evenkeel's.
    pub fn scope(&self) -> String {
        format!("pid:{}", self.pid())
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid() as i32) {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// How long a process's first thread ran and how long it waited, nanoseconds, and how often it was given a CPU, as the kernel
/// counts (`/proc/PID/schedstat`).
///
/// # Panics
/// The process is gone.
#[track_caller]
pub fn schedstat(pid: u32) -> [u64; 3] {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("a process that is there");
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().expect("three numbers")
}

/// A process's name; empty when it is gone.
pub fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Looks until something holds.
///
/// # Panics
/// It does not within a minute.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let look = || holds().then_some(()).ok_or_else(|| format!("waited in vain until {what}"));
    looked_for(Duration::from_millis(5), Duration::from_secs(60), look);
}

/// Looks until there is what is looked for, not so often that looking would matter.
///
/// # Panics
/// It does not come within so many seconds: with what the last look says.
#[track_caller]
pub fn awaited<T>(seconds: u64, look: impl FnMut() -> Result<T, String>) -> T {
    looked_for(Duration::from_millis(50), Duration::from_secs(seconds), look)
}

/// The same, this often and within this time.
///
/// # Panics
/// As [`awaited`].
#[track_caller]
pub fn looked_for<T>(every: Duration, within: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(saw) => assert!(began.elapsed() < within, "{saw} ({within:?})"),
        }
        std::thread::sleep(every);
    }
}
