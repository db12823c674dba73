//! A hypervisor played on real processes: a guest is a command under `evenkeel exec` in a cgroup of its own, and that
//! cgroup's quota takes from it what a rule ([`evenkeel_model::credit`]) would.
//!
//! Seen from inside it is the same as stolen CPU without a steal counter: tasks are runnable, neither their own limit nor
//! other programs keep them from running, and they do not run. To be stepped about every 10 ms ([`Guest::step`]).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_model::credit::{Meter, Rule};

use crate::children::end_with;
use crate::runner::enforcer::quota_of;
use crate::runner::groups::clear;
use crate::tenant::TenantError;
use crate::tenant::cgroup::{Hierarchies, LabGroup};

/// Time between two steps.
pub const STEP: Duration = Duration::from_millis(10);
/// Steps for which a guest that was held back still wants what its own limit leaves it: quotas are given by periods.
const ECHO: u32 = 3;

/// What a guest runs.
#[derive(Debug, Clone)]
pub struct Order<'a> {
    /// The `evenkeel` program.
    pub binary: &'a Path,
    /// For people, and part of its cgroup's name.
    pub name: &'a str,
    /// `--cpu-limit`, if any.
    pub limit: Option<&'a str>,
    /// The command and its arguments.
    pub command: &'a [String],
    /// Working directory.
    pub dir: Option<&'a Path>,
    /// Where state and account go.
    pub state: &'a Path,
}

/// A command at the mercy of a rule. Dropped, its command is ended and its cgroup removed.
#[derive(Debug)]
pub struct Guest {
    name: String,
    child: Child,
    cgroup: Outer,
    meter: Meter,
    stepped: Instant,
    started: Instant,
    ended: Option<Duration>,
    used_ns: u64,
    /// In force, microseconds and period.
    quota: Option<(u64, u64)>,
    echo: u32,
    account: PathBuf,
}

/// The guest's cgroup, and the one that the rule's quota is set on: on v2 the guest's own, on v1 one inside that of the
/// command, since v1 refuses a group more than its parent has ("max(child_quota) <= parent_quota"), and the command's
/// own limit must be free to move.
#[derive(Debug)]
struct Outer {
    group: LabGroup,
    /// v2: where the wrapper is, so that groups can be made beside it.
    door: Option<PathBuf>,
    /// v1: see above; made when the command is there, removed when it is gone.
    inner: Option<PathBuf>,
}

impl Outer {
    fn make(hierarchies: &Hierarchies, name: &str) -> Result<Self, TenantError> {
        let group = LabGroup::make(hierarchies, name)?;
        let mut outer = Self { group, door: None, inner: None };
        if hierarchies.is_v2() {
            let failed = |path: &Path, e: io::Error| TenantError::system(path.display().to_string(), e);
            let control = outer.group.cpu_dir().join("cgroup.subtree_control");
            fs::write(&control, "+cpu").map_err(|e| failed(&control, e))?;
            let door = outer.group.cpu_dir().join("wrapper");
            fs::create_dir(&door).map_err(|e| failed(&door, e))?;
            outer.door = Some(door);
        }
        Ok(outer)
    }

    /// The command's group, made by `exec`.
    fn command(&self) -> Option<PathBuf> {
        let below = fs::read_dir(self.group.cpu_dir()).ok()?.flatten();
        below.map(|entry| entry.path()).find(|path| Some(path) != self.door.as_ref() && path.is_dir())
    }

    /// v1: takes the command in as soon as it is there, and is gone as soon as it is: `exec` removes its group then.
    fn follow(&mut self) {
        if self.group.group_ref().v2 {
            return;
        }
        let Some(command) = self.command() else { return };
        let inner = command.join("vcpu");
        let members = fs::read_to_string(command.join("cgroup.procs")).unwrap_or_default();
        if self.inner.is_none() && !members.is_empty() && fs::create_dir(&inner).is_ok() {
            self.inner = Some(inner.clone());
        }
        for pid in members.lines() {
            // It may have ended meanwhile.
            let _ = fs::write(inner.join("cgroup.procs"), pid);
        }
        self.leave();
    }

