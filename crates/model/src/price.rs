//! What a job takes and costs on a machine whose rule about CPU use is known: wall-clock time by [`crate::credit`], the CPU limit
//! that makes it shortest, and money by the hour.

pub mod file;

use crate::credit::{self, Job, Outcome, Rule};
use crate::families::Family;

/// CPU minutes of a job at most: nearly two years of one CPU.
pub const MAX_CPU_MINUTES: f64 = 1e6;
/// Threads of a job at most.
pub const MAX_THREADS: u32 = 4096;
/// Least share of the time in which a job may want the CPU.
pub const MIN_BUSY: f64 = 0.001;

/// A job, and how often it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    cpu_s: f64,
    threads: u32,
    busy: f64,
    every_s: Option<f64>,
}

/// What cannot be reckoned, and why.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AskError {
    #[error("{0} CPU minutes: a job needs more than 0 and at most {MAX_CPU_MINUTES}")]
    Minutes(f64),
    #[error("{0} threads: a job has 1 to {MAX_THREADS}")]
    Threads(u32),
    #[error("busy {0}: the share of the time in which a thread wants a CPU is {MIN_BUSY} to 1")]
    Busy(f64),
    #[error("every {0} s: the time from one start to the next is at least a second")]
    Every(f64),
}

impl Ask {
    /// A job of so many CPU minutes by so many threads, each of which wants a CPU for a share `busy` of the time. With
    /// `every_s` it starts again and again, that many seconds after its last start, on a machine that stays on; without, it runs
    /// once on a machine just started.
    pub fn new(cpu_minutes: f64, threads: u32, busy: f64, every_s: Option<f64>) -> Result<Self, AskError> {
        // Ranges hold no NaN.
        if cpu_minutes <= 0.0 || !(0.0..=MAX_CPU_MINUTES).contains(&cpu_minutes) {
            return Err(AskError::Minutes(cpu_minutes));
        }
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(AskError::Threads(threads));
        }
        if !(MIN_BUSY..=1.0).contains(&busy) {
            return Err(AskError::Busy(busy));
        }
        if let Some(s) = every_s.filter(|s| !(1.0..f64::INFINITY).contains(s)) {
            return Err(AskError::Every(s));
        }
        Ok(Self { cpu_s: 60.0 * cpu_minutes, threads, busy, every_s })
    }

    /// Seconds the machine is paid for when a run takes `run_s`: the run, or the whole interval for what runs every so often.
    pub fn paid_s(&self, run_s: f64) -> f64 {
        self.every_s.unwrap_or(run_s)
    }
}

/// A machine: CPUs and a rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// CPUs, at least 1.
    pub cpus: u32,
    pub rule: Rule,
    /// Whether the rule is each CPU's own, not the whole machine's.
    pub each: bool,
}

impl Machine {
    /// A machine without a rule.
    pub fn plain(cpus: u32) -> Self {
        Self { cpus, rule: Rule::None, each: false }
    }

    /// Parts with a rule of their own that a job of `threads` uses.
    fn parts(&self, threads: u32) -> f64 {
        if self.each { f64::from(threads.min(self.cpus)) } else { 1.0 }
    }

    /// CPUs that it gives for ever to a job that keeps all busy.
    pub fn sustained(&self) -> f64 {
        let parts = self.parts(self.cpus);
        parts * self.rule.sustained(f64::from(self.cpus) / parts)
    }
}

impl From<&Family> for Machine {
    fn from(family: &Family) -> Self {
        Self { cpus: family.cpus, rule: family.rule, each: family.each }
    }
}

/// How a job goes on a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reckoned {
    /// Without a limit, credits of the whole machine.
    pub plain: Outcome,
    /// The CPU limit under which it is done soonest, CPUs, and how it goes then; `None` where no limit helps.
    pub best: Option<(f64, Outcome)>,
    /// Whether what runs every so often is not done before its next start, in the long run.
    pub behind: bool,
    /// Whether that is so from the first run on, credits or not.
    pub late: bool,
    /// Credits at the start, of the whole machine, for [`Rule::Credits`].
    pub start: Option<f64>,
}

impl Reckoned {
    /// The outcome under the best limit.
    pub fn outcome(&self) -> &Outcome {
        self.best.as_ref().map_or(&self.plain, |(_, outcome)| outcome)
    }

    /// Wall-clock seconds of a run under the best limit; `None`: not done in two weeks, or never at this pace.
    pub fn time_s(&self) -> Option<f64> {
        self.outcome().real_s.filter(|_| !self.behind)
    }
}

