//! What happened when: rates between samples, and what the loop did; what `replay` tells and `top` shows of the past.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use evenkeel_base::run::{Act, ChangeRecord, KERNEL_DEFAULT};
use evenkeel_base::stats::add_known;

use crate::rates::Accumulator;
use crate::{Rates, RunId, Store, StoreError, StoredChange, StoredSample, TaskInfo, TrialWindow};

evenkeel_base::named! {
/// What a moment is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A run began.
    Begins = "begins",
    /// Who got the CPU since the last one.
    Rates = "rates",
    /// A window of a trial.
    Window = "window",
    /// Settings were kept.
    Kept = "kept",
    /// Settings were not kept by a trial, or had been kept and were taken back.
    Refused = "refused",
    /// A change was made.
    Set = "set",
    /// A change was taken back.
    PutBack = "put back",
    /// A run ended.
    Ends = "ends",
}
}

/// Something seen or done. Percent is of one CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Moment {
    /// When it was over, nanoseconds since 1970.
    pub at_ns: u64,
    pub kind: Kind,
    /// Settings in force, or those it is about.
    pub settings: String,
    /// What it covers.
    pub seconds: Option<f64>,
    /// CPU used: by the host, in a window by the scope.
    pub cpu_pct: Option<f64>,
    /// Busy time of each CPU, by its number.
    pub per_cpu_pct: Vec<(u32, f64)>,
    /// Stolen from all CPUs together; `None` where that is not told.
    pub steal_pct: Option<f64>,
    /// Time that tasks waited, together; `None` where it is not counted.
    pub wait_pct: Option<f64>,
    /// Who got most.
    pub busiest: Vec<Busy>,
    pub text: String,
}

/// Somebody with his CPU: name, CPU used, time waited; percent of one CPU.
pub type Busy = (String, f64, Option<f64>);

impl Moment {
    fn event(at_ns: u64, kind: Kind, settings: &str, text: String) -> Self {
        Self {
            at_ns,
            kind,
            settings: settings.to_owned(),
            seconds: None,
            cpu_pct: None,
            per_cpu_pct: Vec::new(),
            steal_pct: None,
            wait_pct: None,
            busiest: Vec::new(),
            text,
        }
    }
}

/// How much earlier than a step a sample may come that ends it, seconds.
const EARLY_S: f64 = 0.1;

#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// Shortest time that rates are about, seconds.
    pub step_s: f64,
    /// Who is named in rates, busiest first.
    pub busiest: &'a dyn Fn(&Rates) -> Vec<Busy>,
    /// How many of them at most.
    pub lines: usize,
}

impl std::fmt::Debug for Limits<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} lines each {} s", self.lines, self.step_s)
    }
}

/// Who used it: containers by name, after their pod's where they are in one, for many pods have a container of the same name; what is
/// in none by its cgroup. With what ended in a cgroup that is one's own. Busiest first.
pub fn owners(rates: &Rates) -> Vec<Busy> {
    let owner = |info: &TaskInfo| match (&info.pod, &info.container, &info.group) {
        (Some(pod), Some(container), _) => Some(format!("{pod}/{container}")),
        (None, Some(name), _) | (_, None, Some(name)) => Some(name.clone()),
        _ => None,
    };
    let mut sums: BTreeMap<String, (f64, Option<f64>)> = BTreeMap::new();
    for task in &rates.tasks {
        let Some(name) = task.info.as_deref().and_then(owner) else { continue };
        let sum = sums.entry(name).or_default();
        sum.0 += task.cpu_pct;
        add_known(&mut sum.1, task.wait_pct);
    }
    for (name, counted) in rates.own_groups_pct(owner) {
        sums.entry(name).and_modify(|sum| sum.0 = sum.0.max(counted));
    }
    let mut owners: Vec<Busy> = sums.into_iter().map(|(name, sum)| (name, sum.0, sum.1)).collect();
    owners.sort_by(|a, b| b.1.total_cmp(&a.1));
    owners
}

