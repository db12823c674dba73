//! Figures from a record alone. The terms are those of Meta's resctl-bench: *isolation* is what was answered of what was
//! asked, *latency impact* how much longer the answers take than alone, *work conserved* how much CPU batch work still gets.
//!
//! Latencies are geometric means over repetitions, and impacts are of pairs: a point against the service alone in the same
//! repetition. So the ratio of two latencies in the table is their impact, and a host that drifts is no difference.

use evenkeel_base::run::Estimate;
use evenkeel_experiment::decide::{Figure, Mean};
use serde::{Deserialize, Serialize};

use super::plan::{Arm, Options, Point};
use super::record::{Cell, Measured, NeighbourRecord};
use crate::runner::grid::GridStudy;

pub const SCHEMA: &str = "evenkeel.lab-neighbour-study/v1";

/// Less CPU time of batch work counts as this much, percent of ONE CPU: 0.1 ms a second.
const LEAST_PCT: f64 = 0.01;

/// What a record says. A point has one row; two under evenkeel.
pub type Study = GridStudy<Row, Asked>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// As the record has it.
    pub options: Options,
}

/// Figures of a point with 95 % intervals (Student's t); unbounded for a single repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub point: Point,
    /// From the start of evenkeel, its trial included.
    pub from_start: bool,
    /// Repetitions with a result.
    pub repetitions: usize,
    /// CPU that service and batch ask for, percent of all CPUs: what the service uses alone, and the batch's load.
    pub asked_pct: Option<f64>,
    /// Load of the host, percent of all CPUs.
    pub utilisation_pct: Option<Estimate>,
    /// Median latency, microseconds, geometric mean.
    pub p50_usec: Option<Estimate>,
    /// 99 % of requests take at most this, microseconds, geometric mean.
    pub p99_usec: Option<Estimate>,
    /// 99.9 % of requests take at most this, microseconds, geometric mean.
    pub p999_usec: Option<Estimate>,
    pub answered_per_s: Option<Estimate>,
    /// Requests answered of those that were due, percent.
    pub isolation_pct: Option<Estimate>,
    /// How much the 99th percentile is above that alone in the same repetition, percent of the latter.
    pub latency_impact_pct: Option<Estimate>,
    /// CPU time of batch work of what it gets under the kernel's default in the same repetition, percent.
    pub work_conserved_pct: Option<Estimate>,
    /// CPU time of batch work, percent of ONE CPU.
    pub batch_pct: Option<Estimate>,
    /// CPU time of the service, percent of ONE CPU.
    pub service_pct: Option<Estimate>,
    /// CPU time of other programs, evenkeel's own included, percent of ONE CPU.
    pub others_pct: Option<Estimate>,
    /// What evenkeel had in force at its end, a repetition each.
    pub settings: Vec<String>,
    /// Why, as evenkeel says it, each reason once.
    #[serde(default)]
    pub why: Vec<String>,
    /// Settings that evenkeel did not restore; above 0 in no good run.
    pub not_restored: u64,
}

impl Row {
    /// What the line of a picture is called: the arm.
    pub fn arm(&self, options: &Options) -> String {
        match (self.point.arm, self.from_start) {
            (Arm::Evenkeel, true) => format!("evenkeel, first {} s", options.decide_s),
            (Arm::Evenkeel, false) => format!("evenkeel, after {} s", options.decide_s),
            (arm, _) => arm.to_string(),
        }
    }
}

/// A point, at one of the times at which it is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Place {
    pub point: Point,
    pub from_start: bool,
}

impl Place {
    pub fn of(point: Point) -> Self {
        Self { point, from_start: false }
    }

    fn pick(self, cell: &Cell) -> Option<&Measured> {
        if self.from_start { cell.measured.from_start.as_ref() } else { cell.measured.in_force.as_ref() }
    }
}

/// The 99th percentile, microseconds.
pub(super) fn p99(measured: &Measured) -> Option<f64> {
    Some(measured.latency?.p99_usec)
}

