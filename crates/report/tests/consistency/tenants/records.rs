//! Made-up records of tenants.

use evenkeel_base::CpuSet;
use evenkeel_experiment::record::Host;
use evenkeel_lab::fairness::plan::{Kind, Options, Point, Which};
use evenkeel_lab::fairness::record::{Cell, CpuMeasured, SCHEMA, TenantCpu, TenantsMeasured, TenantsRecord};
use evenkeel_lab::net::measure::{HostMeasured, Measured, TenantMeasured};
use evenkeel_lab::net::tools::Traffic;
use evenkeel_workload::flow::LatencySummary;

use crate::own::max_min;
use crate::shared::Random;

/// What a made-up host does to tenants in one record.
#[derive(Default)]
struct World {
    /// Of every value, from one repetition to the next.
    noise: f64,
    /// Part by which the tenants of a point are apart, always the same way.
    apart: f64,
    /// Throughput with packet steering over that without.
    steered: f64,
    /// Throughput of twice the tenants over that of one times as many.
    doubled: f64,
    /// Used by others on the tenants' CPUs, percent of one.
    others: f64,
    /// Chances, of a cell or a tenant's value.
    missing: f64,
    failed: f64,
    ended: f64,
    silent: f64,
}

fn world(random: &mut Random) -> World {
    World {
        noise: random.pick(&[0.0, 0.001, 0.01, 0.03, 0.1, 0.5]),
        apart: random.pick(&[0.0, 0.0, 0.01, 0.05, 0.1, 0.3, 1.5]),
        steered: random.pick(&[1.0, 1.0, 1.02, 1.3, 0.8]),
        doubled: random.pick(&[1.0, 1.0, 1.05, 1.5, 0.7]),
        others: random.pick(&[0.0, 0.5, 4.9, 5.1, 45.0]),
        missing: random.pick(&[0.0, 0.0, 0.3]),
        failed: random.pick(&[0.0, 0.0, 0.2]),
        ended: random.pick(&[0.0, 0.0, 0.0, 0.05]),
        silent: random.pick(&[0.0, 0.0, 0.02, 0.3]),
    }
}

/// A record of the experiment, its cells as `measure` makes them.
pub fn with_cells(
    options: Options,
    points: Vec<Point>,
    cpus: u32,
    mut measure: impl FnMut(&Point, u32) -> Option<Cell>,
) -> TenantsRecord {
    let mut cells = Vec::new();
    for repetition in 0..options.repetitions {
        for (index, point) in points.iter().enumerate() {
            cells.extend(measure(point, repetition).map(|cell| Cell { point: index, repetition, ..cell }));
        }
    }
    TenantsRecord {
        schema: SCHEMA.into(),
        name: options.which.name().into(),
        version: "0".into(),
        began: "2026-01-01T00:00:00Z".into(),
        finished: None,
        host: Host { cpus: Some(cpus), ..Host::default() },
        options,
        requirements: Vec::new(),
        points,
        cells,
    }
}

