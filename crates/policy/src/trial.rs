//! A trial: which of several candidates is put in force, if any. *Screen, then confirm.*
//!
//! Candidate 0 is the present state, the baseline. Screening gives every challenger a window or two and may choose by any heuristic. The
//! one or two that look best are then confirmed, one after the other, on *fresh* pairs of windows, baseline and candidate in an order that
//! a coin decides, by evidence that is valid by this coin alone and at every stopping time ([`evenkeel_base::stats::bets`]). The error
//! budget is one for the whole decision: it is split over the candidates that are confirmed, however many were screened. The guard must be
//! satisfied by the same pairs ([`crate::guard`]). Last, the candidate stays in force for some seconds, and its gain must still be there:
//! what only came from a backlog, or fades, is no gain.
//!
//! The trial is pure: the caller applies the candidate that [`Trial::next`] names, waits, measures a window, and hands it to
//! [`Trial::record`].

mod confirm;
mod objective;
mod pace;
mod part;
mod protected;
mod screen;
mod verdict;
mod words;

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand_pcg::Pcg32;
use serde::{Deserialize, Serialize};

use evenkeel_base::Histogram;
use evenkeel_base::stats::{self, estimate};

use crate::guard::GuardLimits;
use crate::protect::LatencyTarget;
use crate::requests::Requests;
use crate::window::Summary;
use confirm::{Confirmation, MOST_HELD, MOST_HELD_S};
pub use objective::Objective;
pub use pace::Pace;
pub use part::Part;
pub use protected::Recorded;
pub use verdict::{Decision, Verdict};

evenkeel_base::defaults! {
/// How a trial is held.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrialRules {
    /// Gain of the score from which a change is worth its risk, as a ratio to the CPU got (0.01 is one percent).
    pub min_gain: f64 = 0.01,
    /// Points of CPU that a point of waiting is worth in the score.
    pub wait_price: f64 = 0.1,
    /// Probability that a change is kept that does not help, of the whole decision.
    pub alpha: f64 = 0.05,
    pub guard: GuardLimits,
    /// Where services count: what background work, which may wait, is to get at least, percent of one CPU.
    pub least_pct: f64,
    /// Keep what the guard could not clear in the time, unless harm is shown.
    pub accept_risk: bool,
    /// The challenger that looks best is confirmed even where it looks worse than the present state: for a test of the
    /// confirmation, whose challengers change nothing.
    pub always_confirm: bool,
    /// Seed of the order in which candidates take turns.
    pub seed: u64 = 1,
}
}

/// What is to be measured next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Whose settings are to be in force.
    pub candidate: usize,
    /// Time to wait once they are, seconds.
    pub settle_s: f64,
    /// Length of the window, seconds.
    pub window_s: f64,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    windows: Vec<Summary>,
    /// Waits of the protected scopes in each window: by protection, then by window.
    protected: Vec<Vec<Histogram>>,
    /// Their own requests in each window, as far as they are known by now: by window, then by protection.
    requests: Vec<Option<Vec<Option<Requests>>>>,
    /// What the confirmation found, if there was one.
    confirmed: Option<Confirmation>,
    /// Somebody is expected to be hurt, see [`Trial::suspect`].
    suspect: bool,
    /// The user allowed it by name.
    favoured: bool,
    out: Option<String>,
}

#[derive(Debug)]
enum Phase {
    /// Windows under the present state before any change, and of the host as found where protections are held against it.
    Lead(Vec<usize>),
    /// Turns left of the round, and rounds done.
    Screen(Vec<usize>, usize),
    /// The candidate that is confirmed, those that may follow with their share of the error budget.
    Confirm(Box<Confirmation>, Vec<(usize, f64)>),
    Over,
}

/// Who may not come to wait too long.
#[derive(Debug, Default)]
struct Guarded {
    targets: Vec<LatencyTarget>,
    /// The candidate that is the host as found.
    default: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Course {
    Begins,
    GoesOn,
    /// Somebody ended it before its time.
    Stopped,
}

/// A trial of candidates against the present state.
#[derive(Debug)]
pub struct Trial {
    rules: TrialRules,
    pace: Pace,
    entries: Vec<Entry>,
    phase: Phase,
    turn: Option<Turn>,
    rng: Pcg32,
    objective: Objective,
    /// Windows at the beginning of candidate 0 that no change came before.
    lead: usize,
    guarded: Guarded,
    /// Settings in force, and for how long, seconds.
    in_force: (usize, f64),
    winner: Option<usize>,
    course: Course,
}

impl Trial {
    /// A trial of the present state (0) against `challengers` others.
    pub fn new(challengers: usize, rules: TrialRules, pace: Pace) -> Self {
        Self {
            rules,
            pace,
            entries: vec![Entry::default(); challengers + 1],
            phase: if challengers == 0 { Phase::Over } else { Phase::Lead(vec![0; pace.lead]) },
            turn: None,
            rng: Pcg32::seed_from_u64(rules.seed),
            objective: Objective::new(rules.wait_price, pace.services),
            lead: 0,
            guarded: Guarded::default(),
            in_force: (0, f64::INFINITY),
            winner: None,
            course: Course::Begins,
        }
    }

