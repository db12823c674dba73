//! The scope's cgroups that lose their turn: the eyes and the hand of [`evenkeel_policy::turns`].
//!
//! Ten times a second the counters of the scope's tasks are read; once a second it is looked which cgroups hold them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use evenkeel_actuate::{SetReport, Verdict};
use evenkeel_base::observation::CpuView;
use evenkeel_base::{
    Change, CpuQuota, CpuSet, GroupRef, GroupView, Knob, Limit, Observation, Plan, Setting, Target, TaskId,
    TaskView,
};
use evenkeel_linux::sys;
use evenkeel_policy::turns::{Rivals, Step, TURNS, Tick, Turns};

use crate::component::{Component, Next, Seen};
use crate::config::Config;
use crate::controls::Controls;
use crate::guarantee::counters::Counters;
use crate::stated::Guarantee;

/// Period of a quota, microseconds: who waits has its turn that often.
const PERIOD_USEC: u64 = 10_000;
/// Quotas are multiples of this, microseconds.
const STEP_USEC: u64 = 100;
/// Of a kernel that does not say what slice a task has.
const USUAL_SLICE_NS: u64 = 3_000_000;
/// Busy or stolen: from here on a CPU is full, percent.
const FULL_PCT: f64 = 90.0;
/// Pairs that are told of at most: cgroups come and go.
const MOST_TOLD: usize = 200;

/// A cgroup of the scope's own.
#[derive(Debug, Clone)]
struct Group {
    target: GroupRef,
    tasks: Vec<TaskId>,
    /// Cgroups on its path by index, the root last, with their weights.
    path: Vec<(u32, Option<u64>)>,
    /// CPUs that its tasks were last on; empty where that is not known.
    cpus: CpuSet,
    /// What it is promised, percent of one CPU.
    promised_pct: f64,
    /// As found, percent of one CPU.
    quota_pct: Option<f64>,
}

impl Group {
    /// How many times as much it weighs as `other` where they compete; `None` where they do not.
    fn heavier_than(&self, other: &Self) -> Option<f64> {
        let weight = |path: &[(u32, Option<u64>)], common: u32| {
            path.iter().take_while(|(index, _)| *index != common).last().and_then(|(_, weight)| *weight)
        };
        let mut indices = self.path.iter().map(|(index, _)| *index);
        let common = indices.find(|index| other.path.iter().any(|(i, _)| i == index))?;
        let (own, others) = (weight(&self.path, common)?, weight(&other.path, common)?);
        let meet = self.cpus.is_empty() || other.cpus.is_empty() || self.cpus.intersects(&other.cpus);
        meet.then_some(own as f64 / others.max(1) as f64)
    }

    /// The longest slice of its tasks of a class that is to have a turn, seconds; `None` where it has none.
    fn longest_slice_s(&self, default_ns: Option<u64>) -> Option<f64> {
        let attrs = self.tasks.iter().filter_map(|id| sys::sched_getattr(id.tid).ok()?.decode(default_ns));
        let slices_ns = attrs
            .filter(|attr| attr.policy.has_nice())
            .map(|attr| attr.slice_ns.or(default_ns).unwrap_or(USUAL_SLICE_NS));
        slices_ns.max().map(|ns| ns as f64 / 1e9)
    }
}

/// Whether some CPU had hardly an idle moment in the window.
fn has_full_cpu(cpus: &[CpuView]) -> bool {
    cpus.iter().any(|cpu| cpu.busy_pct + cpu.steal_pct.unwrap_or(0.0) >= FULL_PCT)
}

/// Sees to it that the scope's cgroups have their turn.
#[derive(Debug, Default)]
pub(crate) struct LostTurns {
    promises: Vec<Guarantee>,
    /// Of the last window.
    default_slice_ns: Option<u64>,
    turns: Turns,
    groups: BTreeMap<String, Group>,
    counters: Counters,
    ticked: Option<Instant>,
    released: bool,
    told: BTreeSet<(String, String)>,
    notes: Vec<String>,
}

impl LostTurns {
    /// `None` where nothing may be changed, other levers were asked for alone, or waiting is meant: background work, a limit, tests
    /// of the same against the same.
    pub fn new(config: &Config) -> Option<Self> {
        let asked_for = config.levers.is_empty() || config.levers.iter().any(|name| name == TURNS);
        let wanted = asked_for
            && config.apply
            && !config.as_found
            && config.background.is_none()
            && config.limit.is_none();
        wanted.then(|| Self { promises: config.guarantees.stated.clone(), ..Self::default() })
    }

