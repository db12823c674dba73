//! The configuration file (`--config`), and the options that `plan` and `run` share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_agent::{Config, Scope};
use evenkeel_policy::audit::FileError;
use evenkeel_policy::guard::GuardLimits;
use evenkeel_policy::levers::LEVERS;
use serde::Deserialize;

use super::{Failure, Global};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    run: RunTable,
    guard: GuardLimits,
}

/// `[run]`: options of the command line win.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RunTable {
    scope: Vec<String>,
    interval: Option<String>,
    decide_within: Option<String>,
    recheck: Option<String>,
    allow: Vec<String>,
    levers: Vec<String>,
}

/// Options of `plan` and `run`.
#[derive(Debug, Clone, clap::Args)]
pub struct LoopArgs {
    /// Whose CPU sharing: pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME, vm:NAME or all; ! in front
    /// excludes; repeatable. Without any: all containers and virtual machines.
    #[arg(long, value_name = "SCOPE")]
    pub scope: Vec<String>,
    /// Time between observations.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub interval: Option<Duration>,
    /// What is otherwise forbidden: `realtime` permits SCHED_FIFO for the scope.
    #[arg(long, value_name = "WHAT", value_parser = ["realtime"])]
    pub allow: Vec<String>,
    /// Try only this lever; repeatable (`evenkeel plan` lists them).
    #[arg(long, value_name = "NAME")]
    pub lever: Vec<String>,
}

/// Shortest interval between observations.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The loop's configuration from the file and the command line.
pub fn config(global: &Global, args: &LoopArgs) -> Result<Config, Failure> {
    if global.root.is_some() {
        return Err(Failure::Usage(anyhow!(
            "a captured tree cannot be changed or trialled; leave out --root"
        )));
    }
    if global.output == super::Format::Svg {
        return Err(Failure::Usage(anyhow!("--output svg is for `topology`; use text, json or csv")));
    }
    let file = match &global.config {
        Some(path) => read(path).map_err(Failure::Usage)?,
        None => File::default(),
    };
    let usage = |error: anyhow::Error| Failure::Usage(error);
    let texts = if args.scope.is_empty() { &file.run.scope } else { &args.scope };
    let mut config =
        Config::new(Scope::parse(texts).map_err(|e| Failure::Usage(e.into()))?, global.state_dir.clone());
    let duration = |name: &str, text: &Option<String>| -> anyhow::Result<Option<Duration>> {
        text.as_ref()
            .map(|text| humantime::parse_duration(text).with_context(|| format!("[run] {name} = {text:?}")))
            .transpose()
    };
    if let Some(interval) = args.interval.or(duration("interval", &file.run.interval).map_err(usage)?) {
        if interval < MIN_INTERVAL {
            return Err(Failure::Usage(anyhow!("interval {interval:?}: at least 100ms")));
        }
        config.interval = interval;
    }
    if let Some(time) = duration("decide_within", &file.run.decide_within).map_err(usage)? {
        config.decide_within = time;
    }
    if let Some(time) = duration("recheck", &file.run.recheck).map_err(usage)? {
        config.recheck = time.max(Duration::from_secs(10));
    }
    for allowed in args.allow.iter().chain(&file.run.allow) {
        match allowed.as_str() {
            "realtime" => config.realtime = true,
            other => {
                return Err(Failure::Usage(anyhow!("allow {other:?}: only \"realtime\" can be allowed")));
            }
        }
    }
    config.levers = if args.lever.is_empty() { file.run.levers } else { args.lever.clone() };
    for name in &config.levers {
        if !LEVERS.iter().any(|lever| lever.name() == name) {
            let names: Vec<_> = LEVERS.iter().map(|lever| lever.name()).collect();
            return Err(Failure::Usage(anyhow!(
                "no lever is called {name:?}; there are: {}",
                names.join(", ")
            )));
        }
    }
    check_guard(&file.guard, global.config.as_deref()).map_err(usage)?;
    config.rules.guard = file.guard;
    Ok(config)
}

fn check_guard(guard: &GuardLimits, path: Option<&Path>) -> anyhow::Result<()> {
    let path = path.map_or_else(PathBuf::new, Path::to_path_buf);
    let fault = |what: &str| anyhow!("{}: [guard] {what}", path.display());
    if !(0.0..=1.0).contains(&guard.cpu_loss) {
        return Err(fault("cpu_loss is a share between 0 and 1"));
    }
    if !(guard.wait_factor >= 1.0 && guard.wait_floor >= 0.0 && guard.min_cpu_pct >= 0.0) {
        return Err(fault("wait_factor is at least 1; wait_floor and min_cpu_pct are not negative"));
    }
    if !(guard.alpha > 0.0 && guard.alpha < 0.5) {
        return Err(fault("alpha is an error probability between 0 and 0.5"));
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<File> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).map_err(|error| FileError::from_toml(path, &text, &error).into())
}