    /// Time that a trial of so many challengers takes where one of them clearly helps, about, seconds.
    pub fn usual_s(challengers: usize, pace: Pace) -> f64 {
        let turn_s = pace.window_s + pace.settle_s;
        let lead_s = pace.lead as f64 * pace.window_s;
        let windows = if challengers > 1 { 2.0 * challengers as f64 } else { 1.0 };
        let screening_s = windows * turn_s;
        lead_s + screening_s + Confirmation::usual_s(turn_s)
    }

    /// A candidate that the user allowed by name is confirmed first unless another is known to be better.
    pub fn favour(&mut self, candidate: Option<usize>) {
        for (at, entry) in self.entries.iter_mut().enumerate() {
            entry.favoured = Some(at) == candidate;
        }
    }

    /// Services, by their place, that no task belongs to: gains are those of the others.
    pub fn without_services(&mut self, absent: BTreeSet<usize>) {
        self.objective.without_services(absent);
    }

    /// A candidate under which somebody is expected to wait longer than he may: it comes after those of which that is not expected.
    pub fn suspect(&mut self, candidate: usize) {
        if let Some(entry) = self.entries.get_mut(candidate) {
            entry.suspect = true;
        }
    }

    /// Nobody named here may come to wait too long. `default` is the candidate that is the host as found: what waits are
    /// held against, and what is gone back to where the present state breaks a protection.
    #[must_use]
    pub fn protecting(mut self, protections: Vec<LatencyTarget>, default: usize) -> Self {
        self.guarded.default = default.min(self.entries.len().saturating_sub(1));
        for entry in &mut self.entries {
            entry.protected = vec![Vec::new(); protections.len()];
        }
        if self.guarded.default != 0
            && !protections.is_empty()
            && let Phase::Lead(turns) = &mut self.phase
        {
            let lead = turns.len();
            *turns = [vec![self.guarded.default; lead], vec![0; lead]].concat();
        }
        self.guarded.targets = protections;
        self
    }

    /// Takes in a window under the present state that was measured before the trial began.
    pub fn seen(&mut self, mut summary: Summary, protected: Vec<Option<Histogram>>) -> Option<Recorded> {
        let Phase::Lead(turns) = &mut self.phase else { return None };
        let at = turns.iter().rposition(|turn| *turn == 0)?;
        if !self.objective.judge(&mut summary, &protected) {
            return None;
        }
        turns.remove(at);
        self.lead += 1;
        Some(self.keep(0, summary, protected))
    }

    /// What is to be measured next; `None` when the trial is over, or when there is no time for another window.
    pub fn next(&mut self, left_s: f64) -> Option<Turn> {
        let begins = self.course == Course::Begins;
        if begins {
            self.course = Course::GoesOn;
        }
        if begins
            && left_s < Self::usual_s(self.alive().len() - 1, self.pace)
            && let Phase::Lead(turns) = &mut self.phase
        {
            // Little can be shown in so short a time: what there is goes to the challengers.
            turns.dedup();
        }
        if self.turn.is_none() {
            self.proceed();
        }
        let candidate = match &self.phase {
            Phase::Lead(turns) | Phase::Screen(turns, _) => *turns.last()?,
            Phase::Confirm(confirmation, _) => confirmation.up(),
            Phase::Over => return None,
        };
        if let Some(turn) = self.turn.filter(|turn| turn.candidate == candidate) {
            return (left_s >= turn.settle_s + turn.window_s).then_some(turn);
        }
        let (stretch, settle_s) = match &self.phase {
            Phase::Confirm(confirmation, _) => confirmation.pace(self.pace.settle_s),
            _ => (1.0, self.pace.settle_s),
        };
        // Windows of equal length fall into step with loads of equal periods.
        let window_s = self.pace.window_s * stretch * rand::Rng::random_range(&mut self.rng, 0.8..1.25);
        let settle_s = if candidate == self.in_force.0 { 0.0 } else { settle_s };
        if left_s < settle_s + window_s {
            return None;
        }
        self.turn = Some(Turn { candidate, settle_s, window_s });
        self.turn
    }

