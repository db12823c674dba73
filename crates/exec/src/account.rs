//! Where a command's time went: the document of `evenkeel exec`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_base::CpuTimes;
use evenkeel_linux::{Root, proc_stat, sys};
use serde::Serialize;

use super::group::{Counted, QuotasAbove};
use super::waits::Waited;
use super::{Bounds, Spec, WaitSource};

/// An account, as its document has it. What is not known is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Account {
    pub schema: &'static str,
    pub command: Vec<String>,
    pub bounds: Bounds,
    /// The cgroup of the cpu controller it ran in; `None` where it ran in the caller's.
    pub cgroup: Option<String>,
    /// From its start to its end, seconds.
    pub real_s: f64,
    /// CPU time in user mode, descendants included, seconds.
    pub user_s: f64,
    /// CPU time in the kernel, descendants included, seconds.
    pub sys_s: f64,
    /// CPU time over real time, percent of ONE CPU.
    pub cpu_pct: Option<f64>,
    /// Waited for a CPU (`run_delay`, all tasks, throttled time included), seconds.
    pub waited_s: Option<f64>,
    /// How `waited_s` was learnt.
    pub waited_source: WaitSource,
    /// Throttled by its quota, summed over CPUs, seconds. Without one 0, or `None` where a quota above held somebody back.
    pub throttled_s: Option<f64>,
    /// Periods in which it had work, and in how many of them it was throttled.
    pub periods: Option<u64>,
    /// See `periods`.
    pub throttled_periods: Option<u64>,
    /// The CPUs' steal in that time, in proportion to what it used of them, seconds.
    pub stolen_s: Option<f64>,
    pub voluntary: Option<u64>,
    pub involuntary: Option<u64>,
    /// Largest resident set of one process, bytes.
    pub max_rss_bytes: Option<u64>,
    /// What a shell would see: its status, or 128 + n when signal n killed it.
    pub exit_status: u8,
    pub signal: Option<i32>,
    /// Descendants that still run.
    pub left_running: Vec<u32>,
    /// What was out of the ordinary.
    pub notes: Vec<String>,
}

/// Counters before the start.
pub(super) struct Before {
    cpus: Vec<CpuTimes>,
    children: sys::Usage,
    above: QuotasAbove,
}

/// Everything known at the end.
pub(super) struct End<'a> {
    pub spec: &'a Spec,
    pub status: i32,
    pub real: Duration,
    pub counted: Counted,
    pub waited: Waited,
    pub left: BTreeSet<u32>,
    pub cgroup: Option<String>,
    pub notes: Vec<String>,
}

fn cpu_times() -> Vec<CpuTimes> {
    proc_stat::read(&Root::host()).map(|stat| stat.cpus).unwrap_or_default()
}

impl Before {
    pub fn now(above: QuotasAbove) -> Self {
        Self { cpus: cpu_times(), children: sys::usage(libc::RUSAGE_CHILDREN), above }
    }

