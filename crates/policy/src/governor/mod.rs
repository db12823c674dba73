//! Stolen CPU: what takes it, and the limit under which least is taken.
//!
//! A hypervisor may punish use above a threshold by stealing nearly everything for a while (then a limit just under the
//! threshold makes a job finish sooner), may ask for credits (then no limit helps), or may simply have another guest on
//! the same core (neither). The governor is told, tick by tick, what its scope wanted and what it got, and answers with a
//! limit:
//!
//! * As long as little is stolen it sets none. A steal that is moderate and steady is a shared core: no limit.
//! * When nearly all is stolen, it asks for hardly more than what is still given, so that the rule lets go soon. What
//!   was used until then, and how long it lasts, shows the rule's edge ([`fit`]).
//! * Then it holds just under the edge, tries once whether much more goes unpunished (a free rate with a bucket looks
//!   like a window at first), and later creeps up a little at a time. Each onset corrects the edge.
//! * When nothing is let go of for long, what is left is a baseline: spent credits, or a cap. No limit.
//!
//! Pure: the same looks give the same limits.

pub mod fit;
pub mod history;
#[cfg(test)]
mod tests;

use std::fmt;

pub use fit::{Edge, Fit};
use history::{History, Tick};

/// What is seen in one tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// Time at its end, seconds since the scope began.
    pub at_s: f64,
    /// Its length, seconds.
    pub seconds: f64,
    /// CPU the scope got, seconds.
    pub got_s: f64,
    /// CPU it would have got within its limit had nothing been stolen, seconds: its runnable time, less what other
    /// programs of the same host took.
    pub wanted_s: f64,
}

/// How to govern.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// CPUs the scope could use.
    pub cpus: f64,
    /// How far below the edge to stay at first, as a share of it.
    pub margin: f64,
    /// A rule known beforehand, such as an instance family's.
    pub known: Option<Edge>,
    /// A limit is known to be of no use: credits, a shared core.
    pub futile: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { cpus: 1.0, margin: 0.01, known: None, futile: false }
    }
}

/// Share stolen above which a tick counts as punished.
const PUNISHED: f64 = 0.6;
/// Ticks in a row that make an onset.
const STREAK: usize = 3;
/// Share stolen from which a steady steal is worth a word.
const NOTABLE: f64 = 0.08;
/// Ticks over which what is given is averaged to see punishment end.
const CALM: usize = 5;
/// What is asked for while punished, relative to what is given: enough above it to see when more is given.
const ASK: f64 = 1.35;
/// Share of what is asked for that must be given to count as let go.
const LET_GO: f64 = 0.9;
/// Least limit, CPUs: the kernel's smallest quota is 1 ms, in periods of 100 ms.
const LEAST: f64 = 0.012;
/// First attempts above the edge: twice as much, so that another rule is soon told.
const LEAP: f64 = 2.0;
/// Use above the edge, unpunished, that refutes it.
const REFUTED: f64 = 1.08;
/// Largest of the later attempts.
const LARGEST_CREEP: f64 = 0.1;
/// Weight of a new look at how much of its limit the scope takes.
const LEARN: f64 = 0.1;
/// Later attempts.
const CREEP: f64 = 0.015;
/// Attempts in a row that failed, after which none are made any more.
const LAST_ATTEMPT: u32 = 4;
/// When punishment has lasted so many times as long as the use before it, it is no punishment.
const GIVE_UP: f64 = 40.0;
/// As [`GIVE_UP`], when what is still given is more than a token: credits have a baseline of 5 to 40 %.
const GIVE_UP_BASELINE: f64 = 4.0;
/// A baseline, CPUs.
const BASELINE: f64 = 0.05;

