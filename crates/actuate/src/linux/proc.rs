//! The few facts of `/proc` that say who a task is.

use std::collections::BTreeSet;
use std::io;

use evenkeel_base::{CpuSet, SchedPolicy, TaskId};
use evenkeel_linux::pid_stat::{self, PidStat};

use super::of_file;
use crate::kernel::{Born, KernelError, TaskFacts};

/// Names of processes known to take in orphans: users' managers and containers' monitors.
const REAPERS: [&str; 4] = ["systemd", "containerd-shim", "conmon", "podman"];

fn read_stat(path: &str) -> Result<Option<PidStat>, KernelError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    // A task's name may hold any byte.
    match pid_stat::parse(&String::from_utf8_lossy(&bytes)) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) => {
            Err(KernelError::Io { path: path.to_owned(), error: error.at(path.as_ref()).to_string() })
        }
    }
}

/// `None` when the task is no more.
fn read(path: &str) -> Result<Option<Vec<u8>>, KernelError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(of_file(&error, path)),
    }
}

/// The path of a task's cpuset, as its hierarchy has it; empty on a kernel without cpusets.
pub(super) fn cpuset(id: TaskId) -> Result<String, KernelError> {
    let dir = format!("/proc/{}/task/{}", id.tgid, id.tid);
    match std::fs::read_to_string(format!("{dir}/cpuset")) {
        Ok(text) => Ok(text.trim_end_matches('\n').to_owned()),
        Err(_) if !std::path::Path::new(&dir).exists() => Err(KernelError::Gone),
        Err(_) => Ok(String::new()),
    }
}

/// Start time of a thread; `None` when there is none of that number in that process.
pub(super) fn start_time(tgid: u32, tid: u32) -> Result<Option<u64>, KernelError> {
    Ok(read_stat(&format!("/proc/{tgid}/task/{tid}/stat"))?.map(|stat| stat.start_time))
}

/// Everything about the thread of this number.
pub(super) fn facts(tid: u32) -> Result<TaskFacts, KernelError> {
    let status = read(&format!("/proc/{tid}/status"))?.ok_or(KernelError::Gone)?;
    let tgid = String::from_utf8_lossy(&status)
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
        .ok_or(KernelError::Gone)?;
    let mut facts = facts_in("/proc", tgid, tid)?.ok_or(KernelError::Gone)?;
    let first_of_namespace = String::from_utf8_lossy(&status).lines().any(|line| {
        line.strip_prefix("NSpid:").is_some_and(|l| l.split_ascii_whitespace().last() == Some("1"))
    });
    facts.reaper = first_of_namespace || REAPERS.iter().any(|name| facts.comm.starts_with(name));
    Ok(facts)
}

fn facts_in(proc: &str, tgid: u32, tid: u32) -> Result<Option<TaskFacts>, KernelError> {
    let dir = format!("{proc}/{tgid}/task/{tid}");
    let Some(stat) = read_stat(&format!("{dir}/stat"))? else { return Ok(None) };
    let cgroup = read(&format!("{dir}/cgroup")).ok().flatten().unwrap_or_default();
    Ok(Some(TaskFacts {
        id: TaskId { tgid, tid, start_time: stat.start_time },
        ppid: stat.ppid,
        process_group: stat.process_group,
        session: stat.session,
        comm: stat.comm,
        kernel_thread: stat.kernel_thread,
        policy: stat.policy.and_then(SchedPolicy::from_raw),
        cgroup: String::from_utf8_lossy(&cgroup).into_owned(),
        reaper: false,
        busy: matches!(stat.state, 'R' | 'D'),
        image: stat.start_stack,
    }))
}

/// The number given to the newest task (last field of `loadavg`): it changes with every fork.
pub(super) fn last_pid() -> Option<u64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().last()?.parse().ok()
}

pub(super) fn online_cpus() -> Result<CpuSet, KernelError> {
    let path = "/sys/devices/system/cpu/online";
    let text = std::fs::read_to_string(path).map_err(|error| of_file(&error, path))?;
    text.parse().map_err(|error| KernelError::Io { path: path.to_owned(), error: format!("{error}") })
}

fn numbers(dir: &str) -> Result<Vec<u32>, KernelError> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(of_file(&error, dir)),
    };
    for entry in entries {
        // A task that ends while its directory is read cuts the listing short: what was read counts.
        let Ok(entry) = entry else { break };
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push(number);
        }
    }
    Ok(found)
}

pub(super) fn born_since(proc: &str, since: u64, processes: &BTreeSet<u32>) -> Result<Born, KernelError> {
    let mut born = Born::default();
    for tgid in numbers(proc)? {
        let Some(stat) = seen(read_stat(&format!("{proc}/{tgid}/stat")), &mut born.unseen) else { continue };
        let young = stat.start_time >= since;
        if stat.kernel_thread || !(young || processes.contains(&tgid)) {
            continue;
        }
        for tid in numbers(&format!("{proc}/{tgid}/task"))? {
            let facts = seen(facts_in(proc, tgid, tid), &mut born.unseen);
            born.tasks.extend(facts.filter(|facts| facts.id.start_time >= since));
        }
    }
    Ok(born)
}

/// What was found, if anything. Whom `hidepid=1` hides from evenkeel, evenkeel neither changes nor restores.
fn seen<T>(found: Result<Option<T>, KernelError>, unseen: &mut Option<KernelError>) -> Option<T> {
    match found {
        Ok(found) => found,
        Err(KernelError::Gone | KernelError::Denied(_)) => None,
        Err(error) => {
            unseen.get_or_insert(error);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_thread_is_found() {
        let own = facts(std::process::id()).unwrap();
        assert_eq!(own.id.tgid, std::process::id());
        assert!(!own.kernel_thread && own.ppid > 0);
        std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let thread = facts(tid).unwrap();
            assert!(!thread.reaper && facts(1).unwrap().reaper);
            assert_eq!((thread.id.tid, thread.id.tgid), (tid, std::process::id()));
            assert!(thread.busy);
            let since = thread.id.start_time;
            let born = born_since("/proc", since, &BTreeSet::from([std::process::id()])).unwrap();
            assert!(born.tasks.contains(&thread) && born.unseen.is_none(), "{born:?}");
        })
        .join()
        .unwrap();
        assert_eq!(facts(u32::MAX >> 3), Err(KernelError::Gone));
    }

    #[test]
    fn whose_stat_cannot_be_read_is_unseen_and_hides_no_one() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let proc = tempfile::tempdir().unwrap();
        let make = |path: &str, text: &str| {
            let path = proc.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        make("8/stat", &stat);
        make("8/task/8/stat", &stat);
        let born = || born_since(proc.path().to_str().unwrap(), 0, &BTreeSet::new()).unwrap();
        // One ended after its name was read.
        std::fs::create_dir(proc.path().join("7")).unwrap();
        assert!(born().tasks.len() == 1 && born().unseen.is_none(), "{:?}", born());
        make("8/task/9/stat", "9 (half");
        assert!(born().tasks.len() == 1 && born().unseen.is_some(), "{:?}", born());
        std::fs::remove_file(proc.path().join("8/task/9/stat")).unwrap();
        make("7/stat", "7 (half");
        assert!(born().tasks.len() == 1 && born().unseen.is_some(), "{:?}", born());
    }
}
