//! What follows from a split: which lever would give the target back the time it lost. Rules with figures, no guesses:
//! what is not known is not argued with. The loop (`evenkeel run`) tries levers and proves them; this only names them.

#[cfg(test)]
mod tests;

use evenkeel_base::sched::STARVED_LIFT;
use serde::Serialize;

use super::{Blame, Kind, Target, by_name, span};
use crate::why::text::quota;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// `quota`, `weight`, `nice`, `threads`, `affinity`, `interrupts`, `slice`, `hypervisor`, `disk`, `none`.
    pub lever: &'static str,
    /// Why and what, with figures.
    pub text: String,
}

/// What else is known about the target and the host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Online CPUs.
    pub cpus: u32,
    /// CPUs the target's threads may use, by affinity and cpuset.
    pub usable: Option<u32>,
    /// Idle time of the other CPUs, percent of one.
    pub idle_elsewhere_pct: Option<f64>,
    /// Load weight (1024 is the default) of the target's group at the level where it competes with the first culprit.
    pub weight: Option<u64>,
    /// The first culprit's there.
    pub culprit_weight: Option<u64>,
    /// Load weight of the target's group at the level where it competes with others; `None` in the root group.
    pub group_weight: Option<u64>,
    /// The target and the first culprit are in the same group, so that weights of groups do not act between them.
    pub same_group: Option<bool>,
    /// The kernel gives a task a slice of its own.
    pub task_slice: Option<bool>,
    /// Time in which a task waited for I/O, percent of the time looked at.
    pub io_stalled_pct: Option<f64>,
    /// That is of the target's own cgroup, not of the whole host.
    pub io_own: bool,
    /// CPUs that others used of the quota that held the target back for longest.
    pub quota_others: Option<f64>,
}

/// A wait from which a group has lost its turn, microseconds: 350 competitors that each take a whole slice.
const LOST_TURN_USEC: f64 = 1e6;
/// The same of a group that mostly waits briefly: no slice of a competitor is that long.
const SUDDENLY_USEC: f64 = 100_000.0;
/// Half of its waits are then shorter than the longest by this factor.
const BRIEFLY: f64 = 50.0;

/// A share below this, percent, is not worth a word.
const WORTH: f64 = 2.0;
/// Others who use this part of a quota may be why it is used up.
const SHARED: f64 = 0.2;

/// A share blocked from which on it is worth more than a word that it was, percent.
const BLOCKED: f64 = 20.0;
/// Stalls on I/O above this say that it was the disk, percent of the time; ...
const IO_STALLS: f64 = 5.0;
/// ... and below this that it was not.
const NO_IO: f64 = 1.0;

