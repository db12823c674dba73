//! The frame of a record of points that are measured a number of times each, and of its study. What a cell holds, and what is
//! figured out of it, is the experiment's own.

use std::fmt::Display;

use evenkeel_experiment::decide::Verdict;
use evenkeel_experiment::record::{CellRecord, Host, Requirement};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::now;

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
    /// Why there is no result.
    fn failed(&self) -> Option<&str>;
}

/// An experiment with all its results so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GridRecord<O, P, C> {
    /// [`GridOptions::SCHEMA`].
    pub schema: String,
    pub name: String,
    pub version: String,
    /// When it was begun, RFC 3339.
    pub began: String,
    /// When it was finished, RFC 3339; `None` while cells are missing.
    pub finished: Option<String>,
    pub host: Host,
    pub options: O,
    /// What the experiment needs and whether it was there.
    pub requirements: Vec<Requirement>,
    /// The points, in order: what could not be is left out.
    pub points: Vec<P>,
    /// Cells done, in the order in which they were run.
    pub cells: Vec<C>,
}

impl<O: GridOptions, P, C> GridRecord<O, P, C> {
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

/// What a record says: rows of figures, and what it has of its own (`M`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GridStudy<R, M> {
    /// The experiment's own.
    pub schema: String,
    pub name: String,
    /// When it was begun.
    pub began: String,
    /// Whether all cells are there.
    pub complete: bool,
    pub host: Host,
    /// What was needed and whether it was there.
    pub requirements: Vec<Requirement>,
    /// Rows of the points that have a result.
    pub rows: Vec<R>,
    /// Points without a result, or of which some repetitions have none, and why.
    pub failed: Vec<(String, String)>,
    pub verdicts: Vec<String>,
    /// The same with the tests that decide them.
    #[serde(default)]
    pub answers: Vec<Verdict>,
    /// What only this experiment has.
    #[serde(flatten)]
    pub more: M,
}

impl<R, M> GridStudy<R, M> {
    /// The study of a record with these rows and verdicts.
    pub fn of<O, P: Display, C: GridCell>(
        schema: &str,
        record: &GridRecord<O, P, C>,
        rows: Vec<R>,
        answers: Vec<Verdict>,
        more: M,
    ) -> Self
    where
        GridRecord<O, P, C>: CellRecord,
    {
        let failed = record.points.iter().enumerate().filter_map(|(index, point)| {
            let cells = || record.cells.iter().filter(move |cell| cell.place().0 == index);
            let (all, failed) = (cells().count(), cells().filter_map(GridCell::failed).count());
            let why = cells().find_map(GridCell::failed)?;
            let part =
                if failed == all { String::new() } else { format!(" ({failed} of {all} repetitions)") };
            Some((format!("{point}{part}"), why.to_owned()))
        });
        Self {
            schema: schema.into(),
            name: record.name.clone(),
            began: record.began.clone(),
            complete: record.is_complete(),
            host: record.host.clone(),
            requirements: record.requirements.clone(),
            rows,
            failed: failed.collect(),
            verdicts: answers.iter().map(|v| v.text.clone()).collect(),
            answers,
            more,
        }
    }

    /// What the figures may not be taken for, in words.
    pub fn missed(&self) -> Vec<String> {
        let part = "not all of it is measured yet; the same command goes on with the rest";
        let part = (!self.complete).then(|| part.to_owned());
        part.into_iter().chain(self.requirements.iter().filter_map(Requirement::missed)).collect()
    }
}
