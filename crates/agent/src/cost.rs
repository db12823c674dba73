//! The agent's own cost.

use std::time::Instant;

use evenkeel_base::run::SelfCost;

/// Reads what this process has used since it was made.
#[derive(Debug)]
pub struct OwnCost {
    since: Instant,
    used_s: Option<f64>,
}

impl OwnCost {
    pub fn start() -> Self {
        Self { since: Instant::now(), used_s: cpu_seconds() }
    }

    /// CPU since the start and memory now.
    pub fn read(&self) -> SelfCost {
        let elapsed = self.since.elapsed().as_secs_f64();
        let cpu_pct = cpu_seconds()
            .zip(self.used_s)
            .filter(|_| elapsed > 0.0)
            .map(|(now, then)| 100.0 * (now - then).max(0.0) / elapsed);
        SelfCost { cpu_pct, rss_bytes: resident() }
    }
}

/// CPU time of all threads of this process, seconds.
pub fn cpu_seconds() -> Option<f64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Resident set of this process, bytes.
pub fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
