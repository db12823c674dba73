//! `cpu-units-spread`: whether larger equal units spread run times wider.

use evenkeel_experiment::file::{Experiment, Sweep};

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "cpu-units-spread",
    about: "4 and 8 equal tenants of 64 to 1024 units: the spread of run times by units",
    sources: &[],
    make,
};

fn make(plan: &Plan) -> Experiment {
    let lists =
        [4, 8].into_iter().flat_map(|count| [64, 128, 256, 512, 1024].map(|u| format!("{u}x{count}")));
    Experiment {
        tenants: vec![plan.primes("c", (4, 1.0), (100, 10.0))],
        sweeps: vec![Sweep::of("tenant.c.units", lists)],
        ..Experiment::new("", "")
    }
}
