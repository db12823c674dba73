//! `platforms`: what this host does with one thread, with all, and with nine tenths of a CPU; folders of several hosts
//! are then compared.

use evenkeel_experiment::file::{Experiment, Sweep, SweepPoint};

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "platforms",
    about: "what a CPU is worth here: one thread, one on every CPU, 90 % of one CPU; compare folders of several hosts",
    sources: &[],
    make,
};

fn make(plan: &Plan) -> Experiment {
    let points = vec![
        SweepPoint::new("one thread"),
        SweepPoint::new("a thread on every CPU").set("tenant.p.threads", i64::from(plan.count())),
        SweepPoint::new("90 % of one CPU").set("tenant.p.quota_pct", 90.0),
    ];
    Experiment {
        repetitions: plan.pick(2, 5),
        tenants: vec![plan.primes("p", (2, 1.0), (5, 10.0))],
        sweeps: vec![Sweep::points("capacity", points)],
        ..Experiment::new("", "")
    }
}
