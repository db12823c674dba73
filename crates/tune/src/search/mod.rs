//! Search for the best settings of something that can only be measured: exhaustive, random, descent, Bayesian, all
//! through [`Search::ask`] and [`Search::tell`].
//!
//! What comes next depends only on what was told, in which order, and on the seed; so an interrupted search goes on by
//! telling it all that was measured. Losses are to become small: a throughput is told with its sign turned.
//!
//! Measurements are noisy. A point that looks better than the best so far is run again, in turns with that one, until
//! it has lost or has [`Rules::repeats`] runs; others are run once, which the Gaussian process makes up for. The end of
//! the budget goes to a final comparison of the few best and of the settings given as present, in turns, so that slow
//! changes of the machine hit all alike. Only its runs decide: the best of many noisy runs is too good to be true.
//!
//! ```
//! use evenkeel_tune::search::{Domain, Method, Outcome, Parameter, Rules, Search, Space, Value};
//! let x = Parameter { name: "x".into(), domain: Domain::Real { low: -5.0, high: 5.0, log: false } };
//! let mut search = Search::new(Space::new(vec![x]).unwrap(), Method::Bayesian, Rules::exact(7));
//! for left in (1..=20).rev() {
//!     let Some(ask) = search.ask(Some(left)) else { break };
//!     let Value::Real(x) = ask.point[0] else { unreachable!() };
//!     search.tell(&ask, Outcome::of((x - 1.0).powi(2)));
//! }
//! assert!(search.history().best().unwrap().mean().unwrap() < 0.01);
//! ```

mod bayes;
mod descent;
pub mod gp;
pub mod history;
pub mod importance;
pub mod space;
#[cfg(test)]
mod tests;

use rand::SeedableRng;
use rand_pcg::Pcg32;
use serde::{Deserialize, Serialize};

pub use history::{Arm, History, Outcome};
pub use space::{Domain, Parameter, Point, Space, SpaceError, Value};

use evenkeel_base::stats;

evenkeel_base::named! {
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Every point of a grid.
    Exhaustive = "exhaustive",
    /// Evenly drawn.
    Random = "random",
    /// Downhill along one parameter at a time.
    Coordinate = "coordinate",
    /// Downhill along the gradient.
    Gradient = "gradient",
    /// Where a Gaussian process expects the largest improvement.
    Bayesian = "bayesian",
}
}

/// How a search is run.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub seed: u64,
    /// Runs a point must have had before it counts as the best; 1 for exact measurements.
    pub repeats: usize,
    /// Points in the final comparison, the present settings not counted; 0 for none.
    pub finalists: usize,
    /// Values of a number that the exhaustive method tries.
    pub levels: u64,
    /// The present settings: the first point, and a party of the final comparison.
    pub present: Option<Point>,
    /// Points expected to be good (from a simulation), best first.
    pub warm: Vec<Point>,
}

impl Rules {
    /// For measurements without noise.
    pub fn exact(seed: u64) -> Self {
        Self { seed, repeats: 1, finalists: 0, levels: 5, present: None, warm: Vec::new() }
    }

    pub fn noisy(seed: u64) -> Self {
        Self { repeats: 3, finalists: 3, ..Self::exact(seed) }
    }

    /// Runs the final comparison takes of a budget of so many.
    fn reserve(&self, budget: usize) -> usize {
        if self.finalists == 0 {
            return 0;
        }
        let parties = self.finalists + usize::from(self.present.is_some());
        (parties * self.repeats.max(2)).min(budget / 3)
    }
}

/// Why a point is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    New,
    /// It may be the best, or is, and one run says little.
    Confirm,
    /// Final comparison.
    LastRound,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    pub point: Point,
    pub reason: Reason,
}

#[derive(Debug, Clone)]
pub struct Search {
    space: Space,
    method: Method,
    rules: Rules,
    history: History,
    finalists: Vec<Point>,
}

