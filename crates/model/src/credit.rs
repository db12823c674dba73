//! Burstable instances: how long a job takes when use is punished or paid for.
//!
//! Three rules: a *window* (use over the last so many seconds above a threshold makes most of the CPU disappear), a
//! *penalty* (use above a free rate fills a bucket; when it is full, most of the CPU disappears for a fixed time) and *credits*
//! (one credit is a CPU minute; without credits only the baseline is given).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Step of the computation, seconds.
const STEP_S: f64 = 0.1;
/// A job that takes longer than this (two weeks) is given up.
const GIVE_UP_S: f64 = 14.0 * 86_400.0;
/// Credits that must have come together again before all that is wanted is given.
const MARGIN: f64 = 0.05;

/// What the hypervisor does about use. Shares are of one CPU, 0..1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Rule {
    /// Nothing.
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
    /// CPU credits: each is a minute of a CPU.
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
    /// The punished instance as its owner describes it: 100 s, 20 %, 97 %.
    pub const T1_MICRO_AS_TOLD: Self =
        Self::Window { window_s: 100.0, above: 0.20, below: 0.20, stolen: 0.97, counts_stolen: true };
    /// The rule that fits its four build times (`docs/model.md`): 33 % free, 10 CPU seconds above it, then 167 s at 3 %.
    pub const T1_MICRO_FITTED: Self =
        Self::Penalty { free: 0.329, burst_s: 10.0, stolen: 0.97, penalty_s: 167.0 };

    /// A t2.micro with some credits: 6 an hour, at most a day's worth.
    pub fn t2_micro(start: f64) -> Self {
        Self::Credits { start, per_hour: 6.0, cap: 144.0 }
    }
}

/// A job on one CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// CPU seconds it needs.
    pub cpu_s: f64,
    /// Share of the time it may run in which it wants the CPU (the rest it waits for disks and the like), above 0, up to 1.
    pub busy: f64,
}

/// How a job went.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    /// Wall-clock seconds; `None`: not done in two weeks.
    pub real_s: Option<f64>,
    /// CPU seconds its guest counted, stolen ones included where they look like use.
    pub charged_s: f64,
    /// CPU seconds stolen.
    pub stolen_s: f64,
    /// Credits left, for [`Rule::Credits`].
    pub credits: Option<f64>,
}