/// How a job goes on a machine, without a limit and under the best one.
///
/// A machine just started has the credits of its start. What runs every `every_s` finds them as they are in the long run: full
/// where a run uses no more than is earned from start to start; otherwise they are gone one day, and it falls behind.
pub fn reckon(machine: &Machine, ask: &Ask) -> Reckoned {
    let parts = machine.parts(ask.threads);
    let cpus = f64::from(ask.threads.min(machine.cpus)) / parts;
    // Work goes at this rate while it has a CPU. What throttles use was fitted with its pauses stretched as well, see docs/price.md.
    let rate = if let Rule::Constant { stolen } = machine.rule { 1.0 - stolen } else { 1.0 };
    let busy = asked(ask.threads, ask.threads.min(machine.cpus), ask.busy, rate)
        / f64::from(ask.threads.min(machine.cpus));
    let job = Job { cpu_s: ask.cpu_s / parts, busy };
    let rule = settled(machine.rule, ask);
    let whole = |outcome: Outcome| Outcome {
        charged_s: outcome.charged_s * parts,
        stolen_s: outcome.stolen_s * parts,
        credits: outcome.credits.map(|credits| credits * parts),
        ..outcome
    };
    let plain = credit::run_on(&rule, job, cpus, None);
    let best = best_limit(&rule, job, cpus, &plain).map(|(limit, outcome)| (limit * parts, whole(outcome)));
    let mut reckoned = Reckoned { plain: whole(plain), best, behind: false, late: false, start: None };
    if let Rule::Credits { start, .. } = rule {
        reckoned.start = Some(start * parts);
    }
    if let Some(every_s) = ask.every_s {
        // Nobody gets more in the long run than is earned.
        let uses_up = match rule {
            Rule::Credits { per_hour, .. } => job.cpu_s / 60.0 > per_hour * every_s / 3600.0 * (1.0 + 1e-9),
            _ => false,
        };
        reckoned.late = reckoned.outcome().real_s.is_none_or(|s| s > every_s * (1.0 + 1e-9));
        reckoned.behind = uses_up || reckoned.late;
    }
    reckoned
}

/// CPUs that `threads` ask for on average where there are `cpus`. Each wants a CPU for a share `busy` of the time when it has one
/// to itself; at a `rate` below 1 its work takes longer and its pauses, for disks and the like, do not. Threads beyond the
/// number of CPUs run in the pauses of the others: a queue with a finite source (M/M/c//N, Kleinrock, *Queueing Systems* I,
/// 3.8), pauses and work of random lengths.
fn asked(threads: u32, cpus: u32, busy: f64, rate: f64) -> f64 {
    let pause = 1.0 - busy;
    let work = busy / rate;
    if pause <= 0.0 || work.is_infinite() {
        return f64::from(cpus.min(threads));
    }
    // Weight of k threads that run or wait for a CPU, from none on, and the sums over k; only ratios matter.
    let (mut weight, mut sum, mut running) = (1.0, 1.0, 0.0);
    for k in 1..=threads {
        let at_work = f64::from(k.min(cpus));
        weight *= f64::from(threads - k + 1) / at_work * work / pause;
        sum += weight;
        running += weight * at_work;
        if sum > 1e200 {
            (weight, sum, running) = (weight / sum, 1.0, running / sum);
        }
    }
    (running / sum).min(f64::from(cpus))
}

/// The rule with the credits that a run finds.
fn settled(rule: Rule, ask: &Ask) -> Rule {
    match rule {
        Rule::Credits { per_hour, cap, .. } if ask.every_s.is_some() => {
            Rule::Credits { start: cap, per_hour, cap }
        }
        rule => rule,
    }
}

/// The limit in whole percent of a CPU under which a job is done soonest, in CPUs, and how it goes then. `None` where none is
/// better than `plain`, without a limit: what is given for asking less is never more, except where asking is throttled.
fn best_limit(rule: &Rule, job: Job, cpus: f64, plain: &Outcome) -> Option<(f64, Outcome)> {
    if !matches!(rule, Rule::Window { .. } | Rule::Penalty { .. }) {
        return None;
    }
    let time = |outcome: &Outcome| outcome.real_s.unwrap_or(f64::INFINITY);
    (1..(100.0 * cpus) as u32)
        .map(|percent| f64::from(percent) / 100.0)
        .map(|limit| (limit, credit::run_on(rule, job, cpus, Some(limit))))
        .min_by(|(_, a), (_, b)| time(a).total_cmp(&time(b)))
        .filter(|(_, outcome)| time(outcome) < time(plain))
}

/// A job where the provider bills what is used beyond the credits instead of keeping it back ("unlimited").
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unlimited {
    /// How it goes: nothing is kept back.
    pub outcome: Outcome,
    /// CPU hours beyond the credits, which are billed.
    pub surplus_cpu_hours: f64,
    /// Whether what runs every so often is not done before its next start.
    pub behind: bool,
}

/// A job on a machine with credits in "unlimited" mode; `None` for other rules. The machine is taken to end with a single job, so
/// that nothing is earned afterwards to pay for the surplus; what runs every so often pays for what it uses beyond what is earned
/// from start to start.
pub fn reckon_unlimited(machine: &Machine, ask: &Ask) -> Option<Unlimited> {
    let Rule::Credits { start, per_hour, .. } = machine.rule else { return None };
    let free = Machine::plain(machine.cpus);
    let Reckoned { plain: outcome, behind, .. } = reckon(&free, ask);
    let had = match ask.every_s {
        Some(every_s) => per_hour * every_s / 3600.0,
        None => start + per_hour * outcome.real_s.unwrap_or(credit::GIVE_UP_S) / 3600.0,
    };
    Some(Unlimited { outcome, surplus_cpu_hours: (ask.cpu_s / 60.0 - had).max(0.0) / 60.0, behind })
}

/// Money for `paid_s` seconds of a machine at a price an hour.
pub fn money(hour: f64, paid_s: f64) -> f64 {
    hour * paid_s / 3600.0
}

#[cfg(test)]
mod tests;
