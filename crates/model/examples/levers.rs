//! Fulfilment of duty loads under the levers a scheduler offers: kernel default, slices, SCHED_BATCH, nice, pinning,
//! SCHED_FIFO. `cargo run --release --example levers [-- jitter]`.

use evenkeel_base::{CpuSet, Nice, SchedAttr, SchedPolicy};
use evenkeel_model::sim::{DutyKind, Group, Load, Scenario, Task, simulate};

struct Mix {
    name: &'static str,
    percents: Vec<f64>,
    period_ms: u64,
}

fn mixes() -> Vec<Mix> {
    vec![
        Mix { name: "150%/10/100ms", percents: [5., 10., 15., 20., 25.].repeat(2), period_ms: 100 },
        Mix {
            name: "146%/9/80ms",
            percents: vec![7., 10., 13., 16., 16., 16., 18., 19., 31.],
            period_ms: 80,
        },
        Mix { name: "175%/4/50ms", percents: vec![30., 40., 45., 60.], period_ms: 50 },
        Mix {
            name: "190%/13/20ms",
            percents: vec![5., 8., 10., 12., 14., 15., 15., 15., 16., 18., 20., 20., 22.],
            period_ms: 20,
        },
        Mix { name: "150%/10/1000ms", percents: [5., 10., 15., 20., 25.].repeat(2), period_ms: 1000 },
    ]
}