pub fn generated(which: Which, random: &mut Random) -> TenantsRecord {
    let world = world(random);
    let cpus = random.pick(&[1, 2, 4, 8]);
    let mut options = Options::defaults(which, random.uniform() < 0.5, cpus);
    options.repetitions = random.pick(&[1, 2, 3, 3, 5, 8]);
    options.containers = if which == Which::TenantsCpu { vec![2] } else { Vec::new() };
    options.tenants = random.pick::<&[usize]>(&[&[1, 2], &[2, 4], &[1, 2, 4], &[3, 6]]).to_vec();
    (options.flows, options.vms) = (48, vec![2]);
    if which == Which::TenantsNet && random.uniform() < 0.2 {
        (options.traffic, options.vms) = (Traffic::Iperf3, Vec::new());
    }
    let mut points = options.points().unwrap();
    if which == Which::TenantsCpu {
        // Weights and threads of all sorts, more tenants than CPUs.
        for _ in 0..3 {
            let weights: Vec<u64> =
                (0..random.pick(&[2, 3, 5])).map(|_| random.pick(&[50, 100, 300])).collect();
            let point = Point {
                kind: Kind::Cgroup,
                tenants: weights.len(),
                vcpus: Some(random.pick(&[1, 2, 8])),
                rps: false,
                weights,
                one_cpu: random.uniform() < 0.3,
            };
            // Weights of one ratio have one name.
            if points.iter().all(|other| other.to_string() != point.to_string()) {
                points.push(point);
            }
        }
    }
    with_cells(options.clone(), points, cpus, |point, _| {
        if random.uniform() < world.missing {
            return None;
        }
        if random.uniform() < world.failed {
            return Some(Cell { failed: Some("no <qemu>\nsecond line".into()), ..Cell::default() });
        }
        Some(match which {
            Which::TenantsNet => TenantsMeasured {
                net: Some(net(point, options.traffic, &world, random)),
                ..TenantsMeasured::default()
            }
            .into(),
            Which::TenantsCpu => {
                TenantsMeasured { cpu: Some(cpu(point, cpus, &world, random)), ..TenantsMeasured::default() }
                    .into()
            }
        })
    })
}

/// What a tenant's rate is multiplied by: the first has most, the last least.
fn apart(index: usize, of: usize, part: f64) -> f64 {
    let place = if of > 1 { index as f64 / (of - 1) as f64 } else { 0.5 };
    (1.0 + part * (0.5 - place)).max(0.01)
}

fn net(point: &Point, traffic: Traffic, world: &World, random: &mut Random) -> Measured {
    let n = point.tenants.max(1);
    let steered = if point.rps { world.steered } else { 1.0 };
    let all = 50_000.0 * steered * world.doubled.powf((n as f64).log2());
    let mut wobble = || (world.noise * random.normal()).exp();
    let together = wobble();
    let each: Vec<[f64; 5]> = (0..n)
        .map(|i| {
            let mine = apart(i, n, world.apart);
            [
                all / n as f64 * together * mine * wobble(),
                100.0 * wobble() / mine,
                20.0 * mine * wobble(),
                10.0 * wobble(),
                4.0 * mine * wobble(),
            ]
        })
        .collect();
    let latency = |mean_usec: f64| LatencySummary {
        mean_usec,
        p50_usec: 0.9 * mean_usec,
        p90_usec: 1.5 * mean_usec,
        p99_usec: 3.0 * mean_usec,
        p999_usec: None,
        max_usec: 9.0 * mean_usec,
    };
    let stream = traffic == Traffic::Iperf3;
    let tenants: Vec<TenantMeasured> = (0..n)
        .map(|i| {
            let [rate, usec, used, waited, interrupts] = each[i];
            let ended = random.uniform() < world.ended;
            let mut windows: Vec<u64> = vec![(rate * 0.4) as u64; if stream { 0 } else { 4 }];
            for window in &mut windows {
                if random.uniform() < world.silent {
                    *window = 0;
                }
            }
            TenantMeasured {
                name: format!("tenant {}", i + 1),
                flows: 48 / n as u32,
                transactions_per_s: (!stream).then_some(rate),
                mbit_per_s: stream.then_some(rate / 100.0),
                windows,
                latency: (!stream && !ended).then(|| latency(usec)),
                latency_mean_usec: None,
                cpu_pct: (!ended).then_some(used),
                wait_pct: (random.uniform() < 0.9).then_some(waited * random.pick(&[0.1, 1.0, 8.0])),
                softirq_pct: Some(interrupts),
                packets: None,
            }
        })
        .collect();
    let sum = tenants.iter().filter_map(TenantMeasured::throughput).sum::<f64>();
    let mean_usec = each.iter().map(|e| e[1]).sum::<f64>() / n as f64;
    let per_cpu_pct = vec![50.0 * random.uniform(), 80.0 * random.uniform()];
    Measured {
        seconds: 1.6,
        transactions_per_s: (!stream).then_some(sum),
        mbit_per_s: stream.then_some(sum),
        latency: (!stream).then(|| latency(mean_usec)),
        latency_mean_usec: None,
        histogram: Vec::new(),
        tenants,
        flows: Vec::new(),
        host: HostMeasured {
            cpu_pct: Some(per_cpu_pct.iter().sum()),
            per_cpu_pct,
            spread: Some(1.5),
            softirq_pct: Some(5.0),
            softirq_method: "packets".into(),
            ..HostMeasured::default()
        },
    }
}

