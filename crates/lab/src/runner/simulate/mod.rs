//! Experiments on the simulated scheduler: the same file and the same record as [`super::run`], but nothing is run. What `lab
//! run` shows as predicted is made from the same cells.

use evenkeel_experiment::file::{Experiment, Place};
use evenkeel_experiment::record::{
    Account, Cell, Ended, Host, Limits, MEASURED, Record, Release, Requirement, RunRecord, StealRecord,
    TenantRecord,
};
use evenkeel_model::credit::{self, Job};
use evenkeel_model::sim::{self, Load, Report, Scenario};

use super::about::{About, empty, label};
use super::order::Work;
use super::{Progress, RunError, now, work};
use evenkeel_workload::Kind;

mod scenario;
mod sysbench;
#[cfg(test)]
mod tests;

use scenario::{Part, Translated, translate};

/// CPU seconds of work above which a cell is not simulated by [`simulate`].
const MOST_CPU_S: f64 = 200_000.0;

/// Simulates every cell of an experiment on a machine as `host` describes it (CPUs, threads of a core, kernel, what one
/// thread of `primes` does there). The record is the one `lab run` would have made, as far as the models have a say; the
/// same for the same seed, but for the time of day.
///
/// # Errors
/// None of the points can be simulated, or there are fewer cells than shards; the message says why.
pub fn simulate(
    experiment: &Experiment,
    about: &About,
    host: &Host,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Record, RunError> {
    let points = experiment.points().map_err(|e| RunError::Usage(e.to_string()))?;
    let all = points.len() * experiment.repetitions as usize;
    about.shard.map_or(Ok(()), |shard| shard.check(all, "cell")).map_err(RunError::Usage)?;
    let has = |repetition: u32, point: usize| {
        about.shard.is_none_or(|shard| shard.has_cell(points.len(), point, repetition))
    };
    let of_shard = |repetition| (0..points.len()).filter(move |point| has(repetition, *point)).count();
    let planned = (0..experiment.repetitions).map(of_shard).sum();
    let mut record = empty(experiment, about, host.clone(), vec![simulated(host)], planned);
    let of = record.planned_cells;
    let mut refused = None;
    for repetition in 0..experiment.repetitions {
        for planned in points.iter().filter(|planned| has(repetition, planned.point.index)) {
            let label = label(experiment, planned);
            progress(Progress { done: record.cells.len(), of, label, part: 0.0 });
            let mut point = planned.point.clone();
            let mut tenants = Vec::new();
            if point.unavailable.is_none() {
                match self::cell(&planned.experiment, host, repetition, MOST_CPU_S) {
                    Ok(made) => tenants = made,
                    Err(why) => {
                        refused.get_or_insert_with(|| why.clone());
                        point.unavailable = Some(format!("not simulated: {why}"));
                    }
                }
            }
            let foreground = |t: &&TenantRecord| t.runs_planned > 0;
            let enforcer = enforcer(&planned.experiment, &tenants);
            let ends = tenants.iter().filter(foreground).flat_map(|t| &t.runs).map(|run| run.end_s);
            // Who was cut off was there until then.
            let cut = |t: &&TenantRecord| matches!(t.ended, Ended::TimeLimit(_));
            let cut = tenants.iter().filter(foreground).filter(cut).map(|t| t.total.real_s);
            let ends = ends.chain(cut);
            record.cells.push(Cell {
                point,
                repetition,
                seconds: ends.fold(0.0, f64::max),
                activation: (0..tenants.len()).collect(),
                tenants,
                enforcer,
                ..Cell::default()
            });
        }
    }
    // Another shard may have cells that can be simulated.
    let nothing = about.shard.is_none() && record.cells.iter().all(|cell| cell.tenants.is_empty());
    if let (true, Some(why)) = (nothing, refused) {
        return Err(RunError::Missing(format!("{}: {why}", experiment.name)));
    }
    record.finished = Some(now());
    Ok(record)
}

/// What the rule in force did, as far as the tenants' accounts tell: points under different rules must be told apart.
fn enforcer(experiment: &Experiment, tenants: &[TenantRecord]) -> Option<StealRecord> {
    let enforcer = experiment.enforcer.as_ref().filter(|_| !tenants.is_empty())?;
    let sum = |of: fn(&Account) -> Option<f64>| tenants.iter().filter_map(|t| of(&t.total)).sum::<f64>();
    let (given_s, stolen_s) = (sum(Account::cpu_s), sum(|a| a.stolen_s));
    Some(StealRecord {
        rule: enforcer.rule,
        time_scale: enforcer.time_scale,
        demanded_s: given_s + stolen_s,
        given_s,
        stolen_s,
        ..StealRecord::default()
    })
}

/// What every reader of a simulated record must know first.
fn simulated(host: &Host) -> Requirement {
    let known = |value: Option<String>| value.unwrap_or_else(|| "unknown".into());
    Requirement::new(
        MEASURED,
        Some(false),
        format!(
            "simulated: {}, Linux {}, {} events of primes a second and CPU",
            host.cpus
                .map_or_else(|| "unknown CPUs".into(), |n| evenkeel_base::text::count(n as usize, "CPU")),
            known(host.kernel.clone()),
            known(host.primes_per_s.map(|rate| format!("{rate:.0}"))),
        ),
        "every figure is the model's; nothing was run",
    )
}

/// What the models say the tenants of a cell would do, in their order. The message says why they have no say.
pub(super) fn cell(
    experiment: &Experiment,
    host: &Host,
    repetition: u32,
    most_cpu_s: f64,
) -> Result<Vec<TenantRecord>, String> {
    if experiment.enforcer.is_some() {
        return credits(experiment, host).map(|one| vec![one]);
    }
    let v2 = host.tenants_v2.unwrap_or(true);
    let Translated { scenario, parts } = translate(experiment, host, v2, repetition)?;
    let cpu_s = cpu_s(&scenario);
    if cpu_s > most_cpu_s {
        return Err(format!(
            "{cpu_s:.0} CPU seconds of work are more than the {most_cpu_s:.0} worth simulating"
        ));
    }
    let report = sim::simulate(&scenario).map_err(|e| e.to_string())?;
    Ok(parts.into_iter().map(|part| tenant(experiment, part, &report)).collect())
}

/// CPU time the tasks that end want at most, seconds.
fn cpu_s(scenario: &Scenario) -> f64 {
    let of = |task: &sim::Task| match &task.load {
        Load::Runs { run_ns, runs, .. } => *run_ns as f64 / 1e9 * f64::from(*runs),
        _ => task.until_ns.map_or(0.0, |until| until.saturating_sub(task.start_ns) as f64 / 1e9),
    };
    let mut rounds = vec![0; scenario.counters.len()];
    for task in &scenario.tasks {
        if let Load::Counter { counter, rounds: of } = task.load
            && let Some(rounds) = rounds.get_mut(counter)
        {
            *rounds = of;
        }
    }
    let shared =
        scenario.counters.iter().zip(rounds).map(|(items, rounds)| {
            items.iter().map(|ns| f64::from(*ns) / 1e9).sum::<f64>() * f64::from(rounds)
        });
    scenario.tasks.iter().map(of).chain(shared).sum()
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A tenant's part of a report as `lab run` would have recorded it. All CPU time counts as user time.
fn tenant(experiment: &Experiment, part: Part, report: &Report) -> TenantRecord {
    let spec = &experiment.tenants[part.tenant.spec];
    let tasks = &report.tasks[part.tasks.clone()];
    let group = part.group.and_then(|group| report.groups.get(group)).filter(|_| spec.quota_pct.is_some());
    let ended_ns = tasks.iter().map(|t| t.ended_ns).collect::<Option<Vec<u64>>>();
    let over = ended_ns.as_ref().and_then(|all| all.iter().max().copied());
    let end_s = seconds(over.unwrap_or(report.end_ns));
    let total = Account {
        real_s: (end_s - spec.start_s).max(0.0),
        user_s: Some(tasks.iter().map(|t| t.got_s).sum()),
        sys_s: Some(0.0),
        waited_s: Some(tasks.iter().map(|t| t.waited_s).sum()),
        throttled_s: group.map(|g| g.throttled_s),
        throttled_count: group.map(|g| g.throttled_periods),
        stolen_s: None,
        voluntary: Some(tasks.iter().map(|t| t.voluntary).sum()),
        involuntary: Some(tasks.iter().map(|t| t.involuntary).sum()),
        migrations: Some(tasks.iter().map(|t| t.migrations).sum()),
    };
    let timed = tasks.iter().map(|t| t.runs.len()).min().filter(|runs| *runs > 0);
    let done = over.is_some() || spec.background;
    let runs = match (part.counter, timed) {
        (Some((counter, events)), _) => {
            rounds(report.rounds.get(counter).map_or(&[], Vec::as_slice), events, spec.start_s, &total)
        }
        (None, Some(count)) => (0..count).map(|n| timed_run(tasks, n)).collect(),
        // Without runs of its own: equal parts of the whole.
        (None, None) if spec.background => equal(1, spec.start_s, end_s, &total),
        (None, None) => {
            let runs = equal(spec.runs, spec.start_s, end_s, &total).into_iter();
            runs.map(|run| RunRecord { cut_off: !done, ..run }).collect()
        }
    };
    TenantRecord {
        name: part.tenant.name,
        units: part.tenant.units,
        place: if spec.place == Place::Process { "process" } else { "cgroup" }.to_owned(),
        limits: part.limits,
        workload: work::text(spec),
        threads: part.threads,
        runs_planned: if spec.background { 0 } else { spec.runs },
        release: Release::default(),
        ended: if done {
            Ended::Done
        } else {
            Ended::TimeLimit(format!("{} s", work::time_limit_s(experiment)))
        },
        total,
        runs,
    }
}

/// A run that the clock ends, of all threads together.
fn timed_run(tasks: &[sim::TaskReport], number: usize) -> RunRecord {
    let own: Vec<&sim::Run> = tasks.iter().filter_map(|t| t.runs.get(number)).collect();
    let start_s = seconds(own.iter().map(|run| run.started_ns).min().unwrap_or(0));
    let end_s = seconds(own.iter().map(|run| run.ended_ns).max().unwrap_or(0));
    RunRecord {
        number: number as u32,
        start_s,
        end_s,
        events: Some(own.iter().map(|run| run.events).sum()),
        events_per_s: Some(own.iter().map(|run| run.events_per_s()).sum()),
        account: Account {
            real_s: end_s - start_s,
            user_s: Some(own.iter().map(|run| seconds(run.got_ns)).sum()),
            sys_s: Some(0.0),
            waited_s: Some(own.iter().map(|run| seconds(run.waited_ns)).sum()),
            ..Account::default()
        },
        ..RunRecord::default()
    }
}

/// Runs of so many events each, from when each was done. They do the same work, so each has the same part of the CPU time.
fn rounds(done_ns: &[u64], events: u64, start_s: f64, total: &Account) -> Vec<RunRecord> {
    let part = |value: Option<f64>| value.map(|v| v / done_ns.len().max(1) as f64);
    let mut from = start_s;
    let run = |(number, done): (usize, &u64)| {
        let (start_s, end_s) = (from, seconds(*done));
        from = end_s;
        RunRecord {
            number: number as u32,
            start_s,
            end_s,
            events: Some(events),
            events_per_s: Some(events as f64 / (end_s - start_s)).filter(|rate| rate.is_finite()),
            account: Account {
                real_s: end_s - start_s,
                user_s: part(total.user_s),
                sys_s: Some(0.0),
                ..Account::default()
            },
            ..RunRecord::default()
        }
    };
    done_ns.iter().enumerate().map(run).collect()
}

fn equal(runs: u32, start_s: f64, end_s: f64, total: &Account) -> Vec<RunRecord> {
    let count = f64::from(runs.max(1));
    let each = (end_s - start_s).max(0.0) / count;
    let part = |value: Option<f64>| value.map(|v| v / count);
    (0..runs)
        .map(|number| RunRecord {
            number,
            start_s: start_s + each * f64::from(number),
            end_s: start_s + each * f64::from(number + 1),
            account: Account {
                real_s: each,
                user_s: part(total.user_s),
                sys_s: Some(0.0),
                waited_s: part(total.waited_s),
                ..Account::default()
            },
            ..RunRecord::default()
        })
        .collect()
}

/// One job under a rule that plays the hypervisor.
fn credits(experiment: &Experiment, host: &Host) -> Result<TenantRecord, String> {
    let enforcer = experiment.enforcer.as_ref().ok_or("no enforcer")?;
    let [tenant]: [_; 1] = experiment
        .tenants()
        .try_into()
        .map_err(|_| "the credit model knows one tenant alone under a steal emulator".to_owned())?;
    let spec = &experiment.tenants[tenant.spec];
    let load = match work::work(&tenant, spec, 0).map_err(|e| e.to_string())? {
        Work::Load(load) => *load,
        Work::Command(words) => sysbench::load(&words)?,
    };
    let events = match (&load.kind, load.common.events) {
        (Kind::Primes(primes), Some(events))
            if primes.max_prime == 10_000 && load.common.seconds.is_none() =>
        {
            events
        }
        _ => {
            return Err(
                "under a steal emulator the credit model knows jobs of so many events of primes alone".into(),
            );
        }
    };
    let rate = host.primes_per_s.ok_or("what one thread does here is not known")?;
    let cpu_s = events as f64 / rate * f64::from(spec.runs);
    let job = Job { cpu_s: cpu_s * enforcer.time_scale, busy: 1.0 };
    let outcome = credit::run(&enforcer.rule, job, spec.quota_pct.map(|pct| pct / 100.0));
    let scaled = |s: f64| s / enforcer.time_scale;
    let real_s = outcome.real_s.map(scaled);
    let limit_s = work::time_limit_s(experiment);
    let total = Account {
        real_s: real_s.unwrap_or(limit_s),
        user_s: real_s.map(|_| cpu_s),
        sys_s: real_s.map(|_| 0.0),
        stolen_s: Some(scaled(outcome.stolen_s)),
        ..Account::default()
    };
    let mut runs = real_s.map_or_else(Vec::new, |s| equal(spec.runs, spec.start_s, spec.start_s + s, &total));
    for run in &mut runs {
        run.events = Some(events);
        run.events_per_s = Some(events as f64 / run.account.real_s).filter(|rate| rate.is_finite());
        run.account.stolen_s = total.stolen_s.map(|s| s / f64::from(spec.runs));
    }
    Ok(TenantRecord {
        name: tenant.name,
        units: tenant.units,
        place: "cgroup".into(),
        limits: Limits { quota_pct: spec.quota_pct, ..Limits::default() },
        workload: work::text(spec),
        threads: 1,
        runs_planned: spec.runs,
        release: Release::default(),
        ended: if real_s.is_some() { Ended::Done } else { Ended::TimeLimit(format!("{limit_s} s")) },
        total,
        runs,
    })
}
