//! From an experiment's tenants to what each of them is told to do.

use clap::Parser;
use evenkeel_base::{CpuClaim, CpuShares, CpuWeight};
use evenkeel_experiment::file::{Experiment, Tenant, TenantSpec};
use evenkeel_model::units;

use super::RunError;
use super::groups::Wanted;
use super::order::Work;
use evenkeel_workload::Kind;
use evenkeel_workload::load::{Common, LoadSpec};

/// A load as written after `evenkeel load`.
#[derive(Debug, Parser)]
#[command(name = "load", disable_help_flag = true, disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    kind: Kind,
    #[command(flatten)]
    common: Common,
}

/// Reads a load as written after `evenkeel load`; the message says what is wrong with it.
pub fn parse_load(text: &str) -> Result<LoadSpec, String> {
    let words = std::iter::once("load").chain(text.split_ascii_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        // What is wrong comes before the first empty line, hints and usage after it.
        let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
        let first = lines.join(" ");
        let first = first.trim_start_matches("error: ");
        match error.kind() {
            clap::error::ErrorKind::InvalidSubcommand => {
                format!("{}; workloads are {}", first.replace("subcommand", "workload"), kinds())
            }
            _ => first.to_owned(),
        }
    })?;
    line.kind.workload().check()?;
    Ok(LoadSpec { kind: line.kind, common: line.common })
}

/// Names of the workloads.
fn kinds() -> String {
    use clap::CommandFactory;
    let command = Line::command();
    let names: Vec<&str> =
        command.get_subcommands().filter(|c| !c.is_hide_set()).map(clap::Command::get_name).collect();
    names.join(", ")
}

/// What a tenant does. `seed` differs from tenant to tenant and from repetition to repetition.
pub(crate) fn work(tenant: &Tenant, spec: &TenantSpec, seed: u64) -> Result<Work, RunError> {
    if let Some(command) = &spec.command {
        return Ok(Work::Command(command.clone()));
    }
    let text = spec.load.as_deref().unwrap_or_default();
    let mut load = parse_load(text)
        .map_err(|e| RunError::Usage(format!("tenant {}: load {text:?}: {e}", tenant.name)))?;
    let common = &mut load.common;
    common.seconds = spec.run_s.filter(|_| !spec.background).or(common.seconds);
    common.events = spec.events.or(common.events);
    if spec.threads > 1 || common.threads.is_none() {
        common.threads = Some(spec.threads);
    }
    common.name = Some(tenant.name.clone());
    if let Kind::Duty(duty) = &mut load.kind
        && !text.contains("--seed")
    {
        // Equal seeds would keep equal loads in step.
        duty.seed = seed;
    }
    Ok(Work::Load(Box::new(load)))
}

/// Its workload as people read it.
pub(crate) fn text(spec: &TenantSpec) -> String {
    match (&spec.command, &spec.load) {
        (Some(words), _) => words.join(" "),
        (None, Some(load)) => load.trim().to_owned(),
        (None, None) => String::new(),
    }
}

/// What its cgroup is asked for.
pub(crate) fn wanted(tenant: &Tenant, spec: &TenantSpec, factor: Option<f64>, v2: bool) -> Wanted {
    let weight = match (tenant.units.zip(factor), spec.weight, spec.shares) {
        (Some((units, factor)), _, _) => Some(units::weight(units, factor)),
        (None, Some(weight), _) if !v2 => Some(CpuClaim::Weight(CpuWeight::new(weight)).shares().into()),
        (None, Some(weight), _) => Some(weight),
        (None, None, Some(shares)) if v2 => Some(CpuClaim::Shares(CpuShares::new(shares)).weight().into()),
        (None, None, shares) => shares,
    };
    let quota = spec.quota_pct.map(|_| spec.limits().quota());
    Wanted { weight, quota, cpus: spec.cpus.clone(), memory_bytes: spec.memory_bytes }
}

/// The weight the scheduler computes with; 1024 is the default of both versions.
pub(crate) fn load_weight(weight: Option<u64>, v2: bool) -> f64 {
    weight.map_or(1024.0, |raw| evenkeel_base::load_weight(raw, v2) as f64)
}

/// Threads it will have; `None` for a command.
pub(crate) fn threads(work: &Work) -> u32 {
    match work {
        Work::Load(load) => load.common.thread_count(),
        Work::Command(_) => 1,
    }
}

/// How long a cell should take at most, seconds: several times what it would take undisturbed.
pub(crate) fn time_limit_s(experiment: &Experiment) -> f64 {
    if let Some(limit) = experiment.time_limit_s {
        return limit;
    }
    let expected = experiment
        .tenants
        .iter()
        .filter(|t| !t.background)
        .map(|t| t.run_s.map_or(3600.0, |run_s| t.start_s + f64::from(t.runs) * run_s));
    60.0 + 4.0 * expected.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read_as_on_the_command_line() {
        let spec = parse_load("sieve --from 5 --to 9 --read own").unwrap();
        assert_eq!(spec.kind.name(), "sieve");
        for (text, part) in [
            ("primez", "workloads are duty, spin, primes"),
            ("primes --max-prim 3", "--max-prim"),
            ("duty", "--percent"),
            ("sieve --from 9 --to 5", "is above"),
        ] {
            let error = parse_load(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn weights_keep_their_proportions_on_either_version() {
        let t = |units| Tenant { name: "a".into(), spec: 0, units };
        let spec = TenantSpec { weight: Some(200), ..TenantSpec::new("a") };
        assert_eq!(wanted(&t(None), &spec, None, false).weight, Some(2048));
        assert_eq!(wanted(&t(None), &spec, None, true).weight, Some(200));
        let spec = TenantSpec { shares: Some(512), quota_pct: Some(25.0), ..TenantSpec::new("a") };
        assert_eq!(wanted(&t(None), &spec, None, true).weight, Some(50));
        assert_eq!(wanted(&t(None), &spec, None, false).quota.and_then(|q| q.pct()), Some(25.0));
        assert_eq!(wanted(&t(Some(64)), &TenantSpec::new("a"), Some(16.0), false).weight, Some(1024));
    }
}
