//! Waits of somebody named that a change for the others must not lengthen.
//!
//! A protection is about the 99th percentile of the waits for a CPU of a scope. It is held against the bound the user gave;
//! where the baseline is beyond that bound already, or without a bound, against what the baseline has. A candidate
//! must show that less than the guard's `tail_share` of the waits are longer: that is the same question as the percentile's,
//! but a share has a spread from window to window that tells how sure the answer is ([`crate::guard::Tail`]).
//!
//! Where the scope counts its own requests and states an objective for them, this is what counts instead: see
//! [`crate::requests`].

use evenkeel_base::Histogram;
use evenkeel_base::stats::binomial;
use serde::{Deserialize, Serialize};

use crate::guard::{Doubt, GuardLimits, Harm, Open, Subject, Tail};
use crate::requests::{RequestTail, RequestTarget};

/// Waits below this are not told apart from none where there is no bound, ns: twice nothing is nothing.
pub const FLOOR_NS: u64 = crate::guard::FLOOR_NS;
/// Waits from which on a 99th percentile is stated.
pub const ENOUGH: u64 = 100;
/// Of fewer waits, some are beyond a bound by chance with this probability at most where that counts as shown.
const CHANCE: f64 = 0.001;
/// Waits, under both settings together, below which nothing can be shown.
const FEW: f64 = 1.0;

/// Who is protected, and how far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LatencyTarget {
    /// The scope as stated: its name in messages.
    pub name: String,
    /// Bound on the 99th percentile of its waits, ns; `None`: what the baseline has.
    pub wait_p99_ns: Option<u64>,
    /// What it promises of its own requests; `None`: it is judged by its waits alone.
    #[serde(default)]
    pub requests: Option<RequestTarget>,
}

/// Whether the 99th percentile of waits keeps a bound; `None` where too few waits are there to tell. Few waits may show that
/// it does not: three of three are beyond the bound by no chance.
pub fn keeps(waits: &Histogram, bound_ns: u64) -> Option<bool> {
    if waits.total() >= ENOUGH {
        return waits.quantile(0.99).map(|p99| p99 <= bound_ns);
    }
    is_broken(waits, bound_ns).then_some(false)
}

/// Whether more waits are beyond a bound on their 99th percentile than chance explains, however few there are.
pub fn is_broken(waits: &Histogram, bound_ns: u64) -> bool {
    let beyond = waits.beyond(bound_ns).floor() as u64;
    binomial::at_least(beyond, waits.total(), crate::guard::TAIL) <= CHANCE
}

impl LatencyTarget {
    /// The protection, if it is not shown to be kept: by the scope's own requests where they were counted and are enough, else
    /// by its waits. Harm that few requests show is harm, too.
    pub fn doubt(&self, tail: &Tail, requests: &RequestTail, limits: &GuardLimits) -> Option<Doubt> {
        let growth = limits.tail_share / crate::guard::TAIL;
        let Some(target) = self.requests else { return self.doubt_by_waits(tail, limits) };
        let doubt = requests.doubt(target, growth, 1.0 / limits.alpha);
        if !requests.tells(target) && doubt.is_none_or(|open| !open.proved) {
            let doubt = self.doubt_by_waits(tail, limits)?;
            // What long waits mean the requests are about to say.
            return Some(Doubt { proved: doubt.proved && !requests.may_tell(), ..doubt });
        }
        let Open { before, after, proved } = doubt?;
        let subject = Subject::Protected(self.name.clone());
        let detail = format!(
            "{}, which is protected, answers {:.2} instead of {:.2} % of its requests after more than {}",
            self.name,
            100.0 * after,
            100.0 * before,
            target.bound_words()
        );
        // Whoever weighs doubts against each other holds them against one limit: in multiples of what is promised.
        let scale = crate::guard::TAIL / target.slow_share;
        let (before, after) = (before * scale, after * scale);
        Some(Doubt { subject, harm: Harm::Tail, before, after, proved, detail: Some(detail) })
    }

    /// The same by its waits alone. Who never waits loses nothing.
    fn doubt_by_waits(&self, tail: &Tail, limits: &GuardLimits) -> Option<Doubt> {
        let Open { before, after, proved } = tail.doubt(limits.tail_share, 1.0 / limits.alpha, FEW)?;
        let subject = Subject::Protected(self.name.clone());
        Some(Doubt { subject, harm: Harm::Tail, before, after, proved, detail: Some(self.describe(tail)) })
    }

