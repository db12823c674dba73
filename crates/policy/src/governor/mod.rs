//! Stolen CPU: what takes it, and the limit under which least is taken.
//!
//! A hypervisor may throttle use above a threshold by stealing nearly everything for a while (then a limit just under the
//! threshold makes a job finish sooner), may ask for credits (then no limit helps), or may simply have another guest on
//! the same core (neither). The governor is told, tick by tick, what its scope wanted and what it got, and answers with a
//! limit:
//!
//! * As long as little is stolen it sets none. A steal that is moderate and steady is a shared core: no limit.
//! * When nearly all is stolen, it asks for hardly more than what is still given, so that the rule lets go soon. What
//!   was used until then, and how long it lasts, shows the rule's threshold ([`fit`]).
//! * Then it holds just under the threshold, tries once whether much more goes unpunished (a free rate with a bucket looks
//!   like a window at first), and later creeps up a little at a time. Each onset corrects the threshold.
//! * When nothing is let go of for long, what is left is a baseline: spent credits, or a cap. No limit.
//!
//! Pure: the same looks give the same limits.

mod attempt;
pub mod fit;
pub mod history;
#[cfg(test)]
mod tests;
mod throttle;
mod verdict;

pub use fit::{Fit, Threshold};
use history::{History, Tick};
pub use verdict::Verdict;

/// What is seen in one tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DemandSample {
    /// Time at its end, seconds since the scope began.
    pub at_s: f64,
    pub seconds: f64,
    /// CPU the scope got, seconds.
    pub got_s: f64,
    /// CPU it would have got within its limit had nothing been stolen, seconds: its runnable time, less what other
    /// programs of the same host took.
    pub wanted_s: f64,
}

evenkeel_base::defaults! {
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// CPUs the scope could use.
    pub cpus: f64 = 1.0,
    /// How far below the threshold to stay at first, as a share of it.
    pub margin: f64 = 0.01,
    /// A rule known beforehand, such as an instance family's.
    pub known: Option<Threshold>,
    /// A limit is known to be of no use: credits, a shared core.
    pub futile: bool,
    /// Least time between two small changes of the limit, seconds.
    pub rest_s: f64 = 0.4,
    /// Services share what is given with the work that the limit holds back. Then the limit keeps use below what is given for
    /// good even where that makes no job finish sooner, and nothing is tried above it: credits are there when services need
    /// them, and a cap is not felt.
    pub for_services: bool,
    /// What is known to be given for good, CPUs.
    pub baseline: Option<f64>,
}
}

/// Share stolen above which a tick counts as throttled.
const THROTTLED: f64 = 0.6;
/// Ticks in a row that make an onset.
const STREAK: usize = 3;
/// Ticks among which they may be, where those in between say nothing.
const LOOK_BACK: usize = 10;
/// Share stolen from which a steady steal is worth a word.
const NOTABLE: f64 = 0.08;
/// Ticks over which what is given is averaged to see throttling end.
const CALM: usize = 5;
/// What is asked for while throttled, relative to what is given: enough above it to see when more is given.
const ASK: f64 = 1.35;
/// And at least, CPUs: a quota is kept to a tick, so that a token of 3 % and what is asked for are told apart in five looks only
/// if that is so much more.
const ASK_LEAST: f64 = 0.05;
/// Share of what is asked for that must be given to count as let go.
const LET_GO: f64 = 0.9;
/// Least limit, CPUs: in a period of 100 ms what runs until the next tick (4 ms at 250 Hz) pays for hardly more than one
/// period then. With less it would stand still for several, and the end of throttling be seen late.
const LEAST: f64 = 0.02;
/// First attempts above the threshold: twice as much, so that another rule is soon told.
const LEAP: f64 = 2.0;
/// Period of quotas, seconds: its use comes at once, and is in a window or not.
const PERIOD_S: f64 = 0.1;
/// Use above the threshold, unpunished, that refutes it.
const REFUTED: f64 = 1.08;
/// Weight of a new look at how much of its limit the scope takes.
const LEARN: f64 = 0.1;
/// When throttling has lasted so many times as long as the use before it, it is no throttling.
const GIVE_UP: f64 = 40.0;
/// As [`GIVE_UP`], when what is still given is more than a token: credits have a baseline of 5 to 40 %.
const GIVE_UP_BASELINE: f64 = 4.0;
/// What is believed of use that was not seen: no window that is known is longer, seconds.
const UNSEEN_S: f64 = 100.0;
/// A baseline, CPUs.
const BASELINE: f64 = 0.05;

/// Whether the first threshold was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leap {
    NotYet,
    Under,
    Over,
}

/// Change of a limit that is worth it.
const WORTH: f64 = 0.02;
/// After so long what was found is put to the test again, seconds: machines move, neighbours go.
const RECONSIDER_S: f64 = 3600.0;

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
    /// Since when no limit is of use.
    Off {
        since_s: f64,
    },
}

