//! One promise: what it got, how it stands, for how long it was broken.

use std::collections::VecDeque;

use evenkeel_base::run::GuaranteeStatus;
use evenkeel_base::{Histogram, PromiseState};
use evenkeel_policy::guarantee::rate::{Allowed, offers};
use evenkeel_policy::guarantee::verdict::{self, Judgement, Verdict, Window};
use evenkeel_policy::protect::{ENOUGH, keeps};
use evenkeel_store::PromiseTime;

use super::Guarantee;

/// Length of a window that is judged, seconds.
const WINDOW_S: f64 = 1.0;
/// Windows remembered: one broken among them makes a promise that is kept now one at risk.
const RECENT: usize = 10;
/// Time for which waits are remembered, seconds.
const WAITS_S: f64 = 20.0;

/// The waits for a CPU of the last 20 seconds: every one of them where programs in the kernel count them; else the mean of
/// each tick, and the 99th percentile of the means is an estimate from below of that of the waits.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    exact: bool,
    /// Seconds and waits, second by second.
    windows: VecDeque<(f64, Histogram)>,
}

impl Waits {
    /// What counters say of a tick, also of one without waits: those before grow old. Of no interest where every wait is counted.
    pub fn add_mean(&mut self, seconds: f64, waited_s: f64, timeslices: u64) {
        if !self.exact {
            let mean_ns = waited_s * 1e9 / timeslices.max(1) as f64;
            self.add(seconds, Histogram::of(&[(mean_ns as u64, timeslices)]));
        }
    }

    /// Every wait since the last observation, so many seconds ago.
    pub fn add_exact(&mut self, seconds: f64, waits: Histogram) {
        if !std::mem::replace(&mut self.exact, true) {
            self.windows.clear();
        }
        self.add(seconds, waits);
    }

    fn add(&mut self, seconds: f64, waits: Histogram) {
        match self.windows.back_mut() {
            Some((sum_s, sum)) if *sum_s < WINDOW_S => {
                *sum_s += seconds;
                sum.merge(&waits);
            }
            _ => self.windows.push_back((seconds, waits)),
        }
        while self.windows.len() > 1 && self.windows.iter().map(|(seconds, _)| seconds).sum::<f64>() > WAITS_S
        {
            self.windows.pop_front();
        }
    }

    /// Whether the percentile is an estimate.
    pub fn is_estimated(&self) -> bool {
        !self.exact
    }

    /// The 99th percentile, nanoseconds; `None` with too few waits, unless these show that it is beyond a bound.
    pub fn p99_ns(&self, bound_ns: Option<u64>) -> Option<u64> {
        let all: Histogram = self.windows.iter().map(|(_, waits)| waits).sum();
        let is_broken = || self.exact && bound_ns.is_some_and(|ns| keeps(&all, ns) == Some(false));
        all.quantile(0.99).filter(|_| all.total() >= ENOUGH || is_broken())
    }
}

/// A promise and how it stands.
#[derive(Debug, Clone)]
pub struct GuaranteeState {
    pub stated: Guarantee,
    /// Promised, percent of one CPU on this host.
    pub pct: Option<f64>,
    /// Why it was not admitted.
    pub refusal: Option<String>,
    pub tasks: u32,
    /// Where it has none: a promise stated before it that has tasks of its scope.
    pub behind: Option<String>,
    /// By what it is kept.
    pub lever: String,
    /// What stands in the way, such as a write that failed.
    pub problem: Option<String>,
    pub waits: Waits,
    current: Window,
    last: Option<(Window, Verdict)>,
    /// The CPU of the last window by both meanings.
    cpu: Option<Judgement>,
    recent: VecDeque<PromiseState>,
    unwritten: PromiseTime,
    total: PromiseTime,
}

impl GuaranteeState {
    pub fn new(stated: Guarantee) -> Self {
        Self {
            stated,
            pct: None,
            refusal: None,
            tasks: 0,
            behind: None,
            lever: String::new(),
            problem: None,
            waits: Waits::default(),
            current: Window::default(),
            last: None,
            cpu: None,
            recent: VecDeque::new(),
            unwritten: PromiseTime::default(),
            total: PromiseTime::default(),
        }
    }

