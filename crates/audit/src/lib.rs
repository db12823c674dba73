//! What is wrong with a host's set-up: `(facts, observation, expectations) -> findings`.
//!
//! A rule is a file under `rules/` with one `pub(super) const RULE: Rule` and one line in [`RULES`]; see
//! `CONTRIBUTING.md` for how to write one. Rules are pure, never panic, and answer "unknown" with the reason when a
//! fact they need could not be read: an unknown is neither a pass nor a fail.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod expect;
pub mod fair;
mod fix;
mod policy_file;
mod rule;
mod rules;
pub mod view;

#[cfg(test)]
pub(crate) mod testing;

use evenkeel_base::run::ChangeRecord;
use serde::{Deserialize, Serialize};

pub use expect::{Expectations, Given, Ignore, Service};
pub use rule::{Finding, Input, MAX_SUBJECTS, Rule, Severity, Status};
pub use rules::RULES;

/// Counts of findings by status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Rules' subjects found right.
    pub pass: usize,
    /// Found wrong and not ignored, of any severity.
    pub fail: usize,
    pub unknown: usize,
    /// Found wrong or unknown, and ignored by the policy file.
    pub ignored: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub summary: Summary,
    /// In the order of [`RULES`].
    pub findings: Vec<Finding>,
    /// `[[ignore]]` entries that matched nothing, so that they do not outlive their reason.
    pub stale_ignores: Vec<String>,
}

impl Report {
    /// Whether any finding makes `check` fail.
    pub fn failed(&self) -> bool {
        self.findings.iter().any(Finding::counts)
    }
}

/// Cgroups that a run of evenkeel at work has changed, as findings name them, with the changes.
fn changed_by_run<'a>(input: &Input<'a>) -> Vec<(String, &'a ChangeRecord)> {
    let named = |change: &'a ChangeRecord| {
        let path = change.group.as_deref()?;
        let index = input.observation.groups.iter().position(|view| view.path == path)?;
        Some((view::group_name(input.observation, u32::try_from(index).ok()?), change))
    };
    input.expectations.set_by_run.iter().filter_map(named).collect()
}

/// Why a finding about a cgroup's weight or quota is none: such a run set it.
fn meant_by_run(finding: &Finding, changed: &[(String, &ChangeRecord)]) -> Option<String> {
    let concerned = |(name, change): &&(String, &ChangeRecord)| {
        finding.rule.starts_with(&change.knob) && *name == finding.subject
    };
    let (_, change) = changed.iter().find(concerned)?;
    Some(format!("`evenkeel run` is at work and set {}: {}", change.to, change.why))
}

/// Runs every rule of [`RULES`].
pub fn audit(input: &Input<'_>) -> Report {
    let mut findings = Vec::new();
    let (ignores, changed) = (&input.expectations.ignore, changed_by_run(input));
    let mut used = vec![false; ignores.len()];
    for rule in RULES {
        // Before they are summed up: who is one of many is ignored all the same.
        let mut found = rule.findings(input);
        for finding in found.iter_mut().filter(|f| f.status != Status::Pass) {
            let matching = ignores.iter().position(|ignore| ignore.matches(&finding.rule, &finding.subject));
            if let Some(index) = matching {
                used[index] = true;
                finding.ignored = Some(ignores[index].reason.clone());
            } else {
                finding.ignored = meant_by_run(finding, &changed);
            }
        }
        findings.extend(rule.sum_up(found));
    }
    let mut summary = Summary::default();
    for finding in &findings {
        match finding.status {
            _ if finding.ignored.is_some() => summary.ignored += 1,
            Status::Pass => summary.pass += 1,
            Status::Fail => summary.fail += 1,
            Status::Unknown => summary.unknown += 1,
        }
    }
    let stale_ignores =
        ignores.iter().zip(used).filter(|(_, used)| !used).map(|(ignore, _)| ignore.to_string()).collect();
    Report { summary, findings, stale_ignores }
}

#[cfg(test)]
mod tests;