    fn look(&mut self, observation: &Observation, controls: &Controls) {
        self.groups.clear();
        // Where each CPU idles now and then none loses its turn, and reading thousands of tasks ten times a second is not free.
        if self.turns.caps().next().is_none() && !has_full_cpu(&observation.host.per_cpu) {
            self.counters.follow(&BTreeSet::new());
            return;
        }
        let mut tasks: HashMap<u32, Vec<&TaskView>> = HashMap::new();
        for task in observation.tasks.iter().filter(|task| !task.kernel_thread) {
            if let Some(group) = task.group {
                tasks.entry(group).or_default().push(task);
            }
        }
        let weight =
            |index: u32| (index, observation.groups.get(index as usize).and_then(|group| group.load_weight));
        for (index, members) in tasks {
            let Some(view) = observation.groups.get(index as usize) else { continue };
            let target = view.reference();
            if view.parent.is_none() || !controls.bounds().has_group(&target) {
                continue;
            }
            // As found: one of ours may have gone within this window.
            let found = |group: &GroupView| controls.found_quota(group).or(group.quota)?.pct();
            // Who is throttled by somebody else's quota is ready and does not run, too.
            let mut path =
                observation.path_to_root(index).filter_map(|at| observation.groups.get(at as usize));
            if path.any(|group| group.throttled_pct.is_some_and(|pct| pct > 0.0) && found(group).is_some()) {
                continue;
            }
            let promises =
                self.promises.iter().filter(|p| members.iter().any(|t| p.scope.has(t, observation)));
            let promised_pct =
                promises.filter_map(|p| Some(p.promise.cpu?.pct(observation.host.cpus))).sum::<f64>();
            self.groups.insert(
                view.path.clone(),
                Group {
                    target,
                    tasks: members.iter().map(|task| task.id).collect(),
                    path: observation.path_to_root(index).map(weight).collect(),
                    cpus: members.iter().filter_map(|task| task.cpu).collect(),
                    promised_pct,
                    quota_pct: found(view),
                },
            );
        }
        // Alone it can take no task's turn.
        if self.groups.len() < 2 {
            self.groups.clear();
            self.released |= self.turns.caps().next().is_some();
            self.turns = Turns::default();
        }
        self.counters.follow(&self.groups.values().flat_map(|group| group.tasks.iter().copied()).collect());
    }

    fn count(&mut self, now: Instant) -> Vec<Step> {
        let Some((dt, counted)) = self.counters.read(now) else { return Vec::new() };
        if dt <= 0.0 {
            return Vec::new();
        }
        let ticks: BTreeMap<String, Tick> = self
            .groups
            .iter()
            .map(|(path, group)| {
                let mut tick = Tick::default();
                for change in group.tasks.iter().filter_map(|id| counted.get(id)) {
                    tick.ran_s += change.ran_s;
                    tick.waited_s += change.waited_s;
                }
                (path.clone(), tick)
            })
            .collect();
        let (groups, default_ns) = (&self.groups, self.default_slice_ns);
        let rivals = |taker: &str, victim: &str| {
            let (taker, victim) = groups.get(taker).zip(groups.get(victim))?;
            let times = taker.heavier_than(victim)?;
            let slice_s = taker.longest_slice_s(default_ns)?.max(victim.longest_slice_s(default_ns)?);
            Some(Rivals { times, slice_s })
        };
        self.turns.tick(dt, &ticks, rivals, |path| groups.get(path).map_or(0.0, |g| g.promised_pct / 100.0))
    }

    fn change(&self, taker: &str, cpus: f64, victim: &str) -> Option<Change> {
        let group = self.groups.get(taker)?;
        let usec = (cpus * PERIOD_USEC as f64) as u64 / STEP_USEC * STEP_USEC;
        let quota_usec = Limit::Value(usec.max(CpuQuota::LEAST_USEC));
        Some(Change {
            target: Target::Group(group.target.clone()),
            to: Setting::Quota(CpuQuota { quota_usec, period_usec: PERIOD_USEC, burst_usec: 0 }),
            why: format!("it had the turn of {victim}, which got nothing"),
        })
    }

    fn note_refused(&mut self, report: &SetReport) {
        for outcome in &report.changes {
            let Target::Group(group) = &outcome.target else { continue };
            let failed = !matches!(outcome.verdict, Verdict::Applied(_) | Verdict::Unchanged);
            if outcome.knob == Knob::Quota && failed {
                self.turns.refused(&group.path);
            }
        }
    }

