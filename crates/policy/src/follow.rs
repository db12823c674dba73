//! What services need of a quota that they share with background work, from one hundredth of a second to the next.
//!
//! Over a period of the quota their need is what they used in the hungriest stretch as long as a period, of those remembered: what
//! counts for the quota is how much is used in a period, not when in it. But a jump of the load is not waited for that long. A window is
//! unusual when more is used in it than in any before, with a margin; or when two in a row have less than half of the least, after a
//! whole period that had no window without use. Then what was before is forgotten. Until a period has passed since, the need is what was
//! used in the hungriest of its windows.
//!
//! Whoever is held back by a quota uses less than it needs. With the margin ([`NEED`]) the need that is seen grows from period to period
//! until nobody is held back.

use evenkeel_base::CpuQuota;

use crate::levers::NEED;

/// What is left is said in steps of this part of the quota. A smaller change is not worth a write: each gives background work a new quota
/// at once (`tg_set_cfs_bandwidth`, `kernel/sched/core.c`), and all values that were written are remembered for undoing.
const STEP: f64 = 0.05;
/// More than usual: by this factor, and this much, thousandths of one CPU.
const MORE: (f64, f64) = (1.25, 100.0);
/// Less than usual: by this factor.
const LESS: f64 = 0.5;
/// Use that is steady enough for less to be unusual, thousandths of one CPU. Running tasks are accounted at ticks, up to 10 ms apart.
const STEADY: f64 = 150.0;
/// A shorter window is a second look at little use, microseconds: of one task that always runs it may have one tick or two, which is no
/// measure of the most that is used.
const WHOLE_US: u32 = 8_000;

/// Use in a short stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its length, microseconds.
    pub took_us: u32,
    /// CPU used in it, microseconds.
    pub used_us: u32,
}

impl Window {
    /// Thousandths of one CPU.
    fn rate(&self) -> f64 {
        1000.0 * f64::from(self.used_us) / f64::from(self.took_us.max(1))
    }

    fn is_whole(&self) -> bool {
        self.took_us >= WHOLE_US
    }
}

/// Windows that are not unusual, thousandths of one CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usual {
    pub least: f64,
    pub most: f64,
}

impl Usual {
    const ALL: Self = Self { least: 0.0, most: f64::INFINITY };

    fn has(&self, window: &Window) -> bool {
        (self.least..=self.most).contains(&window.rate())
    }
}

/// Follows the need of services.
#[derive(Debug)]
pub struct Follower {
    quota_pct: f64,
    period_us: u64,
    /// Number of the first window that counts.
    since: u64,
    usual: Usual,
    left_pct: f64,
    /// Length of what has been seen since what is left was last said to be more.
    raised_us: u64,
    seen: u64,
}

impl Follower {
    /// For a quota of which this is left, percent of one CPU. `None` without a quota.
    pub fn new(quota: &CpuQuota, left_pct: f64) -> Option<Self> {
        let quota_pct = quota.pct()?;
        let period_us = quota.period_usec;
        Some(Self { quota_pct, period_us, since: 0, usual: Usual::ALL, left_pct, raised_us: 0, seen: 0 })
    }

    /// What is in force is for so much left.
    pub fn is_set(&mut self, left_pct: f64) {
        self.left_pct = left_pct;
    }

    /// Windows that need no second look.
    pub fn usual(&self) -> Usual {
        self.usual
    }

    /// The number of windows so far, and the last of them, oldest first. Returns what is left, percent of one CPU, when that is to be
    /// set.
    pub fn look(&mut self, ended: u64, windows: &[Window]) -> Option<f64> {
        let first = ended - windows.len() as u64;
        let new = self.seen.max(first);
        let mut gives_back = false;
        for number in new..ended {
            let window = &windows[(number - first) as usize];
            self.raised_us += u64::from(window.took_us);
            if self.usual.has(window) {
                continue;
            }
            let before = (number > first).then(|| &windows[(number - first) as usize - 1]);
            if window.rate() > self.usual.most {
                if !window.is_whole() {
                    continue;
                }
                self.forget_before(number);
                gives_back = false;
            } else if before.is_some_and(|before| number > self.since && before.rate() < self.usual.least) {
                self.forget_before(number - 1);
                gives_back = true;
            }
        }
        self.seen = ended;
        let counted = &windows[windows.len() - (ended - self.since.max(first)) as usize..];
        let whole = length(counted) >= self.period_us;
        if !whole && self.since == 0 {
            return None;
        }
        let need = if whole { hungriest_period(counted, self.period_us) } else { most(counted) };
        // One window without use may be the first of two.
        if counted.last().is_none_or(|last| self.usual.has(last)) {
            self.usual = usual(counted, whole);
        }
        let step = STEP * self.quota_pct;
        let left_pct = ((self.quota_pct - NEED * need / 10.0).max(0.0) / step).floor() * step;
        self.is_worth(left_pct, gives_back).then(|| {
            if left_pct > self.left_pct {
                self.raised_us = 0;
            }
            self.left_pct = left_pct;
            left_pct
        })
    }

    fn forget_before(&mut self, number: u64) {
        self.since = number;
        self.usual = Usual::ALL;
    }

    /// Less is said at once, more once in a period: each time background work gets a new quota.
    fn is_worth(&self, left_pct: f64, gives_back: bool) -> bool {
        let change = left_pct - self.left_pct;
        let lets_go = gives_back || self.raised_us >= self.period_us;
        change.abs() >= STEP * self.quota_pct && (change < 0.0 || lets_go)
    }
}

fn length(windows: &[Window]) -> u64 {
    windows.iter().map(|window| u64::from(window.took_us)).sum()
}

fn most(windows: &[Window]) -> f64 {
    windows.iter().map(Window::rate).fold(0.0, f64::max)
}

fn usual(windows: &[Window], whole: bool) -> Usual {
    let least = windows.iter().map(Window::rate).fold(f64::INFINITY, f64::min);
    let steady = whole && least >= STEADY;
    let long: Vec<Window> = windows.iter().filter(|window| window.is_whole()).copied().collect();
    // Directly after the end of a jump there may be none yet that lasts.
    let most = most(if long.is_empty() { windows } else { &long });
    Usual { least: if steady { LESS * least } else { 0.0 }, most: MORE.0 * most + MORE.1 }
}

/// Mean use of the stretch in which most is used, of those just as long as a period, thousandths of one CPU.
pub fn hungriest_period(windows: &[Window], period_us: u64) -> f64 {
    let (mut took, mut used, mut begin) = (0, 0, 0);
    let mut most = 0.0_f64;
    for window in windows {
        took += u64::from(window.took_us);
        used += u64::from(window.used_us);
        while took - u64::from(windows[begin].took_us) >= period_us {
            took -= u64::from(windows[begin].took_us);
            used -= u64::from(windows[begin].used_us);
            begin += 1;
        }
        if took >= period_us {
            most = most.max(1000.0 * used as f64 / took as f64);
        }
    }
    most
}

#[cfg(test)]
mod tests;
