//! What the screens need from outside: looks at the host, `why`, what a loop at work says, the history.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use evenkeel_base::run::RunRecord;
use evenkeel_base::stats::add_known;
use evenkeel_base::{NetworkRates, Observation};
use evenkeel_store::moments::{self, Busy};
use evenkeel_store::{FILE_NAME, Rates, Store, StoreError};

use crate::past::{POINTS, Recorded};

/// What only the whole program can do.
pub trait Host: Send + Sync + 'static {
    /// Where a target's time went, as text of this width: looks for `duration` or until `stop`.
    fn why(&self, target: &str, duration: Duration, width: u16, stop: &AtomicBool) -> Result<String, String>;

    /// Whether a loop is at work on this host, and what it does.
    fn running(&self) -> Result<Running, String>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// Who is at work since when, in lines.
    pub headline: String,
    /// What it did so far; `None` where none is at work, or it records nothing.
    pub record: Option<Box<RunRecord>>,
}

/// The host over one interval.
#[derive(Debug, Clone)]
pub struct Look {
    pub observation: Observation,
    pub networks: NetworkRates,
    /// CPU that looking took, percent of one CPU.
    pub own_pct: Option<f64>,
}

/// A time in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Length, nanoseconds.
    pub span_ns: u64,
    /// Its end, nanoseconds since 1970; `None` is now.
    pub to_ns: Option<u64>,
}

/// What is to be done outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Errand {
    Quit,
    /// Look this often from now on.
    Interval(Duration),
    /// Stop looking, or go on.
    Pause(bool),
    /// Ask why: a number for the answer, the target.
    Why(u64, String),
    /// Nobody waits for that answer any more.
    StopWhy,
    ReadRunning,
    /// Read the history of a time.
    ReadPast(Period),
}

/// Who used it: owners, and by name those who are in none but the root cgroup, which says nothing.
fn who(rates: &Rates) -> Vec<Busy> {
    let mut who: Vec<Busy> = moments::owners(rates).into_iter().filter(|(name, ..)| name != "/").collect();
    let mut others: BTreeMap<&str, (f64, Option<f64>)> = BTreeMap::new();
    for task in &rates.tasks {
        let Some(info) = task.info.as_deref() else { continue };
        if info.container.is_none() && info.group.as_deref() == Some("/") {
            let sum = others.entry(&info.comm).or_default();
            sum.0 += task.cpu_pct;
            add_known(&mut sum.1, task.wait_pct);
        }
    }
    who.extend(others.into_iter().map(|(name, sum)| (name.to_owned(), sum.0, sum.1)));
    who.sort_by(|a, b| b.1.total_cmp(&a.1));
    who
}

/// Reads the history of a time; `None` where there is none.
pub fn read_past(state_dir: &Path, span_ns: u64, to_ns: u64) -> Result<Option<Recorded>, StoreError> {
    let from_ns = to_ns.saturating_sub(span_ns);
    let Some(store) = Store::open_read_only(&state_dir.join(FILE_NAME))? else { return Ok(None) };
    let runs = store.runs()?.into_iter().rev();
    let runs = runs.filter(|run| run.ended_ns.is_none_or(|ended| ended >= from_ns));
    let runs: Vec<_> = runs.filter(|run| run.record.started_ns <= to_ns).map(|run| run.id).collect();
    let limits = moments::Limits { step_s: span_ns as f64 / 1e9 / POINTS as f64, busiest: &who, lines: 20 };
    let (moments, damaged) = moments::read(&store, &runs, (from_ns, to_ns), limits)?;
    let kept_ns = store.usage()?.span_ns;
    Ok(Some(Recorded { from_ns, to_ns, moments, damaged, kept_ns }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::look;
    use evenkeel_base::{CpuTimes, Sample, TaskSample};
    use evenkeel_store::Limits;
    use evenkeel_store::moments::Kind;

    const SECOND: u64 = 1_000_000_000;

    fn sample(at: u64, start_ns: u64, tasks: &[evenkeel_base::TaskId]) -> Sample {
        let cpu = |cpu| CpuTimes {
            cpu,
            busy_ns: at * SECOND / 2,
            idle_ns: at * SECOND / 2,
            irq_ns: 0,
            steal_ns: Some(0),
        };
        let task = |id| TaskSample {
            id,
            cpu: Some(0),
            ran_ns: at * SECOND / 4,
            waited_ns: Some(at * SECOND / 10),
            ..TaskSample::default()
        };
        Sample {
            monotonic_ns: at * SECOND,
            wall_ns: start_ns + at * SECOND,
            cpus: vec![cpu(0), cpu(1)],
            tasks: tasks.iter().copied().map(task).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn what_a_host_recorded_is_read_with_what_a_loop_did() {
        let dir = tempfile::tempdir().unwrap();
        let start_ns = evenkeel_linux::sys::wall_ns() - 600 * SECOND;
        assert_eq!(read_past(dir.path(), 3600 * SECOND, start_ns).unwrap(), None);
        let mut store = Store::open(&dir.path().join(FILE_NAME), Limits::default()).unwrap();
        let observation = look().observation;
        store.name_tasks(&observation);
        let ids: Vec<_> = observation.tasks.iter().map(|task| task.id).collect();
        let record = RunRecord {
            scope: vec!["all".into()],
            started_ns: start_ns + 30 * SECOND,
            ..RunRecord::default()
        };
        store.begin_run(&record).unwrap();
        (1..120).for_each(|at| store.add_sample(&sample(at, start_ns, &ids)).unwrap());
        store.flush().unwrap();
        let past = read_past(dir.path(), 600 * SECOND, start_ns + 600 * SECOND).unwrap().unwrap();
        assert!(past.moments.iter().any(|moment| moment.kind == Kind::Begins));
        let rates = past.rates_at(start_ns + 60 * SECOND).unwrap();
        assert!(rates.cpu_pct.is_some_and(|pct| (pct - 100.0).abs() < 1.0), "{rates:?}");
        let web = rates.busiest.iter().find(|(name, ..)| name == "shop/front/web").unwrap();
        assert!((web.1 - 50.0).abs() < 1.0 && web.2.is_some_and(|wait| (wait - 20.0).abs() < 1.0), "{web:?}");
        // Five tasks that wait a tenth of the time each.
        assert!(rates.wait_pct.is_some_and(|pct| (pct - 50.0).abs() < 1.0), "{rates:?}");
    }
}
