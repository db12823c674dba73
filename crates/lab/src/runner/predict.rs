//! What the models say a cell's tenants would do: the simulator for loads it knows, the credit model under an
//! enforcer. Made from the experiment and from what one thread does on this host undisturbed.

use evenkeel_base::{CpuQuota, Limit, Nice, SchedAttr, Topology};
use evenkeel_model::credit::{self, Job};
use evenkeel_model::laboratory::Experiment;
use evenkeel_model::sim::{self, DutyKind, Group, Kernel, Load, Machine, Scenario, Task};

use super::order::Work;
use super::work;
use crate::record::{Host, Predicted};
use crate::workload::Kind;
use crate::workload::duty;

/// Simulated CPU seconds above which it is not worth the wait.
const MOST_CPU_S: f64 = 3000.0;

/// One prediction a tenant, in their order; `None` where the models have no say.
pub(super) fn predict(experiment: &Experiment, host: &Host, v2: bool) -> Option<Vec<Predicted>> {
    match &experiment.enforcer {
        Some(_) => credits(experiment, host).map(|one| vec![one]),
        None => simulated(experiment, host, v2),
    }
}

/// CPU seconds of a job of so many events, at full speed.
fn job_s(work: &Work, host: &Host) -> Option<f64> {
    match work {
        Work::Load(load) => match (&load.kind, load.common.events) {
            (Kind::Primes(primes), Some(events)) if primes.max_prime == 10_000 => {
                Some(events as f64 / host.primes_per_s?)
            }
            _ => None,
        },
        Work::Command(_) => None,
    }
}

fn credits(experiment: &Experiment, host: &Host) -> Option<Predicted> {
    let enforcer = experiment.enforcer.as_ref()?;
    let [tenant] = experiment.tenants().try_into().ok()?;
    let spec = &experiment.tenants[tenant.spec];
    let cpu_s = job_s(&work::work(&tenant, spec, 0).ok()?, host)? * f64::from(spec.runs);
    let job = Job { cpu_s: cpu_s * enforcer.time_scale, busy: 1.0 };
    let outcome = credit::run(&enforcer.rule, job, spec.quota_pct.map(|pct| pct / 100.0));
    let scaled = |s: f64| s / enforcer.time_scale;
    let elapsed_s = outcome.real_s.map(scaled);
    Some(Predicted {
        by: "credits".into(),
        elapsed_s,
        run_s: elapsed_s.map(|s| s / f64::from(spec.runs)),
        got_pct: elapsed_s.map(|s| 100.0 * cpu_s / s),
        stolen_s: Some(scaled(outcome.stolen_s)),
        credits: outcome.credits,
        ..Predicted::default()
    })
}

