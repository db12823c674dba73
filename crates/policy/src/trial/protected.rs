//! What a trial knows of the protected scopes: their waits, their own requests, and whether a candidate keeps what they were
//! promised.

use super::Trial;
use crate::guard::{Doubt, Tail};
use crate::protect::LatencyTarget;
use crate::requests::{RequestTail, Requests};

/// A window that a trial took in, to add what becomes known of it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    pub(super) candidate: usize,
    pub(super) window: usize,
}

impl Trial {
    /// Takes in the protected scopes' own requests of a window, in their order; `None` where they could not be counted. They
    /// become known only after it.
    pub fn requests(&mut self, recorded: Recorded, requests: Vec<Option<Requests>>) {
        let entry = self.entries.get_mut(recorded.candidate);
        if let Some(slot) = entry.and_then(|entry| entry.requests.get_mut(recorded.window)) {
            *slot = Some(requests);
        }
    }

    pub(super) fn tail(&self, protection: usize, candidate: usize, fresh_from: usize) -> Tail {
        let mut tail = Tail::new(self.guarded.targets[protection].wait_p99_ns);
        let windows = |candidate: usize| &self.entries[candidate].protected[protection];
        windows(self.guarded.default).iter().for_each(|waits| tail.add(waits.clone(), false));
        windows(candidate).iter().skip(fresh_from).for_each(|waits| tail.add(waits.clone(), true));
        tail
    }

    /// A protected scope's own requests under the baseline and under a candidate. What is not known yet is no gap.
    pub(super) fn request_tail(&self, protection: usize, candidate: usize, fresh_from: usize) -> RequestTail {
        let mut tail = RequestTail::default();
        let known = |candidate: usize, from: usize| {
            let windows = self.entries[candidate].requests.iter().skip(from);
            windows.flatten().map(move |requests| requests.get(protection).copied().flatten())
        };
        known(self.guarded.default, 0).for_each(|requests| tail.add(requests, false));
        known(candidate, fresh_from).for_each(|requests| tail.add(requests, true));
        tail
    }

    /// Protections that a candidate is not shown to keep.
    pub(super) fn breaches(&self, candidate: usize, fresh_from: usize) -> Vec<Doubt> {
        if candidate == self.guarded.default {
            return Vec::new();
        }
        let guard = &self.rules.guard;
        let doubt = |(index, protection): (usize, &LatencyTarget)| {
            let tail = self.tail(index, candidate, fresh_from);
            protection.doubt(&tail, &self.request_tail(index, candidate, fresh_from), guard)
        };
        let doubts = self.guarded.targets.iter().enumerate().filter_map(doubt);
        // That what comes to services waits shorter is what is proved there: of waits that are rare it could hardly be shown
        // besides, so that only a service of which more seem to be long is in doubt.
        let services = self.objective.is_for_services();
        doubts.filter(|doubt| !services || doubt.proved || doubt.after > doubt.before).collect()
    }

    /// The protection that a candidate breaks as far as is known, if any.
    pub(super) fn broken(&self, candidate: usize) -> Option<Doubt> {
        let limit = self.rules.guard.tail_share;
        let mut doubts = self.breaches(candidate, 0).into_iter();
        doubts.find(|doubt| doubt.proved || doubt.after > limit.max(doubt.before))
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg32;

    use super::*;
    use crate::requests::RequestTarget;
    use crate::trial::{Decision, Pace, TrialRules};
    use crate::window::Summary;
    use evenkeel_base::Histogram;

    /// A trial of (CPU got, 99th percentile of the service's waits in ms, share of its requests that are slow; none where they
    /// are not counted), 300 requests a window, against what the service promises. Answers come a window late.
    fn decided(truth: &[(f64, f64, Option<f64>)], seed: u64) -> Decision {
        let mut rng = Pcg32::seed_from_u64(seed);
        let service = LatencyTarget {
            name: "container:web".into(),
            wait_p99_ns: Some(2_000_000),
            requests: Some(RequestTarget { slow_share: 0.01, bound_s: 0.05 }),
        };
        let rules = TrialRules { seed, ..TrialRules::default() };
        let mut trial = Trial::new(truth.len() - 1, rules, Pace::new(0.9, 0.1)).protecting(vec![service], 0);
        let (mut left_s, mut late) = (200.0, None);
        while let Some(turn) = trial.next(left_s) {
            left_s -= turn.settle_s + turn.window_s;
            let (got, p99_ms, slow) = truth[turn.candidate];
            let mut waits = Histogram::default();
            (0..300).for_each(|_| {
                waits.add((-p99_ms * 1e6 / 100f64.ln() * rng.random_range(1e-9f64..1.0).ln()) as u64)
            });
            let got_pct = got + rng.random_range(-1.0..1.0);
            let window = Summary { seconds: 0.9, got_pct, waited_pct: 20.0, ..Summary::default() };
            if let Some((recorded, requests)) = late.take() {
                trial.requests(recorded, vec![requests]);
            }
            let slow = slow.map(|share| (0..300).filter(|_| rng.random_bool(share)).count() as f64);
            let requests = slow.map(|slow| Requests { all: 300.0, slow });
            late = trial.record(window, vec![Some(waits)]).map(|recorded| (recorded, requests));
        }
        trial.decide()
    }

    #[test]
    fn requests_decide_where_they_are_counted_and_waits_where_they_are_not() {
        // Waits are long, and no request is: the service says itself that nothing is wrong.
        let good = decided(&[(120.0, 1.0, Some(0.001)), (146.0, 9.0, Some(0.001))], 7);
        assert_eq!(good.winner, 1, "{good:?}");
        assert!(
            good.verdicts[1].why.contains("% of the requests to container:web take more than 50 ms"),
            "{good:?}"
        );
        // Waits are short, and requests are slow.
        let bad = decided(&[(120.0, 1.0, Some(0.001)), (146.0, 1.0, Some(0.2))], 7);
        assert!(bad.winner == 0 && bad.verdicts[1].why.contains("answers"), "{bad:?}");
        // No one counts: waits decide.
        assert_eq!(decided(&[(120.0, 1.0, None), (146.0, 9.0, None)], 7).winner, 0);
        assert_eq!(decided(&[(120.0, 1.0, None), (146.0, 1.0, None)], 7).winner, 1);
        // It can be asked under the default only: what is not known is no reason to go by the rest.
        assert_eq!(decided(&[(120.0, 1.0, Some(0.001)), (146.0, 9.0, None)], 7).winner, 0);
    }

    #[test]
    fn a_candidate_that_requests_rule_out_in_screening_says_so() {
        let truth = [(120.0, 1.0, Some(0.001)), (146.0, 1.0, Some(0.5)), (145.0, 1.0, Some(0.001))];
        let decision = decided(&truth, 7);
        assert_eq!(decision.winner, 2, "{decision:?}");
        assert!(decision.verdicts[1].why.contains("web, which is protected, answers"), "{decision:?}");
    }

    #[test]
    fn a_promise_broken_before_may_stay_as_broken_and_not_become_worse() {
        assert_eq!(decided(&[(120.0, 1.0, Some(0.2)), (146.0, 1.0, Some(0.2))], 5).winner, 1);
        assert_eq!(decided(&[(120.0, 1.0, Some(0.2)), (146.0, 1.0, Some(0.7))], 5).winner, 0);
    }
}
