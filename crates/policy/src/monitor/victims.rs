//! Whom a change in force hurts, task by task.
//!
//! For each task and each comparison of windows under the change with one under the baseline there is one number: the
//! difference over the mean of both, averaged over the windows. It is between -2 and 2, and symmetric about zero when the
//! arms do not differ, because chance decides which window is which. Single tasks have few such numbers, so their
//! variance is pooled across tasks (the moderated t; Smyth 2004): a prior with `d0` degrees of freedom about `s0²`, both
//! estimated from all tasks. The evidence is the Bayes factor of a loss against none, which is an e-value at every time
//! it is looked at; [`fdr::discoveries`] holds the share of false accusations however many tasks there are. A victim is a
//! loss proved whose shrunken estimate is beyond the limit.

use std::collections::BTreeMap;

use evenkeel_base::stats::t_cdf;
use evenkeel_base::{Histogram, TaskId};
use serde::{Deserialize, Serialize};
use statrs::function::gamma::digamma;

use super::fdr;
use crate::guard::{Open, TAIL, Tail};
use crate::requests::{RequestTail, RequestTarget, Requests};
use crate::window::{Owner, Summary};

/// Comparisons needed before anybody can be a victim.
const LEAST: u64 = 3;
/// Weight of the prior that says there is no loss, in comparisons of a block: what estimates shrink by.
const SHRINK: f64 = 1.0;
/// Tasks from which a common variance is estimated, at least.
const COMMON: usize = 4;
/// Most that is believed of a common variance, degrees of freedom.
const MOST_FREEDOM: f64 = 50.0;
/// Seconds of windows that have weight 1: three under the baseline against four times as much under the change.
const UNIT_S: f64 = 3.0 / 1.25;
/// Comparisons after which a task that was not seen is forgotten.
const FORGET: u64 = 10;
/// Share of the waits of somebody outside the scope that may be longer than 99 in 100 are under the baseline; waits needed to
/// judge it; and windows under the baseline, with four times as many under the change, that are remembered: about a quarter of an hour.
const TAIL_SHARE: f64 = 0.015;
const TAIL_WAITS: f64 = 200.0;
const TAIL_WINDOWS: usize = 40;
/// Variances below this are as good as none: two equal counters in a row.
const LEAST_VARIANCE: f64 = 1e-6;

/// Who is watched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Task(TaskId),
    /// What is outside the scope of a container, machine or top-level cgroup, by name.
    Group(String),
    /// Everything outside the scope together.
    Outside,
    Service(String),
}

/// What it got in one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// CPU got, percent of one CPU.
    pub cpu_pct: f64,
    /// Time waiting, percent of the window; `None` if unknown.
    pub waited_pct: Option<f64>,
}

/// What the watch needs of one window.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Seen {
    pub seconds: f64,
    /// What the decision weighed: the objective's value, points of CPU.
    pub score: f64,
    /// CPU got by the scope, percent of one CPU.
    pub cpu_pct: f64,
    /// 99th percentile of the waits that are counted one by one, ms; `None` where none are.
    pub wait_p99_ms: Option<f64>,
    /// Everybody, ordered.
    pub usages: Vec<(Subject, Usage)>,
    /// Waits by length of who is outside the scope, where they are counted.
    pub waits: BTreeMap<Owner, Histogram>,
}

impl Seen {
    /// Of a window, with the objective's value of it.
    pub fn of(summary: &Summary, score: f64) -> Self {
        let tasks = summary.tasks.iter().map(|(id, rates)| {
            (Subject::Task(*id), Usage { cpu_pct: rates.got_pct, waited_pct: rates.waited_pct })
        });
        // Who is outside is asked for CPU here; their waits are judged by length.
        let mut groups: BTreeMap<&Owner, f64> = BTreeMap::new();
        for rates in summary.tasks.values().filter(|rates| !rates.in_scope) {
            if let Some(owner) = &rates.owner {
                *groups.entry(owner).or_default() += rates.got_pct;
            }
        }
        let groups = groups
            .into_iter()
            .map(|(owner, cpu_pct)| (Subject::Group(owner.to_string()), Usage { cpu_pct, waited_pct: None }));
        let outside =
            summary.outside_pct.map(|cpu_pct| (Subject::Outside, Usage { cpu_pct, waited_pct: None }));
        Self {
            seconds: summary.seconds,
            score,
            cpu_pct: summary.got_pct,
            wait_p99_ms: None,
            usages: tasks.chain(groups).chain(outside).collect(),
            waits: summary.waits.clone(),
        }
    }

