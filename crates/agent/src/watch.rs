//! The loop itself: decide, then watch on: drift, new and ended tasks, hotplug, and whether what was kept still helps.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use evenkeel_actuate::{ChangeOutcome, SetReport, Verdict};
use evenkeel_base::{Change, CpuSet, Observation, Plan, Target};
use evenkeel_observe::Detail;
use evenkeel_policy::monitor::Arm;
use evenkeel_policy::placement::is_uneven;

use crate::agent::Agent;
use crate::error::AgentError;
use crate::events::{Event, Watcher};
use crate::proposals::{pins, tasks_of};
use crate::scheduler;
use crate::trial::NoTrial;

/// A scope's load has drifted when it differs by this ratio from what the settings were chosen for ...
const LOAD_DRIFT: f64 = 0.3;
/// ... or when tasks the settings do not know carry this share of it.
const STRANGERS: f64 = 0.2;
/// Drift must last this many observations: work comes and goes.
const LASTING: u32 = 3;
/// Least time between two tests that protected scopes ask for.
const REST: Duration = Duration::from_secs(60);
/// The same where the same settings came out time and again.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// Why settings of a cgroup go.
const OTHERS_CAME: &str = "others are in a cgroup of background work";

/// Why it is decided again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drift {
    Load,
    Strangers,
    Uneven,
    TasksWait,
    ServicesWait,
    /// After a trial in vain.
    ServicesStillWait,
}

impl Drift {
    fn why(self) -> &'static str {
        match self {
            Self::Load => "the load has changed",
            Self::Strangers => "tasks that the settings do not know carry much of the load",
            Self::Uneven => "CPUs are unevenly busy next to pinned tasks",
            Self::TasksWait => "tasks wait now",
            Self::ServicesWait => "services wait too long",
            Self::ServicesStillWait => "services still wait too long",
        }
    }
}

/// What the settings in force were chosen for.
#[derive(Debug)]
struct Basis {
    /// `None` until a window could be measured: from nothing known, nothing differs.
    host: Option<BasisHost>,
    idle: bool,
    in_vain: Option<InVain>,
}

/// Trials that kept nothing, one after the other.
#[derive(Debug, Clone, PartialEq)]
struct InVain {
    /// When the last of them ended.
    at: Instant,
    /// Loads that they were held at, percent of one CPU.
    loads: BTreeSet<u32>,
}

impl InVain {
    /// They were held at this load, too.
    fn held_at(mut self, load_pct: f64) -> Self {
        self.loads.insert(load_pct.round() as u32);
        self
    }

    /// Whether another may be held. What work gets of a full host changes all the time, and a trial costs the services: only a load
    /// that differs from each that was tried shortens their patience.
    fn is_over(&self, load_pct: f64, patience: Duration) -> bool {
        self.at.elapsed() >= if self.is_new(load_pct) { REST } else { patience }
    }

    fn is_new(&self, load_pct: f64) -> bool {
        self.loads.iter().all(|tried| drifted(f64::from(*tried), load_pct))
    }
}

impl Basis {
    fn has_drifted_to(&self, load_pct: f64) -> bool {
        self.host.as_ref().is_some_and(|host| drifted(host.load_pct, load_pct))
    }
}

fn drifted(from_pct: f64, to_pct: f64) -> bool {
    (to_pct - from_pct).abs() > LOAD_DRIFT * from_pct.max(10.0)
}

/// The patience after a trial that came out as the one before.
fn longer(patience: Duration) -> Duration {
    (2 * patience).min(LONGEST_REST)
}

/// Whom a plan sets something of that one before did not. Each may have several settings; those of the others may be written again, and
/// what components want with them.
fn newcomers(before: &Plan, now: &Plan, report: &SetReport) -> usize {
    let is_of = |plan: &Plan, target: &Target| plan.changes.iter().any(|change| change.target == *target);
    let is_new = |change: &&ChangeOutcome| match &change.verdict {
        Verdict::Applied(applied) => {
            is_of(now, &change.target) && (applied.first || !is_of(before, &change.target))
        }
        _ => false,
    };
    report.changes.iter().filter(is_new).map(|change| &change.target).collect::<BTreeSet<_>>().len()
}

/// The scope's load, percent of one CPU, and the CPUs that were online.
#[derive(Debug, Clone)]
struct BasisHost {
    load_pct: f64,
    online: CpuSet,
}

