//! What a built-in experiment is, and what it is scaled to.

use evenkeel_base::{CpuSet, Topology};
use evenkeel_experiment::file::{Experiment, TenantSpec};
use evenkeel_experiment::record::Host;

/// Units one tenant may have on the source's platform.
pub const UNITS_AVAILABLE: u64 = 1155;

#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Name on the command line.
    pub name: &'static str,
    /// What it shows, one sentence.
    pub about: &'static str,
    /// The source's tables it stands next to ([`evenkeel_experiment::sources`]).
    pub sources: &'static [&'static str],
    pub make: fn(&Plan) -> Experiment,
}

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