    /// Whether settings are to keep it.
    pub fn is_active(&self) -> bool {
        self.refusal.is_none() && self.tasks > 0
    }

    /// Takes a tick into account. A change between kept and not kept, in words.
    pub fn add(&mut self, tick: Window) -> Option<String> {
        let wanted_pct = tick.wanted_pct;
        self.current = if self.current.seconds > 0.0 { self.current.plus(tick) } else { tick };
        self.current.wanted_pct = wanted_pct;
        if self.current.seconds < WINDOW_S { None } else { self.close_window() }
    }

    /// Judges what was added since the last judgement, however short. A change between kept and not kept, in words.
    pub fn close_window(&mut self) -> Option<String> {
        if self.current.seconds <= 0.0 {
            return None;
        }
        let window = std::mem::take(&mut self.current);
        let was = self.state();
        self.cpu = self.pct.map(|pct| verdict::judge(pct, &window));
        let verdict = self.verdict();
        for time in [&mut self.unwritten, &mut self.total] {
            time.watched_s += window.seconds;
            if verdict.state == PromiseState::Broken {
                time.broken_s += window.seconds;
            }
        }
        self.recent.push_back(verdict.state);
        while self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.last = Some((window, verdict));
        let is = self.state();
        (was.is_no() != is.is_no())
            .then(|| format!("guarantee {}: {}: {}", self.stated.name, is.name(), self.why()))
    }

    fn verdict(&self) -> Verdict {
        let cpu = self.cpu.as_ref().map(|judged| judged.by(self.stated.promise.mean).clone());
        let estimated = self.waits.is_estimated();
        let promised = self.stated.promise.wait_p99_ns;
        let wait = promised.map(|ns| verdict::judge_wait(ns, self.wait_p99_ns(), estimated));
        match (cpu, wait) {
            (Some(cpu), Some(wait)) => {
                let (state, short_pct) = (cpu.state.max(wait.state), cpu.short_pct);
                Verdict { state, short_pct, why: format!("{}; {}", cpu.why, wait.why) }
            }
            (Some(verdict), None) | (None, Some(verdict)) => verdict,
            (None, None) => Verdict {
                state: PromiseState::Unknown,
                short_pct: 0.0,
                why: "nothing is promised".to_owned(),
            },
        }
    }

    /// Nothing matches any more: what it got before says nothing about who comes next.
    pub fn forget(&mut self) {
        self.current = Window::default();
        self.last = None;
        self.cpu = None;
        self.recent.clear();
        self.waits = Waits::default();
        self.problem = None;
        self.lever.clear();
    }

    /// Points missing of the supply in the last window: those that settings can give it.
    pub fn short_pct(&self) -> f64 {
        self.cpu.as_ref().map_or(0.0, |judged| judged.supply.short_pct)
    }

    /// Percent of the last window in which its tasks waited.
    pub fn waited_pct(&self) -> Option<f64> {
        let (window, _) = self.last.as_ref()?;
        Some(100.0 * window.waited_s? / window.seconds.max(1e-9))
    }

    fn wait_p99_ns(&self) -> Option<u64> {
        self.waits.p99_ns(self.stated.promise.wait_p99_ns)
    }

    pub fn state(&self) -> PromiseState {
        if self.refusal.is_some() {
            return PromiseState::Refused;
        }
        if self.tasks == 0 {
            return PromiseState::Waiting;
        }
        match &self.last {
            None => PromiseState::Unknown,
            Some((_, verdict))
                if verdict.state == PromiseState::Kept && self.recent.contains(&PromiseState::Broken) =>
            {
                PromiseState::AtRisk
            }
            Some((_, verdict)) => verdict.state,
        }
    }

    /// Why it has no task, in words.
    pub fn waits_for(&self) -> String {
        match &self.behind {
            None => "no task matches its scope; it stands for when one does".to_owned(),
            Some(other) => format!(
                "promises before it, such as that of {other}, have the tasks of its scope; it stands for when another matches"
            ),
        }
    }

    fn why(&self) -> String {
        if let Some(refusal) = &self.refusal {
            return refusal.clone();
        }
        if self.tasks == 0 {
            return self.waits_for();
        }
        let mut why = self
            .last
            .as_ref()
            .map_or_else(|| "not judged yet".to_owned(), |(_, verdict)| verdict.why.clone());
        let broken = self.recent.iter().filter(|state| **state == PromiseState::Broken).count();
        if broken > 0 && self.state() == PromiseState::AtRisk {
            why += &format!("; broken in {broken} of the last {} seconds", self.recent.len());
        }
        if let Some(problem) = &self.problem {
            why += &format!("; {problem}");
        }
        why
    }

