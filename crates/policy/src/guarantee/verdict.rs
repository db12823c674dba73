//! Was a promise kept? `CONTRACT`: in a window it was when the scope got at least its promise less one point, or wanted
//! less and got that, or was given at least its promise of the time in which it was runnable.

use serde::{Deserialize, Serialize};

/// What one point less than promised is forgiven, percent of one CPU.
pub const TOLERANCE_PCT: f64 = 1.0;

/// Waits, percent of the window, up to which the estimate got / (1 - waited) is given a hearing.
const SHORT_WAITS_PCT: f64 = 10.0;

/// What a scope got in a window.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Window {
    /// Length, seconds.
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

/// How a promise stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Kept.
    Kept,
    /// Nothing matches its scope; it stands for when something does.
    Waiting,
    /// Kept, but only just, only by an estimate, or broken a few seconds ago.
    AtRisk,
    /// Not known: the kernel does not count what is needed.
    Unknown,
    /// Not kept.
    Broken,
    /// It does not fit beside those before it, so nothing is done for it.
    Refused,
}

impl State {
    /// As in documents, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::AtRisk => "at risk",
            Self::Broken => "broken",
            Self::Waiting => "waiting",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the answer is no: broken or refused.
    pub fn is_no(self) -> bool {
        matches!(self, Self::Broken | Self::Refused)
    }
}

/// The judgement of one window.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// [`State::Kept`], [`State::AtRisk`], [`State::Broken`] or [`State::Unknown`].
    pub state: State,
    /// Points missing: what would have been needed for the promise to be kept, less what was got; 0 or less when kept.
    pub short_pct: f64,
    /// In words.
    pub why: String,
}

/// Judges a window against a promise of `promised` percent of one CPU.
///
/// For tasks whose demand is not known, "wanted less and got that" is certain only when they hardly waited: a task's
/// shortfall is at most the time it waited (exactly that for loads that lose time for good). Where only the estimate
/// got / (1 - waited) says that less was wanted, the promise is at risk.
pub fn judge(promised: f64, window: &Window) -> Verdict {
    let got = window.got_pct();
    let kept = |why: String, short_pct: f64| Verdict { state: State::Kept, short_pct, why };
    if got >= promised - TOLERANCE_PCT {
        return kept(format!("got {got:.1} % of {promised:.1} % promised"), (promised - got).min(0.0));
    }
    let share = window.while_runnable_pct();
    if let Some(wanted) = window.wanted_pct
        && got >= wanted.min(promised) - TOLERANCE_PCT
    {
        return kept(format!("wanted {wanted:.1} % and got {got:.1} %"), 0.0);
    }
    let (Some(waited_s), Some(runnable_s)) = (window.waited_s, window.runnable_s) else {
        return Verdict {
            state: State::Unknown,
            short_pct: 0.0,
            why: format!("got {got:.1} %; whether more was wanted is unknown: this kernel counts no waits"),
        };
    };
    let waited = 100.0 * waited_s / window.seconds.max(1e-9);
    if waited <= TOLERANCE_PCT {
        return kept(format!("wanted less and got it: {got:.1} %, hardly waiting ({waited:.1} %)"), 0.0);
    }
    let share_text = share.map_or_else(|| "?".to_owned(), |share| format!("{share:.1}"));
    if share.is_some_and(|share| share >= promised) {
        return kept(format!("got {got:.1} %, {share_text} % of the time in which it was runnable"), 0.0);
    }
    // Its due is the promised share of the time in which it wanted to run.
    let due = promised * (runnable_s / window.seconds.max(1e-9)).min(1.0);
    let short_pct = due - got;
    // A closed load that waits this much of the time would have got so much more without waiting.
    let missed = got / (1.0 - (waited / 100.0).min(0.9)) - got;
    if missed <= TOLERANCE_PCT && waited <= SHORT_WAITS_PCT && window.wanted_pct.is_none() {
        return Verdict {
            state: State::AtRisk,
            short_pct: 0.0,
            why: format!("got {got:.1} %, seems to have wanted hardly more (estimated from its waits)"),
        };
    }
    Verdict {
        state: State::Broken,
        short_pct,
        why: format!(
            "got {got:.1} % of {promised:.1} % promised, {share_text} % of the time in which it was runnable"
        ),
    }
}

