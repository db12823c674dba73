//! From an experiment's tenants to what the simulator takes, or why it has no say.

use std::ops::Range;

use evenkeel_base::{Nice, SchedAttr};
use evenkeel_experiment::file::{Experiment, MachineSpec, Place, Tenant, TenantSpec};
use evenkeel_experiment::record::{Host, Limits};
use evenkeel_model::sim::{DutyKind, Group, Kernel, Load, Machine, Scenario, Task};

use super::super::order::Work;
use super::super::work;
use super::sysbench;
use crate::cost;
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::sieve::ReadMode;
use evenkeel_workload::{Kind, duty};

/// Most items of a shared counter: more events are taken several at a time.
const MOST_ITEMS: u64 = 200_000;
/// Most numbers a sieve is simulated for, and the largest limit of `primes`: beyond, counting their divisions takes too long.
const MOST_NUMBERS: u64 = 1_000_000;

/// A cell for the simulator.
pub(super) struct Translated {
    pub scenario: Scenario,
    /// What became of each tenant, in their order.
    pub parts: Vec<Part>,
}

/// A tenant in a scenario.
pub(super) struct Part {
    pub tenant: Tenant,
    pub tasks: Range<usize>,
    /// Its group; `None` for plain processes.
    pub group: Option<usize>,
    /// For runs of so many events: which counter its threads share, and the events of a run.
    pub counter: Option<(usize, u64)>,
    pub limits: Limits,
    pub threads: u32,
}

/// What one thread does, for so long or for so many events.
enum Job {
    /// Runs that end by the clock, each counting events of a cost in nanoseconds.
    Timed { run_s: f64, event_ns: u64 },
    /// Items that the threads share: nanoseconds of each, and the events they are.
    Shared { items: Vec<u32>, events: u64 },
    /// Goes on until its time is over.
    Endless(Load),
}

/// Translates a cell. The message says which tenant cannot be simulated, and why.
pub(super) fn translate(
    experiment: &Experiment,
    host: &Host,
    v2: bool,
    repetition: u32,
) -> Result<Translated, String> {
    let factor = experiment.unit_factor(v2).map_err(|e| e.to_string())?;
    let mut scenario = match &experiment.machine {
        Some(machine) => machine.scenario()?,
        None => machine(host)?.scenario()?,
    };
    scenario.seed = experiment.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(repetition) * 10_007);
    scenario.measure_from_ns = 0;
    scenario.stop_when_done = true;
    let rate = rate(experiment, host, &mut scenario.machine)?;
    // A division of the sieve is a little cheaper than one of `primes`, which compares as floating point.
    let measured = host.primes_per_s.zip(host.divisions_per_s.filter(|rate| *rate > 0.0));
    let division_s =
        measured.map_or_else(|| cost::division_s(rate), |(one, divisions)| one / rate / divisions);
    let speed = Speed { rate, division_s };
    let mut parts = Vec::new();
    for tenant in experiment.tenants() {
        let spec = &experiment.tenants[tenant.spec];
        let part = add(&mut scenario, experiment, tenant, spec, speed, (factor, v2))?;
        parts.push(part);
    }
    scenario.duration_ns = (work::time_limit_s(experiment).min(2e6) * 1e9) as u64;
    Ok(Translated { scenario, parts })
}

/// What one undisturbed thread does.
#[derive(Debug, Clone, Copy)]
struct Speed {
    /// Events of `primes` a second.
    rate: f64,
    /// One division of `sieve`, seconds.
    division_s: f64,
}

/// Events of `primes` a second of one undisturbed thread, as the simulated CPUs do them. Siblings slow each other down in the
/// simulator; what else makes every CPU slower while all are busy is in the rate.
fn rate(experiment: &Experiment, host: &Host, machine: &mut Machine) -> Result<f64, String> {
    let one = host.primes_per_s.ok_or("what one thread does here is not known")?;
    let cpus = f64::from(host.cpus.unwrap_or(1).max(1));
    let all = host.primes_per_s_all.unwrap_or(one * cpus);
    if experiment.machine.is_some() {
        return Ok(one);
    }
    if host.threads_per_core == Some(2) && machine.topology.cpus.iter().any(|c| c.siblings.len() > 1) {
        machine.smt_speedup = (2.0 * all / (cpus * one)).clamp(1.0, 2.0);
        return Ok(one);
    }
    let threads: u64 =
        experiment.tenants().iter().map(|t| u64::from(experiment.tenants[t.spec].threads)).sum();
    Ok(if threads as f64 >= cpus { all / cpus } else { one })
}

