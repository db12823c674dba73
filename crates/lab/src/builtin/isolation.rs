//! `isolation`: the same work under a cpuset with and without siblings, a quota, shares, and alone.

use evenkeel_base::CpuSet;
use evenkeel_experiment::file::{Experiment, Sweep, SweepPoint, TenantSpec};

use super::{Builtin, Plan, sieve};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "isolation",
    about: "primes by several threads under cpuset, quota and shares: which isolates how, and what a CPU second does under each",
    sources: &["cgroup_prime_sieve"],
    make,
};

/// One CPU of each core, all, and the two halves of the cores with their siblings.
struct Cuts {
    one_a_core: Option<CpuSet>,
    half: Option<CpuSet>,
    other_half: Option<CpuSet>,
}

fn cuts(plan: &Plan) -> Cuts {
    let core = |cpu: u32| plan.topology.as_ref().and_then(|t| t.cpu(cpu)?.core).unwrap_or(cpu);
    let mut cores: Vec<u32> = plan.cpus.iter().map(core).collect();
    cores.sort_unstable();
    cores.dedup();
    let of = |wanted: &[u32]| {
        let mut set = CpuSet::default();
        plan.cpus.iter().filter(|cpu| wanted.contains(&core(*cpu))).for_each(|cpu| set.insert(cpu));
        Some(set).filter(|set| !set.is_empty())
    };
    let mut one_a_core = CpuSet::default();
    for wanted in &cores {
        if let Some(cpu) = plan.cpus.iter().find(|cpu| core(*cpu) == *wanted) {
            one_a_core.insert(cpu);
        }
    }
    let (first, second) = cores.split_at(cores.len() / 2);
    Cuts {
        one_a_core: Some(one_a_core).filter(|set| set.len() < plan.cpus.len()),
        half: of(first),
        other_half: of(second).filter(|_| !first.is_empty()),
    }
}

fn make(plan: &Plan) -> Experiment {
    let cuts = cuts(plan);
    let cpuset = |label: &str, cpus: Option<CpuSet>, lacking: &str| match cpus {
        Some(cpus) => SweepPoint::new(format!("{label} ({cpus})")).set("tenant.b.cpus", cpus.to_string()),
        None => SweepPoint { unavailable: Some(lacking.to_owned()), ..SweepPoint::new(label) },
    };
    let half_pct = 50.0 * f64::from(plan.count());
    let points = vec![
        cpuset("cpuset one CPU a core", cuts.one_a_core, "this host's cores have no siblings"),
        cpuset("cpuset all CPUs", Some(plan.cpus.clone()), ""),
        cpuset("cpuset half the cores", cuts.half, "this host has one core"),
        cpuset("cpuset the other half", cuts.other_half, "this host has one core"),
        SweepPoint::new(format!("quota of half ({half_pct:.0} %)")).set("tenant.b.quota_pct", half_pct),
        SweepPoint::new("shares 1000 : 1000").set("tenant.b.shares", 1000).set("tenant.b.count", 2),
        SweepPoint::new("alone"),
    ];
    let last = sieve::last_number(plan, sieve::FROM, plan.pick(1.0, 5.0) * f64::from(plan.count()), 0.0);
    let tenant = TenantSpec {
        load: Some(sieve::load(sieve::FROM, last, "none")),
        threads: sieve::threads(plan),
        ..TenantSpec::new("b")
    };
    Experiment {
        repetitions: plan.pick(3, 10),
        needs_cpus: 2,
        time_limit_s: Some(plan.pick(60.0, 600.0)),
        tenants: vec![tenant],
        sweeps: vec![Sweep::points("isolation", points)],
        ..Experiment::new("", "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::Topology;

    #[test]
    fn cores_are_counted_not_threads() {
        let topology = Topology::synthetic(1, 1, 4, 2);
        let plan = Plan {
            quick: true,
            cpus: topology.online.clone(),
            topology: Some(topology),
            primes_per_s: 1000.0,
        };
        let cuts = cuts(&plan);
        let (one, half, other) = (cuts.one_a_core.unwrap(), cuts.half.unwrap(), cuts.other_half.unwrap());
        assert_eq!((one.len(), half.len(), other.len()), (4, 4, 4));
        assert!(!half.intersects(&other));
        let siblings = |cpu| &plan.topology.as_ref().unwrap().cpu(cpu).unwrap().siblings;
        assert!(half.iter().all(|cpu| siblings(cpu).is_subset(&half)));
        assert!(one.iter().all(|cpu| siblings(cpu).intersection(&one).len() == 1));
    }
}