    /// What was not handed out by [`GuaranteeState::take_time`] yet.
    pub fn unwritten(&self) -> PromiseTime {
        self.unwritten
    }

    pub fn take_time(&mut self) -> Option<PromiseTime> {
        (self.unwritten.watched_s > 0.0).then(|| std::mem::take(&mut self.unwritten))
    }

    /// Since the start of this run.
    pub fn total(&self) -> PromiseTime {
        self.total
    }

    /// `allowed`: what may be offered where only the rate is short.
    pub fn status(&self, allowed: Allowed) -> GuaranteeStatus {
        let window = self.last.as_ref().map(|(window, _)| window);
        let cpu = self.cpu.as_ref();
        let state = |pick: fn(&Judgement) -> &Verdict| cpu.map(|judged| pick(judged).state);
        let rate_short = cpu.map(|judged| &judged.rate).filter(|rate| rate.state == PromiseState::Broken);
        let only_rate = cpu.is_some_and(Judgement::is_short_as_rate_only);
        GuaranteeStatus {
            name: self.stated.name.clone(),
            source: self.stated.source.name().to_owned(),
            promise: self.stated.promise.to_string(),
            promised_pct: self.pct,
            promised_wait_p99_ms: self.stated.promise.wait_p99_ns.map(|ns| ns as f64 / 1e6),
            mean: self.stated.promise.mean.name().to_owned(),
            state: self.state(),
            as_supply: state(|judged| &judged.supply),
            as_rate: state(|judged| &judged.rate),
            rate_short_pct: rate_short.map(|rate| rate.short_pct),
            offers: self.pct.filter(|_| only_rate).map_or_else(Vec::new, |pct| offers(pct, allowed)),
            got_pct: window.map(Window::got_pct),
            while_runnable_pct: window.and_then(Window::while_runnable_pct),
            waited_pct: self.waited_pct(),
            wait_p99_ms: self.wait_p99_ns().map(|ns| ns as f64 / 1e6),
            wait_p99_estimated: self.waits.is_estimated(),
            priority: self.stated.promise.priority,
            broken_min_day: None,
            tasks: self.tasks,
            lever: self.lever.clone(),
            why: self.why(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scope, guarantee::Source};
    use evenkeel_policy::guarantee::{Mean, Reservation};

    fn guarantee(promise: Reservation) -> GuaranteeState {
        let stated = Guarantee {
            name: "pid:7".into(),
            scope: Scope::parse(&["pid:7"]).unwrap(),
            promise,
            source: Source::Config,
        };
        let pct = promise.cpu.map(|amount| amount.pct(2));
        GuaranteeState { pct, tasks: 1, ..GuaranteeState::new(stated) }
    }

    fn tick(got: f64, waited: f64) -> Window {
        Window {
            // An eighth, so that eight of them are a second exactly.
            seconds: 0.125,
            got_s: got * 0.125,
            waited_s: Some(waited * 0.125),
            runnable_s: Some((got + waited).min(1.0) * 0.125),
            wanted_pct: None,
        }
    }

    #[test]
    fn seconds_are_judged_and_counted_and_changes_are_told() {
        let mut guarantee =
            guarantee(Reservation { cpu: Some("40%".parse().unwrap()), ..Reservation::default() });
        assert_eq!(guarantee.state(), PromiseState::Unknown);
        let told: Vec<String> = (0..24)
            .filter_map(|n| guarantee.add(if (8..17).contains(&n) { tick(0.2, 0.8) } else { tick(0.5, 0.5) }))
            .collect();
        assert!(told.len() == 2 && told[0].contains("broken") && told[1].contains("at risk"), "{told:?}");
        assert_eq!(guarantee.state(), PromiseState::AtRisk, "broken a second ago");
        let time = guarantee.take_time().unwrap();
        assert!((time.watched_s - 3.0).abs() < 0.2 && (time.broken_s - 1.0).abs() < 0.2, "{time:?}");
        assert_eq!(guarantee.take_time(), None);
        assert!(guarantee.total().broken_s > 0.9);
        guarantee.tasks = 0;
        assert_eq!(guarantee.state(), PromiseState::Waiting);
    }

    /// Finding 10: a closed loop that wants 40, is promised 40 and gets 30.
    #[test]
    fn state_and_broken_time_follow_what_was_meant_and_both_are_shown() {
        for (mean, state, broken_s) in
            [(Mean::Supply, PromiseState::Kept, 0.0), (Mean::Rate, PromiseState::Broken, 3.0)]
        {
            let mut guarantee =
                guarantee(Reservation { cpu: Some("40%".parse().unwrap()), mean, ..Reservation::default() });
            for _ in 0..24 {
                guarantee.add(tick(0.303, 0.24));
            }
            assert_eq!((guarantee.state(), guarantee.total().broken_s), (state, broken_s));
            assert_eq!(guarantee.short_pct(), 0.0, "no setting is changed for what is no shortage of supply");
            let status = guarantee.status(Allowed { task_slice: true, realtime: false });
            assert_eq!(
                (status.as_supply, status.as_rate),
                (Some(PromiseState::Kept), Some(PromiseState::Broken))
            );
            assert!(status.rate_short_pct.is_some_and(|short| (9.0..10.0).contains(&short)), "{status:?}");
            assert!(status.why.contains("kept as supply, short as rate, because waiting"), "{status:?}");
            assert_eq!((status.mean.as_str(), status.offers.len()), (mean.name(), 2));
        }
    }

    #[test]
    fn waits_need_enough_switches() {
        let mut guarantee = guarantee(Reservation { wait_p99_ns: Some(2_000_000), ..Reservation::default() });
        for _ in 0..10 {
            guarantee.add(tick(0.5, 0.1));
        }
        assert_eq!(guarantee.state(), PromiseState::Unknown);
        for n in 0..100 {
            // One tick in fifty has waits of 5 ms.
            guarantee.waits.add_mean(0.125, if n % 50 == 0 { 0.05 } else { 0.001 }, 10);
            guarantee.add(tick(0.5, 0.1));
        }
        assert!(guarantee.wait_p99_ns().is_some_and(|ns| ns.abs_diff(5_000_000) < 500_000));
        let mut asleep = guarantee.waits.clone();
        (0..170).for_each(|_| asleep.add_mean(0.125, 0.0, 0));
        assert_eq!(asleep.p99_ns(None), None, "of the last twenty seconds nothing is known");
        let status = |guarantee: &GuaranteeState| guarantee.status(Allowed::default());
        assert!(guarantee.state() == PromiseState::Broken && status(&guarantee).wait_p99_estimated);
        // The same seconds, every wait counted: half a percent of them long, which no mean of a tick hides.
        for _ in 0..20 {
            let mut waits = Histogram::default();
            waits.add_many(100_000, 199);
            waits.add(40_000_000);
            guarantee.waits.add_exact(1.0, waits);
            guarantee.add(tick(0.5, 0.1));
        }
        assert!(
            guarantee.wait_p99_ns().is_some_and(|ns| ns < 200_000) && !status(&guarantee).wait_p99_estimated
        );
        let mut long = Histogram::default();
        long.add_many(40_000_000, 100);
        guarantee.waits.add_exact(1.0, long);
        assert!(guarantee.wait_p99_ns().is_some_and(|ns| ns > 30_000_000), "{:?}", guarantee.wait_p99_ns());
    }

    /// One that is kept from running gives up its CPU so seldom that it has few waits.
    #[test]
    fn few_waits_that_are_all_too_long_break_a_promise() {
        let states = [(40_000_000, 3), (100_000, 3), (40_000_000, 0)].map(|(ns, count)| {
            let mut guarantee =
                guarantee(Reservation { wait_p99_ns: Some(2_000_000), ..Reservation::default() });
            let mut waits = Histogram::default();
            waits.add_many(ns, count);
            guarantee.waits.add_exact(1.0, waits);
            guarantee.add(Window { seconds: 1.0, ..Window::default() });
            guarantee.state()
        });
        assert_eq!(states, [PromiseState::Broken, PromiseState::Unknown, PromiseState::Unknown]);
    }
}