    /// Takes in the window that [`Self::next`] asked for, and the waits of the protected scopes in it, in their order;
    /// `None` where they could not be measured. Where services count, such a window is measured again.
    pub fn record(&mut self, mut summary: Summary, protected: Vec<Option<Histogram>>) -> Option<Recorded> {
        let turn = self.turn.take()?;
        if !self.objective.judge(&mut summary, &protected) {
            return None;
        }
        if self.in_force.0 != turn.candidate {
            self.in_force = (turn.candidate, turn.settle_s);
        }
        let age_s = self.in_force.1;
        self.in_force.1 += summary.seconds;
        let previous = summary.clone();
        let recorded = self.keep(turn.candidate, summary, protected);
        match &mut self.phase {
            Phase::Lead(turns) => {
                turns.pop();
                self.lead += usize::from(turn.candidate == 0);
            }
            Phase::Screen(turns, _) => drop(turns.pop()),
            Phase::Confirm(confirmation, _) => {
                confirmation.record(turn.candidate, previous, age_s, &mut self.rng);
            }
            Phase::Over => {}
        }
        Some(recorded)
    }

    /// Takes a candidate out, for instance because its settings could not be applied.
    pub fn withdraw(&mut self, candidate: usize, why: String) {
        if candidate == 0 || candidate >= self.entries.len() {
            return;
        }
        self.entries[candidate].out.get_or_insert(why);
        self.turn = self.turn.filter(|turn| turn.candidate != candidate);
        match &mut self.phase {
            Phase::Lead(turns) | Phase::Screen(turns, _) => turns.retain(|turn| *turn != candidate),
            Phase::Confirm(confirmation, _) => confirmation.withdraw(candidate),
            Phase::Over => {}
        }
    }

    /// Whether more time may change the outcome. A candidate that is being confirmed and does not look good makes room for the next.
    pub fn is_worth_more_time(&mut self) -> bool {
        match &mut self.phase {
            Phase::Confirm(confirmation, rest) if !(confirmation.ended() || confirmation.promising()) => {
                confirmation.give_up();
                self.turn = None;
                !rest.is_empty()
            }
            Phase::Confirm(..) | Phase::Lead(_) | Phase::Screen(..) => true,
            Phase::Over => false,
        }
    }

    /// The part that is under way.
    pub fn part(&self) -> Part {
        match &self.phase {
            Phase::Lead(_) => Part::Baseline,
            Phase::Screen(..) => Part::Screening,
            Phase::Confirm(confirmation, _) if confirmation.holds() => Part::Hold,
            Phase::Confirm(..) => Part::Confirmation,
            Phase::Over => Part::Over,
        }
    }

    /// Candidates still in the trial, the present state included.
    pub fn alive(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|&c| self.entries[c].out.is_none()).collect()
    }

    /// Nobody wants to know the outcome any more: what is open stays so.
    pub fn stop(&mut self) {
        self.course = Course::Stopped;
    }

    /// What is known now. A trial stopped early keeps the present state.
    pub fn decide(&self) -> Decision {
        let mut verdicts: Vec<Verdict> = (0..self.entries.len()).map(|c| self.verdict(c)).collect();
        // A present state that breaks a protection is given up for the host as found.
        let broken = self.guarded.default != 0 && self.broken(0).is_some();
        let winner = self.winner.unwrap_or(if broken { self.guarded.default } else { 0 });
        let words: Vec<String> =
            (0..verdicts.len()).map(|candidate| self.explain(candidate, winner, &verdicts)).collect();
        for (candidate, (verdict, why)) in verdicts.iter_mut().zip(words).enumerate() {
            verdict.kept = candidate == winner;
            verdict.why = why;
        }
        let confirmed = verdicts.iter().any(|verdict| verdict.pairs > 0);
        let proof = self.winner.and_then(|winner| self.entries[winner].confirmed.as_ref());
        let pairs = proof.map_or_else(Vec::new, |proof| proof.seen().to_vec());
        Decision { winner, verdicts, confirmed, pairs, objective: self.objective.clone() }
    }

    fn keep(&mut self, candidate: usize, summary: Summary, protected: Vec<Option<Histogram>>) -> Recorded {
        let entry = &mut self.entries[candidate];
        for (windows, waits) in entry.protected.iter_mut().zip(protected) {
            windows.extend(waits);
        }
        entry.windows.push(summary);
        entry.requests.push(None);
        Recorded { candidate, window: entry.windows.len() - 1 }
    }

