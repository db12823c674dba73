//! Notices by HTTP: a document `evenkeel.notice/v1` for each notice and each all-clear, handed to one address.
//!
//! A thread of its own does it. Whoever tells a notice puts it in a queue that is bounded and does not wait; a receiver that
//! hangs, refuses, fails, answers without end or is gone costs the notice, after a few tries. What is lost is counted, and said
//! once for each such time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Queue, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_agent::{Event, Watcher};
use evenkeel_base::cut;
use evenkeel_base::run::GuaranteeStatus;
use evenkeel_report::time;
use serde_json::json;

use super::handover::{Counts, Handover, LAST, LOOK, Losses, Receiver, Rules};
use super::notices::{Notice, Notices};
use evenkeel_console::{Failure, say};

/// Characters of a name or a text in a document.
const TEXT: usize = 1000;
/// A receiver that starts again within a minute and a half misses nothing.
const RULES: Rules = Rules {
    within: Duration::from_secs(5),
    pauses: &[
        Duration::from_secs(1),
        Duration::from_secs(4),
        Duration::from_secs(16),
        Duration::from_secs(64),
    ],
    most: 0,
    // What is asked too often, or fails now, may be taken later; what is refused stays refused.
    again: |status| matches!(status, 408 | 429 | 500..),
};
/// Notices that wait.
const QUEUE: usize = 256;

/// A receiver and the thread that tells it.
#[derive(Debug)]
pub struct Webhook {
    send: SyncSender<String>,
    told: AtomicU64,
    counts: Arc<Counts>,
    ending: Arc<AtomicBool>,
    name: String,
}

impl Webhook {
    /// Tells this receiver from now on.
    pub fn start(receiver: Receiver) -> Result<Self, Failure> {
        Self::with(receiver, (RULES, QUEUE), |text| say!("evenkeel: {text}"))
    }

    fn with(
        receiver: Receiver,
        (rules, queue): (Rules, usize),
        say: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, Failure> {
        let (send, queue) = sync_channel(queue);
        let name = receiver.name().to_owned();
        let (counts, ending) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let handover = Handover { receiver, kind: "application/json", rules, ending: ending.clone() };
        let counted = counts.clone();
        std::thread::Builder::new()
            .name("webhook".to_owned())
            .spawn(move || run(&handover, &counted, &queue, say))
            .context("cannot start the webhook's thread")
            .map_err(Failure::Cannot)?;
        Ok(Self { send, told: AtomicU64::new(0), counts, ending, name })
    }

    /// What became of notices so far.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Tells a notice, soon; does not wait.
    pub fn tell(&self, notice: &Notice) {
        self.told.fetch_add(1, Ordering::Relaxed);
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
        let left =
            || count(&self.told).saturating_sub(count(&self.counts.delivered) + count(&self.counts.dropped));
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

fn run(handover: &Handover, counts: &Counts, queue: &Queue<String>, say: impl Fn(&str)) {
    let mut losses = Losses::new(format!("webhook {}", handover.receiver.name()), "notices");
    while let Ok(body) = queue.recv() {
        let refused = handover.hand_over(body.as_bytes(), None).err();
        let count = if refused.is_some() { &counts.dropped } else { &counts.delivered };
        count.fetch_add(1, Ordering::Relaxed);
        let dropped = counts.dropped.load(Ordering::Relaxed);
        losses
            .say(dropped, refused.as_ref().map(|refused| refused.why.as_str()))
            .iter()
            .for_each(|text| say(text));
    }
}

#[cfg(test)]
#[path = "webhook/tests.rs"]
mod tests;
