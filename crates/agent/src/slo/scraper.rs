//! The thread that asks one endpoint: what hangs there holds up no one else.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_fetch::http::{Request, get_with};

use super::RequestSlo;
use super::log::{Log, SLACK, Scrape};
use super::page::PageReader;

/// Time between two scrapes while a decision is made, or little is known yet ...
const SOON: Duration = Duration::from_secs(1);
/// ... and else.
const LATER: Duration = Duration::from_secs(5);
/// Scrapes before the pace is the slower one.
const FIRST: u64 = 3;
/// What an answer may take.
pub(super) const WITHIN: Duration = Duration::from_secs(1);
/// An answer that takes so long is none. Who resolves the endpoint's name keeps no time of ours: where no server of names answers, tens
/// of seconds.
pub(super) const STUCK: Duration = Duration::from_secs(3);
/// The largest answer, bytes.
pub(super) const MOST: u64 = 8 << 20;

#[derive(Debug, Default)]
struct State {
    log: Log,
    /// Requests so far, up to each bound (seconds, the last one infinite).
    counted: Vec<(f64, f64)>,
    /// Those of them that failed, where the endpoint says it.
    failed: Option<f64>,
    /// A scrape is wanted as soon as can be, since then.
    wanted: Option<Instant>,
    /// Since when it is being asked.
    asked: Option<Instant>,
    hurried: bool,
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

impl Shared {
    /// A thread that panicked leaves what it wrote.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the next scrape is due; false when there is to be none.
    fn wait(&self, last: Option<Instant>, count: u64) -> bool {
        let mut state = self.state();
        loop {
            if state.ended {
                return false;
            }
            let Some(last) = last else { return true };
            // What was just asked for has its answer.
            state.wanted = state.wanted.filter(|wanted| last + SLACK < *wanted);
            if state.wanted.take().is_some() {
                return true;
            }
            let pace = if state.hurried || count < FIRST { SOON } else { LATER };
            let left = (last + pace).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// One endpoint and the thread that asks it, which ends with this.
#[derive(Debug)]
pub(super) struct Scraper {
    shared: Arc<Shared>,
}

impl Scraper {
    /// Begins to ask. Where there can be no thread, that is the only answer there ever is.
    pub fn start(slo: &RequestSlo) -> Self {
        let shared = Arc::new(Shared::default());
        let (theirs, slo) = (shared.clone(), slo.clone());
        // Not joined: a name that the resolver does not answer for would hold everybody up.
        let thread = std::thread::Builder::new().name("slo".to_owned()).stack_size(256 << 10);
        if let Err(error) = thread.spawn(move || ask(&theirs, &slo)) {
            let now = Instant::now();
            let point = Err(format!("no thread can be started to ask it: {error}"));
            shared.state().log.add(Scrape { sent: now, got: now, point });
        }
        Self { shared }
    }

    /// Nobody is asked: scrapes are what a test says.
    #[cfg(test)]
    pub fn idle() -> Self {
        Self { shared: Arc::default() }
    }

    /// A scrape as a test says.
    #[cfg(test)]
    pub fn add(&self, scrape: Scrape) {
        self.shared.state().log.add(scrape);
    }

    /// As if it was asked then, and had not answered yet.
    #[cfg(test)]
    pub fn ask_at(&self, asked: Option<Instant>) {
        self.shared.state().asked = asked;
    }

    /// Whether it neither answers nor fails.
    pub fn is_stuck(&self) -> bool {
        self.shared.state().asked.is_some_and(|asked| asked.elapsed() > STUCK)
    }

    /// Asks now: a window begins or ends.
    pub fn poke(&self) {
        self.shared.state().wanted = Some(Instant::now());
        self.shared.wake.notify_all();
    }

    /// Asks more often, or does not any more.
    pub fn hurry(&self, hurried: bool) {
        self.shared.state().hurried = hurried;
        self.shared.wake.notify_all();
    }

    /// Requests counted so far, up to each bound (seconds, the last one infinite), and those that failed where the endpoint says it.
    pub fn counted(&self) -> (Vec<(f64, f64)>, Option<f64>) {
        let state = self.shared.state();
        (state.counted.clone(), state.failed)
    }

    pub fn with<T>(&self, read: impl FnOnce(&Log) -> T) -> T {
        read(&self.shared.state().log)
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.wake.notify_all();
    }
}

fn ask(shared: &Shared, slo: &RequestSlo) {
    let mut reader = PageReader::new(slo);
    let (mut last, mut count) = (None, 0);
    while shared.wait(last, count) {
        let sent = Instant::now();
        shared.state().asked = Some(sent);
        let page = get_with(&slo.endpoint, Request { within: WITHIN, most: MOST, token: None, trust: None });
        let got = Instant::now();
        let point = page.map_err(|error| words(&error)).and_then(|page| reader.take(&page));
        {
            let mut state = shared.state();
            state.asked = None;
            state.log.add(Scrape { sent, got, point });
            state.counted.clear();
            state.counted.extend(reader.counted());
            state.failed = reader.failed();
        }
        (last, count) = (Some(sent), count + 1);
    }
}

pub(super) fn words(error: &std::io::Error) -> String {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match error.kind() {
        TimedOut | WouldBlock => format!("it does not answer within {WITHIN:?}"),
        _ => error.to_string(),
    }
}
