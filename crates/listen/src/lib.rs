//! The pages of `serve` and of `run --listen`: the dashboard, `/metrics` for Prometheus, and the same as JSON.
//!
//! * `server` takes requests, [`access`] and [`tls`] say whose; `router`, below, lists the pages.
//! * `board` is what was seen last; `owners`, `promises` and `lengths` are what was counted since; `documents` makes JSON of it.
//! * `asked`, `past` and `events` are pages that take a while or do not end; [`reports`] shows the laboratory's.
//! * `metrics` makes families of samples, `expose` writes them in Prometheus' formats, [`otlp`] pushes them.
//! * `notices` finds what is worth a notice, [`webhook`] hands it over ([`handover`]). [`notify`] tells systemd how the service is.
//! * [`fleet`] reads the pages of many agents.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod access;
mod answer;
mod asked;
mod board;
mod distribution;
mod documents;
mod events;
mod expose;
pub mod fleet;
mod follow;
#[doc(hidden)]
pub mod fuzzing;
pub mod handover;
mod lengths;
mod metrics;
mod notices;
pub mod notify;
pub mod otlp;
mod owners;
mod past;
pub mod privileges;
mod promises;
pub mod reports;
mod server;
mod tally;
pub mod tls;
pub mod webhook;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::extract::{self, Request};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenkeel_agent::{Event, Watcher};
use evenkeel_base::Observation;
use evenkeel_console::{Failure, say};
use evenkeel_linux::fault;
use evenkeel_observe::Sampling;
use evenkeel_observe::flight::Story;
use serde_json::Value;
use tokio::sync::watch;

use access::Entrance;
use answer::{json, number, page, slow};
use board::{Board, Shared, with};
use notices::Notice;
use otlp::{Otlp, Target};
pub use tally::Tally;
use webhook::Webhook;

/// What pages need to know of the command that serves them.
#[derive(Debug, Clone)]
pub struct Served {
    /// Where the history is.
    pub state_dir: PathBuf,
    /// Where reports of the laboratory are.
    pub reports: PathBuf,
    /// How `check` is to look.
    pub sampling: Sampling,
    /// What `check` finds, looked for so long.
    pub check: fn(&Path, Sampling, Duration) -> anyhow::Result<Value>,
    /// Where the time of a target goes, watched so long: `evenkeel.why/v1`.
    pub why: fn(&str, Duration) -> anyhow::Result<Value>,
    /// The host counts as watched while the last look is not older than this.
    pub fresh: Duration,
}

/// Who was there at the last look, and what became of promises until then.
pub type Seen = (Arc<Observation>, Story);

/// Who wants to know of each notice, by its kind. Must not wait.
type OnNotice = Box<dyn Fn(&str) + Send + Sync>;

/// A server of one command. It ends with the process: nothing is lost when a scrape is cut short.
pub struct Server {
    board: Shared,
    webhook: Option<Arc<Webhook>>,
    on_notice: OnceLock<OnNotice>,
    /// Of each look.
    news: watch::Sender<()>,
    address: SocketAddr,
    otlp: OnceLock<Otlp>,
    ready: Arc<OnceLock<Instant>>,
}

/// What every page is made from.
#[derive(Debug, Clone)]
struct Site {
    board: Shared,
    served: Arc<Served>,
    /// Since when the work is done that pages tell of.
    ready: Arc<OnceLock<Instant>>,
    findings: Arc<past::Findings>,
    streams: events::Streams,
    asked: asked::Asked,
}

/// The dashboard: nothing of it comes from elsewhere.
const ASSETS: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", include_str!("dashboard/index.html")),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("dashboard/dashboard.css")),
    ("/pages.js", "text/javascript; charset=utf-8", include_str!("dashboard/pages.js")),
    ("/process.js", "text/javascript; charset=utf-8", include_str!("dashboard/process.js")),
    ("/loop.js", "text/javascript; charset=utf-8", include_str!("dashboard/loop.js")),
    ("/dashboard.js", "text/javascript; charset=utf-8", include_str!("dashboard/dashboard.js")),
];

