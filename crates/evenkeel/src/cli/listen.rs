//! `run --listen`: what the loop sees and decides, for Prometheus (`/metrics`) and as JSON (`/status`).

mod server;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use evenkeel_agent::{Event, Watcher, cost};
use evenkeel_base::Observation;
use evenkeel_base::run::{Effect, EffectNow, GovernorStatus, GuaranteeStatus};
use evenkeel_kernfs::fault;
use evenkeel_report::run::guarantee_table;
use evenkeel_report::time;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::Failure;

/// What was seen last and what was decided so far.
#[derive(Debug, Clone, Default)]
struct Board {
    host: Value,
    settings: String,
    owners: Vec<Owner>,
    busy_pct: Option<f64>,
    steal_pct: Option<f64>,
    trials: u64,
    kept: u64,
    decision: Vec<Value>,
    guarantees: Vec<GuaranteeStatus>,
    governor: Option<GovernorStatus>,
    effect: Option<EffectNow>,
    notes: Vec<String>,
}

/// Rates of a container, pod or virtual machine, percent of one CPU.
#[derive(Debug, Clone)]
struct Owner {
    kind: &'static str,
    name: String,
    pod: String,
    cpu_pct: f64,
    wait_pct: Option<f64>,
    throttled_pct: Option<f64>,
}

/// Notes kept for `/status`.
const NOTES: usize = 20;

/// A server of one run. It ends with the process: nothing is lost when a scrape is cut short.
#[derive(Debug)]
pub struct Server {
    board: Shared,
}

/// A page is drawn from a copy: whoever asks does not keep the loop waiting.
type Shared = Arc<Mutex<Arc<Board>>>;

impl Server {
    /// Listens from now on.
    pub fn start(address: SocketAddr) -> Result<Self, Failure> {
        let board = Shared::default();
        let listener = std::net::TcpListener::bind(address)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .with_context(|| format!("cannot listen on {address}"))
            .map_err(Failure::Cannot)?;
        // With port 0 the kernel chose one.
        let address = listener.local_addr().unwrap_or(address);
        say!("evenkeel: listening on http://{address}");
        if !address.ip().is_loopback() {
            say!(
                "evenkeel: everyone who can reach {address} can read the names and the CPU use of this host's containers, \
                 pods and virtual machines: there is no password and no encryption"
            );
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the server")
            .map_err(Failure::Cannot)?;
        let (metrics, status) = (board.clone(), board.clone());
        let router = Router::new()
            .route("/", get(|| async { "evenkeel: /metrics for Prometheus, /status as JSON\n" }))
            .route("/metrics", get(move || async move { metrics_page(&metrics) }))
            .route("/status", get(move || async move { status_page(&status) }));
        std::thread::Builder::new()
            .name("listen".to_owned())
            .spawn(move || {
                if let Err(error) = runtime.block_on(server::serve(listener, router)) {
                    tracing::warn!("{address} is no longer served: {error}");
                }
            })
            .context("cannot start the server")
            .map_err(Failure::Cannot)?;
        Ok(Self { board })
    }

    /// A watcher that tells the server, too.
    pub fn beside<'a>(&self, inner: &'a mut dyn Watcher) -> Beside<'a> {
        Beside { inner, board: self.board.clone() }
    }
}

/// See [`Server::beside`].
pub struct Beside<'a> {
    inner: &'a mut dyn Watcher,
    board: Shared,
}

impl Watcher for Beside<'_> {
    fn event(&mut self, event: &Event<'_>) {
        Arc::make_mut(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner)).take(event);
        self.inner.event(event);
    }

    fn stopping(&self) -> bool {
        self.inner.stopping()
    }
}

