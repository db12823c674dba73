//! A change in force and what watches it, with the clock given: what is to be in force now, which window is measured until
//! when, and whether the change has to go. When and why is [`evenkeel_policy::monitor`]'s.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_base::run::EffectNow;
use evenkeel_base::{Histogram, Plan, TaskId};
use evenkeel_policy::monitor::{
    Arm, Decided, Leave, Loss, Monitor, MonitorRules, Seen, Step, Subject, Unit, VictimLimits,
};
use evenkeel_policy::protect::{self, LatencyTarget};
use evenkeel_policy::requests::{Requests, slow_share};
use evenkeel_policy::trial::{Decision, Objective, TrialRules, Verdict};
use evenkeel_policy::window::Summary;

use crate::slo::{Pending, Span};

/// Waits in a window needed for their 99th percentile.
const ENOUGH: u64 = 200;
/// Factor between two 99th percentiles, or shares of slow requests, from which they are told apart.
const MORE: f64 = 1.25;

/// A change in force and what watches it.
#[derive(Debug)]
pub(crate) struct KeptChange {
    monitor: Monitor,
    plan: Plan,
    objective: Objective,
    since_s: f64,
    since_ns: u64,
    /// When it was proved, if that was before it was put in force here, nanoseconds since 1970.
    proved_ns: Option<u64>,
    /// Windows of blocks whose requests are not known yet.
    pending: Pending<Arm>,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// Whose settings, and whether a window is measured.
    pub step: Step,
    pub left: Duration,
    /// Settings take hold meanwhile: nothing is measured.
    pub settles: bool,
}

/// The clocks: seconds since the run began, and nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub s: f64,
    pub wall_ns: u64,
}

impl KeptChange {
    /// A change that was kept now, with what its decision knew and weighed.
    pub fn new(plan: Plan, rules: MonitorRules, decided: Decided, objective: Objective, now: Now) -> Self {
        // Nobody is to foresee the blocks, and no two runs are to have the same.
        let monitor = Monitor::new(rules, decided, now.s, now.wall_ns);
        Self {
            monitor,
            plan,
            objective,
            since_s: now.s,
            since_ns: now.wall_ns,
            proved_ns: None,
            pending: Pending::default(),
        }
    }

    /// The decision was an earlier run's: what it measured is as old as that.
    pub fn proved_at(self, ns: u64) -> Self {
        Self { proved_ns: Some(ns), ..self }
    }

