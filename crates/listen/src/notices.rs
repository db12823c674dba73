//! Notices without Prometheus: who starves, is throttled, stolen from; whose promise is broken; what the loop took back, and who
//! sets what it sets. One fault gives one notice and one all-clear: a state must last before it is told, and must be over for as
//! long before it ends.

#[cfg(test)]
pub(crate) mod labelled;

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_agent::Event;
use evenkeel_base::run::{Act, GuaranteeStatus, Stage};
use evenkeel_base::{Observation, Plan, PromiseState};

use super::owners::{Kind, Owners};
use evenkeel_console::{self as console, Level};

/// Notices in force at a time, and kept as known: more say no more.
const MOST: usize = 100;
/// Time constant of the averages that are judged, seconds.
const SMOOTH_S: f64 = 10.0;

/// A state that is told, by what it is about.
type Subject = (&'static str, String);

/// What is judged of each, and in which words.
type Judged = BTreeMap<Subject, (Seen, String)>;

/// A state that begins, or is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Which state, such as `starved`.
    pub kind: &'static str,
    /// Who or what is in it. Whatever somebody called it.
    pub what: String,
    pub words: String,
    pub over: bool,
    /// When the state began, wall clock, nanoseconds since 1970: the same in the notice and its all-clear.
    pub since_ns: u64,
    /// When it was judged so, wall clock, nanoseconds since 1970.
    pub at_ns: u64,
}

impl Notice {
    pub fn say(&self) {
        let level = if self.over { Level::Info } else { Level::Warning };
        console::message_at(level, &format!("evenkeel: {self}\n"));
    }
}

/// In one line: a name may hold the end of one.
impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.over { "all clear" } else { "notice" };
        let line = format!("{state}: {}: {}: {}", self.kind, self.what, self.words);
        f.write_str(&line.replace('\n', " "))
    }
}

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
    /// When it began to be bad, wall clock, nanoseconds since 1970.
    since_ns: u64,
}

/// Averages of an owner, percent of one CPU.
#[derive(Debug, Clone, Copy, Default)]
struct Average {
    cpu: f64,
    wait: f64,
    throttled: f64,
}

/// Who does more than this part of what all CPUs do is starved by no other task: its threads wait for each other.
const MOST_OF_HOST: f64 = 0.45;

impl Average {
    /// Whether a quota holds it back for more than a share of the time it wants, and more than so many percent. Its threads
    /// wait then, one by one, for the quota; its throttled time is counted by CPU.
    fn is_held_back(&self, share: f64, least: f64) -> bool {
        self.throttled > least && self.throttled > share * (self.throttled + self.cpu)
    }
}

/// Judges one of a name. Several may have it, as containers of two runtimes: the worst is told.
fn judge_worst(now: &mut Judged, subject: Subject, judged: (Seen, String)) {
    let rank = |seen: Seen| (seen.bad, !seen.good);
    if now.get(&subject).is_none_or(|known| rank(known.0) < rank(judged.0)) {
        now.insert(subject, judged);
    }
}

/// What was told and what may have to be.
#[derive(Debug, Clone, Default)]
pub struct Notices {
    states: BTreeMap<Subject, State>,
    averages: BTreeMap<u32, Average>,
    /// Of all CPUs, percent of one.
    busy: f64,
    steal: f64,
    /// What happened since the last interval, in words.
    happened: BTreeMap<Subject, String>,
}

/// Kinds that are events: they last for no time, and are over once none like it follows for a while.
const EVENTS: [&str; 2] = ["reverted", "interference"];

/// Seconds that a kind of state must last before its notice, and be over before its all-clear.
fn patience(kind: &str) -> (f64, f64) {
    match kind {
        "starved" | "throttled" => (60.0, 120.0),
        "steal" => (30.0, 120.0),
        _ if EVENTS.contains(&kind) => (0.0, 600.0),
        _ => (10.0, 60.0),
    }
}

/// The change in force that this stage took back, if it did.
pub fn taken_back(stage: &Stage) -> Option<&str> {
    (stage.name.act == Some(Act::Watch) && stage.kept == Some(false)).then_some(stage.name.settings.as_str())
}

/// Whether settings of ours are in force after a trial.
pub fn kept(candidates: &[Plan], winner: usize) -> bool {
    candidates.get(winner).is_some_and(|plan| !plan.is_default())
}

/// The change in force that a trial gave up for the baseline, if it did.
pub fn given_up(candidates: &[Plan], winner: usize) -> Option<&str> {
    let present = candidates.first().filter(|present| !present.is_default() && !kept(candidates, winner))?;
    Some(&present.name)
}

impl Notices {
    /// Takes what the loop says.
    pub fn learn(&mut self, event: &Event<'_>) {
        let (kind, what, words) = match event {
            Event::Stage(stage) => {
                let Some(name) = taken_back(stage) else { return };
                ("reverted", name, format!("the change is taken back: {}", stage.why))
            }
            Event::Decided { decision, candidates } => {
                let Some(name) = given_up(candidates, decision.winner) else { return };
                ("reverted", name, "the change is taken back: a trial kept the baseline".to_owned())
            }
            Event::Interference { target, what } => {
                ("interference", *target, format!("somebody else set {what}"))
            }
            _ => return,
        };
        if self.happened.len() < MOST {
            self.happened.insert((kind, what.to_owned()), words);
        }
    }

