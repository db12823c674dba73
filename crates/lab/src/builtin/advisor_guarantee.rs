//! `advisor-guarantee`: the closed-loop advisor's table of promises: three tasks on one CPU, with nothing done and with
//! weights of 40, 50 and 10, and what happens when one wants far more than it was promised or goes quiet.

use evenkeel_experiment::file::{Experiment, Sweep, SweepPoint, TenantSpec};
use evenkeel_experiment::study::verdict::advisor::PROMISED;

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "advisor-guarantee",
    about: "three tasks on one CPU are promised 40, 50 and 10 % of it by weight: what each gets when one wants more, wants far more, or goes quiet",
    sources: &["xadvisor_qos"],
    make,
};

/// Weights in proportion to the promises.
const WEIGHTS: [i64; 3] = [400, 500, 100];

fn make(plan: &Plan) -> Experiment {
    let wanted: [(&str, [u32; 3]); 3] = [
        ("wanted 40, 50, 30", [40, 50, 30]),
        ("wanted 40, 50, 80", [40, 50, 80]),
        ("wanted -, 50, 80", [0, 50, 80]),
    ];
    let mut points = Vec::new();
    for (words, wanted) in wanted {
        let mut plain = SweepPoint::new(format!("kernel default, {words}"));
        for (task, percent) in (1..).zip(wanted) {
            plain = plain.set(format!("tenant.task-{task}.load"), load(percent));
        }
        let mut promised = SweepPoint { label: format!("{PROMISED} 40, 50, 10, {words}"), ..plain.clone() };
        for (task, weight) in (1..).zip(WEIGHTS) {
            promised = promised.set(format!("tenant.task-{task}.weight"), weight);
        }
        points.extend([plain, promised]);
    }
    let tenants = (1..=3)
        .map(|task| TenantSpec {
            load: Some(load(40)),
            run_s: Some(plan.pick(2.0, 15.0)),
            ..TenantSpec::new(format!("task-{task}"))
        })
        .collect();
    Experiment {
        repetitions: plan.pick(3, 5),
        cpus: Some(plan.first(1)),
        time_limit_s: Some(plan.pick(30.0, 120.0)),
        tenants,
        sweeps: vec![Sweep::points("demand", points)],
        ..Experiment::new("", "")
    }
}

/// Work arrives at fixed instants and is kept until it is done: what a task did not get, it still wants.
fn load(percent: u32) -> String {
    if percent == 0 { "idle".into() } else { format!("duty --percent {percent} --jitter 50 --kind open") }
}