impl Agent {
    /// Runs the loop until the time is over or the watcher wants to stop; without an end if `time` is `None`. What was
    /// changed stays in force until [`Agent::close`].
    pub fn run(&mut self, time: Option<Duration>, watcher: &mut dyn Watcher) -> Result<(), AgentError> {
        let end = time.map(|time| Instant::now() + time);
        let over = |watcher: &dyn Watcher| watcher.stopping() || end.is_some_and(|end| Instant::now() >= end);
        if self.config.guarantees.only {
            return self.keep_promises(end, watcher);
        }
        // A decision may not outlast the run.
        if let Some(time) = time {
            self.config.decide_within = self.config.decide_within.min(time.mul_f64(0.7));
            self.config.closer_look =
                self.config.closer_look.min(time.saturating_sub(self.config.decide_within).mul_f64(0.7));
        }
        self.decisions.ends = end;
        let mut basis = match self.basis_taken_over() {
            Some(basis) => basis,
            None if self.kept.is_some() => self.basis(false, watcher)?,
            None => self.decide_and_tell(watcher)?,
        };
        if self.config.once {
            return self.note_end();
        }
        let mut drifting = 0;
        let mut others = false;
        let mut patience = REST;
        let mut before = self.begin_window()?;
        let mut noted: Option<Instant> = None;
        while !over(watcher) {
            let turn = self.turn();
            let nap = turn.map_or(self.config.interval, |turn| {
                if turn.step.measure || turn.settles {
                    turn.left
                } else {
                    turn.left.min(self.config.interval)
                }
            });
            self.components.latency_slos.compare(turn.is_some_and(|turn| turn.step.measure));
            let nap = end.map_or(nap, |end| nap.min(end.saturating_duration_since(Instant::now())));
            if self.work(nap, watcher) {
                break;
            }
            if turn.is_some_and(|turn| turn.settles) {
                self.end_step(None);
                before = self.begin_step()?;
                continue;
            }
            let after = self.sample()?;
            let measured = self.measured(&before, &after, &Detail::None, watcher)?;
            before = after;
            let due = self.turn().is_some_and(|turn| turn.left.is_zero());
            let wanted = turn.is_some_and(|turn| turn.step.measure).then_some(&measured);
            let leave = if due { self.end_step(wanted) } else { None };
            let held_out = turn.is_some_and(|turn| turn.step.arm == Arm::Baseline);
            self.log.recorder.add_sample(&before, Some(&measured.observation));
            self.tell_notes(watcher);
            let latency_slos = &mut self.components.latency_slos;
            if !held_out {
                latency_slos.watched(&measured.protected, measured.summary.seconds);
            } else if let Some(span) = measured.span {
                latency_slos.held_out(span);
            }
            if noted.is_none_or(|noted| noted.elapsed() > Duration::from_secs(10)) {
                // What components want changes between decisions.
                if !held_out {
                    self.note_settings(None, &measured.observation);
                }
                self.note_cost();
                noted = Some(Instant::now());
            }
            let why = leave
                .map(|leave| self.describe(&leave, &measured))
                .or_else(|| self.lost_scheduler())
                .or_else(|| scheduler::void_limit(&self.plan, &measured.observation));
            if let Some(why) = why {
                self.take_back(why, &measured, watcher);
                // What else could help is decided again.
                basis = self.decide_and_tell(watcher)?;
                (patience, drifting) = (REST, 0);
                before = self.begin_window()?;
                continue;
            }
            if held_out {
                before = self.begin_step()?;
                continue;
            }
            if self.look_at_units(&before, &measured.observation, watcher)? {
                patience = REST;
            }
            // First: what covered others, too, may cover a part of it from now on.
            self.take_in_newcomers(&measured.observation, watcher);
            if let Some(plan) = self.without_others(&measured.observation, &mut others) {
                if plan.changes.is_empty() {
                    let name = self.plan.name.clone();
                    self.take_back(OTHERS_CAME.to_owned(), &measured, watcher);
                    // Nothing speaks against it elsewhere.
                    self.decisions.barred.remove(&name);
                    basis = self.decide_and_tell(watcher)?;
                    (patience, drifting) = (REST, 0);
                    before = self.begin_window()?;
                    continue;
                }
                self.put_in_place(plan);
                watcher
                    .event(&Event::Note(&format!("{}: not there any more, {OTHERS_CAME}", self.plan.name)));
            }
            if basis.host.is_none() {
                basis.host = Some(self.basis_host(&measured.observation));
            }
            let latency_slos = &mut self.components.latency_slos;
            let objection = self.kept.is_some().then(|| latency_slos.objects(patience));
            let drift = self.drift(&basis, &measured.observation, patience);
            drifting = if drift.is_some() { drifting + 1 } else { 0 };
            let online = &measured.observation.topology.online;
            let hotplug = basis.host.as_ref().is_some_and(|host| host.online != *online);
            let drift = drift.filter(|_| drifting >= LASTING && !hotplug);
            let why = if hotplug { Some("CPUs came or went") } else { drift.map(Drift::why) };
            if let Some(why) = why {
                let again = drift == Some(Drift::ServicesStillWait);
                watcher.event(&Event::Note(&format!("{why}: deciding again")));
                self.stop_block();
                if !again {
                    self.decisions.barred.clear();
                }
                let last = basis.in_vain.take_if(|_| !hotplug);
                let load_pct = self.scope_load(&measured.observation);
                basis = self.decide_after(last.clone(), Some(load_pct), watcher)?;
                patience = match &basis.in_vain {
                    Some(_) if basis.in_vain == last => patience,
                    Some(_) if again => longer(patience),
                    _ => REST,
                };
                drifting = 0;
                before = self.begin_window()?;
            } else if let Some(why) = objection.flatten() {
                watcher.event(&Event::Note(&why));
                self.stop_block();
                if self.has_background() {
                    // A trial costs the services: what does not help is not repeated for ever.
                    let before = self.plan.clone();
                    basis = self.decide_and_tell(watcher)?;
                    patience = if self.plan == before { longer(patience) } else { REST };
                } else {
                    self.recheck(watcher)?;
                    // Settings that fail are gone already; what else could help is then decided again.
                    if self.plan.is_default() {
                        basis = self.decide_and_tell(watcher)?;
                    }
                }
                before = self.begin_window()?;
            } else if due {
                before = self.begin_step()?;
            }
        }
        self.stop_block();
        self.tell_moves(watcher);
        self.note_end()
    }

