//! Drawing mixes: the same seed gives the same mix everywhere.

use evenkeel_base::{CpuSet, Nice, SchedPolicy};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::file::{Experiment, GroupSpec, Kind, MachineSpec, TaskSpec};

/// The levers of a [`family`].
pub const FAMILY_LEVERS: [&str; 6] = ["default", "nice", "slice 20", "slice 100", "batch+slice 100", "pin"];

/// Runs measured of each mix.
pub const RUNS: u32 = 5;

/// A named set of mixes: `validation`, 32 random mixes and 4 families of levers that are used for nothing else, or `training`,
/// which the simulator may be improved on, or `short`, two plain ones of a second. `None` for another name.
pub fn set(name: &str, cpus: u32, release: &str) -> Option<Vec<Experiment>> {
    if name == "short" {
        return Some(short(cpus, release));
    }
    let (mixes, families) = match name {
        "validation" => (1000..1032, 2000..2004),
        "training" => (1..13, 1..2),
        _ => return None,
    };
    let families = families.flat_map(|seed| family(seed, cpus, release));
    Some(mixes.map(|seed| draw(seed, cpus, release)).chain(families).collect())
}

/// A machine of so many CPUs under a kernel release.
fn machine(cpus: u32, release: &str) -> Option<MachineSpec> {
    Some(MachineSpec { kernel: release.to_owned(), ..MachineSpec::new(cpus) })
}

/// Weights 1 : 3 on one CPU, and a quota of 30 %: all with such weights that a busy host takes little from them.
fn short(cpus: u32, release: &str) -> Vec<Experiment> {
    let mix = |name: &str, groups: Vec<GroupSpec>| {
        let spin = |group: &GroupSpec| TaskSpec {
            group: Some(group.name.clone()),
            cpus: Some(CpuSet::first_n(1)),
            ..TaskSpec::new(format!("{} spin", group.name), Kind::Spin)
        };
        Experiment {
            duration_s: 1.0,
            warmup_s: 0.2,
            repetitions: RUNS,
            machine: machine(cpus, release),
            tasks: groups.iter().map(spin).collect(),
            groups,
            ..Experiment::new(name, "")
        }
    };
    let group = |name: &str| GroupSpec::new(name, None);
    vec![
        mix(
            "short: weights",
            vec![
                GroupSpec { shares: Some(32_768), ..group("one") },
                GroupSpec { shares: Some(98_304), ..group("three") },
            ],
        ),
        mix(
            "short: quota",
            vec![GroupSpec {
                shares: Some(65_536),
                quota_pct: Some(30.0),
                period_usec: 20_000,
                ..group("limited")
            }],
        ),
    ]
}

/// Draws a mix with random settings for a machine of `cpus` CPUs and a kernel release such as `6.18`.
pub fn draw(seed: u64, cpus: u32, release: &str) -> Experiment {
    let mut random = Pcg64::seed_from_u64(seed);
    let r = &mut random;
    let mut mix = loads(r, cpus, 60.0..130.0);
    mix.name = format!("mix {seed}");
    (mix.seed, mix.machine) = (seed, machine(cpus, release));
    match r.random_range(0..5) {
        0 | 1 => one_group(r, cpus, &mut mix),
        2 | 3 => groups(r, &mut mix),
        _ => {
            groups(r, &mut mix);
            sched(r, &mut mix);
        }
    }
    mix
}

/// One set of loads under each of [`FAMILY_LEVERS`]: more is wanted than the CPUs easily give, so that levers matter.
pub fn family(seed: u64, cpus: u32, release: &str) -> Vec<Experiment> {
    let mut random = Pcg64::seed_from_u64(seed ^ 0xfa31);
    let mut base = loads(&mut random, cpus, 65.0..100.0);
    (base.seed, base.machine) = (seed, machine(cpus, release));
    FAMILY_LEVERS
        .iter()
        .map(|lever| {
            let mut mix = base.clone();
            mix.name = format!("family {seed}: {lever}");
            pull(lever, cpus, &mut mix);
            mix
        })
        .collect()
}

