//! `cpu-units-wait`: how a run's wait grows with the number of tenants.

use evenkeel_experiment::file::{Experiment, Sweep};

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "cpu-units-wait",
    about: "1 to 10 equal tenants: how long a run waits, and how many tenants fit a budget of 20 ms",
    sources: &["iox_wait_by_container_count"],
    make,
};

fn make(plan: &Plan) -> Experiment {
    let lists = [1, 2, 3, 4, 5, 6, 8, 10].map(|count| format!("64x{count}"));
    Experiment {
        repetitions: plan.pick(1, 3),
        tenants: vec![plan.primes("c", (4, 1.0), (20, 10.0))],
        sweeps: vec![Sweep::of("tenant.c.units", lists)],
        ..Experiment::new("", "")
    }
}
