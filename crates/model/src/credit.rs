//! Burstable instances: how long a job takes when use is throttled or paid for.
//!
//! Three rules: a *window* (use over the last so many seconds above a threshold makes most of the CPU disappear), a
//! *penalty* (use above a free rate fills a bucket; when it is full, most of the CPU disappears for a fixed time) and *credits*
//! (one credit is a CPU minute; without credits only the baseline is given).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Step of the computation, seconds.
const STEP_S: f64 = 0.1;
/// A job that takes longer than this (two weeks) is given up, seconds.
pub const GIVE_UP_S: f64 = 14.0 * 86_400.0;
/// Credits that must have come together again before all that is wanted is given.
const MARGIN: f64 = 0.05;

/// What the hypervisor does about use. Shares are of one CPU, 0..1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Rule {
    /// Nothing.
    #[default]
    None,
    /// A fixed share is stolen all the time: a shared core.
    Constant {
        /// Share stolen of the time in which the CPU is wanted.
        stolen: f64,
    },
    /// Use over the last `window_s` seconds above `above` steals `stolen`, until it is below `below`.
    Window {
        /// Length of the window, seconds.
        window_s: f64,
        /// Starts the stealing.
        above: f64,
        /// Ends it.
        below: f64,
        /// Share stolen meanwhile.
        stolen: f64,
        /// Whether stolen time counts as use.
        counts_stolen: bool,
    },
    /// Use above `free` fills a bucket of `burst_s` CPU seconds; when full, `stolen` disappears for `penalty_s` seconds and the
    /// bucket is empty again.
    Penalty {
        /// Use that is free.
        free: f64,
        /// CPU seconds above it that are tolerated.
        burst_s: f64,
        /// Share stolen meanwhile.
        stolen: f64,
        /// How long, seconds.
        penalty_s: f64,
    },
    /// CPU credits: each is a minute of a CPU. With `cap` 0 nothing is saved: a ceiling of `per_hour` / 60 CPUs.
    Credits {
        /// Credits at the start.
        start: f64,
        /// Credits earned an hour.
        per_hour: f64,
        /// Most that can be saved.
        cap: f64,
    },
}

impl Rule {
    /// The throttled instance as its owner describes it: 100 s, 20 %, 97 %.
    pub const T1_MICRO_AS_TOLD: Self =
        Self::Window { window_s: 100.0, above: 0.20, below: 0.20, stolen: 0.97, counts_stolen: true };
    /// The rule that fits its four build times (`docs/model.md`): 33 % free, 10 CPU seconds above it, then 167 s at 3 %.
    pub const T1_MICRO_FITTED: Self =
        Self::Penalty { free: 0.329, burst_s: 10.0, stolen: 0.97, penalty_s: 167.0 };

    /// A t2.micro with some credits: 6 an hour, at most a day's worth.
    pub fn t2_micro(start: f64) -> Self {
        Self::Credits { start, per_hour: 6.0, cap: 144.0 }
    }

    /// CPUs that a machine of `cpus` CPUs gives for ever to one who uses no more: its baseline.
    pub fn sustained(&self, cpus: f64) -> f64 {
        match *self {
            Self::None => cpus,
            Self::Constant { stolen } => (1.0 - stolen) * cpus,
            Self::Window { above: share, .. } | Self::Penalty { free: share, .. } => share.min(cpus),
            Self::Credits { per_hour, .. } => (per_hour / 60.0).min(cpus),
        }
    }

    pub fn words(&self) -> String {
        match *self {
            Self::None => "nothing".into(),
            Self::Constant { stolen } => {
                format!("a shared core ({:.0} % stolen all the time)", 100.0 * stolen)
            }
            Self::Window { .. } | Self::Penalty { .. } => "throttling use".into(),
            Self::Credits { per_hour, cap, .. } if cap <= 0.0 => {
                format!("a ceiling of {} % of a CPU", short(100.0 * per_hour / 60.0))
            }
            Self::Credits { per_hour, .. } => format!(
                "credits ({} CPU minutes earned an hour, a baseline of {} % of a CPU)",
                short(per_hour),
                short(100.0 * per_hour / 60.0)
            ),
        }
    }
}

