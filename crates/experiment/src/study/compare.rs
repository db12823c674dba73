//! Several studies side by side: what changed, with an interval; and what a unit is worth on each host.

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use super::stats::ratio;
use super::{PointStudy, Study, TenantStudy};
use crate::record::Host;

/// A change smaller than this is not worth a word even when it is certain.
const NOTABLE_PCT: f64 = 1.0;

/// One figure of one tenant at one point, in each study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparedRow {
    /// Point of the sweep.
    pub point: String,
    /// Tenant.
    pub tenant: String,
    /// What: `events_per_s`, `run_s`, `elapsed_s`, `cpu_ms_per_event`, `wait_per_run_s`.
    pub quantity: String,
    /// In each study; `None` where it has none.
    pub values: Vec<Option<Estimate>>,
    /// Change of each against the first, percent.
    pub changes_pct: Vec<Option<Estimate>>,
    /// Whether any change is beyond its interval, and in which direction: `better`, `worse`, `same`, `unknown`.
    pub verdict: String,
}

/// Studies side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// `evenkeel.lab-compare/v1`.
    pub schema: String,
    /// Name and begin of each.
    pub studies: Vec<String>,
    /// Hosts differ: rates are those of different machines.
    pub different_hosts: bool,
    /// Rows, in the order of the first study's points.
    pub rows: Vec<ComparedRow>,
}

/// Quantities compared, and whether more is better.
type Quantity = (&'static str, bool, fn(&TenantStudy) -> Option<Estimate>);
const QUANTITIES: [Quantity; 5] = [
    ("events_per_s", true, |t| {
        // A single repetition's window has no interval; its runs have.
        let competing = t.competing_per_s.filter(|e| e.low < e.high);
        competing.or_else(|| t.events_per_s.map(|s| s.estimate())).or(t.competing_per_s)
    }),
    ("run_s", false, |t| t.run_s.map(|s| s.estimate())),
    ("elapsed_s", false, |t| t.elapsed_s),
    ("cpu_ms_per_event", false, |t| t.cpu_ms_per_event),
    ("wait_per_run_s", false, |t| t.wait_per_run_s),
];

/// Compares studies of the same experiment: points by label, tenants by place in the list.
pub fn compare(studies: &[(String, Study)]) -> Comparison {
    let mut rows = Vec::new();
    if let Some((_, first)) = studies.first() {
        for point in &first.points {
            for (index, tenant) in point.tenants.iter().enumerate() {
                let same: Vec<Option<&TenantStudy>> =
                    studies.iter().map(|(_, study)| counterpart(study, point, index)).collect();
                rows.extend(QUANTITIES.iter().filter_map(|quantity| row(point, tenant, &same, quantity)));
            }
        }
    }
    let key = |host: &Host| (host.cpu_model.clone(), host.cpus, host.kernel.clone(), host.name.clone());
    Comparison {
        schema: "evenkeel.lab-compare/v1".into(),
        studies: studies.iter().map(|(name, _)| name.clone()).collect(),
        different_hosts: studies.windows(2).any(|w| key(&w[0].1.host) != key(&w[1].1.host)),
        rows,
    }
}

fn counterpart<'a>(study: &'a Study, point: &PointStudy, index: usize) -> Option<&'a TenantStudy> {
    let found = study.points.iter().find(|p| p.label == point.label)?;
    let tenant = found.tenants.get(index)?;
    // A list of another length is another experiment.
    (found.tenants.len() == point.tenants.len()).then_some(tenant)
}

fn row(
    point: &PointStudy,
    tenant: &TenantStudy,
    same: &[Option<&TenantStudy>],
    quantity: &Quantity,
) -> Option<ComparedRow> {
    let (name, more_is_better, of) = quantity;
    let values: Vec<Option<Estimate>> = same.iter().map(|t| of((*t)?)).collect();
    let first = (*values.first()?)?;
    let changes: Vec<Option<Estimate>> = values.iter().skip(1).map(|v| change_pct(first, (*v)?)).collect();
    let certain = |c: &Estimate| (c.low > 0.0 || c.high < 0.0) && c.value.abs() >= NOTABLE_PCT;
    let verdict = match changes
        .iter()
        .flatten()
        .filter(|c| certain(c))
        .max_by(|a, b| a.value.abs().total_cmp(&b.value.abs()))
    {
        Some(change) if (change.value > 0.0) == *more_is_better => "better",
        Some(_) => "worse",
        None if changes.iter().flatten().any(|c| c.low.is_finite()) => "same",
        None => "unknown",
    };
    Some(ComparedRow {
        point: point.label.clone(),
        tenant: tenant.name.clone(),
        quantity: (*name).into(),
        values,
        changes_pct: changes,
        verdict: verdict.into(),
    })
}

/// Change from `a` to `b`, percent of `a`, with its interval. A single value has no interval: then the change has
/// none either and is not called certain.
pub fn change_pct(a: Estimate, b: Estimate) -> Option<Estimate> {
    let known = |e: &Estimate| e.low < e.high;
    let r = ratio(b, a)?;
    let pct = |v: f64| 100.0 * (v - 1.0);
    if known(&a) && known(&b) {
        Some(Estimate { value: pct(r.value), low: pct(r.low), high: pct(r.high) })
    } else {
        Some(Estimate { value: pct(r.value), low: f64::NEG_INFINITY, high: f64::INFINITY })
    }
}

