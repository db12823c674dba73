//! The built-in experiments: each reproduces a source's table on this host, scaled to its CPUs. A new one is a file
//! here with a `BUILTIN`, and a line in `BUILTINS`.

mod advisor;
mod advisor_guarantee;
mod alone;
mod balance;
mod equal;
mod isolation;
mod isolation_fd;
mod isolation_sys;
mod limits;
mod mixed;
mod plan;
mod platforms;
mod priority;
mod sieve;
mod spread;
mod wait;

pub use advisor::WANTED_PCT;
pub use plan::{Builtin, Plan, UNITS_AVAILABLE};

/// All of them, in the order of the sources.
pub const BUILTINS: &[Builtin] = &[
    alone::BUILTIN,
    equal::BUILTIN,
    wait::BUILTIN,
    spread::BUILTIN,
    mixed::BUILTIN,
    priority::BUILTIN,
    balance::BUILTIN,
    isolation::BUILTIN,
    isolation_sys::BUILTIN,
    isolation_fd::BUILTIN,
    limits::BUILTIN,
    platforms::BUILTIN,
    advisor::BUILTIN,
    advisor_guarantee::BUILTIN,
];

pub fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::plan::{Options, Which};
    use evenkeel_base::{CpuSet, Topology};
    use evenkeel_experiment::file::PlannedPoint;

    #[test]
    fn every_builtin_is_sound_on_small_and_large_hosts_in_both_forms() {
        for (cpus, topology) in [
            (1, None),
            (2, Some(Topology::synthetic(1, 1, 2, 1))),
            (4, Some(Topology::synthetic(1, 1, 2, 2))),
            (40, Some(Topology::synthetic(2, 1, 10, 2))),
        ] {
            for quick in [true, false] {
                let plan = Plan {
                    quick,
                    cpus: CpuSet::first_n(cpus),
                    topology: topology.clone(),
                    primes_per_s: 1000.0,
                };
                for builtin in BUILTINS {
                    let experiment = builtin.experiment(&plan);
                    let points = experiment.points().unwrap();
                    assert!(!points.is_empty(), "{}", builtin.name);
                    for source in builtin.sources {
                        assert!(evenkeel_experiment::sources::table(source).is_some(), "{source}");
                    }
                    for PlannedPoint { point, experiment } in points {
                        let n = experiment.tenants().len();
                        assert!(n > 0, "{} {}", builtin.name, point.label);
                        for spec in &experiment.tenants {
                            if let Some(load) = &spec.load {
                                crate::runner::parse_load(load).unwrap();
                            }
                            let inside = spec.cpus.as_ref().is_none_or(|c| c.is_subset(&plan.cpus));
                            assert!(
                                inside || point.unavailable.is_some(),
                                "{} {}",
                                builtin.name,
                                point.label
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_short_forms_take_a_minute_at_most_and_together_twelve() {
        for (count, topology) in [
            (1, Topology::synthetic(1, 1, 1, 1)),
            (2, Topology::synthetic(1, 1, 2, 1)),
            (8, Topology::synthetic(1, 1, 4, 2)),
            (40, Topology::synthetic(2, 1, 10, 2)),
        ] {
            // How fast the host is decides how much work there is, not how long it takes.
            for primes_per_s in [300.0, 1500.0] {
                let cpus = CpuSet::first_n(count);
                let plan = Plan { quick: true, cpus, topology: Some(topology.clone()), primes_per_s };
                let mut sum = 0.0;
                for builtin in BUILTINS {
                    let seconds = builtin.planned_s(&plan).unwrap();
                    println!("{} on {count} CPUs: {seconds:.1} s", builtin.name);
                    assert!(seconds <= 55.0, "{} on {count} CPUs: {seconds:.1} s", builtin.name);
                    let full = builtin.planned_s(&Plan { quick: false, ..plan.clone() }).unwrap();
                    assert!(full > seconds, "{}: {full:.1} s in full, {seconds:.1} s in short", builtin.name);
                    sum += seconds;
                }
                for which in Which::ALL {
                    let seconds = Options::defaults(which, true, count).planned_s().unwrap();
                    println!("{} on {count} CPUs: {seconds:.1} s", which.name());
                    assert!(seconds <= 55.0, "{} on {count} CPUs: {seconds:.1} s", which.name());
                    sum += seconds;
                }
                assert!(sum <= 12.0 * 60.0, "{sum:.0} s");
            }
        }
    }
}
