//! Carrying out a trial: candidates take turns, windows are measured, the winner is put in force.

use std::time::{Duration, Instant};

use evenkeel_base::run::{Act, Estimate, Predicted, Stage, StageName};
use evenkeel_base::stats;
use evenkeel_base::text::cut;
use evenkeel_base::{Histogram, Observation, Plan, Target};
use evenkeel_linux::sys::wall_ns;
use evenkeel_model::predict::Prediction;
use evenkeel_policy::levers::{self, Scene};
use evenkeel_policy::monitor::OnlineControl;
use evenkeel_policy::refine;
use evenkeel_policy::trial::{Decision, Pace, Part, Recorded, Trial, TrialRules};
use evenkeel_policy::window::Summary;
use evenkeel_store::TrialWindow;

use crate::agent::{Agent, Measured};
use crate::component::overruled;
use crate::error::AgentError;
use crate::events::{Event, Watcher};
use crate::kept::KeptChange;
use crate::predict::{MOST, hurts, is_always_tried, told, unpromising};
use crate::proposals::default_plan;
use crate::runq_latency::RunqLatency;
use crate::scheduler;
use crate::slo::{Pending, Span};

/// Windows are between these lengths, seconds: shorter ones see too little of a cycle, longer ones too few turns.
const WINDOW_S: (f64, f64) = (0.6, 2.0);
/// Cycles of a usual task that a window should hold.
const CYCLES: f64 = 8.0;
/// Time given to settings to take hold before a window, in cycles, and its limits in seconds.
const SETTLE_CYCLES: f64 = 1.0;
const SETTLE_S: (f64, f64) = (0.05, 0.3);
/// Waiting below this many seconds per second of work is as good as none: nothing to win.
const CALM: f64 = 0.02;
/// What a re-check may take, in multiples of what a trial usually takes.
const RECHECK_TIMES: f64 = 1.5;
/// How long the scope is studied.
const LOOK: Duration = Duration::from_secs(1);
/// The same where burst may help: who has a quota uses all of it in some seconds, and is not held back in others.
const LOOK_AT_QUOTA: Duration = Duration::from_secs(5);

/// Where services count: what is long for them is long in a short window, too, and while a window under the default lasts they
/// wait. That such windows differ more is made up for by their number.
const SERVICES_WINDOW_S: f64 = 0.4;
/// Where a quota holds services back, a window has so many of its periods, and as many pass before it as it may take until what came
/// in meanwhile is done; both at most so many seconds.
const PERIODS: (f64, f64) = (24.0, 2.0);
const SETTLE_PERIODS: (f64, f64) = (24.0, 2.0);
/// A closer look may take longer where turns do, at most so many times.
const LONGER: f64 = 3.0;

/// Lengths of a trial's parts, by how often the scope's tasks go to sleep, weighted by load.
fn pace_of(scene: &Scene<'_>) -> Pace {
    let mut weighted = 0.0;
    let mut weight = 0.0;
    for subject in &scene.tasks {
        let per_s = subject.task.voluntary_per_s.unwrap_or(0.0);
        let cycle = if per_s > 0.1 { 1.0 / per_s } else { 0.1 };
        weighted += subject.load_pct * cycle.min(1.0);
        weight += subject.load_pct;
    }
    let cycle = if weight > 0.0 { weighted / weight } else { 0.1 };
    let settle_s = (SETTLE_CYCLES * cycle).clamp(SETTLE_S.0, SETTLE_S.1);
    if scene.features.background {
        let period_s = levers::quota_period_usec(scene).map_or(0.0, |usec| usec as f64 / 1e6);
        let of = |(times, most): (f64, f64), least: f64| (times * period_s).min(most).max(least);
        Pace::new(of(PERIODS, SERVICES_WINDOW_S), of(SETTLE_PERIODS, settle_s)).for_services()
    } else {
        Pace::new((CYCLES * cycle).clamp(WINDOW_S.0, WINDOW_S.1), settle_s)
    }
}

/// Challengers there may be so that a trial usually fits into a time, of which `besides` are there in any case; at least one
/// more, at most [`MOST`].
fn challengers(pace: Pace, besides: usize, time: Duration) -> usize {
    let fits = |more: &usize| Trial::usual_s(besides + more, pace) <= time.as_secs_f64();
    (1..=MOST).rev().find(fits).unwrap_or(1)
}

