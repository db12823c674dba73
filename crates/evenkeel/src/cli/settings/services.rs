//! Who is a service and who may wait: of the file, of the command line, and as the host itself says.

use anyhow::anyhow;
use evenkeel_agent::guarantee::wait_ns;
use evenkeel_agent::protect::MOST as MOST_PROTECTED;
use evenkeel_agent::tiers::{self, Derived, Tier};
use evenkeel_agent::{Guarantees, Protected, Scope, Trusted};
use evenkeel_observe::Detail;
use evenkeel_policy::guarantee::CpuAmount;
use evenkeel_policy::protect::LatencyTarget;
use serde::Deserialize;
use toml::Spanned;

use super::{File, Source, glance};

/// `[[service]]`, see docs/services.md; `[[protect]]` is its earlier name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceTable {
    scope: Spanned<String>,
    wait_p99: Option<Spanned<String>>,
}

/// `[[background]]`, see docs/services.md.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackgroundTable {
    scope: Spanned<String>,
    least: Option<Spanned<String>>,
}

/// Services of the file and of the command line, whose bounds only the file can state.
pub(super) fn services(file: &File, source: &Source, named: &[String]) -> anyhow::Result<Vec<Protected>> {
    let mut all: Vec<Protected> = Vec::new();
    let mut add = |text: &str, wait_p99_ns| -> anyhow::Result<()> {
        let name = text.trim().to_owned();
        let scope = Scope::parse(&[&name])?;
        if name.starts_with('!') || scope.names_the_host() {
            return Err(anyhow!("scope {name:?}: a service is somebody named, beside others"));
        }
        if all.iter().any(|other| other.protection.name == name) {
            return Err(anyhow!("{name:?} is named as a service already"));
        }
        if all.len() == MOST_PROTECTED {
            return Err(anyhow!("{name:?} is one too many: at most {MOST_PROTECTED} services can be named"));
        }
        all.push(Protected {
            scope,
            protection: LatencyTarget { name, wait_p99_ns, ..LatencyTarget::default() },
        });
        Ok(())
    };
    for table in file.service.iter().chain(&file.protect) {
        let wait = |text: &Spanned<String>| {
            wait_ns(text.get_ref()).map_err(|e| source.fault(text, format!("wait_p99: {e}")))
        };
        let wait_p99_ns = table.wait_p99.as_ref().map(wait).transpose()?;
        add(table.scope.get_ref(), wait_p99_ns).map_err(|error| source.fault(&table.scope, error))?;
    }
    for name in named {
        add(name, None).map_err(|error| anyhow!("--service: {error}"))?;
    }
    Ok(all)
}

/// Background work of the file, or of the command line where that names any, and its least share, percent of one CPU; `None`
/// where there is none.
pub(super) fn backgrounds(
    file: &File,
    source: &Source,
    named: &[String],
) -> anyhow::Result<Option<(Scope, f64)>> {
    let mut least_pct = 0.0;
    let mut texts = named.to_vec();
    if named.is_empty() {
        for table in &file.background {
            Scope::parse(&[table.scope.get_ref()]).map_err(|error| source.fault(&table.scope, error))?;
            texts.push(table.scope.get_ref().clone());
            if let Some(least) = &table.least {
                let amount: CpuAmount = least.get_ref().parse().map_err(|e| source.fault(least, e))?;
                let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                least_pct += amount.pct(cpus as u32);
            }
        }
    }
    if texts.is_empty() {
        return Ok(None);
    }
    let scope = Scope::parse(&texts)?;
    if scope.names_the_host() {
        return Err(anyhow!(
            "the whole host is no background work: name who may wait, such as cgroup:/batch"
        ));
    }
    Ok(Some((scope, least_pct)))
}

/// Whose labels may make a service: those that may promise shares.
fn trusted(guarantees: &Guarantees) -> Trusted {
    guarantees.labels.as_ref().map_or_else(Trusted::default, |labels| labels.trusted.clone())
}

/// Adds those that the host itself names.
pub(super) fn derive_tiers(
    guarantees: &Guarantees,
    services: &mut Vec<Protected>,
    background: &mut Option<(Scope, f64)>,
) -> anyhow::Result<()> {
    if services.len() == MOST_PROTECTED {
        return Err(anyhow!("--tiers auto is one service too many: at most {MOST_PROTECTED} can be named"));
    }
    let trusted = trusted(guarantees);
    let mut waiting = Scope::of_tier(Tier::Background, trusted.clone());
    for (path, _) in tiers::told_to_wait(&glance(true, &Detail::All)?) {
        waiting.take_in(&Scope::parse(&[format!("cgroup:{path}")])?);
    }
    match background {
        Some((scope, _)) => scope.take_in(&waiting),
        None => *background = Some((waiting, 0.0)),
    }
    let scope = Scope::of_tier(Tier::Service, trusted);
    let name = scope.texts().join(" ");
    services.push(Protected {
        scope,
        protection: LatencyTarget { name, wait_p99_ns: None, ..LatencyTarget::default() },
    });
    Ok(())
}

/// What the host itself says about tiers: name, tier, what says so.
///
/// # Errors
/// The host cannot be observed.
pub fn derived(guarantees: &Guarantees) -> anyhow::Result<Vec<(String, Derived)>> {
    Ok(tiers::all(&glance(true, &Detail::All)?, &trusted(guarantees)))
}
