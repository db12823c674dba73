//! One point of a sweep: its tenants over all repetitions, and all of them together.

use std::collections::BTreeMap;

use evenkeel_base::Topology;
use evenkeel_base::run::Estimate;
use evenkeel_base::stats::{bias_pct, jain, mean};
use evenkeel_model::fair::{Capacity, FairGroup, FairTask, solve};
use serde::{Deserialize, Serialize};

use super::sample;
use super::stats::{self, Line, Summary, estimate, log_line, summary};
use super::window::{Window, competing, rate, span, work};
use crate::record::{Account, Cell, Ended, Host, Limits, RunRecord, TenantRecord};

/// A point of the sweep, studied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointStudy {
    pub index: usize,
    pub label: String,
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Why the host could not give it.
    pub unavailable: Option<String>,
    pub repetitions: usize,
    pub tenants: Vec<TenantStudy>,
    pub together: Together,
    /// What was out of the ordinary.
    pub notes: Vec<String>,
}

/// A tenant over all repetitions of a point. Times are seconds; means have a 95 % interval.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TenantStudy {
    pub name: String,
    pub units: Option<u64>,
    /// Where it lived.
    pub place: String,
    pub workload: String,
    pub threads: u32,
    pub limits: Limits,
    /// Runs counted, over all repetitions.
    pub runs: usize,
    /// Repetitions in which it did not end by itself, and how it ended.
    pub incomplete: Vec<String>,
    /// Length of a run.
    pub run_s: Option<Summary>,
    /// From the end of a run to the start of the next.
    pub gap_s: Option<Summary>,
    /// Events a second of a run (EPS).
    pub events_per_s: Option<Summary>,
    /// Verifications a second, of `openssl speed` (signatures are `events_per_s`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_per_s: Option<Summary>,
    /// From its first start to its last end.
    pub elapsed_s: Option<Estimate>,
    /// A run of it was cut off by the time limit: `elapsed_s` is a lower bound.
    #[serde(default)]
    pub cut_off: bool,
    /// Wait of a run as the source defines it: mean run - mean run alone of the same work.
    pub wait_per_run_s: Option<Estimate>,
    /// The same over all its runs in one repetition.
    pub wait_total_s: Option<f64>,
    /// Events a second in the window in which all tenants compete.
    pub competing_per_s: Option<Estimate>,
    /// Its share of all tenants' work in that window, percent.
    pub share_pct: Option<Estimate>,
    /// Its weight's share of all weights, percent.
    pub weight_pct: Option<f64>,
    /// The share it can have at most by weights, threads, quotas and CPUs (exact fair shares), percent.
    pub feasible_pct: Option<f64>,
    /// CPU time over real time, percent of ONE CPU.
    pub cpu_pct: Option<Estimate>,
    pub cpu_ms_per_event: Option<Estimate>,
    /// CPU time in user mode.
    pub user_s: Option<Estimate>,
    /// CPU time in the kernel.
    pub sys_s: Option<Estimate>,
    /// Waited for a CPU by the kernel's account (all threads, throttled time included).
    pub waited_s: Option<Estimate>,
    pub throttled_s: Option<Estimate>,
    pub stolen_s: Option<Estimate>,
    /// Involuntary switches for each CPU second.
    pub involuntary_per_cpu_s: Option<f64>,
    /// What the model expects: events a second.
    pub predicted_per_s: Option<f64>,
    /// What the model expects: length of a run.
    pub predicted_run_s: Option<f64>,
    /// What the model expects: from the release to its end.
    pub predicted_elapsed_s: Option<f64>,
    /// What the model expects: CPU time from the release to its end.
    #[serde(default)]
    pub predicted_cpu_s: Option<f64>,
    /// Why the model expects nothing.
    #[serde(default)]
    pub unpredicted: Option<String>,
}

