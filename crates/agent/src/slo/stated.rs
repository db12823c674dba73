//! What a service states of its requests.

use std::collections::BTreeMap;

use evenkeel_policy::requests::RequestTarget;

/// What a service promises of its requests, and where it counts them.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSlo {
    /// Address of a page in Prometheus' text format, `http://..`.
    pub endpoint: String,
    /// Name of the histogram on it, without `_bucket`.
    pub histogram: String,
    /// Labels that its series must have; others are summed over.
    pub labels: BTreeMap<String, String>,
    /// Unit of its bounds, seconds.
    pub unit_s: f64,
    /// Share of the requests that is to be answered within the bound, 0 to 1, both excluded.
    pub quantile: f64,
    pub bound_s: f64,
}

impl RequestSlo {
    /// As decisions use it.
    pub fn target(&self) -> RequestTarget {
        RequestTarget { slow_share: 1.0 - self.quantile, bound_s: self.bound_s }
    }
}
