//! Hosts side by side: what a unit is worth on each, whether the units their vendor publishes carry over, and whether a
//! share of units buys the same share of the machine.

use serde::{Deserialize, Serialize};

use evenkeel_base::run::Estimate;

use super::shape::{ShapeRow, shape};
use super::units::{self, Promise};
use super::{PointStudy, Side};
use crate::decide::{Figure, Verdict, page};
use crate::record::Host;

/// What a unit is worth on a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Platform {
    /// Result folder.
    pub name: String,
    pub host: Host,
    /// Events a second of one thread alone.
    pub alone_per_s: Option<f64>,
    /// Events a second of a tenant by its units, where tenants compete: units, rate, tenants at that point.
    pub by_units: Vec<(u64, f64, usize)>,
    /// Events a second of one unit, median over all of them, where CPUs are fully taken.
    pub unit_per_s: Option<f64>,
    /// The same against the first host, percent.
    pub of_first_pct: Option<f64>,
    /// Units the vendor publishes for the whole platform; `None` where none were given.
    #[serde(default)]
    pub published_units: Option<f64>,
    /// Events a second of one thread alone, with the 95 % interval of its runs.
    #[serde(default)]
    pub alone: Option<Estimate>,
    /// Events a second of several threads alone, the largest rate seen, likewise.
    #[serde(default)]
    pub threads: Option<Estimate>,
}

/// Hosts side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Platforms {
    pub schema: String,
    pub hosts: Vec<Platform>,
    pub verdict: String,
    /// What the published units promise of each host, and what it does.
    #[serde(default)]
    pub promises: Vec<Promise>,
    /// What a share of units buys on each host, where all ran the same list of units.
    #[serde(default)]
    pub shape: Vec<ShapeRow>,
    /// Whether published units carry over, and whether the shape holds; all together at 95 %.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// What could not be answered, and why.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// Compares what units buy on the hosts of these studies. Only points that all studies have count, so that the same
/// competition is compared. `published` has the vendor's units of each host, as far as they are known ([`units::published`]).
pub fn platforms(sides: &[Side], published: &[Option<f64>]) -> Platforms {
    let shared = |point: &PointStudy| {
        point.tenants.len() > 1
            && sides.iter().all(|side| {
                let same = |p: &PointStudy| p.label == point.label && p.tenants.len() == point.tenants.len();
                side.study.points.iter().any(same)
            })
    };
    let rates = units::alone(sides);
    let primes = rates.iter().all(|rate| rate.one.is_none()).then_some(());
    let mut hosts: Vec<Platform> = sides
        .iter()
        .enumerate()
        .map(|(index, side)| {
            let study = &side.study;
            let mut by_units = Vec::new();
            for point in study.points.iter().filter(|p| shared(p)) {
                for tenant in &point.tenants {
                    if let (Some(units), Some(rate)) = (tenant.units, tenant.competing_per_s) {
                        by_units.push((units, rate.value, point.tenants.len()));
                    }
                }
            }
            let each: Vec<f64> = by_units.iter().map(|(units, rate, _)| rate / *units as f64).collect();
            let rate = rates.get(index).copied().unwrap_or_default();
            let bounded = |mean| Figure::Mean(mean).estimate(0.05).filter(Estimate::is_bounded);
            Platform {
                name: side.name.clone(),
                host: study.host.clone(),
                // What all hosts did is not held against primes.
                alone_per_s: rate.one.map(|mean| mean.value).or(primes.and(study.host.primes_per_s)),
                by_units,
                unit_per_s: evenkeel_base::stats::median(each),
                of_first_pct: None,
                published_units: published.get(index).copied().flatten(),
                alone: rate.one.and_then(bounded),
                threads: rate.several.and_then(bounded),
            }
        })
        .collect();
    let first = hosts.first().and_then(|h| h.unit_per_s);
    for host in &mut hosts {
        host.of_first_pct = host.unit_per_s.zip(first).map(|(own, first)| 100.0 * own / first);
    }
    let mut missing = Vec::new();
    let mut drafts = Vec::new();
    let promises = units::promises(&rates, published, &mut drafts, &mut missing);
    let shape = shape(sides, &mut drafts, &mut missing);
    Platforms {
        schema: "evenkeel.lab-platforms/v1".into(),
        verdict: worth(&hosts),
        hosts,
        promises,
        shape,
        verdicts: page(drafts),
        missing,
    }
}

fn worth(hosts: &[Platform]) -> String {
    let worth: Vec<f64> = hosts.iter().filter_map(|h| h.of_first_pct).collect();
    let (min, max) =
        worth.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    let on = match worth.len() {
        n if n == hosts.len() => "all hosts".to_owned(),
        n => format!("{n} of {} hosts, of which it is known,", hosts.len()),
    };
    if worth.len() < 2 {
        "Too few of the hosts ran the same points with units to say what a unit is worth on each.".to_owned()
    } else if max / min < 1.05 {
        format!(
            "By the medians, which have no interval, a unit is worth the same on {on} within {:.1} %.",
            100.0 * (max / min - 1.0)
        )
    } else {
        format!(
            "By the medians, which have no interval, units do not carry over: for the same competition a unit is worth \
             {min:.0} to {max:.0} % of what it is on the first host."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::testing::{cell, record, side, steady};

    #[test]
    fn what_a_unit_is_worth_on_each_host() {
        let view = platforms(&[side("a", 1.0), side("b", 0.3)], &[]);
        assert!((view.hosts[0].unit_per_s.unwrap() - 10_000.0).abs() < 100.0);
        assert!((view.hosts[1].of_first_pct.unwrap() - 30.0).abs() < 0.5);
        assert!(view.verdict.contains("units do not carry over"), "{}", view.verdict);
        // A host without units is none of those.
        let mut without = side("c", 1.0);
        without.study.points[0].tenants.iter_mut().for_each(|t| t.units = None);
        let view = platforms(&[side("a", 1.0), side("b", 1.0), without], &[]);
        assert!(view.verdict.contains("the same on 2 of 3 hosts"), "{}", view.verdict);
        assert!(view.promises.is_empty(), "no units are published");
        assert!(platforms(&[side("a", 1.0)], &[]).verdict.contains("Too few"));
    }

    #[test]
    fn what_a_quota_leaves_is_no_rate_alone() {
        let host = |name: &str, quota_pct: Option<f64>| {
            let mut tenant = steady("t", 64, 5, quota_pct.map_or(1000.0, |pct| 10.0 * pct));
            tenant.limits.quota_pct = quota_pct;
            let mut record = record(vec![("", cell(vec![tenant]))]);
            record.host.primes_per_s = Some(2000.0);
            Side::of(name, record)
        };
        let of =
            |sides: &[Side]| platforms(sides, &[]).hosts.iter().map(|h| h.alone_per_s).collect::<Vec<_>>();
        let (held, free) = (host("held", Some(25.0)), host("free", None));
        // Each host's primes, unless what another did alone may be another load.
        assert_eq!(of(&[held.clone(), held.clone()]), [Some(2000.0); 2]);
        assert_eq!(of(&[held, free]), [None, Some(1000.0)]);
    }
}