impl Server {
    /// Serves what comes by this listener from now on, and hands notices to the webhook.
    pub fn start(entrance: Entrance, served: Served, webhook: Option<Arc<Webhook>>) -> Result<Self, Failure> {
        // With port 0 the kernel chose one.
        let address: SocketAddr =
            entrance.listener.local_addr().context("cannot listen").map_err(Failure::Cannot)?;
        let scheme = if entrance.tls.is_some() { "https" } else { "http" };
        say!("evenkeel: listening on {scheme}://{address}");
        if entrance.token.is_set() {
            say!("evenkeel: every page but /healthz asks for the token");
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Who reads the history or checks the host.
            .max_blocking_threads(2)
            .build()
            .context("cannot start the server")
            .map_err(Failure::Cannot)?;
        let (news, of_streams) = watch::channel(());
        let site = Site::new(served, of_streams);
        let (board, ready) = (site.board.clone(), site.ready.clone());
        let router = site.router();
        std::thread::Builder::new()
            .name("listen".to_owned())
            .spawn(move || {
                if let Err(error) = runtime.block_on(server::serve(entrance, router)) {
                    tracing::warn!("{address} is no longer served: {error}");
                }
            })
            .context("cannot start the server")
            .map_err(Failure::Cannot)?;
        let (on_notice, otlp) = (OnceLock::new(), OnceLock::new());
        let server = Self { board, webhook, on_notice, news, address, otlp, ready };
        server.with(|board| board.webhook = server.webhook.as_ref().map(|webhook| webhook.counts()));
        Ok(server)
    }

    /// Pushes the metrics from now on, where there is somebody to push them to.
    pub fn push(&self, target: Option<Target>) -> Result<(), Failure> {
        let Some(target) = target else { return Ok(()) };
        let board = self.board.clone();
        let draw = move || {
            let board = Arc::clone(&board.lock().unwrap_or_else(PoisonError::into_inner));
            board.observation.is_some().then(|| metrics::page(&board))
        };
        let otlp = Otlp::start(target, self.address.to_string(), draw)?;
        self.with(|board| board.pushed = Some(otlp.pushed()));
        let _ = self.otlp.set(otlp);
        Ok(())
    }

    /// What a predecessor left is dealt with, and the work begins: until then the host counts as not watched.
    pub fn ready(&self) {
        let _ = self.ready.set(Instant::now());
    }

    /// Hands over what is left, for some seconds at most; at the end.
    pub fn finish(&self) {
        self.otlp.get().iter().for_each(|otlp| otlp.finish());
    }

    /// A watcher that tells the server, too.
    pub fn beside<'a>(&'a self, inner: &'a mut dyn Watcher) -> Beside<'a> {
        Beside { inner, server: self }
    }

    /// Takes what was observed where there is no loop, and tells what there is to tell of it.
    pub fn observe(&self, observation: Observation) -> Arc<Observation> {
        let observation = Arc::new(observation);
        let mut notices = Vec::new();
        self.with(|board| notices = board.observe(observation.clone()));
        self.news.send_replace(());
        self.tell(&notices);
        observation
    }

    fn tell(&self, notices: &[Notice]) {
        for notice in notices {
            notice.say();
            self.webhook.iter().for_each(|webhook| webhook.tell(notice));
            if let Some(told) = self.on_notice.get().filter(|_| !notice.over) {
                told(notice.kind);
            }
        }
    }

    /// Calls this for each notice that begins, with its kind. The first one to ask is told, no other.
    pub fn on_notice(&self, told: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.on_notice.set(Box::new(told));
    }

    /// Asks what was observed last, and what became of promises until then.
    pub fn observation(&self) -> impl Fn() -> Option<Seen> + Send + use<> {
        let board = self.board.clone();
        move || {
            let board = Arc::clone(&board.lock().unwrap_or_else(PoisonError::into_inner));
            let observation = board.observation.clone()?;
            Some((observation, board.promises.story(board.marks.iter().cloned())))
        }
    }

    /// Something to be told.
    pub fn note(&self, note: &str) {
        self.with(|board| board.note(note));
    }

    /// For who counts waits.
    pub fn tally(&self) -> Tally {
        Tally { board: self.board.clone() }
    }

    fn with(&self, change: impl FnOnce(&mut Board)) {
        with(&self.board, change);
    }
}

/// See [`Server::beside`].
pub struct Beside<'a> {
    inner: &'a mut dyn Watcher,
    server: &'a Server,
}

impl Watcher for Beside<'_> {
    fn event(&mut self, event: &Event<'_>) {
        let mut notices = Vec::new();
        self.server.with(|board| notices = board.take(event));
        if matches!(event, Event::Observed { .. }) {
            self.server.news.send_replace(());
        }
        self.inner.event(event);
        self.server.tell(&notices);
    }

    fn stopping(&self) -> bool {
        self.inner.stopping()
    }
}

impl Site {
    fn new(served: Served, news: watch::Receiver<()>) -> Self {
        Self {
            board: Shared::default(),
            ready: Arc::default(),
            findings: Arc::default(),
            streams: events::Streams::new(news),
            asked: asked::Asked::new(served.why),
            served: Arc::new(served),
        }
    }

