//! What a service promises of its requests, and whether a change breaks it.
//!
//! A service that counts its requests by how long they took tells more than its waits for a CPU do: how many of them were slow.
//! The question is the one that is asked of waits ([`crate::guard::Tail`]): does the share beyond a bound grow? Requests of
//! one window resemble each other, so windows are what is counted here, too. Where more are slow under the baseline than are
//! promised, the baseline's share is the standard; else it is what is promised.

use serde::{Deserialize, Serialize};

use crate::guard::{Counts, Open, Question, sum};

/// Slow ones among as many requests as are needed to tell, where as many are slow as are promised: five expected ones are seen
/// to be none, or many.
const EXPECTED: f64 = 5.0;
/// Of three windows, so many must have been counted: a service that cannot be asked while it is starved would else be judged by
/// the others.
const COUNTED: (usize, usize) = (2, 3);
/// Most of the way from the baseline's share to all requests that a change may take it.
const MOST_WAY: f64 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Requests {
    /// Answered in it.
    pub all: f64,
    /// Of these, those that took longer than the bound.
    pub slow: f64,
}

/// What a service promises: a share of its requests is answered within a bound.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RequestTarget {
    /// Share of the requests that may take longer, 0 to 1, both excluded.
    pub slow_share: f64,
    pub bound_s: f64,
}

/// Share of slow ones over windows; `None` without any request.
pub fn slow_share<'a>(windows: impl IntoIterator<Item = &'a Requests>) -> Option<f64> {
    let (slow, all) =
        windows.into_iter().fold((0.0, 0.0), |(slow, all), one| (slow + one.slow, all + one.all));
    (all > 0.0).then(|| slow / all)
}

impl RequestTarget {
    /// Requests that are needed to tell whether it is kept.
    pub fn least(self) -> f64 {
        EXPECTED / self.slow_share
    }

    /// The share from which on more are slow than may be, where it may grow by a factor: of what is promised, or of the baseline's
    /// share, whichever is more.
    pub fn limit(self, baseline: Option<f64>, growth: f64) -> f64 {
        baseline
            .filter(|share| *share > self.slow_share)
            .map_or(self.slow_share, |share| share * growth_of(share, growth))
    }

    /// The bound, as people write it.
    pub fn bound_words(self) -> String {
        if self.bound_s < 1.0 {
            format!("{} ms", round(1000.0 * self.bound_s))
        } else {
            format!("{} s", round(self.bound_s))
        }
    }
}

/// Where every other request is slow twice as many is all of them: a share may grow by so much less.
fn growth_of(share: f64, growth: f64) -> f64 {
    growth.min(1.0 + MOST_WAY * (1.0 - share) / share)
}

/// Three places.
fn round(value: f64) -> f64 {
    (1000.0 * value).round() / 1000.0
}

/// Requests of a service, window by window, under the baseline and under a candidate; `None` for a window in which they could
/// not be counted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestTail {
    baseline: Vec<Option<Requests>>,
    candidate: Vec<Option<Requests>>,
}

/// Slow ones, and all, of the windows that were counted.
fn counts(windows: &[Option<Requests>]) -> Counts {
    windows.iter().flatten().map(|requests| (requests.slow, requests.all)).collect()
}

impl RequestTail {
    pub fn add(&mut self, requests: Option<Requests>, candidate: bool) {
        if candidate { &mut self.candidate } else { &mut self.baseline }.push(requests);
    }

    /// Forgets all but so many windows, the last ones.
    pub fn keep_last(&mut self, baseline: usize, candidate: usize) {
        for (windows, most) in [(&mut self.baseline, baseline), (&mut self.candidate, candidate)] {
            windows.drain(..windows.len().saturating_sub(most));
        }
    }

    /// Whether there are enough requests, of enough windows, to tell whether the promise is kept.
    pub fn tells(&self, target: RequestTarget) -> bool {
        let enough = |windows: &Vec<_>| sum(&counts(windows)).1 >= target.least();
        self.may_tell() && enough(&self.baseline) && enough(&self.candidate)
    }

    /// Whether there are requests, and most windows were counted: with time they tell.
    pub fn may_tell(&self) -> bool {
        let both = [&self.baseline, &self.candidate].map(|windows| (windows.len(), counts(windows)));
        both.iter().all(|(windows, counted)| counted.len() * COUNTED.1 >= windows * COUNTED.0)
            && both.iter().any(|(_, counted)| sum(counted).1 > 0.0)
    }

    /// Shares of slow requests: (baseline, candidate); `None` without any request.
    pub fn shares(&self) -> (Option<f64>, Option<f64>) {
        (slow_share(self.baseline.iter().flatten()), slow_share(self.candidate.iter().flatten()))
    }

    /// Windows under the candidate whose requests were counted.
    pub fn into_candidate(self) -> Vec<Requests> {
        self.candidate.into_iter().flatten().collect()
    }

