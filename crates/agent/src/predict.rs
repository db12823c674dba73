//! What the simulator says about plans before they are tried.

use std::time::Duration;

use evenkeel_base::{Observation, Plan};
use evenkeel_linux::Root;
use evenkeel_model::predict::{Host, Prediction};
use evenkeel_model::sim::Kernel;
use evenkeel_observe::read_kernel;
use evenkeel_policy::guard::GuardLimits;
use evenkeel_policy::trial::TrialRules;

use crate::agent::Agent;
use crate::events::Watcher;

/// Challengers in a trial of which something is predicted: with more, each gets too few windows to tell them apart.
pub(crate) const MOST: usize = 4;

/// Between two looks whether the simulator is done.
const AWHILE: Duration = Duration::from_millis(20);

impl Agent {
    /// What each plan would do to the scope, from an observation with the slow facts of its tasks ([`Agent::study`]). `None`
    /// where nothing can be said: a scheduler that is not simulated (in force, or proposed), no running tasks, or background work next to services, for
    /// the simulator knows neither idle cgroups nor percentiles of waits.
    ///
    /// The components go on meanwhile, and the simulator has a thread of its own, which is not as urgent as this one may be.
    pub fn predict(
        &mut self,
        observation: &Observation,
        plans: &[Plan],
        watcher: &dyn Watcher,
    ) -> Vec<Option<Prediction>> {
        let none = || plans.iter().map(|_| None).collect();
        if self.has_background() {
            return none();
        }
        let release = read_kernel(&Root::host()).release;
        let Some(mut kernel) = release.as_deref().and_then(Kernel::of) else { return none() };
        kernel.base_slice_ns = self.features().default_slice_ns;
        let host = Host::new(observation, kernel, |task| self.config.scope.has(task, observation));
        let predicted = std::thread::scope(|scope| {
            let simulator = scope.spawn(|| host.predict(plans));
            while !simulator.is_finished() && !self.work(AWHILE, watcher) {}
            simulator.join()
        });
        let Ok(predicted) = predicted else { return none() };
        match predicted {
            Ok(predictions) if predictions.len() == plans.len() => {
                let of_plan =
                    |(plan, prediction): (&Plan, _)| plan.scheduler().is_none().then_some(prediction);
                plans.iter().zip(predictions).map(of_plan).collect()
            }
            Ok(_) => none(),
            Err(error) => {
                tracing::debug!("no prediction: {error}");
                none()
            }
        }
    }
}

/// What of predictions is told: the simulator moves no waiting work, and of a plan that does nothing else it says "no change".
pub fn told(plans: &[Plan], predicted: Vec<Option<Prediction>>) -> Vec<Option<Prediction>> {
    plans.iter().zip(predicted).map(|(plan, prediction)| prediction.filter(|_| !plan.only_pulls())).collect()
}

/// What the user allowed by name, and what the simulator knows nothing of: BPF schedulers, and moving waiting work, alone.
pub(crate) fn is_always_tried(plan: &Plan) -> bool {
    plan.is_realtime() || plan.scheduler().is_some() || plan.only_pulls()
}

/// Whether a task of the scope is expected to wait longer than the guard allows.
/// By the guard's limit itself, not the larger factor by which the guard judges an estimate of few windows: the simulator's waits
/// have no such noise. It proves nothing: who hurts is tried last, or left out where there is no time for all.
pub(crate) fn hurts(prediction: &Prediction, limits: &GuardLimits) -> bool {
    prediction.tasks.values().filter(|(before, _)| before.got_pct >= limits.min_cpu_pct).any(
        |(before, after)| {
            let waits = before.wait_per_ran().zip(after.wait_per_ran());
            waits.is_some_and(|(before, after)| after > limits.longest_wait(before))
        },
    )
}

