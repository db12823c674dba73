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
    let mut cpus: Vec<u32> = Vec::new();
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
            cpus = next.sample.cpus.iter().map(|cpu| cpu.cpu).collect();
            let busy = |cpu: &evenkeel_base::CpuTimes| {
                let before = last.sample.cpus.iter().find(|before| before.cpu == cpu.cpu);
                before.map_or(0.0, |before| 100.0 * cpu.busy_ns.saturating_sub(before.busy_ns) as f64 / ns)
            };
            let per_cpu_pct: Vec<f64> = next.sample.cpus.iter().map(busy).collect();
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
    use super::*;

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
