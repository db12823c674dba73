//! What the experiments on tenants measured, on disk: the minimum from which every figure is computed.

use std::fs;
use std::path::Path;

use evenkeel_base::CpuSet;
use evenkeel_experiment::record::{FILE, Host, RecordError, Requirement, disk};
use serde::{Deserialize, Serialize};

use super::plan::{Options, Point};
use crate::net::measure::Measured;
use crate::vm::machine::VmThread;

/// Value of [`TenantsRecord::schema`].
pub const SCHEMA: &str = "evenkeel.lab-tenants/v1";

/// An experiment with all its results so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantsRecord {
    /// [`SCHEMA`].
    pub schema: String,
    /// `tenants-net` or `tenants-cpu`.
    pub name: String,
    /// Version of evenkeel that made it.
    pub version: String,
    /// When it was begun, RFC 3339.
    pub began: String,
    /// When it was finished, RFC 3339; `None` while cells are missing.
    pub finished: Option<String>,
    /// The host.
    pub host: Host,
    /// What was asked for.
    pub options: Options,
    /// What the experiment needs and whether it was there.
    pub requirements: Vec<Requirement>,
    /// The points, in order.
    pub points: Vec<Point>,
    /// Cells done, in the order in which they were run.
    pub cells: Vec<Cell>,
}

/// One repetition at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Index of the point.
    pub point: usize,
    /// Repetition, from 0.
    pub repetition: u32,
    /// When it began, RFC 3339.
    pub began: String,
    /// How long it took, set-up included, seconds.
    pub took_s: f64,
    /// Flows measured, for `tenants-net`.
    #[serde(default)]
    pub net: Option<Measured>,
    /// CPU time measured, for `tenants-cpu`.
    #[serde(default)]
    pub cpu: Option<CpuMeasured>,
    /// Threads of each virtual machine.
    #[serde(default)]
    pub threads: Vec<Vec<VmThread>>,
    /// Why there is no result.
    #[serde(default)]
    pub failed: Option<String>,
}

/// CPU time of tenants that want all they can get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuMeasured {
    /// Length of all windows, seconds.
    pub seconds: f64,
    /// CPUs the tenants were confined to.
    pub cpus: Option<CpuSet>,
    /// Each tenant.
    pub tenants: Vec<TenantCpu>,
    /// Load of each CPU of the host, percent.
    pub per_cpu_pct: Vec<f64>,
    /// Stolen from the host, percent of ONE CPU.
    pub steal_pct: Option<f64>,
}

/// One tenant's CPU time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantCpu {
    /// Name.
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

impl disk::OnDisk for TenantsRecord {
    const SCHEMA: &'static str = SCHEMA;

    fn schema(&self) -> &str {
        &self.schema
    }
}

impl TenantsRecord {
    /// Reads `record.json` of a result folder.
    ///
    /// # Errors
    /// Unreadable, or not a record of these experiments.
    pub fn load(folder: &Path) -> Result<Self, RecordError> {
        disk::load(folder)
    }

    /// Writes it into a folder, which must exist; what was there stays until the new one is whole on disk.
    ///
    /// # Errors
    /// As the file system.
    pub fn save(&self, folder: &Path) -> Result<(), RecordError> {
        disk::save(self, folder)
    }

    /// Whether a cell is there already.
    pub fn has(&self, point: usize, repetition: u32) -> bool {
        self.cells.iter().any(|cell| cell.point == point && cell.repetition == repetition)
    }

    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.cells.len() >= self.points.len() * self.options.repetitions as usize
    }
}

/// Whether a result folder holds one of these records, by the start of its file.
pub fn is_one(folder: &Path) -> bool {
    fs::read_to_string(folder.join(FILE)).is_ok_and(|text| {
        serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|value| value["schema"] == SCHEMA)
    })
}