    fn usage(&self, subject: &Subject) -> Option<Usage> {
        let at = self.usages.binary_search_by(|(who, _)| who.cmp(subject)).ok()?;
        Some(self.usages[at].1)
    }
}

/// Windows under the change held against one under the baseline, near each other in time, the order left to chance. All
/// are of about one length.
#[derive(Debug, Clone, Copy)]
pub struct Comparison<'a> {
    pub change: &'a [Seen],
    pub baseline: &'a Seen,
}

impl Comparison<'_> {
    /// How much it tells, 1 for three seconds under the baseline against twelve under the change. A window that lasted far longer
    /// than the others, for evenkeel was stopped in it, tells no more than they do.
    fn weight(&self) -> f64 {
        let windows = self.change.len() as f64;
        let seconds = self.change.iter().map(|window| window.seconds).fold(self.baseline.seconds, f64::min);
        seconds / (1.0 + 1.0 / windows) / UNIT_S
    }
}

evenkeel_base::defaults! {
/// How far a change may go with somebody who was promised nothing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VictimLimits {
    /// Share of its CPU that a task may lose.
    pub cpu_loss: f64 = 0.10,
    /// Share of its CPU that a container, machine or top-level cgroup outside the scope may lose, and all of them together.
    pub outside_cpu_loss: f64 = 0.05,
    /// Factor by which a task's wait per unit of work may grow.
    pub wait_factor: f64 = 1.5,
    /// Waits below this many seconds per second of work are not told apart from none.
    pub wait_floor: f64 = 0.02,
    /// Whoever gets less than this, percent of one CPU, is not looked at.
    pub min_cpu_pct: f64 = 0.1,
    /// Share of accusations that may be false.
    pub alpha: f64 = 0.05,
}
}

/// In what way somebody is hurt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// Gets less CPU.
    Cpu,
    /// Waits longer per unit of work.
    Wait,
    /// More of its waits are long.
    Tail,
    /// More of its requests are slow.
    Slow,
}

const LOSSES: [Loss; 2] = [Loss::Cpu, Loss::Wait];

/// Somebody whom the change hurts beyond the limit, proved.
#[derive(Debug, Clone, PartialEq)]
pub struct Victim {
    pub subject: Subject,
    pub loss: Loss,
    /// Shrunken estimate of the ratio between change and baseline: 0.6 is a loss of 40 % of its CPU.
    pub ratio: f64,
    /// E-value of there being no loss.
    pub evidence: f64,
}

/// Sums over one task's comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Moments {
    n: u64,
    w: f64,
    wx: f64,
    wxx: f64,
}

impl Moments {
    fn add(&mut self, w: f64, x: f64) {
        self.n += 1;
        self.w += w;
        self.wx += w * x;
        self.wxx += w * x * x;
    }

    /// Variance of a comparison of weight 1 about the task's own mean; `None` of fewer than two.
    fn variance(&self) -> Option<f64> {
        (self.n > 1)
            .then(|| ((self.wxx - self.wx * self.wx / self.w) / (self.n - 1) as f64).max(LEAST_VARIANCE))
    }

    /// The estimate, shrunken towards none.
    fn estimate(&self) -> f64 {
        self.wx / (self.w + SHRINK)
    }

    /// Logarithm of the Bayes factor of a loss (an effect of this sign) against none.
    fn ln_evidence(&self, sign: f64, common: Common) -> f64 {
        let (n, precision) = (self.n as f64, self.w + SHRINK);
        let freedom = common.freedom + n;
        let none = common.freedom * common.variance + self.wxx;
        let some = (none - self.wx * self.wx / precision).max(n * LEAST_VARIANCE);
        let both = 0.5 * (SHRINK / precision).ln() + 0.5 * freedom * (none.max(some) / some).ln();
        if both < 0.0 {
            // At most doubled below: no discovery whatever the sign is.
            return both;
        }
        // Half of the prior is a gain; what is left of it is what lies on the side of the loss.
        let spread = (some / (freedom * precision)).sqrt();
        let share = t_cdf(sign * self.estimate() / spread, freedom).unwrap_or(0.5);
        both + (2.0 * share).max(f64::MIN_POSITIVE).ln()
    }
}

/// The prior of a task's variance: this many degrees of freedom about this value.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Common {
    freedom: f64,
    variance: f64,
}

