//! A cell to run, and its tenants while it runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use evenkeel_experiment::file::{Experiment, Tenant};
use evenkeel_experiment::record::{Host, Limits, Point};

use super::super::groups::{TenantGroup, Wanted};
use super::super::order::Order;

/// A cell to run.
pub(in crate::runner) struct Task<'a> {
    pub experiment: &'a Experiment,
    pub point: Point,
    pub repetition: u32,
    /// The last tenant is started first.
    pub reversed: bool,
    pub start_at: Option<&'a str>,
    pub binary: &'a Path,
    pub host: &'a Host,
    pub stop: &'a AtomicBool,
}

/// One tenant while the cell runs.
pub(super) struct Member {
    pub tenant: Tenant,
    pub order: Order,
    pub group: Option<Arc<TenantGroup>>,
    pub wanted: Wanted,
    pub limits: Limits,
    pub ended: Option<String>,
    /// It ended before it was released, or never came up.
    pub early: Option<String>,
    pub over_time: bool,
}
