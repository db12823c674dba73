//! How much CPU processes want: the time in which their tasks ran or were runnable.
//!
//! Each of its threads: what `schedstat` counts as run and as waited. A thread that waits all along is counted by the
//! kernel only when it runs again, so one that is runnable (state R) at two looks in a row wants all the time between.

use std::collections::BTreeMap;
use std::fs;

use evenkeel_linux::process::threads;
use evenkeel_linux::{pid_stat, schedstat};

/// Most threads looked at; more are as good as all CPUs wanted.
const MOST: usize = 512;

/// What threads that are on one CPU now did since the last look, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OnCpu {
    pub ran_s: f64,
    /// Ran or were runnable, summed over threads.
    pub wanted_s: f64,
}

/// Follows the threads of some processes.
#[derive(Debug, Default)]
pub struct Demand {
    seen: BTreeMap<u32, Thread>,
}

#[derive(Debug, Clone, Copy)]
struct Thread {
    /// Nanoseconds.
    ran: u64,
    waited: u64,
    runnable: bool,
    cpu: u32,
}

impl Demand {
    pub fn new() -> Self {
        Self::default()
    }

    /// What all threads of these processes did since the last look, `seconds` ago, by the CPU they are on.
    pub fn look(&mut self, processes: impl IntoIterator<Item = u32>, seconds: f64) -> BTreeMap<u32, OnCpu> {
        let mut by_cpu: BTreeMap<u32, OnCpu> = BTreeMap::new();
        let mut now = BTreeMap::new();
        let all = processes.into_iter().flat_map(|pid| threads(pid).into_iter().map(move |tid| (pid, tid)));
        for (pid, tid) in all.take(MOST) {
            let Some(thread) = read(pid, tid) else { continue };
            let before = self.seen.get(&tid).copied();
            // Young: it cannot have done more than it has counted.
            let since = |now: u64, then: Option<u64>| {
                (now.saturating_sub(then.unwrap_or(0)) as f64 / 1e9).min(seconds)
            };
            let ran_s = since(thread.ran, before.map(|t| t.ran));
            let counted = ran_s + since(thread.waited, before.map(|t| t.waited));
            let all_along = before.is_some_and(|before| before.runnable && thread.runnable);
            let on = by_cpu.entry(thread.cpu).or_default();
            on.ran_s += ran_s;
            on.wanted_s += if all_along { seconds } else { counted.min(seconds) };
            now.insert(tid, thread);
        }
        self.seen = now;
        by_cpu
    }
}

fn read(pid: u32, tid: u32) -> Option<Thread> {
    let dir = format!("/proc/{pid}/task/{tid}");
    let counted = schedstat::parse_bytes(&fs::read(format!("{dir}/schedstat")).ok()?)?;
    let stat = fs::read(format!("{dir}/stat")).ok()?;
    let (runnable, cpu) = (pid_stat::state(&stat)? == 'R', pid_stat::comm_and_cpu(&stat)?.1);
    Some(Thread { ran: counted.ran_ns, waited: counted.waited_ns, runnable, cpu })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn a_spinning_child_wants_its_time_and_a_sleeping_one_none() {
        let start =
            |script: &str| Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
        let mut spinning = start("while :; do :; done");
        let mut sleeping = start("exec sleep 60");
        let pids = [spinning.id(), sleeping.id()];
        let mut demand = Demand::new();
        std::thread::sleep(Duration::from_millis(200));
        demand.look(pids, 0.0);
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(400));
        let seconds = began.elapsed().as_secs_f64();
        let wanted: f64 = demand.look(pids, seconds).values().map(|on| on.wanted_s).sum();
        for child in [&mut spinning, &mut sleeping] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!((0.8 * seconds..=1.05 * seconds).contains(&wanted), "{wanted} of {seconds}");
    }
}