/// Duty loads, and now and then one that always wants the CPU, all in one group of default weight.
fn loads(r: &mut Pcg64, cpus: u32, percent_of_cpus: std::ops::Range<f64>) -> Experiment {
    let total = f64::from(cpus) * r.random_range(percent_of_cpus);
    let most = 12.0f64.max(total / 40.0);
    let least = (total / 80.0).ceil().max(2.0);
    let count = log_uniform(r, least, most.max(least + 1.0)).round() as usize;
    let one_kind = r.random_bool(0.7).then(|| kind(r));
    let jitter_pct = if r.random_bool(0.15) { 0.0 } else { r.random_range(10.0..80.0f64).round() };
    let one_period = r.random_bool(0.5).then(|| log_uniform(r, 8.0, 150.0).round());
    let mut parts: Vec<f64> = (0..count).map(|_| 0.15 - r.random_range(1e-6..1.0f64).ln()).collect();
    let sum: f64 = parts.iter().sum();
    for part in &mut parts {
        *part = (*part / sum * total).clamp(2.0, 90.0).round();
    }
    let mut tasks: Vec<TaskSpec> = parts
        .into_iter()
        .enumerate()
        .map(|(index, percent)| TaskSpec {
            percent: Some(percent),
            period_ms: one_period.unwrap_or_else(|| log_uniform(r, 8.0, 150.0).round()),
            jitter_pct,
            ..TaskSpec::new(format!("t{index}"), one_kind.unwrap_or_else(|| kind(r)))
        })
        .collect();
    if r.random_bool(0.2) {
        tasks.push(TaskSpec::new("spin", Kind::Spin));
    }
    for task in &mut tasks {
        task.group = Some("mix".into());
    }
    Experiment {
        duration_s: 3.0,
        warmup_s: 0.4,
        repetitions: RUNS,
        groups: vec![GroupSpec::new("mix", None)],
        tasks,
        ..Experiment::default()
    }
}

fn kind(r: &mut Pcg64) -> Kind {
    *[Kind::Wall, Kind::Wall, Kind::Closed, Kind::Closed, Kind::Open].choose(r).unwrap_or(&Kind::Closed)
}

/// Uniform in the logarithm.
fn log_uniform(r: &mut Pcg64, low: f64, high: f64) -> f64 {
    (low.ln() + (high.ln() - low.ln()) * r.random::<f64>()).exp()
}

/// Settings of tasks that share a group, and pinning.
fn one_group(r: &mut Pcg64, cpus: u32, mix: &mut Experiment) {
    sched(r, mix);
    if r.random_bool(0.35) {
        for task in &mut mix.tasks {
            if r.random_bool(0.5) {
                task.cpus = Some(CpuSet::single(r.random_range(0..cpus)));
            }
        }
    }
    if r.random_bool(0.15)
        && let Some(task) = mix.tasks.iter_mut().find(|t| t.percent.is_some_and(|p| p <= 40.0))
    {
        task.policy = if r.random_bool(0.5) { SchedPolicy::Fifo } else { SchedPolicy::Rr };
        // In a v1 group real-time tasks need a budget of their own.
        task.group = None;
        (task.nice, task.slice_ms) = (0, None);
    }
}

/// Nice values, slices, policies.
fn sched(r: &mut Pcg64, mix: &mut Experiment) {
    if r.random_bool(0.5) {
        for task in &mut mix.tasks {
            task.nice = r.random_range(-8..=10);
        }
    }
    let slices: Vec<f64> = match r.random_range(0..4) {
        0 => vec![3.0, 10.0, 30.0, 100.0],
        1 => vec![log_uniform(r, 0.5, 100.0).round().max(0.5)],
        _ => Vec::new(),
    };
    for task in &mut mix.tasks {
        task.slice_ms = slices.choose(r).copied();
    }
    match r.random_range(0..6) {
        0 => mix.tasks.iter_mut().for_each(|t| t.policy = SchedPolicy::Batch),
        1 => {
            for task in &mut mix.tasks {
                task.policy = *[SchedPolicy::Other, SchedPolicy::Batch, SchedPolicy::Idle]
                    .choose(r)
                    .unwrap_or(&SchedPolicy::Other);
            }
        }
        _ => {}
    }
}

