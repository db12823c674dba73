//! What counting waits may cost: no CPU pays more than a share of its time for it. Time at work that costs more is paid for by
//! time at rest.
//!
//! Each CPU has a balance: at work for t seconds at a cost of c seconds, it owes a rest of c / share - t. So the cost of a CPU
//! is at most share * (time + what it owes), whatever it does: the balance never says less than the sums do. Who owes little
//! goes on, so that a rest is a second or so; what is left over is kept, but not for long: a quiet hour is no reason to be dear
//! for minutes.
//!
//! A rest is half to one and a half times what is owed, at random, so that turns do not keep step with anything on the host.
//! How long it is depends only on what was spent before it: what is seen in a turn does not choose how much of the time it
//! stands for.

/// What is owed before it is paid for, seconds of rest.
const LEAST_S: f64 = 1.0;
/// What may be saved up, seconds.
const CREDIT_S: f64 = 5.0;

#[derive(Debug, Clone)]
pub struct Budget {
    /// Of each CPU's time, above 0.
    share: f64,
    /// Rest that each CPU is owed, seconds; below 0 what it has saved up.
    owed: Vec<f64>,
}

impl Budget {
    pub fn new(share: f64) -> Self {
        Self { share, owed: Vec::new() }
    }

    /// The programs were at work for so many seconds, and took these of each CPU.
    pub fn worked(&mut self, seconds: f64, spent_s: &[f64]) {
        self.owed.resize(self.owed.len().max(spent_s.len()), 0.0);
        for (owed, spent) in self.owed.iter_mut().zip(spent_s) {
            *owed = (*owed + spent / self.share - seconds).max(-CREDIT_S);
        }
    }

    /// They rested for so many seconds.
    pub fn rested(&mut self, seconds: f64) {
        self.owed.iter_mut().for_each(|owed| *owed = (*owed - seconds).max(-CREDIT_S));
    }

    /// How long they are to rest now, seconds; `None` to go on. `luck`: 0 to 1, evenly distributed.
    pub fn rest(&self, luck: f64) -> Option<f64> {
        let most = self.most_owed();
        (most >= LEAST_S).then(|| most * (0.5 + luck.clamp(0.0, 1.0)))
    }

    fn most_owed(&self) -> f64 {
        self.owed.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Turns of a host whose CPUs cost these shares of a second, second by second: seconds in all, at work, spent by CPU.
    fn run(budget: &mut Budget, costs: &[Vec<f64>], seed: u64) -> (f64, f64, Vec<f64>) {
        let mut luck = rand_pcg::Pcg32::seed_from_u64(seed);
        let (mut all, mut worked, mut spent) = (0.0, 0.0, vec![0.0; costs[0].len()]);
        for cost in costs {
            budget.worked(1.0, cost);
            (all, worked) = (all + 1.0, worked + 1.0);
            spent.iter_mut().zip(cost).for_each(|(sum, cost)| *sum += cost);
            if let Some(rest) = budget.rest(luck.random()) {
                assert!(rest >= 0.5 * LEAST_S, "{rest}");
                budget.rested(rest);
                all += rest;
            }
        }
        (all, worked, spent)
    }

    proptest! {
        #[test]
        fn no_cpu_pays_more_than_its_share(
            share in 0.0005f64..0.2,
            costs in prop::collection::vec(prop::collection::vec(0.0f64..1.0, 3), 1..200),
            seed: u64,
        ) {
            let mut budget = Budget::new(share);
            let (all, _, spent) = run(&mut budget, &costs, seed);
            for spent in spent {
                let allowed = share * (all + budget.most_owed());
                prop_assert!(spent <= allowed * (1.0 + 1e-9), "{spent} of {allowed} in {all} s");
            }
            // What is owed is at most what the last second cost, half of a rest that was short, and what is not paid for yet.
            let last = costs.iter().rev().take(40).flatten().fold(0.0f64, |most, cost| most.max(*cost));
            let bound = 2.0 * (last.max(1e-9) / share) + LEAST_S;
            prop_assert!(costs.len() < 40 || budget.most_owed() <= 1.0 / share + bound, "{}", budget.most_owed());
        }

        #[test]
        fn where_it_is_cheap_it_never_rests(
            share in 0.0005f64..0.2,
            parts in prop::collection::vec(0.0f64..1.0, 1..200),
            seed: u64,
        ) {
            let costs: Vec<Vec<f64>> = parts.iter().map(|part| vec![part * share, 0.0]).collect();
            let (all, worked, _) = run(&mut Budget::new(share), &costs, seed);
            prop_assert_eq!(all, worked);
        }

        #[test]
        fn a_steady_cost_gets_the_share_that_it_can_have(share in 0.002f64..0.05, dear in 1.2f64..20.0, seed: u64) {
            let cost = share * dear;
            let costs = vec![vec![cost]; (4000.0 / dear) as usize];
            let (all, worked, _) = run(&mut Budget::new(share), &costs, seed);
            let got = worked / all;
            prop_assert!((got * dear - 1.0).abs() < 0.15, "at work {got} of the time, of {}", 1.0 / dear);
        }
    }

    #[test]
    fn a_quiet_hour_is_no_reason_to_be_dear_for_minutes() {
        let mut budget = Budget::new(0.01);
        budget.worked(3600.0, &[0.0]);
        budget.worked(1.0, &[0.1]);
        assert_eq!(budget.rest(0.5), Some(0.1 / 0.01 - 1.0 - CREDIT_S));
    }
}
