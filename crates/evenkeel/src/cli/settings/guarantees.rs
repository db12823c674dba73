//! What is promised: of the file, and whose labels count.

use std::path::Path;

use evenkeel_agent::guarantee::{LabelRules, Source as Origin, wait_ns};
use evenkeel_agent::{Guarantee, Guarantees, Scope, Trusted};
use evenkeel_policy::guarantee::{CpuAmount, Mean, Reservation};
use serde::Deserialize;
use toml::Spanned;

use super::source::Source;
use super::{DEFAULT_FILE, File, chosen, read, values};
use crate::cli::{Failure, Global};

/// `[labels]`, see docs/guarantees.md.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LabelsTable {
    #[serde(default)]
    namespaces: Vec<Spanned<String>>,
    #[serde(default)]
    runtimes: Vec<Spanned<String>>,
    max: Spanned<String>,
    total: Option<Spanned<String>>,
    wait_p99: Option<Spanned<String>>,
}

/// `[[guarantee]]`, see docs/guarantees.md.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuaranteeTable {
    scope: Spanned<String>,
    cpu: Option<Spanned<String>>,
    mean: Option<Spanned<Mean>>,
    #[serde(default)]
    priority: i32,
    wait_p99: Option<Spanned<String>>,
}

/// Promised shares alone with the scope of the file, for commands that change nothing; other tables of the file are checked
/// for unknown keys only.
pub fn guarantees(global: &Global) -> Result<(Guarantees, Scope), Failure> {
    let Some(path) = chosen(global, Path::new(DEFAULT_FILE))? else { return Ok(Default::default()) };
    let (file, source) = read(&path).map_err(Failure::Usage)?;
    let guarantees = promises(&file, &source).map_err(Failure::Usage)?;
    let scope = Scope::parse(&values(&file.run.scope)).map_err(|error| Failure::Usage(error.into()))?;
    Ok((guarantees, scope))
}

pub(super) fn promises(file: &File, source: &Source) -> anyhow::Result<Guarantees> {
    let mut stated: Vec<Guarantee> = Vec::new();
    for table in &file.guarantee {
        let name = table.scope.get_ref().trim().to_owned();
        let scope = Scope::parse(&[&name]).map_err(|e| source.fault(&table.scope, e))?;
        if name.starts_with('!') || scope.names_the_host() {
            let why = format!(
                "scope {name:?}: a promise needs a scope of its own, not `all` or an exclusion alone"
            );
            return Err(source.fault(&table.scope, why));
        }
        let amount =
            |text: &Spanned<String>| text.get_ref().parse::<CpuAmount>().map_err(|e| source.fault(text, e));
        let wait = |text: &Spanned<String>| {
            wait_ns(text.get_ref()).map_err(|e| source.fault(text, format!("wait_p99: {e}")))
        };
        let promise = Reservation {
            cpu: table.cpu.as_ref().map(amount).transpose()?,
            mean: table.mean.as_ref().map(|mean| *mean.get_ref()).unwrap_or_default(),
            wait_p99_ns: table.wait_p99.as_ref().map(wait).transpose()?,
            priority: table.priority,
        };
        if promise.cpu.is_none() && promise.wait_p99_ns.is_none() {
            let why = format!(
                "guarantee of {name:?}: nothing is promised; give cpu = \"40%\" or wait_p99 = \"2ms\""
            );
            return Err(source.fault(&table.scope, why));
        }
        if let (None, Some(mean)) = (promise.cpu, &table.mean) {
            return Err(source.fault(mean, "mean says what a promise of CPU means; there is no cpu here"));
        }
        if let Some(other) = stated.iter().find(|known| known.name == name) {
            let why = format!(
                "contradiction: {name:?} is promised {} further up and {promise} here",
                other.promise
            );
            return Err(source.fault(&table.scope, why));
        }
        stated.push(Guarantee { name, scope, promise, source: Origin::Config });
    }
    let reserved = file.run.reserved.as_ref();
    let reserved = reserved.map(|text| {
        CpuAmount::parse_or_zero(text.get_ref()).map_err(|e| source.fault(text, format!("reserved: {e}")))
    });
    let labels = label_rules(file, source)?;
    Ok(Guarantees { stated, reserved: reserved.transpose()?, labels, ..Guarantees::default() })
}

/// Which labels count. Whoever may start a container chooses its labels: none count unless the host's owner says which.
fn label_rules(file: &File, source: &Source) -> anyhow::Result<Option<LabelRules>> {
    let wanted = file.run.labels.as_ref().map(|labels| *labels.get_ref());
    let Some(spanned) = &file.labels else {
        return match &file.run.labels {
            Some(labels) if wanted == Some(true) => {
                let why = "labels = true: say whose count and how much they may promise, such as \
                    [labels] namespaces = [\"prod\"], runtimes = [\"docker\"], max = \"50%\"";
                Err(source.fault(labels, why))
            }
            _ => Ok(None),
        };
    };
    let table = spanned.get_ref();
    if table.namespaces.is_empty() && table.runtimes.is_empty() {
        return Err(source.fault(spanned, "[labels]: name namespaces, runtimes or both"));
    }
    for namespace in &table.namespaces {
        let front = namespace.get_ref().strip_suffix('*').unwrap_or(namespace.get_ref());
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if namespace.get_ref().is_empty() || !front.chars().all(plain) {
            let why = format!("namespaces {:?}: a namespace, or its beginning and a *", namespace.get_ref());
            return Err(source.fault(namespace, why));
        }
    }
    const RUNTIMES: [&str; 4] = ["docker", "podman", "containerd", "cri-o"];
    if let Some(other) = table.runtimes.iter().find(|name| !RUNTIMES.contains(&name.get_ref().as_str())) {
        let why = format!("runtimes {:?}: there are {}", other.get_ref(), RUNTIMES.join(", "));
        return Err(source.fault(other, why));
    }
    let amount =
        |text: &Spanned<String>| text.get_ref().parse::<CpuAmount>().map_err(|e| source.fault(text, e));
    let wait = |text: &Spanned<String>| {
        wait_ns(text.get_ref()).map_err(|e| source.fault(text, format!("wait_p99: {e}")))
    };
    let rules = LabelRules {
        trusted: Trusted { namespaces: values(&table.namespaces), runtimes: values(&table.runtimes) },
        max: amount(&table.max)?,
        total: table.total.as_ref().map(amount).transpose()?,
        wait_p99_ns: table.wait_p99.as_ref().map(wait).transpose()?,
    };
    Ok((wanted != Some(false)).then_some(rules))
}