/// A number with at most two decimals, none where they are zero.
fn short(number: f64) -> String {
    ((100.0 * number).round() / 100.0).to_string()
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// CPU seconds it needs.
    pub cpu_s: f64,
    /// Share of the time it may run in which it wants the CPU (the rest it waits for disks and the like), above 0, up to 1; on
    /// several CPUs, of each.
    pub busy: f64,
}

/// How a job went.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Outcome {
    /// Wall-clock seconds; `None`: not done in two weeks.
    pub real_s: Option<f64>,
    /// CPU seconds its guest counted, stolen ones included where they look like use.
    pub charged_s: f64,
    /// CPU seconds stolen.
    pub stolen_s: f64,
    /// Credits left, for [`Rule::Credits`].
    pub credits: Option<f64>,
    /// When the rule first kept CPU back, seconds from the start; `None`: never.
    pub throttled_after_s: Option<f64>,
}

/// Runs a job under a rule and a quota of `limit` of one CPU (`None`: none).
pub fn run(rule: &Rule, job: Job, limit: Option<f64>) -> Outcome {
    run_on(rule, job, 1.0, limit)
}

/// Runs a job that can keep up to `cpus` CPUs busy under a rule and a quota of `limit` CPUs (`None`: none). The rule is the
/// whole machine's.
pub fn run_on(rule: &Rule, job: Job, cpus: f64, limit: Option<f64>) -> Outcome {
    let cpus = cpus.max(0.0);
    let demand = limit.unwrap_or(cpus).clamp(0.0, cpus) * job.busy.clamp(0.0, 1.0);
    let mut left = job.cpu_s;
    let mut state = State::new(rule);
    let mut out = Outcome { credits: state.credits(rule), ..Outcome::default() };
    let mut time = 0.0;
    while left > 1e-9 {
        if time >= GIVE_UP_S || demand <= 0.0 || demand.is_nan() {
            return out;
        }
        let given = state.given(rule, demand);
        if given < demand {
            out.throttled_after_s.get_or_insert(time);
        }
        // Whole steps, as many as change nothing: the way is the same, and a long job takes no longer to reckon.
        let steady_s = (state.steady_s(rule, demand, given) / STEP_S).floor() * STEP_S;
        let step_s = steady_s.min(GIVE_UP_S - time).max(STEP_S);
        let part = (left / (given * step_s).max(1e-12)).min(1.0);
        left -= given * step_s * part;
        time += step_s * part;
        out.charged_s += demand * step_s * part;
        out.stolen_s += (demand - given) * step_s * part;
        state.step(rule, demand, given, step_s * part);
        out.credits = state.credits(rule);
    }
    out.real_s = Some(time);
    out
}

/// A rule in force, advanced step by step: what a hypervisor keeps in mind about a guest.
#[derive(Debug)]
pub struct Meter {
    rule: Rule,
    state: State,
    spare_s: f64,
    /// Demand and what was given of it in the step begun, CPU seconds.
    begun: (f64, f64),
}

impl Meter {
    /// The rule with nothing used yet.
    pub fn new(rule: Rule) -> Self {
        Self { state: State::new(&rule), rule, spare_s: 0.0, begun: (0.0, 0.0) }
    }

    /// Share of a CPU that is given now to one who wants `demand`.
    pub fn given(&self, demand: f64) -> f64 {
        self.state.given(&self.rule, demand)
    }

    /// Whether the rule keeps CPU back now.
    pub fn throttles(&self) -> bool {
        self.state.throttling
    }

    /// Lets time pass with a demand and what was given of it, shares of one CPU.
    pub fn pass(&mut self, demand: f64, given: f64, seconds: f64) {
        // The state advances in whole steps: its window has one entry a step.
        self.spare_s += seconds;
        self.begun.0 += demand * seconds;
        self.begun.1 += given * seconds;
        while self.spare_s >= STEP_S {
            let part = STEP_S / self.spare_s;
            let (demand, given) = (self.begun.0 * part, self.begun.1 * part);
            self.state.step(&self.rule, demand / STEP_S, given / STEP_S, STEP_S);
            self.spare_s -= STEP_S;
            self.begun = (self.begun.0 - demand, self.begun.1 - given);
        }
    }

    /// Credits left, for [`Rule::Credits`].
    pub fn credits(&self) -> Option<f64> {
        self.state.credits(&self.rule)
    }