    /// Removes the inner group when nobody is in it.
    fn leave(&mut self) {
        if self.inner.as_ref().is_some_and(|inner| fs::remove_dir(inner).is_ok() || !inner.exists()) {
            self.inner = None;
        }
    }

    /// Ends what the command left behind, and removes the groups below that `exec` left because of it.
    fn clear(&mut self) {
        for dir in self.group.dirs() {
            let below = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
            for left in below.filter(|path| path.is_dir() && Some(path) != self.door.as_ref()) {
                clear(&left);
            }
        }
        self.inner = None;
    }

    /// Where a process is to be written to become a member.
    fn entrances(&self) -> Vec<PathBuf> {
        match &self.door {
            Some(door) => vec![door.join("cgroup.procs")],
            None => self.group.dirs().iter().map(|dir| dir.join("cgroup.procs")).collect(),
        }
    }

    /// CPU time of all it holds, nanoseconds.
    fn used_ns(&self) -> Option<u64> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        if self.group.group_ref().v2 {
            let text = fs::read_to_string(self.group.cpu_dir().join("cpu.stat")).ok()?;
            let usec = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            return Some(number(usec)? * 1000);
        }
        let mut files = self.group.dirs().iter().map(|dir| dir.join("cpuacct.usage"));
        number(&files.find_map(|file| fs::read_to_string(file).ok())?)
    }

    /// The limit that the command has of its own, CPUs.
    fn own_limit(&self) -> Option<f64> {
        let command = self.command()?;
        let read = |name: &str| fs::read_to_string(command.join(name)).ok();
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let (quota, period) = if self.group.group_ref().v2 {
            let max = read("cpu.max")?;
            let (quota, period) = max.trim().split_once(' ')?;
            (number(quota)?, number(period)?)
        } else {
            (number(&read("cpu.cfs_quota_us")?)?, number(&read("cpu.cfs_period_us")?)?)
        };
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    }

    /// Quota and period, microseconds; `None`: no quota. Whether there was a group to set it on: on v1 the command's may
    /// be there before the one inside it.
    fn set(&self, quota: Option<(u64, u64)>) -> bool {
        // v1: without a limit of its own the command has no group in this hierarchy.
        let own = self.group.group_ref().v2 || self.command().is_none();
        let dir = if own { Some(self.group.cpu_dir()) } else { self.inner.as_deref() };
        let Some(dir) = dir else { return false };
        let write = |name: &str, text: String| {
            // A write that fails shows in the guest's time; between two steps there is nothing better to do.
            let _ = fs::write(dir.join(name), text);
        };
        if self.group.group_ref().v2 {
            write("cpu.max", quota.map_or("max".to_owned(), |(quota, period)| format!("{quota} {period}")));
            return true;
        }
        // Lifted first: the kernel refuses combinations that are too small in between.
        write("cpu.cfs_quota_us", "-1".to_owned());
        if let Some((quota, period)) = quota {
            write("cpu.cfs_period_us", period.to_string());
            write("cpu.cfs_quota_us", quota.to_string());
        }
        true
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        self.set(None);
        self.leave();
        if let Some(door) = &self.door {
            let _ = fs::remove_dir(door);
        }
    }
}

