//! When throttling begins, what is asked for meanwhile, when it ends.

use super::*;

/// What was given over looks (seconds, wanted, got), CPUs.
fn mean_rate(looks: &[(f64, f64, f64)]) -> f64 {
    let (seconds, got) = looks.iter().fold((0.0, 0.0), |(s, g), look| (s + look.0, g + look.2));
    got / seconds
}

impl Governor {
    /// Nearly all was stolen of the last few ticks: since when, and what was given.
    ///
    /// Where other programs take nearly all CPUs, some ticks leave nothing to be stolen and say nothing; those before and
    /// after must do then.
    pub(super) fn onset(&self, now: f64) -> Option<(f64, f64)> {
        // What is hardly wanted says nothing.
        let least = |seconds: f64| 0.25 * seconds * self.limit().unwrap_or(self.rules.cpus).min(1.0);
        let says = |(seconds, wanted, _): &(f64, f64, f64)| *wanted > least(*seconds);
        let bad = |(_, wanted, got): &(f64, f64, f64)| *got < (1.0 - THROTTLED) * wanted;
        let (mut first, mut streak) = (None, 0);
        for (index, tick) in self.recent.iter().enumerate().rev().take(LOOK_BACK) {
            match (says(tick), bad(tick)) {
                (true, true) => (first, streak) = (Some(index), streak + 1),
                (true, false) => break,
                (false, _) => {}
            }
            if streak == STREAK {
                break;
            }
        }
        let first = first.filter(|_| streak == STREAK)?;
        let streak = self.recent.get(first..)?;
        let seconds: f64 = streak.iter().map(|t| t.0).sum();
        // It began within the first one of them, or before: what is given shows in those after it.
        let given = mean_rate(&streak[1..]);
        // What was given beyond that tells when.
        let part = |(seconds, wanted, got): (f64, f64, f64)| {
            let least = given * seconds;
            seconds * ((wanted - got) / (wanted - least).max(1e-9)).clamp(0.0, 1.0)
        };
        let before = first.checked_sub(1).and_then(|i| self.recent.get(i)).filter(|t| t.2 < 0.85 * t.1);
        let began = seconds - streak[0].0 + part(streak[0]) + before.map_or(0.0, |tick| part(*tick));
        Some((now - began, given))
    }

    pub(super) fn begin_waiting(&mut self, at: f64, given: f64) {
        if self.fit.is_some() {
            if self.leap == Leap::Over {
                self.failed_attempts += 1;
                self.step /= 4.0;
            }
            self.leap = Leap::Over;
        }
        let first = self.history.onsets().is_empty();
        if first {
            self.least_given = given;
            let seen_s = self.history.ticks().last().map_or(at, |last| last.end_s);
            let (_, start) = self.history.most_spread(at, seen_s);
            self.full = self.history.used(start, at) / (at - start).max(1e-6);
        }
        if first && at - self.history.fresh_s() < 0.35 {
            self.late = true;
        } else {
            self.history.onset(at.max(0.0));
        }
        self.verdict = match self.verdict {
            Verdict::Throttled { threshold, .. } => Verdict::Throttled { threshold, given },
            _ => Verdict::Throttled { threshold: None, given },
        };
        self.recent.clear();
        self.state = State::Waiting { since_s: at, given };
    }

