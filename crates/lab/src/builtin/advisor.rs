//! `advisor`: the closed-loop advisor's own mix, five processes a CPU that want 5 to 25 %, with nothing done, with its
//! recipe (greedy placement, then nice in proportion to load), and with what suits today's kernels better.

use evenkeel_base::sched::MAX_SLICE_NS;
use evenkeel_base::{CpuSet, Nice};
use evenkeel_experiment::file::{Experiment, Place, Sweep, SweepPoint, TenantSpec};
use evenkeel_experiment::study::verdict::advisor::{DEFAULT, OF, PLACEMENT, RECIPE, SLICES};
use evenkeel_policy::{placement, priority};

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "advisor",
    about: "five processes a CPU want 75 or 95 % of it: what the published recipe (placement, then nice by load) and long slices do to the CPU they get",
    sources: &["xadvisor_convergence"],
    make,
};

/// What the source's processes want, percent of one CPU; 75 % together.
pub const WANTED_PCT: [f64; 5] = [5.0, 10.0, 15.0, 20.0, 25.0];
/// The source's machine has so many CPUs; more would only make it longer.
const MOST_CPUS: u32 = 10;
/// The longest slice that the kernel takes.
const SLICE_MS: f64 = MAX_SLICE_NS as f64 / 1e6;

/// A process of the mix.
struct Process {
    name: String,
    percent: f64,
}

fn make(plan: &Plan) -> Experiment {
    let cpus = plan.first(plan.count().min(MOST_CPUS));
    let processes: Vec<Process> = (0..cpus.len())
        .flat_map(|cpu| WANTED_PCT.map(|percent| Process { name: format!("p{percent:.0}-{cpu}"), percent }))
        .collect();
    let together: &[f64] = plan.pick(&[75.0], &[75.0, 95.0]);
    let jitters: &[(&str, f64)] = plan.pick(&[("jittered", 50.0)], &[("fixed", 0.0), ("jittered", 50.0)]);
    let mut points = Vec::new();
    for (each, (name, jitter)) in together.iter().flat_map(|t| jitters.iter().map(move |j| (*t, *j))) {
        let mut mix = SweepPoint::new("");
        for process in &processes {
            let load = load(process.percent * each / WANTED_PCT.iter().sum::<f64>(), jitter);
            mix = mix.set(format!("tenant.{}.load", process.name), load);
        }
        for (stage, change) in stages(plan, &cpus, &processes) {
            let label = format!("{each:.0} % a CPU, {name}{OF}{stage}");
            let mut point = SweepPoint { label, ..mix.clone() };
            point.set.extend(change.set);
            points.push(point);
        }
    }
    let run_s = plan.pick(2.5, 10.0);
    let tenants = processes
        .iter()
        .map(|process| TenantSpec {
            load: Some(load(process.percent, 50.0)),
            place: Place::Process,
            run_s: Some(run_s),
            ..TenantSpec::new(&process.name)
        })
        .collect();
    Experiment {
        repetitions: plan.pick(3, 5),
        cpus: Some(cpus),
        time_limit_s: Some(plan.pick(30.0, 60.0)),
        tenants,
        sweeps: vec![Sweep::points("stage", points)],
        ..Experiment::new("", "")
    }
}

/// Time lost to others is lost, as in the source's processes, which want a share of the wall clock.
fn load(percent: f64, jitter: f64) -> String {
    format!("duty --percent {percent:.2} --jitter {jitter:.0} --kind wall")
}

/// What is done to the processes in each stage.
fn stages(plan: &Plan, cpus: &CpuSet, processes: &[Process]) -> [(&'static str, SweepPoint); 4] {
    let loads: Vec<f64> = processes.iter().map(|p| p.percent).collect();
    let placed = place(plan, cpus, &loads);
    let nice = priority::proportional(&loads, &vec![Nice::default(); loads.len()]);
    let mut placement = SweepPoint::new("");
    for (process, cpu) in processes.iter().zip(&placed) {
        placement = placement.set(format!("tenant.{}.cpus", process.name), cpu.to_string());
    }
    let mut recipe = placement.clone();
    for (process, nice) in processes.iter().zip(nice) {
        recipe = recipe.set(format!("tenant.{}.nice", process.name), i64::from(nice.get()));
    }
    let slices = SweepPoint::new("").set("tenant.*.policy", "batch").set("tenant.*.slice_ms", SLICE_MS);
    [(DEFAULT, SweepPoint::new("")), (PLACEMENT, placement), (RECIPE, recipe), (SLICES, slices)]
}

/// A CPU for each load, longest processing time first.
fn place(plan: &Plan, cpus: &CpuSet, loads_pct: &[f64]) -> Vec<u32> {
    let slot = |cpu: u32| placement::Slot { cpu, speed: 1.0, fixed_pct: 0.0, core: cpu, node: 0 };
    let slots: Vec<placement::Slot> = match &plan.topology {
        Some(topology) => {
            placement::slots(topology, |_| 0.0).into_iter().filter(|s| cpus.contains(s.cpu)).collect()
        }
        None => cpus.iter().map(slot).collect(),
    };
    let loads: Vec<placement::Load<'_>> =
        loads_pct.iter().map(|pct| placement::Load { pct: *pct, allowed: cpus, family: None }).collect();
    let first = cpus.iter().next().unwrap_or(0);
    placement::place(&loads, &slots).into_iter().map(|cpu| cpu.unwrap_or(first)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_the_sources_and_the_recipe_is_its_own() {
        let plan = Plan { quick: false, cpus: CpuSet::first_n(40), topology: None, primes_per_s: 1000.0 };
        let experiment = BUILTIN.experiment(&plan);
        assert_eq!((experiment.tenants.len(), experiment.cpus.as_ref().unwrap().len()), (50, 10));
        let points = experiment.points().unwrap();
        assert_eq!(points.len(), 16);
        let recipe =
            points.iter().find(|p| p.point.label == format!("75 % a CPU, fixed{OF}{RECIPE}")).unwrap();
        let mut by_cpu = std::collections::BTreeMap::new();
        for tenant in &recipe.experiment.tenants {
            let wanted: f64 = tenant.load.as_ref().unwrap().split(' ').nth(2).unwrap().parse().unwrap();
            *by_cpu.entry(tenant.cpus.clone().unwrap().to_string()).or_insert(0.0) += wanted;
        }
        assert!(by_cpu.len() == 10 && by_cpu.values().all(|pct| (pct - 75.0).abs() < 1e-9), "{by_cpu:?}");
        let nice = |name: &str| {
            recipe.experiment.tenants.iter().find(|t| t.name.as_deref() == Some(name)).unwrap().nice
        };
        assert!(nice("p25-0") < nice("p10-0") && nice("p10-0") < nice("p5-0"));
    }
}