/// Requests that were due and not answered, percent of those that were due.
pub(super) fn unanswered(measured: &Measured) -> Option<f64> {
    let not = measured.asked.saturating_sub(measured.answered);
    (measured.asked > 0).then(|| 100.0 * not as f64 / measured.asked as f64)
}

impl NeighbourRecord {
    fn repetitions(&self) -> std::ops::Range<u32> {
        0..self.options.repetitions
    }

    /// A quantity, a value a repetition that has a result; `None` where one does not know it.
    pub(super) fn each(&self, place: Place, of: impl Fn(&Measured) -> Option<f64>) -> Option<Vec<f64>> {
        let found = self.repetitions().filter_map(|r| place.pick(self.cell(&place.point, r)?));
        found.map(of).collect::<Option<Vec<f64>>>().filter(|values| !values.is_empty())
    }

    /// A quantity of one place over that of another, a value a repetition in which both have one.
    fn pairs(&self, over: Place, under: Place, of: impl Fn(&Measured) -> Option<f64>) -> Vec<f64> {
        let pair = |r: u32| {
            let value = |place: Place| of(place.pick(self.cell(&place.point, r)?)?);
            let (over, under) = (value(over)?, value(under)?);
            (under > 0.0).then_some(over / under)
        };
        self.repetitions().filter_map(pair).collect()
    }

    /// How many times the one 99th percentile is the other, by repetition.
    pub(super) fn latency_ratio(&self, over: Place, under: Place) -> Option<Figure> {
        let logs: Vec<f64> = self.pairs(over, under, p99).into_iter().map(f64::ln).collect();
        Mean::of(&logs).map(Figure::Ratio)
    }

    /// Requests not answered, percent of those that were due: no such part is below 0.
    pub(super) fn unanswered(&self, place: Place) -> Option<Figure> {
        let mean = Mean::of(&self.each(place, unanswered)?)?;
        Some(Figure::Deviation(vec![Figure::Mean(mean)]))
    }

    /// CPU time of batch work of that under the kernel's default, percent, by repetition.
    pub(super) fn work_conserved(&self, place: Place) -> Option<Figure> {
        let default = Place::of(place.point.under(Arm::Default));
        // None at all is known, too; but it has no logarithm.
        let pairs = self.pairs(place, default, |m| Some(m.batch_pct?.max(LEAST_PCT)));
        let logs: Vec<f64> = pairs.into_iter().map(f64::ln).collect();
        Mean::of(&logs).map(|mean| Figure::Ratio(mean).over(Figure::Observed(0.01)))
    }
}

pub fn study(record: &NeighbourRecord) -> Study {
    let times = |point: &Point| if point.arm == Arm::Evenkeel { &[true, false][..] } else { &[false] };
    let places = record.points.iter().flat_map(|point| {
        times(point).iter().map(|from_start| Place { point: *point, from_start: *from_start })
    });
    let rows = places.filter_map(|place| row(record, place)).collect();
    let answers = super::verdict::verdicts(record);
    GridStudy::of(SCHEMA, record, rows, answers, Asked { options: record.options.clone() })
}