/// Advice for a target, what costs most first.
pub fn advise(target: &Target, facts: &Facts) -> Vec<Advice> {
    let Some(shares) = target.shares else {
        return vec![Advice { lever: "none", text: "nothing of the target was seen".to_owned() }];
    };
    let mut all: Vec<(f64, Advice)> = Vec::new();
    let mut say = |weight: f64, lever, text: String| all.push((weight, Advice { lever, text }));
    if let Some(throttled) = shares.throttled.filter(|share| *share >= WORTH) {
        say(throttled, "quota", throttling(target, facts, throttled));
    }
    if shares.waited >= WORTH {
        match for_a_quota(target, shares.waited) {
            Some(text) => say(shares.waited, "quota", text),
            None => {
                for (lever, text) in waiting(target, facts, shares.waited) {
                    say(shares.waited, lever, text);
                }
            }
        }
    }
    if let Some(stolen) = shares.stolen.filter(|share| *share >= WORTH) {
        let text = format!(
            "stolen {stolen:.0} %: the hypervisor gave its CPU to other guests; nothing on this host changes that: \
             ask for dedicated CPUs, or move"
        );
        say(stolen, "hypervisor", text);
    }
    let blocked = 100.0 * target.blocked_s.unwrap_or(0.0) / target.split.total_s().max(1e-9);
    if blocked >= BLOCKED && blocked > shares.waited + shares.throttled.unwrap_or(0.0) {
        all.push((blocked, Advice { lever: "disk", text: blocking(facts, blocked) }));
    }
    if all.is_empty() {
        let text = if shares.slept >= 90.0 {
            let stopped = target.stopped_s.unwrap_or(0.0) / target.split.total_s().max(1e-9);
            if stopped > 0.5 {
                let stopped = 100.0 * stopped;
                format!("stopped {stopped:.0} %: a signal or a tracer holds it; CPU is not what it lacks")
            } else {
                format!("slept {:.0} % by itself: CPU is not what it waits for", shares.slept)
            }
        } else {
            format!("ran {:.0} % and hardly waited: it gets the CPU it wants", shares.ran)
        };
        return vec![Advice { lever: "none", text }];
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().map(|(_, advice)| advice).collect()
}

/// It waits for its disk, or for a lock in the kernel: no lever on CPU helps.
fn blocking(facts: &Facts, blocked: f64) -> String {
    let whose = if facts.io_own { "its cgroup" } else { "this host" };
    match facts.io_stalled_pct {
        Some(io) if io >= IO_STALLS => format!(
            "blocked {blocked:.0} % while {whose} was stalled on I/O {io:.0} % of the time: it waits for its disk rather than for \
             CPU; look at the device (`iostat -x`), at who else reads and writes, and whether its data fits into memory"
        ),
        Some(io) if io < NO_IO => format!(
            "blocked {blocked:.0} % while {whose} was hardly stalled on I/O: it waits for locks in the kernel or a network file system \
             rather than for CPU or a disk"
        ),
        _ => format!("blocked {blocked:.0} % on disk or locks: CPU is not what it waits for"),
    }
}

fn threads(n: usize) -> String {
    if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") }
}

fn throttling(target: &Target, facts: &Facts, share: f64) -> String {
    let mut text = format!("throttled {share:.0} %");
    let Some(by) = target.worst_quota() else { return text };
    let wanted = target.wanted_s / target.wall_s.max(1e-9);
    let group = by.cgroup.as_deref().unwrap_or("its group");
    match (quota(by), by.quota_usec.zip(by.period_usec)) {
        (Some(words), Some((quota_usec, period_usec))) => {
            let allowed = quota_usec as f64 / period_usec.max(1) as f64;
            text.push_str(&format!(
                ": {words} of {group} with {}, wanting {wanted:.2} CPU at most",
                threads(target.threads)
            ));
            let enough = wanted.min(f64::from(facts.cpus.max(1)));
            let others = facts.quota_others.filter(|others| *others >= SHARED * allowed);
            if let Some(others) = others {
                text.push_str(&format!(
                    "; others in that group used {others:.2} CPU of it: give the target a group and a quota of its own, or \
                     raise this one for all of them"
                ));
            } else if wanted <= allowed {
                text.push_str(
                    "; on average that is within the quota, so it comes in bursts: allow a burst (cpu.max.burst, \
                     cpu.cfs_burst_us) or a longer period with the same ratio",
                );
                // A single thread cannot be fewer.
                let at_once = target.threads.min(facts.cpus.max(1) as usize);
                if at_once > 1 {
                    text.push_str(&format!(
                        ", or use fewer threads at once (a quota is used up {at_once} times as fast by {})",
                        threads(at_once)
                    ));
                }
            } else {
                // What it wants includes what it would have waited for others anyway: an upper bound.
                text.push_str(&format!(
                    "; raise the quota up to {} per {} (more is never used), or run less at once",
                    span((enough * period_usec as f64 / 1000.0).ceil() * 1000.0),
                    span(period_usec as f64)
                ));
            }
        }
        _ => text.push_str(&format!(" by the quota of {group}")),
    }
    text
}

/// Where a quota held the target back for nobody knows how much of its wait.
fn for_a_quota(target: &Target, waited: f64) -> Option<String> {
    let by = target.worst_quota().filter(|by| by.seconds.is_some_and(|seconds| seconds > 0.0))?;
    target.split.throttled_s.is_none().then(|| {
        format!(
            "waited {waited:.0} %, some of it for the quota of {}{}, which others use, too: with BPF `why` tells how much; give \
             the target a group and a quota of its own, or raise this one for all of them",
            by.cgroup.as_deref().unwrap_or("its group"),
            quota(by).map_or(String::new(), |words| format!(" ({words})")),
        )
    })
}

fn waiting(target: &Target, facts: &Facts, share: f64) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    let blame = by_name(target.blame.as_deref().unwrap_or_default());
    let sum =
        |wanted: &dyn Fn(&&Blame) -> bool| blame.iter().filter(wanted).map(|b| b.share_pct).sum::<f64>();
    let own = sum(&|b| b.own);
    let interrupts = sum(&|b| matches!(b.kind, Kind::Irq | Kind::Softirq));
    let idle = sum(&|b| b.kind == Kind::Idle);
    let lengths = target.wait_histogram_usec.as_ref().map_or(String::new(), |waits| {
        match (waits.p50_usec, waits.p99_usec) {
            (Some(p50), Some(p99)) => {
                format!(" (half of the waits up to {}, 99 % up to {})", span(p50), span(p99))
            }
            _ => String::new(),
        }
    });
    let head = format!("waited {share:.0} %{lengths}");
    if let (Some(idle), Some(usable)) = (facts.idle_elsewhere_pct, facts.usable)
        && idle >= 10.0
        && usable < facts.cpus
    {
        out.push((
            "affinity",
            format!(
                "{head}: it may use {usable} of {} CPUs only while the others idle {idle:.0} % of one CPU: widen its \
                 affinity or cpuset",
                facts.cpus
            ),
        ));
    }
    out.extend(lost_turn(target, facts, 100.0 - own - idle, &head));
    if own >= 40.0 {
        let usable = facts.usable.unwrap_or(facts.cpus);
        out.push((
            "threads",
            format!(
                "{head}: {own:.0} % of that for its own threads ({}, {usable} CPUs usable): as many threads as CPUs wait \
                 less, or give it more CPUs",
                threads(target.threads)
            ),
        ));
    }
    // No one had the CPU: nobody's weight is in the way.
    if idle >= 40.0 {
        out.push((
            "none",
            format!(
                "{head}: {idle:.0} % of that for CPUs that were leaving idle: no task had them, and no weight \
                 helps; shallower idle states (`cpupower idle-set`) or, in a virtual machine, halt polling make it shorter"
            ),
        ));
    }
    if interrupts >= 20.0 {
        let first = blame.iter().find(|b| matches!(b.kind, Kind::Irq | Kind::Softirq));
        let name = first.map_or("", |b| b.name.as_str());
        out.push((
            "interrupts",
            format!(
                "{head}: {interrupts:.0} % of that for interrupts (most: {name}): route them to other CPUs \
                 (/proc/irq/N/smp_affinity, RPS) or the target away from theirs"
            ),
        ));
    }
    let other =
        blame.iter().find(|b| !b.own && matches!(b.kind, Kind::Task | Kind::Container | Kind::KernelThread));
    if let Some(culprit) = other.filter(|b| b.share_pct >= 20.0) {
        out.push(competitor(target, facts, culprit, &head));
    }
    if out.is_empty() {
        let first = blame.iter().find(|b| b.kind != Kind::Idle);
        let most = first.map_or(String::new(), |b| format!("; most, {:.0} %, for {}", b.share_pct, b.name));
        out.push((
            "weight",
            format!("{head}{most}: many share its CPUs; raise its weight, or give it CPUs of its own"),
        ));
    }
    out
}

