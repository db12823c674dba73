//! A fleet on paper: hosts drawn from a distribution, each simulated as found and under the levers its kernel offers; how
//! much CPU an advisor gives back that keeps only what helps.
//!
//! Each host is decided as the loop does it: every lever is tried, the best is kept if the scope gets at least
//! [`KEEP`] more CPU, else nothing is changed. What is counted is the gain in *another* simulation with other random
//! numbers, so that luck in the trial is not counted as a gain. "CPU given back" is CPU time that loads wanted, did not get
//! as found, and get afterwards.
//!
//! The distribution is an assumption, stated in [`draw`]; the result says what the model says about such a fleet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_base::stats::estimate;
use evenkeel_base::{CpuSet, Nice, SchedPolicy};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde::Serialize;

use crate::sim::{DutyKind, Generation, Group, Kernel, Load, Scenario, SpecError, Task, simulate};

/// Gain of CPU got from which on a lever is kept.
pub const KEEP: f64 = 0.01;
/// Waits per CPU second below which nothing is tried.
const CALM: f64 = 0.02;
/// Kernel releases and how many of 20 hosts run them.
const KERNELS: [(u32, u32, u32); 5] = [(5, 15, 3), (6, 1, 7), (6, 8, 4), (6, 12, 4), (6, 18, 2)];
/// CPUs of a host and how many of 20 have them.
const SIZES: [(u32, u32); 5] = [(2, 3), (4, 6), (8, 6), (16, 3), (32, 2)];

/// What became of one host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    pub cpus: u32,
    /// Kernel release.
    pub kernel: String,
    /// CPU got as found, percent of one CPU.
    pub got_pct: f64,
    /// CPU wanted and not got as found.
    pub missing_pct: f64,
    /// The lever kept; `None`: nothing was changed.
    pub kept: Option<&'static str>,
    /// CPU got more, percent of one CPU; negative for a loss.
    pub gained_pct: f64,
}

/// A fleet's sums.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fleet {
    pub hosts: usize,
    pub cpus: f64,
    /// CPUs' worth of time got as found.
    pub got_cpus: f64,
    /// CPUs' worth wanted and not got as found.
    pub missing_cpus: f64,
    /// CPUs' worth given back, with its 95 % interval; unbounded of one host.
    pub gained_cpus: [f64; 3],
    /// Hosts on which a lever was kept, by lever.
    pub kept: BTreeMap<&'static str, u32>,
    /// CPUs' worth given back, by kernel release: hosts, CPUs, gained.
    pub by_kernel: BTreeMap<String, (u32, f64, f64)>,
    /// Hosts that lost more than 1 % of what they got.
    pub worse: u32,
}

fn pick<const N: usize>(r: &mut Pcg64, of: [u32; N]) -> usize {
    let mut at = r.random_range(0..of.iter().sum());
    for (index, weight) in of.iter().enumerate() {
        if at < *weight {
            return index;
        }
        at -= weight;
    }
    0
}

/// Draws a host: kernel 5.15 to 6.18, 2 to 32 CPUs, 30 to 110 % of them wanted by 2 to 6 tasks a CPU of random demands (5 to 60 %)
/// and periods (5 to 500 ms, ±50 %), six of ten closed, three wall, one open; half of the hosts with all tasks in one
/// group, half with a group each; background work of 20 wake-ups a second and CPU.
pub fn draw(seed: u64) -> Scenario {
    let mut random = Pcg64::seed_from_u64(seed ^ 0xf1ee_7000);
    let r = &mut random;
    let (major, minor, _) = KERNELS[pick(r, KERNELS.map(|k| k.2))];
    let cpus = SIZES[pick(r, SIZES.map(|s| s.1))].0;
    let mut s = Scenario::new(cpus);
    s.kernel = Kernel::release(major, minor);
    s.machine.background_per_s = 20.0;
    s.measure_from_ns = 500_000_000;
    s.duration_ns = 3_500_000_000;
    let count = (f64::from(cpus) * r.random_range(2.0..6.0f64)).round() as usize;
    let wanted = f64::from(cpus) * r.random_range(30.0..110.0);
    let parts: Vec<f64> = (0..count).map(|_| 0.1 - r.random_range(1e-6..1.0f64).ln()).collect();
    let sum: f64 = parts.iter().sum();
    let each = r.random_bool(0.5);
    if !each {
        s.groups.push(Group::new("all", None));
    }
    for (index, part) in parts.into_iter().enumerate() {
        let kind = [DutyKind::Closed, DutyKind::Wall, DutyKind::Open][pick(r, [6, 3, 1])];
        let period_ms = (5f64.ln() + r.random::<f64>() * 100f64.ln()).exp();
        let load = Load::Duty {
            percent: (part / sum * wanted).clamp(1.0, 90.0),
            period_ns: (period_ms * 1e6) as u64,
            jitter: 0.5,
            kind,
        };
        if each {
            s.groups.push(Group::new(format!("g{index}"), None));
        }
        s.tasks.push(Task::new(format!("t{index}"), Some(if each { index } else { 0 }), load));
    }
    s
}