    /// What the rule looks at: use over the window in percent, bucket in CPU seconds, or credits.
    pub fn level(&self) -> f64 {
        match self.rule {
            Rule::Window { window_s, .. } => 100.0 * self.state.sum / window_s.max(STEP_S),
            _ => self.state.level,
        }
    }
}

#[derive(Debug)]
struct State {
    window: VecDeque<f64>,
    sum: f64,
    /// Bucket (CPU seconds) or credits.
    level: f64,
    penalty_left_s: f64,
    throttling: bool,
}

impl State {
    fn new(rule: &Rule) -> Self {
        let level = if let Rule::Credits { start, .. } = rule { *start } else { 0.0 };
        let throttling = match rule {
            Rule::Constant { .. } => true,
            Rule::Credits { .. } => level <= 0.0,
            Rule::None | Rule::Window { .. } | Rule::Penalty { .. } => false,
        };
        Self { window: VecDeque::new(), sum: 0.0, level, penalty_left_s: 0.0, throttling }
    }

    fn credits(&self, rule: &Rule) -> Option<f64> {
        matches!(rule, Rule::Credits { .. }).then_some(self.level)
    }

    fn given(&self, rule: &Rule, demand: f64) -> f64 {
        match *rule {
            _ if !self.throttling => demand,
            Rule::None => demand,
            Rule::Constant { stolen } | Rule::Window { stolen, .. } | Rule::Penalty { stolen, .. } => {
                demand * (1.0 - stolen)
            }
            Rule::Credits { per_hour, .. } => demand.min(per_hour / 60.0),
        }
    }

    /// Seconds for which [`Self::given`] stays what it is at this demand, or fewer; meanwhile one long [`Self::step`] is as
    /// good as many short ones. 0 where that is not reckoned.
    fn steady_s(&self, rule: &Rule, demand: f64, given: f64) -> f64 {
        // Time until a level changed at a rate has gone so far.
        let until = |distance: f64, rate: f64| if rate > 0.0 { distance / rate } else { f64::INFINITY };
        match *rule {
            Rule::None | Rule::Constant { .. } => f64::INFINITY,
            Rule::Window { .. } => 0.0,
            Rule::Penalty { .. } if self.throttling => self.penalty_left_s,
            Rule::Penalty { free, burst_s, .. } => until(burst_s - self.level, demand - free),
            Rule::Credits { per_hour, cap, .. } => {
                let earned = per_hour / 3600.0 - given / 60.0;
                match self.throttling {
                    true if cap <= 0.0 => f64::INFINITY,
                    true => until(MARGIN.min(cap) - self.level, earned),
                    false => until(self.level, -earned),
                }
            }
        }
    }

    fn step(&mut self, rule: &Rule, demand: f64, given: f64, dt: f64) {
        match *rule {
            Rule::None | Rule::Constant { .. } => {}
            Rule::Window { window_s, above, below, counts_stolen, .. } => {
                let used = if counts_stolen { demand } else { given } * dt;
                self.window.push_back(used);
                self.sum += used;
                while self.window.len() as f64 * STEP_S > window_s {
                    self.sum -= self.window.pop_front().unwrap_or(0.0);
                }
                // A window that is not full yet counts its missing part as unused.
                let share = self.sum / window_s.max(STEP_S);
                self.throttling = if self.throttling { share >= below } else { share > above };
            }
            Rule::Penalty { free, burst_s, penalty_s, .. } => {
                if self.throttling {
                    self.penalty_left_s -= dt;
                    self.throttling = self.penalty_left_s > 0.0;
                    return;
                }
                self.level = (self.level + (demand - free) * dt).max(0.0);
                if self.level >= burst_s {
                    (self.level, self.penalty_left_s, self.throttling) = (0.0, penalty_s, penalty_s > 0.0);
                }
            }
            Rule::Credits { per_hour, cap, .. } => {
                self.level = (self.level + (per_hour / 3600.0 - given / 60.0) * dt).clamp(0.0, cap);
                // A little is earned all the time: without a margin it would flicker.
                self.throttling = if self.throttling {
                    cap <= 0.0 || self.level < MARGIN.min(cap)
                } else {
                    self.level <= 0.0
                };
            }
        }
    }
}

#[cfg(test)]
mod tests;
