//! What a trial counts as a gain.
//!
//! CPU got by those of the scope that do not take any amount, less a price for what they waited. A busy loop would take
//! whatever others leave: that it gets more is no benefit. On a host without idle time CPU got by one is CPU lost by
//! another: there the sum over the host, busy loops left out, must grow as well.
//!
//! Where services are named and the scope is background work, how long the services wait comes first: the score of a window
//! is then less the mean logarithm of how long what comes to them is delayed ([`Histogram::delay`], 99th and 99.9th percentile),
//! and background work may lose CPU. The percentiles of the waits themselves would not do: a wait of 3 ms delays three requests
//! of a service that has one a millisecond, and is one of thousands of waits.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::{Histogram, TaskId, stats};
use serde::{Deserialize, Serialize};

use crate::guard::{Guard, GuardLimits};
use crate::monitor::{Seen, Unit};
use crate::window::{Rates, Summary};

/// A host is full whose CPUs are idle for less than this share of what there is.
const FULL: f64 = 0.05;

/// Delays below this are not told apart, ns.
const SHORTEST_NS: u64 = 50_000;

/// One window's values of what is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    /// CPU got by the scope, busy loops left out, percent of one CPU.
    pub got: f64,
    /// The same less the price of its waits.
    pub score: f64,
    /// CPU got by everybody on the host, busy loops left out; `None` where the host is not full, or CPU is counted up to what
    /// is due.
    pub total: Option<f64>,
}

impl Value {
    /// What the monitor needs of the window.
    pub fn seen(&self, window: &Summary) -> Seen {
        Seen { cpu_pct: self.got, ..Seen::of(window, self.score) }
    }
}

/// What is compared, as learnt from windows before anything was changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    wait_price: f64,
    insatiable: BTreeSet<TaskId>,
    full: bool,
    services: bool,
    /// Services, by their place, that no task belongs to.
    #[serde(default)]
    absent: BTreeSet<usize>,
}

impl Objective {
    /// Nothing learnt yet; a point of waiting is worth so many points of CPU, or waits of services come first.
    pub fn new(wait_price: f64, services: bool) -> Self {
        Self { wait_price, insatiable: BTreeSet::new(), full: false, services, absent: BTreeSet::new() }
    }

    /// These services, by their place, have no task: that nothing comes to them is none of the others' merit.
    pub(super) fn without_services(&mut self, absent: BTreeSet<usize>) {
        self.absent = absent;
    }

    /// Whether waits of services come first.
    pub fn is_for_services(&self) -> bool {
        self.services
    }

    /// What gains are counted in.
    pub fn unit(&self) -> Unit {
        if self.services { Unit::LogDelay } else { Unit::CpuGot }
    }

    /// A guard of whoever was seen in windows before anything was changed, for a candidate of which some were seen, too; background
    /// work may lose.
    pub(super) fn guard(&self, limits: GuardLimits, before: &[Summary], tried: &[Summary]) -> Guard {
        let mut guard = Guard::new(limits, before, tried);
        if self.services {
            guard.exempt_scope();
        }
        guard
    }

    /// Gain of the score that is worth a change, of which the CPU got is a share.
    pub(super) fn worth(&self, min_gain: f64, got_pct: f64) -> f64 {
        match self.unit() {
            Unit::CpuGot => min_gain * got_pct,
            unit @ Unit::LogDelay => unit.worth(min_gain),
        }
    }

    /// Notes in a window how long services were delayed, where they count. False if they do and it could not be measured.
    pub(super) fn judge(&self, window: &mut Summary, protected: &[Option<Histogram>]) -> bool {
        window.services = self.delays(protected, window.seconds);
        !self.services || window.services.is_some()
    }

    /// How long what comes to services was delayed in a window of so many seconds: the mean logarithm of the 99th and 99.9th
    /// percentiles, in microseconds. `None` where services do not count or their waits could not be read.
    fn delays(&self, protected: &[Option<Histogram>], seconds: f64) -> Option<f64> {
        if !self.services {
            return None;
        }
        let of = |waits: &Histogram, share: f64| {
            (waits.delay(share, seconds).max(SHORTEST_NS) as f64 / 1000.0).ln()
        };
        let present = protected.iter().enumerate().filter(|(at, _)| !self.absent.contains(at));
        let each = present
            .map(|(_, waits)| waits.as_ref().map(|waits| f64::midpoint(of(waits, 0.99), of(waits, 0.999))));
        stats::mean(&each.collect::<Option<Vec<f64>>>()?)
    }

