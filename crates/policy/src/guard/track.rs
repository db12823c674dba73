//! What is known of one subject's losses.

use evenkeel_base::stats::{SignBets, mean};

use super::{Harm, Use};

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
    wait_factor: f64,
    wait_floor: f64,
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
    pub fn new(loss: f64, wait_factor: f64, wait_floor: f64) -> Self {
        Self {
            loss,
            wait_factor,
            wait_floor,
            got: Question::default(),
            supply: Question::default(),
            wait: Question::default(),
            before: Vec::new(),
            after: Vec::new(),
            missed: 0,
            cpu: 1.0,
        }
    }

    pub fn missed(&mut self) {
        self.missed += 1;
    }

    pub fn pair(&mut self, before: Use, after: Use) {
        self.missed = 0;
        self.before.push(before);
        self.after.push(after);
        let keep = 1.0 - self.loss;
        self.got.add(after.got - keep * before.got);
        let supply = |used: Use| {
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
        let wait = |used: Use| (used.got > 0.0).then_some(used.waited? / used.got);
        if let Some((before, after)) = wait(before).zip(wait(after)) {
            self.wait.add(self.wait_factor * before.max(self.wait_floor) - after);
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
            let wait =
                |uses: &[Use]| column(|used| used.waited.unwrap_or_default(), uses) / got(uses).max(1e-9);
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
        let mut track = Track::new(0.1, 1.5, 0.02);
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

    #[test]
    fn of_waits_that_are_not_known_nothing_is_asked() {
        let mut track = Track::new(0.1, 1.5, 0.02);
        let used = Use { got: 20.0, waited: None };
        (0..8).for_each(|_| track.pair(used, used));
        assert_eq!(track.doubts(20.0, 1.0, false), []);
    }
}
