//! `cpu-units-priority`: ten tenants from 1 to 512 units, activated in both orders.

use evenkeel_experiment::file::{Activation, Experiment};

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "cpu-units-priority",
    about: "ten tenants of 1, 2, 4 .. 512 units, started in both orders: the large ones finish first, then the small ones speed up",
    sources: &["iox_priority_10_containers"],
    make,
};

fn make(plan: &Plan) -> Experiment {
    let mut tenant = plan.primes("c", (8, 1.0), (20, 10.0));
    tenant.units = "1to512".parse().ok();
    Experiment {
        activation: Activation::Both,
        repetitions: plan.pick(2, 6),
        tenants: vec![tenant],
        ..Experiment::new("", "")
    }
}