/// Everything in a time (nanoseconds since 1970), in order; and how many damaged blocks of samples were passed over.
pub fn read(
    store: &Store,
    runs: &[RunId],
    (from, to): (u64, u64),
    limits: Limits<'_>,
) -> Result<(Vec<Moment>, u64), StoreError> {
    let mut moments = Vec::new();
    let mut taken_back = BTreeSet::new();
    for run in runs {
        let (events, ends) = events(store, *run)?;
        moments.extend(events);
        taken_back.extend(ends);
    }
    let (rates, damaged) = rates(store, (from, to), limits)?;
    moments.extend(rates);
    moments.retain(|moment| (from..=to).contains(&moment.at_ns));
    // What happens at one instant stays in the order it was put in.
    moments.sort_by_key(|moment| moment.at_ns);
    let mut settings = "?".to_owned();
    let changes = in_force(store, runs)?;
    for moment in &mut moments {
        match moment.kind {
            Kind::Begins | Kind::Kept | Kind::Ends => settings.clone_from(&moment.settings),
            Kind::Refused if taken_back.contains(&moment.at_ns) => KERNEL_DEFAULT.clone_into(&mut settings),
            Kind::Rates => {
                moment.settings.clone_from(&settings);
                // Promises and limits are kept whichever settings are, and the default alone says that nothing is in force.
                if settings == KERNEL_DEFAULT {
                    let there = changes.iter().filter(|change| change.0.contains(&moment.at_ns));
                    let why: BTreeSet<&str> = there.map(|change| change.1.as_str()).collect();
                    why.iter().for_each(|why| moment.settings.push_str(&format!(", {why}")));
                }
            }
            _ => {}
        }
    }
    Ok((moments, damaged))
}

/// When what no trial measures was in force (a promised share, a limit), and why.
fn in_force(store: &Store, runs: &[RunId]) -> Result<Vec<(Range<u64>, String)>, StoreError> {
    let mut all = Vec::new();
    for run in runs {
        let until = store.until_ns(&store.run(*run)?)?.unwrap_or(u64::MAX);
        for StoredChange { change, undone_ns } in store.changes(*run)? {
            if change.effect.is_none() && !change.why.is_empty() {
                all.push((change.at_ns..undone_ns.unwrap_or(until), change.why));
            }
        }
    }
    Ok(all)
}

fn nanos(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e9) as u64
}

