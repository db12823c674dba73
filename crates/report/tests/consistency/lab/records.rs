//! Made-up records of the laboratory.

use evenkeel_base::{CpuSet, Topology};
use evenkeel_experiment::file::Experiment;
use evenkeel_experiment::record::{
    Account, Cell, Ended, Host, HostUse, Limits, Point, Record, Release, RunRecord, SCHEMA, StealRecord,
    TenantRecord,
};
use evenkeel_lab::builtin::{BUILTINS, Builtin, Plan};

use crate::shared::Random;

pub const CPUS: u32 = 2;

pub fn plan() -> Plan {
    Plan {
        quick: true,
        cpus: CpuSet::first_n(CPUS),
        topology: Some(Topology::synthetic(1, 1, CPUS, 1)),
        primes_per_s: 1000.0,
    }
}

/// What a made-up host does to tenants in one record.
struct World {
    repetitions: u32,
    noise: f64,
    /// CPU for the same work under a quota, over that without.
    quota_cost: f64,
    /// Shares are off the weights' by up to this part.
    unfair: f64,
    /// Time under each limit, over what its size makes of it; and what is stolen without one.
    stolen: f64,
    cut_off: bool,
    missing: f64,
}

fn world(random: &mut Random) -> World {
    World {
        repetitions: random.pick(&[1, 2, 3, 3, 5, 8]),
        noise: random.pick(&[0.0, 0.001, 0.01, 0.1, 0.5]),
        quota_cost: random.pick(&[1.0, 1.0, 1.04, 1.2, 1.5]),
        unfair: random.pick(&[0.0, 0.0, 0.01, 0.1, 0.4]),
        stolen: random.pick(&[0.0, 0.02, 0.4, 0.9]),
        cut_off: random.uniform() < 0.2,
        missing: random.pick(&[0.0, 0.0, 0.2]),
    }
}

pub fn generated(builtin: &Builtin, random: &mut Random) -> Record {
    let world = world(random);
    let experiment = builtin.experiment(&plan());
    let points = experiment.points().unwrap();
    let mut cells = Vec::new();
    for repetition in 0..world.repetitions {
        for planned in &points {
            if random.uniform() < world.missing {
                continue;
            }
            let mut cell = Cell {
                point: planned.point.clone(),
                repetition,
                host: HostUse { harness_cpu_pct: Some(0.1 + random.uniform()), ..HostUse::default() },
                ..Cell::default()
            };
            if planned.point.unavailable.is_none() {
                fill(&mut cell, &planned.experiment, &world, random);
            }
            cells.push(cell);
        }
    }
    Record {
        schema: SCHEMA.into(),
        name: builtin.name.into(),
        builtin: Some(builtin.name.into()),
        quick: true,
        sources: builtin.sources.iter().map(|s| (*s).to_owned()).collect(),
        version: "0".into(),
        began: "2026-01-01T00:00:00Z".into(),
        host: Host { cpus: Some(CPUS), cores: Some(CPUS), threads_per_core: Some(1), ..Host::default() },
        planned_cells: cells.len(),
        experiment: Some(experiment),
        cells,
        ..Record::default()
    }
}

