//! What becomes of a change once it is in force: it is held out at random times, compared, and goes when it has to. What is
//! measured when, and what follows, is `evenkeel_policy::monitor`'s; this drives it with the clock and the loop's windows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use evenkeel_base::run::Stage;
use evenkeel_base::{Histogram, Plan, TaskId};
use evenkeel_policy::monitor::{
    Arm, Decided, Leave, Loss, Monitor, MonitorRules, Seen, Step, Subject, VictimLimits,
};
use evenkeel_policy::trial::Decision;

use crate::agent::{Agent, Measured, default_plan, wall_ns};
use crate::events::{Event, Watcher};

/// Waits in a window needed for their 99th percentile.
const ENOUGH: u64 = 200;

/// A change in force and what watches it.
#[derive(Debug)]
pub(crate) struct InForce {
    monitor: Monitor,
    plan: Plan,
    since: Instant,
    since_ns: u64,
}

impl InForce {
    fn now_s(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }
}

/// What is to be done next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// Whose settings, and whether a window is measured.
    pub step: Step,
    /// For how long.
    pub left: Duration,
    /// Settings take hold meanwhile: nothing is measured.
    pub settles: bool,
}

impl Agent {
    /// Begins to watch what a decision put in force, or stops where nothing is.
    pub(crate) fn watch_change(&mut self, decision: Option<&Decision>) {
        self.in_force = None;
        self.record.effect_now = None;
        if self.plan.is_default() || !self.acts() {
            return;
        }
        let guard = self.config.rules.guard;
        let rules = MonitorRules {
            min_gain: self.config.rules.min_gain,
            victims: VictimLimits {
                cpu_loss: guard.cpu_loss,
                wait_factor: guard.wait_factor,
                wait_floor: guard.wait_floor,
                ..self.config.monitor.victims
            },
            ..self.config.monitor
        };
        let verdict = decision.and_then(|decision| decision.verdicts.get(decision.winner));
        let got = verdict.and_then(|verdict| verdict.got_pct).map_or(0.0, |got| got.value);
        let gain = verdict.and_then(|verdict| verdict.score_gain).map_or(0.0, |gain| gain.value);
        let decided = Decided {
            gain: if got > 0.0 { gain / got } else { 0.0 },
            cpu_pct: verdict
                .and_then(|verdict| verdict.gain_pct)
                .map(|gain| (gain.value, gain.low, gain.high)),
            ..Decided::default()
        };
        let seed = self.config.rules.seed.wrapping_add(wall_ns());
        self.in_force = Some(InForce {
            monitor: Monitor::new(rules, decided, 0.0, seed),
            plan: self.plan.clone(),
            since: Instant::now(),
            since_ns: wall_ns(),
        });
        self.note_effect();
    }

    /// What is to be done next for the change in force.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let in_force = self.in_force.as_ref()?;
        let step = in_force.monitor.step();
        let left = (step.until_s - in_force.now_s()).max(0.0);
        // Nothing is ever due where nothing is held out.
        let left = if left.is_finite() { Duration::from_secs_f64(left) } else { Duration::MAX };
        Some(Turn { step, left, settles: in_force.monitor.in_block() && !step.measure })
    }

    /// Puts these settings in force, if they are not; true when something was written.
    pub(crate) fn put_in_force(&mut self, arm: Arm) -> bool {
        let Some(in_force) = &self.in_force else { return false };
        let plan = match arm {
            Arm::Change => in_force.plan.clone(),
            Arm::Baseline => default_plan(),
        };
        if plan.name == self.plan.name {
            return false;
        }
        self.set(&plan);
        true
    }

    /// Whatever block is under way comes to nothing: the change is in force.
    pub(crate) fn stop_block(&mut self) {
        self.put_in_force(Arm::Change);
        if let Some(in_force) = &mut self.in_force
            && in_force.monitor.in_block()
        {
            let now = in_force.now_s();
            in_force.monitor.abort(now);
        }
    }

    /// The step's time is over. Says why the change has to go, if it has.
    pub(crate) fn end_step(&mut self, measured: Option<&Measured>) -> Option<Leave> {
        let price = self.config.rules.wait_price;
        let in_force = self.in_force.as_mut()?;
        let hour = (wall_ns() / 3_600_000_000_000 % 24) as usize;
        let seen = measured.map(|measured| Seen {
            wait_p99_ms: p99_ms(&measured.protected),
            ..Seen::of(&measured.summary, measured.summary.score(price))
        });
        let blocks = in_force.monitor.blocks();
        let now = in_force.now_s();
        let leave = in_force.monitor.advance(now, hour, seen);
        if in_force.monitor.blocks() > blocks {
            self.note_effect();
            self.recorder.update_run(&self.record);
        }
        leave
    }

    /// Keeps the record's effect fresh.
    pub(crate) fn note_effect(&mut self) {
        if let Some(in_force) = &self.in_force {
            self.record.effect_now = Some(in_force.monitor.effect(in_force.now_s(), wall_ns()));
        }
    }

    /// Takes the change back, and does not try it again until the load is another one.
    pub(crate) fn take_back(&mut self, leave: &Leave, last: &Measured, watcher: &mut dyn Watcher) {
        let Some(in_force) = self.in_force.take() else { return };
        self.record.effect_now = None;
        let names = |id: &TaskId| {
            let task = last.observation.tasks.iter().find(|task| task.id == *id);
            task.map_or_else(|| id.to_string(), |task| format!("{id} {}", task.comm))
        };
        let why = describe(leave, names);
        self.set(&default_plan());
        self.rest_puller(watcher);
        self.barred.insert(in_force.plan.name.clone());
        let stage = Stage {
            name: format!("watch {}", in_force.plan.name),
            started_ns: in_force.since_ns,
            seconds: in_force.now_s(),
            kept: Some(false),
            why: why.clone(),
            cpu_pct: None,
            wait_per_ran: None,
            fulfilment: None,
            fulfilment_estimated: self.config.known.is_empty(),
            predicted: None,
        };
        self.add_stage(stage, watcher);
        self.note_settings(None, &last.observation);
        watcher.event(&Event::Note(&format!("{} is taken back: {why}", in_force.plan.name)));
    }
}

