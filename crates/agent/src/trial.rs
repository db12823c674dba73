//! Carrying out a trial: candidates take turns, windows are measured, the winner is put in force.

use std::time::{Duration, Instant};

use evenkeel_base::run::{Estimate, Predicted, Stage};
use evenkeel_base::stats;
use evenkeel_base::{Observation, Plan, Target};
use evenkeel_model::predict::Prediction;
use evenkeel_policy::levers::{self, Scene};
use evenkeel_policy::race::{self, Decision, Race, RaceRules};
use evenkeel_policy::refine;
use evenkeel_store::TrialWindow;

use crate::agent::{Agent, AgentError, default_plan, wall_ns};
use crate::events::{Event, Watcher};
use crate::predict::{MOST, is_always_tried, unpromising};

/// Windows are between these lengths, seconds: shorter ones see too little of a cycle, longer ones too few turns.
const WINDOW_S: (f64, f64) = (0.6, 2.0);
/// Cycles of a usual task that a window should hold.
const CYCLES: f64 = 8.0;
/// Time given to settings to take hold before a window, in cycles, and its limits in seconds.
const SETTLE_CYCLES: f64 = 1.0;
const SETTLE_S: (f64, f64) = (0.05, 0.3);
/// Waiting below this many seconds per second of work is as good as none: nothing to win.
const CALM: f64 = 0.02;
/// Rounds announced, and needed before anything is concluded.
const ROUNDS: (usize, usize) = (3, 12);
/// Challengers that get a closer look at first.
const FOCUS: usize = 2;

/// Lengths of a trial's parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rhythm {
    window: Duration,
    settle: Duration,
}

impl Rhythm {
    /// By how often the scope's tasks go to sleep, weighted by load.
    pub(crate) fn of(scene: &Scene<'_>) -> Self {
        let mut weighted = 0.0;
        let mut weight = 0.0;
        for subject in &scene.tasks {
            let per_s = subject.task.voluntary_per_s.unwrap_or(0.0);
            let cycle = if per_s > 0.1 { 1.0 / per_s } else { 0.1 };
            weighted += subject.load_pct * cycle.min(1.0);
            weight += subject.load_pct;
        }
        let cycle = if weight > 0.0 { weighted / weight } else { 0.1 };
        Self {
            window: Duration::from_secs_f64((CYCLES * cycle).clamp(WINDOW_S.0, WINDOW_S.1)),
            settle: Duration::from_secs_f64((SETTLE_CYCLES * cycle).clamp(SETTLE_S.0, SETTLE_S.1)),
        }
    }

    fn turn_s(&self) -> f64 {
        (self.window + self.settle).as_secs_f64()
    }

    /// Challengers there may be so that two rounds fit into a time, of which `besides` are there in any case; at least one
    /// more, at most [`MOST`].
    fn challengers(&self, besides: usize, time: Duration) -> usize {
        let fits = |more: &usize| self.rounds(race::turns(besides + more), time) >= 2;
        (1..=MOST).rev().find(fits).unwrap_or(1)
    }

    /// Rounds of this many candidates that fit into a time.
    fn rounds(&self, candidates: usize, time: Duration) -> usize {
        (time.as_secs_f64() / (self.turn_s() * candidates as f64)) as usize
    }
}

/// Why no trial was held.
#[derive(Debug, Clone, PartialEq)]
pub enum NoTrial {
    /// Nobody of the scope runs.
    Idle,
    /// Nobody waits worth mentioning.
    Calm(f64),
    /// No lever can act here.
    NoLever,
    /// The watcher wants to stop.
    Stopped,
}

impl NoTrial {
    /// For people.
    pub fn why(&self) -> String {
        match self {
            Self::Idle => "nothing to do: no task of the scope is running".to_owned(),
            Self::Calm(wait) => format!(
                "nothing to do: tasks wait {:.1} ms per second of work, there is nothing to gain",
                wait * 1000.0
            ),
            Self::NoLever => "nothing to do: no lever can act on these tasks".to_owned(),
            Self::Stopped => "stopped".to_owned(),
        }
    }
}