fn add(
    scenario: &mut Scenario,
    experiment: &Experiment,
    tenant: Tenant,
    spec: &TenantSpec,
    speed: Speed,
    (factor, v2): (Option<f64>, bool),
) -> Result<Part, String> {
    let why = |what: String| format!("tenant {}: {what}", tenant.name);
    let load = match work::work(&tenant, spec, 1).map_err(|e| e.to_string())? {
        Work::Load(load) => *load,
        Work::Command(words) => sysbench::load(&words).map_err(why)?,
    };
    let job = job(&load, spec, speed).map_err(why)?;
    let wanted = work::wanted(&tenant, spec, factor, v2);
    let cpus = match (&spec.cpus, &experiment.cpus) {
        (Some(a), Some(b)) => Some(a.intersection(b)),
        (a, b) => a.clone().or_else(|| b.clone()),
    };
    let in_group = spec.place != Place::Process;
    let group = in_group.then(|| {
        scenario.groups.push(Group {
            name: tenant.name.clone(),
            weight: work::load_weight(wanted.weight, v2),
            cpus: cpus.clone(),
            ..spec.limits().group()
        });
        scenario.groups.len() - 1
    });
    let runs = spec.runs;
    let start_ns = (spec.start_s * 1e9) as u64;
    let (kind, until_ns, counter) = match job {
        Job::Timed { run_s, event_ns } => {
            let run_ns = ((run_s * 1e9) as u64).max(1_000_000);
            let load = Load::Runs { run_ns, runs, event_ns, overhead_work_ns: 100_000, overhead_sleep_ns: 0 };
            (load, None, None)
        }
        Job::Shared { items, events } => {
            scenario.counters.push(items);
            let counter = scenario.counters.len() - 1;
            (Load::Counter { counter, rounds: runs }, None, Some((counter, events)))
        }
        Job::Endless(load) => {
            let all_s = spec.run_s.filter(|_| !spec.background).map(|run_s| run_s * f64::from(runs));
            (load, all_s.map(|s| start_ns + (s * 1e9) as u64), None)
        }
    };
    let first = scenario.tasks.len();
    let threads = load.common.thread_count();
    for thread in 0..threads {
        let mut task = Task::new(format!("{}.{thread}", tenant.name), group, kind.clone());
        task.attr = SchedAttr {
            policy: spec.policy,
            nice: Nice::new(spec.nice),
            slice_ns: spec.slice_ms.map(|ms| (ms * 1e6) as u64),
            ..SchedAttr::DEFAULT
        };
        (task.start_ns, task.until_ns) = (start_ns, until_ns);
        if !in_group {
            task.cpus.clone_from(&cpus);
        }
        scenario.tasks.push(task);
    }
    let weight = wanted.weight.filter(|_| in_group);
    let limits = Limits {
        weight: weight.filter(|_| v2),
        shares: weight.filter(|_| !v2),
        unit_factor: tenant.units.and(factor),
        quota_pct: spec.quota_pct,
        period_usec: spec.quota_pct.map(|_| spec.period_usec),
        burst_usec: spec.quota_pct.map(|_| spec.burst_usec),
        cpus,
        nice: Some(spec.nice).filter(|nice| *nice != 0),
        policy: Some(spec.policy.to_string()).filter(|_| spec.policy != SchedAttr::DEFAULT.policy),
        slice_ms: spec.slice_ms,
        memory_bytes: spec.memory_bytes,
    };
    Ok(Part { tasks: first..scenario.tasks.len(), tenant, group, counter, limits, threads })
}

