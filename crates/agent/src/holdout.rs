//! The change in force, driven by the loop: its blocks under the baseline are put in force and measured, its effect is
//! noted, and it is taken back when it has to go. What is to be done when is [`crate::kept`]'s.

use evenkeel_base::Sample;
use evenkeel_base::run::{Act, Stage, StageName};
use evenkeel_linux::sys::wall_ns;
use evenkeel_policy::monitor::Leave;
use evenkeel_policy::trial::Decision;

use crate::agent::{Agent, Measured};
use crate::error::AgentError;
use crate::events::{Event, Watcher};
use crate::kept::{self, KeptChange, Now, Turn};
use crate::proposals::default_plan;

impl Agent {
    pub(crate) fn now(&self) -> Now {
        Now { s: self.elapsed_s(), wall_ns: wall_ns() }
    }

    /// Begins to watch what a decision put in force, or stops where nothing is. Settings that stay are watched on.
    /// `default` is the candidate that was the baseline.
    pub(crate) fn watch_change(&mut self, decision: &Decision, default: usize) {
        if self.kept.as_ref().is_none_or(|kept| *kept.plan() != self.plan) {
            let acts = self.acts() && !self.plan.is_default();
            self.kept = acts.then(|| {
                let rules = kept::rules(self.config.monitor, &self.config.rules);
                let decided = kept::decided(decision, default);
                self.remember_kept(decision, default, &decided);
                KeptChange::new(self.plan.clone(), rules, decided, decision.objective.clone(), self.now())
            });
        }
        self.remembered.confirming = false;
        self.remember();
        self.note_effect();
    }

    /// What is to be done next for the change in force.
    pub(crate) fn turn(&self) -> Option<Turn> {
        Some(self.kept.as_ref()?.turn(self.now()))
    }

    /// The next step begins: its settings are put in force, and its window with them.
    pub(crate) fn begin_step(&mut self) -> Result<Sample, AgentError> {
        if let Some(kept) = &self.kept {
            let wanted = kept.wanted().cloned().unwrap_or_else(default_plan);
            if wanted != self.plan {
                self.set(&wanted);
            }
        }
        self.begin_window()
    }

    /// Whatever block is under way comes to nothing, and the change is in force.
    pub(crate) fn stop_block(&mut self) {
        let now = self.now();
        let Some(kept) = &mut self.kept else { return };
        kept.stop_block(now);
        let plan = kept.plan().clone();
        if plan != self.plan {
            self.set(&plan);
        }
    }

    /// The step's time is over. Says why the change has to go, if it has.
    pub(crate) fn end_step(&mut self, measured: Option<&Measured>) -> Option<Leave> {
        let now = self.now();
        let kept = self.kept.as_mut()?;
        let latency_slos = &self.components.latency_slos;
        if let Some(span) = measured.and_then(|measured| measured.span) {
            kept.await_requests(span);
        }
        kept.take_requests(&latency_slos.protections(), |span| latency_slos.requests(span));
        let blocks = kept.blocks();
        let leave = kept.end_step(now, measured.map(|m| (&m.summary, m.protected.as_slice())));
        if kept.blocks() > blocks {
            self.note_effect();
            self.log.recorder.update_run(&self.log.record);
        }
        leave
    }

    /// Keeps the record's effect fresh.
    pub(crate) fn note_effect(&mut self) {
        self.log.record.effect_now = self.kept.as_ref().map(|kept| kept.effect(self.now()));
    }

    /// Why the change has to go, as a message.
    pub(crate) fn describe(&self, leave: &Leave, last: &Measured) -> String {
        let unit = self.kept.as_ref().map_or_else(Default::default, KeptChange::unit);
        kept::describe(leave, unit, |id| {
            let task = last.observation.task(*id);
            task.map_or_else(|| id.to_string(), |task| format!("{id} {}", task.comm))
        })
    }

    /// Why the scheduler that is to decide does not: the kernel ejected it, or somebody else ended it. None is tried again then.
    pub(crate) fn lost_scheduler(&mut self) -> Option<String> {
        let found = self.controls.lost_scheduler(&self.plan)?;
        self.offer_no_scheduler();
        Some(format!("the kernel or another program has ended it, {found} decides"))
    }