    pub(super) fn wait(&mut self, now: f64, since_s: f64, given: f64) {
        let Some(first) = self.recent.len().checked_sub(CALM) else { return };
        let calm = &self.recent[first..];
        let sum = |f: fn(&(f64, f64, f64)) -> f64| calm.iter().map(f).sum::<f64>();
        let (seconds, wanted, got) = (sum(|t| t.0), sum(|t| t.1), sum(|t| t.2));
        // It must want what it may have, or nothing is learnt. What a quota gives too much in one tick it gives less in the
        // next: together it is what was asked for.
        let asked = self.limit().unwrap_or(1.0) * seconds;
        let wanted = wanted.min(asked.max(got));
        if wanted < 0.7 * asked {
            return;
        }
        if got >= LET_GO * wanted {
            self.let_go(now - seconds);
            return;
        }
        // What is given varies a little; ask for a little more than the present amount.
        let rate = got / seconds;
        if self.recent.len() >= 3 * CALM && (rate / given.max(1e-6) - 1.0).abs() > 0.3 {
            self.state = State::Waiting { since_s, given: 0.5 * (rate + given) };
        }
        if self.fit.is_none() && self.gives_more_unlimited(now, since_s, rate) {
            return;
        }
        // When throttling ends, more is given before that is certain: a baseline is given all along.
        let patience = if rate.min(given) >= BASELINE { GIVE_UP_BASELINE } else { GIVE_UP };
        // At a second look nothing before it is unseen.
        let unseen = self.late && self.history.fresh_s() == 0.0;
        let before =
            if unseen { UNSEEN_S } else { (since_s - self.history.most_spread(since_s, now).1).max(1.0) };
        if now - since_s > patience * before && self.fit.is_none() {
            let beyond = (self.used_s - rate * now).max(0.0);
            self.verdict = Verdict::Baseline { rate, credit_s: beyond };
            self.state = State::Off { since_s: now };
        }
    }

    /// Ends the wait where it cannot pay: a window that has not let go yet has what was used before in it still, so that its threshold
    /// is no more than some of that, the latest, spread over the time since. Who gets more while throttled, if only it asks for all, needs no limit.
    /// A baseline is told apart by being given whatever is asked for.
    fn gives_more_unlimited(&mut self, now: f64, since_s: f64, rate: f64) -> bool {
        let (threshold, _) = self.history.most_spread(since_s, now);
        let more = !self.late && threshold < self.least_given && rate < 0.5 * self.least_given;
        if more {
            self.verdict = Verdict::Tolerable { rate: self.least_given, threshold };
            self.state = State::Off { since_s: now };
        }
        more
    }

    fn let_go(&mut self, at: f64) {
        self.recent.clear();
        if self.late && self.history.onsets().is_empty() {
            // How much had been used before is not known: let as much time pass again, and most of it is forgotten.
            self.late = false;
            let State::Waiting { given, .. } = self.state else { return };
            let rest_s = (at - self.history.fresh_s()).min(UNSEEN_S);
            self.state = State::Resting { until_s: at + rest_s, given };
            return;
        }
        self.history.end(at);
        self.fit = match self.fit {
            Some(fit) if fit::is_old(&self.history, fit) => Some(fit::renewed(&self.history, fit)),
            known => fit::best(&self.history).or(known),
        };
        let given = match self.verdict {
            Verdict::Throttled { given, .. } => given,
            _ => 0.0,
        };
        match self.fit {
            Some(Fit { threshold: threshold @ Threshold::Bucket { .. }, .. })
                if self.unlimited(threshold) > threshold.rate() =>
            {
                self.verdict =
                    Verdict::Tolerable { rate: self.unlimited(threshold), threshold: threshold.rate() };
                self.state = State::Off { since_s: at };
            }
            Some(fit) => {
                self.verdict = Verdict::Throttled { threshold: Some(fit.threshold), given };
                let margin = self.margin(fit.threshold);
                self.state = State::Holding { limit: fit.threshold.rate() * (1.0 - margin), since_s: at };
            }
            None => self.state = State::Free,
        }
    }

    /// How far below the threshold to stay, as a share of it: more after each failure, and no less than a quota can miss in a
    /// window.
    fn margin(&self, threshold: Threshold) -> f64 {
        let margin = self.rules.margin * f64::from(1 + self.failed_attempts.min(3));
        match threshold {
            // The first time it is not yet certain that it is a window.
            Threshold::Window { window_s, .. } if self.leap == Leap::Over => {
                margin.max(self.rules.margin + (PERIOD_S / window_s).min(0.05))
            }
            _ => margin,
        }
    }

    /// What no limit would give under a bucket, CPUs: it fills as fast as the first time, then little is given for the
    /// penalty, and again.
    fn unlimited(&self, threshold: Threshold) -> f64 {
        let Threshold::Bucket { free, burst_s, penalty_s } = threshold else { return 0.0 };
        let fills_s = burst_s / (self.full - free).max(1e-6);
        (self.full * fills_s + self.least_given * penalty_s) / (fills_s + penalty_s)
    }
}