impl Common {
    /// From the variances of all, each with its degrees of freedom: the moments of their logarithms (Smyth 2004,
    /// section 6.2).
    fn of(variances: &[(f64, f64)]) -> Self {
        let count = variances.len() as f64;
        if variances.len() < COMMON {
            return Self { freedom: 0.0, variance: 0.0 };
        }
        let centred: Vec<f64> =
            variances.iter().map(|(s2, d)| s2.ln() - digamma(d / 2.0) + (d / 2.0).ln()).collect();
        let mean = centred.iter().sum::<f64>() / count;
        let spread = centred.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / (count - 1.0)
            - variances.iter().map(|(_, d)| trigamma(d / 2.0)).sum::<f64>() / count;
        // Variances that spread less than those of one common variance would: all that is believed.
        let freedom = (2.0 * inverse_trigamma(spread)).min(MOST_FREEDOM);
        Self { freedom, variance: (mean + digamma(freedom / 2.0) - (freedom / 2.0).ln()).exp() }
    }
}

/// Second derivative of the logarithm of the gamma function, for positive `x` (recurrence, then the asymptotic series;
/// Abramowitz and Stegun 6.4.6, 6.4.12).
fn trigamma(x: f64) -> f64 {
    let (mut x, mut sum) = (x.max(1e-6), 0.0);
    while x < 6.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    sum + 1.0 / x + y / 2.0 + y / x * (1.0 / 6.0 - y * (1.0 / 30.0 - y * (1.0 / 42.0 - y / 30.0)))
}

