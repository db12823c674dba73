//! `isolation-sys`: work with much system time next to a neighbour that burns CPU, by share of the machine: the source's
//! rows (A/B from 4000/36000 in steps of 4000, of 40 CPUs), whose tables it left empty.

use evenkeel_experiment::file::{Experiment, Sweep, SweepPoint, TenantSpec};

use super::{Builtin, Plan, sieve};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "isolation-sys",
    about: "a reader of files next to a burner of CPU, at 10 to 90 % of the machine: own files and the same file, under cpuset, shares and quota",
    sources: &[],
    make,
};

fn make(plan: &Plan) -> Experiment {
    let cpu_s = plan.pick(0.1, 2.0) * f64::from(plan.count());
    // A read costs some hundred nanoseconds; how many decides only how long the experiment takes.
    let last = sieve::last_number(plan, sieve::READ_FROM, cpu_s, 250.0);
    by_share(plan, last, &[("own file", "own"), ("same file", "same")])
}

/// B reads files in these ways (a label, and what stands after `--read`), up to a last number, at every share.
pub(super) fn by_share(plan: &Plan, last: u64, reads: &[(&str, &str)]) -> Experiment {
    let load = |read: &str| sieve::load(sieve::READ_FROM, last, read);
    let first = reads.first().map_or("own", |(_, read)| *read);
    let reads = reads.iter().map(|(label, read)| SweepPoint::new(*label).set("tenant.b.load", load(read)));
    let a = TenantSpec {
        load: Some("spin".into()),
        threads: plan.count(),
        background: true,
        ..TenantSpec::new("a")
    };
    let b = TenantSpec { load: Some(load(first)), threads: sieve::threads(plan), ..TenantSpec::new("b") };
    Experiment {
        // Fewer show no interval that could decide anything.
        repetitions: plan.pick(3, 5),
        needs_cpus: 2,
        time_limit_s: Some(plan.pick(30.0, 600.0)),
        sweeps: vec![Sweep::points("reads", reads.collect()), Sweep::points("share", points(plan))],
        tenants: vec![a, b],
        ..Experiment::new("", "")
    }
}

/// B's share of the machine.
#[derive(Debug, Clone, Copy)]
struct Share {
    part: u32,
    of: u32,
}

impl Share {
    /// Percent of so many CPUs together.
    fn pct(self, cpus: u32) -> f64 {
        f64::from(100 * self.part * cpus) / f64::from(self.of)
    }

    /// As many whole CPUs; `None` where it is none.
    fn whole(self, cpus: u32) -> Option<u32> {
        let all = self.part * cpus;
        all.is_multiple_of(self.of).then_some(all / self.of)
    }

    /// `10 %`, `33.3 %`.
    fn label(self) -> String {
        let pct = self.pct(1);
        if pct.fract() == 0.0 { format!("{pct:.0} %") } else { format!("{pct:.1} %") }
    }
}

/// The source's tenths. Few of them are whole CPUs on a small host, so the full form adds quarters of its CPUs.
fn shares(plan: &Plan) -> Vec<Share> {
    let cpus = plan.count();
    let tenths: &[u32] = if plan.quick { &[1, 5, 9] } else { &[1, 2, 3, 4, 5, 6, 7, 8, 9] };
    let mut all: Vec<Share> = tenths.iter().map(|part| Share { part: *part, of: 10 }).collect();
    if !plan.quick && all.iter().filter(|share| share.whole(cpus).is_some()).count() < 3 {
        for part in [cpus / 4, cpus / 2, cpus * 3 / 4] {
            let there = all.iter().any(|share| share.part * cpus == part * share.of);
            if part > 0 && part < cpus && !there {
                all.push(Share { part, of: cpus });
            }
        }
    }
    all.sort_by(|a, b| a.pct(1).total_cmp(&b.pct(1)));
    all
}

/// Every share under each kind of limit.
fn points(plan: &Plan) -> Vec<SweepPoint> {
    let cpus = plan.count();
    let all = shares(plan);
    let whole: Vec<String> =
        all.iter().filter(|share| share.whole(cpus).is_some()).map(|share| share.label()).collect();
    let lacking = format!(
        "a cpuset holds whole CPUs: on {cpus} it can give {} of these rows",
        if whole.is_empty() { "none".to_owned() } else { whole.join(", ") }
    );
    let cpuset = |share: Share| {
        let point = SweepPoint::new(format!("cpuset {}", share.label()));
        match share.whole(cpus) {
            Some(count) => {
                let b = plan.first(count);
                let a = plan.cpus.difference(&b);
                point.set("tenant.b.cpus", b.to_string()).set("tenant.a.cpus", a.to_string())
            }
            None => SweepPoint { unavailable: Some(lacking.clone()), ..point },
        }
    };
    let shares = |share: Share| {
        let b = (10.0 * share.pct(1)).round() as i64;
        SweepPoint::new(format!("shares {}", share.label()))
            .set("tenant.b.weight", b)
            .set("tenant.a.weight", 1000 - b)
    };
    let quota = |share: Share| {
        let b = share.pct(cpus);
        SweepPoint::new(format!("quota {}", share.label()))
            .set("tenant.b.quota_pct", b)
            .set("tenant.a.quota_pct", 100.0 * f64::from(cpus) - b)
    };
    all.into_iter().flat_map(|share| [cpuset(share), shares(share), quota(share)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::CpuSet;

    fn plan(cpus: u32, quick: bool) -> Plan {
        Plan { quick, cpus: CpuSet::first_n(cpus), topology: None, primes_per_s: 1000.0 }
    }

    fn labels(cpus: u32, quick: bool) -> Vec<String> {
        shares(&plan(cpus, quick)).into_iter().map(Share::label).collect()
    }

    #[test]
    fn the_rows_are_the_sources_and_what_a_small_host_can_give_as_cpusets() {
        let tenths: Vec<String> = (1..10).map(|n| format!("{n}0 %")).collect();
        assert_eq!(labels(2, false), tenths);
        assert_eq!(labels(40, false), tenths);
        assert_eq!(labels(2, true), ["10 %", "50 %", "90 %"]);
        let four = labels(4, false);
        assert!(four.len() == 11 && four[2] == "25 %" && four[8] == "75 %", "{four:?}");
        assert!(labels(3, false).contains(&"33.3 %".to_owned()));
        // 20, 40, 60 and 80 % of five are whole already.
        assert_eq!(labels(5, false), tenths);
    }

    #[test]
    fn two_cpus_can_hold_one_row_as_a_cpuset_and_say_so() {
        let all = points(&plan(2, false));
        let (given, lacking): (Vec<_>, Vec<_>) = all
            .iter()
            .filter(|point| point.label.starts_with("cpuset"))
            .partition(|point| point.unavailable.is_none());
        assert_eq!(given.iter().map(|p| p.label.as_str()).collect::<Vec<_>>(), ["cpuset 50 %"]);
        let why = lacking[0].unavailable.as_ref().unwrap();
        assert!(lacking.len() == 8 && why.contains("on 2 it can give 50 %"), "{why}");
        let at = |label: &str| all.iter().find(|point| point.label == label).unwrap();
        // The source's 36000/4000: a tenth of the machine for B.
        assert_eq!(at("shares 10 %").set["tenant.a.weight"].as_integer(), Some(900));
        assert_eq!(at("quota 10 %").set["tenant.b.quota_pct"].as_float(), Some(20.0));
        assert_eq!(at("quota 10 %").set["tenant.a.quota_pct"].as_float(), Some(180.0));
    }
}
