//! Was a promise kept? In a window it was when the scope got at least its promise less one point, or wanted
//! less and got that, or (as supply, not as rate) was given at least its promise of the time in which it was runnable.

use evenkeel_base::PromiseState;
use serde::{Deserialize, Serialize};

use super::Mean;

/// What one point less than promised is forgiven, percent of one CPU.
pub const TOLERANCE_PCT: f64 = 1.0;

/// Waits, percent of the window, up to which the estimate got / (1 - waited) is given a hearing.
const SHORT_WAITS_PCT: f64 = 10.0;

/// What a scope got in a window.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Window {
    pub seconds: f64,
    /// CPU got by all its tasks, seconds.
    pub got_s: f64,
    /// Time its tasks waited for a CPU, summed over tasks, seconds; `None` where the kernel does not count it.
    pub waited_s: Option<f64>,
    /// Time in which at least one task was runnable, seconds. Counters of single tasks bound it from above by the sum of
    /// what they ran and waited, which makes the share while runnable a lower bound (exact for one thread).
    pub runnable_s: Option<f64>,
    /// CPU wanted, percent of one CPU, where it is known (built-in loads).
    pub wanted_pct: Option<f64>,
}

impl Window {
    /// Both windows as one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        Self {
            seconds: self.seconds + other.seconds,
            got_s: self.got_s + other.got_s,
            waited_s: sum(self.waited_s, other.waited_s),
            runnable_s: sum(self.runnable_s, other.runnable_s),
            wanted_pct: self.wanted_pct.or(other.wanted_pct),
        }
    }

    /// CPU got, percent of one CPU.
    pub fn got_pct(&self) -> f64 {
        if self.seconds > 0.0 { 100.0 * self.got_s / self.seconds } else { 0.0 }
    }

    /// CPU got, percent of the time in which it was runnable; `None` when it never was, or is not known.
    pub fn while_runnable_pct(&self) -> Option<f64> {
        let runnable = self.runnable_s.filter(|s| *s > 1e-6)?;
        Some(100.0 * self.got_s / runnable)
    }
}

/// The judgement of one window.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// [`PromiseState::Kept`], [`PromiseState::AtRisk`], [`PromiseState::Broken`] or [`PromiseState::Unknown`].
    pub state: PromiseState,
    /// Points missing: what would have been needed for the promise to be kept, less what was got; 0 or less when kept.
    pub short_pct: f64,
    pub why: String,
}

/// The judgement of one window by both meanings of a promise: rate is the stricter one.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Was it given its share of the time in which it was runnable?
    pub supply: Verdict,
    /// Did it get its share, or all that it wanted?
    pub rate: Verdict,
}

impl Judgement {
    /// The verdict by what was meant.
    pub fn by(&self, mean: Mean) -> &Verdict {
        match mean {
            Mean::Supply => &self.supply,
            Mean::Rate => &self.rate,
        }
    }

    /// Whether only the rate is short: the CPU was there whenever it was wanted.
    pub fn is_short_as_rate_only(&self) -> bool {
        self.rate.state == PromiseState::Broken && self.supply.state != PromiseState::Broken
    }
}

