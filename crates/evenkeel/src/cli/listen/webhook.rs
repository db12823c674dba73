//! Notices by HTTP: a document `evenkeel.notice/v1` for each notice and each all-clear, handed to one address.
//!
//! A thread of its own does it. Whoever tells a notice puts it in a queue that is bounded and does not wait; a receiver that
//! hangs, refuses, fails, answers without end or is gone costs the notice, after a few tries. What is lost is counted, and said
//! once for each such time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Queue, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_agent::{Event, Watcher};
use evenkeel_base::cut;
use evenkeel_base::run::GuaranteeStatus;
use evenkeel_report::time;
use evenkeel_tune::http::{self, Request, Trust};
use serde_json::json;

use super::notices::{Notice, Notices};
use crate::cli::Failure;

/// Characters of a name or a text in a document.
const TEXT: usize = 1000;
/// How often a pause looks whether the end has come.
const LOOK: Duration = Duration::from_millis(50);
/// How long the last notices may take at the end.
const LAST: Duration = Duration::from_secs(2);

/// Where notices go.
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
    /// Takes an address.
    ///
    /// # Errors
    /// In words: it is none that can be asked.
    pub fn parse(url: &str) -> Result<Self, String> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err("an address such as https://alerts.example/notices is expected".to_owned());
        }
        let (name, _, is_tls) = http::parse_either(url)?;
        if name.contains('@') {
            return Err(
                "a password does not belong into the address: webhook_token_file names a file with a token"
                    .into(),
            );
        }
        Ok(Self { url: url.to_owned(), name, token: None, trust: None, is_tls })
    }

    /// Host and port.
    #[cfg(test)]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is sent as `Authorization: Bearer`.
    #[cfg(test)]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
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
struct Rules {
    /// Time of one try.
    within: Duration,
    /// Pauses between tries: one more try than these.
    pauses: &'static [Duration],
    /// Notices that wait.
    queue: usize,
}

/// A receiver that starts again within a minute and a half misses nothing.
const RULES: Rules = Rules {
    within: Duration::from_secs(5),
    pauses: &[
        Duration::from_secs(1),
        Duration::from_secs(4),
        Duration::from_secs(16),
        Duration::from_secs(64),
    ],
    queue: 256,
};

/// What became of notices.
#[derive(Debug, Default)]
pub struct Counts {
    told: AtomicU64,
    /// Taken by the receiver.
    pub delivered: AtomicU64,
    /// Given up.
    pub dropped: AtomicU64,
}

/// A receiver and the thread that tells it.
#[derive(Debug)]
pub struct Webhook {
    send: SyncSender<String>,
    counts: Arc<Counts>,
    ending: Arc<AtomicBool>,
    name: String,
}

impl Webhook {
    /// Tells this receiver from now on.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(receiver: Receiver) -> Result<Self, Failure> {
        Self::with(receiver, RULES, |text| say!("evenkeel: {text}"))
    }

    fn with(receiver: Receiver, rules: Rules, say: impl Fn(&str) + Send + 'static) -> Result<Self, Failure> {
        let (send, queue) = sync_channel(rules.queue);
        let name = receiver.name.clone();
        let (counts, ending) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let work = Work { receiver, rules, counts: counts.clone(), ending: ending.clone() };
        std::thread::Builder::new()
            .name("webhook".to_owned())
            .spawn(move || work.run(&queue, say))
            .context("cannot start the webhook's thread")
            .map_err(Failure::Cannot)?;
        Ok(Self { send, counts, ending, name })
    }

    /// What became of notices so far.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Tells a notice, soon; does not wait.
    pub fn tell(&self, notice: &Notice) {
        self.counts.told.fetch_add(1, Ordering::Relaxed);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.send.try_send(document(notice))
        {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives what waits a last try, for two seconds at most; at the end.
    pub fn finish(&self) {
        self.ending.store(true, Ordering::Relaxed);
        let until = Instant::now() + LAST;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let left = || {
            count(&self.counts.told)
                .saturating_sub(count(&self.counts.delivered) + count(&self.counts.dropped))
        };
        while left() > 0 && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        if left() > 0 {
            say!("evenkeel: webhook {}: lost notices at the end: {}", self.name, left());
        }
    }

    /// A watcher of a loop that serves no pages: what only the loop knows is told.
    pub fn beside<'a>(&'a self, inner: &'a mut dyn Watcher) -> Beside<'a> {
        Beside { inner, webhook: self, notices: Notices::default(), promises: Vec::new() }
    }
}

/// See [`Webhook::beside`].
pub struct Beside<'a> {
    inner: &'a mut dyn Watcher,
    webhook: &'a Webhook,
    notices: Notices,
    promises: Vec<GuaranteeStatus>,
}