/// What a unit is worth on a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Platform {
    /// Result folder.
    pub name: String,
    /// The host.
    pub host: Host,
    /// Events a second of one thread alone.
    pub alone_per_s: Option<f64>,
    /// Events a second of a tenant by its units, where tenants compete: units, rate, tenants at that point.
    pub by_units: Vec<(u64, f64, usize)>,
    /// Events a second of one unit, median over all of them, where CPUs are fully taken.
    pub unit_per_s: Option<f64>,
    /// The same against the first host, percent.
    pub of_first_pct: Option<f64>,
}

/// Hosts side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Platforms {
    /// `evenkeel.lab-platforms/v1`.
    pub schema: String,
    /// Hosts.
    pub hosts: Vec<Platform>,
    /// In words.
    pub verdict: String,
}

/// Compares what units buy on the hosts of these studies. Only points that all studies have count, so that the same
/// competition is compared.
pub fn platforms(studies: &[(String, Study)]) -> Platforms {
    let shared = |point: &PointStudy| {
        point.tenants.len() > 1
            && studies.iter().all(|(_, study)| {
                study.points.iter().any(|p| p.label == point.label && p.tenants.len() == point.tenants.len())
            })
    };
    let mut hosts: Vec<Platform> = studies
        .iter()
        .map(|(name, study)| {
            let mut by_units = Vec::new();
            for point in study.points.iter().filter(|p| shared(p)) {
                for tenant in &point.tenants {
                    if let (Some(units), Some(rate)) = (tenant.units, tenant.competing_per_s) {
                        by_units.push((units, rate.value, point.tenants.len()));
                    }
                }
            }
            let each: Vec<f64> = by_units.iter().map(|(units, rate, _)| rate / *units as f64).collect();
            let alone = study.points.iter().find(|p| p.tenants.len() == 1);
            Platform {
                name: name.clone(),
                host: study.host.clone(),
                alone_per_s: alone
                    .and_then(|p| Some(p.tenants[0].events_per_s?.mean))
                    .or(study.host.primes_per_s),
                by_units,
                unit_per_s: super::stats::median(&each),
                of_first_pct: None,
            }
        })
        .collect();
    let first = hosts.first().and_then(|h| h.unit_per_s);
    for host in &mut hosts {
        host.of_first_pct = host.unit_per_s.zip(first).map(|(own, first)| 100.0 * own / first);
    }
    let worth: Vec<f64> = hosts.iter().filter_map(|h| h.of_first_pct).collect();
    let (min, max) =
        worth.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    let verdict = if worth.len() < 2 {
        "Too few of the hosts ran the same points with units to say what a unit is worth on each.".to_owned()
    } else if max / min < 1.05 {
        format!("A unit is worth the same on all hosts, within {:.1} %.", 100.0 * (max / min - 1.0))
    } else {
        format!(
            "Units do not carry over: for the same competition a unit is worth {min:.0} to {max:.0} % of what it is on \
             the first host."
        )
    };
    Platforms { schema: "evenkeel.lab-platforms/v1".into(), hosts, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;
    use crate::study::testing::{cell, record, steady};

    fn studied(name: &str, scale: f64) -> (String, Study) {
        let one = |jitter: f64| {
            cell(vec![
                steady("a", 1, 4, scale * (10_000.0 + jitter)),
                steady("b", 2, 4, scale * (20_000.0 - jitter)),
            ])
        };
        (name.into(), study(&record(vec![("p", one(0.0)), ("p", one(20.0)), ("p", one(-20.0))])))
    }

    #[test]
    fn changes_beyond_their_interval_are_named() {
        let result = compare(&[studied("old", 1.0), studied("new", 1.1)]);
        let rate = result.rows.iter().find(|r| r.quantity == "events_per_s").unwrap();
        assert_eq!(rate.verdict, "better");
        let change = rate.changes_pct[0].unwrap();
        assert!((change.value - 10.0).abs() < 0.2 && change.low > 8.0, "{change:?}");
        let same = compare(&[studied("old", 1.0), studied("again", 1.0)]);
        assert!(same.rows.iter().all(|r| r.verdict == "same" || r.verdict == "unknown"), "{:?}", same.rows);
        assert!(!same.different_hosts);
        assert!(compare(&[]).rows.is_empty());
    }

    #[test]
    fn what_a_unit_is_worth_on_each_host() {
        let view = platforms(&[studied("a", 1.0), studied("b", 0.3)]);
        assert!((view.hosts[0].unit_per_s.unwrap() - 10_000.0).abs() < 100.0);
        assert!((view.hosts[1].of_first_pct.unwrap() - 30.0).abs() < 0.5);
        assert!(view.verdict.contains("do not carry over"), "{}", view.verdict);
        assert!(platforms(&[studied("a", 1.0)]).verdict.contains("Too few"));
    }
}