/// All tenants of a point together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Together {
    /// From the release to the end of the last.
    pub seconds: Option<Estimate>,
    /// The window in which all compete: mean begin and end, seconds from the release.
    pub window_s: Option<[f64; 2]>,
    /// Events a second in it, all tenants.
    pub events_per_s: Option<Estimate>,
    /// Length of a run, all tenants.
    pub run_s: Option<Summary>,
    /// (max - min) / mean of what each got for its weight in the window, percent.
    pub bias_pct: Option<f64>,
    /// Jain's index of the same.
    pub jain: Option<f64>,
    /// Largest deviation of a share from the weight's share, percent of it.
    pub off_weights_pct: Option<f64>,
    /// Largest deviation of a share from the feasible one, percent of it.
    pub off_feasible_pct: Option<f64>,
    /// log2 of the rate against log2 of the weight: slope 1 is proportion.
    pub proportion: Option<Line>,
    /// From the instant of release to each wake-up, microseconds, largest.
    pub woken_late_usec_max: Option<f64>,
    /// From the instant of release to each first instruction, microseconds, largest.
    pub first_late_usec_max: Option<f64>,
    /// CPU of the harness, percent of ONE CPU, largest of the repetitions.
    pub harness_cpu_pct: Option<f64>,
    /// Steal seen by the host, seconds, sum of the repetitions.
    pub steal_s: Option<f64>,
}

/// Sums an optional quantity over tenants or cells; unknown if any part is.
fn each<T>(items: &[T], of: impl Fn(&T) -> Option<f64>) -> Option<Estimate> {
    let values: Vec<f64> = items.iter().map(of).collect::<Option<_>>()?;
    estimate(&values)
}

/// The account of a tenant in one cell: its total, or its runs' sum where the total is not known.
pub(super) fn total(tenant: &TenantRecord, of: impl Fn(&Account) -> Option<f64>) -> Option<f64> {
    of(&tenant.total).or_else(|| {
        if tenant.runs.is_empty() {
            return None;
        }
        tenant.runs.iter().map(|run| of(&run.account)).sum()
    })
}

/// Events of a tenant in one cell.
pub(super) fn events(tenant: &TenantRecord) -> Option<f64> {
    if tenant.runs.is_empty() {
        return None;
    }
    tenant.runs.iter().map(work).sum()
}

/// CPU milliseconds for an event of a tenant in one cell: from the runs where they are accounted for, since what lies between them
/// is no work.
pub(super) fn cpu_ms_per_event(tenant: &TenantRecord) -> Option<f64> {
    let of_runs: Option<f64> = tenant.runs.iter().map(|run| run.account.cpu_s()).sum();
    let cpu_s = of_runs.filter(|_| !tenant.runs.is_empty()).or_else(|| total(tenant, Account::cpu_s))?;
    Some(1000.0 * cpu_s / events(tenant)?).filter(|ms| ms.is_finite())
}

/// CPU time over real time of a tenant in one cell, percent of ONE CPU.
pub(super) fn cpu_pct(tenant: &TenantRecord) -> Option<f64> {
    let real_s = if tenant.total.real_s > 0.0 { tenant.total.real_s } else { span(tenant)?.seconds() };
    Some(100.0 * total(tenant, Account::cpu_s)? / real_s).filter(|pct| pct.is_finite())
}

/// CPU time of a run, where it is what there is to tell of its work.
fn cpu(run: &RunRecord) -> Option<f64> {
    run.account.cpu_s()
}

/// A tenant's weight among the others: shares, weight, or units; the default where none is set.
pub(super) fn weight(tenant: &TenantRecord) -> f64 {
    let l = &tenant.limits;
    let of_nice = |nice: i32| f64::from(evenkeel_base::Nice::new(nice).weight());
    match (l.shares, l.weight, tenant.units) {
        (Some(shares), _, _) => shares as f64,
        (None, Some(weight), _) => weight as f64 * 10.24,
        (None, None, Some(units)) => units as f64,
        // Processes in one group compete by nice.
        (None, None, None) if tenant.place == "process" => of_nice(l.nice.unwrap_or(0)),
        (None, None, None) => 1024.0,
    }
}

/// A host's CPUs as the fair-share solver takes them; `None` where their number is not known.
pub fn machine(host: &Host) -> Option<Capacity> {
    let cpus = host.cpus.filter(|cpus| (1..=4096).contains(cpus))?;
    Some(Capacity::time(&Topology::synthetic(1, 1, cpus, 1)))
}