impl Guest {
    /// Starts a command under a rule with nothing used yet.
    ///
    /// # Errors
    /// Its cgroup cannot be made, or the program not be started.
    pub fn start(order: &Order<'_>, rule: Rule, hierarchies: &Hierarchies) -> Result<Self, TenantError> {
        let clean: String = order.name.chars().filter(char::is_ascii_alphanumeric).collect();
        let cgroup = Outer::make(hierarchies, &format!("evenkeel-lab-{}-0-{clean}", std::process::id()))?;
        let doors = cgroup
            .entrances()
            .iter()
            .map(|path| {
                let open = OpenOptions::new().write(true).open(path);
                open.map_err(|e| TenantError::system(path.display().to_string(), e))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let account = order.state.join(format!("{clean}.json"));
        let mut run = Command::new(order.binary);
        run.arg("--state-dir").arg(order.state.join(&clean)).arg("exec").arg("--account").arg(&account);
        run.args(order.limit.map(|limit| format!("--cpu-limit={limit}")));
        run.arg("--").args(order.command).stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(dir) = order.dir {
            run.current_dir(dir);
        }
        let parent = std::process::id();
        // SAFETY: only writes to descriptors opened before the fork, and what `end_with` does.
        unsafe {
            run.pre_exec(move || {
                for door in &doors {
                    if libc::write(door.as_raw_fd(), c"0".as_ptr().cast(), 1) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                end_with(parent, libc::SIGTERM)
            });
        }
        let child = run.spawn().map_err(|e| TenantError::system(order.binary.display().to_string(), e))?;
        let now = Instant::now();
        Ok(Self {
            name: order.name.to_owned(),
            child,
            cgroup,
            meter: Meter::new(rule),
            stepped: now,
            started: now,
            ended: None,
            used_ns: 0,
            quota: None,
            echo: 0,
            account,
        })
    }

    /// Sees what it used since the last step, and gives what the rule gives from now on.
    pub fn step(&mut self) {
        if self.ended.is_none() && self.child.try_wait().ok().flatten().is_some() {
            self.ended = Some(self.started.elapsed());
        }
        self.cgroup.follow();
        let seconds = self.stepped.elapsed().as_secs_f64().max(1e-6);
        self.stepped = Instant::now();
        let used = self.cgroup.used_ns().unwrap_or(self.used_ns);
        let given = (used.saturating_sub(self.used_ns) as f64 / 1e9 / seconds).min(1.0);
        self.used_ns = used;
        let most = self.cgroup.own_limit().unwrap_or(1.0).min(1.0);
        let held_back = self.quota.is_some() && self.ended.is_none();
        self.echo = if held_back { ECHO } else { self.echo.saturating_sub(1) };
        let wanted = if self.echo > 0 { most.max(given) } else { given };
        self.meter.pass(wanted, given, seconds);
        let share = self.meter.given(most);
        let quota = (share < 0.999 * most).then(|| quota_of(share));
        let quota = quota.and_then(|quota| Some((quota.quota_usec.value()?, quota.period_usec)));
        if quota != self.quota && self.cgroup.set(quota) {
            self.quota = quota;
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long its command took; `None` while it runs.
    pub fn took(&self) -> Option<Duration> {
        self.ended
    }

    /// How long it has been there.
    pub fn age(&self) -> Duration {
        self.ended.unwrap_or_else(|| self.started.elapsed())
    }

    /// CPU time it got, seconds.
    pub fn cpu_s(&self) -> f64 {
        self.used_ns as f64 / 1e9
    }

    /// Whether its rule punishes it now.
    pub fn is_punished(&self) -> bool {
        self.meter.throttles()
    }

    /// Lets it go, ends it if need be, and gives what `exec` noted about its limit.
    pub fn finish(&mut self) -> Vec<String> {
        self.end();
        let account = fs::read_to_string(&self.account).unwrap_or_default();
        let account: Option<serde_json::Value> = serde_json::from_str(&account).ok();
        let notes = account.as_ref().and_then(|account| account["notes"].as_array());
        notes.into_iter().flatten().filter_map(|note| note.as_str().map(str::to_owned)).collect()
    }

    fn end(&mut self) {
        self.cgroup.set(None);
        if self.ended.is_none() && self.child.try_wait().ok().flatten().is_none() {
            // SAFETY: our own child, not waited for yet.
            unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        }
        while let Ok(None) = self.child.try_wait() {
            self.cgroup.leave();
            std::thread::sleep(STEP);
        }
        self.cgroup.clear();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The command first: a cgroup with members cannot be removed.
        self.end();
    }
}