/// Judges a window against a promise of `promised` percent of one CPU.
///
/// For tasks whose demand is not known, "wanted less and got that" is certain only when they hardly waited: a task's
/// shortfall is at most the time it waited (exactly that for loads that lose time for good). Where only the estimate
/// got / (1 - waited) says that less was wanted, the promise is at risk.
pub fn judge(promised: f64, window: &Window) -> Judgement {
    let got = window.got_pct();
    let both = |state: PromiseState, why: String, short_pct: f64| {
        let verdict = Verdict { state, short_pct, why };
        Judgement { supply: verdict.clone(), rate: verdict }
    };
    if got >= promised - TOLERANCE_PCT {
        let why = format!("got {got:.1} % of {promised:.1} % promised");
        return both(PromiseState::Kept, why, (promised - got).min(0.0));
    }
    // What is due as rate, where that is known.
    let wanted = window.wanted_pct.map(|wanted| wanted.min(promised));
    if let (Some(due), Some(all)) = (wanted, window.wanted_pct)
        && got >= due - TOLERANCE_PCT
    {
        return both(PromiseState::Kept, format!("wanted {all:.1} % and got {got:.1} %"), 0.0);
    }
    let (Some(waited_s), Some(runnable_s)) = (window.waited_s, window.runnable_s) else {
        let why = format!(
            "got {got:.1} %; whether more was wanted is unknown: its waits are not counted, or not all of them"
        );
        return both(PromiseState::Unknown, why, 0.0);
    };
    let waited = 100.0 * waited_s / window.seconds.max(1e-9);
    if waited <= TOLERANCE_PCT {
        let why = format!("wanted less and got it: {got:.1} %, hardly waiting ({waited:.1} %)");
        return both(PromiseState::Kept, why, 0.0);
    }
    let share = window.while_runnable_pct();
    let share_text = share.map_or_else(|| "?".to_owned(), |share| format!("{share:.1}"));
    // A closed load that waits this much of the time would have got so much without waiting.
    let unhindered = got / (1.0 - (waited / 100.0).min(0.9));
    let little = unhindered - got <= TOLERANCE_PCT && wanted.is_none();
    let at_risk = || Verdict {
        state: PromiseState::AtRisk,
        short_pct: 0.0,
        why: format!("got {got:.1} %, seems to have wanted hardly more (estimated from its waits)"),
    };
    if share.is_some_and(|share| share >= promised) {
        let of_time = format!("{share_text} % of the time in which it was runnable");
        if little {
            let why = format!("got {got:.1} %, {of_time}");
            return Judgement {
                supply: Verdict { state: PromiseState::Kept, short_pct: 0.0, why },
                rate: at_risk(),
            };
        }
        // The waits are named as the cause only where they explain what is missing.
        let because = if wanted.is_none_or(|due| unhindered >= due - TOLERANCE_PCT) {
            format!(", because waiting stretches the loop (about {unhindered:.1} % without waits)")
        } else {
            String::new()
        };
        let why = format!(
            "kept as supply, short as rate{because}: {of_time}, {got:.1} % of {promised:.1} % promised"
        );
        let short_pct = wanted.unwrap_or(unhindered).min(promised) - got;
        return Judgement {
            supply: Verdict { state: PromiseState::Kept, short_pct: 0.0, why: why.clone() },
            rate: Verdict { state: PromiseState::Broken, short_pct, why },
        };
    }
    if little && waited <= SHORT_WAITS_PCT {
        return Judgement { supply: at_risk(), rate: at_risk() };
    }
    // Its due as supply is the promised share of the time in which it wanted to run.
    let due = promised * (runnable_s / window.seconds.max(1e-9)).min(1.0);
    let why = format!(
        "got {got:.1} % of {promised:.1} % promised, {share_text} % of the time in which it was runnable"
    );
    let broken = |short_pct: f64| Verdict { state: PromiseState::Broken, short_pct, why: why.clone() };
    Judgement {
        supply: broken(due - got),
        rate: broken(wanted.unwrap_or(unhindered).min(promised).max(due) - got),
    }
}