/// The CPUs of a machine that each group gets by exact weighted max-min; with the group the CPUs that its threads want, and how many
/// these are.
pub fn shares(
    machine: &Capacity,
    groups: impl IntoIterator<Item = (FairGroup, f64, u32)>,
) -> Option<Vec<f64>> {
    let part = |(index, (group, wanted_cpus, threads))| {
        (group, FairTask { group: Some(index), weight: 1024.0, wanted_cpus, threads, cpus: None })
    };
    let (groups, tasks): (Vec<FairGroup>, Vec<FairTask>) = groups.into_iter().enumerate().map(part).unzip();
    Some(solve(machine, &groups, &tasks).ok()?.groups)
}

pub(super) fn group(tenant: &TenantRecord) -> FairGroup {
    FairGroup {
        parent: None,
        weight: weight(tenant),
        quota_cpus: tenant.limits.quota_pct.map(|pct| pct / 100.0),
        cpus: tenant.limits.cpus.clone(),
    }
}

/// Shares of tenants that want all they can get, in CPUs.
pub(super) fn feasible(host: &Host, tenants: &[TenantRecord]) -> Option<Vec<f64>> {
    let greedy = |tenant: &TenantRecord| (group(tenant), f64::INFINITY, tenant.threads.max(1));
    shares(&machine(host)?, tenants.iter().map(greedy))
}

/// What a command line runs, apart from how long, how much and when.
pub(super) fn kind(workload: &str) -> Vec<&str> {
    const LENGTHS: [&str; 6] = ["--seconds", "--time", "--events", "--threads", "--seed", "--start-at"];
    let mut words = Vec::new();
    let mut all = workload.split_ascii_whitespace();
    while let Some(word) = all.next() {
        if LENGTHS.contains(&word) {
            all.next();
        } else if !word.split_once('=').is_some_and(|(name, _)| LENGTHS.contains(&name)) {
            words.push(word);
        }
    }
    words
}

/// Whether what tenants count is the same piece of work: the same load, whatever its length. Events of unlike loads say
/// nothing of shares.
pub(super) fn alike(tenants: &[TenantRecord]) -> bool {
    tenants.windows(2).all(|pair| {
        pair[0].workload == pair[1].workload || kind(&pair[0].workload) == kind(&pair[1].workload)
    })
}

/// Rates of every tenant in every cell's window, and whether they are events: those only where all tenants run the same
/// load and count, else CPU time.
pub(super) fn rates(cells: &[&Cell]) -> (Vec<Vec<Option<f64>>>, bool) {
    let counted = |t: &TenantRecord| t.runs.is_empty() || events(t).is_some();
    let by_events = cells.iter().all(|cell| alike(&cell.tenants) && cell.tenants.iter().all(counted));
    let of = |tenant: &TenantRecord, window: Window| {
        if by_events { rate(tenant, window, work) } else { rate(tenant, window, cpu) }
    };
    let cell = |cell: &&Cell| {
        let window = competing(cell);
        // A neighbour that never ends has no whole run: CPU time over time tells. Those who ran by turns did not compete.
        let endless = !by_events && cell.tenants.iter().any(|t| t.runs.is_empty());
        let whole = |t: &TenantRecord| {
            let real = Some(t.total.real_s).filter(|s| *s > 0.0 && endless)?;
            Some(t.total.cpu_s()? / real)
        };
        cell.tenants.iter().map(|t| window.and_then(|w| of(t, w)).or_else(|| whole(t))).collect()
    };
    (cells.iter().map(cell).collect(), by_events)
}

