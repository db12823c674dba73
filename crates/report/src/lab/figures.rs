//! Figures, limits and the host as the laboratory's results write them.

use evenkeel_base::run::Estimate;
use evenkeel_base::text::{bracketed, count, significant, without_zeros};
use evenkeel_experiment::record::Host;
use evenkeel_experiment::study::{PointStudy, TenantStudy};

use crate::time;

/// A number for people: four significant digits, no more decimals than six.
pub(crate) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    without_zeros(&significant(value, 4, 6)).to_owned()
}

/// `?` where it is not known.
pub(crate) fn known(value: Option<f64>) -> String {
    value.map_or_else(|| "?".to_owned(), figure)
}

/// Value and interval in one line; a value without spread stands alone.
pub(crate) fn estimate(e: Option<Estimate>) -> String {
    match e {
        None => "?".to_owned(),
        Some(e) if e.low < e.high && e.low.is_finite() => {
            format!("{} {}", figure(e.value), bracketed(figure(e.low), figure(e.high)))
        }
        Some(e) => figure(e.value),
    }
}

pub fn host_line(h: &Host) -> String {
    let mut parts = Vec::new();
    parts.extend(h.name.clone());
    parts.extend(h.cpu_model.clone());
    parts.extend(h.cpus.map(|n| count(n as usize, "CPU")));
    parts.extend(h.kernel.clone().map(|k| format!("Linux {k}")));
    parts.extend(h.scheduler.as_ref().map(|s| s.to_uppercase()));
    parts.extend(h.cgroup.clone().map(|c| format!("cgroup {c}")));
    parts.extend(h.virtual_machine.filter(|v| *v).map(|_| "virtual machine".to_owned()));
    if parts.is_empty() { "host not known".to_owned() } else { parts.join(" · ") }
}

/// A page's line on what was run, where and when.
pub fn begun_line(name: &str, host: &Host, began: &str) -> String {
    format!("{name} · {} · begun {}", host_line(host), time::to_the_second(began))
}

/// What holds a tenant, in words.
pub(crate) fn limits(tenant: &TenantStudy) -> String {
    let l = &tenant.limits;
    let mut words = Vec::new();
    words.extend(l.shares.map(|s| format!("{s} shares")));
    words.extend(l.weight.map(|w| format!("weight {w}")));
    words.extend(l.quota_pct.map(|q| format!("quota {} %", figure(q))));
    words.extend(
        l.period_usec
            .filter(|_| l.quota_pct.is_some())
            .map(|p| format!("period {} ms", figure(p as f64 / 1e3))),
    );
    words.extend(l.cpus.as_ref().map(|c| format!("CPUs {c}")));
    words.extend(l.nice.filter(|n| *n != 0).map(|n| format!("nice {n}")));
    words.extend(l.slice_ms.map(|s| format!("slice {} ms", figure(s))));
    words.join(", ")
}

/// Why tenants of a point have no prediction, each reason once.
pub(crate) fn unpredicted(point: &PointStudy) -> Vec<&str> {
    let mut reasons: Vec<&str> = point.tenants.iter().filter_map(|t| t.unpredicted.as_deref()).collect();
    reasons.dedup();
    reasons
}

pub(crate) fn with_units(tenant: &TenantStudy) -> String {
    match tenant.units {
        // A name such as `units-64` says it already.
        Some(units) if !tenant.name.split('-').any(|part| part == units.to_string()) => {
            format!("{} ({})", tenant.name, count(units as usize, "unit"))
        }
        _ => tenant.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_digits() {
        for (value, text) in [
            (1234.56, "1235"),
            (12.3456, "12.35"),
            (0.0123456, "0.01235"),
            (2.0, "2"),
            (0.0, "0"),
            (1e-9, "0"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(known(None), "?");
        assert_eq!(estimate(Some(Estimate { value: 1.0, low: 0.5, high: 1.5 })), "1 [0.5, 1.5]");
        assert_eq!(estimate(Some(Estimate { value: 1.0, low: 1.0, high: 1.0 })), "1");
    }
}
