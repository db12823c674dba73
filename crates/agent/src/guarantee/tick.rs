//! Ten times a second: what was got, what is owed, which settings follow.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use evenkeel_base::{Change, Knob, Nice, Observation, SchedAttr, Setting, Target, TaskId};
use evenkeel_policy::guarantee::Window;
use evenkeel_policy::guarantee::tree::{self, SchedEntity, Siblings};

use super::counters::Change as Ticked;
use super::keeper::{InForce, Keeper};
use super::layout::EntityFacts;
use super::usage::Usage;
use crate::component::TICK;

/// Waited, percent of a tick, from which a carrier is in contention.
const CONTENTION_PCT: f64 = 1.0;
/// Ticks without contention after which corrections rest.
const CALM_TICKS: u32 = 20;
/// Steps of weights: few different values, so that the journal stays short. 2 % of a weight are at most half a point.
const WEIGHT_STEP: f64 = 1.02;
/// Changes of a weight, as a ratio, that are written. Where an owner's program has to be run, or another manager writes the
/// same file: larger ones only, and not again so soon.
const WORTH: f64 = 1.015;
const WORTH_SELDOM: f64 = 1.2;
const REST_SELDOM: Duration = Duration::from_secs(5);
/// Difference of a weight from the one found, as a part, that is none.
const AS_FOUND: f64 = 0.005;
/// Parts of a promised wait that a slice may last: a task with a short slice has an early deadline, and who runs alongside
/// it is protected from preemption no longer than the shortest slice in the queue.
const SLICES_PER_WAIT: u64 = 4;
/// Shortest and longest slice the kernel takes, nanoseconds.
const SLICE_NS: (u64, u64) = (100_000, 100_000_000);

impl Keeper {
    /// What is to be changed now; `None` when it is not time yet. `at_once`: whatever the time.
    pub fn tick(&mut self, now: Instant, at_once: bool) -> Option<Vec<Change>> {
        if self.guarantees.is_empty() {
            return None;
        }
        let due = self.correction.ticked.is_none_or(|then| now.duration_since(then) + TICK / 10 >= TICK);
        if !due && !at_once {
            return None;
        }
        if due {
            self.correction.ticked = Some(now);
            if let Some((dt, counted)) = self.correction.counters.read(now)
                && dt > 0.0
            {
                self.account(dt, &counted);
            }
        }
        let wanted = self.wanted(due);
        Some(self.differing(wanted, now))
    }

    /// Debts of the carriers, windows of the promises.
    pub(super) fn account(&mut self, dt: f64, counted: &HashMap<TaskId, Ticked>) {
        let mut contention = false;
        let mut sums = vec![(Ticked::default(), None::<f64>, true); self.guarantees.len()];
        for (id, guarantee) in &self.layout.owner {
            let (sum, wanted, all) = &mut sums[*guarantee];
            let Some(change) = counted.get(id) else {
                *all &= !self.correction.counters.misses(id);
                continue;
            };
            sum.ran_s += change.ran_s;
            sum.waited_s += change.waited_s;
            sum.ended_s += change.ended_s;
            sum.timeslices += change.timeslices;
            if let Some(pct) = self.observed.known.get(&id.tid) {
                *wanted = Some(wanted.unwrap_or(0.0) + pct);
            }
        }
        for (carrier, members) in self.layout.carriers.iter().zip(&self.layout.members) {
            let (mut ran, mut waited) = (0.0, 0.0);
            for change in members.iter().filter_map(|id| counted.get(id)) {
                ran += change.ran_s;
                waited += change.waited_s;
            }
            contention |= 100.0 * waited > CONTENTION_PCT * dt;
            if let Some(held) = self.layout.held.get(&carrier.entity) {
                let lag = self.correction.lags.entry(held.target.clone()).or_default();
                lag.add(carrier.points, ran, waited, dt);
            }
        }
        self.correction.calm_ticks =
            if contention { 0 } else { self.correction.calm_ticks.saturating_add(1) };
        let mut used: Vec<Option<f64>> = self.usage.iter_mut().map(Usage::read).collect();
        used.resize(self.guarantees.len(), None);
        for ((guarantee, (sum, wanted, all)), used_s) in self.guarantees.iter_mut().zip(sums).zip(used) {
            if guarantee.tasks == 0 {
                continue;
            }
            let got_s = used_s.unwrap_or(sum.ran_s);
            guarantee.waits.add_mean(dt, sum.ended_s, sum.timeslices);
            let window = Window {
                seconds: dt,
                got_s,
                waited_s: all.then_some(sum.waited_s),
                runnable_s: all.then_some((got_s + sum.waited_s).min(dt)),
                wanted_pct: wanted.filter(|_| all),
            };
            self.messages.notes.extend(guarantee.add(window));
        }
    }

