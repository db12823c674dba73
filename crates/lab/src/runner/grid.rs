//! The frame of a record of points that are measured a number of times each. What a cell holds is the experiment's own.

use evenkeel_experiment::record::{CellRecord, Host, Requirement};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::now;

/// What was asked for.
pub trait GridOptions {
    /// Value of [`GridRecord::schema`].
    const SCHEMA: &'static str;

    /// How often each point is measured.
    fn repetitions(&self) -> u32;
}

/// A point measured once.
pub trait GridCell {
    /// Index of the point, and the repetition.
    fn place(&self) -> (usize, u32);
}

/// An experiment with all its results so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GridRecord<O, P, C> {
    /// [`GridOptions::SCHEMA`].
    pub schema: String,
    /// Which experiment it is.
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
    pub options: O,
    /// What the experiment needs and whether it was there.
    pub requirements: Vec<Requirement>,
    /// The points, in order: what could not be is left out.
    pub points: Vec<P>,
    /// Cells done, in the order in which they were run.
    pub cells: Vec<C>,
}

impl<O: GridOptions, P, C> GridRecord<O, P, C> {
    /// One that begins now.
    pub fn begin(name: &str, host: Host, options: O, requirements: Vec<Requirement>, points: Vec<P>) -> Self {
        Self {
            schema: O::SCHEMA.into(),
            name: name.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            began: now(),
            finished: None,
            host,
            options,
            requirements,
            points,
            cells: Vec::new(),
        }
    }
}

impl<O, P, C> CellRecord for GridRecord<O, P, C>
where
    O: GridOptions + Serialize + DeserializeOwned,
    P: Serialize + DeserializeOwned,
    C: GridCell + Serialize + DeserializeOwned,
{
    const SCHEMA: &'static str = O::SCHEMA;
    type Cell = C;

    fn cells(&self) -> &[C] {
        &self.cells
    }

    fn place(cell: &C) -> (usize, u32) {
        cell.place()
    }

    fn planned(&self) -> usize {
        self.points.len() * self.options.repetitions() as usize
    }

    fn add(&mut self, cell: C, finished: String) {
        self.cells.push(cell);
        self.finished = self.is_complete().then_some(finished);
    }
}
