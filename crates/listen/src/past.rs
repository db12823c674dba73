//! Pages that take a while: past hours from the history, and findings on the set-up.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_base::stats::add_known;
use evenkeel_observe::Sampling;
use evenkeel_store::rates::Accumulator;
use evenkeel_store::{Rates, Store, moments};
use serde_json::{Value, json};

use super::Served;
use super::board::by_number;
use super::documents::shorts;

/// Points of a page of the past, at most.
const POINTS: u64 = 120;
/// Longest time of a page.
const LONGEST_MS: u64 = 31 * 86_400_000;
/// Owners listed for a time.
const LISTED: usize = 50;
/// A finding is looked for again when the last look is older than this.
const AGE: Duration = Duration::from_secs(60);
/// How long the host is looked at for them.
const LOOK: Duration = Duration::from_secs(1);

/// The last findings.
#[derive(Debug, Default)]
pub struct Findings {
    // Held while the host is looked at: two who ask at once get the same.
    last: Mutex<Option<(Instant, Value)>>,
}

impl Findings {
    /// What `check` finds.
    pub fn get(&self, served: &Served) -> Result<Value, String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, document)) = &*last
            && at.elapsed() < AGE
        {
            return Ok(document.clone());
        }
        // BPF programs would be loaded for this second only.
        let way = if served.sampling == Sampling::Bpf { Sampling::Bpf } else { Sampling::Proc };
        let check = (served.check)(&served.state_dir, way, LOOK);
        let mut document = check.map_err(|error| format!("{error:#}"))?;
        document["at_ms"] = json!(now_ms());
        *last = Some((Instant::now(), document.clone()));
        Ok(document)
    }
}

fn now_ms() -> u64 {
    evenkeel_linux::sys::wall_ns() / 1_000_000
}

/// A time that is asked for, ms since 1970, by default the last hour; `None` where its end is not after its beginning.
pub fn span(from: Option<u64>, to: Option<u64>) -> Option<(u64, u64)> {
    let to = to.unwrap_or_else(now_ms).min(now_ms());
    let from = from.unwrap_or_else(|| to.saturating_sub(3_600_000)).max(to.saturating_sub(LONGEST_MS));
    (from < to).then_some((from, to))
}

/// What happened then: `evenkeel.past/v1`.
pub fn history(state_dir: &Path, (from, to): (u64, u64)) -> Result<Value, String> {
    let empty = json!({
        "schema": "evenkeel.past/v1", "from_ms": from, "to_ms": to, "moments": [], "owners": [],
    });
    let told = |error: evenkeel_store::StoreError| error.to_string();
    let Some(store) = Store::open_read_only(&state_dir.join(evenkeel_store::FILE_NAME)).map_err(told)? else {
        return Ok(empty);
    };
    let step = ((to - from) / POINTS).max(1000);
    let (mut moments, mut owners) = (Vec::new(), BTreeMap::<String, (f64, Option<f64>)>::new());
    let mut covered = 0.0;
    let mut samples = store.samples(from * 1_000_000, to * 1_000_000).map_err(told)?;
    let mut current: Option<(u64, Accumulator)> = None;
    let mut damaged = 0_u64;
    loop {
        let next = match samples.next() {
            Some(Ok(sample)) => Some(sample),
            Some(Err(error)) if error.is_corrupt() => {
                damaged += 1;
                continue;
            }
            Some(Err(error)) => return Err(told(error)),
            None => None,
        };
        let slot = next.as_ref().map(|next| (next.sample.wall_ns / 1_000_000).saturating_sub(from) / step);
        if let Some((at, mut done)) = current.take_if(|(at, _)| Some(*at) != slot) {
            // The sample that begins the next part ends this one.
            if let Some(next) = &next
                && slot.is_some_and(|slot| slot >= at)
            {
                done.add(next.clone());
            }
            let names = samples.names();
            if let Some(rates) = done.finish(|id| names.get(&id).cloned()) {
                covered += rates.seconds;
                add(&rates, &mut owners);
                moments.push(moment(&rates));
            }
        }
        let (Some(next), Some(slot)) = (next, slot) else { break };
        current.get_or_insert_with(|| (slot, Accumulator::default())).1.add(next);
    }
    let mut owners: Vec<_> = owners.into_iter().collect();
    owners.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let percent = |seconds: f64| (seconds / covered * 1e4).round() / 100.0;
    let owners: Vec<Value> = owners
        .into_iter()
        .take(LISTED)
        .map(|(name, (ran, waited))| {
            json!({"name": evenkeel_base::cut(&name, 200), "cpu_pct": percent(ran), "wait_pct": waited.map(percent)})
        })
        .collect();
    let waits = store.waits(from * 1_000_000, to * 1_000_000).map_err(told)?;
    let mut waits: Vec<_> = waits.iter().collect();
    waits.sort_by_key(|(_, waits)| std::cmp::Reverse(waits.quantile(0.99)));
    let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
    let waits: Vec<Value> = waits
        .iter()
        .take(LISTED)
        .map(|(name, waits)| {
            json!({
                "name": evenkeel_base::cut(name, 200), "count": waits.total(),
                "p50_ms": ms(waits.quantile(0.5)), "p99_ms": ms(waits.quantile(0.99)),
            })
        })
        .collect();
    moments.sort_by_key(|moment| moment[0].as_u64());
    Ok(json!({
        "schema": "evenkeel.past/v1", "from_ms": from, "to_ms": to, "covered_s": covered, "damaged_blocks": damaged,
        "fields": ["at_ms", "seconds", "busy_pct", "steal_pct", "wait_pct", "cpus_busy_pct"],
        "moments": moments, "owners": owners, "waits": waits,
    }))
}