    fn router(&self) -> Router {
        let mut router = Router::new();
        for (path, kind, text) in ASSETS {
            router = router.route(path, get(move || async move { page(kind, text) }));
        }
        type Draw = fn(&Board, &str) -> Value;
        let pages: [(&str, Draw); 6] = [
            ("/status", |board, _| documents::status(board)),
            ("/api/live", |board, _| documents::live(board)),
            ("/api/promises", |board, _| board.promises.document()),
            ("/api/timeline", |board, query| documents::timeline(board, number(query, "since").unwrap_or(0))),
            ("/api/owner", |board, query| documents::owner(board, number(query, "number").unwrap_or(0))),
            ("/api/task", |board, query| documents::task(board, number(query, "tid").unwrap_or(0))),
        ];
        for (path, draw) in pages {
            let site = self.clone();
            let answer =
                move |uri: Uri| async move { json(&draw(&site.now(), uri.query().unwrap_or_default())) };
            router = router.route(path, get(answer));
        }
        let events = self.clone();
        let listen = move |request: Request| async move {
            let site = events.clone();
            events.streams.answer(move || site.now(), &request)
        };
        let (metrics, health, findings, history) = (self.clone(), self.clone(), self.clone(), self.clone());
        let asked = self.asked.clone();
        let why = move |headers: HeaderMap, uri: Uri| async move {
            asked.answer(&headers, uri.query().unwrap_or_default()).await
        };
        let (reports, report) = (self.served.clone(), self.served.clone());
        let classic = move |headers: HeaderMap| async move {
            let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
            let (kind, content) = metrics::page(&metrics.now()).written(accept);
            page(kind, content)
        };
        router
            .route("/metrics", get(classic))
            .route("/api/events", get(listen))
            .route("/api/why", get(why))
            .route(server::HEALTH, get(move || async move { health.health() }))
            .route(
                "/api/reports",
                get(move || async move { slow(move || reports::list(&reports.reports)).await }),
            )
            .route(
                "/reports/{name}",
                get(move |extract::Path(name): extract::Path<String>| async move {
                    let shown =
                        tokio::task::spawn_blocking(move || reports::show(&report.reports, &name)).await;
                    shown.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
                }),
            )
            .route("/api/findings", get(move || async move { slow(move || findings.findings()).await }))
            .route(
                "/api/history",
                get(move |uri: Uri| async move {
                    let query = uri.query().unwrap_or_default();
                    match past::span(number(query, "from"), number(query, "to")) {
                        Some(span) => slow(move || past::history(&history.served.state_dir, span)).await,
                        None => {
                            let why = "the end is not after the beginning, or it has not come yet\n";
                            (StatusCode::BAD_REQUEST, why).into_response()
                        }
                    }
                }),
            )
    }

    fn now(&self) -> Arc<Board> {
        fault::point("listen.page");
        Arc::clone(&self.board.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the host is being watched; says nothing about the host. By a clock that nobody sets.
    fn health(&self) -> Response {
        let Some(ready) = self.ready.get() else {
            return (StatusCode::SERVICE_UNAVAILABLE, "starting\n").into_response();
        };
        let age = self.now().looked.unwrap_or(*ready).elapsed();
        if age <= self.served.fresh {
            (StatusCode::OK, "ok\n").into_response()
        } else {
            let text = format!("the host was not looked at for {:.0} s\n", age.as_secs_f64());
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }

    fn findings(&self) -> Result<Value, String> {
        self.findings.get(&self.served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_watched_from_the_first_word_to_the_last_look_whatever_the_clock_says() {
        let served = Served {
            state_dir: PathBuf::new(),
            reports: PathBuf::new(),
            sampling: Sampling::default(),
            check: |_, _, _| unreachable!("nobody checks"),
            why: |_, _| unreachable!("nobody asks"),
            fresh: Duration::from_millis(200),
        };
        let site = Site::new(served, watch::channel(()).1);
        let status = || site.health().status().as_u16();
        assert_eq!(status(), 503, "what a predecessor left is not dealt with yet");
        site.ready.set(Instant::now()).unwrap();
        assert_eq!(status(), 200);
        // Looked at now, by a clock that was set: long ago, or in a time to come.
        for wall_ns in [1, 1 << 61] {
            let observation = Arc::new(notices::labelled::nobody(wall_ns));
            with(&site.board, |board| drop(board.observe(observation)));
            assert_eq!(status(), 200, "{wall_ns}");
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(status(), 503, "{wall_ns}");
        }
    }
}