    /// Judges the promises by an observation alone.
    pub fn judge(&mut self, observation: &Observation) {
        for (index, guarantee) in self.guarantees.iter_mut().enumerate() {
            let tasks =
                || observation.tasks.iter().filter(|task| self.layout.owner.get(&task.id) == Some(&index));
            let seconds = observation.interval_s;
            let got_s = tasks().map(|task| task.cpu_pct).sum::<f64>() / 100.0 * seconds;
            let waited = tasks().map(|task| task.wait_pct).sum::<Option<f64>>();
            let waited_s = waited.map(|pct| pct / 100.0 * seconds);
            let runnable_s = waited_s.map(|waited| (got_s + waited).min(seconds));
            guarantee.add(Window { seconds, got_s, waited_s, runnable_s, wanted_pct: None });
            guarantee.close_window();
        }
    }

    /// The settings that follow from lags and layout.
    fn wanted(&mut self, due: bool) -> Vec<Change> {
        let calm = self.correction.calm_ticks > CALM_TICKS;
        let layout = &self.layout;
        let gain: Vec<f64> = layout
            .carriers
            .iter()
            .map(|carrier| {
                let lag =
                    layout.held.get(&carrier.entity).and_then(|held| self.correction.lags.get(&held.target));
                if calm { 1.0 } else { lag.map_or(1.0, |lag| lag.gain()) }
            })
            .collect();
        let capacity = |siblings: &Siblings| layout.capacity(siblings);
        let heaviest =
            |entity: SchedEntity| layout.held.get(&entity).map_or(f64::INFINITY, |held| held.heaviest);
        let solved =
            tree::solve(&heaviest, &layout.contests, &layout.carriers, &capacity, &gain, &mut |node, new| {
                layout.per_point.get(&node).copied().unwrap_or(new)
            });
        let mut changes = Vec::new();
        let mut sched: HashMap<TaskId, SchedAttr> = HashMap::new();
        for (entity, weight) in solved.iter().flat_map(|s| &s.weights) {
            let Some(held) = layout.held.get(entity) else { continue };
            match (&held.target, held.sched) {
                (Target::Task(id), Some(found)) => {
                    let nice = if calm {
                        Nice::nearest(*weight)
                    } else if due {
                        self.correction.dithers.entry(*id).or_default().next(*weight)
                    } else {
                        // Between ticks nothing is decided again; a newcomer gets the nearest value.
                        let now = self.in_force.get(&(held.target.clone(), Knob::Sched));
                        match now.map(|in_force| &in_force.change.to) {
                            Some(Setting::Sched(attr)) => attr.nice,
                            _ => Nice::nearest(*weight),
                        }
                    };
                    sched.insert(*id, SchedAttr { nice, ..found });
                }
                _ => changes.extend(self.weight_change(held, *weight)),
            }
        }
        for (id, guarantee) in &layout.owner {
            let Some(ns) = self.guarantees[*guarantee].stated.promise.wait_p99_ns else { continue };
            if self.guarantees[*guarantee].refusal.is_some() || !self.config.task_slice {
                continue;
            }
            if let Some(found) = sched.get(id).copied().or_else(|| layout.sched.get(id).copied()) {
                let slice = (ns / SLICES_PER_WAIT).clamp(SLICE_NS.0, SLICE_NS.1);
                sched.insert(*id, SchedAttr { slice_ns: Some(slice), ..found });
            }
        }
        changes.extend(sched.into_iter().map(|(id, attr)| Change {
            target: Target::Task(id),
            to: Setting::Sched(attr),
            why: "promised share".to_owned(),
        }));
        changes.extend(self.pinned().map(|(id, to)| Change {
            target: Target::Task(id),
            to,
            why: "promised shares packed onto CPUs".to_owned(),
        }));
        changes
    }

    /// `None` where the weight found will do and nothing else is in force.
    fn weight_change(&self, held: &EntityFacts, weight: f64) -> Option<Change> {
        let group = held.group.as_ref()?;
        let found = held.found_raw?;
        let raw = if (weight / held.found - 1.0).abs() < AS_FOUND {
            found
        } else {
            let steps = (weight.max(1.0).ln() / WEIGHT_STEP.ln()).round();
            tree::raw_weight(group, WEIGHT_STEP.powf(steps))
        };
        (raw != found || self.sets_weight(&held.target)).then(|| Change {
            target: held.target.clone(),
            to: Setting::Weight(raw),
            why: held.role.why().to_owned(),
        })
    }

