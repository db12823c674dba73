//! Logs of others become a record, and so the same study and report as experiments of our own.
//!
//! A log is one tenant: lines `cpu_units: N`, `nb_threads: N`, `target: NAME`, `## Start: STAMP`, `## End  : STAMP`, per
//! run `Start test N: STAMP` and `End   test N: STAMP` around the output of `sysbench cpu` or `openssl speed`; or the
//! plain output of sysbench, as often as it was run. What is not recognised is skipped; what is recognised and makes no
//! sense is an error with file and line.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::record::{Account, Cell, Ended, Host, Limits, Record, Release, RunRecord, SCHEMA, TenantRecord};

mod parse;

pub use parse::{Log, LogRun, parse, stamp};

/// Which runs count.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// Leave out so many runs at the beginning of each log.
    pub skip_first: usize,
    /// And at its end.
    pub skip_last: usize,
    /// Only runs that began at or after this.
    pub from: Option<Timestamp>,
    /// Only runs that ended at or before this.
    pub to: Option<Timestamp>,
    /// CPUs of the host the logs are from: without it nothing can be said of what weights allow.
    pub cpus: Option<u32>,
}

/// Why logs could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file could not be read.
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    /// A line that makes no sense.
    #[error("{path}:{line}: {what}")]
    Line {
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        what: String,
    },
    /// Nothing to study.
    #[error("{0}")]
    Empty(String),
}

/// Reads log files into a record of one cell.
///
/// # Errors
/// A file that cannot be read, a line that makes no sense, or no run left by the options.
pub fn import(paths: &[PathBuf], options: &Options) -> Result<Record, ImportError> {
    let mut logs = Vec::new();
    for path in paths {
        let bytes = evenkeel_linux::input::read(path)
            .map_err(|error| ImportError::Io { path: path.clone(), error })?;
        let text = String::from_utf8_lossy(&bytes);
        let mut log =
            parse(&text).map_err(|(line, what)| ImportError::Line { path: path.clone(), line, what })?;
        if log.runs.is_empty() {
            let what = "no run in it: neither `Start test N:` nor sysbench's `events per second:`".to_owned();
            return Err(ImportError::Line { path: path.clone(), line: text.lines().count().max(1), what });
        }
        window(&mut log, options);
        logs.push((name(path), log));
    }
    if logs.iter().all(|(_, log)| log.runs.is_empty()) {
        return Err(ImportError::Empty(
            "no run is left by the window options (--skip-first, --from, ..)".into(),
        ));
    }
    Ok(record(logs, options))
}

fn name(path: &Path) -> String {
    path.file_stem().map_or_else(|| path.display().to_string(), |stem| stem.to_string_lossy().into_owned())
}

