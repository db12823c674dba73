//! The built-in experiments: each reproduces a source's table on this host, scaled to its CPUs. A new one is a file
//! here with a `BUILTIN`, and a line in `BUILTINS`.

use evenkeel_base::{CpuSet, Topology};
use evenkeel_experiment::file::{Experiment, TenantSpec};
use evenkeel_experiment::record::Host;

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
mod platforms;
mod priority;
mod sieve;
mod spread;
mod wait;

/// Units one tenant may have on the source's platform.
pub const UNITS_AVAILABLE: u64 = 1155;

/// A built-in experiment.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Name on the command line.
    pub name: &'static str,
    /// What it shows, one sentence.
    pub about: &'static str,
    /// The source's tables it stands beside ([`evenkeel_experiment::sources`]).
    pub sources: &'static [&'static str],
    /// Makes it for a host.
    pub make: fn(&Plan) -> Experiment,
}

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

/// What an experiment is scaled to.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Short form: at most a minute.
    pub quick: bool,
    /// CPUs tenants may use.
    pub cpus: CpuSet,
    /// How they relate, where known.
    pub topology: Option<Topology>,
    /// Events a second of one undisturbed thread of `primes`.
    pub primes_per_s: f64,
}

impl Plan {
    /// Number of CPUs.
    pub fn count(&self) -> u32 {
        u32::try_from(self.cpus.len()).unwrap_or(u32::MAX).max(1)
    }

    /// The first so many CPUs.
    pub fn first(&self, n: u32) -> CpuSet {
        let mut set = CpuSet::default();
        self.cpus.iter().take(n as usize).for_each(|cpu| set.insert(cpu));
        set
    }

    /// One of two values, for the short and for the full form.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Tenants that count primes in runs, as the source's `sysbench cpu` does; back to back.
    pub fn primes(&self, name: &str, quick: (u32, f64), full: (u32, f64)) -> TenantSpec {
        let (runs, run_s) = self.pick(quick, full);
        TenantSpec { load: Some("primes".into()), runs, run_s: Some(run_s), ..TenantSpec::new(name) }
    }
}

impl Builtin {
    /// The experiment for a host.
    pub fn experiment(&self, plan: &Plan) -> Experiment {
        let mut experiment = (self.make)(plan);
        experiment.name = self.name.to_owned();
        experiment.title = self.about.to_owned();
        experiment
    }

    /// How long it is expected to take on a host, set-up and report included, seconds; at most, rather than on average.
    pub fn planned_s(&self, plan: &Plan) -> Option<f64> {
        let host =
            Host { cpus: Some(plan.count()), primes_per_s: Some(plan.primes_per_s), ..Host::default() };
        crate::runner::planned_s(&self.experiment(plan), &host)
    }
}

/// A built-in by name.
pub fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::plan::{Options, Which};
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
