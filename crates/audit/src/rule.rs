//! What a rule is, what it is given, and what it finds.

use evenkeel_base::facts::Unknown;
use evenkeel_base::{HostFacts, Observation};
use serde::{Deserialize, Serialize};

use crate::expect::Expectations;

evenkeel_base::named! {
    /// Result of a rule for one subject.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Status {
        /// Looked at and found right.
        Pass = "pass",
        Fail = "fail",
        /// A fact needed could not be read.
        Unknown = "unknown",
    }
}

evenkeel_base::named! {
    /// How much a failed finding matters.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Severity {
        /// Worth knowing; does not make `check` fail.
        Info = "info",
        /// Costs performance or fairness.
        Warning = "warning",
        /// Breaks what the host was set up for.
        Error = "error",
    }
}

/// What one rule says about one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub rule: String,
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
    pub facts: &'a HostFacts,
    /// Rates between two samples, ownership, topology.
    pub observation: &'a Observation,
    /// What the user expects (`--policy`).
    pub expectations: &'a Expectations,
}

#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Name in kebab-case, stable: scripts and `[[ignore]]` refer to it.
    pub name: &'static str,
    /// Severity of its failed findings unless one says otherwise.
    pub severity: Severity,
    pub about: &'static str,
    /// The rule itself. `Err` makes one "unknown" finding about the host.
    pub check: fn(&Rule, &Input<'_>) -> Result<Vec<Finding>, Unknown>,
}

/// Findings about more subjects than this are summed up in one: a host with 1,000 containers set up the same
/// way has one problem, not 1,000.
pub const MAX_SUBJECTS: usize = 10;

impl Rule {
    /// One for each subject.
    pub(crate) fn findings(&self, input: &Input<'_>) -> Vec<Finding> {
        (self.check)(self, input).unwrap_or_else(|Unknown(reason)| vec![self.unknown("host", reason)])
    }

    /// The findings, or one pass about the host when nothing failed and nothing is unknown.
    pub fn or_pass(&self, findings: Vec<Finding>, evidence: impl Into<String>) -> Vec<Finding> {
        if findings.is_empty() { vec![self.pass("host", evidence)] } else { findings }
    }

    pub fn pass(&self, subject: impl Into<String>, evidence: impl Into<String>) -> Finding {
        self.finding(Status::Pass, subject.into(), evidence.into())
    }

    /// A fact that could not be read.
    pub fn unknown(&self, subject: impl Into<String>, reason: impl Into<String>) -> Finding {
        self.finding(Status::Unknown, subject.into(), reason.into())
    }

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

    /// Keeps the first [`MAX_SUBJECTS`] of each status (rules put the worst first) and names the others in one more; ignored ones
    /// apart.
    pub(crate) fn sum_up(&self, findings: Vec<Finding>) -> Vec<Finding> {
        let mut kept = Vec::new();
        let statuses = [Status::Fail, Status::Unknown, Status::Pass];
        for (status, ignored) in statuses.into_iter().flat_map(|status| [(status, false), (status, true)]) {
            let is = |f: &&Finding| f.status == status && f.ignored.is_some() == ignored;
            let (mut all, mut rest) = (findings.iter().filter(is), Vec::new());
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