/// Adds seconds.
fn add(rates: &Rates, owners: &mut BTreeMap<String, (f64, Option<f64>)>) {
    for (name, cpu_pct, wait_pct) in moments::owners(rates) {
        let sum = owners.entry(name).or_default();
        sum.0 += cpu_pct / 100.0 * rates.seconds;
        add_known(&mut sum.1, wait_pct.map(|wait| wait / 100.0 * rates.seconds));
    }
}

fn moment(rates: &Rates) -> Value {
    let round = |value: f64| (value * 10.0).round() / 10.0;
    let cpus = shorts(&by_number(rates.cpus.iter().map(|cpu| (cpu.cpu, cpu.busy_pct))));
    let steal: Option<f64> = rates.cpus.iter().map(|cpu| cpu.steal_pct).sum();
    // Counted of no task is not known.
    let waits = rates.tasks.iter().filter_map(|task| task.wait_pct).reduce(|sum, wait| sum + wait);
    json!([
        rates.to_ns / 1_000_000,
        round(rates.seconds),
        round(rates.cpus.iter().map(|cpu| cpu.busy_pct).sum()),
        steal.map(round),
        waits.map(round),
        cpus
    ])
}

#[cfg(test)]
mod tests {
    use evenkeel_store::TaskRate;

    use super::*;

    #[test]
    fn who_waits_longest_is_listed_first() {
        let dir = tempfile::tempdir().unwrap();
        let mut store =
            Store::open(&dir.path().join(evenkeel_store::FILE_NAME), evenkeel_store::Limits::default())
                .unwrap();
        let waits = |ns| {
            let mut waits = evenkeel_base::Histogram::default();
            waits.add(ns);
            waits
        };
        let all =
            (0..LISTED as u64 + 10).map(|n| (format!("c{n:02}"), waits(1_000 + 1_000_000 * n))).collect();
        store.add_waits(now_ms() / 60_000 - 1, &all).unwrap();
        let past = history(dir.path(), span(None, None).unwrap()).unwrap();
        let listed = past["waits"].as_array().unwrap();
        let names: Vec<_> = listed.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), LISTED);
        assert!(!names.contains(&"c00") && names[..5].contains(&"c59"), "{names:?}");
    }

    #[test]
    fn a_time_has_an_end_after_its_beginning() {
        assert_eq!(span(Some(3), Some(5)), Some((3, 5)));
        assert_eq!(
            (span(Some(5), Some(5)), span(Some(5), Some(3)), span(Some(u64::MAX), None)),
            (None, None, None)
        );
    }

    #[test]
    fn waits_that_were_counted_of_no_task_are_unknown() {
        let task = |wait_pct| TaskRate { cpu_pct: 50.0, wait_pct, ..TaskRate::default() };
        let waited = |waits: &[Option<f64>]| {
            moment(&Rates { tasks: waits.iter().copied().map(task).collect(), ..Rates::default() })[4].clone()
        };
        assert_eq!(waited(&[None, None]), Value::Null);
        assert_eq!(waited(&[None, Some(2.0), Some(0.5)]), json!(2.5));
    }
}