fn percent(task: &Task) -> f64 {
    if let Load::Duty { percent, .. } = task.load { percent } else { 100.0 }
}

fn slice_by_burst(s: &mut Scenario) {
    for task in &mut s.tasks {
        if let Load::Duty { percent, period_ns, .. } = task.load {
            let burst = percent / 100.0 * period_ns as f64;
            task.attr.slice_ns = Some((2.0 * burst).clamp(3e6, 100e6) as u64);
        }
    }
}

fn batch(s: &mut Scenario) {
    s.tasks.iter_mut().for_each(|t| t.attr.policy = SchedPolicy::Batch);
}

/// Nice values in proportion to what each task wants, all at once: the published recipe's second stage.
pub fn nice(s: &mut Scenario) {
    let mean = s.tasks.iter().map(percent).sum::<f64>() / s.tasks.len().max(1) as f64;
    for task in &mut s.tasks {
        task.attr.nice = Nice::nearest(1024.0 * percent(task) / mean);
    }
}

/// Each task bound to one CPU, the largest first, each to the least loaded CPU: the published recipe's first stage.
pub fn pin(s: &mut Scenario) {
    let mut load = vec![0.0f64; s.machine.topology.online.len()];
    let mut order: Vec<usize> = (0..s.tasks.len()).collect();
    order.sort_by(|&a, &b| percent(&s.tasks[b]).total_cmp(&percent(&s.tasks[a])));
    for index in order {
        let cpu = (0..load.len()).min_by(|&a, &b| load[a].total_cmp(&load[b])).unwrap_or(0);
        load[cpu] += percent(&s.tasks[index]);
        s.tasks[index].cpus = Some(CpuSet::single(cpu as u32));
    }
}

/// A name, and what it does to a host.
pub type Lever = (&'static str, fn(&mut Scenario));

/// The levers a kernel offers.
fn levers(generation: Generation) -> Vec<Lever> {
    let mut levers: Vec<Lever> = vec![
        ("batch", batch),
        ("nice", nice),
        ("pin+nice", |s| {
            pin(s);
            nice(s);
        }),
    ];
    if generation >= Generation::EevdfSlices {
        levers.push(("slice", slice_by_burst));
        levers.push(("batch+slice", |s| {
            slice_by_burst(s);
            batch(s);
        }));
    }
    levers
}

/// CPU got by all and time waited, percent of one CPU.
fn got(scenario: &Scenario) -> Result<(f64, f64), SpecError> {
    let report = simulate(scenario)?;
    let got = report.tasks.iter().map(|t| t.got_pct).sum();
    let waited = report.tasks.iter().map(|t| t.waited_s).sum::<f64>();
    Ok((got, 100.0 * waited / report.measured_s))
}

/// The lever an advisor would keep on a host that keeps only what helps, or none.
pub fn choose(found: &Scenario) -> Result<Option<Lever>, SpecError> {
    choose_from(found, got(found)?)
}

/// [`choose`], from what is got and waited as found.
fn choose_from(found: &Scenario, (before, waited): (f64, f64)) -> Result<Option<Lever>, SpecError> {
    let mut best: (f64, Option<Lever>) = (before * (1.0 + KEEP), None);
    if waited > CALM * before {
        for lever in levers(found.kernel.generation) {
            let mut tried = found.clone();
            lever.1(&mut tried);
            let (after, _) = got(&tried)?;
            if after > best.0 {
                best = (after, Some(lever));
            }
        }
    }
    Ok(best.1)
}

/// Decides about one host.
pub fn judge(seed: u64) -> Result<Verdict, SpecError> {
    let mut found = draw(seed);
    found.seed = seed.wrapping_mul(2).wrapping_add(1);
    let as_found = got(&found)?;
    let kept = choose_from(&found, as_found)?;
    // The verdict is spoken over other random numbers than the trial.
    found.seed = found.seed.wrapping_add(1);
    let (got_pct, gained_pct) = match kept {
        None => (as_found.0, 0.0),
        Some(lever) => {
            let before = got(&found)?.0;
            let mut changed = found.clone();
            lever.1(&mut changed);
            (before, got(&changed)?.0 - before)
        }
    };
    let wanted: f64 = found.tasks.iter().map(percent).sum();
    Ok(Verdict {
        cpus: found.machine.topology.online.len() as u32,
        kernel: match found.kernel.generation {
            Generation::Cfs => "CFS (to 6.5)",
            Generation::Eevdf => "EEVDF (6.6 to 6.11)",
            Generation::EevdfSlices => "EEVDF with slices (6.12 to 6.16)",
            Generation::EevdfMinSlice => "EEVDF with slices (6.17 on)",
        }
        .to_owned(),
        got_pct,
        missing_pct: (wanted - got_pct).max(0.0),
        kept: kept.map(|lever| lever.0),
        gained_pct,
    })
}

/// Judges hosts `seed .. seed + hosts` on so many threads; the result does not depend on their number.
pub fn judge_all(hosts: u32, seed: u64, threads: usize) -> Result<Fleet, SpecError> {
    let next = AtomicU32::new(0);
    let parts: Vec<Vec<(u32, Result<Verdict, SpecError>)>> = std::thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let host = next.fetch_add(1, Ordering::Relaxed);
                if host >= hosts {
                    return done;
                }
                done.push((host, judge(seed.wrapping_add(u64::from(host)))));
            }
        };
        let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or_default()).collect()
    });
    let mut verdicts: Vec<(u32, Result<Verdict, SpecError>)> = parts.into_iter().flatten().collect();
    verdicts.sort_by_key(|(host, _)| *host);
    let verdicts: Vec<Verdict> = verdicts.into_iter().map(|(_, v)| v).collect::<Result<_, _>>()?;
    Ok(sum(&verdicts))
}