impl Search {
    /// A search that knows nothing yet.
    pub fn new(space: Space, method: Method, rules: Rules) -> Self {
        Self { space, method, rules, history: History::default(), finalists: Vec::new() }
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// What to run next when `left` more runs fit into the budget (`None`: no end known); `None` when nothing is left to
    /// do: the budget is spent, or every point is known.
    pub fn ask(&mut self, left: Option<usize>) -> Option<Ask> {
        if left == Some(0) {
            return None;
        }
        let done = self.history.runs();
        let budget = left.map(|left| done + left);
        let reserve = budget.map_or(0, |b| self.rules.reserve(b));
        // While nothing keeps the constraints there is nothing to compare, and all that is left goes into looking for it.
        let is_end = left.is_some_and(|left| left <= reserve) && self.history.best().is_some();
        if !self.finalists.is_empty() || is_end {
            return self.last_round();
        }
        let mut rng =
            Pcg32::seed_from_u64(self.rules.seed.wrapping_mul(0x9e37_79b9).wrapping_add(done as u64));
        if let Some(point) = self.to_confirm() {
            return Some(Ask { point, reason: Reason::Confirm });
        }
        let next = match &self.rules.present {
            Some(point) if self.history.arm(point).is_none() => Some(point.clone()),
            _ => self.propose(&mut rng),
        };
        match next {
            Some(point) => Some(Ask { point, reason: Reason::New }),
            // Every point is known: compare the best, if that was wanted.
            None => self.last_round(),
        }
    }

    /// What a run gave.
    pub fn tell(&mut self, ask: &Ask, mut outcome: Outcome) {
        outcome.last_round = ask.reason == Reason::LastRound;
        self.recall(&ask.point, outcome);
    }

    /// A run of an earlier, interrupted search.
    pub fn recall(&mut self, point: &Point, outcome: Outcome) {
        if outcome.last_round && self.finalists.is_empty() {
            self.finalists = self.pick_finalists();
        }
        self.history.push(point, outcome);
    }

    fn propose(&self, rng: &mut Pcg32) -> Option<Point> {
        match self.method {
            Method::Exhaustive => self.space.grid(self.rules.levels).find(|p| self.history.arm(p).is_none()),
            Method::Random => {
                let warm =
                    self.rules.warm.iter().find(|p| self.space.holds(p) && self.history.arm(p).is_none());
                warm.cloned().or_else(|| descent::fresh(&self.space, &self.history, rng))
            }
            Method::Coordinate | Method::Gradient => {
                // A few starting points are worth more than a walk from a bad one.
                let warm = self
                    .rules
                    .warm
                    .iter()
                    .take(3)
                    .find(|p| self.space.holds(p) && self.history.arm(p).is_none());
                if let Some(point) = warm {
                    return Some(point.clone());
                }
                match self.method {
                    Method::Coordinate => descent::coordinate(&self.space, &self.history, rng),
                    _ => descent::gradient(&self.space, &self.history, rng),
                }
            }
            Method::Bayesian => {
                bayes::propose(&self.space, &self.history, &self.rules.warm, self.rules.seed, rng)
            }
        }
    }

    /// The leader needs more runs, or the one it took the lead from.
    fn to_confirm(&self) -> Option<Point> {
        let repeats = self.rules.repeats;
        // The first few points only show the lie of the land.
        if repeats < 2
            || self.history.arms().len() < bayes::first_points(self.space.dim(), self.rules.warm.len())
        {
            return None;
        }
        let mut feasible: Vec<&Arm> = self.history.arms().iter().filter(|a| a.feasible()).collect();
        feasible
            .sort_by(|a, b| a.mean().unwrap_or(f64::INFINITY).total_cmp(&b.mean().unwrap_or(f64::INFINITY)));
        let leader = *feasible.first()?;
        if leader.runs.len() >= repeats {
            return None;
        }
        // In turns with the runner-up where that one has fewer runs: a drift of the machine hits both.
        let rival = feasible.get(1).filter(|a| a.runs.len() < leader.runs.len());
        Some(rival.unwrap_or(&leader).point.clone())
    }

    /// None where nothing keeps the constraints: there is nothing to compare.
    fn pick_finalists(&self) -> Vec<Point> {
        let Some(best) = self.history.best() else { return Vec::new() };
        let fitted = match self.method {
            Method::Bayesian if self.rules.repeats > 1 => bayes::fit(&self.space, &self.history),
            _ => None,
        };
        let mut feasible: Vec<&Arm> = self.history.arms().iter().filter(|a| a.feasible()).collect();
        // By the process where there is one: it knows a lucky run from a good neighbourhood.
        let loss = |a: &Arm| match &fitted {
            Some(fitted) => fitted.loss.mean(&self.space.place(&a.point)),
            None => a.mean().unwrap_or(f64::INFINITY),
        };
        feasible.sort_by(|a, b| loss(a).total_cmp(&loss(b)));
        let mut out: Vec<Point> =
            feasible.iter().take(self.rules.finalists).map(|a| a.point.clone()).collect();
        if !out.contains(&best.point) {
            out.pop();
            out.push(best.point.clone());
        }
        if let Some(present) = &self.rules.present
            && self.history.arm(present).is_some_and(|arm| !arm.fails())
            && !out.contains(present)
        {
            out.push(present.clone());
        }
        out
    }

    /// The finalist with the fewest runs in the final comparison.
    fn last_round(&mut self) -> Option<Ask> {
        if self.rules.finalists == 0 {
            return None;
        }
        if self.finalists.is_empty() {
            self.finalists = self.pick_finalists();
        }
        let runs =
            |p: &Point| self.history.arm(p).map_or(0, |arm| arm.runs.iter().filter(|r| r.last_round).count());
        let most = self.rules.repeats.max(2);
        let next = self.finalists.iter().min_by_key(|p| runs(p)).filter(|p| runs(p) < most)?;
        Some(Ask { point: next.clone(), reason: Reason::LastRound })
    }

    /// The best point with the mean loss of the runs that decide and its 95 % interval; `None` where no point works and
    /// keeps the constraints.
    pub fn best(&self) -> Option<(&Arm, evenkeel_base::run::Estimate)> {
        let arm = self.history.best()?;
        let values = arm.decisive();
        let mut estimate = stats::estimate(&values)?;
        if values.len() < 2
            && let Some((sd, freedom)) = self.history.noise()
        {
            // One run only: the spread of the others stands in.
            let margin = stats::t_factor(freedom as f64, 0.05) * sd;
            (estimate.low, estimate.high) = (estimate.value - margin, estimate.value + margin);
        }
        Some((arm, estimate))
    }

    /// Gain of the best over the present settings in loss (below 0 is better), with its 95 % interval; `None` where one
    /// of them is not known.
    pub fn gain(&self) -> Option<evenkeel_base::run::Estimate> {
        let present = self.history.arm(self.rules.present.as_ref()?)?;
        let best = self.history.best()?;
        stats::difference(&best.decisive(), &present.decisive(), 0.05)
    }

    /// How much each parameter matters, see [`importance`].
    pub fn importance(&self) -> Option<Vec<importance::Importance>> {
        importance::of(&self.space, &bayes::fit(&self.space, &self.history)?.loss)
    }
}