type Lever = (&'static str, fn(&mut Scenario));

fn percent(task: &Task) -> f64 {
    if let Load::Duty { percent, .. } = task.load { percent } else { 100.0 }
}

fn slice(s: &mut Scenario, ms: f64) {
    for t in &mut s.tasks {
        t.attr.slice_ns = Some((ms * 1e6) as u64);
    }
}

fn policy(s: &mut Scenario, policy: SchedPolicy) {
    for t in &mut s.tasks {
        t.attr.policy = policy;
        t.attr.rt_priority = u8::from(policy.is_realtime());
    }
}

fn nice_by_load(s: &mut Scenario, power: f64) {
    let mean = s.tasks.iter().map(percent).sum::<f64>() / s.tasks.len() as f64;
    for t in &mut s.tasks {
        let ratio = percent(t) / mean;
        t.attr.nice = Nice::nearest(1024.0 * ratio.powf(power));
    }
}

fn pin_lpt(s: &mut Scenario) {
    let cpus = s.machine.topology.cpus.len();
    let mut load = vec![0.0f64; cpus];
    let mut order: Vec<usize> = (0..s.tasks.len()).collect();
    order.sort_by(|&a, &b| percent(&s.tasks[b]).total_cmp(&percent(&s.tasks[a])));
    for i in order {
        let cpu = (0..cpus).min_by(|&a, &b| load[a].total_cmp(&load[b])).unwrap_or(0);
        load[cpu] += percent(&s.tasks[i]);
        s.tasks[i].cpus = Some(CpuSet::single(cpu as u32));
    }
}

fn levers() -> Vec<Lever> {
    vec![
        ("default", |_| {}),
        ("pin", pin_lpt),
        ("pin+nice", |s| {
            pin_lpt(s);
            nice_by_load(s, 1.0);
        }),
        ("nice", |s| nice_by_load(s, 1.0)),
        ("nice inverse", |s| nice_by_load(s, -1.0)),
        ("slice 20", |s| slice(s, 20.0)),
        ("slice 100", |s| slice(s, 100.0)),
        ("pin+slice 100", |s| {
            pin_lpt(s);
            slice(s, 100.0);
        }),
        ("batch", |s| policy(s, SchedPolicy::Batch)),
        ("batch+slice", |s| {
            slice(s, 100.0);
            policy(s, SchedPolicy::Batch);
        }),
        ("nice+slice", |s| {
            nice_by_load(s, 1.0);
            slice(s, 100.0);
        }),
        ("nice+batch+slice", |s| {
            nice_by_load(s, 1.0);
            slice(s, 100.0);
            policy(s, SchedPolicy::Batch);
        }),
        ("nice^2+batch+slice", |s| {
            nice_by_load(s, 2.0);
            slice(s, 100.0);
            policy(s, SchedPolicy::Batch);
        }),
        ("nice^-1+batch+slice", |s| {
            nice_by_load(s, -1.0);
            slice(s, 100.0);
            policy(s, SchedPolicy::Batch);
        }),
        ("nice+4+batch+slice", |s| {
            slice(s, 100.0);
            policy(s, SchedPolicy::Batch);
            for t in &mut s.tasks {
                t.attr.nice = Nice::new(-4);
            }
        }),
        ("pin+batch+slice", |s| {
            pin_lpt(s);
            slice(s, 100.0);
            policy(s, SchedPolicy::Batch);
        }),
        ("slice by burst", |s| {
            for t in &mut s.tasks {
                let Load::Duty { percent, period_ns, .. } = t.load else { continue };
                let burst = percent / 100.0 * period_ns as f64 * 2.0;
                t.attr.slice_ns = Some((burst as u64).clamp(100_000, 100_000_000));
            }
        }),
        ("slice by burst+batch", |s| {
            for t in &mut s.tasks {
                let Load::Duty { percent, period_ns, .. } = t.load else { continue };
                let burst = percent / 100.0 * period_ns as f64 * 2.0;
                t.attr.slice_ns = Some((burst as u64).clamp(100_000, 100_000_000));
                t.attr.policy = SchedPolicy::Batch;
            }
        }),
        ("fifo", |s| policy(s, SchedPolicy::Fifo)),
        ("fifo short first", |s| {
            policy(s, SchedPolicy::Fifo);
            let mut order: Vec<usize> = (0..s.tasks.len()).collect();
            order.sort_by(|&a, &b| percent(&s.tasks[b]).total_cmp(&percent(&s.tasks[a])));
            for (rank, i) in order.into_iter().enumerate() {
                s.tasks[i].attr.rt_priority = 1 + rank as u8;
            }
        }),
        ("fifo long first", |s| {
            policy(s, SchedPolicy::Fifo);
            let mut order: Vec<usize> = (0..s.tasks.len()).collect();
            order.sort_by(|&a, &b| percent(&s.tasks[a]).total_cmp(&percent(&s.tasks[b])));
            for (rank, i) in order.into_iter().enumerate() {
                s.tasks[i].attr.rt_priority = 1 + rank as u8;
            }
        }),
    ]
}

/// Puts the mix into one group and a little background work next to it, as on a real host: `NOISE=wakeups per second and CPU`.
fn add_noise(s: &mut Scenario) {
    let Some(rate) = std::env::var("NOISE").ok().and_then(|v| v.parse::<f64>().ok()) else { return };
    s.groups.push(Group::new("mix", None));
    for t in &mut s.tasks {
        t.group = Some(0);
    }
    for cpu in 0..s.machine.topology.cpus.len() as u32 {
        let period_ns = (1e9 / rate) as u64;
        let load = Load::Duty { percent: 0.003 * rate, period_ns, jitter: 0.9, kind: DutyKind::Closed };
        let mut task = Task::new(format!("noise{cpu}"), None, load);
        task.cpus = Some(CpuSet::single(cpu));
        s.tasks.push(task);
    }
}

fn run(mix: &Mix, kind: DutyKind, jitter: f64, lever: &Lever) -> (f64, f64, f64) {
    let (mut sum, mut least, mut involuntary) = (0.0, f64::INFINITY, 0.0);
    let seeds = 5;
    for seed in 1..=seeds {
        let mut s = Scenario::new(2);
        s.duration_ns = 31_000_000_000;
        s.seed = seed;
        for (i, &percent) in mix.percents.iter().enumerate() {
            let load = Load::Duty { percent, period_ns: mix.period_ms * 1_000_000, jitter, kind };
            s.tasks.push(Task { attr: SchedAttr::DEFAULT, ..Task::new(format!("t{i}"), None, load) });
        }
        lever.1(&mut s);
        add_noise(&mut s);
        match simulate(&s) {
            Ok(report) => {
                let mixed = || report.tasks.iter().filter(|t| !t.name.starts_with("noise"));
                let f = mixed().map(|t| t.got_pct).sum::<f64>()
                    / mixed().filter_map(|t| t.wanted_pct).sum::<f64>();
                sum += f;
                least = least.min(f);
                involuntary += mixed().map(|t| t.involuntary).sum::<u64>() as f64 / 30.0;
            }
            Err(error) => eprintln!("{}: {error}", lever.0),
        }
    }
    (sum / seeds as f64, least, involuntary / seeds as f64)
}

fn main() {
    let jitters = match std::env::args().nth(1).and_then(|a| a.parse::<f64>().ok()) {
        Some(j) => vec![j],
        None => vec![0.0, 0.5],
    };
    for jitter in jitters {
        for mix in mixes() {
            println!("\n{} jitter {jitter}: mean (least) of 5 seeds, preemptions/s; closed | wall", mix.name);
            for lever in levers() {
                let c = run(&mix, DutyKind::Closed, jitter, &lever);
                let w = run(&mix, DutyKind::Wall, jitter, &lever);
                println!(
                    "  {:22} {:.3} ({:.3}) {:5.0} | {:.3} ({:.3}) {:5.0}",
                    lever.0, c.0, c.1, c.2, w.0, w.1, w.2
                );
            }
        }
    }
}