    /// What of it differs enough from what is in force to be written.
    fn differing(&mut self, wanted: Vec<Change>, now: Instant) -> Vec<Change> {
        let owned = self.layout.held.values().filter(|held| held.owned).map(|held| &held.target);
        let owned: HashSet<&Target> = owned.collect();
        let mut changes = Vec::new();
        for change in wanted {
            let key = (change.target.clone(), change.knob());
            let before = self.in_force.get(&key);
            let shared = self.shared.contains(&change.target);
            let stands = before.and_then(|before| before.stands.clone());
            if let Some(in_force) = before {
                let worth = match (&in_force.change.to, &change.to) {
                    (Setting::Weight(old), Setting::Weight(new)) => {
                        let ratio = (*new).max(1) as f64 / (*old).max(1) as f64;
                        let ratio = ratio.max(1.0 / ratio);
                        if shared || owned.contains(&change.target) {
                            ratio > WORTH_SELDOM && now.duration_since(in_force.at) >= REST_SELDOM
                        } else {
                            ratio > WORTH
                        }
                    }
                    (old, new) => old != new,
                };
                if !worth {
                    continue;
                }
            }
            self.in_force.insert(key, InForce { change: change.clone(), at: now, stands });
            changes.push(change);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use evenkeel_actuate::{Applied, ChangeOutcome, SetReport, Verdict};
    use evenkeel_base::{GroupRef, Plan, PromiseState};
    use evenkeel_policy::guarantee::Reservation;

    use super::super::layout::Layout;
    use super::super::state::GuaranteeState;
    use super::super::{Guarantee, Promises, Source};
    use super::*;
    use crate::Scope;
    use crate::component::Component;
    use crate::config::Config;
    use crate::governor::place::Counted;

    fn weight(raw: u64) -> Change {
        let group = GroupRef { path: "/kubepods/burstable".into(), v2: false };
        Change { target: Target::Group(group), to: Setting::Weight(raw), why: String::new() }
    }

    /// What came of a weight that was there when another was written.
    fn written(from: u64, to: u64) -> SetReport {
        let change = weight(to);
        let verdict = match from == to {
            true => Verdict::Unchanged,
            false => Verdict::Applied(Applied {
                from: Setting::Weight(from),
                now: Setting::Weight(to),
                first: false,
            }),
        };
        let outcome = ChangeOutcome { knob: change.knob(), target: change.target, to: change.to, verdict };
        SetReport { changes: vec![outcome], ..SetReport::default() }
    }

    #[test]
    fn a_weight_that_another_manager_writes_too_follows_seldom() {
        let start = Instant::now();
        let after = |s: u64| start + Duration::from_secs(s);
        for wanted in [520, 540] {
            let mut keeper = Keeper::default();
            assert_eq!(keeper.differing(vec![weight(500)], start), [weight(500)]);
            keeper.learn(&written(100, 500), start);
            // A value that still stands is nobody's doing, and small changes are written.
            keeper.learn(&written(500, 500), after(1));
            assert_eq!(keeper.differing(vec![weight(520)], after(1)), [weight(520)]);
            keeper.learn(&written(500, 520), after(1));
            assert!(keeper.take_notes().is_empty());

            // It had to be written again, the same or a step further: from here on only what is worth it, and not at once.
            keeper.differing(vec![weight(wanted)], after(60));
            keeper.learn(&written(100, wanted), after(60));
            assert_eq!(keeper.differing(vec![weight(560)], after(61)), []);
            assert_eq!(keeper.differing(vec![weight(700)], after(64)), []);
            assert_eq!(keeper.differing(vec![weight(700)], after(65)), [weight(700)]);
            keeper.learn(&written(wanted, 700), after(65));

            // Said once.
            keeper.learn(&written(120, 700), after(120));
            // Met in the midst of a write, it is answered at once, and no step follows.
            let mut met = written(700, 720);
            met.changes[0].verdict = Verdict::Conflict(Setting::Weight(130));
            keeper.learn(&met, after(130));
            assert_eq!(keeper.differing(vec![weight(720)], after(130)), [weight(720)]);
            keeper.learn(&written(130, 720), after(130));
            assert_eq!(keeper.differing(vec![weight(900)], after(131)), []);
            let mut notes = keeper.take_notes();
            notes.retain(|note| !note.contains("could not be set"));
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(
                notes[0].contains("somebody else set weight of") && notes[0].contains("/kubepods/burstable"),
                "{notes:?}"
            );
        }
    }

    /// A pod that ends may leave a setting that nobody wants any more: then everything is set, and that answers the kubelet.
    #[test]
    fn a_weight_that_is_answered_by_setting_everything_follows_seldom_too() {
        let (mut promises, start) = (Promises::new(&Config::default(), false), Instant::now());
        promises.keeper.differing(vec![weight(500)], start);
        promises.learn(&Plan::default(), &written(100, 500));
        promises.learn(&Plan::default(), &written(130, 500));
        assert_eq!(promises.keeper.differing(vec![weight(900)], start + Duration::from_millis(100)), []);
    }

    #[test]
    fn what_is_found_in_a_cgroup_that_was_made_again_is_nobodys_doing() {
        let (mut keeper, start) = (Keeper::default(), Instant::now());
        for to in [500, 540] {
            let mut report = written(100, to);
            if let Verdict::Applied(applied) = &mut report.changes[0].verdict {
                applied.first = true;
            }
            keeper.differing(vec![weight(to)], start);
            keeper.learn(&report, start);
        }
        assert!(keeper.take_notes().is_empty());
        assert_eq!(keeper.differing(vec![weight(560)], start), [weight(560)]);
    }

    #[test]
    fn a_weight_that_is_met_in_the_midst_of_its_first_write_follows_seldom_too() {
        let (mut keeper, start) = (Keeper::default(), Instant::now());
        keeper.differing(vec![weight(500)], start);
        let mut met = written(100, 500);
        met.changes[0].verdict = Verdict::Conflict(Setting::Weight(130));
        keeper.learn(&met, start);
        assert_eq!(keeper.differing(vec![weight(500)], start), [weight(500)]);
        keeper.learn(&written(130, 500), start);
        assert_eq!(keeper.differing(vec![weight(900)], start + Duration::from_secs(1)), []);
    }

    /// 40 % for a cgroup in which this task is.
    fn promised(id: TaskId) -> Keeper {
        let promise = Reservation { cpu: Some("40%".parse().unwrap()), ..Reservation::default() };
        let stated = Guarantee {
            name: "cgroup:/build".into(),
            scope: Scope::parse(&["cgroup:/build"]).unwrap(),
            promise,
            source: Source::Config,
        };
        let mut guarantee = GuaranteeState::new(stated);
        (guarantee.pct, guarantee.tasks) = (Some(40.0), 1);
        let layout = Layout { owner: BTreeMap::from([(id, 0)]), ..Layout::default() };
        let mut keeper = Keeper::default();
        (keeper.guarantees, keeper.layout) = (vec![guarantee], layout);
        keeper
    }

    /// One more than can be followed starves: nothing is known of it.
    #[test]
    fn who_is_not_followed_is_not_said_to_have_wanted_nothing() {
        let me = std::process::id();
        let own = TaskId { tgid: me, tid: me, start_time: 0 };
        let mut keeper = promised(own);
        keeper.correction.counters.follow_at_most(&BTreeSet::from([own]), 0);
        keeper.account(1.0, &HashMap::new());
        let status = &keeper.statuses()[0];
        assert_eq!((status.state, status.waited_pct), (PromiseState::Unknown, None), "{}", status.why);
        // One that ended meanwhile wants nothing any more.
        keeper.correction.counters.follow(&BTreeSet::new());
        keeper.account(1.0, &HashMap::new());
        assert_eq!(keeper.statuses()[0].state, PromiseState::Kept);
    }

    /// Without a history nothing tells what was more than a day ago.
    #[test]
    fn minutes_of_a_day_are_not_those_of_a_week() {
        let id = TaskId { tgid: 7, tid: 7, start_time: 1 };
        let mut keeper = promised(id);
        let starved = HashMap::from([(id, Ticked { waited_s: 60.0, ..Ticked::default() })]);
        keeper.account(60.0, &starved);
        assert_eq!(keeper.broken_s_of_a_day("cgroup:/build"), Some(60.0));
        keeper.account(86_400.0, &HashMap::new());
        assert_eq!(keeper.broken_s_of_a_day("cgroup:/build"), None);
    }

    /// A build: `make` hardly does anything, and its compilers are gone before anybody looks.
    #[test]
    fn what_short_lived_processes_got_is_got() {
        let dir = tempfile::tempdir().unwrap();
        let used =
            |ms: u64| fs::write(dir.path().join("cpu.stat"), format!("usage_usec {}\n", 1000 * ms)).unwrap();
        used(500);
        let counted = |_: &str| Counted { dir: dir.path().to_owned(), usage: None };
        let id = TaskId { tgid: 7, tid: 7, start_time: 1 };
        let mut usage = Usage::default();
        usage.follow(vec!["/build".into()], counted);
        let mut keeper = promised(id);
        keeper.usage = vec![usage];
        let make = HashMap::from([(id, Ticked { ran_s: 0.01, waited_s: 0.6, ..Ticked::default() })]);
        let got_pct = |keeper: &mut Keeper| {
            keeper.account(1.0, &make);
            keeper.statuses()[0].got_pct
        };
        assert_eq!(got_pct(&mut keeper), Some(1.0), "the first reading has none before it");
        used(900);
        assert_eq!(got_pct(&mut keeper), Some(40.0));
        // Of cgroups that are others now nothing is known yet.
        keeper.usage[0].follow(vec!["/other".into()], counted);
        assert_eq!(got_pct(&mut keeper), Some(1.0));
        fs::remove_file(dir.path().join("cpu.stat")).unwrap();
        assert_eq!((got_pct(&mut keeper), keeper.usage[0].read()), (Some(1.0), None));
    }
}
