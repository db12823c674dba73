//! Notices without Prometheus: who starves, is throttled, stolen from; whose promise is broken. One fault gives one notice and
//! one all-clear: a state must last before it is told, and must be over for as long before it ends.

use std::collections::BTreeMap;

use evenkeel_base::Observation;
use evenkeel_base::run::GuaranteeStatus;

use super::owners::{Kind, Owners};

/// Notices in force at a time, and kept as known: more say no more.
const MOST: usize = 100;
/// Time constant of the averages that are judged, seconds.
const SMOOTH_S: f64 = 10.0;

/// A state that is told, by what it is about.
type Subject = (&'static str, String);

/// What is judged of a subject.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// It is bad enough for a notice.
    bad: bool,
    /// It is good enough for an all-clear.
    good: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    told: bool,
    /// How long it has been bad (until it is told), or good (from then on), seconds.
    lasted_s: f64,
}

/// Averages of an owner, percent of one CPU.
#[derive(Debug, Clone, Copy, Default)]
struct Average {
    cpu: f64,
    wait: f64,
    throttled: f64,
}

/// What was told and what may have to be.
#[derive(Debug, Clone, Default)]
pub struct Notices {
    states: BTreeMap<Subject, State>,
    averages: BTreeMap<u32, Average>,
    steal: f64,
}

/// Seconds that a kind of state must last before its notice, and be over before its all-clear.
fn patience(kind: &str) -> (f64, f64) {
    match kind {
        "starved" | "throttled" => (60.0, 120.0),
        "steal" => (30.0, 120.0),
        _ => (10.0, 60.0),
    }
}

impl Notices {
    /// What there is to tell after an interval.
    pub fn judge(
        &mut self,
        seen: &Observation,
        owners: &Owners,
        promises: &[GuaranteeStatus],
    ) -> Vec<String> {
        let part = 1.0 - (-seen.interval_s / SMOOTH_S).exp();
        let mut now: BTreeMap<Subject, (Seen, String)> = BTreeMap::new();
        let mut averages = BTreeMap::new();
        for owner in owners.iter().filter(|owner| owner.key.kind != Kind::Other && owner.tasks > 0) {
            let mut mean = self.averages.get(&owner.number).copied().unwrap_or_default();
            let throttled = owner.now.throttled.unwrap_or(0.0);
            // Throttled threads wait in the kernel's count, too.
            let wait = (owner.now.wait.unwrap_or(0.0) - throttled).max(0.0);
            mean.cpu += part * (owner.now.cpu - mean.cpu);
            mean.wait += part * (wait - mean.wait);
            mean.throttled += part * (throttled - mean.throttled);
            averages.insert(owner.number, mean);
            let title = owner.key.title();
            let starves =
                |share: f64, least: f64| mean.wait > least && mean.wait > share * (mean.wait + mean.cpu);
            let words = format!("waits {:.0} % and runs {:.0} % of one CPU", mean.wait, mean.cpu);
            let judged = Seen { bad: starves(0.5, 20.0), good: !starves(0.35, 15.0) };
            now.insert(("starved", title.clone()), (judged, words));
            let held = |share: f64, least: f64| {
                mean.throttled > least && mean.throttled > share * (mean.throttled + mean.cpu)
            };
            let words = format!(
                "its limit holds it back {:.0} %, it runs {:.0} % of one CPU",
                mean.throttled, mean.cpu
            );
            let judged = Seen { bad: held(0.25, 10.0), good: !held(0.15, 7.0) };
            now.insert(("throttled", title), (judged, words));
        }
        self.averages = averages;
        if let Some(steal) = seen.host.steal_pct {
            self.steal += part * (steal / f64::from(seen.host.cpus.max(1)) - self.steal);
            let judged = Seen { bad: self.steal > 5.0, good: self.steal < 2.0 };
            now.insert(
                ("steal", "this host".to_owned()),
                (judged, format!("{:.1} % of its CPUs' time is stolen", self.steal)),
            );
        }
        for promise in promises {
            let state = promise.state.as_str();
            let judged = Seen { bad: state == "broken", good: matches!(state, "kept" | "waiting") };
            now.insert(
                ("guarantee", promise.name.clone()),
                (judged, format!("the promise of {} is {state}", promise.promise)),
            );
        }
        for cpu in seen.topology.isolated.iter() {
            let ran = seen.tasks.iter().filter(|t| t.cpu == Some(cpu) && t.cpu_pct > 0.0 && !t.kernel_thread);
            let ran = ran.count();
            let judged = Seen { bad: ran > 1, good: ran <= 1 };
            now.insert(
                ("isolation", format!("CPU {cpu}")),
                (judged, format!("{ran} tasks run on this isolated CPU")),
            );
        }
        self.tell(now, seen.interval_s)
    }

