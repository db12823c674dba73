//! How long the parts of a trial take.

/// Windows under the present state before anything is changed, and the time that they take at least, seconds: short windows
/// differ more.
const LEAD: usize = 8;
const LEAD_S: f64 = 5.0;
/// The same where services count: while such a window lasts they wait, and what helps them shows in fewer.
const SERVICES_LEAD: usize = 5;

/// Usual lengths of a trial's parts, seconds, and what comes first in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pub window_s: f64,
    /// Time given to settings to take hold before a window, when they changed.
    pub settle_s: f64,
    /// Windows under the present state before anything is changed.
    pub lead: usize,
    /// The protected scopes are services and the candidates change background work: what counts first is how long the services
    /// wait.
    pub services: bool,
}

impl Pace {
    /// Windows of this length, after this time to settle.
    pub const fn new(window_s: f64, settle_s: f64) -> Self {
        let least_s = (LEAD_S / window_s).ceil() as usize;
        let lead = if least_s > LEAD { least_s } else { LEAD };
        Self { window_s, settle_s, lead, services: false }
    }

    /// The same where services count.
    #[must_use]
    pub const fn for_services(self) -> Self {
        Self { lead: SERVICES_LEAD, services: true, ..self }
    }

    /// So many windows, or as many as so many seconds hold.
    pub(super) fn windows(self, least: usize, seconds: f64) -> usize {
        least.max((seconds / self.window_s).ceil() as usize)
    }
}