    /// The shares of slow requests, if the promise is not shown to be kept. The share may grow by this factor, of what is promised or of the baseline's, whichever is more.
    pub fn doubt(&self, target: RequestTarget, growth: f64, enough: f64) -> Option<Open> {
        let usual = target.slow_share;
        let before = self.shares().0.filter(|share| *share > usual);
        let most = growth * usual;
        let question = Question { usual, most, growth: before.map(|share| growth_of(share, growth)) };
        question.doubt(&counts(&self.baseline), &counts(&self.candidate), enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg32;

    const TARGET: RequestTarget = RequestTarget { slow_share: 0.01, bound_s: 0.05 };

    /// Windows of 100 requests, of which about these shares are slow.
    fn windows(count: usize, before: f64, after: f64) -> RequestTail {
        let mut rng = Pcg32::seed_from_u64(3);
        let mut tail = RequestTail::default();
        for _ in 0..count {
            for (share, candidate) in [(before, false), (after, true)] {
                let slow = (0..100).filter(|_| rng.random_bool(share)).count() as f64;
                tail.add(Some(Requests { all: 100.0, slow }), candidate);
            }
        }
        tail
    }

    fn doubt(tail: &RequestTail) -> Option<bool> {
        tail.doubt(TARGET, 2.5, 20.0).map(|open| open.proved)
    }

    #[test]
    fn a_share_that_grows_beyond_the_promise_is_shown_and_one_that_does_not_is_cleared() {
        assert_eq!(doubt(&windows(20, 0.001, 0.002)), None, "both keep it");
        assert_eq!(doubt(&windows(20, 0.001, 0.08)), Some(true));
        assert_eq!(doubt(&windows(20, 0.05, 0.004)), None, "it is mended");
        assert_eq!(doubt(&windows(40, 0.05, 0.05)), None, "broken before, and no more than before");
        assert_eq!(doubt(&windows(20, 0.05, 0.3)), Some(true));
        assert_eq!(doubt(&windows(20, 0.5, 0.98)), Some(true), "twice as many would be all");
        assert_eq!(doubt(&windows(40, 0.5, 0.5)), None);
    }

    #[test]
    fn few_requests_and_windows_that_were_not_counted_do_not_tell() {
        assert!(windows(5, 0.01, 0.01).tells(TARGET) && !windows(4, 0.01, 0.01).tells(TARGET));
        assert!(!RequestTail::default().tells(TARGET));
        let mut gaps = windows(8, 0.01, 0.01);
        (0..4).for_each(|_| gaps.add(None, true));
        assert!(gaps.tells(TARGET), "a third is missing");
        gaps.add(None, true);
        assert!(!gaps.tells(TARGET), "more than that");
    }

    #[test]
    fn the_limit_is_what_is_promised_or_grows_from_what_was_found_and_never_is_everything() {
        let limit = |found| TARGET.limit(found, 1.5);
        assert_eq!([limit(None), limit(Some(0.0)), limit(Some(0.01))], [0.01; 3]);
        assert!((limit(Some(0.1)) - 0.15).abs() < 1e-12 && (limit(Some(0.8)) - 0.9).abs() < 1e-12);
        assert_eq!(limit(Some(1.0)), 1.0);
    }

    #[test]
    fn bounds_are_written_as_people_do() {
        let words = |bound_s| RequestTarget { slow_share: 0.01, bound_s }.bound_words();
        assert_eq!([words(0.05), words(0.0025), words(1.5)], ["50 ms", "2.5 ms", "1.5 s"]);
        assert_eq!(words(1.0), "1 s");
    }

    #[test]
    fn what_is_told_of_windows() {
        let mut tail = windows(5, 0.01, 0.01);
        tail.candidate.pop();
        assert!(tail.may_tell() && !tail.tells(TARGET), "too few under the candidate");
        tail.add(Some(Requests { all: 100.0, slow: 1.0 }), true);
        tail.baseline.pop();
        assert!(tail.may_tell() && !tail.tells(TARGET), "too few under the baseline");
        tail.add(None, false);
        (0..2).for_each(|_| tail.add(None, false));
        assert!(!tail.may_tell(), "three of seven were not counted");
        let none = RequestTail::default();
        assert_eq!((none.may_tell(), none.shares()), (false, (None, None)));
        let one = |all: f64, slow: f64| Some(Requests { all, slow });
        let mut few = RequestTail::default();
        for (all, slow, candidate) in [
            (1.0, 0.0, false),
            (2.0, 0.0, false),
            (4.0, 1.0, false),
            (8.0, 0.0, true),
            (16.0, 4.0, true),
            (32.0, 8.0, true),
        ] {
            few.add(one(all, slow), candidate);
        }
        few.keep_last(9, 2);
        assert_eq!(few.shares(), (Some(1.0 / 7.0), Some(0.25)));
        few.keep_last(1, 1);
        assert_eq!(few.shares(), (Some(0.25), Some(0.25)));
        assert_eq!(few.into_candidate(), [Requests { all: 32.0, slow: 8.0 }]);
    }

    #[test]
    fn a_baseline_that_just_keeps_the_promise_is_no_excuse() {
        let doubt = |before: f64| {
            let mut tail = RequestTail::default();
            tail.add(Some(Requests { all: 10_000.0, slow: before }), false);
            tail.add(Some(Requests { all: 10_000.0, slow: 110.0 }), true);
            doubt(&tail)
        };
        assert_eq!((doubt(100.0), doubt(101.0)), (Some(false), None));
    }
}
