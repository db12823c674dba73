//! `cpu-units-balance`: four ranges of units, each with the same ratio of largest to smallest.

use evenkeel_experiment::file::{Experiment, Sweep};

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "cpu-units-balance",
    about: "five tenants in four ranges of units, largest 16 times the smallest: whether small totals make better run times",
    sources: &["iox_balance_4_patterns"],
    make,
};

fn make(plan: &Plan) -> Experiment {
    Experiment {
        repetitions: plan.pick(1, 3),
        tenants: vec![plan.primes("c", (8, 1.0), (100, 10.0))],
        sweeps: vec![Sweep::of("tenant.c.units", ["8to128", "16to256", "32to512", "64to1024"])],
        ..Experiment::new("", "")
    }
}
