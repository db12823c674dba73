//! The configuration file (`--config`), and the options that `plan` and `run` share.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_agent::{AutoLimit, Config, Protected, Scope};
use evenkeel_base::{FileError, Nice};
use evenkeel_observe::{Detail, Sampling};
use evenkeel_policy::guard::GuardLimits;
use evenkeel_policy::levers::{BACKGROUND_LEVERS, LEVERS, PULL};
use evenkeel_policy::turns::TURNS;
use serde::Deserialize;
use toml::Spanned;

use super::{Failure, Global};

mod blame;
mod glance;
mod guarantees;
mod serve;
mod services;
mod source;

pub use blame::{BlameArgs, Blaming, blaming};
use glance::glance;
pub use guarantees::guarantees;
use guarantees::{GuaranteeTable, LabelsTable, promises};
use serve::ServeTable;
pub use serve::{OtlpArgs, ScrapeArgs, WebhookArgs, open, otlp, scrapes, webhook};
use services::{BackgroundTable, ServiceTable, backgrounds, derive_tiers, services};
pub use services::{derived, host_cpus};
use source::Source;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    run: RunTable,
    guard: Option<Spanned<GuardLimits>>,
    guarantee: Vec<GuaranteeTable>,
    protect: Vec<ServiceTable>,
    service: Vec<ServiceTable>,
    background: Vec<BackgroundTable>,
    labels: Option<Spanned<LabelsTable>>,
    serve: ServeTable,
}

/// `[run]`: options of the command line win.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RunTable {
    scope: Vec<Spanned<String>>,
    interval: Option<Spanned<String>>,
    decide_within: Option<Spanned<String>>,
    closer_look: Option<Spanned<String>>,
    /// Has no effect any more; files that have it are still read.
    recheck: Option<Spanned<String>>,
    holdout: Option<Spanned<f64>>,
    holdout_services: Option<bool>,
    allow: Vec<Spanned<String>>,
    levers: Vec<Spanned<String>>,
    reserved: Option<Spanned<String>>,
    labels: Option<Spanned<bool>>,
    own_nice: Option<Spanned<i64>>,
    sampling: Option<Sampling>,
    waits: Option<bool>,
    takeover: Option<bool>,
    accept_risk: Option<bool>,
    cpu_limit: Option<Spanned<String>>,
    instance: Option<Spanned<String>>,
}

/// Options of `plan` and `run`.
#[derive(Debug, Clone, clap::Args, Default)]
pub struct LoopArgs {
    /// What may be changed: pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME, vm:NAME or all; ! in front
    /// excludes; repeatable. Without any: all containers and virtual machines.
    #[arg(long, value_name = "SCOPE")]
    pub scope: Vec<String>,
    /// Whose latency counts: waits for a CPU are kept short there, at the cost of --background; written like a scope;
    /// repeatable.
    #[arg(long, value_name = "SCOPE")]
    pub service: Vec<String>,
    /// Work that may wait for the services; written like a scope; repeatable. Nothing else is changed.
    #[arg(long, value_name = "SCOPE", conflicts_with = "scope")]
    pub background: Vec<String>,
    /// `auto`: derive services and background work from what the host declares: pods' quality of service, the label or annotation
    /// evenkeel.io/tier, nice values and policies of others, their `CPUWeight=idle`. `plan` shows what is derived, and from what.
    #[arg(long, value_name = "HOW", value_parser = ["auto"], conflicts_with = "scope")]
    pub tiers: Option<String>,
    /// Time between observations.
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    pub interval: Option<Duration>,
    /// Levers that need your consent: `realtime` permits SCHED_FIFO for the scope, `deadline` SCHED_DEADLINE for services with
    /// a `wait_p99`, `scx` installed BPF schedulers (sched_ext) for the whole host; repeatable.
    #[arg(long, value_name = "WHAT", value_parser = ALLOWED)]
    pub allow: Vec<String>,
    /// Keep what helps also where the guard cannot exclude harm in the time; shown harm still forbids it.
    #[arg(long)]
    pub accept_risk: bool,
    /// Try only this lever; repeatable (`evenkeel plan` lists them).
    #[arg(long, value_name = "NAME")]
    pub lever: Vec<String>,
}