impl Board {
    fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Observed { observation, settings, .. } => {
                self.settings = (*settings).to_owned();
                self.busy_pct = Some(observation.host.busy_pct);
                self.steal_pct = observation.host.steal_pct;
                self.host = json!({
                    "at": time::rfc3339(observation.wall_ns), "interval_s": observation.interval_s,
                    "cpus": observation.host.cpus, "busy_pct": observation.host.busy_pct,
                    "steal_pct": observation.host.steal_pct,
                });
                self.owners = owners(observation);
            }
            Event::TrialBegins { .. } => self.trials += 1,
            Event::Decided { decision, candidates } => {
                self.kept += u64::from(decision.winner != 0);
                self.decision = candidates
                    .iter()
                    .zip(&decision.verdicts)
                    .map(|(plan, verdict)| json!({"name": plan.name, "kept": verdict.kept, "why": verdict.why}))
                    .collect();
            }
            Event::Standing(record) => {
                self.guarantees.clone_from(&record.guarantees);
                self.governor.clone_from(&record.governor);
                self.effect.clone_from(&record.effect_now);
            }
            Event::Note(note) => {
                self.notes.push((*note).to_owned());
                let surplus = self.notes.len().saturating_sub(NOTES);
                self.notes.drain(..surplus);
            }
            _ => {}
        }
    }

    fn metrics(&self) -> Registry {
        let mut registry = Registry::with_prefix("evenkeel");
        let mut gauge = |name: &str, help: &str, value: Option<f64>| {
            // What is not known is left out: it is not zero.
            if let Some(value) = value {
                let gauge = Gauge::<f64, std::sync::atomic::AtomicU64>::default();
                gauge.set(value);
                registry.register(name, help, gauge);
            }
        };
        gauge("host_busy_percent", "CPU used, percent of one CPU", self.busy_pct);
        gauge("host_steal_percent", "CPU taken by the hypervisor, percent of one CPU", self.steal_pct);
        let governor = self.governor.as_ref().filter(|governor| governor.group.is_some());
        let limit = governor.and_then(|governor| governor.limit_pct.or(governor.found_pct));
        gauge("cpu_limit_percent", "Limit of the scope against stolen CPU, percent of one CPU", limit);
        let stolen = governor.map(|governor| governor.stolen_s);
        gauge("scope_stolen_seconds", "CPU stolen of what the scope wanted since the run began", stolen);
        let effect = |pick: fn(&EffectNow) -> Option<Effect>| self.effect.as_ref().and_then(pick);
        let cpu = effect(|now| now.cpu_pct);
        gauge("effect_cpu_percent", "CPU got more than under the baseline", cpu.map(|e| e.value));
        gauge("effect_cpu_percent_low", "Lower end of its interval", cpu.and_then(|e| e.low));
        gauge("effect_cpu_percent_high", "Upper end of its interval", cpu.and_then(|e| e.high));
        let wait = effect(|now| now.wait_p99_ms);
        let seconds = |ms: f64| ms / 1e3;
        let longer = "99th percentile of waits longer than under the baseline";
        gauge("effect_wait_p99_seconds", longer, wait.map(|e| seconds(e.value)));
        gauge(
            "effect_wait_p99_seconds_low",
            "Lower end of its interval",
            wait.and_then(|e| e.low).map(seconds),
        );
        gauge(
            "effect_wait_p99_seconds_high",
            "Upper end of its interval",
            wait.and_then(|e| e.high).map(seconds),
        );
        let since = cpu.map(|e| e.since_ns as f64 / 1e9);
        gauge("effect_since_timestamp_seconds", "Since when the effect is measured", since);
        let blocks = self.effect.as_ref().map(|now| now.blocks as f64);
        gauge("effect_blocks", "Blocks under the baseline; 0: as measured at the decision", blocks);
        let share = effect(|now| now.holdout_share).map(|e| e.value);
        gauge("holdout_share_ratio", "Share of the time under the baseline", share);
        let own = own_cost();
        gauge("self_resident_bytes", "Memory of evenkeel itself", own.map(|(_, bytes)| bytes));
        let mut rates = |name: &str, help: &str, of: fn(&Owner) -> Option<f64>| {
            let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            let of_owner =
                |o: &Owner| vec![label("kind", o.kind), label("name", &o.name), label("pod", &o.pod)];
            register_each(&mut registry, (name, help), &self.owners, of_owner, of);
        };
        rates("cpu_percent", "CPU got, percent of one CPU", |owner| Some(owner.cpu_pct));
        rates("wait_percent", "Time runnable without a CPU, percent, summed over tasks", |o| o.wait_pct);
        rates("throttled_percent", "Time held back by a quota, percent", |owner| owner.throttled_pct);
        let mut promises = |name: &str, help: &str, of: fn(&GuaranteeStatus) -> Option<f64>| {
            let of_promise = |promise: &GuaranteeStatus| vec![("name".to_owned(), promise.name.clone())];
            register_each(&mut registry, (name, help), &self.guarantees, of_promise, of);
        };
        promises("guarantee_promised_percent", "CPU promised, percent of one CPU", |g| g.promised_pct);
        promises("guarantee_got_percent", "CPU got in the last second, percent of one CPU", |g| g.got_pct);
        promises("guarantee_wait_p99_seconds", "99th percentile of waits for a CPU", |g| {
            g.wait_p99_ms.map(|ms| ms / 1e3)
        });
        promises("guarantee_broken_minutes_day", "Minutes broken in the last day", |g| g.broken_min_day);
        promises("guarantee_kept", "1 if the promise is kept, 0 if it is broken or refused", |g| {
            match g.state.as_str() {
                "kept" | "at risk" => Some(1.0),
                "broken" | "refused" => Some(0.0),
                _ => None,
            }
        });
        promises(
            "guarantee_rate_short_percent",
            "Missing of the rate, percent of one CPU; 0 if it is not",
            |g| g.as_rate.as_ref().map(|_| g.rate_short_pct.unwrap_or(0.0)),
        );
        let mut counter = |name: &str, help: &str, value: u64| {
            let counter = Counter::<u64>::default();
            counter.inc_by(value);
            registry.register(name, help, counter);
        };
        counter("trials", "Trials held", self.trials);
        counter("trials_kept", "Trials after which settings of ours were in force", self.kept);
        let cpu = Counter::<f64, std::sync::atomic::AtomicU64>::default();
        cpu.inc_by(own.map_or(0.0, |(seconds, _)| seconds));
        registry.register("self_cpu_seconds", "CPU time of evenkeel itself", cpu);
        let info = Family::<Vec<(String, String)>, Gauge>::default();
        info.get_or_create(&vec![("name".to_owned(), self.settings.clone())]).set(1);
        registry.register("settings_in_force", "Which settings are in force", info);
        registry
    }
}

