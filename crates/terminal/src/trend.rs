//! The last minute of everybody: what waits and throttling were, in steps of three seconds.

use std::collections::HashMap;

use crate::census::{Census, Key, Numbers};

pub const STEPS: usize = 20;
/// Length of a step, seconds.
pub const STEP_S: f64 = 3.0;

/// A step: what was added up, over which time. 0 seconds: nothing was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Step {
    wait: f32,
    wait_s: f32,
    throttled: f32,
    throttled_s: f32,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Trend {
    /// By the number of the step, in a circle.
    steps: [Step; STEPS],
    newest: u64,
}

/// Everybody's last minute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trends {
    by_key: HashMap<Key, Trend>,
    /// Time observed so far, seconds: a clock that no one sets.
    clock_s: f64,
}

/// Which column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Wait,
    Throttled,
}

fn number(clock_s: f64) -> u64 {
    (clock_s / STEP_S) as u64
}

impl Trend {
    fn add(&mut self, from_s: f64, to_s: f64, numbers: &Numbers) {
        let last = number(to_s);
        let oldest = (last + 1).saturating_sub(STEPS as u64);
        for step in number(from_s).max(oldest)..=last {
            let begin = step as f64 * STEP_S;
            let part = (to_s.min(begin + STEP_S) - from_s.max(begin)).max(0.0) as f32;
            if step > self.newest {
                // What lies in between was not seen.
                let gap = (self.newest + 1).max(oldest)..=step;
                gap.for_each(|at| self.steps[at as usize % STEPS] = Step::default());
                self.newest = step;
            }
            let step = &mut self.steps[step as usize % STEPS];
            if let Some(wait) = numbers.wait {
                step.wait += wait as f32 * part;
                step.wait_s += part;
            }
            if let Some(throttled) = numbers.throttled {
                step.throttled += throttled as f32 * part;
                step.throttled_s += part;
            }
        }
    }
}

impl Trends {
    /// Adds an interval; who is gone is forgotten.
    pub fn observe(&mut self, census: &Census, interval_s: f64) {
        let interval_s = if interval_s.is_finite() { interval_s.clamp(0.0, 86_400.0) } else { 0.0 };
        let from_s = self.clock_s;
        self.clock_s += interval_s;
        self.by_key.retain(|key, _| census.by_key.contains_key(key));
        for item in &census.items {
            let trend = self.by_key.entry(item.key.clone()).or_default();
            trend.add(from_s, self.clock_s, &item.numbers);
        }
    }

    /// The last minute in `cells` equal parts, oldest first, each a mean in percent; `None` where nothing was seen.
    pub fn last_minute(&self, key: &Key, of: Of, cells: usize) -> Vec<Option<f64>> {
        let Some(trend) = self.by_key.get(key) else { return vec![None; cells] };
        let now = number(self.clock_s);
        let begin = (now + 1).saturating_sub(STEPS as u64);
        let cell = |cell: usize| {
            let (mut sum, mut seconds) = (0.0, 0.0);
            for at in cell * STEPS / cells..((cell + 1) * STEPS / cells).max(cell * STEPS / cells + 1) {
                let number = begin + at as u64;
                if number > trend.newest || number + STEPS as u64 <= trend.newest {
                    continue;
                }
                let step = trend.steps[number as usize % STEPS];
                let (part, part_s) = match of {
                    Of::Wait => (step.wait, step.wait_s),
                    Of::Throttled => (step.throttled, step.throttled_s),
                };
                sum += part;
                seconds += part_s;
            }
            (seconds > 0.0).then(|| f64::from(sum / seconds))
        };
        // In the first minute what was not yet is on the left.
        let missing =
            if now + 1 < STEPS as u64 { (STEPS as u64 - now - 1) as usize * cells / STEPS } else { 0 };
        let shown = (0..cells - missing).map(cell);
        std::iter::repeat_n(None, missing).chain(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::host;

    fn with(wait: Option<f64>) -> (Census, Key) {
        let mut census = host();
        let key = Key::Container("c1".into());
        let at = census.by_key[&key];
        census.items[at].numbers.wait = wait;
        (census, key)
    }

    #[test]
    fn the_newest_is_on_the_right_and_what_was_not_seen_is_blank() {
        let mut trends = Trends::default();
        let (low, key) = with(Some(1.0));
        let (high, _) = with(Some(80.0));
        (0..9).for_each(|_| trends.observe(&low, 1.0));
        (0..3).for_each(|_| trends.observe(&high, 1.0));
        let cells = trends.last_minute(&key, Of::Wait, 20);
        assert_eq!(cells.len(), 20);
        assert_eq!(cells[..15], [None; 15]);
        assert_eq!(cells[15..19], [Some(1.0), Some(1.0), Some(1.0), Some(80.0)]);
        // The step that has just begun.
        assert_eq!(cells[19], None);
        assert_eq!(trends.last_minute(&Key::Kernel, Of::Throttled, 4).len(), 4);
    }

    #[test]
    fn a_minute_later_nothing_is_left_of_it() {
        let mut trends = Trends::default();
        let (high, key) = with(Some(80.0));
        let (none, _) = with(None);
        trends.observe(&high, 1.0);
        trends.observe(&none, 90.0);
        assert_eq!(trends.last_minute(&key, Of::Wait, 10), vec![None; 10]);
    }

    #[test]
    fn an_interval_that_is_longer_than_a_step_fills_all_of_them() {
        let mut trends = Trends::default();
        let (census, key) = with(Some(30.0));
        trends.observe(&census, 60.0);
        trends.observe(&census, 30.0);
        let cells = trends.last_minute(&key, Of::Wait, 10);
        assert!(cells.iter().all(|cell| cell.is_some_and(|pct| (pct - 30.0).abs() < 0.01)), "{cells:?}");
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let mut trends = Trends::default();
        let (census, key) = with(Some(30.0));
        trends.observe(&census, 1.0);
        trends.observe(&Census::default(), 1.0);
        assert!(trends.by_key.is_empty());
        assert_eq!(trends.last_minute(&key, Of::Wait, 3), vec![None; 3]);
    }
}