    /// What there is to tell after an interval. Without owners only what the loop knows is judged: promises, and what
    /// happened.
    pub fn judge(
        &mut self,
        seen: &Observation,
        owners: Option<&Owners>,
        promises: &[GuaranteeStatus],
    ) -> Vec<Notice> {
        let mut now = Judged::new();
        if let Some(owners) = owners {
            self.judge_host(seen, owners, &mut now);
        }
        self.judge_loop(promises, &mut now);
        self.tell(now, seen.interval_s, seen.wall_ns)
    }

    fn judge_loop(&mut self, promises: &[GuaranteeStatus], now: &mut Judged) {
        for promise in promises {
            let state = promise.state;
            let judged = Seen {
                bad: state == PromiseState::Broken,
                // At risk is kept, too; where waits are estimated it is never better than that.
                good: matches!(state, PromiseState::Kept | PromiseState::AtRisk | PromiseState::Waiting),
            };
            now.insert(
                ("guarantee", promise.name.clone()),
                (judged, format!("the promise of {} is {state}", promise.promise)),
            );
        }
        for (subject, words) in std::mem::take(&mut self.happened) {
            now.insert(subject, (Seen { bad: true, good: false }, words));
        }
    }

    fn judge_host(&mut self, seen: &Observation, owners: &Owners, now: &mut Judged) {
        let part = 1.0 - (-seen.interval_s / SMOOTH_S).exp();
        self.busy += part * (seen.host.busy_pct - self.busy);
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
            // That is no fault: somebody asked for it.
            let may_wait = owners.background.contains(&owner.number);
            let in_words = |words| {
                if may_wait {
                    "it is background work, which may wait and be held back".to_owned()
                } else {
                    words
                }
            };
            let starves = |share: f64, least: f64| {
                !may_wait
                    && mean.wait > least
                    && mean.wait > share * (mean.wait + mean.cpu)
                    && !mean.is_held_back(0.1, 5.0)
                    && mean.cpu < MOST_OF_HOST * self.busy
            };
            let words = format!("waits {:.0} % and runs {:.0} % of one CPU", mean.wait, mean.cpu);
            let judged = Seen { bad: starves(0.5, 20.0), good: !starves(0.35, 15.0) };
            judge_worst(now, ("starved", title.clone()), (judged, in_words(words)));
            let words = format!(
                "its limit holds it back {:.0} %, it runs {:.0} % of one CPU",
                mean.throttled, mean.cpu
            );
            let held_back = |share: f64, least: f64| !may_wait && mean.is_held_back(share, least);
            let judged = Seen { bad: held_back(1.0 / 3.0, 10.0), good: !held_back(0.15, 7.0) };
            judge_worst(now, ("throttled", title), (judged, in_words(words)));
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
        for cpu in seen.topology.isolated.iter() {
            let ran = seen.tasks.iter().filter(|t| t.cpu == Some(cpu) && t.cpu_pct > 0.0 && !t.kernel_thread);
            let ran = ran.count();
            let judged = Seen { bad: ran > 1, good: ran <= 1 };
            now.insert(
                ("isolation", format!("CPU {cpu}")),
                (judged, format!("{ran} tasks run on this isolated CPU")),
            );
        }
    }

    /// Goes on with what is judged now; who is gone is good.
    fn tell(&mut self, now: Judged, interval_s: f64, at_ns: u64) -> Vec<Notice> {
        let mut notices = Vec::new();
        for (subject, (seen, _)) in &now {
            if seen.bad && !self.states.contains_key(subject) && self.states.len() < MOST {
                let since_ns = match EVENTS.contains(&subject.0) {
                    true => at_ns,
                    false => at_ns.saturating_sub((interval_s * 1e9) as u64),
                };
                self.states.insert(subject.clone(), State { since_ns, ..State::default() });
            }
        }
        self.states.retain(|subject, state| {
            let (kind, who) = (subject.0, &subject.1);
            let (seen, words) = match now.get(subject) {
                Some((seen, words)) => (*seen, words.as_str()),
                None if EVENTS.contains(&kind) => {
                    (Seen { bad: false, good: true }, "it did not happen again")
                }
                None => (Seen { bad: false, good: true }, "it is gone"),
            };
            let notice = |over| Notice {
                kind,
                what: who.clone(),
                words: words.to_owned(),
                over,
                since_ns: state.since_ns,
                at_ns,
            };
            let (before, after) = patience(kind);
            let goes_on = if state.told { seen.good } else { seen.bad };
            state.lasted_s = if goes_on { state.lasted_s + interval_s } else { 0.0 };
            if !state.told && state.lasted_s >= before {
                notices.push(notice(false));
                (state.told, state.lasted_s) = (true, 0.0);
            } else if state.told && state.lasted_s >= after {
                notices.push(notice(true));
                return false;
            }
            state.told || seen.bad
        });
        notices
    }
}

#[cfg(test)]
mod tests;