fn fill(cell: &mut Cell, experiment: &Experiment, world: &World, random: &mut Random) {
    let tenants = experiment.tenants();
    let specs: Vec<_> = tenants.iter().map(|t| &experiment.tenants[t.spec]).collect();
    let weights: Vec<f64> = tenants
        .iter()
        .zip(&specs)
        .map(|(t, s)| {
            let set = s.shares.map(|v| v as f64).or(s.weight.map(|w| w as f64 * 10.24));
            set.unwrap_or_else(|| t.units.map_or(1024.0, |u| u as f64 * 16.0))
                * (1.0 + world.unfair * random.normal().clamp(-1.0, 1.0))
        })
        .collect();
    let all: f64 = weights.iter().sum();
    let mut longest: f64 = 0.0;
    for ((tenant, spec), weight) in tenants.iter().zip(&specs).zip(&weights) {
        let noise = |r: &mut Random| (world.noise * r.normal()).exp();
        let mut cpu = (weight / all * f64::from(CPUS)).min(f64::from(spec.threads.max(1)));
        cpu = spec.cpus.as_ref().map_or(cpu, |c| cpu.min(c.len() as f64));
        cpu = spec.quota_pct.map_or(cpu, |q| cpu.min(q / 100.0)).max(1e-4) * noise(random);
        let cost = if spec.quota_pct.is_some() { world.quota_cost } else { 1.0 } * noise(random);
        let stolen = if experiment.enforcer.is_some() {
            // The larger the limit the more is stolen, without one most.
            world.stolen * spec.quota_pct.map_or(1.0, |q| (q / 100.0).powi(2)) * noise(random).min(1.05)
        } else {
            0.0
        };
        let stolen = stolen.min(0.95);
        let per_cpu_s = 1000.0 / cost;
        let (mut runs, mut at) = (Vec::new(), 0.0);
        let load = spec.load.clone().unwrap_or_else(|| "primes".into());
        for number in 0..if spec.background { 1 } else { spec.runs.clamp(1, 2) } {
            let length = match spec.run_s {
                Some(asked) => asked + 0.01 * noise(random) / cpu.min(1.0),
                None => spec.events.map_or(1.0, |e| e as f64 / 1000.0) * cost / cpu / (1.0 - stolen),
            };
            let used = cpu * length * (1.0 - stolen);
            let events = (used * per_cpu_s).max(1.0);
            runs.push(RunRecord {
                number,
                start_s: at,
                end_s: at + length,
                events: Some(events as u64),
                events_per_s: Some(events / length),
                account: Account {
                    real_s: length,
                    user_s: Some(0.9 * used),
                    sys_s: Some(0.1 * used * noise(random)),
                    involuntary: Some((used * 100.0 * noise(random)) as u64 + 1),
                    ..Account::default()
                },
                ..RunRecord::default()
            });
            at += length + 0.001;
        }
        let sum = |of: fn(&Account) -> Option<f64>| runs.iter().map(|r| of(&r.account)).sum::<Option<f64>>();
        let used = sum(Account::cpu_s).unwrap();
        let total = Account {
            real_s: at,
            user_s: sum(|a| a.user_s),
            sys_s: sum(|a| a.sys_s),
            throttled_s: spec.quota_pct.map(|_| 0.1),
            stolen_s: Some(used * stolen / (1.0 - stolen)),
            involuntary: runs.iter().map(|r| r.account.involuntary).sum(),
            ..Account::default()
        };
        let cut =
            world.cut_off && !spec.background && spec.quota_pct.is_none() && experiment.enforcer.is_some();
        if cut {
            runs.clear();
        }
        longest = longest.max(at);
        cell.tenants.push(TenantRecord {
            name: tenant.name.clone(),
            units: tenant.units,
            place: "cgroup".into(),
            limits: Limits {
                shares: spec.shares.or(tenant.units.map(|u| u * 16)),
                weight: spec.weight,
                quota_pct: spec.quota_pct,
                period_usec: spec.quota_pct.map(|_| 100_000),
                cpus: spec.cpus.clone(),
                ..Limits::default()
            },
            workload: match (spec.run_s, spec.events) {
                (Some(s), _) => format!("{load} --seconds {s}"),
                (None, Some(e)) => format!("{load} --events {e}"),
                _ => load,
            },
            threads: spec.threads.max(1),
            runs_planned: if spec.background { 0 } else { spec.runs },
            release: Release { woken_late_usec: Some(2000.0 * random.uniform()), ..Release::default() },
            ended: if cut { Ended::TimeLimit("10 s".into()) } else { Ended::Done },
            total,
            runs,
        });
    }
    cell.seconds = longest;
    cell.activation = (0..cell.tenants.len()).collect();
    cell.enforcer = experiment.enforcer.as_ref().map(|e| StealRecord {
        rule: e.rule,
        time_scale: e.time_scale,
        demanded_s: 1.0,
        given_s: 1.0,
        ..StealRecord::default()
    });
}

/// Two tenants of weights 1:2 on one CPU, or a job without and with a quota: the effect is `log` on a log scale.
pub fn pair(kind: &str, effect: f64, n: usize, noise: f64, random: &mut Random) -> Record {
    let builtin = BUILTINS.iter().find(|b| b.name == "isolation").unwrap();
    let mut record = generated(builtin, &mut Random(1));
    record.cells.clear();
    let tenant =
        |name: &str, shares: u64, quota: Option<f64>, seconds: f64, cpu: f64, events: f64| TenantRecord {
            name: name.into(),
            units: None,
            place: "cgroup".into(),
            limits: Limits {
                shares: Some(shares),
                cpus: "0".parse().ok(),
                quota_pct: quota,
                ..Limits::default()
            },
            workload: "primes --events 1000".into(),
            threads: 1,
            runs_planned: 1,
            release: Release::default(),
            ended: Ended::Done,
            total: Account {
                real_s: seconds,
                user_s: Some(cpu),
                sys_s: Some(0.0),
                stolen_s: Some(0.0),
                ..Account::default()
            },
            runs: vec![RunRecord {
                end_s: seconds,
                events: Some(events as u64),
                events_per_s: Some(events / seconds),
                account: Account {
                    real_s: seconds,
                    user_s: Some(cpu),
                    sys_s: Some(0.0),
                    ..Account::default()
                },
                ..RunRecord::default()
            }],
        };
    for repetition in 0..n as u32 {
        let mut add = |index: usize, label: &str, tenants: Vec<TenantRecord>| {
            record.cells.push(Cell {
                point: Point { index, label: label.into(), ..Point::default() },
                repetition,
                seconds: 1.0,
                activation: (0..tenants.len()).collect(),
                tenants,
                ..Cell::default()
            });
        };
        if kind == "weights" {
            let share = (1.0 + (effect + noise * random.normal())) / 3.0;
            add(
                0,
                "x",
                vec![
                    tenant("a", 1024, None, 1.0, share, 1e7 * share),
                    tenant("b", 2048, None, 1.0, 1.0 - share, 1e7 * (1.0 - share)),
                ],
            );
        } else {
            // Times without and with a limit; or CPU for the same work without and with a quota.
            let wobble = (effect + noise * random.normal()).exp();
            let other = (noise * random.normal()).exp();
            let (time, cpu) = if kind == "limit" { (wobble, 0.5) } else { (1.0, other) };
            add(0, "none", vec![tenant("a", 1024, None, 4.0 * time, cpu, 1000.0)]);
            let (time, cpu) = if kind == "limit" { (other, 0.5) } else { (1.0, wobble) };
            add(1, "quota", vec![tenant("a", 1024, Some(50.0), 4.0 * time, cpu, 1000.0)]);
        }
    }
    record
}
