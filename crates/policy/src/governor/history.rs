//! What was used and what was stolen, tick by tick, in bounded memory.

/// Most ticks kept; when there are more, neighbours are joined, the oldest first.
const MOST: usize = 6000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Its end, seconds since the start.
    pub end_s: f64,
    pub seconds: f64,
    /// CPU got, seconds.
    pub got_s: f64,
    /// CPU wanted within the limit in force: what a rule that counts stolen time sees, seconds.
    pub wanted_s: f64,
    /// Whether most of it was being stolen.
    pub throttled: bool,
}

impl Tick {
    /// What a rule that counts stolen time sees. Unpunished, what is not got was kept back by the own limit, which is kept
    /// from period to period only.
    pub fn used_s(&self) -> f64 {
        if self.throttled { self.wanted_s } else { self.got_s }
    }
}

/// All ticks, oldest first, and when throttling began and ended.
#[derive(Debug, Clone, Default)]
pub struct History {
    ticks: Vec<Tick>,
    onsets: Vec<f64>,
    ends: Vec<f64>,
    /// Onsets that are looked at no more.
    forgotten: usize,
    fresh_s: f64,
}

impl History {
    pub fn push(&mut self, tick: Tick) {
        self.ticks.push(tick);
        if self.ticks.len() > MOST {
            // Only the older half: the latest decide, and need their detail.
            let half = MOST / 2;
            let mut joined = Vec::with_capacity(MOST);
            let mut index = 0;
            while index < half {
                let a = self.ticks[index];
                match self.ticks.get(index + 1) {
                    Some(b) if index + 1 < half && b.throttled == a.throttled => {
                        joined.push(Tick {
                            end_s: b.end_s,
                            seconds: a.seconds + b.seconds,
                            got_s: a.got_s + b.got_s,
                            wanted_s: a.wanted_s + b.wanted_s,
                            throttled: a.throttled,
                        });
                        index += 2;
                    }
                    _ => {
                        joined.push(a);
                        index += 1;
                    }
                }
            }
            joined.extend_from_slice(&self.ticks[half..]);
            self.ticks = joined;
        }
    }

    /// Notes that throttling began at this time, which may be a few ticks ago.
    pub fn onset(&mut self, at_s: f64) {
        self.onsets.push(at_s);
        for tick in self.ticks.iter_mut().rev().take_while(|t| t.end_s > at_s) {
            tick.throttled = true;
        }
    }

    pub fn end(&mut self, at_s: f64) {
        self.ends.push(at_s);
        for tick in self.ticks.iter_mut().rev().take_while(|t| t.end_s > at_s) {
            tick.throttled = false;
        }
    }

    /// Notes that what was used before we came is forgotten by now.
    pub fn refresh(&mut self, at_s: f64) {
        self.fresh_s = at_s;
    }

    /// When throttling began and ended before is no sign of what rules now.
    pub fn forget_onsets(&mut self) {
        self.forgotten += self.onsets.len();
        self.onsets.clear();
        self.ends.clear();
    }

    /// How often throttling began.
    pub fn count(&self) -> usize {
        self.forgotten + self.onsets.len()
    }

    /// Since when all that counts is known: the start, or [`History::refresh`].
    pub fn fresh_s(&self) -> f64 {
        self.fresh_s
    }

    /// Length of the tick at a time, seconds: old ones are joined, and onsets then do not tell a rule exactly any more.
    pub fn tick_s(&self, at_s: f64) -> f64 {
        let index = self.ticks.partition_point(|tick| tick.end_s < at_s);
        self.ticks.get(index).map_or(0.0, |tick| tick.seconds)
    }

    pub fn ticks(&self) -> &[Tick] {
        &self.ticks
    }

    /// When throttling began, seconds.
    pub fn onsets(&self) -> &[f64] {
        &self.onsets
    }

    pub fn ends(&self) -> &[f64] {
        &self.ends
    }

    /// Of the use until a time, from when on it is most if it is spread over the time from then until now, CPUs; and since when that is.
    /// Of one that was steady, all that counts; of one that came after a quiet time, that.
    pub fn most_spread(&self, to_s: f64, now_s: f64) -> (f64, f64) {
        let (mut used_s, mut most) = (0.0, (0.0, to_s));
        for tick in self.ticks.iter().rev().take_while(|tick| tick.end_s > self.fresh_s) {
            let begin_s = (tick.end_s - tick.seconds).max(self.fresh_s);
            used_s += tick.used_s() * (tick.end_s.min(to_s) - begin_s).max(0.0) / tick.seconds;
            let spread = used_s / (now_s - begin_s).max(1e-6);
            if spread > most.0 {
                most = (spread, begin_s);
            }
        }
        most
    }

    /// CPU seconds used between two times ([`Tick::used_s`]), use inside ticks taken as even.
    pub fn used(&self, from_s: f64, to_s: f64) -> f64 {
        let mut sum = 0.0;
        for tick in self.ticks.iter().rev() {
            if tick.end_s <= from_s {
                break;
            }
            let begin = tick.end_s - tick.seconds;
            let part = tick.end_s.min(to_s) - begin.max(from_s);
            if part > 0.0 && tick.seconds > 0.0 {
                sum += tick.used_s() * part / tick.seconds;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn joining_ticks_keeps_what_was_used(n in 1usize..20_000) {
            let mut history = History::default();
            for i in 0..n {
                history.push(Tick {
                    end_s: (i + 1) as f64 * 0.1,
                    seconds: 0.1,
                    got_s: 0.05,
                    wanted_s: 0.06,
                    throttled: i % 50 == 0,
                });
            }
            prop_assert!(history.ticks().len() <= MOST);
            let all = history.used(0.0, n as f64);
            let throttled = n.div_ceil(50) as f64;
            prop_assert!((all - 0.05 * n as f64 - 0.01 * throttled).abs() < 1e-6 * n as f64);
            let got: f64 = history.ticks().iter().map(|t| t.got_s).sum();
            prop_assert!((got - 0.05 * n as f64).abs() < 1e-6 * n as f64);
        }
    }
}