    /// What it waits, in words.
    pub fn describe(&self, tail: &Tail) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let (before, after) = (tail.baseline_p99_ns(), tail.candidate_p99_ns());
        let found = before.map_or_else(String::new, |ns| format!(" instead of {:.2} ms", ms(ns)));
        // The question is asked at the edge of a bucket at or below the bound.
        let edge =
            tail.edge_ns().map(|(edge, usual)| (edge, self.wait_p99_ns.filter(|_| !usual).unwrap_or(edge)));
        let limit = edge.map_or_else(String::new, |(edge, bound)| match after {
            Some(after) if after > edge => format!(", beyond {:.2} ms", ms(bound)),
            _ => format!(", with more than 1 in 100 of its waits beyond {:.2} ms", ms(bound)),
        });
        let p99 = after.map_or_else(|| "an unknown time".to_owned(), |ns| format!("{:.2} ms", ms(ns)));
        format!("{}, which is protected, waits {p99} in the 99th percentile{found}{limit}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::Requests;

    fn words(bound_ms: Option<u64>, before_ms: f64, after_ms: f64) -> String {
        let wait_p99_ns = bound_ms.map(|ms| ms * 1_000_000);
        let mut tail = Tail::new(wait_p99_ns);
        for (ms, candidate) in [(before_ms, false), (after_ms, true)] {
            tail.add(Histogram::of(&[((ms * 1e6) as u64, 500)]), candidate);
        }
        LatencyTarget { name: "web".to_owned(), wait_p99_ns, requests: None }.describe(&tail)
    }

    #[test]
    fn what_is_said_agrees_with_the_numbers_beside_it() {
        let within = words(Some(5), 1.1, 1.2);
        assert!(within.ends_with(", with more than 1 in 100 of its waits beyond 5.00 ms"), "{within}");
        let beyond = words(Some(5), 1.1, 9.0);
        assert!(beyond.contains("10.46 ms in") && beyond.ends_with(" ms, beyond 5.00 ms"), "{beyond}");
        // Without a bound it is the baseline's own percentile.
        let grown = words(None, 1.0, 9.0);
        assert!(grown.contains(", beyond 1.") || grown.contains(", beyond 0."), "{grown}");
    }

    /// Waits of which so many of a thousand are long, before and after, and requests of which so many are slow of so many a window.
    fn doubt(target: Option<f64>, long: [u64; 2], windows: usize, all: f64, slow: [f64; 2]) -> Option<Doubt> {
        let (mut tail, mut requests) = (Tail::new(None), RequestTail::default());
        for (at, candidate) in [(0, false), (1, true)] {
            tail.add(Histogram::of(&[(1_000_000, 1000 - long[at]), (50_000_000, long[at])]), candidate);
            (0..windows).for_each(|_| requests.add(Some(Requests { all, slow: slow[at] }), candidate));
        }
        let requests_target = target.map(|slow_share| RequestTarget { slow_share, bound_s: 0.05 });
        let target = LatencyTarget { name: "web".to_owned(), wait_p99_ns: None, requests: requests_target };
        target.doubt(&tail, &requests, &GuardLimits::default())
    }

    #[test]
    fn requests_decide_where_they_tell_and_waits_where_they_do_not() {
        let (bad, good) = ([10, 500], [10, 10]);
        let proved = |doubt: Option<Doubt>| doubt.map(|doubt| doubt.proved);
        assert_eq!(proved(doubt(None, bad, 40, 100.0, [0.0, 0.0])), Some(true), "nothing is promised");
        assert_eq!(proved(doubt(Some(0.01), bad, 40, 100.0, [0.0, 0.0])), None, "no request is slow");
        let slow = doubt(Some(0.02), good, 40, 100.0, [1.0, 40.0]).unwrap();
        // Twice as many may be slow as of waits may be long: half as much of it.
        assert_eq!((slow.before, slow.after, slow.proved, slow.harm), (0.005, 0.2, true, Harm::Tail));
        assert_eq!(
            slow.to_string(),
            "web, which is protected, answers 40.00 instead of 1.00 % of its requests after more than 50 ms"
        );
        // One in a hundred of 500, and of 1000 waits: it cannot be excluded that more are slow, or long.
        assert_eq!(proved(doubt(Some(0.01), good, 5, 100.0, [0.0, 1.0])), Some(false));
        assert_eq!(proved(doubt(None, good, 0, 0.0, [0.0, 0.0])), Some(false));
        // Too few requests: waits decide, but long ones prove nothing while requests are about to tell.
        let few = doubt(Some(0.01), bad, 1, 100.0, [0.0, 0.0]).unwrap();
        assert!(!few.proved && few.detail.is_some_and(|detail| detail.contains(" waits ")));
        assert_eq!(proved(doubt(Some(0.01), bad, 0, 0.0, [0.0, 0.0])), Some(true), "there are none");
        // Harm that few requests show is harm.
        let few = doubt(Some(0.01), good, 1, 100.0, [0.0, 60.0]).unwrap();
        assert!(
            few.proved
                && few.detail.is_some_and(|detail| detail.contains(" answers 60.00 instead of 0.00 %"))
        );
    }

    #[test]
    fn few_waits_do_not_tell_unless_they_are_beyond_the_bound_by_no_chance() {
        let keeps = |short: u64, long: u64| {
            keeps(&Histogram::of(&[(1_000_000, short), (50_000_000, long)]), 5_000_000)
        };
        assert_eq!((keeps(0, 0), keeps(3, 0), keeps(99, 0)), (None, None, None));
        assert_eq!((keeps(0, 1), keeps(2, 1), keeps(98, 1), keeps(90, 3)), (None, None, None, None));
        assert_eq!((keeps(0, 2), keeps(2, 3), keeps(80, 8)), (Some(false), Some(false), Some(false)));
        assert_eq!((keeps(100, 0), keeps(995, 5), keeps(95, 5)), (Some(true), Some(true), Some(false)));
    }
}
