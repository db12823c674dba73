//! `evenkeel serve`: watches the host and shows it, as long as it runs; changes nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_actuate::{FileMedium, Lock, OpenError, check_private, lock_file, make_private};
use evenkeel_linux::Root;
use evenkeel_listen::access::AccessArgs;
use evenkeel_listen::notify::Notifier;
use evenkeel_listen::reports::ReportsArgs;
use evenkeel_listen::webhook::Webhook;
use evenkeel_listen::{Served, Server, Tally, privileges};
use evenkeel_observe::{Detail, Observer, ObserverOptions};
use evenkeel_store::{Limits, Recorder};

use super::flight::RecordArgs;
use super::ps::MIN_INTERVAL;
use super::settings::{
    BlameArgs, Blaming, OtlpArgs, ScrapeArgs, WebhookArgs, blaming, open, otlp, scrapes, webhook,
};
use super::{Failure, Global, Outcome, stop};

/// Watch this host and show it: a dashboard, /metrics for Prometheus, /healthz, and the history for later.
///
/// Changes nothing and needs no journal. Of root's capabilities it keeps those to load BPF programs and to read; without
/// root it shows what any user may read. It ends on SIGTERM and Ctrl-C with status 0. An address that other hosts can reach
/// needs a token and a certificate (docs/serve.md).
///
/// Example: evenkeel serve --listen 127.0.0.1:9190
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the pages are served; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9190")]
    listen: SocketAddr,
    #[command(flatten)]
    pages: PagesArgs,
    /// Time between two samples.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = super::duration)]
    interval: Duration,
    /// Keep no history.
    #[arg(long)]
    no_history: bool,
}

/// Options of `serve` and `run` alike: pages and who may ask for them, notices, metrics. In `run` all but the webhook go with `--listen`.
#[derive(Debug, clap::Args)]
pub(super) struct PagesArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub webhook: WebhookArgs,
    #[command(flatten)]
    pub otlp: OtlpArgs,
    #[command(flatten)]
    pub blame: BlameArgs,
    #[command(flatten)]
    pub scrape: ScrapeArgs,
    #[command(flatten)]
    pub record: RecordArgs,
    #[command(flatten)]
    pub reports: ReportsArgs,
}

impl PagesArgs {
    /// What the pages read and ask. `fresh` is how old the last look at the host may be.
    pub fn served(&self, global: &Global, fresh: Duration) -> Served {
        Served {
            state_dir: global.state_dir.clone(),
            reports: self.reports.directory(&global.state_dir),
            sampling: global.sampling.unwrap_or_default(),
            check: super::check::document,
            why: super::why::ask,
            fresh,
        }
    }
}

/// Longest interval: the host counts as watched while the last look is not much older.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// How soon a signal is seen.
const PATIENCE: Duration = Duration::from_millis(200);
/// Of the `serve` that writes the history; next to its file.
const LOCK: &str = "history.db.lock";

pub fn run(global: &Global, args: Args) -> Outcome {
    if args.interval < MIN_INTERVAL || args.interval > MAX_INTERVAL {
        let why = format!("--interval {:?}: from {MIN_INTERVAL:?} to {MAX_INTERVAL:?}", args.interval);
        return Err(usage!(why));
    }
    global.no_tree("serve watches this host as it runs; `evenkeel ps --root` shows a tree")?;
    let pages = &args.pages;
    pages.record.check()?;
    stop::on_signals()?;
    // The address first: a port below 1024 takes a capability that is not kept.
    let entrance = open(global, args.listen, &pages.access)?;
    let receiver = webhook(global, &pages.webhook)?;
    let target = otlp(global, &pages.otlp)?;
    let blaming = blaming(global, &pages.blame)?;
    let scrapes = scrapes(global, &pages.scrape)?;
    let hidden = privileges::join_who_sees_processes();
    let kept = privileges::drop_all_but_reading().map_err(Failure::Cannot)?;
    // One that cannot be made is told of where it is needed.
    if !args.no_history || pages.record.record.is_some() {
        let _ = make_private(&global.state_dir);
    }
    let writes = privileges::write_only_to(&global.state_dir).map_err(Failure::Cannot)?;
    let sampling = global.sampling.unwrap_or_default();
    // Read once for all who load programs.
    let types =
        (blaming != Blaming::Off || pages.record.record.is_some()).then(evenkeel_bpf::load::kernel_types);
    let options = ObserverOptions { sampling, ..ObserverOptions::default() };
    let mut observer =
        Observer::new(&Root::host(), options).map_err(|error| Failure::Cannot(error.into()))?;
    let served = pages.served(global, Duration::from_secs(10) + 3 * args.interval);
    let webhook = receiver.map(Webhook::start).transpose()?.map(Arc::new);
    let server = Server::start(entrance, served, webhook.clone())?;
    server.push(target)?;
    let tally = server.tally();
    tally.tell(&format!("capabilities kept: {kept}"));
    tally.tell(writes);
    hidden.iter().for_each(|hidden| tally.tell(hidden));
    super::blame::start(tally.clone(), blaming)?;
    super::scrape::start(tally, scrapes)?;
    let _recorder = pages.record.start(&observer, &server, &global.state_dir)?;
    drop(types);
    let mut history = History::open(global, args.no_history, &server.tally());
    let notifier = Notifier::from_env();
    server.ready();
    notifier.ready("watching");
    let ended = watch(&mut observer, &server, &mut history, (args.interval, &notifier));
    notifier.stopping("ending");
    history.recorder.flush();
    server.finish();
    webhook.iter().for_each(|webhook| webhook.finish());
    ended?;
    if stop::panicked() {
        return Err(cannot!("ended by an internal error"));
    }
    Ok(0)
}