/// What `--allow` and `allow` may name.
const ALLOWED: [&str; 3] = ["realtime", "deadline", "scx"];

/// Shortest interval between observations.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Shortest time for a decision: one round of windows.
const MIN_DECIDE: Duration = Duration::from_secs(2);
/// Largest share of the time that a change may be held out.
const MOST_HOLDOUT: f64 = 0.2;

/// Share of the time that a change may be held out.
pub fn holdout_share(share: f64) -> Result<f64, String> {
    let why = || format!("a share of the time, 0 (never) to {MOST_HOLDOUT}");
    (0.0..=MOST_HOLDOUT).contains(&share).then_some(share).ok_or_else(why)
}

/// Share of the time that a change which protects services may be held out: if all their requests were slow meanwhile, half of
/// what the strictest of their SLOs allows would be left. A service without an SLO of its own may have 1 % of long waits.
fn half_the_error_budget(services: &[Protected]) -> f64 {
    let allowed = |service: &Protected| service.protection.requests.map_or(0.01, |slo| slo.slow_share);
    services.iter().map(allowed).fold(0.01, f64::min) / 2.0
}

/// Read where `--config` names no other file, and where it is there.
pub const DEFAULT_FILE: &str = "/etc/evenkeel/config.toml";

/// The configuration file that counts. A captured tree is another host's: this host's file is not about it.
fn chosen(global: &Global, default: &Path) -> Result<Option<PathBuf>, Failure> {
    if global.config.is_some() || global.root.is_some() {
        return Ok(global.config.clone());
    }
    match default.try_exists() {
        Ok(there) => Ok(there.then(|| default.to_owned())),
        Err(error) => {
            let why = format!("cannot tell whether {} is there", default.display());
            Err(Failure::Cannot(anyhow::Error::from(error).context(why)))
        }
    }
}

/// The loop's configuration from the file and the command line.
pub fn config(global: &Global, args: &LoopArgs) -> Result<Config, Failure> {
    global.no_tree("a captured tree cannot be changed or trialled; leave out --root")?;
    let (file, source) = match chosen(global, Path::new(DEFAULT_FILE))? {
        Some(path) => read(&path).map_err(Failure::Usage)?,
        None => (File::default(), Source::default()),
    };
    let mut config = configure(global, args, file, &source).map_err(Failure::Usage)?;
    config.rules.seed = fresh_seed();
    Ok(config)
}

/// Where the random orders of a run begin: no two runs draw the same, so that a program that repeats itself in step with
/// one run's order is not in step with the next one's.
pub fn fresh_seed() -> u64 {
    evenkeel_linux::sys::wall_ns() ^ u64::from(std::process::id())
}

