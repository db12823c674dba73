//! `cpu-units-alone`: one tenant with any number of units.

use evenkeel_experiment::file::{Experiment, Sweep};

use super::{Builtin, Plan, UNITS_AVAILABLE};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "cpu-units-alone",
    about: "one tenant with 1 to 1155 units: alone, units do not matter",
    sources: &["iox_one_container"],
    make,
};

fn make(plan: &Plan) -> Experiment {
    let units: Vec<i64> = (0..=10).map(|power| 1 << power).chain([1155]).collect();
    Experiment {
        units_available: Some(UNITS_AVAILABLE),
        repetitions: plan.pick(1, 3),
        tenants: vec![plan.primes("c", (2, 1.0), (20, 10.0))],
        sweeps: vec![Sweep::of("tenant.c.units", units)],
        ..Experiment::new("", "")
    }
}