/// Where [`trigamma`], which falls, has this value.
fn inverse_trigamma(value: f64) -> f64 {
    let (mut low, mut high) = (1e-6f64, 1e6f64);
    for _ in 0..80 {
        let middle = (low * high).sqrt();
        if trigamma(middle) > value {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low * high).sqrt()
}

/// What is known of everybody.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Watch {
    limits: VictimLimits,
    everybody: BTreeMap<Subject, Known>,
    /// Waits of who is outside the scope, with the comparison that they were last seen in.
    tails: BTreeMap<Owner, (Tail, u64)>,
    /// Own requests of services, with what is promised of them.
    requests: BTreeMap<Owner, (RequestTarget, RequestTail)>,
    comparisons: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Known {
    moments: [Moments; 2],
    last: u64,
}

impl Watch {
    pub fn new(limits: VictimLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub fn add(&mut self, comparison: Comparison<'_>) {
        if comparison.change.is_empty() {
            return;
        }
        self.comparisons += 1;
        let weight = comparison.weight();
        for (subject, baseline) in &comparison.baseline.usages {
            let change: Option<Vec<Usage>> =
                comparison.change.iter().map(|window| window.usage(subject)).collect();
            // Whoever came, ended or slept through a window cannot be compared.
            let Some(change) = change else { continue };
            let cpu = change.iter().map(|u| u.cpu_pct).sum::<f64>() / change.len() as f64;
            if f64::midpoint(cpu, baseline.cpu_pct) < self.limits.min_cpu_pct {
                continue;
            }
            let known = self.everybody.entry(subject.clone()).or_default();
            known.last = self.comparisons;
            if let Some(x) = difference(&change, baseline, |u| Some(u.cpu_pct)) {
                known.moments[0].add(weight, x);
            }
            let wait = |u: &Usage| Some((u.waited_pct? / u.cpu_pct).max(self.limits.wait_floor));
            if let Some(x) = difference(&change, baseline, |u| wait(u).filter(|wait| wait.is_finite())) {
                known.moments[1].add(weight, x);
            }
        }
        for (owner, baseline) in &comparison.baseline.waits {
            let change: Option<Vec<&Histogram>> =
                comparison.change.iter().map(|window| window.waits.get(owner)).collect();
            let Some(change) = change else { continue };
            let (tail, last) = self.tails.entry(owner.clone()).or_default();
            *last = self.comparisons;
            tail.add(baseline.clone(), false);
            change.into_iter().for_each(|waits| tail.add(waits.clone(), true));
            tail.keep_last(TAIL_WINDOWS, 4 * TAIL_WINDOWS);
        }
        let oldest = self.comparisons.saturating_sub(FORGET);
        self.everybody.retain(|_, known| known.last >= oldest);
        self.tails.retain(|_, (_, last)| *last >= oldest);
    }

    /// Takes in the own requests of a service in a window, by which it is watched.
    pub fn add_requests(
        &mut self,
        name: &str,
        target: RequestTarget,
        requests: Option<Requests>,
        change: bool,
    ) {
        let (promised, tail) = self.requests.entry(name.into()).or_default();
        if *promised != target {
            // Of another bound nothing is known yet.
            (*promised, *tail) = (target, RequestTail::default());
        }
        tail.add(requests, change);
        tail.keep_last(TAIL_WINDOWS, 4 * TAIL_WINDOWS);
    }

    /// Services of whose requests more are slow than may be.
    fn slow_victims(&self, alpha: f64) -> impl Iterator<Item = Victim> {
        let enough = self.requests.len() as f64 / alpha;
        self.requests.iter().filter_map(move |(name, (target, tail))| {
            let Open { before, after, proved } = tail.doubt(*target, TAIL_SHARE / TAIL, enough)?;
            (proved && tail.tells(*target)).then(|| Victim {
                subject: Subject::Service(name.to_string()),
                loss: Loss::Slow,
                ratio: after / before.max(target.slow_share),
                evidence: enough,
            })
        })
    }

    /// Who is outside the scope and has more long waits than it may.
    fn tail_victims(&self, alpha: f64) -> impl Iterator<Item = Victim> {
        let enough = self.tails.len() as f64 / alpha;
        self.tails.iter().filter_map(move |(owner, (tail, _))| {
            let Open { before, after, proved } = tail.doubt(TAIL_SHARE, enough, TAIL_WAITS)?;
            proved.then(|| Victim {
                subject: Subject::Group(owner.to_string()),
                loss: Loss::Tail,
                // One in a hundred by definition; none were seen where there were few.
                ratio: after / before.max(TAIL),
                evidence: enough,
            })
        })
    }

    /// Victims by now, the surest first, at the share of false accusations `alpha`. Those who are judged by comparisons, by the lengths of
    /// waits and by requests each have an equal part of it, if there are any.
    pub fn victims(&self, alpha: f64) -> Vec<Victim> {
        let kinds = [self.everybody.is_empty(), self.tails.is_empty(), self.requests.is_empty()];
        let alpha = alpha / kinds.iter().filter(|none| !**none).count().max(1) as f64;
        let mut asked = Vec::new();
        for (index, loss) in LOSSES.into_iter().enumerate() {
            let all = || self.everybody.iter().map(move |(who, known)| (who, known.moments[index]));
            let variances: Vec<(f64, f64)> =
                all().filter_map(|(_, m)| Some((m.variance()?, (m.n - 1) as f64))).collect();
            let common = Common::of(&variances);
            let sign = if loss == Loss::Cpu { -1.0 } else { 1.0 };
            asked.extend(
                all()
                    .filter(|(_, m)| m.n >= LEAST)
                    .map(|(who, m)| (who, loss, m.estimate(), m.ln_evidence(sign, common))),
            );
        }
        let evidence: Vec<f64> = asked.iter().map(|(.., ln)| *ln).collect();
        fdr::discoveries(&evidence, alpha)
            .into_iter()
            .filter_map(|index| {
                let (who, loss, estimate, ln) = asked[index];
                let ratio = (2.0 + estimate) / (2.0 - estimate);
                let beyond = match (loss, who) {
                    (Loss::Cpu, Subject::Outside | Subject::Group(_)) => {
                        ratio < 1.0 - self.limits.outside_cpu_loss
                    }
                    (Loss::Cpu, _) => ratio < 1.0 - self.limits.cpu_loss,
                    (Loss::Wait | Loss::Tail | Loss::Slow, _) => ratio > self.limits.wait_factor,
                };
                beyond.then(|| Victim { subject: who.clone(), loss, ratio, evidence: ln.exp() })
            })
            .chain(self.tail_victims(alpha))
            .chain(self.slow_victims(alpha))
            .collect()
    }

    pub fn clear(&mut self) {
        self.everybody.clear();
        self.tails.clear();
        self.requests.clear();
        self.comparisons = 0;
    }
}

/// Mean over the windows of the difference to the baseline's, over the mean of both; `None` when something is unknown.
fn difference(change: &[Usage], baseline: &Usage, value: impl Fn(&Usage) -> Option<f64>) -> Option<f64> {
    let base = value(baseline)?;
    let mut sum = 0.0;
    for usage in change {
        let new = value(usage)?;
        // Nothing and nothing is no difference.
        sum += if new + base > 0.0 { 2.0 * (new - base) / (new + base) } else { 0.0 };
    }
    Some(sum / change.len() as f64)
}

#[cfg(test)]
mod tests;