/// What a tenant does, in the simulator's terms.
fn job(load: &LoadSpec, spec: &TenantSpec, Speed { rate, division_s }: Speed) -> Result<Job, String> {
    let (seconds, events) = (load.common.seconds, load.common.events);
    let name = load.kind.name();
    if spec.background {
        return match &load.kind {
            Kind::Spin(_) | Kind::Primes(_) | Kind::Flops(_) => Ok(Job::Endless(Load::Spin)),
            Kind::Sieve(sieve) if sieve.read == ReadMode::None => Ok(Job::Endless(Load::Spin)),
            Kind::Duty(duty) => Ok(Job::Endless(duty_load(duty))),
            Kind::Idle(_) => Ok(Job::Endless(Load::Idle)),
            _ => Err(beyond(&name)),
        };
    }
    match &load.kind {
        Kind::Primes(primes) => {
            if primes.max_prime > MOST_NUMBERS {
                return Err(format!("primes up to more than {MOST_NUMBERS} are not simulated"));
            }
            let passes = cost::of_a_pass(primes.max_prime) as f64 / cost::of_a_pass(10_000) as f64;
            let event_ns = (passes * 1e9 / rate).max(1_000.0);
            match (seconds, events) {
                (Some(run_s), None) => Ok(Job::Timed { run_s, event_ns: event_ns as u64 }),
                (None, Some(events)) => shared(events, |from, to| (to - from) as f64 * event_ns),
                // At full speed the events are not reached in that time: only time ends it.
                (Some(run_s), Some(events)) if events as f64 * event_ns >= run_s * 1e9 => {
                    Ok(Job::Timed { run_s, event_ns: event_ns as u64 })
                }
                (Some(_), Some(_)) => Err("what ends by time or by events, whichever comes first, is not \
                                           simulated: give run_s or events"
                    .into()),
                (None, None) => Err("it has no end".into()),
            }
        }
        Kind::Sieve(sieve) => {
            if sieve.read != ReadMode::None {
                return Err(
                    "reads of files are not simulated (sieve --read); what a system call costs is measured only"
                        .into(),
                );
            }
            if seconds.is_some() {
                return Err("a sieve that is ended by time is not simulated; leave out run_s".into());
            }
            let all = sieve.to.saturating_sub(sieve.from).saturating_add(1);
            let count = events.unwrap_or(all).min(all);
            if count > MOST_NUMBERS {
                return Err(format!("a sieve of more than {MOST_NUMBERS} numbers is not simulated"));
            }
            let division_ns = 1e9 * division_s;
            shared(count, |from, to| {
                (from..to).map(|n| cost::of_a_number(sieve.from + n) as f64 * division_ns).sum()
            })
        }
        Kind::Spin(_) | Kind::Flops(_) | Kind::Duty(_) | Kind::Idle(_)
            if events.is_some() || seconds.is_none() =>
        {
            Err(format!("{name} is simulated for a time only: give run_s, not events"))
        }
        Kind::Spin(_) | Kind::Flops(_) => Ok(Job::Endless(Load::Spin)),
        Kind::Duty(duty) => Ok(Job::Endless(duty_load(duty))),
        Kind::Idle(_) => Ok(Job::Endless(Load::Idle)),
        _ => Err(beyond(&name)),
    }
}

fn beyond(name: &str) -> String {
    format!("{name}: memory and networks are not simulated, only what computes")
}

/// Work of so many events. `cost_ns` tells what those from the first to before the last named cost, nanoseconds.
fn shared(events: u64, cost_ns: impl Fn(u64, u64) -> f64) -> Result<Job, String> {
    let batch = events.div_ceil(MOST_ITEMS).max(1);
    let items = (0..events.div_ceil(batch)).map(|item| {
        let ns = cost_ns(item * batch, ((item + 1) * batch).min(events));
        if ns < f64::from(u32::MAX) {
            Ok(ns.max(0.0) as u32)
        } else {
            Err("an event takes too long".to_owned())
        }
    });
    Ok(Job::Shared { items: items.collect::<Result<_, _>>()?, events })
}

fn duty_load(duty: &duty::Duty) -> Load {
    Load::Duty {
        percent: duty.percent,
        period_ns: u64::try_from(duty.period.as_nanos()).unwrap_or(u64::MAX),
        jitter: duty.jitter / 100.0,
        kind: match duty.kind {
            duty::DutyKind::Wall => DutyKind::Wall,
            duty::DutyKind::Closed => DutyKind::Closed,
            duty::DutyKind::Open => DutyKind::Open,
        },
    }
}

/// A machine like the host, from what the record keeps of it.
fn machine(host: &Host) -> Result<MachineSpec, String> {
    let cpus = host.cpus.ok_or("the number of CPUs is not known")?.max(1);
    let (threads, nodes) = (host.threads_per_core.unwrap_or(1).max(1), host.nodes.unwrap_or(1).max(1));
    let cores = cpus / threads;
    let even = cores > 0 && cores.is_multiple_of(nodes) && cores * threads == cpus;
    let (cores, threads_per_core, nodes) = if even { (cores, threads, nodes) } else { (cpus, 1, 1) };
    let mut machine = MachineSpec { threads_per_core, nodes, ..MachineSpec::new(cores) };
    if let Some(release) = host.kernel.as_ref().filter(|release| Kernel::of(release).is_some()) {
        machine.kernel.clone_from(release);
    }
    Ok(machine)
}