/// Studies the cells of one point. `alone_s` gives the mean run of a tenant that does the same and has the host to itself.
pub(super) fn point(
    host: &Host,
    cells: &[&Cell],
    alone_s: impl Fn(&Cell, &TenantRecord) -> Option<Estimate>,
) -> Option<PointStudy> {
    let first = *cells.first()?;
    let done: Vec<&Cell> = cells.iter().copied().filter(|cell| !cell.tenants.is_empty()).collect();
    let names: Vec<&TenantRecord> =
        done.first().map(|cell| cell.tenants.iter().collect()).unwrap_or_default();
    let windows: Vec<Option<Window>> = done.iter().map(|cell| competing(cell)).collect();
    let (rates, by_events) = rates(&done);
    let mut tenants: Vec<TenantStudy> = (0..names.len())
        .map(|index| {
            let records: Vec<&TenantRecord> =
                done.iter().filter_map(|cell| cell.tenants.get(index)).collect();
            let taken: Vec<(f64, bool)> =
                done.iter().filter_map(|cell| sample::taken(cell, cell.tenants.get(index)?)).collect();
            let alone_s = done.first().and_then(|cell| alone_s(cell, records.first()?));
            let mut study = tenant(&records, &taken, alone_s);
            let own: Vec<f64> = rates.iter().filter_map(|cell| cell.get(index).copied().flatten()).collect();
            study.competing_per_s = estimate(&own).filter(|_| by_events);
            let share = |cell: &Vec<Option<f64>>| {
                let sum: f64 = cell.iter().copied().collect::<Option<Vec<f64>>>()?.iter().sum();
                Some(100.0 * cell.get(index).copied().flatten()? / sum).filter(|s| s.is_finite())
            };
            study.share_pct = estimate(&rates.iter().filter_map(share).collect::<Vec<_>>());
            let predicted = |of: &dyn Fn(&crate::record::Predicted) -> Option<f64>| {
                let values: Vec<f64> =
                    done.iter().filter_map(|cell| of(cell.predicted.as_ref()?.get(index)?)).collect();
                mean(&values)
            };
            study.predicted_per_s = predicted(&|p| p.events_per_s);
            study.predicted_run_s = predicted(&|p| p.run_s);
            study.predicted_elapsed_s = predicted(&|p| p.elapsed_s);
            study.predicted_cpu_s = predicted(&|p| Some(p.elapsed_s? * p.got_pct? / 100.0));
            study.unpredicted = done
                .iter()
                .find_map(|cell| cell.predicted.as_ref()?.get(index)?.unknown.clone())
                .filter(|_| study.predicted_elapsed_s.is_none());
            study
        })
        .collect();
    let together = together(host, &done, &windows, &rates, by_events, &mut tenants);
    let mut notes: Vec<String> = cells.iter().flat_map(|cell| cell.notes.iter().cloned()).collect();
    notes.sort();
    notes.dedup();
    Some(PointStudy {
        index: first.point.index,
        label: first.point.label.clone(),
        settings: first.point.settings.clone(),
        unavailable: first.point.unavailable.clone(),
        repetitions: done.len(),
        tenants,
        together,
        notes,
    })
}

fn tenant(records: &[&TenantRecord], taken: &[(f64, bool)], alone_s: Option<Estimate>) -> TenantStudy {
    let runs = |of: &dyn Fn(&RunRecord) -> Option<f64>| -> Vec<Vec<f64>> {
        records.iter().map(|t| t.runs.iter().filter_map(of).collect()).collect()
    };
    let run_s = summary(&runs(&RunRecord::length_s));
    let gaps: Vec<Vec<f64>> = records
        .iter()
        .map(|t| t.runs.windows(2).map(|pair| pair[1].start_s - pair[0].end_s).collect())
        .collect();
    let account = |of: &dyn Fn(&Account) -> Option<f64>| each(records, |t| total(t, of));
    let counted: usize = records.iter().map(|t| t.runs.len()).sum();
    let wait = run_s.zip(alone_s).map(|(run, alone)| stats::difference(run.estimate(), alone));
    let first = records.first();
    TenantStudy {
        name: first.map(|t| t.name.clone()).unwrap_or_default(),
        units: first.and_then(|t| t.units),
        place: first.map(|t| t.place.clone()).unwrap_or_default(),
        workload: first.map(|t| t.workload.clone()).unwrap_or_default(),
        threads: first.map_or(1, |t| t.threads),
        limits: first.map(|t| t.limits.clone()).unwrap_or_default(),
        runs: counted,
        incomplete: records
            .iter()
            .filter_map(|t| match &t.ended {
                Ended::Done => None,
                Ended::Died(how) => Some(format!("died: {how}")),
                Ended::TimeLimit(limit) => Some(format!("still there after {limit}")),
                Ended::Interrupted => Some("interrupted".into()),
            })
            .collect(),
        run_s,
        gap_s: summary(&gaps),
        verify_per_s: summary(&runs(&|run| run.verify_per_s)),
        events_per_s: summary(&runs(&sample::events_per_s)),
        elapsed_s: estimate(&taken.iter().map(|(s, _)| *s).collect::<Vec<_>>()),
        cut_off: taken.iter().any(|(_, cut)| *cut),
        wait_per_run_s: wait,
        wait_total_s: wait.map(|w| w.value * counted as f64 / records.len().max(1) as f64),
        cpu_pct: each(records, |t| cpu_pct(t)),
        cpu_ms_per_event: each(records, |t| cpu_ms_per_event(t)),
        user_s: account(&|a| a.user_s),
        sys_s: account(&|a| a.sys_s),
        waited_s: account(&|a| a.waited_s),
        throttled_s: account(&|a| a.throttled_s),
        stolen_s: account(&|a| a.stolen_s),
        involuntary_per_cpu_s: each(records, |t| {
            Some(total(t, |a| a.involuntary.map(|n| n as f64))? / total(t, Account::cpu_s)?)
                .filter(|v| v.is_finite())
        })
        .map(|e| e.value),
        ..TenantStudy::default()
    }
}