    /// Learns from windows under the present state who would take any amount, and whether the host is full.
    pub(super) fn learn(&mut self, windows: &[Summary]) {
        if self.services {
            // Background work would take any amount more often than not, and what it gets is what is shown of it.
            return;
        }
        let mut awake: BTreeMap<TaskId, usize> = BTreeMap::new();
        for (id, _) in windows.iter().flat_map(|w| &w.tasks).filter(|(_, rates)| rates.never_sleeps()) {
            *awake.entry(*id).or_default() += 1;
        }
        self.insatiable =
            awake.into_iter().filter(|(_, times)| *times == windows.len()).map(|(id, _)| id).collect();
        let (mut idle, mut busy) = (0.0, 0.0);
        for window in windows {
            // Unknown is not zero: a host that does not tell is not taken for full.
            let (Some(free), Some(outside)) = (window.idle_pct, window.outside_pct) else { return };
            idle += free;
            busy += window.got_pct + outside;
        }
        self.full = idle < FULL * (idle + busy);
    }

    /// Whether somebody of the scope does not take any amount, as far as is known: of who sleeps that is not.
    pub(super) fn has_purpose(&self, window: &Summary) -> bool {
        let mut mine = window.tasks.iter().filter(|(_, rates)| rates.in_scope).map(|(id, _)| id).peekable();
        self.services || mine.peek().is_none() || mine.any(|id| !self.insatiable.contains(id))
    }

    pub(super) fn value(&self, window: &Summary) -> Value {
        self.value_of(window, window.services)
    }

    /// The value of a window in which services were delayed for so long, where they count.
    fn value_of(&self, window: &Summary, services: Option<f64>) -> Value {
        let of = |in_scope: bool, pick: fn(&Rates) -> f64| -> f64 {
            let them = self.insatiable.iter().filter_map(|id| window.tasks.get(id));
            them.filter(|rates| rates.in_scope == in_scope).map(pick).sum()
        };
        let got = window.got_pct - of(true, |rates| rates.got_pct);
        let waited = window.waited_pct - of(true, |rates| rates.waited_pct.unwrap_or_default());
        let outside = |all: f64| all - of(false, |rates| rates.got_pct);
        Value {
            got,
            score: match services {
                Some(delays) => -delays,
                None => got - self.wait_price * waited,
            },
            // What services take of background work is no loss to the host.
            total: window.outside_pct.filter(|_| self.full && !self.services).map(|all| got + outside(all)),
        }
    }

    /// What the monitor needs of a window, with the waits of services in it: the same objective as the decision's. `None` where
    /// services count and their waits were not read: the window then says nothing.
    pub fn seen(&self, window: &Summary, protected: &[Option<Histogram>]) -> Option<Seen> {
        let delays = self.delays(protected, window.seconds);
        (!self.services || delays.is_some()).then(|| self.value_of(window, delays).seen(window))
    }

