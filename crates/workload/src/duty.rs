//! `duty`: wants a given share of one CPU, period by period.
//!
//! Each period D is drawn uniformly from D*(1±J); its work is c = P/100 * D of CPU time. What happens when others
//! hold the CPU is the kind:
//!
//! ```text
//! wall    |####..|####..|     spins until the wall clock says start + c: time lost to others is lost
//! closed  |##--##..|####..|   spins until it got c of CPU time, then sleeps D - c: waiting (-) stretches the period
//! open    |####..|##--##|..   work arrives at fixed instants; what is not done in time is a backlog, kept
//! ```
//!
//! Equal fixed periods (J = 0) of several loads fall into step after a while, which flatters every scheduler: the
//! default jitter is 50 %.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use super::Workload;
use crate::burn::{CHUNK_NS, duration_ns};
use crate::load::{Context, LoadError};

/// Most CPU time an open load keeps as backlog, nanoseconds: work beyond it is dropped, and counted as such.
pub const BACKLOG_BOUND_NS: u64 = 10_000_000_000;

evenkeel_base::named! {
/// What happens to the work when others hold the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DutyKind {
    /// Time lost to others is lost.
    Wall = "wall",
    /// Waiting stretches the period.
    Closed = "closed",
    /// Work not done in time is a backlog.
    Open = "open",
}
}

/// Parameters of a duty load.
#[derive(Debug, Clone, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Duty {
    /// CPU time wanted, percent of ONE CPU, above 0 and at most 100.
    #[arg(long, value_name = "P")]
    pub percent: f64,
    /// Length of a period.
    #[serde(rename = "period_s", with = "crate::burn::seconds")]
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = humantime::parse_duration)]
    pub period: Duration,
    /// How far each period is drawn from the given one, percent of it, 0 to 100.
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0, value_parser = parse_percent)]
    pub jitter: f64,
    /// wall: time lost to others is lost; closed: waiting stretches the period; open: a backlog is kept.
    #[arg(long, value_enum, default_value_t = DutyKind::Closed)]
    pub kind: DutyKind,
    /// Seed of the periods' random numbers; the same seed gives the same periods.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A percentage, with or without the sign.
pub(crate) fn parse_percent(text: &str) -> Result<f64, String> {
    text.trim().trim_end_matches('%').trim_end().parse().map_err(|_| "expected a percentage".to_owned())
}

/// The clocks and the CPU a duty load runs on; virtual in tests, so that what the kinds mean is proven without
/// waiting.
pub trait Machine {
    /// Monotonic time, nanoseconds.
    fn now_ns(&mut self) -> u64;
    /// The thread's CPU time, nanoseconds.
    fn cpu_ns(&mut self) -> u64;
    /// Uses about so much CPU time, nanoseconds.
    fn burn(&mut self, ns: u64);
    /// Sleeps until an instant of [`Machine::now_ns`]; may return early.
    fn sleep_until(&mut self, at_ns: u64);
    /// Whether the load is to end.
    fn over(&mut self) -> bool;
    /// May another cycle begin? Counts it if so.
    fn begin_cycle(&mut self) -> bool;
    /// CPU time the cycle just begun asks for, nanoseconds.
    fn wants(&mut self, ns: u64);
    /// CPU time of work that was dropped, nanoseconds.
    fn drops(&mut self, ns: u64);
}

/// The periods of a load and the CPU time each asks for: a pure function of the seed.
#[derive(Debug, Clone)]
pub struct Periods {
    random: rand_pcg::Pcg64,
    share: f64,
    low_ns: f64,
    high_ns: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Its length, nanoseconds.
    pub length_ns: u64,
    /// CPU time wanted in it, nanoseconds.
    pub work_ns: u64,
}

impl Periods {
    /// Of this length, each drawn within `jitter_pct` of it, and with work of `work_pct` of it; a thread draws its own.
    pub fn new(period: Duration, jitter_pct: f64, work_pct: f64, (seed, thread): (u64, u32)) -> Self {
        let (period, jitter) = (duration_ns(period) as f64, jitter_pct / 100.0);
        Self {
            random: rand_pcg::Pcg64::seed_from_u64(seed.wrapping_add(u64::from(thread) << 32)),
            share: work_pct / 100.0,
            low_ns: period * (1.0 - jitter),
            high_ns: period * (1.0 + jitter),
        }
    }
}

impl Iterator for Periods {
    type Item = Period;