/// What takes the CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Nothing worth mentioning.
    Nothing,
    /// Another guest on the same core: this share of what is wanted, all the time.
    SharedCore {
        /// Share stolen.
        stolen: f64,
    },
    /// Use is punished.
    Punished {
        /// The rule, once an end of punishment has shown it.
        edge: Option<Edge>,
        /// What is still given meanwhile, CPUs.
        given: f64,
    },
    /// Only a baseline is given: spent credits, or a cap.
    Baseline {
        /// The baseline, CPUs: what credits are earned at.
        rate: f64,
        /// CPU seconds there were beyond it before.
        credit_s: f64,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pct = |share: f64| 100.0 * share;
        match self {
            Self::Nothing => f.write_str("no steal: no limit"),
            Self::SharedCore { stolen } => write!(
                f,
                "a shared core: {:.0} % is stolen all the time, whatever is used; a limit would only cost more, so there \
                 is none",
                pct(*stolen)
            ),
            Self::Punished { edge: None, given } => write!(
                f,
                "use is punished: only {:.1} % of a CPU is given; asking for little until it ends",
                pct(*given)
            ),
            Self::Punished { edge: Some(Edge::Window { window_s, share }), .. } => write!(
                f,
                "use above {:.1} % of a CPU over about {window_s:.0} s is punished: holding just below",
                pct(*share)
            ),
            Self::Punished { edge: Some(Edge::Bucket { free, burst_s, penalty_s }), .. } => write!(
                f,
                "use above {:.1} % of a CPU is punished for {penalty_s:.0} s once it adds up to {burst_s:.0} CPU seconds: \
                 holding just below",
                pct(*free)
            ),
            Self::Baseline { rate, credit_s } => write!(
                f,
                "{:.1} % of a CPU is given whatever is asked for, after {credit_s:.0} CPU seconds more: spent credits or a \
                 cap; a limit would only cost more, so there is none",
                pct(*rate)
            ),
        }
    }
}

/// Whether the first edge was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leap {
    NotYet,
    Under,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Free,
    /// Since when, what is given, CPUs.
    Waiting {
        since_s: f64,
        given: f64,
    },
    /// At which rate of use, since when.
    Holding {
        limit: f64,
        since_s: f64,
    },
    /// Until when at the least, so that unknown earlier use is forgotten.
    Resting {
        until_s: f64,
        given: f64,
    },
    Off,
}

/// Governs one scope.
#[derive(Debug, Clone)]
pub struct Governor {
    rules: Rules,
    state: State,
    history: History,
    recent: Vec<(f64, f64, f64)>,
    verdict: Verdict,
    fit: Option<Fit>,
    /// Punishment was in force when we came: what was used before is not known.
    late: bool,
    used_s: f64,
    stolen_s: f64,
    wanted_s: f64,
    /// Steady steal: sums of what was wanted and got while not punished.
    steady: (f64, f64, usize),
    leap: Leap,
    step: f64,
    failed_attempts: u32,
    /// Share of its limit that the scope takes while nothing is stolen.
    taken: f64,
    /// Time at which what is remembered begins.
    origin_s: f64,
}

impl Governor {
    /// A governor that has seen nothing.
    pub fn new(rules: Rules) -> Self {
        let mut governor = Self {
            rules,
            state: State::Free,
            history: History::default(),
            recent: Vec::new(),
            verdict: Verdict::Nothing,
            fit: None,
            late: false,
            used_s: 0.0,
            stolen_s: 0.0,
            wanted_s: 0.0,
            steady: (0.0, 0.0, 0),
            leap: Leap::NotYet,
            step: CREEP,
            failed_attempts: 0,
            taken: 1.0,
            origin_s: 0.0,
        };
        if rules.futile {
            governor.state = State::Off;
        } else if let Some(edge) = rules.known {
            governor.fit = Some(Fit { edge, error: 0.0 });
            governor.verdict = Verdict::Punished { edge: Some(edge), given: 0.0 };
            governor.leap = Leap::Over;
            governor.state = State::Holding { limit: edge.rate() * (1.0 - rules.margin), since_s: 0.0 };
        }
        governor
    }

    /// The limit now, CPUs; `None`: no limit.
    pub fn limit(&self) -> Option<f64> {
        match self.state {
            State::Free | State::Off => None,
            State::Waiting { given, .. } => Some((given * ASK).clamp(LEAST, self.rules.cpus)),
            State::Resting { given, .. } => Some((given * ASK).clamp(LEAST, self.rules.cpus)),
            State::Holding { limit, .. } => {
                // A job that waits for disks and the like uses less than its limit: its use is what is held.
                let limit = self.room(limit) / self.taken;
                (limit < self.rules.cpus * 0.98).then_some(limit.max(LEAST))
            }
        }
    }

    /// Of a rate what still fits into the window: after punishment it is nearly full, of use that does not leave it soon.
    fn room(&self, rate: f64) -> f64 {
        let (Some(Fit { edge: Edge::Window { window_s, .. }, .. }), Some(last)) =
            (self.fit, self.history.ticks().last())
        else {
            return rate;
        };
        if self.leap == Leap::Under {
            return rate;
        }
        let ahead = window_s / 20.0;
        let used = self.history.wanted(last.end_s + ahead - window_s, last.end_s);
        ((rate * window_s - used) / ahead).clamp(0.0, rate)
    }

    /// What was found so far.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Times punishment began.
    pub fn onsets(&self) -> usize {
        self.history.onsets().len()
    }