/// A group that waits for very long, most of all where it waits briefly as a rule: what raises its weight comes first.
///
/// Why it happens is measured in `docs/tenants.md`, "Groups that lose their turn": `place_entity` in the kernel's
/// `kernel/sched/fair.c` gives a group that slept the lag back that it left with.
fn lost_turn(target: &Target, facts: &Facts, others_pct: f64, head: &str) -> Option<(&'static str, String)> {
    let waits = target.wait_histogram_usec.as_ref()?;
    let (p50, longest) = (waits.p50_usec?, waits.max_usec?);
    // Who weighs little waits in proportion: that is its share, and no turn was lost.
    let ratio = facts.weight.zip(facts.culprit_weight);
    let ratio = ratio.map_or(1.0, |(mine, other)| (other as f64 / mine.max(1) as f64).max(1.0));
    let longest_due = longest / ratio;
    let lost = longest_due >= LOST_TURN_USEC || (longest_due >= SUDDENLY_USEC && p50 * BRIEFLY <= longest);
    let weight = facts.group_weight.filter(|_| facts.same_group != Some(true))?;
    (lost && others_pct >= 20.0).then(|| {
        let text = format!(
            "{head}: its group lost its turn, for {} at the longest: groups that work in short pieces and sleep in between \
             keep their lead over others on its CPU; limit the group that has its turn to a little less than it uses \
             (`evenkeel check` names it), or give both short slices (`evenkeel exec --slice 0.1ms`) or more weight, as \
             from {weight} to {}, which helps at times",
            span(longest),
            weight.saturating_mul(STARVED_LIFT).min(262_144)
        );
        ("weight", text)
    })
}

fn competitor(target: &Target, facts: &Facts, culprit: &Blame, head: &str) -> (&'static str, String) {
    let place = culprit.place().map_or(String::new(), |name| format!(" of container {name}"));
    let who = format!("{head}: {:.0} % of that for {}{place}", culprit.share_pct, culprit.name);
    if culprit.kind == Kind::KernelThread {
        return (
            "none",
            format!("{who}, a thread of the kernel: work the kernel does for somebody; see what causes it"),
        );
    }
    let slice = match target.wait_histogram_usec.as_ref().and_then(|waits| waits.p99_usec) {
        Some(p99) if facts.task_slice == Some(true) && p99 >= 3_000.0 => {
            "; the kernel takes a slice of one's own, too: a shorter one for the target shortens its waits, a longer one \
             makes them fewer"
        }
        _ => "",
    };
    match (facts.same_group, facts.weight, facts.culprit_weight) {
        (Some(true), ..) => (
            "nice",
            format!(
                "{who}, in the same cgroup, where nice acts: each step is a quarter more or less; or a group of its own \
                 with a weight{slice}"
            ),
        ),
        (_, Some(mine), Some(other)) => (
            "weight",
            format!(
                "{who}; where they compete the weights are {mine} (target) to {other}: raise cpu.weight or cpu.shares of \
                 the one, or lower the other's (nice does not act between groups){slice}"
            ),
        ),
        _ => (
            "weight",
            format!(
                "{who}: between groups weights act (cpu.weight, cpu.shares), within one nice does{slice}"
            ),
        ),
    }
}