/// Groups with weights, quotas, and sometimes a level more.
fn groups(r: &mut Pcg64, mix: &mut Experiment) {
    let count = r.random_range(2..=4usize);
    mix.groups.clear();
    let nested = r.random_bool(0.3);
    if nested {
        let mut parent = GroupSpec::new("parent", None);
        parent.shares = Some(log_uniform(r, 256.0, 4096.0).round() as u64);
        mix.groups.push(parent);
    }
    for index in 0..count {
        let parent = (nested && index % 2 == 0).then(|| "parent".to_owned());
        let mut group = GroupSpec::new(format!("g{index}"), parent);
        group.shares = Some(log_uniform(r, 128.0, 8192.0).round() as u64);
        if r.random_bool(0.3) {
            group.quota_pct = Some(log_uniform(r, 15.0, 120.0).round());
            group.period_usec = *[10_000, 50_000, 100_000].choose(r).unwrap_or(&100_000);
        }
        mix.groups.push(group);
    }
    let mut order: Vec<usize> = (0..mix.tasks.len()).collect();
    order.shuffle(r);
    for (place, index) in order.into_iter().enumerate() {
        // Each group has a task while there are enough.
        let group = if place < count { place } else { r.random_range(0..count) };
        mix.tasks[index].group = Some(format!("g{group}"));
    }
}

/// Applies a lever of [`FAMILY_LEVERS`].
fn pull(lever: &str, cpus: u32, mix: &mut Experiment) {
    let want = |t: &TaskSpec| t.percent.unwrap_or(100.0);
    let slice = |mix: &mut Experiment, ms| mix.tasks.iter_mut().for_each(|t| t.slice_ms = Some(ms));
    match lever {
        "nice" => {
            let mean = mix.tasks.iter().map(want).sum::<f64>() / mix.tasks.len() as f64;
            for task in &mut mix.tasks {
                task.nice = Nice::nearest(1024.0 * want(task) / mean).get();
            }
        }
        "slice 20" => slice(mix, 20.0),
        "slice 100" => slice(mix, 100.0),
        "batch+slice 100" => {
            slice(mix, 100.0);
            mix.tasks.iter_mut().for_each(|t| t.policy = SchedPolicy::Batch);
        }
        "pin" => {
            let mut load = vec![0.0f64; cpus as usize];
            let mut order: Vec<usize> = (0..mix.tasks.len()).collect();
            order.sort_by(|&a, &b| want(&mix.tasks[b]).total_cmp(&want(&mix.tasks[a])));
            for index in order {
                let cpu = (0..load.len()).min_by(|&a, &b| load[a].total_cmp(&load[b])).unwrap_or(0);
                load[cpu] += want(&mix.tasks[index]);
                mix.tasks[index].cpus = Some(CpuSet::single(cpu as u32));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_valid_reproducible_and_cover_the_settings() {
        let mixes: Vec<Experiment> = (0..200).map(|seed| draw(seed, 2, "6.18")).collect();
        for (seed, mix) in mixes.iter().enumerate() {
            assert_eq!(mix, &draw(seed as u64, 2, "6.18"));
            mix.scenario(0).unwrap_or_else(|e| panic!("{seed}: {e}"));
        }
        let some = |f: &dyn Fn(&Experiment) -> bool| mixes.iter().filter(|m| f(m)).count();
        let tasks = |f: fn(&TaskSpec) -> bool| some(&|m| m.tasks.iter().any(f));
        for (what, count) in [
            ("nice", tasks(|t| t.nice != 0)),
            ("slices", tasks(|t| t.slice_ms.is_some())),
            ("batch", tasks(|t| t.policy == SchedPolicy::Batch)),
            ("idle", tasks(|t| t.policy == SchedPolicy::Idle)),
            ("real-time", tasks(|t| t.policy.is_realtime())),
            ("pinned", tasks(|t| t.cpus.is_some())),
            ("spinner", tasks(|t| t.kind == Some(Kind::Spin))),
            ("weights", some(&|m| m.groups.iter().any(|g| g.shares.is_some()))),
            ("quotas", some(&|m| m.groups.iter().any(|g| g.quota_pct.is_some()))),
            ("nested", some(&|m| m.groups.iter().any(|g| g.parent.is_some()))),
        ] {
            assert!(count >= 8, "{what}: {count} of 200");
        }
    }

    #[test]
    fn a_family_differs_in_its_lever_only() {
        let family = family(7, 2, "6.18");
        assert_eq!(family.len(), FAMILY_LEVERS.len());
        for mix in &family {
            mix.scenario(0).unwrap();
            assert_eq!(mix.seed, 7);
            let wants = |m: &Experiment| m.tasks.iter().map(|t| (t.percent, t.kind)).collect::<Vec<_>>();
            assert_eq!(wants(mix), wants(&family[0]));
        }
        assert!(family[4].tasks.iter().all(|t| t.policy == SchedPolicy::Batch && t.slice_ms == Some(100.0)));
    }
}