/// Why no trial was held.
#[derive(Debug, Clone, PartialEq)]
pub enum NoTrial {
    /// Nobody of this scope who may be changed runs.
    Idle(String),
    /// Nobody waits worth mentioning.
    Calm(f64),
    /// Nobody belongs to a service yet.
    Awaited(String),
    /// The service that is delayed longest, and by how much, 99th percentile, ms: that is short enough.
    Served(String, f64),
    /// Every service keeps what it promises of its requests; one of them.
    Kept(String),
    /// No lever can act here.
    NoLever,
    /// Nor could one: nobody belongs to the background work, which is this scope.
    NoTask(String),
    /// The watcher wants to stop.
    Stopped,
}

impl NoTrial {
    pub fn why(&self) -> String {
        match self {
            Self::Idle(scope) | Self::NoTask(scope) => {
                format!("nothing to do: no task of the scope that may be changed is running ({scope})")
            }
            Self::Calm(wait) => format!(
                "nothing to do: tasks wait {:.1} ms per second of work, there is nothing to gain",
                wait * 1000.0
            ),
            Self::Awaited(names) => format!("nothing to do: no task belongs to {names} yet"),
            Self::Served(name, ms) => {
                format!(
                    "nothing to do: what comes to {name} is delayed {ms:.2} ms in the 99th percentile, which is short enough"
                )
            }
            Self::Kept(name) => format!("nothing to do: {name} keeps what it promises of its requests"),
            Self::NoLever => "nothing to do: no lever can act on these tasks".to_owned(),
            Self::Stopped => "stopped".to_owned(),
        }
    }
}

impl Agent {
    /// Studies the scope, lets every lever propose, holds a trial and puts the winner in force. The time for the whole
    /// is [`crate::Config::decide_within`], plus [`crate::Config::closer_look`] while a candidate is promising.
    pub fn decide(&mut self, watcher: &mut dyn Watcher) -> Result<Result<Decision, NoTrial>, AgentError> {
        self.components.latency_slos.compare(true);
        let outcome = self.decided(watcher);
        self.components.latency_slos.compare(false);
        outcome
    }

    /// Studies the scope as [`Agent::decide`] does before levers propose: for longer where burst may help. Also how long that was to
    /// take; `None` when it was cut short.
    pub fn look(&mut self, watcher: &mut dyn Watcher) -> Result<Option<(Measured, Duration)>, AgentError> {
        let Some(studied) = self.study(LOOK, watcher)? else { return Ok(None) };
        let found = self.found(studied.observation.clone());
        if !levers::may_burst(&self.scene(&found)) {
            return Ok(Some((studied, LOOK)));
        }
        let time = LOOK_AT_QUOTA.min(self.config.decide_within / 4);
        Ok(self.study(time, watcher)?.map(|studied| (studied, LOOK + time)))
    }

    fn decided(&mut self, watcher: &mut dyn Watcher) -> Result<Result<Decision, NoTrial>, AgentError> {
        let Some((studied, looked)) = self.look(watcher)? else { return Ok(Err(NoTrial::Stopped)) };
        let found = self.found(studied.observation);
        let seen = (studied.summary.clone(), studied.protected, studied.span);
        let scene = self.scene(&found);
        // A service's own quota may be what holds it back, whatever background work does.
        if scene.tasks.is_empty() && !scene.services.contains(&true) {
            return Ok(Err(NoTrial::Idle(self.scope_in_words())));
        }
        if self.has_background() {
            if self.plan.is_default()
                // Unknown is not short.
                && let Some(waits) = seen.1.iter().cloned().map(|waits| Some((waits?, seen.0.seconds))).collect::<Option<Vec<_>>>()
                && let Some(why) = self.served(&waits)
            {
                return Ok(Err(why));
            }
        } else if self.plan.is_default()
            && let Some(wait) = studied.summary.wait_per_ran().filter(|wait| *wait < CALM)
        {
            return Ok(Err(NoTrial::Calm(wait)));
        }
        let pace = pace_of(&scene);
        let mut candidates = vec![self.plan.clone()];
        if !self.plan.is_default() {
            candidates.push(default_plan());
        }
        self.start_puller(&found, watcher);
        // What is in force is the first of them: once more, it would share the error budget with itself.
        let is_new = |plan: &Plan| plan.changes != self.plan.changes || plan.pull != self.plan.pull;
        candidates.extend(self.propose(&found).into_iter().filter(is_new));
        if candidates.len() < 2 {
            let is_empty = scene.tasks.is_empty();
            return Ok(Err(if is_empty { NoTrial::NoTask(self.scope_in_words()) } else { NoTrial::NoLever }));
        }
        // On a host that lets evenkeel wait, a look takes longer than asked for: that is none of the decision's time.
        let until = Instant::now() + self.config.decide_within.saturating_sub(looked);
        let usual_turn_s = if self.has_background() { SERVICES_WINDOW_S + SETTLE_S.1 } else { f64::INFINITY };
        let longer = ((pace.window_s + pace.settle_s) / usual_turn_s).clamp(1.0, LONGER);
        let until = (until, until + self.config.closer_look.mul_f64(longer));
        Ok(Ok(self.hold_trial(&candidates, pace, until, seen, &found, watcher)?))
    }

