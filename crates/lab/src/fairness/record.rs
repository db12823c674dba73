//! What the experiments on tenants measured, on disk: the minimum from which every figure is computed.

use evenkeel_base::CpuSet;
use evenkeel_experiment::decide::Mean;
use serde::{Deserialize, Serialize};

use super::plan::{Options, Point};
use crate::net::measure::Measured;
use crate::runner::grid::{GridCell, GridOptions, GridRecord, Measures};
use crate::vm::machine::VmThread;

pub const SCHEMA: &str = "evenkeel.lab-tenants/v1";

/// The experiments on tenants with all results so far.
pub type TenantsRecord = GridRecord<Options, Point, TenantsMeasured>;

impl GridOptions for Options {
    const SCHEMA: &'static str = SCHEMA;

    fn repetitions(&self) -> u32 {
        self.repetitions
    }
}

/// One repetition at one point.
pub type Cell = GridCell<TenantsMeasured>;

/// What was measured of the tenants of a point.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TenantsMeasured {
    /// Flows measured, for `tenants-net`.
    #[serde(default)]
    pub net: Option<Measured>,
    /// CPU time measured, for `tenants-cpu`.
    #[serde(default)]
    pub cpu: Option<CpuMeasured>,
    #[serde(default)]
    pub threads: Vec<Vec<VmThread>>,
}

impl Measures for TenantsMeasured {
    /// A flow that broke is missing from its tenant's figures: that is no bias.
    fn broken(&self) -> Option<&str> {
        self.net.iter().flat_map(|net| &net.flows).find_map(|flow| flow.broken.as_deref())
    }
}

/// CPU time of tenants that want all they can get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuMeasured {
    /// Length of all windows, seconds.
    pub seconds: f64,
    /// CPUs the tenants were confined to.
    pub cpus: Option<CpuSet>,
    pub tenants: Vec<TenantCpu>,
    /// Load of each CPU of the host, percent.
    pub per_cpu_pct: Vec<f64>,
    /// Stolen from the host, percent of ONE CPU.
    pub steal_pct: Option<f64>,
    /// Used by all others on the tenants' CPUs, percent of ONE CPU.
    #[serde(default)]
    pub others_pct: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantCpu {
    pub name: String,
    /// Weight, as cgroup v2 counts.
    pub weight: u64,
    /// CPU time got, percent of ONE CPU; `None` when its process ended.
    pub cpu_pct: Option<f64>,
    /// The same in each window.
    pub windows_pct: Vec<Option<f64>>,
    /// Events a second, where the load counts any that can be seen.
    pub events_per_s: Option<f64>,
}

/// The repetitions of a point that have a result: the sample of its figures.
pub(super) struct Results<'a>(pub Vec<&'a Cell>);

impl<'a> Results<'a> {
    /// Of a point, by its index.
    pub fn of(record: &'a TenantsRecord, point: usize) -> Self {
        Self(record.results(point).collect())
    }

    /// A quantity, a value a repetition; `None` where one does not know it.
    pub fn mean(&self, of: impl Fn(&Cell) -> Option<f64>) -> Option<Mean> {
        Mean::of(&self.0.iter().map(|cell| of(cell)).collect::<Option<Vec<f64>>>()?)
    }

    /// The same of the flows.
    pub fn net(&self, of: impl Fn(&Measured) -> Option<f64>) -> Option<Mean> {
        self.mean(|cell| of(cell.measured.net.as_ref()?))
    }
}
