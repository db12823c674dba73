//! Is this process still there, and is it the same one?

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::Root;
use crate::pid_stat::{self, PidStat};

/// Whether this process is in the first pid namespace, where it sees every process of the host under the host's number
/// (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
pub fn sees_every_process() -> io::Result<bool> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino() == 0xEFFF_FFFC)
}

/// When a thread started, clock ticks since boot: field 22 of its `stat`.
pub fn start_time(pid: u32, tid: u32) -> io::Result<u64> {
    Ok(stat(pid, tid)?.start_time)
}

/// Whether a process lives. One that ended and waits for its parent to notice does not: its parent may never.
pub fn is_alive(pid: u32) -> bool {
    stat(pid, pid).is_ok_and(|stat| lives(&stat))
}

/// Whether the one process with this start time (clock ticks since boot) lives: numbers are used again.
pub fn is_alive_since(pid: u32, start_time: u64) -> bool {
    stat(pid, pid).is_ok_and(|stat| stat.start_time == start_time && lives(&stat))
}

/// Numbers of the processes of this host, ascending; none where they cannot be read.
pub fn all() -> Vec<u32> {
    Root::host().numbers("proc").unwrap_or_default()
}

/// Numbers of a process's threads, ascending; none when it is gone.
pub fn threads(pid: u32) -> Vec<u32> {
    Root::host().numbers(format!("proc/{pid}/task")).unwrap_or_default()
}

/// What its `stat` says of a thread.
pub fn stat(pid: u32, tid: u32) -> io::Result<PidStat> {
    let path = format!("/proc/{pid}/task/{tid}/stat");
    // A name may hold any bytes.
    let text = fs::read(&path)?;
    pid_stat::parse(&String::from_utf8_lossy(&text))
        .map_err(|error| io::Error::other(format!("{path}: {error}")))
}

/// A leader whose other threads go on is a zombie by its state, and lives.
fn lives(stat: &PidStat) -> bool {
    stat.threads > 1 || !matches!(stat.state, 'Z' | 'X')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn who_only_waits_to_be_noticed_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (pid, own) = (child.id(), std::process::id());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while is_alive(pid) && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(fs::exists(format!("/proc/{pid}")).unwrap(), "not yet waited for");
        assert!(!is_alive(pid) && !is_alive_since(pid, start_time(pid, pid).unwrap()));
        child.wait().unwrap();
        assert!(is_alive(own) && is_alive_since(own, start_time(own, own).unwrap()));
        assert!(!is_alive_since(own, 1), "another process of this number");
    }

    #[test]
    fn our_own_start_time_is_found() {
        let me = std::process::id();
        assert!(start_time(me, me).unwrap() > 0);
        assert!(start_time(me, 0x7fff_fff0).is_err());
    }
}