/// Judges waits: `p99_ns` is what was measured or estimated.
pub fn judge_wait(promised_ns: u64, p99_ns: Option<u64>) -> Verdict {
    let ms = |ns: u64| ns as f64 / 1e6;
    match p99_ns {
        None => Verdict {
            state: State::Unknown,
            short_pct: 0.0,
            why: format!("wait p99 unknown, promised {} ms", ms(promised_ns)),
        },
        Some(ns) => Verdict {
            state: match () {
                () if ns > promised_ns => State::Broken,
                () if ns as f64 > 0.8 * promised_ns as f64 => State::AtRisk,
                () => State::Kept,
            },
            short_pct: 0.0,
            why: format!("wait p99 {:.2} ms of {} ms promised", ms(ns), ms(promised_ns)),
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

    #[test]
    fn the_three_ways_of_keeping_a_promise() {
        assert_eq!(judge(40.0, &window(0.40, 0.60)).state, State::Kept);
        assert_eq!(judge(40.0, &window(0.391, 0.60)).state, State::Kept, "within one point");
        assert_eq!(judge(40.0, &window(0.20, 0.005)).state, State::Kept, "wanted less");
        // A closed loop that waited: 33 % of the time, but 33 / (33 + 40) = 45 % of the time in which it was runnable.
        assert_eq!(judge(40.0, &window(0.33, 0.40)).state, State::Kept);
        let broken = judge(40.0, &window(0.30, 0.60));
        assert_eq!(broken.state, State::Broken);
        // 33 % of the time in which it was runnable (90 %), where 40 % of it (36) was due.
        assert!((broken.short_pct - 6.0).abs() < 1e-9 && broken.why.contains("33.3 %"), "{broken:?}");
    }

    #[test]
    fn known_demand_decides_where_there_is_one() {
        let wanted = |wanted, got, waited| {
            judge(40.0, &Window { wanted_pct: Some(wanted), ..window(got, waited) }).state
        };
        assert_eq!(wanted(10.0, 0.095, 0.5), State::Kept);
        assert_eq!(wanted(20.0, 0.10, 0.5), State::Broken);
    }

    #[test]
    fn without_counted_waits_nothing_is_claimed() {
        let blind = Window { waited_s: None, runnable_s: None, ..window(0.2, 0.0) };
        assert_eq!(judge(40.0, &blind).state, State::Unknown);
        assert_eq!(judge(19.0, &blind).state, State::Kept);
    }

    #[test]
    fn small_bursts_that_wait_are_a_risk_and_not_a_verdict() {
        assert_eq!(judge(40.0, &window(0.0, 0.5)).state, State::Broken, "one that starves is no such case");
        // 1 % of CPU in tiny pieces, each of which waits: 1 / (1 - 0.04) is hardly more.
        assert_eq!(judge(40.0, &window(0.01, 0.04)).state, State::AtRisk);
    }

    #[test]
    fn waits_are_judged_by_their_percentile() {
        assert_eq!(judge_wait(2_000_000, Some(1_000_000)).state, State::Kept);
        assert_eq!(judge_wait(2_000_000, Some(1_900_000)).state, State::AtRisk);
        assert_eq!(judge_wait(2_000_000, Some(2_100_000)).state, State::Broken);
        assert_eq!(judge_wait(2_000_000, None).state, State::Unknown);
    }

    proptest! {
        #[test]
        fn more_cpu_never_makes_it_worse(promised in 1.0f64..100.0, got in 0.0f64..1.0, more in 0.0f64..0.5, total in 0.0f64..1.0) {
            // The same runnable time, more of it got.
            let runnable = total.max(got);
            let state = |got: f64| judge(promised, &window(got, runnable - got)).state;
            if state(got) == State::Kept {
                prop_assert_eq!(state((got + more).min(runnable)), State::Kept);
            }
        }

        #[test]
        fn a_broken_promise_is_short_of_something(promised in 1.0f64..100.0, got in 0.0f64..1.0, waited in 0.0f64..1.0) {
            let verdict = judge(promised, &window(got, waited));
            if verdict.state == State::Broken {
                prop_assert!(verdict.short_pct > 0.0, "{verdict:?}");
            }
        }
    }
}
