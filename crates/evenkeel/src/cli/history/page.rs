//! What a run's page shows, from the history.

use std::collections::BTreeMap;

use evenkeel_report::demo::Moment;
use evenkeel_report::html::RunPage;
use evenkeel_store::{Store, StoreError, StoredRun};

/// Tasks drawn on a run's page.
const PAGE_TASKS: usize = 30;
/// Points of a page's timeline; more are averaged into fewer.
const PAGE_MOMENTS: usize = 600;

/// Gathers what a run's page shows.
pub(super) fn page(store: &Store, stored: &StoredRun) -> Result<RunPage, StoreError> {
    let record = stored.record.clone();
    let from = record.started_ns;
    let to = store.until_ns(stored)?.unwrap_or(u64::MAX);
    let mut notes = Vec::new();
    let mut moments: Vec<(f64, Moment)> = Vec::new();
    // By number, in the order in which they were seen first: one that comes or goes moves none of the others.
    let mut places: BTreeMap<u32, usize> = BTreeMap::new();
    let mut last: Option<evenkeel_store::StoredSample> = None;
    for sample in store.samples(from, to)? {
        let next = match sample {
            Ok(next) => next,
            Err(error) if error.is_corrupt() => {
                notes.push(format!("a block of samples was passed over: {error}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(last) = last.take().filter(|last| last.session == next.session) {
            let ns = next.sample.monotonic_ns.saturating_sub(last.sample.monotonic_ns).max(1) as f64;
            let mut per_cpu_pct = vec![0.0; places.len()];
            for cpu in &next.sample.cpus {
                let place = *places.entry(cpu.cpu).or_insert_with(|| {
                    per_cpu_pct.push(0.0);
                    per_cpu_pct.len() - 1
                });
                if let Ok(at) = last.sample.cpus.binary_search_by_key(&cpu.cpu, |before| before.cpu) {
                    let busy = cpu.busy_ns.saturating_sub(last.sample.cpus[at].busy_ns);
                    per_cpu_pct[place] = 100.0 * busy as f64 / ns;
                }
            }
            let moment = Moment {
                t_s: next.sample.wall_ns.saturating_sub(from) as f64 / 1e9,
                total_pct: per_cpu_pct.iter().sum(),
                per_cpu_pct,
            };
            moments.push((ns / 1e9, moment));
        }
        last = Some(next);
    }
    if moments.is_empty() {
        notes.push("No samples of this run are kept: no pictures.".to_owned());
    }
    let mut cpus: Vec<u32> = places.keys().copied().collect();
    cpus.sort_by_key(|cpu| places[cpu]);
    Ok(RunPage {
        tasks: page_tasks(store, &record)?,
        run: Some(stored.id.0),
        ended_ns: stored.ended_ns,
        outcome: stored.outcome.clone(),
        changes: store.changes(stored.id)?.into_iter().map(|c| (c.change, c.undone_ns)).collect(),
        timeline: fewer(moments, PAGE_MOMENTS),
        cpus,
        notes,
        record,
    })
}

/// A task's name, and what it got in the first and the last stage, percent of one CPU.
type FirstAndLast = (String, [Option<f64>; 2]);

fn page_tasks(
    store: &Store,
    record: &evenkeel_base::run::RunRecord,
) -> Result<Vec<FirstAndLast>, StoreError> {
    let mut got: BTreeMap<evenkeel_base::TaskId, FirstAndLast> = BTreeMap::new();
    let Some((first, last)) = record.stages.first().zip(record.stages.last()) else { return Ok(Vec::new()) };
    for (index, stage) in [first, last].into_iter().enumerate() {
        let end = stage.started_ns.saturating_add((stage.seconds.max(0.0) * 1e9) as u64);
        let Some(rates) = store.rates(stage.started_ns, end)? else { continue };
        for task in rates.tasks {
            let comm = task.info.as_ref().map_or("?", |info| info.comm.as_str());
            let entry = got.entry(task.id).or_insert_with(|| (format!("{} {comm}", task.id), [None; 2]));
            entry.1[index] = Some(task.cpu_pct);
        }
    }
    let mut tasks: Vec<_> = got.into_values().collect();
    let most = |got: &[Option<f64>; 2]| got.iter().flatten().copied().fold(0.0, f64::max);
    tasks.sort_by(|a, b| most(&b.1).total_cmp(&most(&a.1)));
    tasks.truncate(PAGE_TASKS);
    Ok(tasks)
}

/// At most `most` moments, each with its length: neighbours are averaged, by their lengths, for some samples are a second apart and
/// some a minute.
fn fewer(moments: Vec<(f64, Moment)>, most: usize) -> Vec<Moment> {
    let group = moments.len().div_ceil(most.max(1)).max(1);
    if group == 1 {
        return moments.into_iter().map(|(_, moment)| moment).collect();
    }
    let width = moments.iter().map(|(_, m)| m.per_cpu_pct.len()).max().unwrap_or(0);
    moments
        .chunks(group)
        .map(|chunk| {
            let seconds: f64 = chunk.iter().map(|(seconds, _)| seconds).sum();
            let mean = |pick: &dyn Fn(&Moment) -> f64| {
                chunk.iter().map(|(seconds, m)| seconds * pick(m)).sum::<f64>() / seconds
            };
            Moment {
                t_s: chunk.last().map_or(0.0, |(_, m)| m.t_s),
                total_pct: mean(&|m| m.total_pct),
                per_cpu_pct: (0..width)
                    .map(|cpu| mean(&|m| m.per_cpu_pct.get(cpu).copied().unwrap_or(0.0)))
                    .collect(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_base::run::RunRecord;
    use evenkeel_base::{CpuTimes, Sample};
    use evenkeel_store::Limits;

    use super::*;

    #[test]
    fn a_cpu_keeps_its_place_while_another_is_offline() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(&dir.path().join("history.db"), Limits::default()).unwrap();
        let second = 1_000_000_000;
        let start = 1_900_000_000 * second;
        let run = store.begin_run(&RunRecord { started_ns: start, ..RunRecord::default() }).unwrap();
        for (at, online) in [(0, &[0, 1, 3][..]), (1, &[0, 1, 3]), (2, &[0, 3]), (3, &[0, 1, 3])] {
            // CPU 3 is always busy, the others never.
            let busy_ns = |cpu| if cpu == 3 { at * second } else { 0 };
            let cpu = |cpu: &u32| CpuTimes { cpu: *cpu, busy_ns: busy_ns(*cpu), ..CpuTimes::default() };
            store
                .add_sample(&Sample {
                    monotonic_ns: (5 + at) * second,
                    wall_ns: start + at * second,
                    cpus: online.iter().map(cpu).collect(),
                    ..Sample::default()
                })
                .unwrap();
        }
        store.flush().unwrap();
        let page = page(&store, &store.run(run).unwrap()).unwrap();
        let drawn: Vec<_> = page.timeline.iter().map(|moment| moment.per_cpu_pct.clone()).collect();
        assert_eq!((page.cpus, drawn), (vec![0, 1, 3], vec![vec![0.0, 0.0, 100.0]; 3]));
    }

    #[test]
    fn a_minute_counts_for_sixty_seconds() {
        let moment =
            |t_s, seconds, pct| (seconds, Moment { t_s, total_pct: pct, per_cpu_pct: vec![pct / 2.0; 2] });
        let moments = vec![moment(60.0, 60.0, 10.0), moment(61.0, 1.0, 132.0), moment(62.0, 1.0, 40.0)];
        let few = fewer(moments.clone(), 2);
        assert_eq!((few[0].total_pct, few[0].per_cpu_pct[1], few[0].t_s), (12.0, 6.0, 61.0));
        assert_eq!((few.len(), few[1].total_pct, fewer(moments, 3).len()), (2, 40.0, 3));
    }
}
