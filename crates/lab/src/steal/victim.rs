//! A command that the steal emulator takes from: it runs under `evenkeel exec` in a cgroup of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_linux::cgroupfs;
use evenkeel_linux::children::Children;
use evenkeel_linux::group::Cgroup;
use evenkeel_model::credit::Rule;

use super::{StealEmulator, TICK, limit_of, vcpu_inside};
use crate::launch::group::LabGroup;
use crate::launch::{Launch, LaunchError, start};
use crate::mounts::CgroupMounts;

#[derive(Debug, Clone)]
pub struct VictimCommand<'a> {
    /// The `evenkeel` program.
    pub binary: &'a Path,
    /// For messages, and part of its cgroup's name.
    pub name: &'a str,
    /// `--cpu-limit`, if any.
    pub limit: Option<&'a str>,
    pub command: &'a [String],
    pub dir: Option<&'a Path>,
    /// Where state and account go.
    pub state: &'a Path,
}

/// A command that a rule steals from. Dropped, its command is ended and its cgroup removed.
#[derive(Debug)]
pub struct Victim {
    name: String,
    process: Children,
    cgroup: VictimGroup,
    emulator: StealEmulator,
    started: Instant,
    ended: Option<Duration>,
    used_ns: u64,
    account: PathBuf,
}

/// The victim's cgroup, and the one that the rule's quota is set on: on v2 the victim's own, on v1 one inside that of the
/// command, since v1 refuses a group more than its parent has ("max(child_quota) <= parent_quota"), and the command's
/// own limit must be free to move.
#[derive(Debug)]
struct VictimGroup {
    group: LabGroup,
    /// v2: where the wrapper is, so that groups can be made next to it.
    wrapper: Option<Cgroup>,
    /// v1: see above; made when the command is there, removed when it is gone.
    inner: Option<Cgroup>,
}

impl VictimGroup {
    fn make(mounts: &CgroupMounts, name: &str) -> Result<Self, LaunchError> {
        let group = LabGroup::make(mounts, name)?;
        let mut outer = Self { group, wrapper: None, inner: None };
        if mounts.is_v2() {
            outer.group.cpu().enable(&["cpu"])?;
            outer.wrapper = Some(Cgroup::make(outer.group.cpu().dir(), "wrapper", true)?);
        }
        Ok(outer)
    }

    /// The command's group, made by `exec`.
    fn command(&self) -> Option<Cgroup> {
        self.below(self.group.cpu()).next()
    }

    /// The groups below one of ours, without the wrapper's.
    fn below(&self, group: &Cgroup) -> impl Iterator<Item = Cgroup> {
        let entries = fs::read_dir(group.dir()).into_iter().flatten().flatten();
        let dirs = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
        let groups = dirs.map(|dir| Cgroup::new(dir, group.is_v2()));
        groups.filter(|group| Some(group) != self.wrapper.as_ref())
    }

    /// v1: takes the command in as soon as it is there, and is gone as soon as it is: `exec` removes its group then.
    fn follow(&mut self) {
        if self.group.group_ref().v2 {
            return;
        }
        let Some(command) = self.command() else { return };
        let members = cgroupfs::processes(command.dir());
        if self.inner.is_none() && !members.is_empty() {
            self.inner = vcpu_inside(&command).ok();
        }
        if let Some(inner) = &self.inner {
            for pid in members {
                // It may have ended meanwhile.
                let _ = inner.write("cgroup.procs", &pid.to_string());
            }
        }
        self.leave();
    }

    /// Removes the inner group when no task is in it.
    fn leave(&mut self) {
        if self.inner.as_ref().is_some_and(|i| fs::remove_dir(i.dir()).is_ok() || !i.dir().exists()) {
            self.inner = None;
        }
    }

    /// Ends what the command left behind, and removes the groups below that `exec` left because of it.
    fn clear(&mut self) {
        for group in self.group.groups() {
            for left in self.below(group) {
                left.clear();
            }
        }
        self.inner = None;
    }

    /// Open for a process to write itself into.
    fn entrances(&self) -> Result<Vec<File>, LaunchError> {
        match &self.wrapper {
            Some(wrapper) => Ok(vec![wrapper.entrance()?]),
            None => self.group.entrances(),
        }
    }

    /// The limit that the command has of its own, CPUs.
    fn own_limit(&self) -> Option<f64> {
        limit_of(&self.command()?)
    }

    /// Where the rule's quota is set now: on v1 the command's group may be there before the one inside it.
    fn vcpu(&self) -> Option<Cgroup> {
        // v1: without a limit of its own the command has no group in this hierarchy.
        if self.group.cpu().is_v2() || self.command().is_none() {
            return Some(self.group.cpu().clone());
        }
        self.inner.clone()
    }
}

impl Drop for VictimGroup {
    fn drop(&mut self) {
        self.leave();
        if let Some(wrapper) = &self.wrapper {
            wrapper.remove_empty();
        }
    }
}

impl Victim {
    /// Starts a command under a rule with nothing used yet.
    pub fn start(order: &VictimCommand<'_>, rule: Rule, mounts: &CgroupMounts) -> Result<Self, LaunchError> {
        let clean: String = order.name.chars().filter(char::is_ascii_alphanumeric).collect();
        let cgroup = VictimGroup::make(mounts, &format!("evenkeel-lab-{}-0-{clean}", std::process::id()))?;
        let entrances = cgroup.entrances()?;
        let account = order.state.join(format!("{clean}.json"));
        let state = order.state.join(&clean);
        let exec = [
            "--state-dir",
            &state.display().to_string(),
            "exec",
            "--account",
            &account.display().to_string(),
        ]
        .map(str::to_owned);
        let limit = order.limit.map(|limit| format!("--cpu-limit={limit}"));
        let command = std::iter::once("--".to_owned()).chain(order.command.iter().cloned());
        let launch = Launch {
            dir: order.dir.map(Path::to_owned),
            // It needs time to remove its own groups.
            undoes: true,
            ..Launch::new(order.binary, exec.into_iter().chain(limit).chain(command).collect())
                .inside(entrances)
        };
        let process = start(vec![launch])?;
        Ok(Self {
            name: order.name.to_owned(),
            process,
            cgroup,
            emulator: StealEmulator::new(rule, 1.0),
            started: Instant::now(),
            ended: None,
            used_ns: 0,
            account,
        })
    }

    pub fn tick(&mut self) {
        if self.ended.is_none() && self.process.finished() {
            self.ended = Some(self.started.elapsed());
        }
        self.cgroup.follow();
        self.used_ns = self.cgroup.group.usage_ns().unwrap_or(self.used_ns);
        self.emulator.tick(self.cgroup.vcpu().as_ref(), self.used_ns, self.cgroup.own_limit());
    }

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

    /// Lets it go, ends it if need be, and gives what `exec` noted about its limit.
    pub fn finish(&mut self) -> Vec<String> {
        self.end();
        let account = fs::read_to_string(&self.account).unwrap_or_default();
        let account: Option<serde_json::Value> = serde_json::from_str(&account).ok();
        let notes = account.as_ref().and_then(|account| account["notes"].as_array());
        notes.into_iter().flatten().filter_map(|note| note.as_str().map(str::to_owned)).collect()
    }

    fn end(&mut self) {
        if let Some(vcpu) = self.cgroup.vcpu() {
            self.emulator.release(&vcpu);
        }
        self.process.ask_to_end(0);
        while !self.process.finished() {
            self.cgroup.leave();
            std::thread::sleep(TICK);
        }
        self.cgroup.clear();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The command first: a cgroup with members cannot be removed.
        self.end();
    }
}