impl Agent {
    /// Studies the scope, lets every lever propose, holds a trial and puts the winner in force. The time for the whole
    /// is [`crate::Config::decide_within`], plus [`crate::Config::closer_look`] where a promising candidate could
    /// neither be kept nor dismissed.
    ///
    /// # Errors
    /// The host cannot be observed.
    pub fn decide(&mut self, watcher: &mut dyn Watcher) -> Result<Result<Decision, NoTrial>, AgentError> {
        let until = Instant::now() + self.config.decide_within;
        let Some(studied) = self.study(Duration::from_secs(1), watcher)? else {
            return Ok(Err(NoTrial::Stopped));
        };
        let found = self.found(studied.observation);
        let scene = self.scene(&found);
        if scene.tasks.is_empty() {
            return Ok(Err(NoTrial::Idle));
        }
        if self.plan.is_default()
            && let Some(wait) = studied.summary.wait_per_ran().filter(|wait| *wait < CALM)
        {
            return Ok(Err(NoTrial::Calm(wait)));
        }
        let rhythm = Rhythm::of(&scene);
        let mut candidates = vec![self.plan.clone()];
        if !self.plan.is_default() {
            candidates.push(default_plan());
        }
        self.ready_puller(&found, watcher);
        candidates.extend(self.propose(&found));
        if candidates.len() < 2 {
            return Ok(Err(NoTrial::NoLever));
        }
        let until = (until, Some(self.config.closer_look));
        Ok(Ok(self.hold_trial(&candidates, rhythm, until, &found, watcher)?))
    }

    /// Puts the settings in force to the test against the kernel's default and against a refinement of their priorities.
    ///
    /// # Errors
    /// The host cannot be observed.
    pub(crate) fn recheck(&mut self, watcher: &mut dyn Watcher) -> Result<Option<Decision>, AgentError> {
        let Some(studied) = self.study(Duration::from_secs(1), watcher)? else { return Ok(None) };
        let found = self.found(studied.observation);
        let scene = self.scene(&found);
        let rhythm = Rhythm::of(&scene);
        let mut candidates = vec![self.plan.clone(), default_plan()];
        candidates.extend(refine::refined(&self.plan, &scene));
        let until = Instant::now() + Duration::from_secs_f64(rhythm.turn_s() * 5.0 * candidates.len() as f64);
        Ok(Some(self.hold_trial(&candidates, rhythm, (until, None), &found, watcher)?))
    }

