//! Exponentially decaying averages with the kernel's half-life of 32 periods of 1.024 ms (`kernel/sched/pelt.c`),
//! computed in continuous time and only with additions and multiplications, so that every machine gets the same result.

/// Half-life, nanoseconds.
const HALF_NS: f64 = 32.0 * 1_024_000.0;

/// `0.5^(dt / half-life)`.
pub(super) fn decay(dt_ns: u64) -> f64 {
    let x = dt_ns as f64 / HALF_NS;
    if x >= 64.0 {
        return 0.0;
    }
    let whole = x as u32;
    // exp(-t) on 0..ln 2 by its series: the error is below 1e-7.
    let t = (x - f64::from(whole)) * std::f64::consts::LN_2;
    let fraction = 1.0
        - t * (1.0
            - t / 2.0
                * (1.0 - t / 3.0 * (1.0 - t / 4.0 * (1.0 - t / 5.0 * (1.0 - t / 6.0 * (1.0 - t / 7.0))))));
    fraction / (1u64 << whole.min(63)) as f64
}

/// A value's decaying average; the value is constant between updates.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Average {
    avg: f64,
    value: f64,
    at_ns: u64,
}

impl Average {
    /// The average now.
    pub fn read(&mut self, now: u64) -> f64 {
        if now > self.at_ns {
            let y = decay(now - self.at_ns);
            self.avg = self.value + (self.avg - self.value) * y;
            self.at_ns = now;
        }
        self.avg
    }

    pub fn set(&mut self, now: u64, value: f64) {
        if value != self.value {
            self.read(now);
            self.value = value;
        }
    }

    /// Adds to the average itself (a task took its history along).
    pub fn shift(&mut self, now: u64, by: f64) {
        self.avg = (self.read(now) + by).max(0.0);
    }

    /// Starts from an average.
    pub fn reset(&mut self, now: u64, avg: f64) {
        self.avg = avg;
        self.at_ns = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decays_like_the_exponential() {
        for dt in [0, 1, 1000, 1_000_000, 20_000_000, 32_768_000, 100_000_000, 2_000_000_000] {
            let exact = 0.5f64.powf(dt as f64 / HALF_NS);
            assert!((decay(dt) - exact).abs() < 1e-6, "{dt}: {} {exact}", decay(dt));
        }
        assert_eq!(decay(u64::MAX), 0.0);
    }

    #[test]
    fn halves_after_one_half_life() {
        let mut average = Average::default();
        average.set(0, 1024.0);
        assert!((average.read(32_768_000) - 512.0).abs() < 0.01);
        average.set(32_768_000, 0.0);
        assert!((average.read(2 * 32_768_000) - 256.0).abs() < 0.01);
    }
}
