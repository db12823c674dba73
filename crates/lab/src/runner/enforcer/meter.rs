//! The rule's state: what it has seen of the use, and what it gives. In the source's time; without I/O.

use std::collections::VecDeque;

use evenkeel_model::credit::Rule;

/// What a rule knows.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    rule: Rule,
    /// Length and use of each step within the window, seconds.
    window: VecDeque<(f64, f64)>,
    seconds: f64,
    used: f64,
    /// Bucket (CPU seconds) or credits.
    level: f64,
    penalty_left_s: f64,
    punishing: bool,
}

impl Meter {
    pub fn new(rule: Rule) -> Self {
        let level = if let Rule::Credits { start, .. } = rule { start } else { 0.0 };
        let punishing = matches!(rule, Rule::Constant { .. })
            || matches!(rule, Rule::Credits { start, .. } if start <= 0.0);
        Self { rule, window: VecDeque::new(), seconds: 0.0, used: 0.0, level, penalty_left_s: 0.0, punishing }
    }

    /// Share of a CPU given to one who wants `demand` of it (0..1).
    pub fn given(&self, demand: f64) -> f64 {
        match self.rule {
            Rule::Constant { stolen } => demand * (1.0 - stolen),
            Rule::Window { stolen, .. } | Rule::Penalty { stolen, .. } if self.punishing => {
                demand * (1.0 - stolen)
            }
            Rule::Credits { per_hour, .. } if self.punishing => demand.min(per_hour / 60.0),
            _ => demand,
        }
    }

    /// Whether it keeps something back now.
    pub fn punishes(&self) -> bool {
        self.punishing
    }

    /// Credits left.
    pub fn credits(&self) -> Option<f64> {
        matches!(self.rule, Rule::Credits { .. }).then_some(self.level)
    }

    /// What the rule looks at: use over the window in percent, bucket in CPU seconds, or credits.
    pub fn level(&self) -> f64 {
        match self.rule {
            Rule::Window { window_s, .. } => 100.0 * self.used / window_s.max(1e-9),
            _ => self.level,
        }
    }

    /// So much was wanted and given (shares of a CPU) for `dt` seconds.
    pub fn step(&mut self, demand: f64, given: f64, dt: f64) {
        match self.rule {
            Rule::None | Rule::Constant { .. } => {}
            Rule::Window { window_s, above, below, counts_stolen, .. } => {
                let used = if counts_stolen { demand } else { given } * dt;
                self.window.push_back((dt, used));
                self.seconds += dt;
                self.used += used;
                while self.seconds > window_s && self.window.len() > 1 {
                    let Some((dt, used)) = self.window.pop_front() else { break };
                    self.seconds -= dt;
                    self.used = (self.used - used).max(0.0);
                }
                // A window not yet full counts its missing part as unused.
                let share = self.used / window_s.max(1e-9);
                self.punishing = if self.punishing { share >= below } else { share > above };
            }
            Rule::Penalty { free, burst_s, penalty_s, .. } => {
                if self.punishing {
                    self.penalty_left_s -= dt;
                    self.punishing = self.penalty_left_s > 0.0;
                    return;
                }
                self.level = (self.level + (demand - free) * dt).max(0.0);
                if self.level >= burst_s {
                    (self.level, self.penalty_left_s, self.punishing) = (0.0, penalty_s, true);
                }
            }
            Rule::Credits { per_hour, cap, .. } => {
                self.level = (self.level + (per_hour / 3600.0 - given / 60.0) * dt).clamp(0.0, cap);
                // A little is earned all the time: without a margin it would flicker.
                self.punishing = if self.punishing { self.level < 0.05 } else { self.level <= 0.0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Rule =
        Rule::Window { window_s: 100.0, above: 0.33, below: 0.2, stolen: 0.97, counts_stolen: true };

    /// Seconds a job takes under a rule at a demand, in steps of half a second.
    fn seconds(rule: Rule, cpu_s: f64, demand: f64) -> f64 {
        let (mut meter, mut left, mut time) = (Meter::new(rule), cpu_s, 0.0);
        while left > 0.0 && time < 1e5 {
            let given = meter.given(demand);
            meter.step(demand, given, 0.5);
            left -= given * 0.5;
            time += 0.5;
        }
        time
    }

    #[test]
    fn it_agrees_with_the_model() {
        for (rule, demand) in [
            (WINDOW, 1.0),
            (WINDOW, 0.3),
            (WINDOW, 0.4),
            (Rule::T1_MICRO_FITTED, 1.0),
            (Rule::T1_MICRO_FITTED, 0.4),
            (Rule::Constant { stolen: 0.45 }, 0.3),
            (Rule::t2_micro(30.0), 1.0),
            (Rule::None, 0.5),
        ] {
            let job = evenkeel_model::credit::Job { cpu_s: 60.0, busy: 1.0 };
            let model = evenkeel_model::credit::run(&rule, job, Some(demand)).real_s.unwrap();
            let ours = seconds(rule, 60.0, demand);
            assert!((ours / model - 1.0).abs() < 0.05, "{rule:?} at {demand}: {ours} against {model}");
        }
    }

    #[test]
    fn punishment_ends_only_below_the_lower_edge() {
        let mut meter = Meter::new(WINDOW);
        (0..80).for_each(|_| meter.step(1.0, 1.0, 0.5));
        assert!(meter.punishes());
        // 40 s of full use leave the window after 100 s in all; until then use stays above a fifth.
        (0..140).for_each(|_| meter.step(0.0, 0.0, 0.5));
        assert!(meter.punishes() && meter.level() < 33.0, "{}", meter.level());
        (0..60).for_each(|_| meter.step(0.0, 0.0, 0.5));
        assert!(!meter.punishes());
    }

    #[test]
    fn without_credits_only_the_baseline_is_given() {
        let mut meter = Meter::new(Rule::t2_micro(1.0));
        (0..300).for_each(|_| meter.step(1.0, 1.0, 0.5));
        assert!(meter.punishes() && (meter.given(1.0) - 0.1).abs() < 1e-9);
        assert!(meter.credits().unwrap() < 0.05);
    }
}