impl Watcher for Beside<'_> {
    fn event(&mut self, event: &Event<'_>) {
        self.inner.event(event);
        self.notices.learn(event);
        match event {
            Event::StatusChanged(record) => self.promises.clone_from(&record.guarantees),
            Event::Observed { observation, .. } => {
                for notice in self.notices.judge(observation, None, &self.promises) {
                    notice.say();
                    self.webhook.tell(&notice);
                }
            }
            _ => {}
        }
    }

    fn stopping(&self) -> bool {
        self.inner.stopping()
    }
}

/// The document of a notice.
fn document(notice: &Notice) -> String {
    let document = json!({
        "schema": "evenkeel.notice/v1",
        "host": rustix::system::uname().nodename().to_string_lossy(),
        "kind": notice.kind,
        "what": cut(&notice.what, TEXT),
        "text": cut(&notice.to_string(), TEXT),
        "state": if notice.over { "over" } else { "begun" },
        "since": time::rfc3339(notice.since_ns),
        "at": time::rfc3339(notice.at_ns),
    });
    format!("{document}\n")
}

/// Why a try failed.
struct Refusal {
    why: String,
    /// Another may not.
    again: bool,
}

/// What the thread does.
struct Work {
    receiver: Receiver,
    rules: Rules,
    counts: Arc<Counts>,
    ending: Arc<AtomicBool>,
}

impl Work {
    fn run(&self, queue: &Queue<String>, say: impl Fn(&str)) {
        let name = &self.receiver.name;
        // As of the last time that was said, and whether it is still so.
        let (mut known, mut lost, mut failing) = (0, 0, false);
        while let Ok(body) = queue.recv() {
            let refused = self.hand_over(&body).err();
            let count = if refused.is_some() { &self.counts.dropped } else { &self.counts.delivered };
            count.fetch_add(1, Ordering::Relaxed);
            let dropped = self.counts.dropped.load(Ordering::Relaxed);
            let more = dropped - known;
            known = dropped;
            if more > 0 {
                lost += more;
                if !failing {
                    let why = refused.unwrap_or_else(|| "it takes them too slowly".to_owned());
                    say(&format!(
                        "webhook {name}: lost notices: {more} ({why}); further ones are counted only"
                    ));
                }
                failing = true;
            } else if failing {
                say(&format!("webhook {name}: takes notices again; lost meanwhile: {lost}"));
                (lost, failing) = (0, false);
            }
        }
    }

    /// Tries until it is taken, or there is no hope.
    fn hand_over(&self, body: &str) -> Result<(), String> {
        let mut pauses = self.rules.pauses.iter();
        loop {
            let refusal = match self.attempt(body) {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            };
            let Some(pause) = pauses.next().filter(|_| refusal.again) else { return Err(refusal.why) };
            let until = Instant::now() + *pause;
            while Instant::now() < until {
                if self.ending.load(Ordering::Relaxed) {
                    return Err(refusal.why);
                }
                std::thread::sleep(LOOK.min(*pause));
            }
        }
    }

    fn attempt(&self, body: &str) -> Result<(), Refusal> {
        let Receiver { token, trust, .. } = &self.receiver;
        let request =
            Request { within: self.rules.within, most: 0, token: token.as_deref(), trust: trust.as_ref() };
        match http::post(&self.receiver.url, "application/json", body, request) {
            Ok(200..=299) => Ok(()),
            // What is asked too often, or fails now, may be taken later; what is refused stays refused.
            Ok(status) => {
                Err(Refusal { why: format!("answered {status}"), again: matches!(status, 408 | 429 | 500..) })
            }
            Err(error) => Err(Refusal { why: error.to_string(), again: true }),
        }
    }
}

#[cfg(test)]
#[path = "webhook/tests.rs"]
mod tests;