fn configure(global: &Global, args: &LoopArgs, file: File, source: &Source) -> anyhow::Result<Config> {
    let guarantees = promises(&file, source)?;
    file.serve.check(source)?;
    let mut protect = services(file.service.iter().chain(&file.protect), source, &args.service)?;
    let mut background = backgrounds(&file.background, source, &args.background)?;
    if args.tiers.is_some() {
        derive_tiers(&global.state_dir, &guarantees, &mut protect, &mut background)?;
    }
    if background.is_some() && protect.is_empty() {
        return Err(anyhow!(
            "background work may wait, but for whom? name a service: --service SCOPE or [[service]]"
        ));
    }
    if let (None, Some(service)) = (&background, args.service.first()) {
        return Err(anyhow!(
            "--service {service}: who may wait for it? name --background SCOPE or [[background]]"
        ));
    }
    if let (Some(_), Some(scope)) = (&background, args.scope.first()) {
        let why = "where there is background work, nothing else is changed";
        return Err(anyhow!("--scope {scope} goes without [[background]] in the configuration: {why}"));
    }
    let run = file.run;
    if let (Some(_), Some(scope)) = (&background, run.scope.first()) {
        let why = "[run] scope goes without [[background]]: where there is background work, nothing else is changed";
        return Err(source.fault(scope, why));
    }
    for scope in &run.scope {
        Scope::parse(std::slice::from_ref(scope.get_ref())).map_err(|e| source.fault(scope, e))?;
    }
    let texts = if args.scope.is_empty() { values(&run.scope) } else { args.scope.clone() };
    let (scope, least_pct) = match &background {
        Some((scope, least_pct)) => (scope.clone(), *least_pct),
        None => (Scope::parse(&texts)?, 0.0),
    };
    let mut config = Config::new(scope, global.state_dir.clone());
    config.guarantees = guarantees;
    config.protect = protect;
    config.background = background.map(|(scope, _)| scope);
    config.rules.least_pct = least_pct;
    config.lengths = run.waits.unwrap_or_default();
    config.takeover = run.takeover.unwrap_or(true);
    config.rules.accept_risk = args.accept_risk || run.accept_risk.unwrap_or_default();
    let duration = |name: &str, text: &Option<Spanned<String>>, least: Duration| {
        let Some(text) = text else { return Ok(None) };
        let value = super::duration(text.get_ref())
            .map_err(|e| source.fault(text, format!("{name} = {:?}: {e}", text.get_ref())))?;
        if value < least {
            return Err(source.fault(text, format!("{name} = {:?}: at least {least:?}", text.get_ref())));
        }
        Ok(Some(value))
    };
    if let Some(interval) = args.interval.filter(|interval| *interval < MIN_INTERVAL) {
        return Err(anyhow!("--interval {interval:?}: at least {MIN_INTERVAL:?}"));
    }
    let or = |new: Option<Duration>, usual: Duration| new.unwrap_or(usual);
    config.interval =
        or(args.interval.or(duration("interval", &run.interval, MIN_INTERVAL)?), config.interval);
    config.decide_within =
        or(duration("decide_within", &run.decide_within, MIN_DECIDE)?, config.decide_within);
    config.closer_look = or(duration("closer_look", &run.closer_look, Duration::ZERO)?, config.closer_look);
    if let Some(recheck) = &run.recheck {
        duration("recheck", &run.recheck, Duration::ZERO)?;
        let why =
            "recheck has no effect any more: a change is measured for as long as it is in force (holdout)";
        say!("evenkeel: {}", source.fault(recheck, why));
    }
    if let Some(share) = &run.holdout {
        let checked = holdout_share(*share.get_ref());
        config.monitor.holdout.share =
            checked.map_err(|why| source.fault(share, format!("holdout = {}: {why}", share.get_ref())))?;
    }
    if run.holdout_services.unwrap_or_default() {
        config.monitor.protecting_share = half_the_error_budget(&config.protect);
    }
    if let Some(other) = run.allow.iter().find(|allowed| !ALLOWED.contains(&allowed.get_ref().as_str())) {
        let why = format!(
            "allow {:?}: only {} can be allowed",
            other.get_ref(),
            ALLOWED.map(|what| format!("{what:?}")).join(", ")
        );
        return Err(source.fault(other, why));
    }
    config.sampling = global.sampling.or(run.sampling).unwrap_or_default();
    let allows = |what: &str| {
        run.allow.iter().any(|allowed| allowed.get_ref() == what)
            || args.allow.iter().any(|allowed| allowed == what)
    };
    config.realtime = allows("realtime");
    config.deadline = allows("deadline");
    config.scx = allows("scx");
    config.guarantees.realtime = config.realtime;
    let no_lever = |name: &str| -> Option<String> {
        let levers = LEVERS.iter().chain(BACKGROUND_LEVERS);
        let mut names: Vec<_> = levers.map(|lever| lever.name).collect();
        names.extend([PULL, TURNS]);
        let mut listed = HashSet::new();
        names.retain(|name| listed.insert(*name));
        // What goes with every lever may be named with it.
        let bare = name.strip_suffix(PULL).and_then(|name| name.strip_suffix('+')).unwrap_or(name);
        (!names.contains(&bare))
            .then(|| format!("no lever is called {name:?}; there are: {}", names.join(", ")))
    };
    for lever in &run.levers {
        no_lever(lever.get_ref()).map_or(Ok(()), |why| Err(source.fault(lever, why)))?;
    }
    for lever in &args.lever {
        no_lever(lever).map_or(Ok(()), |why| Err(anyhow!("--lever: {why}")))?;
    }
    config.levers = if args.lever.is_empty() { values(&run.levers) } else { args.lever.clone() };
    if let Some(other) = run.cpu_limit.as_ref().filter(|limit| limit.get_ref() != "auto") {
        let why = format!("cpu_limit = {:?}: only \"auto\" is known", other.get_ref());
        return Err(source.fault(other, why));
    }
    if let (Some(instance), None) = (&run.instance, &run.cpu_limit) {
        return Err(source.fault(instance, "instance goes with cpu_limit = \"auto\""));
    }
    config.limit = run
        .cpu_limit
        .as_ref()
        .map(|_| AutoLimit { instance: run.instance.as_ref().map(|name| name.get_ref().clone()) });
    if let Some(nice) = &run.own_nice {
        let value = i32::try_from(*nice.get_ref()).ok().filter(|nice| (-20..=19).contains(nice));
        let value = value.ok_or_else(|| {
            source.fault(nice, format!("own_nice = {}: a nice value, from -20 to 19", nice.get_ref()))
        })?;
        config.own_nice = Nice::new(value);
    }
    if let Some(guard) = file.guard {
        check_guard(guard.get_ref()).map_err(|what| source.fault(&guard, format!("[guard] {what}")))?;
        config.rules.guard = guard.into_inner();
    }
    Ok(config)
}