/// A gauge for each of these by its labels; what is not known is left out.
fn register_each<T>(
    registry: &mut Registry,
    (name, help): (&str, &str),
    all: &[T],
    labels: impl Fn(&T) -> Vec<(String, String)>,
    of: fn(&T) -> Option<f64>,
) {
    let family = Family::<Vec<(String, String)>, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
    for one in all {
        if let Some(value) = of(one) {
            family.get_or_create(&labels(one)).set(value);
        }
    }
    registry.register(name, help, family);
}

fn owners(observation: &Observation) -> Vec<Owner> {
    let group = |index: Option<u32>| index.and_then(|index| observation.groups.get(index as usize));
    let sums = |of: &dyn Fn(&evenkeel_base::TaskView) -> bool| {
        let members = || observation.tasks.iter().filter(|task| of(task));
        (members().map(|task| task.cpu_pct).sum::<f64>(), members().map(|task| task.wait_pct).sum())
    };
    let pod_name = |index: Option<u32>| {
        index.and_then(|index| observation.pods.get(index as usize)).map_or_else(String::new, |pod| {
            pod.namespace.as_ref().map_or_else(|| pod.name.clone(), |space| format!("{space}/{}", pod.name))
        })
    };
    let mut owners = Vec::new();
    let mut add = |kind, name: String, pod: String, at: Option<u32>, (cpu_pct, wait_pct)| {
        let group = group(at);
        owners.push(Owner {
            kind,
            name,
            pod,
            cpu_pct: group.and_then(|group| group.cpu_pct).map_or(cpu_pct, |pct| pct.max(cpu_pct)),
            wait_pct,
            throttled_pct: group.and_then(|group| group.throttled_pct),
        });
    };
    for (at, what) in (0u32..).zip(&observation.containers) {
        let sums = sums(&|task| task.container == Some(at));
        add("container", what.name.clone(), pod_name(what.pod), what.group, sums);
    }
    for (at, what) in (0u32..).zip(&observation.pods) {
        add("pod", pod_name(Some(at)), pod_name(Some(at)), what.group, sums(&|task| task.pod == Some(at)));
    }
    for (at, what) in (0u32..).zip(&observation.vms) {
        add("vm", what.name.clone(), String::new(), what.group, sums(&|task| task.vm == Some(at)));
    }
    owners
}

/// CPU seconds and resident bytes of this process.
fn own_cost() -> Option<(f64, f64)> {
    Some((cost::cpu_seconds()?, cost::resident()? as f64))
}

fn now(board: &Mutex<Arc<Board>>) -> Arc<Board> {
    fault::point("listen.page");
    Arc::clone(&board.lock().unwrap_or_else(PoisonError::into_inner))
}

fn metrics_page(board: &Mutex<Arc<Board>>) -> impl IntoResponse + use<> {
    let registry = now(board).metrics();
    let mut text = String::new();
    if let Err(error) = encode(&mut text, &registry) {
        let _ = writeln!(text, "# {error}");
    }
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

fn status_page(board: &Mutex<Arc<Board>>) -> impl IntoResponse + use<> {
    let board = now(board);
    let owners: Vec<Value> = board
        .owners
        .iter()
        .map(|owner| {
            json!({
                "kind": owner.kind, "name": owner.name, "pod": (!owner.pod.is_empty()).then_some(&owner.pod),
                "cpu_pct": owner.cpu_pct, "wait_pct": owner.wait_pct, "throttled_pct": owner.throttled_pct,
            })
        })
        .collect();
    let document = json!({
        "schema": "evenkeel.live/v1", "host": board.host, "settings": board.settings, "owners": owners,
        "trials": board.trials, "kept": board.kept, "last_decision": board.decision,
        "guarantees": guarantee_table().json(&board.guarantees), "cpu_limit": board.governor, "notes": board.notes,
    });
    ([(CONTENT_TYPE, "application/json")], format!("{document:#}\n"))
}