fn simulated(experiment: &Experiment, host: &Host, v2: bool) -> Option<Vec<Predicted>> {
    let cpus = host.cpus?;
    let tenants = experiment.tenants();
    let factor = experiment.unit_factor(v2).ok()?;
    let mut scenario = Scenario::new(cpus);
    scenario.machine = Machine::new(topology(host)?);
    if let Some((major, minor)) = host.kernel.as_deref().and_then(evenkeel_kernfs::sysfs::release_version) {
        scenario.kernel = Kernel::release(major, minor);
    }
    // The built-in loads switch it off.
    scenario.kernel.timer_slack_ns = 1;
    scenario.seed = experiment.seed;
    scenario.measure_from_ns = 0;
    scenario.stop_when_done = true;
    // With every CPU busy each may do less than one alone does.
    let threads: u32 = tenants.iter().map(|t| experiment.tenants[t.spec].threads).sum();
    let rate = if threads >= cpus {
        host.primes_per_s_all.map(|all| all / f64::from(cpus)).or(host.primes_per_s)?
    } else {
        host.primes_per_s?
    };
    let mut longest_s: f64 = 1.0;
    for tenant in &tenants {
        let spec = &experiment.tenants[tenant.spec];
        let wanted = work::wanted(tenant, spec, factor, v2);
        let weight = match (wanted.weight, v2) {
            (Some(weight), true) => evenkeel_base::CpuWeight::new(weight).load_weight() as f64,
            (Some(shares), false) => shares as f64,
            (None, _) => 1024.0,
        };
        let cpus = match (&spec.cpus, &experiment.cpus) {
            (Some(a), Some(b)) => Some(a.intersection(b)),
            (a, b) => a.clone().or_else(|| b.clone()),
        };
        scenario.groups.push(Group {
            weight,
            quota: wanted.quota.unwrap_or(CpuQuota { quota_usec: Limit::Max, ..CpuQuota::UNLIMITED }),
            cpus,
            ..Group::new(tenant.name.clone(), None)
        });
        let Work::Load(load) = work::work(tenant, spec, 1).ok()? else { return None };
        let run_s = load.common.seconds;
        if !spec.background {
            longest_s = longest_s.max(spec.start_s + run_s? * f64::from(spec.runs));
        }
        let sim_load = match &load.kind {
            Kind::Primes(primes) if primes.max_prime == 10_000 && !spec.background => Load::Runs {
                run_ns: (run_s? * 1e9) as u64,
                runs: spec.runs,
                event_ns: (1e9 / rate) as u64,
                overhead_work_ns: 100_000,
                overhead_sleep_ns: 0,
            },
            Kind::Duty(d) if spec.background => Load::Duty {
                percent: d.percent,
                period_ns: u64::try_from(d.period.as_nanos()).ok()?,
                jitter: d.jitter / 100.0,
                kind: match d.kind {
                    duty::DutyKind::Wall => DutyKind::Wall,
                    duty::DutyKind::Closed => DutyKind::Closed,
                    duty::DutyKind::Open => DutyKind::Open,
                },
            },
            Kind::Spin(_) | Kind::Primes(_) if spec.background => Load::Spin,
            Kind::Idle(_) if spec.background => Load::Idle,
            _ => return None,
        };
        let group = scenario.groups.len() - 1;
        for thread in 0..load.common.thread_count() {
            let mut task = Task::new(format!("{}.{thread}", tenant.name), Some(group), sim_load.clone());
            task.attr = SchedAttr {
                policy: spec.policy,
                nice: Nice::new(spec.nice),
                slice_ns: spec.slice_ms.map(|ms| (ms * 1e6) as u64),
                ..SchedAttr::DEFAULT
            };
            task.start_ns = (spec.start_s * 1e9) as u64;
            scenario.tasks.push(task);
        }
    }
    if longest_s * f64::from(cpus) > MOST_CPU_S
        || tenants.iter().any(|t| experiment.tenants[t.spec].background)
    {
        return None;
    }
    scenario.duration_ns = ((longest_s * 4.0 + 10.0) * 1e9) as u64;
    let report = sim::simulate(&scenario).ok()?;
    let mut tasks = report.tasks.iter();
    let mut all = Vec::new();
    for tenant in &tenants {
        let spec = &experiment.tenants[tenant.spec];
        let own: Vec<_> = tasks.by_ref().take(spec.threads as usize).collect();
        let seconds = |ns: u64| ns as f64 / 1e9;
        let ended = own.iter().filter_map(|t| t.ended_ns).max().map(seconds).map(|end| end - spec.start_s);
        let mean =
            |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        all.push(Predicted {
            by: "simulator".into(),
            events_per_s: own
                .iter()
                .map(|t| mean(t.runs.iter().map(sim::Run::events_per_s).collect()))
                .sum::<Option<f64>>(),
            elapsed_s: ended,
            run_s: mean(
                own.iter()
                    .flat_map(|t| &t.runs)
                    .map(|r| seconds(r.ended_ns.saturating_sub(r.started_ns)))
                    .collect(),
            ),
            got_pct: ended.filter(|s| *s > 0.0).map(|s| own.iter().map(|t| t.got_s).sum::<f64>() / s * 100.0),
            waited_s: Some(own.iter().map(|t| t.waited_s).sum()),
            ..Predicted::default()
        });
    }
    Some(all)
}

/// The host's shape, from what the record keeps of it.
fn topology(host: &Host) -> Option<Topology> {
    let (cpus, threads, nodes) =
        (host.cpus?, host.threads_per_core.unwrap_or(1).max(1), host.nodes.unwrap_or(1).max(1));
    let cores = cpus / threads;
    let even = cores.is_multiple_of(nodes) && cores * threads == cpus;
    Some(if even {
        Topology::synthetic(nodes, 1, cores / nodes, threads)
    } else {
        Topology::synthetic(1, 1, cpus, 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_model::laboratory::{Enforcer, TenantSpec};

    fn host() -> Host {
        Host {
            cpus: Some(2),
            kernel: Some("6.12.0".into()),
            primes_per_s: Some(1000.0),
            primes_per_s_all: Some(2000.0),
            ..Host::default()
        }
    }

    fn primes(name: &str) -> TenantSpec {
        TenantSpec { load: Some("primes".into()), run_s: Some(2.0), runs: 3, ..TenantSpec::new(name) }
    }

    #[test]
    fn shares_are_predicted_by_the_simulator() {
        let mut experiment = Experiment::new("x", "");
        experiment.cpus = Some(evenkeel_base::CpuSet::first_n(1));
        experiment.tenants = vec![
            TenantSpec { weight: Some(100), ..primes("a") },
            TenantSpec { weight: Some(300), ..primes("b") },
        ];
        let all = predict(&experiment, &host(), true).unwrap();
        let (a, b) = (all[0].events_per_s.unwrap(), all[1].events_per_s.unwrap());
        assert!((b / a - 3.0).abs() < 0.2 && (a + b - 1000.0).abs() < 40.0, "{a} {b}");
        assert!(all[0].elapsed_s.unwrap() >= 6.0);
        experiment.tenants[0].load = None;
        experiment.tenants[0].command = Some(vec!["make".into()]);
        assert_eq!(predict(&experiment, &host(), true), None);
    }

    #[test]
    fn a_job_under_a_rule_is_predicted_by_the_credit_model() {
        let mut experiment = Experiment::new("x", "");
        experiment.enforcer =
            Some(Enforcer { rule: credit::Rule::Constant { stolen: 0.5 }, time_scale: 10.0 });
        experiment.tenants = vec![TenantSpec { run_s: None, events: Some(2000), runs: 1, ..primes("a") }];
        let all = predict(&experiment, &host(), true).unwrap();
        assert!((all[0].elapsed_s.unwrap() - 4.0).abs() < 0.05, "{all:?}");
        assert!((all[0].stolen_s.unwrap() - 2.0).abs() < 0.05, "{all:?}");
    }
}