fn sum(verdicts: &[Verdict]) -> Fleet {
    let gains: Vec<f64> = verdicts.iter().map(|v| v.gained_pct / 100.0).collect();
    // Of a sum of independent hosts, whose spread is known the less the fewer they are.
    let gained_cpus = estimate(&gains)
        .map_or([0.0; 3], |mean| [mean.low, mean.value, mean.high].map(|gain| gain * gains.len() as f64));
    let mut kept = BTreeMap::new();
    let mut by_kernel: BTreeMap<String, (u32, f64, f64)> = BTreeMap::new();
    for verdict in verdicts {
        *kept.entry(verdict.kept.unwrap_or("nothing")).or_default() += 1;
        let of = by_kernel.entry(verdict.kernel.clone()).or_default();
        of.0 += 1;
        of.1 += f64::from(verdict.cpus);
        of.2 += verdict.gained_pct / 100.0;
    }
    Fleet {
        hosts: verdicts.len(),
        cpus: verdicts.iter().map(|v| f64::from(v.cpus)).sum(),
        got_cpus: verdicts.iter().map(|v| v.got_pct / 100.0).sum(),
        missing_cpus: verdicts.iter().map(|v| v.missing_pct / 100.0).sum(),
        gained_cpus,
        kept,
        by_kernel,
        worse: verdicts.iter().filter(|v| v.gained_pct < -0.01 * v.got_pct).count() as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_whatever_the_number_of_threads() {
        let one = judge_all(6, 11, 1).unwrap();
        assert_eq!(one, judge_all(6, 11, 3).unwrap());
        assert_eq!((one.hosts, one.kept.values().sum::<u32>()), (6, 6));
        assert!(one.gained_cpus[0] <= one.gained_cpus[1] && one.gained_cpus[1] <= one.gained_cpus[2]);
    }

    #[test]
    fn sums_and_their_interval() {
        let verdict = |gained_pct, kept| Verdict {
            cpus: 2,
            kernel: "x".into(),
            got_pct: 100.0,
            missing_pct: 20.0,
            kept,
            gained_pct,
        };
        let fleet = sum(&[verdict(10.0, Some("nice")), verdict(0.0, None), verdict(-4.0, Some("nice"))]);
        assert!((fleet.gained_cpus[1] - 0.06).abs() < 1e-12 && (fleet.missing_cpus - 0.6).abs() < 1e-12);
        // Standard deviation of 0.1, 0, -0.04 is 0.0721; of the sum of three 0.1249; t(0.975, 2) is 4.303.
        assert!((fleet.gained_cpus[2] - 0.06 - 4.303 * 0.1249).abs() < 1e-3, "{fleet:?}");
        assert_eq!((fleet.kept["nice"], fleet.kept["nothing"], fleet.worse), (2, 1, 1));
        // Of one host nothing is known of how hosts differ.
        let [low, gained, high] = sum(&[verdict(10.0, None)]).gained_cpus;
        assert_eq!((low, gained, high), (f64::NEG_INFINITY, 0.1, f64::INFINITY));
        assert_eq!(sum(&[]).gained_cpus, [0.0; 3]);
    }

    #[test]
    fn hosts_are_valid() {
        for seed in 0..200 {
            draw(seed).check().unwrap_or_else(|e| panic!("{seed}: {e}"));
        }
    }
}