    /// One race; the winner is in force afterwards. It lasts until the given instant; then, where nothing could be
    /// decided, for the given time more with the most promising challengers alone.
    fn hold_trial(
        &mut self,
        candidates: &[Plan],
        rhythm: Rhythm,
        (mut until, closer_look): (Instant, Option<Duration>),
        observation: &Observation,
        watcher: &mut dyn Watcher,
    ) -> Result<Decision, AgentError> {
        self.trials += 1;
        let predicted = self.predict(observation, candidates);
        let started_ns = wall_ns();
        let left = until.saturating_duration_since(Instant::now());
        let price = self.config.rules.wait_price;
        let besides = candidates.iter().filter(|plan| is_always_tried(plan)).count();
        let most = rhythm.challengers(besides, left);
        let unpromising = unpromising(candidates, &predicted, price, most);
        let full = rhythm.rounds(candidates.len() - unpromising.len(), left).clamp(ROUNDS.0, ROUNDS.1);
        let rules = RaceRules {
            // Losers drop out early, so that more rounds fit in than with everybody: the clock decides.
            max_rounds: usize::MAX,
            min_rounds: self.config.rules.min_rounds.min(full),
            seed: self.config.rules.seed.wrapping_add(u64::from(self.trials)),
            ..self.config.rules
        };
        watcher.event(&Event::TrialBegins {
            candidates,
            rounds: full,
            round_s: rhythm.turn_s() * candidates.len() as f64,
        });
        // Half of the time for a closer look goes to a few, the other half to the one that is then ahead.
        let mut closer_looks: Vec<(usize, Duration)> =
            closer_look.map_or_else(Vec::new, |time| vec![(1, time / 2), (FOCUS, time / 2)]);
        // The host as found is what protected scopes' waits are held against.
        let default = candidates.iter().position(|plan| plan.is_default()).unwrap_or(0);
        let mut race =
            Race::new(candidates.len() - 1, rules).protecting(self.guardian.protections(), default);
        race.favour(candidates.iter().position(|plan| plan.name == levers::REALTIME));
        for (candidate, why) in unpromising {
            race.withdraw(candidate, why);
        }
        let mut fulfilments: Vec<Vec<f64>> = vec![Vec::new(); candidates.len()];
        while let Some(turn) = race.up() {
            if watcher.stopping() {
                break;
            }
            if Instant::now() >= until {
                let undecided = race.decide().winner == 0 || race.favoured_is_open();
                let Some((keep, time)) = closer_looks.pop().filter(|_| undecided) else { break };
                race.focus(keep);
                until = Instant::now() + time;
                continue;
            }
            if let Some(why) = self.take_turn(&candidates[turn]) {
                race.withdraw(turn, why);
                continue;
            }
            if self.pause(rhythm.settle, watcher) {
                break;
            }
            let at_ns = wall_ns();
            let Some(measured) = self.measure(rhythm.window, watcher)? else { break };
            self.recorder.add_trial(&TrialWindow {
                trial: self.trials,
                settings: candidates[turn].name.clone(),
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
                round: race.rounds(),
                settings: &candidates[turn].name,
                summary: &measured.summary,
                fulfilment: measured.fulfilment,
            });
            fulfilments[turn].extend(measured.fulfilment);
            race.record_protected(measured.protected);
            race.record(measured.summary);
        }
        let decision = race.decide();
        self.guardian.decided(&decision, default);
        self.set(&candidates[decision.winner]);
        self.rest_puller(watcher);
        self.note_trial(&decision, candidates, &fulfilments, &predicted, (started_ns, rhythm), watcher);
        let effect = effect(&decision.verdicts[decision.winner].why, predicted[decision.winner].as_ref());
        self.note_settings(Some(&effect), observation);
        watcher.event(&Event::Decided { decision: &decision, candidates });
        Ok(decision)
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
        let problems: Vec<String> = problems.map(|(_, why)| why).collect();
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
        (started_ns, rhythm): (u64, Rhythm),
        watcher: &mut dyn Watcher,
    ) {
        let bounded = |e: Option<Estimate>| e.filter(|e| e.low.is_finite() && e.high.is_finite());
        let fulfilment = |c: usize| bounded(stats::estimate(&fulfilments[c]));
        let first = self.record.baseline.is_none();
        if first && candidates[0].is_default() {
            self.record.baseline = fulfilment(0);
        }
        self.record.now = fulfilment(decision.winner);
        for (index, (plan, verdict)) in candidates.iter().zip(&decision.verdicts).enumerate() {
            let stage = Stage {
                name: format!("trial {}", plan.name),
                started_ns,
                seconds: verdict.windows as f64 * rhythm.window.as_secs_f64(),
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

/// What was measured, with what had been predicted beside it.
fn effect(why: &str, predicted: Option<&Prediction>) -> String {
    match predicted {
        Some(predicted) => format!("{why}; predicted: {}", predicted.in_words()),
        None => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_challengers_as_two_rounds_have_room_for() {
        let rhythm = Rhythm { window: Duration::from_millis(900), settle: Duration::from_millis(100) };
        let challengers = |besides, seconds| rhythm.challengers(besides, Duration::from_secs(seconds));
        assert_eq!(challengers(0, 60), MOST);
        // Four and two besides: two rounds of six turns and two of the present state.
        assert_eq!((challengers(2, 16), challengers(2, 15)), (4, 3));
        assert_eq!((challengers(1, 1), challengers(9, 0)), (1, 1), "there is always one");
    }
}
