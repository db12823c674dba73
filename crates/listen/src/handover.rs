//! Documents handed to an address by HTTP: what a try may cost, when there is another, and what is said of losses.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_fetch::http::{self, Answer, Request, Trust};

/// How often a pause looks whether the end has come.
pub const LOOK: Duration = Duration::from_millis(50);
/// How long the last documents may take at the end.
pub const LAST: Duration = Duration::from_secs(2);
/// Longest time for which a receiver may ask to be left alone.
const LONGEST: Duration = Duration::from_secs(300);

/// Who is handed documents.
#[derive(Clone)]
pub struct Receiver {
    url: String,
    /// Host and port: an address may hold a secret further on.
    name: String,
    token: Option<String>,
    /// Of https.
    trust: Option<Trust>,
    is_tls: bool,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Receiver {
    /// Takes an address, of which there is an example.
    pub fn parse(url: &str, example: &str) -> Result<Self, String> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(format!("an address such as {example} is expected"));
        }
        let http::Address { host: name, is_tls, .. } = http::parse_either(url)?;
        if name.contains('@') {
            return Err("a password does not belong into the address: name a file with a token \
                        (webhook_token_file, otlp_token_file)"
                .to_owned());
        }
        Ok(Self { url: url.to_owned(), name, token: None, trust: None, is_tls })
    }

    /// Adds a path, where the address has none.
    pub fn with_path(self, path: &str) -> Self {
        let bare = self.url.trim_end_matches('/');
        let has_one = bare.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
        let url = if has_one { self.url.clone() } else { format!("{bare}{path}") };
        Self { url, ..self }
    }

    /// Host and port.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is sent as `Authorization: Bearer`.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether its certificate is verified.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Believes certificates that these authorities signed.
    pub fn with_trust(self, trust: Trust) -> Self {
        Self { trust: Some(trust), ..self }
    }

    /// Sends this as `Authorization: Bearer`.
    pub fn with_token(self, token: Option<String>) -> Self {
        Self { token, ..self }
    }
}

/// Bounds on what a receiver may cost.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Time of one try.
    pub within: Duration,
    /// Pauses between tries: one more try than these.
    pub pauses: &'static [Duration],
    /// How much of an answer is read, next to its status, bytes.
    pub most: u64,
    /// Whether what was answered with this status, no success, is tried again.
    pub again: fn(u16) -> bool,
}

/// What became of documents.
#[derive(Debug, Default)]
pub struct Counts {
    pub delivered: AtomicU64,
    /// Given up.
    pub dropped: AtomicU64,
}

/// Why a document was not taken.
#[derive(Debug, PartialEq)]
pub struct Refusal {
    /// In words; nothing that the receiver said.
    pub why: String,
    /// Before that the receiver wants no more.
    pub not_before: Option<Instant>,
}

/// A receiver with its rules.
#[derive(Debug)]
pub struct Handover {
    pub receiver: Receiver,
    /// Content type of documents.
    pub kind: &'static str,
    pub rules: Rules,
    /// What ends a pause.
    pub ending: Arc<AtomicBool>,
}

impl Handover {
    /// Tries until it is taken, there is no hope, or the next try would come after an instant.
    pub fn hand_over(&self, body: &[u8], until: Option<Instant>) -> Result<Answer, Refusal> {
        let mut pauses = self.rules.pauses.iter();
        loop {
            let (why, again, after) = match self.attempt(body) {
                Ok(answer) if matches!(answer.status, 200..=299) => return Ok(answer),
                Ok(Answer { status, retry_after, .. }) => {
                    (format!("answered {status}"), (self.rules.again)(status), retry_after)
                }
                Err(error) => (error.to_string(), true, None),
            };
            let now = Instant::now();
            let not_before = after.map(|after| now + after.min(LONGEST));
            let refusal = Refusal { why, not_before };
            let Some(pause) = pauses.next().filter(|_| again) else { return Err(refusal) };
            let next = (now + spread(*pause)).max(not_before.unwrap_or(now));
            if until.is_some_and(|until| next >= until) {
                return Err(refusal);
            }
            loop {
                if self.ending.load(Ordering::Relaxed) {
                    return Err(refusal);
                }
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                std::thread::sleep(left.min(LOOK));
            }
        }
    }

    fn attempt(&self, body: &[u8]) -> std::io::Result<Answer> {
        let Rules { within, most, .. } = self.rules;
        let Receiver { url, token, trust, .. } = &self.receiver;
        let request = Request { within, most, token: token.as_deref(), trust: trust.as_ref() };
        http::post(url, self.kind, body, request)
    }
}

/// About this long: many that were refused at the same time do not come back at the same time.
fn spread(pause: Duration) -> Duration {
    let chance = evenkeel_linux::sys::wall_ns() % 1000;
    pause.mul_f64(0.75 + 0.5 * chance as f64 / 1000.0)
}

/// Says when losses begin and when they are over, and counts in between.
#[derive(Debug)]
pub struct Losses {
    /// Who hands over, and to whom.
    pub who: String,
    /// What is lost.
    pub what: &'static str,
    /// As of the last time that was looked at.
    known: u64,
    lost: u64,
    failing: bool,
}

impl Losses {
    /// Nothing was handed over yet.
    pub fn new(who: String, what: &'static str) -> Self {
        Self { who, what, known: 0, lost: 0, failing: false }
    }

    /// What there is to say with so many lost by now, the last for this reason.
    pub fn say(&mut self, dropped: u64, why: Option<&str>) -> Option<String> {
        let Self { who, what, .. } = self;
        let more = dropped - std::mem::replace(&mut self.known, dropped);
        if more > 0 {
            self.lost += more;
            let why = why.unwrap_or("it takes them too slowly");
            let said = format!("{who}: lost {what}: {more} ({why}); further ones are counted only");
            return (!std::mem::replace(&mut self.failing, true)).then_some(said);
        }
        let lost = std::mem::take(&mut self.lost);
        std::mem::take(&mut self.failing)
            .then(|| format!("{who}: takes {what} again; lost meanwhile: {lost}"))
    }
}
