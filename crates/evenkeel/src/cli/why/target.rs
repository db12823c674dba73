//! What a target is to the kernel: cgroups where its borders are those of cgroups, else processes.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use evenkeel_agent::Scope;
use evenkeel_base::{Observation, TaskView, is_at_or_below};
use evenkeel_bpf::why::Watch;
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_linux::process::is_alive_since;
use evenkeel_observe::Observer;

use crate::cli::Failure;

/// Whom to watch, and how to tell that it is gone.
#[derive(Debug)]
pub(super) struct Aim {
    pub watch: Watch,
    /// Paths of the cgroups watched, below the cpu controller's mount; none when processes are.
    pub groups: Vec<String>,
    dirs: Vec<PathBuf>,
    /// Threads at the start, by process.
    pub tasks: Vec<TaskView>,
    /// Processes may come that belong to it.
    pub grows: bool,
}

impl Aim {
    pub fn all() -> Self {
        Self { watch: Watch::All, groups: Vec::new(), dirs: Vec::new(), tasks: Vec::new(), grows: false }
    }

    /// Finds the target among the tasks.
    pub fn find(
        root: &Root,
        observer: &Observer,
        observation: &Observation,
        scope: &Scope,
        text: &str,
    ) -> Result<Self, Failure> {
        let tasks: Vec<TaskView> =
            observation.tasks.iter().filter(|task| scope.has(task, observation)).cloned().collect();
        if tasks.is_empty() {
            let hint = match text.strip_prefix("pid:").and_then(|pid| pid.parse::<u32>().ok()) {
                Some(pid) if observation.tasks.iter().any(|task| task.id.tgid == pid) => {
                    "kernel threads, pid 1 and this program are not looked at"
                }
                // What belongs to no scope may be missing among the tasks though it exists.
                Some(1) => "pid 1 is not looked at: it belongs to no scope",
                Some(pid) if root.path(format!("proc/{pid}")).exists() => {
                    "kernel threads and this program are not looked at, nor a process that has just ended"
                }
                Some(_) => "no such process",
                None => "no task belongs to it now; `evenkeel ps --by container --all` lists what there is",
            };
            return Err(usage!("{text}: {hint}"));
        }
        let cpu = observer.hierarchies().and_then(|found| found.cpu.as_ref());
        if let Some((groups, ids, dirs)) =
            cpu.and_then(|cpu| groups(root, cpu, observation, scope, &tasks, text))
        {
            return Ok(Self { watch: Watch::Groups(ids), groups, dirs, tasks, grows: false });
        }
        let processes = processes(observation, scope).into_iter().collect();
        let grows = !text.starts_with("pid:");
        Ok(Self { watch: Watch::Processes(processes), groups: Vec::new(), dirs: Vec::new(), tasks, grows })
    }

    /// Processes of the target at the start, with their start times.
    pub fn processes(&self) -> BTreeSet<(u32, u64)> {
        match &self.watch {
            Watch::Processes(processes) => processes.iter().copied().collect(),
            _ => BTreeSet::new(),
        }
    }

    /// Whether nothing of it is left and nothing can come.
    pub fn is_gone(&self, known: &BTreeSet<(u32, u64)>) -> bool {
        match &self.watch {
            Watch::All | Watch::Scopes => false,
            Watch::Groups(_) => !self.dirs.iter().any(|dir| dir.is_dir()),
            // Of compilers, say, there are none for a moment, and then others.
            Watch::Processes(_) if self.grows => false,
            Watch::Processes(_) => !known.iter().any(|(tgid, start)| is_alive_since(*tgid, *start)),
        }
    }
}

/// Processes of a scope with the start times of their main threads.
pub(super) fn processes(observation: &Observation, scope: &Scope) -> BTreeSet<(u32, u64)> {
    let main = |task: &&TaskView| task.id.tid == task.id.tgid && scope.has(task, observation);
    observation.tasks.iter().filter(main).map(|task| (task.id.tgid, task.id.start_time)).collect()
}

/// The cgroups that hold the target's tasks and no others, with their directories' inode numbers; `None` when its borders
/// are not theirs.
fn groups(
    root: &Root,
    cpu: &Hierarchy,
    observation: &Observation,
    scope: &Scope,
    tasks: &[TaskView],
    text: &str,
) -> Option<(Vec<String>, Vec<u64>, Vec<PathBuf>)> {
    let group_path = |index: Option<u32>| Some(observation.groups.get(index? as usize)?.path.clone());
    let mut paths = BTreeSet::new();
    match text.split_once(':')? {
        ("cgroup", path) => {
            paths.insert(if path == "/" { path.to_owned() } else { path.trim_end_matches('/').to_owned() });
        }
        ("container", _) => {
            for task in tasks {
                paths.insert(group_path(observation.containers.get(task.container? as usize)?.group)?);
            }
        }
        ("pod", _) => {
            for task in tasks {
                let pod = observation.pods.get(task.pod? as usize)?;
                match group_path(pod.group) {
                    Some(path) => paths.insert(path),
                    None => {
                        paths.insert(group_path(observation.containers.get(task.container? as usize)?.group)?)
                    }
                };
            }
        }
        _ => return None,
    }
    let within = |path: &str| paths.iter().any(|group| is_at_or_below(path, group));
    let fits = |task: &TaskView| {
        let inside = group_path(task.group).is_some_and(|path| within(&path));
        inside == scope.has(task, observation)
    };
    if !observation.tasks.iter().filter(|task| !task.kernel_thread).all(|task| fits(task) || never(task)) {
        return None;
    }
    let mut ids = Vec::new();
    let mut dirs = Vec::new();
    for path in &paths {
        let dir = root.path(cpu.dir(path));
        // On v2 a group without the controller is none to the scheduler.
        if cpu.v2 && path != "/" && !dir.join("cpu.weight").exists() {
            return None;
        }
        ids.push(std::fs::metadata(&dir).ok()?.ino());
        dirs.push(dir);
    }
    Some((paths.into_iter().collect(), ids, dirs))
}

/// Pid 1 and this program belong to no scope, wherever they are.
fn never(task: &TaskView) -> bool {
    task.id.tgid == 1 || task.id.tgid == std::process::id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_whose_processes_come_and_go_is_not_gone_with_the_first() {
        let aim = |grows| Aim { watch: Watch::Processes(vec![(u32::MAX, 1)]), grows, ..Aim::all() };
        let is_gone = |aim: Aim| aim.is_gone(&aim.processes());
        assert!(is_gone(aim(false)) && !is_gone(aim(true)));
    }

    #[test]
    fn a_process_whose_name_is_no_text_is_there_until_it_ends() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(std::ffi::OsStr::from_bytes(b"sl\xffep"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let start = evenkeel_linux::process::start_time(child.id(), child.id()).unwrap();
        let aim = Aim { watch: Watch::Processes(vec![(child.id(), start)]), grows: false, ..Aim::all() };
        let there = !aim.is_gone(&aim.processes());
        child.kill().unwrap();
        let ended = aim.is_gone(&aim.processes());
        child.wait().unwrap();
        assert!(there, "it was called gone though it sleeps");
        // Killed, it is a zombie at the latest when its signal is served.
        assert!(ended || aim.is_gone(&aim.processes()));
    }
}
