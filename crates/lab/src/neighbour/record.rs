//! What the experiment measured, on disk: the minimum from which every figure is computed.

use evenkeel_workload::latency::LatencySummary;
use serde::{Deserialize, Serialize};

use super::plan::{Options, Point};
use crate::runner::grid::{GridCell, GridOptions, GridRecord, Measures};

pub const SCHEMA: &str = "evenkeel.lab-neighbour/v1";

/// The experiment with all results so far.
pub type NeighbourRecord = GridRecord<Options, Point, Arms>;

impl GridOptions for Options {
    const SCHEMA: &'static str = SCHEMA;

    fn repetitions(&self) -> u32 {
        self.repetitions
    }
}

/// One repetition at one point.
pub type Cell = GridCell<Arms>;

/// What was measured of a service next to batch work.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Arms {
    /// From the start of evenkeel, its trial included; `None` for the other arms.
    #[serde(default)]
    pub from_start: Option<Measured>,
    /// With whatever is in force; for evenkeel once that time is over.
    #[serde(default, rename = "measured")]
    pub in_force: Option<Measured>,
    #[serde(default)]
    pub evenkeel: Option<Chosen>,
}

impl Measures for Arms {}

/// What was measured over some time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// How long, seconds.
    pub seconds: f64,
    /// Requests that were due.
    pub asked: u64,
    pub answered: u64,
    /// From the instant at which a request was due to its answer; what was not answered counts with the time it waited.
    pub latency: Option<LatencySummary>,
    /// CPU time of the service, percent of ONE CPU.
    pub service_pct: Option<f64>,
    /// CPU time of who asks it, percent of ONE CPU; `None` for the built-in one, which asks itself.
    pub clients_pct: Option<f64>,
    /// CPU time of batch work, percent of ONE CPU; `None` where there is none.
    pub batch_pct: Option<f64>,
    /// Load of the host, percent of ONE CPU.
    pub host_pct: Option<f64>,
    /// Stolen from the host, percent of ONE CPU.
    pub steal_pct: Option<f64>,
}

impl Measured {
    /// Load of the host that is of none of these: other programs', and that of evenkeel itself, percent of ONE CPU.
    pub fn others_pct(&self) -> Option<f64> {
        let ours = self.service_pct? + self.clients_pct.unwrap_or(0.0) + self.batch_pct.unwrap_or(0.0);
        Some((self.host_pct? - ours).max(0.0))
    }
}

/// What evenkeel did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Chosen {
    /// The setting that was in force when it was ended; `kernel default` where nothing was changed.
    pub settings: String,
    /// What it said of it, or why nothing was tried.
    pub why: String,
    /// Settings that it could not restore, or found changed by others.
    pub not_restored: u64,
}

impl NeighbourRecord {
    /// The cell of a point in a repetition, where it has a result.
    pub(super) fn cell(&self, point: &Point, repetition: u32) -> Option<&Cell> {
        let index = self.points.iter().position(|other| other == point)?;
        self.results(index).find(|cell| cell.repetition == repetition)
    }
}
