//! Statistics and verdicts of an experiment, from its record alone: the same record gives the same study, whenever and
//! wherever it is made. Pure: nothing here reads the host.
//!
//! * [`study`]: everything, as `study.json` has it (`evenkeel.lab-study/v1`);
//! * [`stats`]: summaries, intervals, fairness; [`window`]: the time in which all compete;
//! * [`point`]: one point of a sweep; [`alone`]: what a command would do there by its run alone; [`verdict`]: what it
//!   means, in words, each tied to a test;
//! * [`sources`]: the sources' figures next to ours; [`compare`]: several studies side by side.

use crate::record::{Cell, Record, Requirement};

pub mod alone;
mod asked;
pub mod compare;
mod document;
pub mod point;
pub mod reading;
pub mod sample;
pub mod sources;
pub mod stats;
pub mod verdict;
pub mod window;

#[cfg(test)]
pub(crate) mod testing;

pub use crate::decide::{Kind, Test, Verdict};
use asked::Alone;
pub use asked::asked_s;
pub(crate) use asked::option;
pub use compare::{Comparison, Platforms, compare, platforms};
pub(crate) use document::prefix;
pub use document::{FILE, Overhead, Reading, SCHEMA, SourceComparison, SourceRow, Study};
pub use point::{PointStudy, TenantStudy, Together};

pub fn study(record: &Record) -> Study {
    let alone = Alone::of(record);
    let mut indices: Vec<usize> = record.cells.iter().map(|cell| cell.point.index).collect();
    indices.sort_unstable();
    indices.dedup();
    let mut points: Vec<PointStudy> = indices
        .into_iter()
        .filter_map(|index| {
            let cells: Vec<&Cell> = record.cells.iter().filter(|cell| cell.point.index == index).collect();
            point::point(&record.host, &cells, |cell, tenant| {
                Some(stats::summary(alone.like(cell, tenant))?.estimate())
            })
        })
        .collect();
    alone::predict(record, &mut points);
    let mut study = Study {
        schema: SCHEMA.into(),
        name: record.name.clone(),
        title: record.title.clone(),
        builtin: record.builtin.clone(),
        quick: record.quick,
        version: record.version.clone(),
        began: record.began.clone(),
        finished: record.finished.clone(),
        cells: [record.cells.len(), record.planned_cells],
        host: record.host.clone(),
        verdicts: Vec::new(),
        missed: missed(record, &points),
        overhead: overhead(&alone),
        points,
        sources: Vec::new(),
        readings: Vec::new(),
    };
    study.readings = reading::readings(&study);
    study.sources = sources::beside(record, &study);
    study.verdicts = verdict::verdicts(record, &study);
    study
}

fn missed(record: &Record, points: &[PointStudy]) -> Vec<String> {
    let mut missed: Vec<String> = record.requirements.iter().filter_map(Requirement::missed).collect();
    // What a merged record lacks, its requirements say.
    if record.cells.len() < record.planned_cells && record.merged.is_empty() {
        missed.push(format!(
            "{} of {} cells are done; `evenkeel lab run` with the same folder does the rest",
            record.cells.len(),
            record.planned_cells
        ));
    }
    // Points that lack the same are named together.
    let mut lacking: Vec<(&str, Vec<&str>)> = Vec::new();
    for point in points {
        let Some(why) = point.unavailable.as_deref() else { continue };
        match lacking.iter_mut().find(|(other, _)| *other == why) {
            Some((_, labels)) => labels.push(&point.label),
            None => lacking.push((why, vec![&point.label])),
        }
    }
    missed.extend(lacking.into_iter().map(|(why, labels)| format!("{}: {why}", labels.join("; "))));
    for point in points {
        for tenant in point.tenants.iter().filter(|tenant| !tenant.incomplete.is_empty()) {
            let mut how = tenant.incomplete.clone();
            how.dedup();
            missed.push(format!("{}{}: {}", prefix(&point.label), tenant.name, how.join("; ")));
        }
    }
    missed
}

fn overhead(alone: &Alone<'_>) -> Option<Overhead> {
    let (asked_s, lengths) = alone.only()?;
    let summary = stats::summary(lengths)?;
    Some(Overhead {
        asked_s,
        alone_s: summary.estimate(),
        overhead_s: asked_s.map(|asked| summary.mean - asked),
        runs: summary.n,
    })
}

#[cfg(test)]
mod tests {
    use super::testing::{cell, record, steady, tenant};
    use super::*;
    use crate::record::{CellRecord, TenantRecord};

    #[test]
    fn the_source_of_an_overhead_is_a_run_alone() {
        let mut alone = tenant("a", Some(64), &[(0.0, 1.013, 100.0), (1.013, 2.026, 100.0)]);
        alone.workload = "primes --seconds 1".into();
        let record = record(vec![
            ("1", cell(vec![alone])),
            ("2", cell(vec![steady("a", 64, 2, 50.0), steady("b", 64, 2, 50.0)])),
        ]);
        let study = study(&record);
        let overhead = study.overhead.unwrap();
        assert!((overhead.overhead_s.unwrap() - 0.013).abs() < 1e-9 && overhead.runs == 2);
        assert!((study.points[1].tenants[0].wait_per_run_s.unwrap().value + 0.013).abs() < 1e-9);
    }