    /// CPU seconds got.
    pub fn used_s(&self) -> f64 {
        self.used_s
    }

    /// CPU seconds stolen of what was wanted within the limits set.
    pub fn stolen_s(&self) -> f64 {
        self.stolen_s
    }

    /// CPU seconds of credit spent beyond a baseline, when there is one.
    pub fn credit_s(&self) -> Option<f64> {
        match self.verdict {
            Verdict::Baseline { credit_s, .. } => Some(credit_s),
            _ => None,
        }
    }

    /// Takes a look in and gives the limit from now on.
    pub fn look(&mut self, look: Look) -> Option<f64> {
        let sane = look.seconds > 0.0
            && [look.at_s, look.seconds, look.got_s, look.wanted_s].iter().all(|x| x.is_finite());
        if !sane {
            return self.limit();
        }
        let now = look.at_s - self.origin_s;
        let got = look.got_s.max(0.0);
        let wanted = look.wanted_s.max(got);
        self.used_s += got;
        self.wanted_s += wanted;
        self.stolen_s += wanted - got;
        self.recent.push((look.seconds, wanted, got));
        if self.recent.len() > 3 * CALM {
            self.recent.remove(0);
        }
        let punished = matches!(self.state, State::Waiting { .. });
        self.history.push(Tick {
            end_s: look.at_s,
            seconds: look.seconds,
            got_s: got,
            wanted_s: wanted,
            punished,
        });
        match self.state {
            State::Off => {}
            State::Free | State::Holding { .. } => {
                if let Some((at, given)) = self.onset(now) {
                    self.begin_waiting(at, given);
                } else {
                    self.steadily(wanted, got);
                    self.learn_taken(look.seconds, wanted, got);
                    self.attempt(now);
                }
            }
            State::Waiting { since_s, given } => self.wait(now, since_s, given),
            State::Resting { until_s, .. } if now >= until_s => {
                // What is used from here on is all that counts.
                self.history = History::default();
                self.origin_s = look.at_s;
                self.recent.clear();
                self.state = State::Free;
            }
            State::Resting { .. } => {}
        }
        self.limit()
    }

    /// Nearly all was stolen of the last few ticks: since when, and what was given.
    fn onset(&self, now: f64) -> Option<(f64, f64)> {
        let last = self.recent.len().checked_sub(STREAK)?;
        let streak = &self.recent[last..];
        // What is hardly wanted says nothing.
        let least = |seconds: f64| 0.25 * seconds * self.limit().unwrap_or(self.rules.cpus).min(1.0);
        let bad = |(seconds, wanted, got): &(f64, f64, f64)| {
            *wanted > least(*seconds) && *got < (1.0 - PUNISHED) * wanted
        };
        if !streak.iter().all(bad) {
            return None;
        }
        let seconds: f64 = streak.iter().map(|t| t.0).sum();
        let given = streak.iter().map(|t| t.2).sum::<f64>() / seconds;
        // In the tick before, it may have begun: what was stolen of that one tells when.
        let before = last.checked_sub(1).and_then(|i| self.recent.get(i));
        let part = before.map_or(0.0, |(s, wanted, got)| {
            let stolen = if *wanted > 0.0 { 1.0 - got / wanted } else { 0.0 };
            if stolen > 0.15 { s * stolen } else { 0.0 }
        });
        Some((now - seconds - part, given))
    }

    fn begin_waiting(&mut self, at: f64, given: f64) {
        if self.fit.is_some() {
            if self.leap == Leap::Over {
                self.failed_attempts += 1;
                self.step = CREEP / f64::from(1 + self.failed_attempts);
            }
            self.leap = Leap::Over;
        }
        let first = self.history.onsets().is_empty();
        if first && at < 0.35 {
            self.late = true;
        } else {
            self.history.onset(at.max(0.0));
        }
        self.verdict = match self.verdict {
            Verdict::Punished { edge, .. } => Verdict::Punished { edge, given },
            _ => Verdict::Punished { edge: None, given },
        };
        self.recent.clear();
        self.state = State::Waiting { since_s: at, given };
    }

    fn wait(&mut self, now: f64, since_s: f64, given: f64) {
        let Some(first) = self.recent.len().checked_sub(CALM) else { return };
        let calm = &self.recent[first..];
        let sum = |f: fn(&(f64, f64, f64)) -> f64| calm.iter().map(f).sum::<f64>();
        let (seconds, wanted, got) = (sum(|t| t.0), sum(|t| t.1), sum(|t| t.2));
        // It must want what it may have, or nothing is learnt.
        let asked = self.limit().unwrap_or(1.0) * seconds;
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
        let patience = if rate >= BASELINE { GIVE_UP_BASELINE } else { GIVE_UP };
        let before = if self.late { now - since_s } else { since_s.max(1.0) };
        if now - since_s > patience * before && self.fit.is_none() {
            let beyond = (self.used_s - rate * now).max(0.0);
            self.verdict = Verdict::Baseline { rate, credit_s: beyond };
            self.state = State::Off;
        }
    }