    /// The same change covers more, or less.
    pub fn extend(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// What its gains are counted in.
    pub fn unit(&self) -> Unit {
        self.objective.unit()
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Since when it is in force, nanoseconds since 1970, and for how many seconds.
    pub fn since(&self, now: Now) -> (u64, f64) {
        (self.since_ns, now.s - self.since_s)
    }

    /// The settings that are to be in force now; `None`: the baseline.
    pub fn wanted(&self) -> Option<&Plan> {
        (self.monitor.step().arm == Arm::Change).then_some(&self.plan)
    }

    /// What is to be done next.
    pub fn turn(&self, now: Now) -> Turn {
        let step = self.monitor.step();
        let left = (step.until_s - now.s).max(0.0);
        // Nothing is ever due where nothing is held out.
        let left = if left.is_finite() { Duration::from_secs_f64(left) } else { Duration::MAX };
        Turn { step, left, settles: self.monitor.in_block() && !step.measure }
    }

    /// The step's time is over, and this is its window if one was measured. Says why the change has to go, if it has.
    pub fn end_step(&mut self, now: Now, window: Option<(&Summary, &[Option<Histogram>])>) -> Option<Leave> {
        let seen = window.and_then(|(summary, waits)| {
            Some(Seen { wait_p99_ms: p99_ms(waits), ..self.objective.seen(summary, waits)? })
        });
        let hour = (now.wall_ns / 3_600_000_000_000 % 24) as usize;
        self.monitor.advance(now.s, hour, seen)
    }

    /// A window of this step ended: what services count in it becomes known later.
    pub fn await_requests(&mut self, span: Span) {
        self.pending.add(span, self.monitor.step().arm);
    }

    /// Takes in what services counted in windows of blocks, as far as it is known by now.
    pub fn take_requests(
        &mut self,
        services: &[LatencyTarget],
        requests: impl Fn(Span) -> Option<Vec<Option<Requests>>>,
    ) {
        for (arm, requests) in self.pending.known(requests) {
            for (service, requests) in services.iter().zip(requests) {
                if let Some(target) = service.requests {
                    self.monitor.requests(&service.name, target, requests, arm);
                }
            }
        }
    }

    /// Whatever block is under way comes to nothing: the change is to be in force.
    pub fn stop_block(&mut self, now: Now) {
        if self.monitor.in_block() {
            self.monitor.abort(now.s);
        }
    }

    /// Whether it is ever compared with the baseline.
    pub fn is_held_out(&self) -> bool {
        self.monitor.is_held_out()
    }

    pub fn blocks(&self) -> u64 {
        self.monitor.blocks()
    }

    pub fn effect(&self, now: Now) -> EffectNow {
        let mut effect = self.monitor.effect(now.s, now.wall_ns, self.since_ns);
        if let Some(proved_ns) = self.proved_ns.filter(|_| !effect.held_out) {
            for measured in [&mut effect.cpu_pct, &mut effect.wait_p99_ms].into_iter().flatten() {
                measured.since_ns = proved_ns;
            }
        }
        effect
    }
}

/// The monitor's rules: what what the guard lets no task lose must not be lost later, either.
pub(crate) fn rules(monitor: MonitorRules, trial: &TrialRules) -> MonitorRules {
    let guard = trial.guard;
    MonitorRules {
        min_gain: trial.min_gain,
        victims: VictimLimits {
            cpu_loss: guard.cpu_loss,
            outside_cpu_loss: guard.outside_cpu_loss,
            wait_factor: guard.wait_factor,
            wait_floor: guard.wait_floor,
            ..monitor.victims
        },
        ..monitor
    }
}

/// What a decision knew of its winner. `default` is the candidate that was the baseline.
pub(crate) fn decided(decision: &Decision, default: usize) -> Decided {
    let verdict = &decision.verdicts[decision.winner];
    let found = &decision.verdicts[default];
    // The longest under each, of those whose waits are known under both.
    let known =
        found.protected_ns.iter().zip(&verdict.protected_ns).filter_map(|(found, new)| found.zip(*new));
    let waits = known.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
    let decided = Decided {
        unit: decision.objective.unit(),
        gain: decision.gain(),
        wait_p99_ms: waits
            .map(|(found, new)| ((new as f64 - found as f64) / 1e6, f64::NEG_INFINITY, f64::INFINITY)),
        protects: decision.objective.is_for_services() || protects(verdict, found),
        ..Decided::default()
    };
    if default != 0 {
        // Pairs and gains are over the present state, which was another change.
        return decided;
    }
    let cpu_pct = verdict.gain_pct.map(|gain| (gain.value, gain.low, gain.high));
    Decided { cpu_pct, pairs: decision.pairs.clone(), ..decided }
}

/// Whether without a change somebody protected by name waits longer, or more of its requests are slow: by a quarter at least. A
/// percentile differs by some of that from one trial to the next, and is known to a quarter only.
fn protects(change: &Verdict, found: &Verdict) -> bool {
    let mut waits = change.protected_ns.iter().zip(&found.protected_ns);
    let mut requests = change.requests.iter().zip(&found.requests);
    let longer = |new: u64, found: u64| found > protect::FLOOR_NS && found as f64 > MORE * new as f64;
    waits.any(|(new, found)| new.zip(*found).is_some_and(|(new, found)| longer(new, found)))
        || requests.any(|(new, found)| {
            slow_share(new).zip(slow_share(found)).is_some_and(|(new, found)| found > MORE * new)
        })
}

/// 99th percentile of the waits of all protected scopes; `None` where they were not all counted, or are few.
fn p99_ms(protected: &[Option<Histogram>]) -> Option<f64> {
    let pool: Histogram = protected.iter().map(Option::as_ref).sum::<Option<_>>()?;
    (pool.total() >= ENOUGH).then(|| pool.quantile(0.99)).flatten().map(|ns| ns as f64 / 1e6)
}

/// Why a change goes, as a message.
pub(crate) fn describe(leave: &Leave, unit: Unit, name: impl Fn(&TaskId) -> String) -> String {
    match leave {
        Leave::NoGain(upper) => {
            let gain = match unit {
                Unit::CpuGot => {
                    format!("CPU and waits together gain {:.1} % of the CPU got at most", 100.0 * upper)
                }
                Unit::LogDelay => {
                    format!("requests to services are delayed at most {:.2} times less", upper.exp())
                }
            };
            format!("against blocks under the baseline {gain}")
        }
        Leave::Loss(evidence) => {
            let loss = match unit {
                Unit::CpuGot => "CPU and waits together get worse",
                Unit::LogDelay => "requests to services are delayed longer",
            };
            format!("against blocks under the baseline {loss} (evidence {evidence:.0} to 1)")
        }
        Leave::Victims(victims) => {
            let who = victims.iter().map(|victim| {
                let subject = match &victim.subject {
                    Subject::Task(id) => name(id),
                    Subject::Group(path) => path.clone(),
                    Subject::Outside => "everything outside the scope".to_owned(),
                    Subject::Service(name) => name.clone(),
                };
                match victim.loss {
                    Loss::Cpu => format!("{subject} gets {:.0} % less CPU", 100.0 * (1.0 - victim.ratio)),
                    Loss::Wait => format!("{subject} waits {:.1} times as long", victim.ratio),
                    Loss::Tail => format!("{subject} has {:.1} times as many long waits", victim.ratio),
                    Loss::Slow => format!("{subject} has {:.1} times as many slow requests", victim.ratio),
                }
            });
            let who: BTreeSet<String> = who.collect();
            who.into_iter().collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests;