    /// Takes the change back, and does not try it again until the load is another one.
    pub(crate) fn take_back(&mut self, why: String, last: &Measured, watcher: &mut dyn Watcher) {
        let Some(kept) = self.kept.take() else { return };
        self.decisions.outside = None;
        self.decisions.control.taken_back();
        self.decisions.barred.insert(kept.plan().name.clone());
        self.forget_unless(&default_plan());
        self.set(&default_plan());
        self.stop_puller(watcher);
        self.note_effect();
        // It was measured under the change.
        self.log.record.now = None;
        let (started_ns, seconds) = kept.since(self.now());
        let stage = Stage {
            name: StageName { act: Some(Act::Watch), settings: kept.plan().name.clone() },
            started_ns,
            seconds,
            kept: Some(false),
            why: why.clone(),
            fulfilment_estimated: self.config.known.is_empty(),
            ..Stage::default()
        };
        self.add_stage(stage, watcher);
        self.note_settings(None, &last.observation);
        watcher.event(&Event::Note(&format!("{} is taken back: {why}", kept.plan().name)));
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::run::Estimate;
    use evenkeel_base::{Change, Plan, SchedAttr, Setting, Target, TaskId};
    use evenkeel_policy::monitor::{Arm, Decided, MonitorRules};
    use evenkeel_policy::trial::Objective;
    use evenkeel_policy::window::Summary;

    use super::*;
    use crate::events::Quiet;
    use crate::testing;

    #[test]
    fn fulfilment_under_a_change_is_not_shown_once_that_is_taken_back() {
        let mut agent = testing::agent("comm:^none$", |_| {});
        agent.log.record.now = Some(Estimate { value: 0.99, low: 0.98, high: 1.0 });
        agent.kept = Some(kept(&agent));
        agent.take_back("it gains nothing".to_owned(), &measured(), &mut Quiet);
        assert_eq!((agent.record().settings.as_str(), agent.record().now), ("kernel default", None));
    }

    /// Of a task that is no more: nothing is written.
    fn plan() -> Plan {
        let target = Target::Task(TaskId { tgid: u32::MAX, tid: u32::MAX, start_time: 1 });
        let change = Change { target, to: Setting::Sched(SchedAttr::DEFAULT), why: String::new() };
        Plan { name: "batch".into(), changes: vec![change], ..Plan::default() }
    }

    fn kept(agent: &Agent) -> KeptChange {
        let objective = Objective::new(0.1, false);
        KeptChange::new(plan(), MonitorRules::default(), Decided::default(), objective, agent.now())
    }

    fn measured() -> Measured {
        Measured {
            summary: Summary { seconds: 3.0, got_pct: 100.0, ..Summary::default() },
            observation: testing::observation(&[("/", None)]),
            fulfilment: None,
            protected: Vec::new(),
            span: None,
        }
    }

    /// An agent that may change things, with its state directory.
    fn acting() -> (Agent, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let agent = testing::agent("comm:^none$", |config| {
            (config.apply, config.state_dir) = (true, directory.path().to_owned());
        });
        (agent, directory)
    }

    #[test]
    fn what_is_taken_back_earns_nothing_is_not_tried_again_and_is_nobodys_to_take_over() {
        let (mut agent, _state) = acting();
        agent.take_back("nothing is in force".to_owned(), &measured(), &mut Quiet);
        assert!(agent.decisions.barred.is_empty() && agent.record().stages.is_empty());
        agent.decisions.control.decided(true);
        let budget = agent.decisions.control.alpha();
        agent.set(&plan());
        agent.watch_change(&decision(), 0);
        agent.take_back("it gains nothing".to_owned(), &measured(), &mut Quiet);
        assert!(agent.kept.is_none() && agent.plan.is_default() && agent.remembered.kept.is_none());
        assert_eq!(agent.decisions.control.alpha(), budget / 2.0);
        assert!(agent.decisions.barred.contains("batch") && agent.remembered.barred.contains("batch"));
        let stage = agent.record().stages.last().unwrap();
        assert_eq!(
            (stage.name.act, stage.kept, &*stage.why),
            (Some(Act::Watch), Some(false), "it gains nothing")
        );
        assert_eq!(agent.record().effect_now, None);
    }

    fn decision() -> Decision {
        let verdicts = vec![Default::default(); 2];
        let objective = Objective::new(0.1, false);
        Decision { winner: 1, verdicts, confirmed: true, pairs: Vec::new(), objective }
    }

    #[test]
    fn a_change_is_watched_from_its_decision_on_and_on_where_it_is_chosen_again() {
        let (mut agent, _state) = acting();
        agent.remembered.confirming = true;
        agent.watch_change(&decision(), 0);
        assert!(agent.kept.is_none() && !agent.remembered.confirming, "nothing is in force");
        agent.set(&plan());
        agent.watch_change(&decision(), 0);
        assert!(agent.remembered.kept.as_ref().is_some_and(|proved| proved.plan == plan()));
        let since = |agent: &Agent| agent.kept.as_ref().unwrap().since(agent.now()).0;
        let began = since(&agent);
        assert!(agent.record().effect_now.is_some());
        agent.watch_change(&decision(), 0);
        assert_eq!(since(&agent), began, "the same is in force");
        agent.set(&Plan { name: "another".into(), ..plan() });
        agent.watch_change(&decision(), 0);
        assert!(since(&agent) > began);
        agent.set(&default_plan());
        agent.watch_change(&decision(), 0);
        assert!(agent.kept.is_none());
    }

    #[test]
    fn blocks_are_under_the_baseline_and_end_with_the_change_in_force() {
        let (mut agent, _state) = acting();
        agent.set(&plan());
        agent.kept = Some(kept(&agent));
        let turn = |agent: &Agent| agent.turn().unwrap();
        let step = |agent: &mut Agent| {
            let seen = turn(agent).step.measure.then(measured);
            assert_eq!(agent.end_step(seen.as_ref()), None);
            agent.begin_step().unwrap();
        };
        for stops in [true, false] {
            while turn(&agent).step.arm == Arm::Change {
                assert_eq!(agent.plan, plan());
                step(&mut agent);
            }
            assert!(agent.plan.is_default());
            if stops {
                agent.stop_block();
                assert!(!turn(&agent).settles && !turn(&agent).step.measure);
            } else {
                while turn(&agent).step.arm == Arm::Baseline {
                    step(&mut agent);
                }
            }
            assert_eq!(agent.plan, plan());
        }
        while agent.kept.as_ref().unwrap().blocks() == 0 {
            step(&mut agent);
        }
        assert_eq!(agent.record().effect_now.as_ref().map(|effect| effect.blocks), Some(1));
    }
}
