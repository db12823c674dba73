//! Who is a service and who may wait: of the file, of the command line, and as the host itself says.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::anyhow;
use evenkeel_actuate::{Linux, Originals};
use evenkeel_agent::guarantee::wait_ns;
use evenkeel_agent::protect::MOST as MOST_PROTECTED;
use evenkeel_agent::tiers::{self, Derived, Tier};
use evenkeel_agent::{Guarantees, Protected, RequestSlo, Scope, Trusted, as_found};
use evenkeel_base::Observation;
use evenkeel_fetch::http;
use evenkeel_fetch::prometheus::Selector;
use evenkeel_linux::{Root, sysfs};
use evenkeel_observe::Detail;
use evenkeel_policy::guarantee::CpuAmount;
use evenkeel_policy::protect::LatencyTarget;
use serde::Deserialize;
use toml::Spanned;

use super::glance::glance;
use super::source::Source;

/// `[[service]]`, see docs/services.md; `[[protect]]` is its earlier name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceTable {
    scope: Spanned<String>,
    wait_p99: Option<Spanned<String>>,
    slo: Option<SloTable>,
}

/// `slo = { .. }` of a service, see docs/services.md.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SloTable {
    endpoint: Spanned<String>,
    histogram: Spanned<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    unit: Unit,
    quantile: Spanned<f64>,
    bound: Spanned<String>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    #[default]
    S,
    Ms,
    Us,
}

impl Unit {
    fn seconds(self) -> f64 {
        match self {
            Self::S => 1.0,
            Self::Ms => 1e-3,
            Self::Us => 1e-6,
        }
    }
}

impl SloTable {
    fn checked(&self, source: &Source) -> anyhow::Result<RequestSlo> {
        let endpoint = self.endpoint.get_ref();
        http::parse(endpoint).map_err(|why| source.fault(&self.endpoint, format!("slo endpoint {why}")))?;
        let named = self.histogram.get_ref();
        let histogram = named.strip_suffix("_bucket").unwrap_or(named).to_owned();
        let labelled = histogram.contains('{') || Selector::new(&histogram, &self.labels).is_err();
        if labelled {
            let why = "the name of a histogram without labels, such as http_request_duration_seconds";
            return Err(source.fault(&self.histogram, format!("slo histogram {named:?}: {why}")));
        }
        let quantile = *self.quantile.get_ref();
        if !(quantile > 0.0 && quantile <= MOST_QUANTILE) {
            let why =
                format!("slo quantile = {quantile}: above 0, and at most {MOST_QUANTILE}, such as 0.99");
            return Err(source.fault(&self.quantile, why));
        }
        let bound = crate::cli::duration(self.bound.get_ref()).map_err(|why| {
            source.fault(&self.bound, format!("slo bound = {:?}: {why}", self.bound.get_ref()))
        })?;
        if bound.is_zero() {
            return Err(source.fault(&self.bound, "slo bound: longer than nothing, such as \"50ms\""));
        }
        Ok(RequestSlo {
            endpoint: endpoint.clone(),
            histogram,
            labels: self.labels.clone(),
            unit_s: self.unit.seconds(),
            quantile,
            bound_s: bound.as_secs_f64(),
        })
    }
}

/// One request in a hundred thousand: of fewer nothing can be told in any time.
const MOST_QUANTILE: f64 = 0.99999;

/// `[[background]]`, see docs/services.md.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackgroundTable {
    scope: Spanned<String>,
    least: Option<Spanned<String>>,
}

/// Services of the file and of the command line, whose bounds only the file can state.
pub(super) fn services<'a>(
    tables: impl Iterator<Item = &'a ServiceTable>,
    source: &Source,
    named: &[String],
) -> anyhow::Result<Vec<Protected>> {
    let mut all: Vec<Protected> = Vec::new();
    let mut add = |text: &str, wait_p99_ns, slo: Option<RequestSlo>| -> anyhow::Result<()> {
        let name = text.trim().to_owned();
        let scope = Scope::parse(&[&name])?;
        if name.starts_with('!') || scope.names_the_host() {
            return Err(anyhow!(
                "scope {name:?}: a service needs a scope of its own, not `all` or an exclusion alone"
            ));
        }
        if all.iter().any(|other| other.protection.name == name) {
            return Err(anyhow!("{name:?} is named as a service already"));
        }
        if all.len() == MOST_PROTECTED {
            return Err(anyhow!("{name:?} is one too many: at most {MOST_PROTECTED} services can be named"));
        }
        let requests = slo.as_ref().map(RequestSlo::target);
        all.push(Protected { scope, protection: LatencyTarget { name, wait_p99_ns, requests }, slo });
        Ok(())
    };
    for table in tables {
        let wait = |text: &Spanned<String>| {
            wait_ns(text.get_ref()).map_err(|e| source.fault(text, format!("wait_p99: {e}")))
        };
        let wait_p99_ns = table.wait_p99.as_ref().map(wait).transpose()?;
        let slo = table.slo.as_ref().map(|slo| slo.checked(source)).transpose()?;
        add(table.scope.get_ref(), wait_p99_ns, slo).map_err(|error| source.fault(&table.scope, error))?;
    }
    for name in named {
        add(name, None, None).map_err(|error| anyhow!("--service: {error}"))?;
    }
    Ok(all)
}