    /// With derived tiers the scope may name hundreds of cgroups.
    pub fn scope_in_words(&self) -> String {
        cut(&self.log.record.scope.join(", "), 200)
    }

    /// Puts the settings in force to the test against the kernel's default and against a refinement of their priorities.
    pub(crate) fn recheck(&mut self, watcher: &mut dyn Watcher) -> Result<(), AgentError> {
        self.components.latency_slos.compare(true);
        let outcome = self.rechecked(watcher);
        self.components.latency_slos.compare(false);
        outcome
    }

    fn rechecked(&mut self, watcher: &mut dyn Watcher) -> Result<(), AgentError> {
        let Some(studied) = self.study(LOOK, watcher)? else { return Ok(()) };
        let seen = (studied.summary.clone(), studied.protected, studied.span);
        let found = self.found(studied.observation);
        let scene = self.scene(&found);
        let pace = pace_of(&scene);
        let mut candidates = vec![self.plan.clone(), default_plan()];
        candidates.extend(refine::refined(&self.plan, &scene));
        let usual_s = Trial::usual_s(candidates.len() - 1, pace);
        let until = Instant::now() + Duration::from_secs_f64(usual_s);
        let until = (until, until + Duration::from_secs_f64(usual_s * (RECHECK_TIMES - 1.0)));
        self.hold_trial(&candidates, pace, until, seen, &found, watcher).map(drop)
    }