fn together(
    host: &Host,
    cells: &[&Cell],
    windows: &[Option<Window>],
    rates: &[Vec<Option<f64>>],
    by_events: bool,
    tenants: &mut [TenantStudy],
) -> Together {
    let most = |values: Vec<f64>| values.into_iter().max_by(f64::total_cmp);
    let releases = |of: &dyn Fn(&TenantRecord) -> Option<f64>| {
        most(cells.iter().flat_map(|cell| cell.tenants.iter().filter_map(of)).collect())
    };
    let seen: Vec<Window> = windows.iter().copied().flatten().collect();
    let sums: Vec<f64> = rates
        .iter()
        .filter_map(|cell| cell.iter().copied().sum::<Option<f64>>())
        .filter(|s| *s > 0.0)
        .collect();
    let mut together = Together {
        seconds: estimate(&cells.iter().map(|cell| cell.seconds).collect::<Vec<_>>()),
        window_s: mean(&seen.iter().map(|w| w.from_s).collect::<Vec<_>>())
            .zip(mean(&seen.iter().map(|w| w.to_s).collect::<Vec<_>>()))
            .map(|(from, to)| [from, to]),
        events_per_s: estimate(&sums).filter(|_| by_events && !seen.is_empty()),
        run_s: summary(&cells.iter().map(|cell| cell.run_lengths_s().collect()).collect::<Vec<_>>()),
        woken_late_usec_max: releases(&|t| t.release.woken_late_usec),
        first_late_usec_max: releases(&|t| t.release.first_instruction_late_usec),
        harness_cpu_pct: most(cells.iter().filter_map(|cell| cell.host.harness_cpu_pct).collect()),
        steal_s: cells.iter().map(|cell| cell.host.steal_s).sum(),
        ..Together::default()
    };
    let Some(cell) = cells.first().filter(|cell| cell.tenants.len() > 1) else { return together };
    let weights: Vec<f64> = cell.tenants.iter().map(weight).collect();
    let all: f64 = weights.iter().sum();
    let possible = feasible(host, &cell.tenants);
    for (index, study) in tenants.iter_mut().enumerate() {
        study.weight_pct = weights.get(index).map(|w| 100.0 * w / all);
        study.feasible_pct = possible.as_ref().and_then(|shares| {
            let sum: f64 = shares.iter().sum();
            Some(100.0 * shares.get(index)? / sum).filter(|s| s.is_finite())
        });
    }
    // Everyone's share must be known for statements about all.
    let shares: Option<Vec<f64>> = tenants.iter().map(|t| t.share_pct.map(|s| s.value)).collect();
    if let Some(shares) = shares.filter(|s| !s.is_empty()) {
        let for_weight: Vec<f64> = shares.iter().zip(&weights).map(|(s, w)| s / w).collect();
        together.bias_pct = bias_pct(&for_weight);
        together.jain = jain(&for_weight);
        let off = |of: &dyn Fn(&TenantStudy) -> Option<f64>| {
            let offs: Option<Vec<f64>> = tenants
                .iter()
                .zip(&shares)
                .map(|(t, s)| Some(100.0 * (s / of(t)? - 1.0).abs()).filter(|v| v.is_finite()))
                .collect();
            most(offs?)
        };
        together.off_weights_pct = off(&|t| t.weight_pct);
        together.off_feasible_pct = off(&|t| t.feasible_pct);
        let points: Vec<(f64, f64)> = weights.iter().copied().zip(shares.iter().copied()).collect();
        together.proportion = log_line(&points);
    }
    together
}

#[cfg(test)]
mod tests;