#[derive(Debug, Clone)]
pub struct Governor {
    rules: Rules,
    state: State,
    history: History,
    recent: Vec<(f64, f64, f64)>,
    verdict: Verdict,
    fit: Option<Fit>,
    /// Throttling was in force when we came: what was used before is not known.
    late: bool,
    used_s: f64,
    stolen_s: f64,
    wanted_s: f64,
    /// Steady steal: sums of what was wanted and got while not throttled.
    steady: (f64, f64, usize),
    /// What was given when throttling began for the first time, nothing being held back, CPUs.
    least_given: f64,
    /// What was used until then, CPUs.
    full: f64,
    leap: Leap,
    step: f64,
    failed_attempts: u32,
    /// Share of its limit that the scope takes while nothing is stolen.
    taken: f64,
    in_force: Option<f64>,
    /// When it was changed last, and for which state.
    renewed: (f64, std::mem::Discriminant<State>),
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
            least_given: 0.0,
            full: 0.0,
            leap: Leap::NotYet,
            step: attempt::STEP,
            failed_attempts: 0,
            taken: 1.0,
            in_force: None,
            renewed: (0.0, std::mem::discriminant(&State::Free)),
        };
        if rules.futile {
            governor.state = State::Off { since_s: 0.0 };
            if let (true, Some(rate)) = (rules.for_services, rules.baseline) {
                governor.verdict = Verdict::Baseline { rate, credit_s: 0.0 };
            }
        } else if let Some(threshold) = rules.known {
            governor.fit = Some(Fit { threshold, error: 0.0, costs_s: 0.0 });
            governor.verdict = Verdict::Throttled { threshold: Some(threshold), given: 0.0 };
            governor.leap = Leap::Over;
            governor.state = State::Holding { limit: threshold.rate() * (1.0 - rules.margin), since_s: 0.0 };
        }
        governor.renew(0.0);
        governor
    }

    /// The limit now, CPUs; `None`: no limit.
    pub fn limit(&self) -> Option<f64> {
        self.in_force
    }

    /// Puts another limit in force, if it is worth it: with each the kernel begins a new period, and what was used of the
    /// last one is forgotten (`tg_set_cfs_bandwidth` in kernel/sched/core.c).
    fn renew(&mut self, now: f64) {
        let new = self.right();
        let kind = std::mem::discriminant(&self.state);
        let worth = match (self.in_force, new) {
            (None, None) => false,
            (Some(old), Some(new)) if kind == self.renewed.1 => {
                (new / old - 1.0).abs() >= WORTH && now - self.renewed.0 >= self.rules.rest_s
            }
            (old, new) => old != new,
        };
        if worth {
            self.in_force = new;
            self.renewed = (now, kind);
        }
    }

    /// The limit that is right now.
    fn right(&self) -> Option<f64> {
        match self.state {
            State::Free => None,
            State::Off { .. } => self.baseline().map(|rate| (rate * (1.0 - self.rules.margin)).max(LEAST)),
            State::Waiting { given, .. } => Some((given * ASK).max(ASK_LEAST).min(self.rules.cpus)),
            State::Resting { given, .. } => Some((given * ASK).clamp(LEAST, self.rules.cpus)),
            State::Holding { limit, .. } => {
                // A job that waits for disks and the like uses less than its limit: its use is what is held.
                let limit = self.room(limit) / self.taken;
                (limit < self.rules.cpus * 0.98).then_some(limit.max(LEAST))
            }
        }
    }

    /// What is given for good, where services need that it is not exceeded, CPUs.
    fn baseline(&self) -> Option<f64> {
        match self.verdict {
            _ if !self.rules.for_services => None,
            Verdict::Baseline { rate, .. } => Some(rate),
            Verdict::Tolerable { threshold, .. } => Some(threshold),
            _ => None,
        }
    }

    /// Of a rate what still fits into the window: after throttling it is nearly full, of use that does not leave it soon.
    fn room(&self, rate: f64) -> f64 {
        let (Some(Fit { threshold: Threshold::Window { window_s, .. }, .. }), Some(last)) =
            (self.fit, self.history.ticks().last())
        else {
            return rate;
        };
        if self.leap == Leap::Under {
            return rate;
        }
        let ahead = (window_s / 20.0).max(self.rules.rest_s);
        let used = self.history.used(last.end_s + ahead - window_s, last.end_s);
        ((rate * window_s - used) / ahead).clamp(0.0, rate)
    }

    /// What was found so far.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Times throttling began.
    pub fn onsets(&self) -> usize {
        self.history.count()
    }

    /// CPU seconds got.
    pub fn used_s(&self) -> f64 {
        self.used_s
    }

    /// CPU seconds stolen of what was wanted within the limits set.
    pub fn stolen_s(&self) -> f64 {
        self.stolen_s
    }

    /// Takes a look in and gives the limit from now on.
    pub fn look(&mut self, look: DemandSample) -> Option<f64> {
        let sane = look.seconds > 0.0
            && [look.at_s, look.seconds, look.got_s, look.wanted_s].iter().all(|x| x.is_finite());
        if !sane {
            return self.limit();
        }
        let now = look.at_s;
        let got = look.got_s.max(0.0);
        let wanted = look.wanted_s.max(got);
        self.used_s += got;
        self.wanted_s += wanted;
        self.stolen_s += wanted - got;
        self.recent.push((look.seconds, wanted, got));
        if self.recent.len() > 3 * CALM {
            self.recent.remove(0);
        }
        let throttled = matches!(self.state, State::Waiting { .. });
        self.history.push(Tick {
            end_s: look.at_s,
            seconds: look.seconds,
            got_s: got,
            wanted_s: wanted,
            throttled,
        });
        match self.state {
            State::Off { since_s } => {
                let tries = !self.rules.futile && !self.rules.for_services;
                if tries && now - since_s > RECONSIDER_S {
                    self.history.refresh(now);
                    if self.fit.is_none() {
                        // Throttling that was not seen to end belongs to no other end.
                        self.history.forget_onsets();
                        self.late = false;
                    }
                    self.recent.clear();
                    self.state = State::Free;
                }
            }
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
                self.history.refresh(look.at_s);
                self.recent.clear();
                self.state = State::Free;
            }
            State::Resting { .. } => {}
        }
        self.renew(now);
        self.limit()
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
}
