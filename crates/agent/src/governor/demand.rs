//! How much CPU processes want: the time in which their tasks ran or were runnable.
//!
//! Each of its threads: what `schedstat` counts as run and as waited. A thread that waits all along is counted by the
//! kernel only when it runs again, so one that is runnable (state R) at two looks in a row wants all the time between.

use std::collections::BTreeMap;
use std::fs;

use evenkeel_kernfs::schedstat;

/// Most threads looked at; more are as good as all CPUs wanted.
const MOST: usize = 512;

/// Follows the threads of some processes.
#[derive(Debug, Default)]
pub struct Demand {
    seen: BTreeMap<u32, Thread>,
}

#[derive(Debug, Clone, Copy)]
struct Thread {
    /// Run and waited, nanoseconds.
    counted: u64,
    runnable: bool,
}

impl Demand {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Time wanted by all threads of these processes since the last look, `seconds` ago, in CPU seconds.
    pub fn look(&mut self, processes: impl IntoIterator<Item = u32>, seconds: f64) -> f64 {
        let mut wanted = 0.0;
        let mut now = BTreeMap::new();
        for pid in processes {
            for tid in threads(pid) {
                if now.len() >= MOST {
                    break;
                }
                let Some(thread) = read(pid, tid) else { continue };
                wanted += match self.seen.get(&tid) {
                    Some(before) if before.runnable && thread.runnable => seconds,
                    Some(before) => (thread.counted.saturating_sub(before.counted) as f64 / 1e9).min(seconds),
                    // Young: it cannot have wanted more than it has counted.
                    None => (thread.counted as f64 / 1e9).min(seconds),
                };
                now.insert(tid, thread);
            }
        }
        self.seen = now;
        wanted
    }
}

fn threads(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn read(pid: u32, tid: u32) -> Option<Thread> {
    let dir = format!("/proc/{pid}/task/{tid}");
    let counted = schedstat::parse_bytes(&fs::read(format!("{dir}/schedstat")).ok()?)?;
    let stat = fs::read_to_string(format!("{dir}/stat")).ok()?;
    // The name may hold anything; the state follows its last parenthesis.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())?;
    Some(Thread { counted: counted.ran_ns.saturating_add(counted.waited_ns), runnable: state == 'R' })
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
        let wanted = demand.look(pids, seconds);
        for child in [&mut spinning, &mut sleeping] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!((0.8 * seconds..=1.05 * seconds).contains(&wanted), "{wanted} of {seconds}");
    }
}