    fn carry_out(&mut self, step: &Step, controls: &mut Controls) {
        match step {
            Step::Hold { taker, victim, cpus, used } => {
                // Never more than what was allowed before.
                let room =
                    self.groups.get(taker).is_some_and(|g| g.quota_pct.is_none_or(|pct| 100.0 * cpus < pct));
                let change = self.change(taker, *cpus, victim).filter(|_| room);
                let report = change.map(|change| controls.amend(&[change])).unwrap_or_default();
                self.note_refused(&report);
                let held = self.turns.caps().any(|(path, ..)| path == taker) && !report.changes.is_empty();
                if !held {
                    self.turns.refused(taker);
                } else if self.told.len() < MOST_TOLD && self.told.insert((taker.clone(), victim.clone())) {
                    self.notes.push(format!(
                        "turns: {victim} was ready and got nothing while {taker} used {:.0} % of a CPU; {taker} is held to {:.0} %, \
                         so that {victim} has its turn",
                        100.0 * used,
                        100.0 * cpus
                    ));
                }
            }
            Step::Release { .. } => self.released = true,
            Step::GiveUp { taker, victim } => {
                self.released = true;
                self.notes.push(format!(
                    "turns: {victim} got nothing however {taker} was held back; its quota goes"
                ));
            }
        }
    }
}

impl Component for LostTurns {
    fn on_tick(&mut self, _late: Duration, controls: &mut Controls) {
        if self.groups.is_empty() {
            return;
        }
        let now = Instant::now();
        // Waits within a tick are no more than that: without them a moment's burst of ticks says nothing.
        if self.ticked.is_some_and(|then| now.duration_since(then) < crate::component::TICK / 2) {
            return;
        }
        self.ticked = Some(now);
        for step in self.count(now) {
            self.carry_out(&step, controls);
        }
    }

    fn on_window(&mut self, seen: Seen<'_>, controls: &mut Controls) -> Next {
        self.default_slice_ns = seen.default_slice_ns;
        if !controls.act() {
            return Next::Stays;
        }
        self.look(seen.observation, controls);
        if std::mem::take(&mut self.released) { Next::SetAll } else { Next::Stays }
    }

    fn changes(&self) -> Vec<Change> {
        self.turns.caps().filter_map(|(taker, cpus, victim)| self.change(taker, cpus, victim)).collect()
    }

    fn learn(&mut self, _plan: &Plan, report: &SetReport) {
        self.note_refused(report);
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(path: &[(u32, u64)], cpus: &[u32]) -> Group {
        Group {
            target: crate::testing::group("/g"),
            tasks: vec![],
            path: path.iter().map(|(index, weight)| (*index, Some(*weight))).chain([(0, None)]).collect(),
            cpus: cpus.iter().copied().collect(),
            promised_pct: 0.0,
            quota_pct: None,
        }
    }

    #[test]
    fn only_where_some_cpu_is_full_may_a_turn_be_lost() {
        let host = |loads: &[(f64, Option<f64>)]| {
            let cpus = loads.iter().zip(0..).map(|(&(busy_pct, steal_pct), cpu)| CpuView {
                cpu,
                busy_pct,
                steal_pct,
                irq_pct: None,
            });
            has_full_cpu(&cpus.collect::<Vec<_>>())
        };
        assert!(!host(&[(40.0, None), (80.0, Some(5.0))]));
        assert!(host(&[(5.0, None), (97.0, None)]));
        assert!(host(&[(5.0, None), (62.0, Some(35.0))]), "what is stolen is not idle");
    }

    #[test]
    fn slices_are_judged_by_the_default_of_the_moment() {
        let mut turns = LostTurns::default();
        let observation = crate::testing::observation(&[]);
        let scope = crate::Scope::parse(&["comm:^none$"]).unwrap();
        for default_slice_ns in [Some(2_800_000), Some(1_400_000)] {
            let seen = Seen { observation: &observation, scope: &scope, hierarchies: None, default_slice_ns };
            turns.on_window(seen, &mut Controls::none(false));
            assert_eq!(turns.default_slice_ns, default_slice_ns);
        }
    }

    /// Weights act between siblings: where two paths part.
    #[test]
    fn weights_are_compared_where_groups_compete() {
        let light = group(&[(3, 10), (1, 1024)], &[]);
        let heavy = group(&[(4, 100_000), (2, 2048)], &[0]);
        assert_eq!(heavy.heavier_than(&light), Some(2.0), "whatever is below");
        assert_eq!(light.heavier_than(&heavy), Some(0.5));
        assert_eq!(group(&[(5, 100), (1, 1024)], &[]).heavier_than(&light), Some(10.0));
        assert_eq!(group(&[(6, 1024)], &[1]).heavier_than(&heavy), None, "no CPU in common");
        // One that lies within the other has nothing to compare.
        let inner = group(&[(8, 1024), (1, 1024)], &[]);
        let outer = group(&[(1, 1024)], &[]);
        assert!(inner.heavier_than(&outer).is_none() && outer.heavier_than(&inner).is_none());
    }
}