/// 99th percentile of the waits of all protected scopes; `None` where they were not all counted, or are few.
fn p99_ms(protected: &[Option<Histogram>]) -> Option<f64> {
    let mut pool = Histogram::default();
    for waits in protected {
        pool.merge(waits.as_ref()?);
    }
    (pool.total() >= ENOUGH).then(|| pool.quantile(0.99)).flatten().map(|ns| ns as f64 / 1e6)
}

/// Why a change goes, for people.
fn describe(leave: &Leave, name: impl Fn(&TaskId) -> String) -> String {
    match leave {
        Leave::NoGain(upper) => format!(
            "against blocks under the kernel's default it gains {:.1} % of the CPU got at most",
            100.0 * upper
        ),
        Leave::Loss(evidence) => {
            format!("against blocks under the kernel's default it costs CPU (evidence {evidence:.0} to 1)")
        }
        Leave::Victims(victims) => {
            let who = victims.iter().map(|victim| {
                let subject = match &victim.subject {
                    Subject::Task(id) => name(id),
                    Subject::Group(path) => path.clone(),
                    Subject::Outside => "everything outside the scope".to_owned(),
                };
                match victim.loss {
                    Loss::Cpu => format!("{subject} gets {:.0} % less CPU", 100.0 * (1.0 - victim.ratio)),
                    Loss::Wait => format!("{subject} waits {:.1} times as long", victim.ratio),
                }
            });
            let who: BTreeSet<String> = who.collect();
            who.into_iter().collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::monitor::Victim;

    #[test]
    fn a_reason_names_who_is_hurt_and_how() {
        let id = TaskId { tgid: 7, tid: 8, start_time: 1 };
        let victim = |subject, loss, ratio| Victim { subject, loss, ratio, evidence: 9000.0 };
        let victims =
            vec![victim(Subject::Task(id), Loss::Cpu, 0.6), victim(Subject::Outside, Loss::Wait, 2.5)];
        let words = describe(&Leave::Victims(victims), |id| format!("{} db", id.tid));
        assert_eq!(words, "8 db gets 40 % less CPU, everything outside the scope waits 2.5 times as long");
        assert!(describe(&Leave::NoGain(0.004), |_| String::new()).contains("0.4 % of the CPU got at most"));
    }

    #[test]
    fn few_waits_have_no_percentile() {
        let mut waits = Histogram::default();
        waits.add_many(1_000_000, ENOUGH - 1);
        assert_eq!(p99_ms(&[Some(waits.clone())]), None);
        assert!(p99_ms(&[Some(waits.clone()), Some(waits.clone())]).is_some_and(|ms| ms >= 1.0));
        assert_eq!(p99_ms(&[Some(waits), None]), None);
        assert_eq!(p99_ms(&[]), None);
    }
}