/// Background work of the file, or of the command line where that names any, and its least share, percent of one CPU; `None`
/// where there is none.
pub(super) fn backgrounds(
    tables: &[BackgroundTable],
    source: &Source,
    named: &[String],
) -> anyhow::Result<Option<(Scope, f64)>> {
    let mut least_pct = 0.0;
    let mut texts = named.to_vec();
    if named.is_empty() {
        for table in tables {
            let fault = |error: anyhow::Error| source.fault(&table.scope, error);
            part_of_the_host(Scope::parse(&[table.scope.get_ref()]).map_err(|error| fault(error.into()))?)
                .map_err(fault)?;
            texts.push(table.scope.get_ref().clone());
            if let Some(least) = &table.least {
                let amount: CpuAmount = least.get_ref().parse().map_err(|e| source.fault(least, e))?;
                least_pct += amount.pct(host_cpus());
            }
        }
    }
    if texts.is_empty() {
        return Ok(None);
    }
    Ok(Some((part_of_the_host(Scope::parse(&texts)?)?, least_pct)))
}

fn part_of_the_host(background: Scope) -> anyhow::Result<Scope> {
    if background.names_the_host() {
        return Err(anyhow!(
            "the whole host is no background work: name who may wait, such as cgroup:/batch"
        ));
    }
    Ok(background)
}

/// CPUs that are online, whichever of them this process may use, and whatever its own quota.
pub fn host_cpus() -> u32 {
    let online = sysfs::read_list(&Root::host(), &format!("{}/online", sysfs::CPU_DIR)).ok().flatten();
    online.unwrap_or_else(evenkeel_linux::sys::usable_cpus).len() as u32
}

/// Whose labels may make a service: those that may promise shares.
fn trusted(guarantees: &Guarantees) -> Trusted {
    guarantees.labels.as_ref().map_or_else(Trusted::default, |labels| labels.trusted.clone())
}

/// Adds those that the host itself names.
pub(super) fn derive_tiers(
    state_dir: &Path,
    guarantees: &Guarantees,
    services: &mut Vec<Protected>,
    background: &mut Option<(Scope, f64)>,
) -> anyhow::Result<()> {
    if services.len() == MOST_PROTECTED {
        return Err(anyhow!("--tiers auto is one service too many: at most {MOST_PROTECTED} can be named"));
    }
    let trusted = trusted(guarantees);
    let mut waiting = Scope::of_tier(Tier::Background, trusted.clone());
    let told = tiers::told_to_wait(&glance_as_found(state_dir)?);
    waiting.tell(told.into_iter().map(|(path, _)| path).collect());
    match background {
        Some((scope, _)) => scope.take_in(&waiting),
        None => *background = Some((waiting, 0.0)),
    }
    let scope = Scope::of_tier(Tier::Service, trusted);
    let name = scope.texts().join(" ");
    let protection = LatencyTarget { name, ..LatencyTarget::default() };
    services.push(Protected { scope, protection, slo: None });
    Ok(())
}

/// What the host itself says about tiers: name, tier, what says so.
pub fn derived(state_dir: &Path, guarantees: &Guarantees) -> anyhow::Result<BTreeMap<String, Derived>> {
    Ok(tiers::all(&glance_as_found(state_dir)?, &trusted(guarantees)))
}

/// The host without what an agent set that is at work, or was killed: that is no word of the host's.
fn glance_as_found(state_dir: &Path) -> anyhow::Result<Observation> {
    let read = || anyhow::Ok(Originals::read(&mut Linux::new()?, state_dir)?);
    let unknown = |error: &_| {
        tracing::warn!("what an agent set here counts as the host's word, for it is not known: {error:#}")
    };
    let originals = read().inspect_err(unknown).unwrap_or_default();
    let seen = glance(true, &Detail::All)?;
    Ok(as_found(seen, |target, knob, now| originals.found(target, knob, now)))
}
