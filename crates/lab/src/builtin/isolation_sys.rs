//! `isolation-sys`: work with much system time beside a neighbour that burns CPU, by share of the machine: the source's
//! tables, which it left empty.

use evenkeel_experiment::laboratory::{Experiment, Sweep, SweepPoint, TenantSpec};

use super::{Builtin, Plan, sieve};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "isolation-sys",
    about: "a reader of files beside a burner of CPU, by its share of the machine: own files and the same file, under cpuset, shares and quota",
    sources: &[],
    make,
};

fn make(plan: &Plan) -> Experiment {
    let cpus = plan.count();
    let percents: &[u32] = if plan.quick { &[10, 50, 90] } else { &[10, 25, 50, 75, 90] };
    let mut points = Vec::new();
    for &pct in percents {
        points.push(cpuset(plan, pct));
        points.push(
            SweepPoint::new(format!("shares {pct} %"))
                .set("tenant.b.weight", i64::from(pct * 10))
                .set("tenant.a.weight", i64::from((100 - pct) * 10)),
        );
        points.push(
            SweepPoint::new(format!("quota {pct} %"))
                .set("tenant.b.quota_pct", f64::from(pct * cpus))
                .set("tenant.a.quota_pct", f64::from((100 - pct) * cpus)),
        );
    }
    // A read costs some hundred nanoseconds; how many decides only how long the experiment takes.
    let last = sieve::last_number(plan, plan.pick(0.08, 4.0) * f64::from(cpus), 250.0);
    let reads = ["own", "same"]
        .map(|read| SweepPoint::new(format!("{read} file")).set("tenant.b.load", sieve::load(last, read)));
    let a = TenantSpec { load: Some("spin".into()), threads: cpus, background: true, ..TenantSpec::new("a") };
    let b = TenantSpec {
        load: Some(sieve::load(last, "own")),
        threads: sieve::threads(plan),
        ..TenantSpec::new("b")
    };
    Experiment {
        // Fewer show no interval that could decide anything.
        repetitions: plan.pick(3, 5),
        needs_cpus: 2,
        time_limit_s: Some(plan.pick(30.0, 600.0)),
        tenants: vec![a, b],
        sweeps: vec![Sweep::points("reads", reads.into()), Sweep::points("share", points)],
        ..Experiment::new("", "")
    }
}

/// A cpuset holds whole CPUs: on a small host most shares cannot be had.
fn cpuset(plan: &Plan, pct: u32) -> SweepPoint {
    let label = format!("cpuset {pct} %");
    let cpus = plan.count();
    let hundredths = pct * cpus;
    if !hundredths.is_multiple_of(100) || hundredths == 0 || hundredths == cpus * 100 {
        let why = format!(
            "{pct} % of {cpus} CPUs is {:.2} CPUs, and a cpuset holds whole ones",
            f64::from(hundredths) / 100.0
        );
        return SweepPoint { unavailable: Some(why), ..SweepPoint::new(label) };
    }
    let b = plan.first(hundredths / 100);
    let a = plan.cpus.difference(&b);
    SweepPoint::new(label).set("tenant.b.cpus", b.to_string()).set("tenant.a.cpus", a.to_string())
}