    #[test]
    fn who_waits_is_held_against_the_same_work_alone() {
        let alone = |workload: &str, run_s: Option<f64>, length_s: f64| {
            let mut cell = cell(vec![tenant("a", None, &[(0.0, length_s, 100.0)])]);
            cell.tenants[0].workload = workload.into();
            cell.point.settings = run_s.map(|s| ("tenant.a.run_s".into(), s.into())).into_iter().collect();
            cell
        };
        let (make, test) = (alone("make", None, 4.0), alone("make test", None, 1.0));
        let mut both = cell([&make, &test].map(|cell| cell.tenants[0].clone()).into());
        both.tenants[1] =
            TenantRecord { workload: "make test".into(), ..tenant("b", None, &[(0.0, 1.5, 9.0)]) };
        let of = |cells| {
            let study = study(&record(cells));
            let waits =
                |p: &PointStudy| p.tenants.iter().map(|t| t.wait_per_run_s.map(|w| w.value)).collect();
            (study.points.iter().map(waits).collect::<Vec<Vec<_>>>(), study.overhead.map(|o| o.alone_s.value))
        };
        let cells = vec![("make", make.clone()), ("test", test), ("both", both.clone())];
        assert_eq!(of(cells), (vec![vec![Some(0.0)], vec![Some(0.0)], vec![Some(0.0), Some(0.5)]], None));
        // Nobody did alone what the second does.
        assert_eq!(of(vec![("make", make), ("both", both)]).0[1], [Some(0.0), None]);
        // The same load for as long as the point says.
        let timed = |seconds| alone("primes", Some(seconds), seconds);
        let cells = vec![("1 s", timed(1.0)), ("5 s", timed(5.0))];
        assert_eq!(of(cells), (vec![vec![Some(0.0)], vec![Some(0.0)]], None));
    }

    #[test]
    fn what_was_missed_is_told() {
        let mut record = record(vec![("1", cell(vec![steady("a", 64, 2, 50.0)]))]);
        record.planned_cells = 4;
        record.cells[0].point.unavailable = Some("needs 8 CPUs".into());
        record.requirements = vec![
            Requirement {
                name: "quiet-host".into(),
                met: Some(false),
                evidence: "others used 30 %".into(),
                consequence: "Rates are too low".into(),
            },
            Requirement {
                name: "fine".into(),
                met: Some(true),
                evidence: String::new(),
                consequence: String::new(),
            },
        ];
        let missed = study(&record).missed;
        assert_eq!(missed.len(), 3);
        assert!(missed[0].contains("others used 30 %") && missed[0].contains("Rates are too low"));
        assert!(missed[1].contains("1 of 4") && missed[2].contains("needs 8 CPUs"));
        // What is lacking for the same reason is one line.
        let mut several = super::testing::record(
            ["1", "2", "3"].map(|label| (label, cell(vec![steady("a", 64, 2, 50.0)]))).into(),
        );
        for (cell, why) in several.cells.iter_mut().zip(["needs 8 CPUs", "no siblings", "needs 8 CPUs"]) {
            cell.point.unavailable = Some(why.into());
        }
        assert_eq!(super::study(&several).missed, ["1; 3: needs 8 CPUs", "2: no siblings"]);
    }

    #[test]
    fn lengths_asked_for_are_read_from_the_command_line() {
        for (text, seconds) in [
            ("primes --seconds 10", Some(10.0)),
            ("primes --seconds=2.5s --threads=2", Some(2.5)),
            ("sysbench cpu --time=10 run", Some(10.0)),
            ("primes --events=100", None),
            ("x --seconds", None),
        ] {
            assert_eq!(asked_s(&record(Vec::new()), text), seconds, "{text}");
        }
    }

    #[test]
    fn an_empty_record_is_a_study_too_and_studies_repeat() {
        let empty = study(&record(Vec::new()));
        assert!(empty.points.is_empty() && empty.overhead.is_none());
        let record = record(vec![("x", cell(vec![steady("a", 1, 9, 10.0), steady("b", 2, 9, 20.0)]))]);
        assert_eq!(study(&record), study(&record));
        let json = serde_json::to_string(&study(&record)).unwrap();
        let back: Study = serde_json::from_str(&json).unwrap();
        assert_eq!(back.schema, SCHEMA);
    }

    #[test]
    fn a_resumed_experiment_is_studied_as_an_uninterrupted_one() {
        use rand::{Rng, SeedableRng};
        let mut random = rand_pcg::Pcg64::seed_from_u64(3);
        // Times with all their digits, as clocks and divisions give them.
        let mut runs = |per_s: f64| -> Vec<(f64, f64, f64)> {
            let mut at = 0.0;
            (0..5)
                .map(|_| {
                    let (start, length) = (at, 1.0 + random.random::<f64>() / 3.0);
                    at += length + random.random::<f64>() / 1e5;
                    (start, start + length, per_s * random.random::<f64>())
                })
                .collect()
        };
        let cells = (0..12).map(|_| {
            let tenants = [1.0, 2.0].map(|w| tenant("t", Some(w as u64), &runs(500.0 * w)));
            ("x", cell(tenants.into()))
        });
        let whole = record(cells.collect());
        let dir = tempfile::tempdir().unwrap();
        let part = Record { cells: whole.cells[..5].to_vec(), finished: None, ..whole.clone() };
        part.save(dir.path()).unwrap();
        let mut resumed = Record::load(dir.path()).unwrap();
        resumed.cells.extend_from_slice(&whole.cells[5..]);
        resumed.finished = whole.finished.clone();
        resumed.save(dir.path()).unwrap();
        let from_disk = Record::load(dir.path()).unwrap();
        assert_eq!(from_disk, whole);
        let text = |record: &Record| serde_json::to_string(&study(record)).unwrap();
        assert_eq!(text(&from_disk), text(&whole));
    }
}
