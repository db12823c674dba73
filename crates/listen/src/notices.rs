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
            let starves = |share: f64, least: f64| {
                mean.wait > least
                    && mean.wait > share * (mean.wait + mean.cpu)
                    && !mean.is_held_back(0.1, 5.0)
                    && mean.cpu < MOST_OF_HOST * self.busy
            };
            let words = format!("waits {:.0} % and runs {:.0} % of one CPU", mean.wait, mean.cpu);
            let judged = Seen { bad: starves(0.5, 20.0), good: !starves(0.35, 15.0) };
            judge_worst(now, ("starved", title.clone()), (judged, words));
            let words = format!(
                "its limit holds it back {:.0} %, it runs {:.0} % of one CPU",
                mean.throttled, mean.cpu
            );
            let judged =
                Seen { bad: mean.is_held_back(1.0 / 3.0, 10.0), good: !mean.is_held_back(0.15, 7.0) };
            judge_worst(now, ("throttled", title), (judged, words));
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
mod tests {
    use evenkeel_base::{ContainerView, TaskId};

    use super::*;

    const S: u64 = 1_000_000_000;

    fn course(kind: &'static str, states: &[(u32, bool, bool)]) -> Vec<(u32, Notice)> {
        let mut notices = Notices::default();
        let (mut second, mut told) = (0, Vec::new());
        for (seconds, bad, good) in states {
            for _ in 0..*seconds {
                second += 1;
                let now = BTreeMap::from([(
                    (kind, "x".to_owned()),
                    (Seen { bad: *bad, good: *good }, String::new()),
                )]);
                let at_ns = u64::from(second) * S;
                told.extend(notices.tell(now, 1.0, at_ns).into_iter().map(|notice| (second, notice)));
            }
        }
        told
    }

    #[test]
    fn a_trial_that_stays_keeps_and_one_that_goes_back_to_the_baseline_takes_back() {
        let change = |name: &str| Plan {
            name: name.into(),
            pull: vec![TaskId { tgid: 1, tid: 1, start_time: 1 }],
            ..Plan::default()
        };
        let candidates = [change("batch"), Plan::default(), change("nice")];
        let after = [0, 1, 2].map(|winner| (kept(&candidates, winner), given_up(&candidates, winner)));
        assert_eq!(after, [(true, None), (false, Some("batch")), (true, None)]);
        // The present state is the baseline.
        let after = [0, 1].map(|winner| (kept(&candidates[1..], winner), given_up(&candidates[1..], winner)));
        assert_eq!(after, [(false, None), (true, None)]);
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
        // Bad from the 31st second, told after 60; the 20 good seconds between are no all-clear.
        let at: Vec<_> = told.iter().map(|(at, notice)| (*at, notice.over)).collect();
        assert_eq!(at, [(90, false), (470, true)]);
        let times = |(_, notice): &(u32, Notice)| (notice.since_ns / S, notice.at_ns / S);
        assert_eq!(told.iter().map(times).collect::<Vec<_>>(), [(30, 90), (30, 470)]);
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
        let told: usize = (0..100).map(|_| notices.tell(all.clone(), 1.0, 0).len()).sum();
        assert_eq!(told, MOST);
        let told: usize = (0..200).map(|_| notices.tell(BTreeMap::new(), 1.0, 0).len()).sum();
        assert_eq!((told, notices.states.len()), (MOST, 0));
    }

    #[test]
    fn of_two_of_one_name_the_one_that_starves_is_told() {
        let mut seen = labelled::host(2, 2);
        for (at, runtime) in (0..).zip(["docker", "podman"]) {
            seen.containers.push(ContainerView { group: Some(at), ..ContainerView::of("web", runtime) });
            seen.tasks[at as usize].container = Some(at);
        }
        (seen.interval_s, seen.host.busy_pct) = (1.0, 200.0);
        (seen.tasks[0].cpu_pct, seen.tasks[0].wait_pct) = (5.0, Some(90.0));
        let (mut owners, mut notices) = (Owners::default(), Notices::default());
        let mut told = Vec::new();
        for _ in 0..90 {
            owners.observe(&seen);
            let new = notices.judge(&seen, Some(&owners), &[]);
            told.extend(new.into_iter().map(|notice| (notice.kind, notice.what, notice.over)));
        }
        assert_eq!(told, [("starved", "web".to_owned(), false)]);
    }

    #[test]
    fn what_the_loop_takes_back_is_told_once_and_clear_once_it_does_not_happen_again() {
        let mut notices = Notices::default();
        let stage = |name: &str, kept| Stage {
            name: name.into(),
            seconds: 60.0,
            kept,
            why: "it helps no more".into(),
            ..Stage::default()
        };
        let mut told = Vec::new();
        for second in 0..1000_u64 {
            match second {
                // Neither is a change in force that is taken back.
                5 => notices.learn(&Event::Stage(&stage("watch batch", None))),
                6 => notices.learn(&Event::Stage(&stage("trial batch", Some(false)))),
                10 | 200 => notices.learn(&Event::Stage(&stage("watch batch", Some(false)))),
                20 => notices.learn(&Event::Interference { target: "/a", what: "weight 300" }),
                _ => {}
            }
            let mut now = Judged::new();
            notices.judge_loop(&[], &mut now);
            told.extend(notices.tell(now, 1.0, second * S));
        }
        let told: Vec<String> =
            told.iter().map(|n| format!("{} {} {n}", n.at_ns / S, n.since_ns / S)).collect();
        assert_eq!(
            told,
            [
                "10 10 notice: reverted: batch: the change is taken back: it helps no more",
                "20 20 notice: interference: /a: somebody else set weight 300",
                "620 20 all clear: interference: /a: it did not happen again",
                "800 10 all clear: reverted: batch: it did not happen again",
            ]
        );
    }

    #[test]
    fn a_promise_that_is_only_at_risk_is_clear_and_one_of_which_nothing_is_known_is_not() {
        let mut notices = Notices::default();
        let mut told = Vec::new();
        for second in 0..200_u64 {
            let state = match second {
                0..20 => PromiseState::Broken,
                20..100 => PromiseState::Unknown,
                _ => PromiseState::AtRisk,
            };
            let promise = GuaranteeStatus { name: "web".into(), state, ..GuaranteeStatus::default() };
            let mut now = Judged::new();
            notices.judge_loop(&[promise], &mut now);
            told.extend(notices.tell(now, 1.0, second * S).iter().map(|n| (n.at_ns / S, n.over)));
        }
        assert_eq!(told, [(9, false), (159, true)]);
    }

    #[test]
    fn a_name_with_the_end_of_a_line_makes_one_line() {
        let what = "x\n<0>evenkeel: all is well".to_owned();
        let notice =
            Notice { kind: "starved", what, words: String::new(), over: true, since_ns: 0, at_ns: 0 };
        assert!(!notice.to_string().contains('\n'), "{notice}");
    }
}