fn watch(
    observer: &mut Observer,
    server: &Server,
    history: &mut History<'_>,
    (interval, notifier): (Duration, &Notifier),
) -> Result<(), Failure> {
    let cannot = |error: evenkeel_observe::ObserveError| Failure::Cannot(error.into());
    let mut before = observer.sample().map_err(cannot)?;
    let mut next = Instant::now() + interval;
    while !stop::requested() {
        notifier.alive();
        let now = Instant::now();
        if now < next {
            std::thread::sleep((next - now).min(PATIENCE));
            continue;
        }
        // A host that slept, or was too busy, is not made up for.
        next = (next + interval).max(now);
        let after = observer.sample().map_err(cannot)?;
        let observation = observer.observe(&before, &after, &Detail::None).map_err(cannot)?;
        let observation = server.observe(observation);
        history.add(&after, &observation, server);
        if let Some(note) = observer.take_note() {
            server.tally().tell(&note);
        }
        before = after;
    }
    Ok(())
}

/// The history, while no one else writes it.
struct History<'a> {
    recorder: Recorder,
    global: &'a Global,
    /// Held from the first sample that no other `serve` records.
    lock: Option<Lock>,
    /// Who writes it instead, in words.
    other: Option<String>,
}

impl<'a> History<'a> {
    fn open(global: &'a Global, off: bool, tally: &Tally) -> Self {
        let path = global.state_dir.join(evenkeel_store::FILE_NAME);
        let recorder = match check_private(&global.state_dir) {
            _ if off => Recorder::off(),
            // Somebody else may have put a link or a file there.
            Err(error @ OpenError::NotOurs { .. }) => {
                tally.tell(&format!("no history is kept: {error}"));
                Recorder::off()
            }
            // What else is wrong is told by who writes it.
            _ => Recorder::open(&path, Limits::default()),
        };
        Self { recorder, global, lock: None, other: None }
    }

    fn add(
        &mut self,
        sample: &evenkeel_base::Sample,
        observation: &evenkeel_base::Observation,
        server: &Server,
    ) {
        if !self.recorder.is_off() {
            let other = self.other();
            if other != self.other {
                self.recorder.flush();
                server.tally().tell(other.as_deref().unwrap_or("the history is written here again"));
                self.other = other;
            }
            if self.other.is_none() {
                self.recorder.add_sample(sample, Some(observation));
            }
        }
        self.recorder.take_notes().iter().for_each(|note| server.tally().tell(note));
    }

    /// Who writes the history instead: whoever acts, else the `serve` that came first.
    fn other(&mut self) -> Option<String> {
        let dir = &self.global.state_dir;
        if FileMedium::holder(dir).ok().flatten().is_some() {
            return Some("a `run` is at work and writes the history".to_owned());
        }
        if self.lock.is_none() {
            match lock_file(dir, LOCK) {
                Ok(lock) => self.lock = Some(lock),
                Err(OpenError::Busy(holder)) => {
                    let pid = holder.map_or_else(String::new, |holder| format!(" (pid {})", holder.pid));
                    return Some(format!("another `serve`{pid} writes the history"));
                }
                // What is wrong is told by who writes it.
                Err(_) => {}
            }
        }
        None
    }
}