    fn next(&mut self) -> Option<Period> {
        let at: f64 = self.random.random();
        let length = self.low_ns + (self.high_ns - self.low_ns) * at;
        Some(Period { length_ns: length as u64, work_ns: (length * self.share) as u64 })
    }
}

impl Duty {
    /// The periods of one of its threads.
    pub fn periods(&self, thread: u32) -> Periods {
        Periods::new(self.period, self.jitter, self.percent, (self.seed, thread))
    }

    /// Runs one thread on a machine until it is over.
    pub fn run_on(&self, periods: Periods, machine: &mut impl Machine) {
        match self.kind {
            DutyKind::Wall => run_wall(periods, machine),
            DutyKind::Closed => run_closed(periods, machine),
            DutyKind::Open => run_open(periods, machine),
        }
    }
}

fn run_wall(periods: Periods, machine: &mut impl Machine) {
    for period in periods {
        if machine.over() || !machine.begin_cycle() {
            return;
        }
        machine.wants(period.work_ns);
        let start = machine.now_ns();
        let until = start + period.work_ns;
        let mut now = start;
        while now < until {
            machine.burn((until - now).min(CHUNK_NS));
            if machine.over() {
                return;
            }
            now = machine.now_ns();
        }
        machine.sleep_until(now + (period.length_ns - period.work_ns));
    }
}

fn run_closed(periods: Periods, machine: &mut impl Machine) {
    // The target moves on by c each cycle, from the target before: the little CPU time that waking, sleeping and
    // overshooting cost is part of the work, so that an undisturbed load gets what it wants exactly.
    let mut target = machine.cpu_ns();
    for period in periods {
        if machine.over() || !machine.begin_cycle() {
            return;
        }
        machine.wants(period.work_ns);
        target += period.work_ns;
        if !burn_to(target, machine) {
            return;
        }
        let now = machine.now_ns();
        machine.sleep_until(now + (period.length_ns - period.work_ns));
    }
}

fn run_open(periods: Periods, machine: &mut impl Machine) {
    let mut target = machine.cpu_ns();
    let mut arrival = machine.now_ns();
    for period in periods {
        // Work off what is there until the next arrival, or sleep until then.
        loop {
            let now = machine.now_ns();
            if now >= arrival {
                break;
            }
            if machine.over() {
                return;
            }
            let cpu = machine.cpu_ns();
            if cpu < target {
                machine.burn((target - cpu).min(CHUNK_NS).min(arrival - now));
            } else {
                machine.sleep_until(arrival);
            }
        }
        if machine.over() || !machine.begin_cycle() {
            break;
        }
        machine.wants(period.work_ns);
        let backlog = target.saturating_sub(machine.cpu_ns()) + period.work_ns;
        let excess = backlog.saturating_sub(BACKLOG_BOUND_NS);
        if excess > 0 {
            machine.drops(excess);
        }
        target += period.work_ns - excess.min(period.work_ns);
        arrival += period.length_ns;
    }
    // Out of events, not of time: the work that arrived is still owed.
    burn_to(target, machine);
}

/// Burns until the CPU clock reaches the target; `false` when the load is over before.
fn burn_to(target: u64, machine: &mut impl Machine) -> bool {
    loop {
        let cpu = machine.cpu_ns();
        if cpu >= target {
            return true;
        }
        if machine.over() {
            return false;
        }
        machine.burn((target - cpu).min(CHUNK_NS));
    }
}

impl Workload for Duty {
    fn check(&self) -> Result<(), String> {
        if !(self.percent > 0.0 && self.percent <= 100.0) {
            return Err(format!(
                "--percent {}: a thread can want more than 0 and at most 100 percent of one CPU; use --threads for more",
                self.percent
            ));
        }
        if !(0.0..=100.0).contains(&self.jitter) {
            return Err(format!("--jitter {}: expected 0 to 100 percent", self.jitter));
        }
        if self.period < Duration::from_micros(100) || self.period > Duration::from_secs(3600) {
            return Err(format!("--period {:?}: expected 100us to 1h", self.period));
        }
        Ok(())
    }

    fn wanted_pct(&self) -> Option<f64> {
        Some(self.percent)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        self.run_on(self.periods(context.thread()), context);
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        vec![
            "duty".into(),
            format!("--percent={}", self.percent),
            format!("--period={}ns", duration_ns(self.period)),
            format!("--jitter={}", self.jitter),
            format!("--kind={}", self.kind),
            format!("--seed={}", self.seed),
        ]
    }
}

#[cfg(test)]
#[path = "duty_tests.rs"]
mod tests;