/// Each text once, in order; empty ones left out.
fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for text in texts.filter(|text| !text.is_empty()) {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

fn row(record: &NeighbourRecord, place: Place) -> Option<Row> {
    let point = place.point;
    let alone = Place::of(Point::alone(point.service));
    let repetitions = record.each(place, |m| Some(m.seconds))?.len();
    let of_all = |pct: f64| Some(pct / f64::from(record.host.cpus?));
    let mean = |of: &dyn Fn(&Measured) -> Option<f64>| {
        Figure::Mean(Mean::of(&record.each(place, of)?)?).estimate(0.05)
    };
    let geometric = |of: &dyn Fn(&Measured) -> Option<f64>| {
        let logs: Vec<f64> = record.each(place, of)?.into_iter().map(f64::ln).collect();
        Figure::Ratio(Mean::of(&logs)?).estimate(0.05)
    };
    let impact = || {
        let times = record.latency_ratio(place, alone)?.estimate(0.05)?;
        let percent = |times: f64| 100.0 * (times - 1.0);
        Some(Estimate { value: percent(times.value), low: percent(times.low), high: percent(times.high) })
    };
    let service = record.each(alone, |m| m.service_pct).and_then(|values| Some(Mean::of(&values)?.value));
    let chosen = (0..record.options.repetitions)
        .filter_map(|r| record.cell(&point, r)?.measured.evenkeel.as_ref())
        .filter(|_| !place.from_start);
    let beside = point.batch.is_some();
    Some(Row {
        point,
        from_start: place.from_start,
        repetitions,
        asked_pct: service.and_then(|pct| of_all(pct + f64::from(point.load_pct))),
        utilisation_pct: mean(&|m| of_all(m.host_pct?)),
        p50_usec: geometric(&|m| Some(m.latency?.p50_usec)),
        p99_usec: geometric(&p99),
        p999_usec: geometric(&|m| m.latency?.p999_usec),
        answered_per_s: mean(&|m| Some(m.answered as f64 / m.seconds)),
        isolation_pct: record.unanswered(place).and_then(|figure| figure.estimate(0.05)).map(|not| {
            // One repetition shows no interval: that a part is not below 0 is no news.
            let known = not.high.is_finite();
            let low = if known { (100.0 - not.high).max(0.0) } else { f64::NEG_INFINITY };
            let high = if known { 100.0 - not.low } else { f64::INFINITY };
            Estimate { value: 100.0 - not.value, low, high }
        }),
        latency_impact_pct: if beside { impact() } else { None },
        work_conserved_pct: record.work_conserved(place).filter(|_| beside).and_then(|f| f.estimate(0.05)),
        batch_pct: if beside { mean(&|m| m.batch_pct) } else { None },
        service_pct: mean(&|m| m.service_pct),
        others_pct: mean(&Measured::others_pct),
        settings: chosen.clone().map(|chosen| chosen.settings.clone()).collect(),
        why: distinct(chosen.clone().map(|chosen| chosen.why.clone())),
        not_restored: chosen.map(|chosen| chosen.not_restored).sum(),
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::record::CellRecord;

    use super::super::plan::{Batch, Service};
    use super::super::testing::{measured, record};
    use super::*;

    fn find(study: &Study, arm: Arm, from_start: bool) -> &Row {
        study.rows.iter().find(|row| row.point.arm == arm && row.from_start == from_start).unwrap()
    }

    #[test]
    fn every_figure_is_of_the_same_repetition() {
        // The host is twice as slow in the second repetition, thrice in the third: no ratio changes.
        let study = study(&record(|point, repetition, _| {
            let slow = f64::from(repetition + 1);
            let p99 = match point.arm {
                Arm::Alone => 100.0,
                Arm::Default => 800.0,
                _ => 150.0,
            };
            let batch = if point.arm == Arm::Default { 180.0 } else { 162.0 };
            measured(p99 * slow, batch / slow, (1000, 990))
        }));
        let alone = find(&study, Arm::Alone, false);
        assert_eq!((alone.latency_impact_pct, alone.work_conserved_pct, alone.batch_pct), (None, None, None));
        // 100, 200, 300: their geometric mean.
        assert!((alone.p99_usec.unwrap().value - 181.71).abs() < 0.01, "{:?}", alone.p99_usec);
        let default = find(&study, Arm::Default, false);
        let near = |e: Option<Estimate>, value: f64| {
            let e = e.unwrap();
            assert!((e.value - value).abs() < 1e-6 && (e.high - e.low).abs() < 1e-6, "{e:?} for {value}");
        };
        near(default.latency_impact_pct, 700.0);
        near(default.work_conserved_pct, 100.0);
        near(default.isolation_pct, 99.0);
        let idle = find(&study, Arm::CpuIdle, false);
        near(idle.latency_impact_pct, 50.0);
        near(idle.work_conserved_pct, 90.0);
        // The ratio of two latencies of the table is their impact.
        let ratio = idle.p99_usec.unwrap().value / alone.p99_usec.unwrap().value;
        assert!((100.0 * (ratio - 1.0) - 50.0).abs() < 1e-9);
        // 20 % for the service, 400 % for the batch, of two CPUs.
        assert_eq!(default.asked_pct, Some(210.0));
    }

    #[test]
    fn evenkeel_has_a_row_from_its_start_and_one_after_that() {
        let study = study(&record(|point, _, from_start| {
            measured(
                if from_start { 400.0 } else { 200.0 },
                100.0,
                (10, if point.arm == Arm::Evenkeel { 9 } else { 10 }),
            )
        }));
        let value = |from_start| find(&study, Arm::Evenkeel, from_start).p99_usec.unwrap().value;
        assert!((value(true) - 400.0).abs() < 1e-6 && (value(false) - 200.0).abs() < 1e-6);
        assert_eq!(find(&study, Arm::Evenkeel, false).settings, ["idle groups"; 3]);
        assert_eq!(find(&study, Arm::Evenkeel, false).why, ["kept"]);
        assert!(find(&study, Arm::Evenkeel, true).settings.is_empty());
        let options = &study.more.options;
        let names: Vec<String> = study.rows.iter().map(|row| row.arm(options)).collect();
        assert!(names.contains(&"evenkeel, first 8 s".to_owned()), "{names:?}");
    }

    #[test]
    fn batch_work_that_got_nothing_is_known_to_have_got_nothing() {
        let study = study(&record(|point, _, _| {
            measured(100.0, if point.arm == Arm::CpuIdle { 0.0 } else { 200.0 }, (10, 10))
        }));
        let work = find(&study, Arm::CpuIdle, false).work_conserved_pct.unwrap();
        assert!(work.value < 0.01 && work.value > 0.0, "{work:?}");
    }

    #[test]
    fn what_has_no_result_is_named_and_left_out() {
        let mut record = record(|_, _, _| measured(100.0, 100.0, (10, 10)));
        let idle = record.points.iter().position(|p| p.arm == Arm::CpuIdle).unwrap();
        for cell in record.cells.iter_mut().filter(|cell| cell.point == idle) {
            (cell.failed, cell.measured.in_force) = (Some("cpu.idle: no such file".into()), None);
        }
        let study = study(&record);
        let point =
            Point { service: Service::Wakeup, batch: Some(Batch::Loops), load_pct: 400, arm: Arm::CpuIdle };
        assert_eq!(study.failed, [(point.to_string(), "cpu.idle: no such file".to_owned())]);
        assert!(study.rows.iter().all(|row| row.point.arm != Arm::CpuIdle));
        assert!(study.verdicts.iter().all(|verdict| !verdict.contains("cpu.idle")), "{:?}", study.verdicts);
    }

    #[test]
    fn a_point_of_which_one_repetition_failed_says_how_many() {
        let mut record = record(|_, _, _| measured(100.0, 100.0, (10, 10)));
        let at = record.cells.iter().position(|cell| record.points[cell.point].arm == Arm::CpuIdle).unwrap();
        (record.cells[at].failed, record.cells[at].measured.in_force) = (Some("no answer".into()), None);
        let point = record.points[record.cells[at].point];
        let study = study(&record);
        assert_eq!(study.failed, [(format!("{point} (1 of 3 repetitions)"), "no answer".to_owned())]);
        assert!(study.rows.iter().any(|row| row.point.arm == Arm::CpuIdle));
    }

    #[test]
    fn a_record_survives_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let record = record(|_, _, _| measured(100.0, 100.0, (10, 10)));
        record.save(dir.path()).unwrap();
        assert_eq!(NeighbourRecord::load(dir.path()).unwrap(), record);
        assert_eq!(study(&record), study(&NeighbourRecord::load(dir.path()).unwrap()));
    }
}