/// Judges waits: `p99_ns` is what was measured, or `estimated` from below: then it shows that the promise is broken, and not that it is
/// kept.
pub fn judge_wait(promised_ns: u64, p99_ns: Option<u64>, estimated: bool) -> Verdict {
    let ms = |ns: u64| ns as f64 / 1e6;
    let how = if estimated { ", estimated from below" } else { "" };
    match p99_ns {
        None => Verdict {
            state: PromiseState::Unknown,
            short_pct: 0.0,
            why: format!("wait p99 unknown, promised {} ms", ms(promised_ns)),
        },
        Some(ns) => Verdict {
            state: match () {
                () if ns > promised_ns => PromiseState::Broken,
                () if estimated || ns as f64 > 0.8 * promised_ns as f64 => PromiseState::AtRisk,
                () => PromiseState::Kept,
            },
            short_pct: 0.0,
            why: format!("wait p99 {:.2} ms of {} ms promised{how}", ms(ns), ms(promised_ns)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn window(got: f64, waited: f64) -> Window {
        Window {
            seconds: 1.0,
            got_s: got,
            waited_s: Some(waited),
            runnable_s: Some((got + waited).min(1.0)),
            wanted_pct: None,
        }
    }

    fn supply(promised: f64, window: &Window) -> Verdict {
        judge(promised, window).supply
    }

    #[test]
    fn the_three_ways_of_keeping_a_promise() {
        assert_eq!(supply(40.0, &window(0.40, 0.60)).state, PromiseState::Kept);
        assert_eq!(supply(40.0, &window(0.391, 0.60)).state, PromiseState::Kept, "within one point");
        assert_eq!(supply(40.0, &window(0.20, 0.005)).state, PromiseState::Kept, "wanted less");
        // A closed loop that waited: 33 % of the time, but 33 / (33 + 40) = 45 % of the time in which it was runnable.
        assert_eq!(supply(40.0, &window(0.33, 0.40)).state, PromiseState::Kept);
        let broken = supply(40.0, &window(0.30, 0.60));
        assert_eq!(broken.state, PromiseState::Broken);
        // 33 % of the time in which it was runnable (90 %), where 40 % of it (36) was due.
        assert!((broken.short_pct - 6.0).abs() < 1e-9 && broken.why.contains("33.3 %"), "{broken:?}");
    }

    #[test]
    fn known_demand_decides_where_there_is_one() {
        let wanted = |wanted, got, waited| {
            supply(40.0, &Window { wanted_pct: Some(wanted), ..window(got, waited) }).state
        };
        assert_eq!(wanted(10.0, 0.095, 0.5), PromiseState::Kept);
        assert_eq!(wanted(20.0, 0.10, 0.5), PromiseState::Broken);
    }

    /// From docs/guarantees.md: 40/50/30 wanted in closed loops, 40/50/10 promised.
    #[test]
    fn a_closed_loop_that_waits_is_kept_as_supply_and_short_as_rate() {
        let known = Window { wanted_pct: Some(40.0), ..window(0.312, 0.223) };
        for (window, short) in [(window(0.312, 0.223), 8.8), (known, 8.8)] {
            let judged = judge(40.0, &window);
            assert_eq!(
                (judged.by(Mean::Supply).state, judged.by(Mean::Rate).state),
                (PromiseState::Kept, PromiseState::Broken)
            );
            assert!((judged.rate.short_pct - short).abs() < 1e-9 && judged.supply.short_pct == 0.0);
            assert_eq!(
                judged.rate.why,
                "kept as supply, short as rate, because waiting stretches the loop (about 40.2 % without waits): \
                 58.3 % of the time in which it was runnable, 31.2 % of 40.0 % promised"
            );
        }
        // A load that loses time for good: its waits do not stretch anything.
        let wall = Window { wanted_pct: Some(40.0), ..window(0.30, 0.10) };
        let judged = judge(40.0, &wall);
        assert!(judged.is_short_as_rate_only() && !judged.rate.why.contains("because"), "{judged:?}");
        // Small pieces that wait: nothing is claimed of the rate.
        let small = judge(10.0, &window(0.02, 0.12));
        assert_eq!((small.supply.state, small.rate.state), (PromiseState::Kept, PromiseState::AtRisk));
    }

    #[test]
    fn without_counted_waits_nothing_is_claimed() {
        let blind = Window { waited_s: None, runnable_s: None, ..window(0.2, 0.0) };
        assert_eq!(supply(40.0, &blind).state, PromiseState::Unknown);
        assert_eq!(supply(19.0, &blind).state, PromiseState::Kept);
    }

    #[test]
    fn small_bursts_that_wait_are_a_risk_and_not_a_verdict() {
        assert_eq!(
            supply(40.0, &window(0.0, 0.5)).state,
            PromiseState::Broken,
            "one that starves is no such case"
        );
        // 1 % of CPU in tiny pieces, each of which waits: 1 / (1 - 0.04) is hardly more.
        assert_eq!(supply(40.0, &window(0.01, 0.04)).state, PromiseState::AtRisk);
    }

    #[test]
    fn waits_are_judged_by_their_percentile() {
        let state = |p99_ns, estimated| judge_wait(2_000_000, p99_ns, estimated).state;
        assert_eq!(state(Some(1_000_000), false), PromiseState::Kept);
        assert_eq!(state(Some(1_900_000), false), PromiseState::AtRisk);
        assert_eq!(state(Some(2_100_000), false), PromiseState::Broken);
        assert_eq!(state(None, false), PromiseState::Unknown);
        // What is at least so long may be longer.
        assert_eq!(state(Some(1_000_000), true), PromiseState::AtRisk);
        assert_eq!(state(Some(2_100_000), true), PromiseState::Broken);
        assert_eq!(state(None, true), PromiseState::Unknown);
    }

    proptest! {
        #[test]
        fn more_cpu_never_makes_it_worse(promised in 1.0f64..100.0, got in 0.0f64..1.0, more in 0.0f64..0.5, total in 0.0f64..1.0) {
            // The same runnable time, more of it got.
            let runnable = total.max(got);
            let state = |got: f64| supply(promised, &window(got, runnable - got)).state;
            if state(got) == PromiseState::Kept {
                prop_assert_eq!(state((got + more).min(runnable)), PromiseState::Kept);
            }
        }

        #[test]
        fn a_broken_promise_is_short_of_something(promised in 1.0f64..100.0, got in 0.0f64..1.0, waited in 0.0f64..1.0) {
            let verdict = supply(promised, &window(got, waited));
            if verdict.state == PromiseState::Broken {
                prop_assert!(verdict.short_pct > 0.0, "{verdict:?}");
            }
        }

        #[test]
        fn as_rate_is_stricter(promised in 1.0f64..100.0, got in 0.0f64..1.0, waited in 0.0f64..2.0, wanted in proptest::option::of(0.0f64..100.0)) {
            let judged = judge(promised, &Window { wanted_pct: wanted, ..window(got, waited) });
            prop_assert!(judged.rate.state >= judged.supply.state, "{judged:?}");
            prop_assert_eq!(judged.rate.state == PromiseState::Broken, judged.rate.short_pct > 0.0, "{:?}", judged);
        }
    }
}