    /// The loop when nothing but promises is to be kept.
    fn keep_promises(&mut self, end: Option<Instant>, watcher: &mut dyn Watcher) -> Result<(), AgentError> {
        let mut before = self.sample()?;
        let mut noted: Option<Instant> = None;
        while !watcher.stopping() && end.is_none_or(|end| Instant::now() < end) {
            let nap = end.map_or(self.config.interval, |end| {
                self.config.interval.min(end.saturating_duration_since(Instant::now()))
            });
            if self.work(nap, watcher) {
                break;
            }
            let after = self.sample()?;
            let measured = self.measured(&before, &after, &Detail::None, watcher)?;
            self.log.recorder.add_sample(&after, Some(&measured.observation));
            self.components.latency_slos.watched(&measured.protected, measured.summary.seconds);
            if noted.is_none_or(|noted| noted.elapsed() > Duration::from_secs(5)) {
                self.note_settings(None, &measured.observation);
                noted = Some(Instant::now());
            }
            before = after;
            self.tell_notes(watcher);
        }
        self.note_end()
    }

    /// What is in force at the end, before it goes back: components may have changed it since it was noted.
    fn note_end(&mut self) -> Result<(), AgentError> {
        let sample = self.sample()?;
        let observation = self.observer.observe(&sample, &sample, &Detail::None)?;
        self.note_effect();
        self.note_settings(None, &observation);
        Ok(())
    }

    fn decide_and_tell(&mut self, watcher: &mut dyn Watcher) -> Result<Basis, AgentError> {
        self.decide_after(None, None, watcher)
    }

    /// Decides, after these trials in vain, because of this load: work that is the reason may end before the trial does.
    fn decide_after(
        &mut self,
        before: Option<InVain>,
        because_of_pct: Option<f64>,
        watcher: &mut dyn Watcher,
    ) -> Result<Basis, AgentError> {
        let outcome = self.decide(watcher)?;
        let ended = Instant::now();
        let idle = match &outcome {
            Ok(_) => false,
            Err(no) => {
                watcher.event(&Event::Note(&no.why()));
                // Where no lever can act, waiting is no reason to look again; a change of load is.
                matches!(
                    no,
                    NoTrial::Idle(_)
                        | NoTrial::Calm(_)
                        | NoTrial::Served(..)
                        | NoTrial::Kept(_)
                        | NoTrial::Awaited(_)
                )
            }
        };
        let mut basis = self.basis(idle, watcher)?;
        if outcome.is_ok() && self.plan.is_default() {
            let load_pct = basis.host.as_ref().map_or(0.0, |host| host.load_pct);
            let loads = before.map_or_else(BTreeSet::new, |before| before.loads);
            let held_at = because_of_pct.into_iter().chain([load_pct]);
            basis.in_vain = Some(held_at.fold(InVain { at: ended, loads }, InVain::held_at));
        } else if idle {
            // A load that comes and goes is no other load each time.
            basis.in_vain = before;
        } else if matches!(outcome, Err(NoTrial::NoTask(_))) {
            // Nor is one that is gone; what its absence leaves is not decided again at once.
            basis.in_vain = before.map(|before| InVain { at: ended, ..before });
        }
        Ok(basis)
    }