    fn let_go(&mut self, at: f64) {
        self.recent.clear();
        if self.late && self.history.onsets().is_empty() {
            // How much had been used before is not known: let as much time pass again, and most of it is forgotten.
            self.late = false;
            let State::Waiting { given, .. } = self.state else { return };
            self.state = State::Resting { until_s: 2.0 * at, given };
            return;
        }
        self.history.end(at);
        self.fit = fit::best(&self.history).or(self.fit);
        let given = match self.verdict {
            Verdict::Punished { given, .. } => given,
            _ => 0.0,
        };
        match self.fit {
            Some(fit) => {
                self.verdict = Verdict::Punished { edge: Some(fit.edge), given };
                let margin = self.rules.margin * f64::from(1 + self.failed_attempts.min(3));
                self.state = State::Holding { limit: fit.edge.rate() * (1.0 - margin), since_s: at };
            }
            None => self.state = State::Free,
        }
    }

    /// How much of its limit the scope takes when nothing keeps it back.
    fn learn_taken(&mut self, seconds: f64, wanted: f64, got: f64) {
        let State::Holding { .. } = self.state else { return };
        let Some(limit) = self.limit() else { return };
        // Stolen time says nothing about what the scope would take.
        if got > 0.9 * wanted {
            let share = (got / (limit * seconds)).clamp(0.5, 1.0);
            self.taken += LEARN * (share - self.taken);
        }
    }

    /// A steal that is there all the time.
    fn steadily(&mut self, wanted: f64, got: f64) {
        if !matches!(self.state, State::Free) {
            return;
        }
        let (w, g, n) = &mut self.steady;
        (*w, *g, *n) = (*w + wanted, *g + got, *n + 1);
        if *n < 20 || *w <= 0.0 {
            return;
        }
        let stolen = 1.0 - *g / *w;
        let shared = matches!(self.verdict, Verdict::Nothing | Verdict::SharedCore { .. });
        if shared {
            self.verdict = if stolen >= NOTABLE { Verdict::SharedCore { stolen } } else { Verdict::Nothing };
        }
        // Old times fade: a neighbour may go.
        if *n > 300 {
            (*w, *g, *n) = (*w / 2.0, *g / 2.0, *n / 2);
        }
    }

    /// After a quiet time at one limit: a higher one.
    fn attempt(&mut self, now: f64) {
        let State::Holding { limit, since_s } = self.state else { return };
        let Some(fit) = self.fit else { return };
        // Only a scope that uses its limit learns anything by a higher one.
        let (seconds, got) = self.recent.iter().fold((0.0, 0.0), |(s, g), t| (s + t.0, g + t.2));
        if got < 0.75 * limit * seconds {
            return;
        }
        let quiet = now - since_s;
        let next = if self.leap == Leap::Over {
            // A bucket's penalty costs more than the last percent is worth, and a known rule is known.
            let Edge::Window { window_s, .. } = fit.edge else { return };
            let patience = 1.5 * window_s;
            if self.rules.known.is_some() || quiet < patience || self.failed_attempts >= LAST_ATTEMPT {
                return;
            }
            let next = limit * (1.0 + self.step);
            // What goes well may go on in larger steps: the edge was far too low, then.
            self.step = (1.5 * self.step).min(LARGEST_CREEP);
            next
        } else {
            match fit.edge {
                Edge::Window { window_s, .. } if quiet >= 0.25 * window_s => {
                    if self.leap == Leap::Under {
                        let used = self.history.wanted(now - window_s, now) / window_s;
                        if used < REFUTED * fit.edge.rate() {
                            return;
                        }
                        self.fit = Some(Fit { edge: Edge::Window { window_s, share: used }, ..fit });
                    }
                }
                Edge::Bucket { penalty_s, .. } if quiet >= penalty_s => {}
                _ => return,
            }
            self.leap = Leap::Under;
            LEAP * limit
        };
        self.state = if next >= 0.98 * self.rules.cpus {
            State::Free
        } else {
            State::Holding { limit: next, since_s: now }
        };
    }
}

/// The middle value; `None` of none.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => sorted.get(n / 2).copied(),
        _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}