    pub fn account(self, end: End<'_>) -> Account {
        let (before, after) = (self.children, sys::usage(libc::RUSAGE_CHILDREN));
        let seconds = |ns: u64| ns as f64 / 1e9;
        let reaped = (after.user_s - before.user_s, after.sys_s - before.sys_s);
        let (user_s, sys_s) = cpu_s(&end.counted, reaped);
        let real_s = end.real.as_secs_f64();
        let limited = end.spec.bounds.quota.is_some_and(|quota| quota.pct().is_some());
        let above = self.above.held();
        let throttled_s = match end.counted.throttled_ns {
            Some(ns) if end.spec.bounds.quota.is_some() => Some(seconds(ns)),
            None if limited => None,
            // Nothing throttled it.
            _ => above.is_none().then_some(0.0),
        };
        let signal = libc::WIFSIGNALED(end.status).then(|| libc::WTERMSIG(end.status));
        let status = signal.map_or_else(|| libc::WEXITSTATUS(end.status), |signal| 128 + signal);
        let mut notes = end.notes;
        notes.extend(end.waited.note);
        notes.extend(above.map(|(dir, ns)| {
            let time = ns.map_or_else(|| "for a time not told".to_owned(), |ns| format!("{:.3} s", seconds(ns)));
            format!(
                "the quota of {} held back whoever is in it, {time} in sum over CPUs: how much of that was the command's is not \
                 known",
                dir.display()
            )
        }));
        Account {
            schema: "evenkeel.exec/v1",
            command: end.spec.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            bounds: end.spec.bounds.clone(),
            cgroup: end.cgroup,
            real_s,
            user_s,
            sys_s,
            cpu_pct: (real_s > 0.0).then(|| 100.0 * (user_s + sys_s) / real_s),
            waited_s: end.waited.waited_ns.map(seconds),
            waited_source: end.waited.source,
            throttled_s,
            periods: end.counted.nr_periods.filter(|_| limited),
            throttled_periods: end.counted.nr_throttled.filter(|_| limited),
            stolen_s: stolen_s(&self.cpus, &cpu_times(), user_s + sys_s, end.counted.per_cpu_ns.as_deref()),
            voluntary: end.waited.voluntary,
            involuntary: end.waited.involuntary,
            max_rss_bytes: Some(after.max_rss_bytes).filter(|bytes| *bytes > 0),
            exit_status: u8::try_from(status).unwrap_or(125),
            signal,
            left_running: end.left.into_iter().collect(),
            notes,
        }
    }
}

/// CPU time in user mode and in the kernel, seconds. A group counts descendants no process waited for, too; without one
/// there is what was reaped. The kernel knows the sum exactly and the modes by samples: of those reaped where possible,
/// for these are made to fit the sum task by task.
fn cpu_s(counted: &Counted, reaped: (f64, f64)) -> (f64, f64) {
    let Some(total) = counted.cpu_ns.map(|ns| ns as f64 / 1e9) else { return reaped };
    let sampled = counted.user_ns.zip(counted.sys_ns).map(|(user, sys)| (user as f64, sys as f64));
    let (user, sys) = [Some(reaped), sampled]
        .into_iter()
        .flatten()
        .find(|(user, sys)| user + sys > 0.0)
        .unwrap_or((1.0, 0.0));
    let share = user / (user + sys);
    (total * share, total * (1.0 - share))
}

/// Each CPU's steal in proportion to the share of its busy time that was the command's; where only the sum over CPUs
/// is known, in proportion to that. `None` where a CPU's steal is not reported.
fn stolen_s(before: &[CpuTimes], after: &[CpuTimes], cpu_s: f64, per_cpu_ns: Option<&[u64]>) -> Option<f64> {
    let mut cpus = Vec::new();
    for now in after {
        // A CPU that came meanwhile has no before.
        let Some(then) = before.iter().find(|then| then.cpu == now.cpu) else { continue };
        let steal = now.steal_ns?.checked_sub(then.steal_ns?)? as f64 / 1e9;
        let busy = now.busy_ns.saturating_sub(then.busy_ns) as f64 / 1e9;
        cpus.push((now.cpu as usize, steal, busy));
    }
    if cpus.is_empty() {
        return None;
    }
    let busy_all: f64 = cpus.iter().map(|(_, _, busy)| busy).sum();
    let share = |cpu: usize, busy: f64| {
        let (own, of) = match per_cpu_ns.and_then(|per_cpu| per_cpu.get(cpu)) {
            Some(ns) => (*ns as f64 / 1e9, busy),
            None => (cpu_s, busy_all),
        };
        if of > 0.0 { (own / of).clamp(0.0, 1.0) } else { 0.0 }
    };
    Some(cpus.iter().map(|(cpu, steal, busy)| steal * share(*cpu, *busy)).sum())
}