/// Applies the window options. A run without stamps is outside of any window of time.
fn window(log: &mut Log, options: &Options) {
    let skip = options.skip_first.min(log.runs.len());
    log.runs.drain(..skip);
    log.runs.truncate(log.runs.len().saturating_sub(options.skip_last));
    log.runs.retain(|run| {
        options.from.is_none_or(|from| run.start.is_some_and(|start| start >= from))
            && options.to.is_none_or(|to| run.end.is_some_and(|end| end <= to))
    });
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

fn record(logs: Vec<(String, Log)>, options: &Options) -> Record {
    let stamps = |of: fn(&LogRun) -> Option<Timestamp>| {
        logs.iter().flat_map(|(_, log)| log.runs.iter().filter_map(of)).collect::<Vec<_>>()
    };
    let (starts, ends) = (stamps(|run| run.start), stamps(|run| run.end));
    let zero = starts.iter().min().copied();
    let mut notes = Vec::new();
    let placed = logs.iter().flat_map(|(_, log)| &log.runs).filter(|run| run.start.is_none()).count();
    if placed > 0 {
        notes.push(format!(
            "{placed} runs have no time stamps: they are shown one after another from 0, and say nothing of when tenants competed"
        ));
    }
    let tenants: Vec<TenantRecord> = logs.into_iter().map(|(name, log)| tenant(name, &log, zero)).collect();
    let length = tenants.iter().flat_map(|t| t.runs.iter().map(|r| r.end_s)).fold(0.0, f64::max);
    let began = zero.map_or_else(|| "1970-01-01T00:00:00Z".to_owned(), |t| t.to_string());
    let cell = Cell {
        released_at: zero.map(|t| t.to_string()),
        seconds: length,
        unplaced: placed > 0,
        activation: (0..tenants.len()).collect(),
        tenants,
        notes,
        ..Cell::default()
    };
    Record {
        schema: SCHEMA.into(),
        name: "import".into(),
        title: "Imported logs".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        finished: Some(ends.iter().max().map_or_else(|| began.clone(), ToString::to_string)),
        began,
        host: Host { cpus: options.cpus, ..Host::default() },
        planned_cells: 1,
        cells: vec![cell],
        ..Record::default()
    }
}

fn tenant(name: String, log: &Log, zero: Option<Timestamp>) -> TenantRecord {
    let mut runs = Vec::new();
    let mut last = 0.0;
    for (number, run) in log.runs.iter().enumerate() {
        let (start_s, end_s) = match (run.start, run.end, zero) {
            (Some(start), Some(end), Some(zero)) => (seconds(zero, start), seconds(zero, end)),
            _ => (last, last + run.total_s.unwrap_or(0.0)),
        };
        last = end_s;
        runs.push(RunRecord {
            number: u32::try_from(number).unwrap_or(u32::MAX),
            start_s,
            end_s,
            events: run.events,
            events_per_s: run.events_per_s,
            verify_per_s: run.verify_per_s,
            account: Account { real_s: end_s - start_s, ..Account::default() },
            ..RunRecord::default()
        });
    }
    let real_s = runs.last().map_or(0.0, |run| run.end_s);
    TenantRecord {
        name,
        units: log.units,
        place: "imported".into(),
        limits: Limits::default(),
        workload: log.workload(),
        threads: log.threads.unwrap_or(1),
        runs_planned: u32::try_from(runs.len()).unwrap_or(u32::MAX),
        release: Release::default(),
        ended: Ended::Done,
        total: Account { real_s, ..Account::default() },
        runs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;

    /// A log as the source's scripts write it.
    fn log(units: u64, runs: &[(&str, &str, f64)]) -> String {
        let mut text = format!(
            "cpu_units: {units}\nnb_threads: 1\ntarget: sysbench\n## Start: 2021-05-12T16:30:00.000000\n"
        );
        for (number, (start, end, eps)) in runs.iter().enumerate() {
            text += &format!(
                "Start test {n}: 2021-05-12T16:30:{start}\nsysbench 1.0.20\nCPU speed:\n    events per second:  {eps}\n\
                 General statistics:\n    total time:                          10.0002s\nEnd   test {n}: 2021-05-12T16:30:{end}\n",
                n = number + 1
            );
        }
        text + "## End  : 2021-05-12T16:30:59.000000\n"
    }

    #[test]
    fn logs_with_stamps_become_one_cell_in_common_time() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = [("small.log", 16, 100.0), ("large.log", 32, 200.0)]
            .into_iter()
            .map(|(name, units, eps)| {
                let path = dir.path().join(name);
                let runs = [
                    ("00.500000", "10.600000", eps),
                    ("10.700000", "20.800000", eps),
                    ("20.900000", "31.000000", eps),
                ];
                std::fs::write(&path, log(units, &runs)).unwrap();
                path
            })
            .collect();
        let record = import(&paths, &Options { cpus: Some(1), ..Options::default() }).unwrap();
        let cell = &record.cells[0];
        assert_eq!((cell.tenants.len(), cell.tenants[0].name.as_str()), (2, "small"));
        assert_eq!(cell.tenants[1].runs[0].start_s, 0.0);
        assert!((cell.tenants[1].runs[2].end_s - 30.5).abs() < 1e-6);
        let study = study(&record);
        assert!((study.points[0].tenants[1].share_pct.unwrap().value - 66.67).abs() < 0.01);
        assert!(
            study.verdicts.iter().any(|v| v.id == "weights-hold" && v.holds == Some(true)),
            "{:?}",
            study.verdicts
        );
        // Windows.
        let from = stamp("2021-05-12T16:30:05").ok();
        let later = import(&paths, &Options { from, ..Options::default() }).unwrap();
        assert_eq!(later.cells[0].tenants[0].runs.len(), 2);
        let middle = import(&paths, &Options { skip_first: 1, skip_last: 1, ..Options::default() }).unwrap();
        assert_eq!(middle.cells[0].tenants[0].runs.len(), 1);
        let nothing =
            import(&paths, &Options { skip_first: 9, ..Options::default() }).unwrap_err().to_string();
        assert!(nothing.contains("--skip-first"), "{nothing}");
    }

    #[test]
    fn runs_whose_length_no_line_tells_have_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        std::fs::write(&path, "rsa 2048 bits 0.0005s 0.00001s 1886.8 62500.0\n".repeat(2)).unwrap();
        let study = study(&import(&[path], &Options::default()).unwrap());
        let point = &study.points[0];
        let tenant = &point.tenants[0];
        assert_eq!((tenant.runs, tenant.events_per_s.map(|s| s.mean)), (2, Some(1886.8)));
        assert_eq!((tenant.run_s, tenant.elapsed_s, point.together.run_s), (None, None, None));
    }

    #[test]
    fn logs_without_stamps_are_not_said_to_compete() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = [("a.log", 16, 100.0), ("b.log", 32, 100.0)]
            .into_iter()
            .map(|(name, units, eps)| {
                let path = dir.path().join(name);
                let stamps = |line: &&str| !line.contains(" test ") && !line.starts_with("##");
                let text = log(units, &[("00.5", "10.6", eps), ("10.7", "20.8", eps)]);
                let plain: Vec<&str> = text.lines().filter(stamps).collect();
                std::fs::write(&path, plain.join("\n")).unwrap();
                path
            })
            .collect();
        let record = import(&paths, &Options { cpus: Some(1), ..Options::default() }).unwrap();
        let study = study(&record);
        let point = &study.points[0];
        assert!(point.notes[0].contains("4 runs have no time stamps"), "{:?}", point.notes);
        let told = point.tenants.iter().any(|t| t.share_pct.is_some() || t.competing_per_s.is_some());
        assert!(!told && point.together.window_s.is_none() && point.tenants[1].run_s.is_some());
        assert!(study.verdicts.iter().all(|v| !v.id.contains("weights")), "{:?}", study.verdicts);
    }

    #[test]
    fn a_mistake_is_named_by_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "cpu_units: 64\nStart test 1: yesterday\n").unwrap();
        let error = import(std::slice::from_ref(&path), &Options::default()).unwrap_err().to_string();
        assert!(error.contains("x.log:2:") && error.contains("yesterday"), "{error}");
        std::fs::write(&path, "hello\n").unwrap();
        let error = import(std::slice::from_ref(&path), &Options::default()).unwrap_err().to_string();
        assert!(error.contains("x.log:1:") && error.contains("no run"), "{error}");
        let error = import(&[dir.path().join("none")], &Options::default()).unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
    }
}