/// Runs a job under a rule and a quota of `limit` of one CPU (`None`: none).
pub fn run(rule: &Rule, job: Job, limit: Option<f64>) -> Outcome {
    let demand = limit.unwrap_or(1.0).clamp(0.0, 1.0) * job.busy.clamp(0.0, 1.0);
    let (mut left, mut time, mut charged, mut stolen_s) = (job.cpu_s, 0.0, 0.0, 0.0);
    let mut state = State::new(rule);
    while left > 1e-9 {
        if time >= GIVE_UP_S || demand <= 0.0 {
            return Outcome { real_s: None, charged_s: charged, stolen_s, credits: state.credits(rule) };
        }
        let given = state.given(rule, demand);
        let part = (left / (given * STEP_S).max(1e-12)).min(1.0);
        left -= given * STEP_S * part;
        time += STEP_S * part;
        charged += demand * STEP_S * part;
        stolen_s += (demand - given) * STEP_S * part;
        state.step(rule, demand, given, STEP_S * part);
    }
    Outcome { real_s: Some(time), charged_s: charged, stolen_s, credits: state.credits(rule) }
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
                self.throttling =
                    if self.throttling { self.level < MARGIN.min(cap) } else { self.level <= 0.0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Minutes.
    fn minutes(rule: &Rule, job: Job, limit: Option<f64>) -> f64 {
        run(rule, job, limit).real_s.unwrap() / 60.0
    }

    #[test]
    fn the_fitted_rule_reproduces_the_builds_by_limit() {
        // 20.5 CPU minutes; at 30 % the build used 27.2 %, so it wants the CPU 91 % of the time.
        let job = Job { cpu_s: 20.5 * 60.0, busy: 0.91 };
        let rule = Rule::T1_MICRO_FITTED;
        let source = [(None, 187.0), (Some(0.25), 90.1), (Some(0.30), 75.1), (Some(0.40), 87.4)];
        for (limit, source) in source {
            let ours = minutes(&rule, job, limit);
            println!("limit {limit:?}: source {source:.1} min, model {ours:.1} min");
            assert!((ours / source - 1.0).abs() < 0.05, "{limit:?}: {ours} against {source}");
        }
        let at = |limit| minutes(&rule, job, limit);
        assert!(at(Some(0.3)) < at(Some(0.4)) && at(Some(0.4)) < at(Some(0.25)) && at(Some(0.25)) < at(None));
    }

    #[test]
    fn the_rule_as_told_contradicts_its_own_table() {
        // 25 % is above the 20 % it names, yet 25 % and 30 % were not punished; counting used time every limit takes the same.
        let job = Job { cpu_s: 1230.0, busy: 0.91 };
        assert!(minutes(&Rule::T1_MICRO_AS_TOLD, job, Some(0.25)) > 180.0);
        let used =
            Rule::Window { window_s: 100.0, above: 0.2, below: 0.2, stolen: 0.97, counts_stolen: false };
        let (a, b) = (minutes(&used, job, Some(0.3)), minutes(&used, job, None));
        assert!((a / b - 1.0).abs() < 0.1, "{a} {b}");
    }

    #[test]
    fn t2_micro_credits() {
        // 14 m 46 s for 9.33 CPU minutes: 30 credits become 22.15 (the source: 22).
        let out = run(&Rule::t2_micro(30.0), Job { cpu_s: 560.0, busy: 560.0 / 886.4 }, None);
        assert!((out.real_s.unwrap() - 886.4).abs() < 1.0);
        assert!((out.credits.unwrap() - 22.15).abs() < 0.1, "{:?}", out.credits);
        // Without credits: its baseline of 10 %, 1.6 hours, not two weeks.
        let base = run(&Rule::t2_micro(0.0), Job { cpu_s: 560.0, busy: 1.0 }, Some(0.10));
        assert!((base.real_s.unwrap() / 3600.0 - 1.56).abs() < 0.1);
    }

    #[test]
    fn a_job_that_cannot_end_is_given_up() {
        let out = run(&Rule::None, Job { cpu_s: 1.0, busy: 1.0 }, Some(0.0));
        assert_eq!(out.real_s, None);
    }

    const WINDOW: Rule =
        Rule::Window { window_s: 100.0, above: 0.33, below: 0.2, stolen: 0.97, counts_stolen: true };

    #[test]
    fn throttling_ends_only_below_the_lower_threshold() {
        let mut meter = Meter::new(WINDOW);
        meter.pass(1.0, 1.0, 40.0);
        assert!(meter.throttles());
        // 40 s of full use leave the window after 100 s in all; until then use stays above a fifth.
        meter.pass(0.0, 0.0, 70.0);
        assert!(meter.throttles() && meter.level() < 33.0, "{}", meter.level());
        meter.pass(0.0, 0.0, 30.0);
        assert!(!meter.throttles());
    }

    #[test]
    fn without_credits_only_the_baseline_is_given() {
        let mut meter = Meter::new(Rule::t2_micro(1.0));
        meter.pass(1.0, 1.0, 150.0);
        assert!(meter.throttles() && (meter.given(1.0) - 0.1).abs() < 1e-9);
        assert!(meter.credits().unwrap() < MARGIN);
        // At its baseline it stays there.
        for _ in 0..1000 {
            meter.pass(1.0, meter.given(1.0), 0.1);
            assert!(meter.throttles());
        }
    }

    fn rules() -> impl Strategy<Value = Rule> {
        let window = (2.0..200.0, 0.1..0.9, 0.1..1.0, 0.3..1.0, any::<bool>()).prop_map(
            |(window_s, above, part, stolen, counts_stolen)| {
                let below = above * part;
                Rule::Window { window_s, above, below, stolen, counts_stolen }
            },
        );
        let penalty =
            (0.0..0.5, 0.5..20.0, 0.3..1.0, 1.0..200.0).prop_map(|(free, burst_s, stolen, penalty_s)| {
                Rule::Penalty { free, burst_s, stolen, penalty_s }
            });
        let credits =
            (0.0..3.0, 1.0..30.0).prop_map(|(start, per_hour)| Rule::Credits { start, per_hour, cap: 144.0 });
        prop_oneof![
            Just(Rule::None),
            (0.0..1.0).prop_map(|stolen| Rule::Constant { stolen }),
            window,
            penalty,
            credits
        ]
    }

    proptest! {
        /// Whoever plays the rule in ticks of their own gets what [`run`] reckons.
        #[test]
        fn the_length_of_ticks_does_not_matter(rule in rules(), demand in 0.05..1.0, tick_s in 0.005..0.5) {
            let job = Job { cpu_s: 60.0, busy: 1.0 };
            let reckoned = run(&rule, job, Some(demand));
            let reckoned_s = reckoned.real_s.filter(|s| *s < 20_000.0);
            prop_assume!(reckoned_s.is_some());
            let reckoned_s = reckoned_s.unwrap_or_default();
            let (mut meter, mut left, mut time, mut turns) = (Meter::new(rule), job.cpu_s, 0.0, 0);
            let mut throttled = meter.throttles();
            while left > 0.0 {
                let given = meter.given(demand);
                meter.pass(demand, given, tick_s);
                left -= given * tick_s;
                time += tick_s;
                turns += i32::from(meter.throttles() != throttled);
                throttled = meter.throttles();
            }
            // A change of rule is noticed a tick late at most, and what that gives or takes is made up for at the other's rate.
            let late_s = f64::from(turns + 1) * (tick_s + STEP_S);
            let slowest = reckoned_s / job.cpu_s;
            prop_assert!(
                (time - reckoned_s).abs() <= 0.05 * reckoned_s + late_s * slowest.max(1.0),
                "{rule:?} at {demand}, {tick_s}: {time} against {reckoned_s}, {turns} turns"
            );
        }

        #[test]
        fn nobody_gets_more_than_wanted_and_only_throttling_takes(
            rule in rules(), demands in prop::collection::vec((0.0..1.0, 0.01..20.0), 1..60)
        ) {
            let mut meter = Meter::new(rule);
            for (demand, seconds) in demands {
                let given = meter.given(demand);
                prop_assert!((0.0..=demand).contains(&given), "{given} of {demand}");
                prop_assert!(meter.throttles() || given == demand);
                prop_assert!(meter.given(1.0) >= given, "more wanted, less given");
                meter.pass(demand, given, seconds);
                if let (Rule::Credits { cap, .. }, Some(credits)) = (rule, meter.credits()) {
                    prop_assert!((0.0..=cap).contains(&credits), "{credits}");
                }
                prop_assert!(meter.level() >= -1e-9, "{}", meter.level());
            }
        }
    }
}