    /// Goes on with what is judged now; who is gone is good.
    fn tell(&mut self, now: BTreeMap<Subject, (Seen, String)>, interval_s: f64) -> Vec<String> {
        let mut notices = Vec::new();
        for (subject, (seen, _)) in &now {
            if seen.bad && !self.states.contains_key(subject) && self.states.len() < MOST {
                self.states.insert(subject.clone(), State::default());
            }
        }
        self.states.retain(|subject, state| {
            let (kind, who) = (subject.0, &subject.1);
            let (seen, words) = match now.get(subject) {
                Some((seen, words)) => (*seen, words.as_str()),
                None => (Seen { bad: false, good: true }, "it is gone"),
            };
            let (before, after) = patience(kind);
            let goes_on = if state.told { seen.good } else { seen.bad };
            state.lasted_s = if goes_on { state.lasted_s + interval_s } else { 0.0 };
            if !state.told && state.lasted_s >= before {
                *state = State { told: true, lasted_s: 0.0 };
                notices.push(format!("notice: {kind}: {who}: {words}"));
            } else if state.told && state.lasted_s >= after {
                notices.push(format!("all clear: {kind}: {who}: {words}"));
                return false;
            }
            state.told || seen.bad
        });
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(kind: &'static str, states: &[(u32, bool, bool)]) -> Vec<(u32, String)> {
        let mut notices = Notices::default();
        let (mut second, mut told) = (0, Vec::new());
        for (seconds, bad, good) in states {
            for _ in 0..*seconds {
                second += 1;
                let now = BTreeMap::from([(
                    (kind, "x".to_owned()),
                    (Seen { bad: *bad, good: *good }, String::new()),
                )]);
                told.extend(notices.tell(now, 1.0).into_iter().map(|text| (second, text)));
            }
        }
        told
    }

    #[test]
    fn one_fault_gives_one_notice_and_one_all_clear() {
        let told = course(
            "starved",
            &[
                (30, false, true),
                (200, true, false),
                (20, false, true),
                (100, true, false),
                (300, false, true),
            ],
        );
        let told: Vec<_> = told.iter().map(|(at, text)| (*at, text.split(':').next().unwrap())).collect();
        // Bad from the 31st second, told after 60; the 20 good seconds between are no all-clear.
        assert_eq!(told, [(90, "notice"), (470, "all clear")]);
    }

    #[test]
    fn what_passes_or_flickers_is_not_told() {
        assert!(course("starved", &[(59, true, false), (1, false, true), (59, true, false)]).is_empty());
        let flicker: Vec<_> = (0..100).flat_map(|_| [(5, true, false), (1, false, false)]).collect();
        assert!(course("guarantee", &flicker).is_empty());
        // Between the two bounds a notice stays.
        assert_eq!(course("guarantee", &[(20, true, false), (500, false, false)]).len(), 1);
    }

    #[test]
    fn who_is_gone_is_clear_and_many_are_bounded() {
        let mut notices = Notices::default();
        let all: BTreeMap<_, _> = (0..500)
            .map(|n| (("starved", n.to_string()), (Seen { bad: true, good: false }, String::new())))
            .collect();
        let told: usize = (0..100).map(|_| notices.tell(all.clone(), 1.0).len()).sum();
        assert_eq!(told, MOST);
        let told: usize = (0..200).map(|_| notices.tell(BTreeMap::new(), 1.0).len()).sum();
        assert_eq!((told, notices.states.len()), (MOST, 0));
    }
}