    /// One trial; the winner is in force afterwards. From the first instant on it goes on only while a candidate is
    /// promising, to the second at most. `seen` is a window under the settings in force, which just ended.
    fn hold_trial(
        &mut self,
        candidates: &[Plan],
        pace: Pace,
        (until, at_most): (Instant, Instant),
        seen: (Summary, Vec<Option<Histogram>>, Option<Span>),
        observation: &Observation,
        watcher: &mut dyn Watcher,
    ) -> Result<Decision, AgentError> {
        self.decisions.trials += 1;
        let began = Instant::now();
        // What is lost to others on a busy host is added, but the run ends when it ends.
        let ends = self.decisions.ends;
        let by = |late| ends.map_or(at_most + late, |end| end.min(at_most + late));
        let left = by(Duration::ZERO).saturating_duration_since(began);
        let predicted = self.predict(observation, candidates, watcher);
        let mut late = began.elapsed().min(self.config.most_late);
        let started_ns = wall_ns();
        let besides = candidates.iter().filter(|plan| is_always_tried(plan)).count();
        let most = challengers(pace, besides, left);
        let favoured = candidates.iter().skip(1).position(Plan::is_realtime).map(|at| at + 1);
        let mut unpromising = unpromising(candidates, &predicted, &self.config.rules, most);
        unpromising.retain(|(candidate, _)| Some(*candidate) != favoured);
        let rules = next_rules(&self.config.rules, &self.decisions.control, self.decisions.trials);
        let usual_s = Trial::usual_s(candidates.len() - 1 - unpromising.len(), pace);
        watcher.event(&Event::TrialBegins { candidates, usual_s, most_s: left.as_secs_f64() });
        // The baseline is what protected scopes' waits are held against.
        let default = candidates.iter().position(|plan| plan.is_default()).unwrap_or(0);
        let mut trial = Trial::new(candidates.len() - 1, rules, pace)
            .protecting(self.components.latency_slos.protections(), default);
        trial.without_services(self.components.latency_slos.without_tasks().into_keys().collect());
        trial.favour(favoured);
        for (candidate, prediction) in predicted.iter().enumerate().skip(1) {
            if prediction.as_ref().is_some_and(|prediction| hurts(prediction, &self.config.rules.guard)) {
                trial.suspect(candidate);
            }
        }
        let predicted = told(candidates, predicted);
        if self.acts() && self.decisions.outside.is_none() {
            self.decisions.outside =
                RunqLatency::start().inspect_err(|error| tracing::debug!("{error}")).ok();
        }
        let mut fulfilments: Vec<Vec<f64>> = vec![Vec::new(); candidates.len()];
        fulfilments[0].extend(self.known_fulfilment(&seen.0).or(seen.0.fulfilment));
        let mut pending: Pending<Recorded> = Pending::default();
        let recorded = trial.seen(seen.0, seen.1);
        seen.2.zip(recorded).into_iter().for_each(|(span, recorded)| pending.add(span, recorded));
        for (candidate, why) in unpromising {
            trial.withdraw(candidate, why);
        }
        let mut in_force = 0;
        loop {
            if watcher.stopping() || (Instant::now() >= until + late && !trial.is_worth_more_time()) {
                break;
            }
            let left = by(late).saturating_duration_since(Instant::now());
            let Some(turn) = trial.next(left.as_secs_f64()) else { break };
            let began = Instant::now();
            let plan = &candidates[turn.candidate];
            if trial.part() == Part::Confirmation && !self.remembered.confirming {
                self.remembered.confirming = true;
                self.remember();
            }
            if turn.candidate != in_force {
                let refused = self.take_turn(plan);
                // What others left of the present state is the present state, and is measured.
                if let Some(why) = refused.filter(|_| turn.candidate != 0) {
                    trial.withdraw(turn.candidate, why);
                    // What could be set of it is: whoever is next is set again.
                    in_force = usize::MAX;
                    continue;
                }
                in_force = turn.candidate;
            }
            if self.work(Duration::from_secs_f64(turn.settle_s), watcher) {
                break;
            }
            let at_ns = wall_ns();
            let Some(measured) = self.measure(Duration::from_secs_f64(turn.window_s), watcher)? else {
                break;
            };
            self.log.recorder.add_trial(TrialWindow {
                trial: self.decisions.trials,
                settings: plan.name.clone(),
                started_ns: at_ns,
                seconds: measured.summary.seconds,
                cpu_pct: measured.summary.got_pct,
                wait_per_ran: measured.summary.wait_per_ran(),
                fulfilment: measured.fulfilment,
                steal_pct: measured.observation.host.steal_pct,
                protected_p99_ms: measured
                    .protected
                    .iter()
                    .map(|waits| Some(waits.as_ref()?.quantile(0.99)? as f64 / 1e6))
                    .collect(),
            });
            watcher.event(&Event::Window {
                part: trial.part(),
                settings: &plan.name,
                summary: &measured.summary,
                fulfilment: measured.fulfilment,
            });
            fulfilments[turn.candidate].extend(measured.fulfilment);
            let lost = self.lost_scheduler();
            if let Some(why) = lost.or_else(|| scheduler::void_limit(plan, &measured.observation)) {
                // Before this window counts.
                trial.withdraw(turn.candidate, why);
            }
            let recorded = trial.record(measured.summary, measured.protected);
            measured.span.zip(recorded).into_iter().for_each(|(span, recorded)| pending.add(span, recorded));
            let latency_slos = &self.components.latency_slos;
            for (recorded, requests) in pending.known(|span| latency_slos.requests(span)) {
                trial.requests(recorded, requests);
            }
            let asked = Duration::from_secs_f64(turn.settle_s + turn.window_s);
            late = (late + began.elapsed().saturating_sub(asked)).min(self.config.most_late);
        }
        if watcher.stopping() {
            trial.stop();
        }
        let decision = trial.decide();
        self.components.latency_slos.decided(&decision, default);
        let winner = &candidates[decision.winner];
        self.forget_unless(winner);
        self.set(winner);
        feed_back(&mut self.decisions.control, &decision, winner.is_default());
        self.watch_change(&decision, default);
        if !self.kept.as_ref().is_some_and(KeptChange::is_held_out) {
            self.decisions.outside = None;
        }
        self.stop_puller(watcher);
        self.note_trial(&decision, candidates, &fulfilments, &predicted, started_ns, watcher);
        let effect = effect(&decision, &predicted);
        self.note_settings(effect.as_deref(), observation);
        watcher.event(&Event::Decided { decision: &decision, candidates });
        Ok(decision)
    }

    /// Starts what moves waiting work, where plans may ask for it. Where that is refused no plan will.
    fn start_puller(&mut self, observation: &Observation, watcher: &mut dyn Watcher) {
        let names = &self.config.levers;
        let asked_for = match self.has_background() {
            true => names.iter().any(|name| name == levers::ASIDE),
            false => names.is_empty() || names.iter().any(|name| name.ends_with(levers::PULL)),
        };
        if asked_for && let Some(why) = self.controls.start_puller(&observation.topology) {
            watcher.event(&Event::Note(&why));
        }
    }