impl Account {
    /// For people, a few lines.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let known = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |v| format!("{v:.3} s"));
        let how = match self.signal {
            Some(signal) => format!("was killed by signal {signal}"),
            None => format!("ended with status {}", self.exit_status),
        };
        let words = self.bounds.words();
        let _ = writeln!(
            out,
            "evenkeel exec: {} {how}{}",
            words_of(&self.command),
            if words.is_empty() { String::new() } else { format!(" ({words})") }
        );
        let _ = writeln!(out, "  real       {:.3} s", self.real_s);
        let _ = writeln!(out, "  user       {:.3} s", self.user_s);
        let _ = writeln!(out, "  sys        {:.3} s", self.sys_s);
        if let Some(pct) = self.cpu_pct {
            let _ = writeln!(out, "  CPU        {pct:.1} % of one CPU");
        }
        let _ = writeln!(out, "  waited     {}", known(self.waited_s));
        match (self.periods, self.throttled_periods) {
            (Some(periods), Some(throttled)) => {
                let _ = writeln!(
                    out,
                    "  throttled  {} (in {throttled} of {periods} periods)",
                    known(self.throttled_s)
                );
            }
            _ => {
                let _ = writeln!(out, "  throttled  {}", known(self.throttled_s));
            }
        }
        let _ = writeln!(out, "  stolen     {}", known(self.stolen_s));
        for note in &self.notes {
            let _ = writeln!(out, "  note: {note}");
        }
        out
    }
}

/// The command for a line of text: control characters replaced, cut at 60 characters.
fn words_of(command: &[String]) -> String {
    let line = command.join(" ");
    let mut short: String =
        line.chars().take(60).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if line.chars().count() > 60 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(cpu: u32, busy_s: f64, steal_s: Option<f64>) -> CpuTimes {
        let ns = |s: f64| (s * 1e9) as u64;
        CpuTimes { cpu, busy_ns: ns(busy_s), idle_ns: 0, irq_ns: 0, steal_ns: steal_s.map(ns) }
    }

    #[test]
    fn steal_goes_by_what_was_used_of_each_cpu() {
        let before = [cpu(0, 1.0, Some(0.0)), cpu(1, 1.0, Some(0.0))];
        let after = [cpu(0, 3.0, Some(1.0)), cpu(1, 2.0, Some(4.0))];
        // CPU 0: half of 2 s busy was ours; CPU 1: nothing.
        assert_eq!(stolen_s(&before, &after, 1.0, Some(&[1_000_000_000, 0])), Some(0.5));
        // Without figures by CPU: a third of all that was busy.
        let sum = stolen_s(&before, &after, 1.0, None).unwrap();
        assert!((sum - 5.0 / 3.0).abs() < 1e-9, "{sum}");
        assert_eq!(stolen_s(&before, &[cpu(0, 3.0, None)], 1.0, None), None);
        assert_eq!(stolen_s(&[], &after, 1.0, None), None);
    }

    #[test]
    fn the_sum_is_the_groups_and_the_modes_are_what_was_seen() {
        let mut counted = Counted { cpu_ns: Some(4_000_000_000), ..Counted::default() };
        assert_eq!(cpu_s(&counted, (3.0, 1.0)), (3.0, 1.0));
        assert_eq!(cpu_s(&counted, (0.0, 0.0)), (4.0, 0.0));
        counted.user_ns = Some(4_000_000);
        counted.sys_ns = Some(12_000_000);
        assert_eq!(cpu_s(&counted, (0.0, 0.0)), (1.0, 3.0));
        counted.cpu_ns = None;
        assert_eq!(cpu_s(&counted, (0.5, 0.25)), (0.5, 0.25));
    }

    #[test]
    fn hostile_words_stay_on_their_line() {
        let words = words_of(&["a\nb".into(), "x".repeat(100)]);
        assert!(!words.contains('\n') && words.chars().count() == 61 && words.ends_with('…'));
    }
}
