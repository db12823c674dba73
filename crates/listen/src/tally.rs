//! What threads that count waits or requests tell the pages.

use std::sync::{Arc, PoisonError};

use evenkeel_agent::scraped::ServiceRequests;
use evenkeel_base::{Histogram, Observation};

use crate::board::{Shared, with};

#[derive(Debug, Clone)]
pub struct Tally {
    pub(super) board: Shared,
}

impl Tally {
    /// What was observed last.
    pub fn observation(&self) -> Option<Arc<Observation>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).observation.clone()
    }

    /// Says something once, here and on the pages.
    pub fn tell(&self, note: &str) {
        evenkeel_console::say!("evenkeel: {note}");
        with(&self.board, |board| board.note(note));
    }

    /// From now on it is known who runs while others wait.
    pub fn blames(&self) {
        with(&self.board, |board| Arc::make_mut(&mut board.owners).blames = true);
    }

    /// Share of the time, up to 1, that was watched lately; `None` when it is no longer.
    pub fn observed(&self, share: Option<f64>) {
        with(&self.board, |board| board.counted.observed = share);
    }

    /// Counting took so many more seconds of CPU in the kernel.
    pub fn spent(&self, seconds: f64) {
        with(&self.board, |board| *board.counted.spent_s.get_or_insert(0.0) += seconds);
    }

    /// Requests that services counted so far.
    pub fn scraped(&self, requests: Vec<ServiceRequests>) {
        with(&self.board, |board| board.scraped = Arc::new(requests));
    }

    /// Waits that ended, by their owner, and their sum in seconds; and who ran meanwhile, by victim and culprit.
    pub fn add_waits(&self, waits: &[(String, Histogram, f64)], blame: &[(String, String, f64)]) {
        with(&self.board, |board| {
            let at_ms = board.observation.as_ref().map_or(0, |seen| seen.wall_ns / 1_000_000);
            let owners = Arc::make_mut(&mut board.owners);
            waits.iter().for_each(|(owner, waits, seconds)| owners.add_waits(at_ms, owner, waits, *seconds));
            blame.iter().for_each(|(victim, culprit, seconds)| owners.add_blame(victim, culprit, *seconds));
        });
    }
}