    pub(super) fn scores(&self, windows: &[Summary]) -> Vec<f64> {
        windows.iter().map(|window| self.value(window).score).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(got_pct: f64, idle: Option<f64>, outside: Option<f64>) -> Summary {
        Summary { seconds: 1.0, got_pct, outside_pct: outside, idle_pct: idle, ..Summary::default() }
    }

    #[test]
    fn a_host_is_full_that_is_idle_for_less_than_a_twentieth_of_all_windows() {
        let full = |windows: &[Summary]| {
            let mut objective = Objective::new(0.1, false);
            objective.learn(windows);
            objective.value(&windows[0]).total
        };
        let of = |idle: f64| window(60.0, Some(idle), Some(200.0 - 60.0 - idle));
        assert_eq!(full(&[of(9.9), of(9.9)]), Some(60.0 + 130.1));
        assert_eq!(full(&[of(10.1), of(10.1)]), None);
        assert!(full(&[of(1.0), of(18.0)]).is_some(), "of all of them, not of each");
        assert_eq!(full(&[of(1.0), of(20.0)]), None);
        assert_eq!(full(&[of(1.0), window(60.0, None, Some(100.0))]), None, "unknown is not zero");
        assert_eq!(full(&[of(1.0), window(60.0, Some(1.0), None)]), None);
        assert_eq!(full(&[window(0.0, Some(0.0), Some(0.0))]), None, "nothing runs");
    }

    #[test]
    fn what_takes_any_amount_counts_on_neither_side() {
        let rates = |got_pct, waited, in_scope| Rates {
            got_pct,
            waited_pct: Some(waited),
            waits: None,
            in_scope,
            owner: None,
        };
        let id = |tid| TaskId { tgid: tid, tid, start_time: 1 };
        let mut one = window(100.0, Some(0.0), Some(100.0));
        one.waited_pct = 60.0;
        one.tasks = [
            (id(1), rates(50.0, 50.0, true)),
            (id(2), rates(50.0, 10.0, true)),
            (id(3), rates(70.0, 30.0, false)),
        ]
        .into();
        let mut objective = Objective::new(0.1, false);
        assert!(objective.has_purpose(&one));
        // 2 is not awake all the time; 1 and 3 are, in all windows.
        objective.learn(&[one.clone(), one.clone()]);
        let value = objective.value(&one);
        assert_eq!((value.got, value.score, value.total), (50.0, 50.0 - 0.1 * 10.0, Some(50.0 + 30.0)));
        assert_eq!(objective.seen(&one, &[]).map(|seen| seen.cpu_pct), Some(50.0));
        assert!(objective.has_purpose(&one));
        one.tasks.remove(&id(2));
        assert!(!objective.has_purpose(&one), "all that is left takes any amount");
        one.tasks.insert(id(5), rates(10.0, 10.0, false));
        assert!(!objective.has_purpose(&one), "who is outside is no purpose");
        let mut asleep = one.clone();
        asleep.tasks.remove(&id(1));
        assert!(objective.has_purpose(&asleep), "what it would take is not known");
        asleep.tasks.extend([(id(1), rates(50.0, 50.0, true)), (id(4), rates(0.0, 10.0, true))]);
        assert!(objective.has_purpose(&asleep), "nor of who gets nothing");
        // Who slept in one window is none of them.
        let mut other = one.clone();
        other.tasks.insert(id(1), rates(50.0, 10.0, true));
        objective.learn(&[one.clone(), other]);
        assert!(objective.has_purpose(&one));
    }

    #[test]
    fn a_window_of_services_counts_where_all_of_them_were_seen() {
        let services = Objective::new(0.1, true);
        let waits = |ns: u64| Some(Histogram::of(&[(ns, 1000)]));
        let judged = |protected: &[Option<Histogram>]| {
            let mut window = window(100.0, None, None);
            services.judge(&mut window, protected).then(|| window.services.unwrap())
        };
        // Waits of nothing delay by the least that is told apart, 50 us.
        assert_eq!(judged(&[waits(0)]), Some(50f64.ln()));
        let (short, long) = (judged(&[waits(100_000)]).unwrap(), judged(&[waits(900_000)]).unwrap());
        assert!(long > short + 1.0 && short > 50f64.ln(), "{short} {long}");
        let both = judged(&[waits(100_000), waits(900_000)]).unwrap();
        assert!((both - f64::midpoint(short, long)).abs() < 1e-12, "{both}");
        assert_eq!(judged(&[waits(0), None]), None);
        assert_eq!(judged(&[]), None, "nobody is named");
        // One that no task belongs to has no part in it.
        let mut of_one = services.clone();
        of_one.without_services([1].into());
        let long_alone = of_one.seen(&window(1.0, None, None), &[waits(900_000), waits(0)]).unwrap().score;
        assert_eq!(-long_alone, long);
        assert!(of_one.seen(&window(1.0, None, None), &[waits(900_000), None]).is_some());
        // The score is less the delays; what they take of others is no loss to the host.
        let mut seen = window(100.0, Some(0.0), Some(100.0));
        assert!(services.judge(&mut seen, &[waits(0)]) && services.has_purpose(&seen));
        let value = services.value(&seen);
        assert_eq!((value.got, value.score, value.total), (100.0, -50f64.ln(), None));
        assert_eq!((services.unit(), services.worth(0.01, 100.0)), (Unit::LogDelay, 0.1));
        // Where they do not count nothing is asked of them.
        let plain = Objective::new(0.1, false);
        assert!(plain.judge(&mut seen, &[None]) && seen.services.is_none());
        assert_eq!((plain.unit(), plain.worth(0.01, 150.0)), (Unit::CpuGot, 1.5));
    }
}