    /// Ends what moves waiting work if the settings in force do not need it.
    pub(crate) fn stop_puller(&mut self, watcher: &mut dyn Watcher) {
        if self.plan.pull.is_empty() {
            self.tell_moves(watcher);
            self.controls.stop_puller();
        }
    }

    /// How often waiting work was moved.
    pub(crate) fn tell_moves(&self, watcher: &mut dyn Watcher) {
        let moves = self.controls.moves();
        if moves > 0 {
            watcher.event(&Event::Note(&match self.has_background() {
                true => format!("background work was moved aside {moves} times"),
                false => format!("waiting work was moved to an idle CPU {moves} times"),
            }));
        }
    }

    /// Puts a candidate in force; says why if that is not possible.
    fn take_turn(&mut self, plan: &Plan) -> Option<String> {
        let report = self.set(plan);
        if let Some(why) = self.pull_problem.take() {
            return Some(why);
        }
        if plan.changes.is_empty() {
            return None;
        }
        // Promises and the scope's limit are set with it.
        let of_plan =
            |target: &Target, knob| plan.changes.iter().any(|c| c.target == *target && c.knob() == knob);
        let problems = report.problems().filter(|(change, _)| of_plan(&change.target, change.knob));
        let mut problems: Vec<String> = problems.map(|(_, why)| why).collect();
        problems.extend(overruled(plan, &self.components.changes()));
        let lost = problems.len() as f64 / plan.changes.len() as f64;
        // A few tasks that refuse are measured along; a plan that mostly cannot be carried out is no candidate.
        (lost > 0.2).then(|| {
            format!("{} of {} changes not possible: {}", problems.len(), plan.changes.len(), problems[0])
        })
    }

    /// Records a stage for each candidate.
    fn note_trial(
        &mut self,
        decision: &Decision,
        candidates: &[Plan],
        fulfilments: &[Vec<f64>],
        predicted: &[Option<Prediction>],
        started_ns: u64,
        watcher: &mut dyn Watcher,
    ) {
        let bounded = |e: Option<Estimate>| e.filter(Estimate::is_bounded);
        let fulfilment = |c: usize| bounded(stats::estimate(&fulfilments[c]));
        let first = self.log.record.baseline.is_none();
        if first && candidates[0].is_default() {
            self.log.record.baseline = fulfilment(0);
        }
        self.log.record.now = fulfilment(decision.winner);
        for (index, (plan, verdict)) in candidates.iter().zip(&decision.verdicts).enumerate() {
            let stage = Stage {
                name: StageName { act: Some(Act::Trial), settings: plan.name.clone() },
                started_ns,
                seconds: verdict.seconds,
                cpu_pct: bounded(verdict.got_pct),
                wait_per_ran: bounded(verdict.wait_per_ran),
                fulfilment: fulfilment(index),
                fulfilment_estimated: self.config.known.is_empty(),
                kept: Some(verdict.kept),
                why: verdict.why.clone(),
                predicted: predicted[index].as_ref().map(|p| Predicted {
                    cpu_pct: p.after.got_pct,
                    cpu_change_pct: p.cpu_change_pct(),
                    wait_per_ran: p.after.wait_per_ran(),
                }),
            };
            self.add_stage(stage, watcher);
        }
    }
}

/// Rules of a run's next trial: its own seed, and its level of the run's error budget.
fn next_rules(rules: &TrialRules, control: &OnlineControl, trials: u32) -> TrialRules {
    TrialRules {
        alpha: control.alpha().min(rules.alpha),
        seed: rules.seed.wrapping_add(u64::from(trials)),
        ..*rules
    }
}

/// A decision has spent its level if it came as far as fresh pairs, and earns more if it found a change that helps: giving
/// one up for the baseline is no such find.
fn feed_back(control: &mut OnlineControl, decision: &Decision, to_default: bool) {
    if decision.confirmed {
        control.decided(decision.winner != 0 && !to_default);
    }
}

/// What was measured of the winner, with what had been predicted next to it; `None` where the present state stays, of which the decision
/// that chose it measured more.
fn effect(decision: &Decision, predicted: &[Option<Prediction>]) -> Option<String> {
    let winner = Some(decision.winner).filter(|winner| *winner != 0)?;
    let why = &decision.verdicts[winner].why;
    Some(match &predicted[winner] {
        Some(predicted) => format!("{why}; predicted: {}", predicted.in_words()),
        None => why.clone(),
    })
}

#[cfg(test)]
mod tests;
