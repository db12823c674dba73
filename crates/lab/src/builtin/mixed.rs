//! `cpu-units-mixed`: tenants of different units side by side.

use evenkeel_experiment::file::{Experiment, Sweep};

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "cpu-units-mixed",
    about: "5, 6 and 7 tenants whose units double: events a second double as units do, while all compete",
    sources: &["iox_mixed_5_containers", "iox_mixed_6_containers", "iox_mixed_7_containers"],
    make,
};

fn make(plan: &Plan) -> Experiment {
    Experiment {
        repetitions: plan.pick(1, 3),
        tenants: vec![plan.primes("c", (6, 1.2), (20, 10.0))],
        sweeps: vec![Sweep::of("tenant.c.units", ["16x2 32to128", "16x2 32to256", "16x2 32to512"])],
        ..Experiment::new("", "")
    }
}
