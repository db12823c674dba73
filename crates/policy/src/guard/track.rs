//! What is known of one subject's losses.

use evenkeel_base::stats::{SignBets, mean};

use super::{GuardLimits, Harm, Use};

/// Pairs in a row without somebody after which he is taken to have ended.
const GONE: u32 = 2;

/// Evidence for, and against, a limit's being kept.
#[derive(Debug, Clone, Default)]
struct Question {
    kept: SignBets,
    broken: SignBets,
}

impl Question {
    /// Positive where the limit is kept.
    fn add(&mut self, room: f64) {
        self.kept.add(room);
        self.broken.add(-room);
    }
}

/// One subject's pairs.
#[derive(Debug, Clone)]
pub(super) struct Track {
    loss: f64,
    limits: GuardLimits,
    /// For a sum of the small: CPU that is not told apart from none, percent of one CPU.
    small: Option<f64>,
    got: Question,
    supply: Question,
    wait: Question,
    before: Vec<Use>,
    after: Vec<Use>,
    missed: u32,
    /// The most evidence there was at once that enough CPU is got.
    cpu: f64,
}

impl Track {
    pub fn new(loss: f64, limits: GuardLimits) -> Self {
        Self {
            loss,
            limits,
            small: None,
            got: Question::default(),
            supply: Question::default(),
            wait: Question::default(),
            before: Vec::new(),
            after: Vec::new(),
            missed: 0,
            cpu: 1.0,
        }
    }

    /// Of the small together: what they do from one window to the next differs more than the share of it that they may lose.
    /// They may lose so much more, percent of one CPU, and their waits are those of a second, not of a second of work.
    pub fn of_the_small(self, floor_pct: f64) -> Self {
        Self { small: Some(floor_pct), ..self }
    }

    /// Seconds waited, per second of work or per second.
    fn wait(&self, used: Use) -> Option<f64> {
        if self.small.is_some() { Some(used.waited? / 100.0) } else { used.wait_per_got() }
    }

    pub fn missed(&mut self) {
        self.missed += 1;
    }

    pub fn pair(&mut self, before: Use, after: Use) {
        self.missed = 0;
        self.before.push(before);
        self.after.push(after);
        let keep = 1.0 - self.loss;
        self.got.add(after.got - keep * before.got + self.small.unwrap_or_default());
        let supply = |used: Use| {
            if self.small.is_some() {
                return None;
            }
            let runnable = used.got + used.waited?;
            (runnable > 0.0).then(|| used.got / runnable)
        };
        if let Some((before, after)) = supply(before).zip(supply(after)) {
            self.supply.add(after - keep * before);
        }
        // Where waits are not known, the CPU got alone tells.
        let (got, supply) = (&self.got.kept, &self.supply.kept);
        let cpu = match supply.pairs() {
            0 => got.evidence(),
            _ => f64::midpoint(got.evidence(), supply.evidence()),
        };
        self.cpu = self.cpu.max(cpu);
        if let Some((before, after)) = self.wait(before).zip(self.wait(after)) {
            self.wait.add(self.limits.longest_wait(before) - after);
        }
    }

    /// Questions open or answered with no: (harm, before, after, proved).
    pub fn doubts(&self, enough: f64, questions: f64, waits_counted: bool) -> Vec<(Harm, f64, f64, bool)> {
        let mut doubts = Vec::new();
        if self.missed >= GONE {
            return doubts;
        }
        let column = |of: fn(&Use) -> f64, uses: &[Use]| {
            mean(&uses.iter().map(of).collect::<Vec<_>>()).unwrap_or_default()
        };
        let got = |uses: &[Use]| column(|used| used.got, uses);
        if self.cpu < enough {
            let proved = self.got.broken.most() >= enough * questions;
            doubts.push((Harm::Cpu, got(&self.before), got(&self.after), proved));
        }
        if !waits_counted && self.wait.kept.pairs() > 0 && self.wait.kept.most() < enough {
            let waited = |uses: &[Use]| column(|used| used.waited.unwrap_or_default(), uses);
            let wait = |uses: &[Use]| {
                let sum = Use { got: got(uses), waited: Some(waited(uses)) };
                self.wait(sum).unwrap_or_default()
            };
            let proved = self.wait.broken.most() >= enough * questions;
            doubts.push((Harm::Wait, wait(&self.before), wait(&self.after), proved));
        }
        doubts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn among_many_questions_harm_must_be_shown_so_much_better() {
        let mut track = Track::new(0.1, GuardLimits::default());
        let used = |got, waited| Use { got, waited: Some(waited) };
        // Evidence about doubles with each sure loss: it is some 60 after seven, more than 20 and less than 20 * 20.
        for _ in 0..7 {
            track.pair(used(20.0, 2.0), used(10.0, 12.0));
        }
        let proved = |questions: f64| -> Vec<(Harm, bool)> {
            let doubts = track.doubts(20.0, questions, false);
            doubts.into_iter().map(|(harm, _, _, proved)| (harm, proved)).collect()
        };
        assert_eq!(proved(1.0), [(Harm::Cpu, true), (Harm::Wait, true)]);
        assert_eq!(proved(20.0), [(Harm::Cpu, false), (Harm::Wait, false)]);
        let values: Vec<(f64, f64)> = track.doubts(20.0, 1.0, false).iter().map(|d| (d.1, d.2)).collect();
        assert_eq!(values, [(20.0, 10.0), (0.1, 1.2)], "means, and seconds waited per second of work");
    }

    /// What daemons do varies, and once in a while by much: that must not keep a change that hurts none of them from being
    /// cleared, and one that is starved must show.
    #[test]
    fn of_the_small_only_what_is_material_counts() {
        let windows = |waits: f64| -> Vec<(Use, Use)> {
            let got = [
                (0.7, 0.8),
                (0.6, 0.9),
                (1.1, 2.5),
                (0.9, 0.5),
                (4.5, 0.7),
                (0.8, 1.0),
                (0.6, 12.1),
                (1.0, 0.8),
            ];
            let waited = [
                (0.1, 1.2),
                (1.0, 1.5),
                (0.7, 0.4),
                (1.6, 0.9),
                (8.8, 1.2),
                (0.1, 0.5),
                (0.9, 6.2),
                (0.4, 0.3),
            ];
            let used = |got, waited| Use { got, waited: Some(waited) };
            let pairs = got.iter().zip(&waited);
            pairs.map(|(got, waited)| (used(got.0, waited.0), used(got.1, waited.1 + waits))).collect()
        };
        let harms = |waits: f64, small: bool| -> Vec<Harm> {
            let mut track = Track::new(0.05, GuardLimits::default());
            if small {
                track = track.of_the_small(1.0);
            }
            (0..2).flat_map(|_| windows(waits)).for_each(|(before, after)| track.pair(before, after));
            track.doubts(20.0, 1.0, false).into_iter().map(|doubt| doubt.0).collect()
        };
        assert_eq!(harms(0.0, false), [Harm::Cpu, Harm::Wait]);
        assert_eq!(harms(0.0, true), []);
        assert_eq!(
            harms(5.0, true),
            [Harm::Wait],
            "20 seconds of 400 in which one of them did not get its turn"
        );
    }

    #[test]
    fn of_waits_that_are_not_known_nothing_is_asked() {
        let mut track = Track::new(0.1, GuardLimits::default());
        let used = Use { got: 20.0, waited: None };
        (0..8).for_each(|_| track.pair(used, used));
        assert_eq!(track.doubts(20.0, 1.0, false), []);
    }
}