/// Why the scope needs `--apply`, see [`Scope::is_whole_host`].
pub fn whole_host(scope: &Scope) -> Result<Option<String>, Failure> {
    if scope.names_the_host() {
        return Ok(Some("the scope is the whole host".to_owned()));
    }
    // Containers and machines, where nothing is named, are what the loop is for.
    if scope.is_default() {
        return Ok(None);
    }
    let by_runtime = |text: &String| ["container:", "pod:"].iter().any(|kind| text.contains(kind));
    let seen = glance(scope.texts().iter().any(by_runtime), &Detail::None);
    Ok(scope.is_whole_host(&seen.map_err(|error| super::loop_failed(error.into()))?))
}

fn values(texts: &[Spanned<String>]) -> Vec<String> {
    texts.iter().map(|text| text.get_ref().clone()).collect()
}

fn check_guard(guard: &GuardLimits) -> Result<(), &'static str> {
    if ![guard.cpu_loss, guard.outside_cpu_loss].iter().all(|loss| (0.0..=1.0).contains(loss)) {
        return Err("cpu_loss and outside_cpu_loss are shares between 0 and 1");
    }
    if !(guard.tail_share > 0.01 && guard.tail_share < 1.0) {
        return Err("tail_share is a share of waits above 0.01, which is the baseline's own, and below 1");
    }
    let floors = [guard.wait_floor, guard.min_cpu_pct, guard.min_waits];
    if !(guard.wait_factor >= 1.0 && floors.iter().all(|floor| *floor >= 0.0)) {
        return Err("wait_factor is at least 1; wait_floor, min_cpu_pct and min_waits are not negative");
    }
    if !(guard.alpha > 0.0 && guard.alpha < 0.5) {
        return Err("alpha is an error probability between 0 and 0.5");
    }
    Ok(())
}

/// Refuses a file that is not there, or that has what no configuration has.
pub fn check(path: &Path) -> Result<(), Failure> {
    read(path).map(drop).map_err(Failure::Usage)
}

fn read(path: &Path) -> anyhow::Result<(File, Source)> {
    let text =
        evenkeel_linux::input::read_text(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(path, text)
}

fn parse(path: &Path, text: String) -> anyhow::Result<(File, Source)> {
    let file = toml::from_str(&text).map_err(|error| {
        let tables = [("run", keys::<RunTable>()), ("serve", keys::<ServeTable>())];
        FileError::from_toml_of_tables(path, &text, &error, &tables)
    })?;
    Ok((file, Source { path: path.to_owned(), text }))
}

/// What the TOML reader says of a key that a table does not know: it names those that the table does.
fn keys<T: serde::de::DeserializeOwned>() -> String {
    toml::from_str::<T>("'' = 0").err().map_or_else(String::new, |error| error.message().to_owned())
}

/// The loop's configuration that a file's text makes with no options alongside.
pub(super) fn of_text(global: &Global, path: &Path, text: &str) -> anyhow::Result<Config> {
    let (file, source) = parse(path, text.to_owned())?;
    configure(global, &LoopArgs::default(), file, &source)
}

#[cfg(test)]
#[path = "settings/reference.rs"]
mod reference;
#[cfg(test)]
#[path = "settings/tests.rs"]
mod tests;