fn cpu(point: &Point, cpus: u32, world: &World, random: &mut Random) -> CpuMeasured {
    let cpus = if point.one_cpu { 1.0 } else { f64::from(cpus) };
    let threads = f64::from(point.vcpus.unwrap_or(1)).min(cpus);
    let weights: Vec<f64> = point.weights.iter().map(|w| *w as f64).collect();
    let due = max_min(cpus, &weights, &vec![threads; weights.len()]);
    let tenants = due.iter().zip(&point.weights).enumerate().map(|(i, (cpus, weight))| {
        let got = 100.0 * cpus * apart(i, due.len(), world.apart) * (world.noise * random.normal()).exp();
        TenantCpu {
            name: format!("tenant {}", i + 1),
            weight: *weight,
            cpu_pct: (random.uniform() >= world.ended).then_some(got),
            windows_pct: Vec::new(),
            events_per_s: None,
        }
    });
    let tenants: Vec<TenantCpu> = tenants.collect();
    CpuMeasured {
        seconds: 1.6,
        cpus: point.one_cpu.then(|| CpuSet::single(0)),
        tenants,
        per_cpu_pct: vec![99.0, 98.0],
        steal_pct: None,
        others_pct: (random.uniform() < 0.95).then_some(world.others),
    }
}

/// Two tenants whose one figure is `effect` with some noise, next to points in which all is even: of a weight's share, of the
/// bias of throughput, or of the throughput with packet steering.
pub fn planted(kind: &str, effect: f64, n: u32, noise: f64, random: &mut Random) -> TenantsRecord {
    let calm = World { noise: 0.0001, steered: 1.0, doubled: 1.0, ..World::default() };
    let which = if kind == "weights" { Which::TenantsCpu } else { Which::TenantsNet };
    let mut options = Options::defaults(which, true, 2);
    (options.repetitions, options.tenants, options.vms) = (n, vec![2], Vec::new());
    options.rps = if kind == "steering" { vec![false, true] } else { vec![false] };
    let points = options.points().unwrap();
    let mut points: Vec<Point> = points.into_iter().filter(|p| p.tenants == 2).collect();
    if which == Which::TenantsCpu {
        points.retain(|p| p.one_cpu);
    }
    with_cells(options, points, 2, |point, _| {
        let seen = effect + noise * random.normal();
        if which == Which::TenantsCpu {
            let mut made = cpu(point, 2, &calm, random);
            if point.weights == [100, 200] {
                let share = (1.0 + seen) / 3.0;
                made.tenants[0].cpu_pct = Some(100.0 * share);
                made.tenants[1].cpu_pct = Some(100.0 * (1.0 - share));
            }
            return Some(TenantsMeasured { cpu: Some(made), ..TenantsMeasured::default() }.into());
        }
        let mut made = net(point, Traffic::Rr, &calm, random);
        let steered = if kind == "steering" && point.rps { seen.exp() } else { 1.0 };
        let apart = if kind == "bias" { seen } else { 0.0 };
        for (index, tenant) in made.tenants.iter_mut().enumerate() {
            let side = if index == 0 { 1.0 + apart / 2.0 } else { 1.0 - apart / 2.0 };
            let wobble = if kind == "steering" { (noise * random.normal()).exp() } else { 1.0 };
            tenant.transactions_per_s = Some(25_000.0 * side * steered * wobble);
        }
        made.transactions_per_s = Some(made.tenants.iter().filter_map(|t| t.transactions_per_s).sum());
        Some(TenantsMeasured { net: Some(made), ..TenantsMeasured::default() }.into())
    })
}