/// Whose setting a change was of, and what it was before. Where the value begins with the knob's name, as a weight's does, that is
/// not there twice.
pub fn setting(change: &ChangeRecord) -> String {
    let named = change.from.strip_prefix(&change.knob).is_some_and(|rest| rest.starts_with(' '));
    let knob = if named { "" } else { change.knob.as_str() };
    let target = change.target();
    let words = [target.as_str(), knob, change.from.as_str()].into_iter().filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// What a run did, and when a change that was in force was taken back.
fn events(store: &Store, run: RunId) -> Result<(Vec<Moment>, Vec<u64>), StoreError> {
    let stored = store.run(run)?;
    let trials = store.trials(run)?;
    let begins = format!("run {} of {}", run.0, stored.record.scope.join(" "));
    let begin = Moment::event(stored.record.started_ns, Kind::Begins, KERNEL_DEFAULT, begins);
    let mut moments = vec![begin];
    let mut taken_back = Vec::new();
    moments.extend(trials.iter().map(window));
    let starts: Vec<u64> = stored.record.stages.iter().map(|stage| stage.started_ns).collect();
    for stage in &stored.record.stages {
        let Some(kept) = stage.kept else { continue };
        let settings = &stage.name.settings;
        let kind = if kept { Kind::Kept } else { Kind::Refused };
        let at_ns = match stage.name.act {
            // It began when the change came in force.
            Some(Act::Watch) => stage.started_ns.saturating_add(nanos(stage.seconds)),
            _ => decided(stage.started_ns, &starts, &trials),
        };
        if stage.name.act == Some(Act::Watch) && !kept {
            taken_back.push(at_ns);
        }
        let named =
            if stage.name.act == Some(Act::Trial) { settings.clone() } else { stage.name.to_string() };
        let text = format!("{named}: {}", stage.reason());
        moments.push(Moment::event(at_ns, kind, settings, text));
    }
    for change in store.changes(run)? {
        let what = &change.change;
        let text = format!("{} -> {} ({})", setting(what), what.to, what.why);
        moments.push(Moment::event(what.at_ns, Kind::Set, "", text));
        if let Some(at_ns) = change.undone_ns {
            moments.push(Moment::event(at_ns, Kind::PutBack, "", setting(what)));
        }
    }
    if let Some(at_ns) = stored.ended_ns {
        let text = format!("run {}: {}", run.0, stored.outcome.as_deref().unwrap_or("no outcome told"));
        moments.push(Moment::event(at_ns, Kind::Ends, KERNEL_DEFAULT, text));
    }
    Ok((moments, taken_back))
}

fn window(window: &TrialWindow) -> Moment {
    let mut text = format!("{}: {:.1} % CPU", window.settings, window.cpu_pct);
    if let Some(waited) = window.wait_per_ran {
        text.push_str(&format!(", {waited:.2} s waited per second of work"));
    }
    for p99_ms in window.protected_p99_ms.iter().flatten() {
        text.push_str(&format!(", protected waits {p99_ms:.2} ms in the 99th percentile"));
    }
    let at_ns = window.started_ns.saturating_add(nanos(window.seconds));
    Moment {
        seconds: Some(window.seconds),
        cpu_pct: Some(window.cpu_pct),
        ..Moment::event(at_ns, Kind::Window, &window.settings, text)
    }
}

/// When a trial was decided that began at `started_ns`: at the end of its last window.
fn decided(started_ns: u64, starts: &[u64], trials: &[TrialWindow]) -> u64 {
    let next = starts.iter().copied().filter(|start| *start > started_ns).min().unwrap_or(u64::MAX);
    let windows = trials.iter().filter(|window| (started_ns..next).contains(&window.started_ns));
    let ends = windows.map(|window| window.started_ns.saturating_add(nanos(window.seconds)));
    ends.max().unwrap_or(started_ns)
}

/// Who got the CPU, step by step. Where samples are further apart than a step, from one to the next.
fn rates(
    store: &Store,
    (from, to): (u64, u64),
    limits: Limits<'_>,
) -> Result<(Vec<Moment>, u64), StoreError> {
    let mut moments = Vec::new();
    let mut damaged = 0;
    let mut samples = store.samples(from, to)?;
    let begins = |first: StoredSample| {
        let (session, ns) = (first.session, first.sample.monotonic_ns);
        let mut step = Accumulator::default();
        step.add(first);
        (session, ns, step)
    };
    let mut open: Option<(i64, u64, Accumulator)> = None;
    loop {
        let next = match samples.next() {
            None => break,
            Some(Err(error)) if error.is_corrupt() => {
                damaged += 1;
                continue;
            }
            Some(next) => next?,
        };
        let Some((session, begun_ns, mut step)) =
            open.take().filter(|(session, ..)| *session == next.session)
        else {
            open = Some(begins(next));
            continue;
        };
        let ns = next.sample.monotonic_ns.saturating_sub(begun_ns);
        // Each sample counts: who came and went within the step is in no other. They come a little before or after their time.
        if (ns as f64) < 1e9 * (limits.step_s - EARLY_S.min(0.1 * limits.step_s)) {
            step.add(next);
            open = Some((session, begun_ns, step));
            continue;
        }
        step.add(next.clone());
        open = Some(begins(next));
        let names = samples.names();
        let Some(rates) = step.finish(|id| names.get(&id).cloned()) else { continue };
        let mut busiest = (limits.busiest)(&rates);
        busiest.truncate(limits.lines);
        busiest.retain(|(_, cpu_pct, _)| *cpu_pct >= 0.05);
        let per_cpu_pct: Vec<_> = rates.cpus.iter().map(|cpu| (cpu.cpu, cpu.busy_pct)).collect();
        moments.push(Moment {
            seconds: Some(rates.seconds),
            cpu_pct: (!per_cpu_pct.is_empty()).then(|| per_cpu_pct.iter().map(|(_, pct)| pct).sum()),
            per_cpu_pct,
            steal_pct: rates.cpus.iter().map(|cpu| cpu.steal_pct).sum(),
            wait_pct: rates.tasks.iter().filter_map(|task| task.wait_pct).reduce(|a, b| a + b),
            busiest,
            ..Moment::event(rates.to_ns, Kind::Rates, "", String::new())
        });
    }
    Ok((moments, damaged))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::run::RunRecord;

    use super::*;

    fn trial(started_ns: u64) -> TrialWindow {
        TrialWindow {
            trial: 1,
            settings: "batch".into(),
            started_ns,
            seconds: 1e-9,
            cpu_pct: 140.0,
            wait_per_ran: Some(0.25),
            fulfilment: None,
            steal_pct: None,
            protected_p99_ms: vec![None, Some(1.5)],
        }
    }

    const SECOND: u64 = 1_000_000_000;

    /// A store, and an instant since which something may have been recorded.
    fn empty() -> (tempfile::TempDir, Store, u64) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("history.db"), crate::Limits::default()).unwrap();
        (dir, store, crate::db::now_ns() - 100 * SECOND)
    }

    #[test]
    fn a_trial_is_decided_when_its_last_window_ends() {
        let (trials, starts) = ([trial(11), trial(19), trial(30), trial(35)], [10, 10, 28]);
        assert_eq!(decided(10, &starts, &trials), 20);
        assert_eq!(decided(28, &starts, &trials), 36);
        assert_eq!(decided(28, &starts, &[]), 28);
    }

    #[test]
    fn a_promise_is_no_kernel_default() {
        let (_dir, mut store, start) = empty();
        let record = RunRecord { started_ns: start, ..RunRecord::default() };
        let run = store.begin_run(&record).unwrap();
        let change = ChangeRecord {
            group: Some("/web".into()),
            why: "promised share".into(),
            at_ns: start + 2 * SECOND,
            ..ChangeRecord::default()
        };
        store.set_changes(run, &[change]).unwrap();
        for at in 0..4 {
            let cpus = vec![evenkeel_base::CpuTimes::default()];
            let (monotonic_ns, wall_ns) = ((9 + at) * SECOND, start + at * SECOND);
            let sample = evenkeel_base::Sample { monotonic_ns, wall_ns, cpus, ..Default::default() };
            store.add_sample(&sample).unwrap();
        }
        store.flush().unwrap();
        let limits = Limits { step_s: 1.0, busiest: &owners, lines: 5 };
        let (moments, _) = read(&store, &[run], (start, u64::MAX), limits).unwrap();
        let rates = moments.iter().filter(|moment| moment.kind == Kind::Rates);
        let settings: Vec<&str> = rates.map(|moment| moment.settings.as_str()).collect();
        let promised = "kernel default, promised share";
        assert_eq!(settings, ["kernel default", promised, promised]);
    }

    #[test]
    fn what_ended_in_ones_own_cgroup_is_ones_own() {
        let task = |tid, container: Option<&str>, group: &str| crate::TaskRate {
            id: evenkeel_base::TaskId { tgid: tid, tid, start_time: 1 },
            info: Some(std::sync::Arc::new(TaskInfo {
                comm: "x".into(),
                group: Some(group.into()),
                container: container.map(str::to_owned),
                pod: None,
            })),
            cpu_pct: 5.0,
            ..Default::default()
        };
        let group =
            |path: &str, pct| crate::GroupRate { path: path.into(), cpu_pct: Some(pct), throttled_pct: None };
        let rates = Rates {
            tasks: vec![
                task(1, Some("ci"), "/ci/run"),
                task(2, Some("ci"), "/ci/make"),
                task(3, None, "/shared"),
                task(4, Some("in"), "/shared/in"),
            ],
            groups: vec![
                group("/", 500.0),
                group("/ci", 300.0),
                group("/shared", 90.0),
                group("/shared/in", 1.0),
            ],
            ..Rates::default()
        };
        let busy: Vec<_> = owners(&rates).into_iter().map(|(name, cpu_pct, _)| (name, cpu_pct)).collect();
        let named = |name: &str, cpu_pct| (name.to_owned(), cpu_pct);
        assert_eq!(busy, [named("ci", 300.0), named("/shared", 5.0), named("in", 5.0)]);
    }

    #[test]
    fn who_came_and_went_within_a_step_is_among_the_busiest() {
        let (_dir, mut store, start) = empty();
        let id = evenkeel_base::TaskId { tgid: 7, tid: 7, start_time: 950 };
        let info =
            crate::TaskInfo { comm: "cc1".into(), group: Some("/build".into()), container: None, pod: None };
        store.name_task(id, info);
        for at in 0..3 {
            let task = evenkeel_base::TaskSample { id, ran_ns: SECOND / 2, ..Default::default() };
            let tasks = if at == 1 { vec![task] } else { Vec::new() };
            let (monotonic_ns, wall_ns) = ((9 + at) * SECOND, start + at * SECOND);
            store
                .add_sample(&evenkeel_base::Sample { monotonic_ns, wall_ns, tasks, ..Default::default() })
                .unwrap();
        }
        store.flush().unwrap();
        let limits = Limits { step_s: 2.0, busiest: &owners, lines: 5 };
        let (moments, _) = read(&store, &[], (start, u64::MAX), limits).unwrap();
        let busiest: Vec<_> = moments.iter().map(|moment| (moment.seconds, moment.busiest.clone())).collect();
        assert_eq!(busiest, [(Some(2.0), vec![("/build".to_owned(), 25.0, None)])]);
    }

    #[test]
    fn a_window_tells_what_was_measured() {
        let moment = window(&trial(5));
        assert_eq!(moment.at_ns, 6);
        assert_eq!(
            moment.text,
            "batch: 140.0 % CPU, 0.25 s waited per second of work, protected waits 1.50 ms in the 99th percentile"
        );
    }
}