    /// What the loop compares with later: the scope under the settings now in force.
    fn basis(&mut self, idle: bool, watcher: &mut dyn Watcher) -> Result<Basis, AgentError> {
        let measured = self.measure(Duration::from_secs(1), watcher)?;
        let host = measured.map(|measured| self.basis_host(&measured.observation));
        Ok(Basis { host, idle, in_vain: None })
    }

    /// What a decision was made for, which a run that takes over is told, too.
    fn basis_host(&mut self, observation: &Observation) -> BasisHost {
        let host =
            BasisHost { load_pct: self.scope_load(observation), online: observation.topology.online.clone() };
        self.remember_basis(host.load_pct, &host.online);
        host
    }

    /// What the settings that were taken over were chosen for, if the run before had come so far as to know.
    fn basis_taken_over(&self) -> Option<Basis> {
        let proved = self.remembered.kept.as_ref().filter(|_| self.kept.is_some())?;
        let (load_pct, online) = proved.basis.clone()?;
        Some(Basis { host: Some(BasisHost { load_pct, online }), idle: false, in_vain: None })
    }

    /// Whether a decision is due for the services: while nothing is in force, when one waits too long, after trials in vain not
    /// before so long; else when much of the background work is not covered. That there is more or less of that is no reason: a
    /// trial costs the services.
    fn services_need(&self, basis: &Basis, observation: &Observation, patience: Duration) -> Option<Drift> {
        let load = self.scope_load(observation);
        if self.plan.is_default() {
            let why = match &basis.in_vain {
                Some(in_vain) if !in_vain.is_over(load, patience) => return None,
                Some(in_vain) if !in_vain.is_new(load) => Drift::ServicesStillWait,
                _ if basis.has_drifted_to(load) => Drift::Load,
                _ if basis.idle => Drift::ServicesWait,
                _ => return None,
            };
            let waits = self.components.latency_slos.lately();
            let could_help = load > 5.0 || self.holds_back_services(observation);
            let wait = could_help && waits.is_some_and(|waits| self.served(&waits).is_none());
            return wait.then_some(why);
        }
        let covers_all = |change: &Change| matches!(change.target, Target::Group(_) | Target::Host);
        let strange = self.strangers_pct(observation) > STRANGERS * load.max(5.0);
        (strange && !self.plan.changes.iter().any(covers_all)).then_some(Drift::Strangers)
    }

    /// CPU of the scope's tasks that the settings in force do not know.
    fn strangers_pct(&self, observation: &Observation) -> f64 {
        let known = tasks_of(&self.plan);
        let promised = self.components.promises.keeper();
        let strangers = observation.tasks.iter().filter(|t| {
            self.config.scope.has(t, observation) && !known.contains(&t.id) && !promised.governs(t.id)
        });
        strangers.map(|t| t.cpu_pct).sum()
    }

    /// Cgroups of background work that came since the decision get the same settings.
    fn take_in_newcomers(&mut self, observation: &Observation, watcher: &mut dyn Watcher) {
        let Some(plan) = self.renewed(observation) else { return };
        let before = self.plan.clone();
        let report = self.put_in_place(plan);
        let more = newcomers(&before, &self.plan, &report);
        if more > 0 {
            watcher.event(&Event::Note(&format!("{more} more of background work: {}", self.plan.name)));
        }
    }

    /// The settings in force are for these cgroups from now on.
    fn put_in_place(&mut self, plan: Plan) -> SetReport {
        let report = self.set(&plan);
        if let Some(proved) = &mut self.remembered.kept {
            proved.plan.clone_from(&plan);
        }
        if let Some(kept) = &mut self.kept {
            kept.extend(plan);
        }
        self.remember();
        report
    }

    fn scope_load(&self, observation: &Observation) -> f64 {
        observation.tasks.iter().filter(|t| self.config.scope.has(t, observation)).map(|t| t.cpu_pct).sum()
    }

    fn drift(&self, basis: &Basis, observation: &Observation, patience: Duration) -> Option<Drift> {
        if self.has_background() {
            return self.services_need(basis, observation, patience);
        }
        let load = self.scope_load(observation);
        // Where there was nothing to do, only waiting can give something to do.
        let mine = observation.tasks.iter().filter(|t| self.config.scope.has(t, observation));
        let waits: Vec<f64> = mine.filter_map(|t| t.wait_pct).collect();
        if basis.idle && !waits.is_empty() {
            return (load > 5.0 && waits.iter().sum::<f64>() > 0.05 * load).then_some(Drift::TasksWait);
        }
        if basis.has_drifted_to(load) {
            return Some(Drift::Load);
        }
        if !tasks_of(&self.plan).is_empty() && self.strangers_pct(observation) > STRANGERS * load.max(5.0) {
            return Some(Drift::Strangers);
        }
        (pins(&self.plan) && is_uneven(observation)).then_some(Drift::Uneven)
    }
}

#[cfg(test)]
mod tests;
