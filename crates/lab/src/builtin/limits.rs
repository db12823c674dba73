//! `limit-sweep`: a job under several CPU limits, on a host whose CPU is stolen by a rule.
//!
//! The rules are played from outside by the enforcer: a window over demanded time, credits, and a shared core. The full
//! form adds the rule that fits the source's four build times.

use std::collections::BTreeMap;

use evenkeel_experiment::file::{Experiment, StealSpec, Sweep, SweepPoint, TenantSpec};
use evenkeel_model::credit::Rule;

use super::{Builtin, Plan};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "limit-sweep",
    about: "a job without limit and under 25, 30 and 40 %, where the CPU is stolen by a window rule, by credits, or always: which limit finishes first",
    sources: &["ec2_build_by_cpu_limit", "ec2_build_by_instance"],
    make,
};

/// Use above 33 % of a window of 100 s steals 97 % until it is below 30 %; stolen time counts as used.
const WINDOW: Rule =
    Rule::Window { window_s: 100.0, above: 0.33, below: 0.30, stolen: 0.97, counts_stolen: true };
/// A core shared with another guest.
const SHARED: Rule = Rule::Constant { stolen: 0.45 };

fn make(plan: &Plan) -> Experiment {
    let scale = plan.pick(100.0, 50.0);
    // CPU seconds of the job in the source's time: enough to use up the window, and within two credits.
    let cpu_s = plan.pick(50.0, 90.0);
    let events = (cpu_s / scale * plan.primes_per_s).round().max(1.0) as u64;
    let mut rules = vec![("window", WINDOW), ("credits", Rule::t2_micro(2.0)), ("shared core", SHARED)];
    if !plan.quick {
        rules.push(("penalty", Rule::T1_MICRO_FITTED));
    }
    let points = rules.into_iter().map(|(label, rule)| SweepPoint {
        set: BTreeMap::from_iter(toml_of(&rule).map(|value| ("enforcer.rule".to_owned(), value))),
        ..SweepPoint::new(label)
    });
    let mut limits = vec![SweepPoint::new("no limit")];
    let some: &[u32] = if plan.quick { &[25, 30, 40] } else { &[20, 25, 30, 35, 40, 60] };
    limits.extend(
        some.iter()
            .map(|pct| SweepPoint::new(format!("{pct} %")).set("tenant.job.quota_pct", f64::from(*pct))),
    );
    let tenant = TenantSpec {
        load: Some("primes".into()),
        events: Some(events),
        // The source's period of a second, in the rule's time.
        period_usec: (1e6 / scale) as u64,
        ..TenantSpec::new("job")
    };
    Experiment {
        // The short form shows how it goes; one repetition has no interval, so its verdicts are undecided.
        repetitions: plan.pick(1, 3),
        time_limit_s: Some(plan.pick(10.0, 120.0)),
        // One virtual CPU: the last one, which the host's own work uses least.
        cpus: plan.cpus.iter().last().map(evenkeel_base::CpuSet::single),
        enforcer: Some(StealSpec { rule: WINDOW, instance: None, time_scale: scale }),
        tenants: vec![tenant],
        sweeps: vec![Sweep::points("rule", points.collect()), Sweep::points("limit", limits)],
        ..Experiment::new("", "")
    }
}

/// As it would be written in a file.
fn toml_of(rule: &Rule) -> Option<evenkeel_experiment::file::Value> {
    evenkeel_experiment::file::Value::try_from(rule).ok()
}