    /// Goes on to the next part as soon as one is done.
    fn proceed(&mut self) {
        loop {
            self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Lead(turns) if turns.is_empty() => {
                    self.objective.learn(&self.entries[0].windows);
                    self.begin_screening()
                }
                Phase::Screen(turns, rounds) if turns.is_empty() => self.screened(rounds + 1),
                Phase::Confirm(confirmation, rest) if confirmation.ended() => {
                    self.confirmed(*confirmation, rest)
                }
                Phase::Confirm(mut confirmation, rest) => {
                    let doubts = self.breaches(confirmation.candidate(), confirmation.fresh_from());
                    if confirmation.review(&self.rules, doubts, !rest.is_empty()) {
                        self.phase = Phase::Confirm(confirmation, rest);
                        continue;
                    }
                    Phase::Confirm(confirmation, rest)
                }
                phase => phase,
            };
            let done = match &self.phase {
                Phase::Lead(turns) | Phase::Screen(turns, _) => turns.is_empty(),
                Phase::Confirm(confirmation, _) => confirmation.ended(),
                Phase::Over => false,
            };
            if !done {
                return;
            }
        }
    }

    /// Windows before anything was changed.
    fn before(&self) -> &[Summary] {
        let windows = &self.entries[0].windows;
        &windows[..self.lead.max(1).min(windows.len())]
    }

    /// A confirmation of the first of these, the others may follow.
    fn confirm(&mut self, mut survivors: Vec<(usize, f64)>) -> Phase {
        while !survivors.is_empty() {
            let (candidate, alpha) = survivors.remove(0);
            if self.entries[candidate].out.is_some() {
                continue;
            }
            let scale = self.scale().map(|sd| sd * std::f64::consts::SQRT_2);
            let default = self.guarded.default;
            let is_another = default != 0 && default != candidate;
            let third = (is_another && !self.guarded.targets.is_empty()).then_some(default);
            let seen = (self.before(), self.entries[candidate].windows.as_slice());
            let mut confirmation =
                Confirmation::new((candidate, alpha), &self.rules, seen, &self.objective, scale);
            confirmation.hold_for(self.pace.windows(MOST_HELD, MOST_HELD_S));
            confirmation.compare_too(third);
            confirmation.fresh(self.entries[candidate].windows.len());
            confirmation.deal(&mut self.rng);
            return Phase::Confirm(Box::new(confirmation), survivors);
        }
        Phase::Over
    }

    /// A confirmation ended: its candidate is kept, or the next one's turn comes.
    fn confirmed(&mut self, confirmation: Confirmation, rest: Vec<(usize, f64)>) -> Phase {
        let candidate = confirmation.candidate();
        let outcome = confirmation.outcome();
        self.entries[candidate].confirmed = Some(confirmation);
        match outcome {
            Some(Ok(())) => {
                self.winner = Some(candidate);
                Phase::Over
            }
            Some(Err(why)) => {
                self.entries[candidate].out.get_or_insert(why);
                self.confirm(rest)
            }
            None => self.confirm(rest),
        }
    }

    /// Standard deviation of the score between windows under the same settings; `None` until known.
    fn scale(&self) -> Option<f64> {
        let (mut squares, mut freedom) = (0.0, 0usize);
        for entry in &self.entries {
            let scores = self.objective.scores(&entry.windows);
            squares += stats::variance(&scores) * scores.len() as f64;
            freedom += scores.len().saturating_sub(1);
        }
        (freedom > 0).then(|| (squares / freedom as f64).sqrt())
    }

    fn confirmation(&self, candidate: usize) -> Option<&Confirmation> {
        match &self.phase {
            Phase::Confirm(confirmation, _) if confirmation.candidate() == candidate => Some(confirmation),
            _ => self.entries[candidate].confirmed.as_ref(),
        }
    }

    fn verdict(&self, candidate: usize) -> Verdict {
        let entry = &self.entries[candidate];
        let column = |f: &dyn Fn(&Summary) -> Option<f64>| {
            estimate(&entry.windows.iter().filter_map(f).collect::<Vec<_>>())
        };
        let confirmation = self.confirmation(candidate);
        let mut doubts = confirmation.map_or_else(Vec::new, Confirmation::doubts);
        if confirmation.is_none() {
            doubts.extend(self.breaches(candidate, 0));
        }
        Verdict {
            windows: entry.windows.len(),
            seconds: entry.windows.iter().map(|window| window.seconds).sum(),
            pairs: confirmation.map_or(0, Confirmation::pairs),
            evidence: confirmation.map_or(1.0, Confirmation::evidence),
            got_pct: column(&|w| Some(w.got_pct)),
            gain_pct: confirmation.and_then(Confirmation::gain),
            score_gain: confirmation.and_then(Confirmation::score_gain),
            wait_per_ran: column(&|w| w.wait_per_ran()),
            fulfilment: column(&|w| w.fulfilment),
            doubts,
            protected_ns: (0..self.guarded.targets.len())
                .map(|p| self.tail(p, candidate, 0).candidate_p99_ns())
                .collect(),
            requests: (0..self.guarded.targets.len())
                .map(|p| self.request_tail(p, candidate, 0).into_candidate())
                .collect(),
            kept: false,
            why: String::new(),
        }
    }
}

#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod services_tests;
#[cfg(test)]
mod tests;
