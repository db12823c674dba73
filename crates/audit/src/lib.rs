//! What is wrong with a host's set-up: `(facts, observation, expectations) -> findings`.
//!
//! A rule is a file under `rules/` with one `pub(super) const RULE: Rule` and one line in [`RULES`]; see
//! `docs/check.md` for how to write one. Rules are pure, never panic, and answer "unknown" with the reason when a
//! fact they need could not be read: an unknown is neither a pass nor a fail.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod expect;
pub mod fair;
mod fix;
mod rules;
pub mod view;

#[cfg(test)]
pub(crate) mod testing;

use evenkeel_base::facts::Unknown;
use evenkeel_base::run::ChangeRecord;
use evenkeel_base::{HostFacts, Observation};
use serde::{Deserialize, Serialize};

pub use expect::{Expectations, Given, Ignore, Matcher, Service};
pub use rules::RULES;

/// Result of a rule for one subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Looked at and found right.
    Pass,
    /// Found wrong.
    Fail,
    /// A fact needed could not be read.
    Unknown,
}

/// How much a failed finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; does not make `check` fail.
    Info,
    /// Costs performance or fairness.
    Warning,
    /// Breaks what the host was set up for.
    Error,
}

/// What one rule says about one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the rule.
    pub rule: String,
    /// Pass, fail or unknown.
    pub status: Status,
    /// How much it matters (for a pass: how much a fail would).
    pub severity: Severity,
    /// What it is about: `host`, `cpu 3`, `irq 34 (nvme0q1)`, `task 812 (redis)`, `cgroup /system.slice/x.service`.
    pub subject: String,
    /// What was read from the host, with numbers.
    pub evidence: String,
    /// What that leads to; `None` unless failed.
    pub consequence: Option<String>,
    /// Shell commands that put it right, one a line; lines starting with `#` explain. `None` unless failed.
    pub fix: Option<String>,
    /// The reason given in the policy file's `[[ignore]]`: counted neither as fail nor for the exit status.
    pub ignored: Option<String>,
}

impl Finding {
    /// The same finding with another severity than its rule's.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// Whether it makes `check` fail: failed, at least a warning, not ignored.
    pub fn counts(&self) -> bool {
        self.status == Status::Fail && self.severity >= Severity::Warning && self.ignored.is_none()
    }
}

/// Everything a rule may look at.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Facts read once.
    pub facts: &'a HostFacts,
    /// Rates between two samples, ownership, topology.
    pub observation: &'a Observation,
    /// What the user expects (`--policy`).
    pub expectations: &'a Expectations,
}

/// One rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Name in kebab-case, stable: scripts and `[[ignore]]` refer to it.
    pub name: &'static str,
    /// Severity of its failed findings unless one says otherwise.
    pub severity: Severity,
    /// What it checks, one line.
    pub about: &'static str,
    /// The rule itself. `Err` makes one "unknown" finding about the host.
    pub check: fn(&Rule, &Input<'_>) -> Result<Vec<Finding>, Unknown>,
}

/// Findings about more subjects than this are summed up in one: a host with 1,000 containers set up the same
/// way has one problem, not 1,000.
pub const MAX_SUBJECTS: usize = 10;

impl Rule {
    /// Runs the rule.
    pub fn run(&self, input: &Input<'_>) -> Vec<Finding> {
        match (self.check)(self, input) {
            Ok(findings) => self.sum_up(findings),
            Err(Unknown(reason)) => vec![self.unknown("host", reason)],
        }
    }

    /// The findings, or one pass about the host when nothing failed and nothing is unknown.
    pub fn or_pass(&self, findings: Vec<Finding>, evidence: impl Into<String>) -> Vec<Finding> {
        if findings.is_empty() { vec![self.pass("host", evidence)] } else { findings }
    }

    /// A pass.
    pub fn pass(&self, subject: impl Into<String>, evidence: impl Into<String>) -> Finding {
        self.finding(Status::Pass, subject.into(), evidence.into())
    }

    /// A fact that could not be read.
    pub fn unknown(&self, subject: impl Into<String>, reason: impl Into<String>) -> Finding {
        self.finding(Status::Unknown, subject.into(), reason.into())
    }

    /// A fail.
    pub fn fail(
        &self,
        subject: impl Into<String>,
        evidence: impl Into<String>,
        consequence: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        let mut finding = self.finding(Status::Fail, subject.into(), evidence.into());
        finding.consequence = Some(consequence.into());
        finding.fix = Some(fix.into());
        finding
    }

    fn finding(&self, status: Status, subject: String, evidence: String) -> Finding {
        Finding {
            rule: self.name.to_owned(),
            status,
            severity: self.severity,
            subject,
            evidence,
            consequence: None,
            fix: None,
            ignored: None,
        }
    }

    /// Keeps the first [`MAX_SUBJECTS`] of each status (rules put the worst first) and names the others in one more.
    fn sum_up(&self, findings: Vec<Finding>) -> Vec<Finding> {
        let mut kept = Vec::new();
        for status in [Status::Fail, Status::Unknown, Status::Pass] {
            let (mut all, mut rest) = (findings.iter().filter(|f| f.status == status), Vec::new());
            kept.extend(all.by_ref().take(MAX_SUBJECTS).cloned());
            rest.extend(all);
            let Some(first) = rest.first() else { continue };
            let named: Vec<&str> = rest.iter().take(MAX_SUBJECTS).map(|f| f.subject.as_str()).collect();
            let dots = if rest.len() > named.len() { ", ..." } else { "" };
            let mut more = (*first).clone();
            more.severity = rest.iter().map(|f| f.severity).max().unwrap_or(self.severity);
            more.subject = format!("{} more", rest.len());
            more.evidence = format!("the same for {}{dots}", named.join(", "));
            kept.push(more);
        }
        kept
    }
}

/// Counts of findings by status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Rules' subjects found right.
    pub pass: usize,
    /// Found wrong and not ignored, of any severity.
    pub fail: usize,
    /// Not known.
    pub unknown: usize,
    /// Found wrong or unknown, and ignored by the policy file.
    pub ignored: usize,
}

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Counts.
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
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule.run(input)).collect();
    let (ignores, changed) = (&input.expectations.ignore, changed_by_run(input));
    let mut used = vec![false; ignores.len()];
    for finding in findings.iter_mut().filter(|f| f.status != Status::Pass) {
        if let Some(index) = ignores.iter().position(|ignore| ignore.matches(&finding.rule, &finding.subject))
        {
            used[index] = true;
            finding.ignored = Some(ignores[index].reason.clone());
        } else {
            finding.ignored = meant_by_run(finding, &changed);
        }
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
