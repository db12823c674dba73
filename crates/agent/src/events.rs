//! What the loop tells whoever drives it.

use evenkeel_actuate::Recovery;
use evenkeel_base::run::{RunRecord, Stage};
use evenkeel_base::{Observation, Plan};
use evenkeel_policy::trial::{Decision, Part};
use evenkeel_policy::window::Summary;

use crate::config::Config;

#[derive(Debug)]
pub enum Event<'a> {
    /// A remark for people, such as history that cannot be written.
    Note(&'a str),
    /// A predecessor had left changes behind; they were restored.
    Recovered(&'a Recovery),
    /// The host was observed with some settings in force.
    Observed {
        observation: &'a Observation,
        settings: &'a str,
        config: &'a Config,
        /// Seconds since the run began.
        at_s: f64,
    },
    /// A trial begins; candidate 0 is the present state.
    TrialBegins {
        candidates: &'a [Plan],
        /// Seconds it takes where one of them helps, about.
        usual_s: f64,
        /// Seconds it takes at most.
        most_s: f64,
    },
    Window {
        part: Part,
        settings: &'a str,
        summary: &'a Summary,
        /// Fulfilment: exact for known loads, else the estimate.
        fulfilment: Option<f64>,
    },
    Decided {
        decision: &'a Decision,
        /// Candidates, in its order.
        candidates: &'a [Plan],
    },
    Stage(&'a Stage),
    /// Somebody else set what is set here, too: another manager, an administrator.
    Interference {
        target: &'a str,
        /// What it is now, with the property's name, such as `weight 300`.
        what: &'a str,
    },
    /// How promises and the limit against stolen CPU stand; follows each observation.
    StatusChanged(&'a RunRecord),
}

/// Whoever drives the loop.
pub trait Watcher {
    fn event(&mut self, _event: &Event<'_>) {}

    /// Whether the loop should end; asked several times a second.
    fn stopping(&self) -> bool {
        false
    }
}

/// A watcher that looks away.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Watcher for Quiet {}
