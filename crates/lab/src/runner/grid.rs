//! The frame of a record of points that are measured a number of times each, and of its study. What a cell holds, and what is
//! figured out of it, is the experiment's own.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use evenkeel_experiment::decide::Verdict;
use evenkeel_experiment::record::{CellRecord, Host, Requirement};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::now;

pub trait GridOptions {
    const SCHEMA: &'static str;

    /// How often each point is measured.
    fn repetitions(&self) -> u32;
}

/// What was measured of a point.
pub trait Measures {
    /// What broke in it, so that its figures are no result.
    fn broken(&self) -> Option<&str> {
        None
    }
}

/// A point measured once.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GridCell<M> {
    /// Index of the point.
    pub point: usize,
    /// Repetition, from 0.
    pub repetition: u32,
    /// When it began, RFC 3339.
    pub began: String,
    /// How long it took, set-up included, seconds.
    pub took_s: f64,
    #[serde(flatten)]
    pub measured: M,
    /// Why there is no result.
    #[serde(default)]
    pub failed: Option<String>,
}

impl<M: Default> GridCell<M> {
    /// Measures a point. `None` when that was stopped before its end: what was interrupted is not a result.
    pub fn measure(
        point: usize,
        repetition: u32,
        stop: &AtomicBool,
        measure: impl FnOnce(&mut M) -> Result<(), String>,
    ) -> Option<Self> {
        let (began, begun) = (now(), Instant::now());
        let mut measured = M::default();
        let failed = measure(&mut measured).err();
        let interrupted = stop.load(Ordering::Relaxed) && failed.is_some();
        let took_s = begun.elapsed().as_secs_f64();
        (!interrupted).then_some(Self { point, repetition, began, took_s, measured, failed })
    }
}

impl<M: Measures> GridCell<M> {
    /// Why there is no result.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref().or_else(|| self.measured.broken())
    }
}

impl<M: Default> From<M> for GridCell<M> {
    fn from(measured: M) -> Self {
        Self { measured, ..Self::default() }
    }
}

/// An experiment with all its results so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GridRecord<O, P, M> {
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
    pub cells: Vec<GridCell<M>>,
}

impl<O: GridOptions, P, M: Measures> GridRecord<O, P, M> {
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

    /// The repetitions of a point, by its index, that have a result.
    pub(crate) fn results(&self, point: usize) -> impl Iterator<Item = &GridCell<M>> {
        self.cells.iter().filter(move |cell| cell.point == point && cell.failed().is_none())
    }
}

impl<O, P, M> CellRecord for GridRecord<O, P, M>
where
    O: GridOptions + Serialize + DeserializeOwned,
    P: Serialize + DeserializeOwned,
    M: Serialize + DeserializeOwned,
{
    const SCHEMA: &'static str = O::SCHEMA;
    type Cell = GridCell<M>;

    fn host(&self) -> &Host {
        &self.host
    }

    fn cells(&self) -> &[GridCell<M>] {
        &self.cells
    }

    fn place(cell: &GridCell<M>) -> (usize, u32) {
        (cell.point, cell.repetition)
    }

    fn planned(&self) -> usize {
        self.points.len() * self.options.repetitions() as usize
    }

    fn add(&mut self, cell: GridCell<M>, finished: String) {
        self.cells.push(cell);
        self.finished = self.is_complete().then_some(finished);
    }
}

/// What a record says: rows of figures, and what it has of its own (`E`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GridStudy<R, E> {
    /// The experiment's own.
    pub schema: String,
    pub name: String,
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
    pub more: E,
}

impl<R, E> GridStudy<R, E> {
    /// The study of a record with these rows and verdicts.
    pub fn of<O, P: Display, M: Measures>(
        schema: &str,
        record: &GridRecord<O, P, M>,
        rows: Vec<R>,
        answers: Vec<Verdict>,
        more: E,
    ) -> Self
    where
        GridRecord<O, P, M>: CellRecord,
    {
        let failed = record.points.iter().enumerate().filter_map(|(index, point)| {
            let cells = || record.cells.iter().filter(move |cell| cell.point == index);
            let whys = || cells().filter_map(GridCell::failed);
            let (all, failed, why) = (cells().count(), whys().count(), whys().next()?);
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
        let part = "not all of it is measured yet; the command that began it goes on with the rest";
        let part = (!self.complete).then(|| part.to_owned());
        part.into_iter().chain(self.requirements.iter().filter_map(Requirement::missed)).collect()
    }
}
