//! `cpu-units-equal`: twenty tenants of equal units, small and large ones.

use evenkeel_experiment::file::{Experiment, Sweep};

use super::{Builtin, Plan, UNITS_AVAILABLE};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "cpu-units-equal",
    about: "twenty tenants of equal units: each gets a twentieth, whether the units are small (64) or large (1155)",
    sources: &["iox_20_containers_64_units", "iox_20_containers_1155_units"],
    make,
};

fn make(plan: &Plan) -> Experiment {
    Experiment {
        units_available: Some(UNITS_AVAILABLE),
        repetitions: plan.pick(1, 3),
        tenants: vec![plan.primes("c", (5, 2.0), (20, 10.0))],
        sweeps: vec![Sweep::of("tenant.c.units", ["64x20", "1155x20"])],
        ..Experiment::new("", "")
    }
}