/// Challengers that are not worth windows of a trial, with the reason: beyond the `most` of which the simulator expects
/// most by the trial's own score; who is expected to hurt somebody comes last. Nobody is left out where something could not be
/// predicted, nor are those that are always tried; where there is time for one only, waiting work is moved together with other changes or not at all.
pub(crate) fn unpromising(
    candidates: &[Plan],
    predicted: &[Option<Prediction>],
    rules: &TrialRules,
    most: usize,
) -> Vec<(usize, String)> {
    let score = |p: &Prediction| p.after.got_pct - rules.wait_price * p.after.wait_pct;
    let mut challengers: Vec<(usize, &Prediction)> = Vec::new();
    for (index, (plan, prediction)) in candidates.iter().zip(predicted).enumerate().skip(1) {
        // The kernel's default is what everything is measured against.
        if !plan.is_default() && !(is_always_tried(plan) && (!plan.only_pulls() || most > 1)) {
            let Some(prediction) = prediction else { return Vec::new() };
            challengers.push((index, prediction));
        }
    }
    challengers.sort_by(|a, b| score(b.1).total_cmp(&score(a.1)));
    challengers.sort_by_key(|(_, prediction)| hurts(prediction, &rules.guard));
    challengers
        .into_iter()
        .skip(most)
        .map(|(index, prediction)| {
            // Who hurts somebody comes last, whatever is expected of it.
            let what = match hurts(prediction, &rules.guard) {
                true => "a task to wait too long, next to",
                false => "more of others than",
            };
            (index, format!("the simulator expects {what} {}", prediction.in_words()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_base::{Change, CpuSet, HostScheduler, SchedAttr, SchedPolicy, Setting, Target, TaskId};
    use evenkeel_model::predict::Use;

    use super::*;

    fn candidate(got: f64, wait: f64) -> (Plan, Option<Prediction>) {
        let change = Change {
            target: Target::Task(TaskId { tgid: 1, tid: 1, start_time: 1 }),
            to: Setting::Affinity(CpuSet::single(0)),
            why: String::new(),
        };
        let plan = Plan { changes: vec![change], ..Plan::default() };
        let use_of = |got_pct, wait_pct| Use { got_pct, wait_pct };
        let prediction =
            Prediction { before: use_of(100.0, 10.0), after: use_of(got, wait), tasks: Default::default() };
        (plan, Some(prediction))
    }

    #[test]
    fn of_moves_alone_nothing_is_predicted() {
        let (settings, said) = candidate(110.0, 5.0);
        let pull = vec![TaskId { tgid: 1, tid: 1, start_time: 1 }];
        let moves = Plan { pull, ..Plan::default() };
        let both = Plan { pull: moves.pull.clone(), ..settings.clone() };
        let told = told(&[settings, moves, both], vec![said.clone(), said.clone(), said]);
        assert_eq!(told.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn those_of_which_least_is_expected_are_left_out() {
        let (mut plans, mut predicted): (Vec<_>, Vec<_>) = [
            (100.0, 10.0),
            (90.0, 0.0),
            (104.0, 5.0),
            (103.0, 5.0),
            (104.0, 90.0),
            (101.0, 5.0),
            (102.0, 5.0),
        ]
        .map(|(got, wait)| candidate(got, wait))
        .into_iter()
        .unzip();
        plans[0].changes.clear();
        let out: Vec<usize> = unpromising(&plans, &predicted, &TrialRules::default(), MOST)
            .into_iter()
            .map(|(c, _)| c)
            .collect();
        assert_eq!(out, [4, 1], "104 points with long waits are worth less than 101 with short ones");
        let hurt = |predicted: &mut Vec<Option<Prediction>>, wait_pct| {
            let task = TaskId { tgid: 1, tid: 1, start_time: 1 };
            let uses = [10.0, wait_pct].map(|wait_pct| Use { got_pct: 10.0, wait_pct });
            predicted[2].as_mut().unwrap().tasks = BTreeMap::from([(task, (uses[0], uses[1]))]);
        };
        for (wait_pct, expected) in [(14.9, [4, 1]), (15.1, [1, 2])] {
            hurt(&mut predicted, wait_pct);
            let out = unpromising(&plans, &predicted, &TrialRules::default(), MOST);
            assert_eq!([out[0].0, out[1].0], expected, "the best one that hurts a task comes last");
            let words = ["expects more of others than CPU", "expects a task to wait too long, next to CPU"];
            assert!(out[1].1.contains(words[usize::from(expected[1] == 2)]), "{out:?}");
        }
        let tried = plans[4].changes.pop().unwrap();
        plans[4].pull = vec![TaskId { tgid: 1, tid: 1, start_time: 1 }];
        let fifo = SchedAttr { policy: SchedPolicy::Fifo, ..SchedAttr::DEFAULT };
        plans[1].changes = vec![Change { to: Setting::Sched(fifo), ..tried.clone() }];
        assert!(
            unpromising(&plans, &predicted, &TrialRules::default(), MOST).is_empty(),
            "these two are always tried"
        );
        let scheduler = Setting::Scheduler(HostScheduler::Program("scx_rusty".into()));
        plans[1].changes = vec![Change { target: Target::Host, to: scheduler, ..tried.clone() }];
        assert!(
            unpromising(&plans, &predicted, &TrialRules::default(), MOST).is_empty(),
            "so is a scheduler"
        );
        plans[1].changes = vec![tried];
        predicted[3] = None;
        assert!(
            unpromising(&plans, &predicted, &TrialRules::default(), MOST).is_empty(),
            "unknown is not bad"
        );
        assert!(
            unpromising(&plans[..5], &[None, None, None, None, None], &TrialRules::default(), MOST)
                .is_empty()
        );
    }
}
