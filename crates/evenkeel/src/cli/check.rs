//! `evenkeel check`: what is wrong with the host's set-up.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use evenkeel_agent::{Guarantees, Scope};
use evenkeel_audit::{Expectations, Finding, Input, Report, Rule, Severity, Status};
use evenkeel_base::facts::HostFacts;
use evenkeel_base::text::count;
use evenkeel_base::{Observation, Sample};
use evenkeel_linux::Root;
use evenkeel_observe::facts::{FactsOptions, read_facts};
use evenkeel_observe::{Detail, Endpoints, Observer, ObserverOptions, RUNTIMES_WAIT, Sampling};
use evenkeel_report::table::{self, Field, Table, printable};
use evenkeel_store::Store;
use serde::Serialize;

use super::{Failure, Format, Global, Outcome, show};

/// Look for what is wrong with the set-up: findings with evidence, consequence and the exact fix.
///
/// Changes nothing. Exit status: 1 if a finding failed with severity warning or error, 0 otherwise, 2 for a bad
/// policy file, 3 if the host cannot be read. Unknown (unreadable) facts do not fail a check. Rules and the policy
/// file: docs/check.md.
///
/// Example: evenkeel check --policy host.toml
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What you expect of this host (TOML): isolated CPUs, services on one NUMA node, findings to ignore.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Time between the two samples.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = super::duration)]
    interval: Duration,
    /// Show what passed, too.
    #[arg(long)]
    all: bool,
    /// List the rules and end.
    #[arg(long)]
    list: bool,
}

/// Shortest interval that shows anything: a quota's period is 100 ms, /proc/stat counts in 10 ms.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Processes whose memory is read on a NUMA host: the walk costs some 10 ms a gigabyte.
const MEMORY_OF: usize = 16;

/// Processes whose autogroup is read.
const AUTOGROUPS_OF: usize = 4096;

pub fn run(global: &Global, args: Args) -> Outcome {
    if args.list {
        return list(global.output);
    }
    if args.interval < MIN_INTERVAL {
        return Err(usage!("--interval {:?}: at least 100ms", args.interval));
    }
    let promised = super::settings::guarantees(global)?;
    let mut expectations = match &args.policy {
        Some(path) => read_policy(path).map_err(Failure::Usage)?,
        None => Expectations::default(),
    };
    let root = show::root(global)?;
    let observation =
        observe(&root, args.interval, global.sampling.unwrap_or_default()).map_err(Failure::Cannot)?;
    let state_dir = global.root.is_none().then_some(global.state_dir.as_path());
    add_run(&mut expectations, state_dir, promised, &observation);
    let facts = read_facts(&root, &facts_wanted(&observation));
    let report = evenkeel_audit::audit(&Input {
        facts: &facts,
        observation: &observation,
        expectations: &expectations,
    });
    for stale in &report.stale_ignores {
        say!("evenkeel: [[ignore]] {stale} matches no finding");
    }
    let out = match global.output {
        Format::Json => show::pretty(&Document {
            schema: "evenkeel.check/v1",
            interval_s: observation.interval_s,
            report: &report,
        })?,
        Format::Csv => finding_table().csv(&report.findings),
        Format::Text | Format::Svg => {
            text(&report, &observation, &facts, args.all, std::io::stdout().is_terminal())
        }
    };
    out!("{out}")?;
    Ok(u8::from(report.failed()))
}

/// How promises stand, as the agent that keeps them last said, else as this observation shows; and what it has in force. A captured
/// tree has no state directory.
fn add_run(
    expectations: &mut Expectations,
    state_dir: Option<&Path>,
    (promised, scope): (Guarantees, Scope),
    observation: &Observation,
) {
    let statuses = &mut expectations.guarantees;
    *statuses = evenkeel_agent::guarantee::look(promised, &scope, observation);
    let Some(state_dir) = state_dir else { return };
    let store = Store::open_read_only(&state_dir.join(evenkeel_store::FILE_NAME)).ok().flatten();
    let Some(store) = store else { return };
    // The word of an agent at work counts: it has looked longer.
    let run = super::status::of_agent(state_dir).unwrap_or_default();
    let kept = run.guarantees;
    let minute = observation.wall_ns / 60_000_000_000;
    for status in &mut *statuses {
        if let Some(kept) = kept.iter().find(|g| g.name == status.name && g.promise == status.promise) {
            *status = kept.clone();
            expectations.kept_by_run.insert(kept.name.clone());
        }
        let day = store.promise_day(&status.name, minute).ok().flatten();
        status.broken_min_day = day.map(|time| time.broken_s / 60.0).or(status.broken_min_day);
    }
    let new: Vec<_> = kept.into_iter().filter(|g| !statuses.iter().any(|s| s.name == g.name)).collect();
    expectations.kept_by_run.extend(new.iter().map(|g| g.name.clone()));
    statuses.extend(new);
    expectations.set_by_run = run.changes;
}

/// What is found on this host without a policy, as `-o json` has it.
pub fn document(
    state_dir: &Path,
    sampling: Sampling,
    interval: Duration,
) -> anyhow::Result<serde_json::Value> {
    let root = Root::host();
    let observation = observe(&root, interval, sampling)?;
    let facts = read_facts(&root, &facts_wanted(&observation));
    let mut expectations = Expectations::default();
    add_run(&mut expectations, Some(state_dir), Default::default(), &observation);
    let report = evenkeel_audit::audit(&Input {
        facts: &facts,
        observation: &observation,
        expectations: &expectations,
    });
    let document =
        Document { schema: "evenkeel.check/v1", interval_s: observation.interval_s, report: &report };
    Ok(serde_json::to_value(document)?)
}

fn read_policy(path: &Path) -> anyhow::Result<Expectations> {
    let text =
        evenkeel_linux::input::read_text(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Expectations::parse(path, &text)?)
}

fn observe(root: &Root, interval: Duration, sampling: Sampling) -> anyhow::Result<Observation> {
    let mut options = ObserverOptions { sampling, ..ObserverOptions::default() };
    if !root.is_live() {
        options.runtimes = Endpoints::none();
    }
    let mut observer = Observer::new(root, options)?;
    let before: Sample;
    if root.is_live() {
        before = observer.sample()?;
        observer.wait_for_runtimes(RUNTIMES_WAIT.min(interval));
        let spent =
            Duration::from_nanos(evenkeel_linux::sys::monotonic_ns().saturating_sub(before.monotonic_ns));
        std::thread::sleep(interval.saturating_sub(spent));
    } else {
        // A captured tree: its earlier sample, or none, in which case nothing has a rate.
        before = match root.earlier() {
            Some(earlier) => Observer::new(
                &earlier,
                ObserverOptions { runtimes: Endpoints::none(), ..ObserverOptions::default() },
            )?
            .sample()?,
            None => {
                say!(
                    "evenkeel: {} holds one sample: CPU use, waits and throttling read as none",
                    root.dir().display()
                );
                observer.sample()?
            }
        };
    }
    let after = observer.sample()?;
    Ok(observer.observe_named(&before, &after, &Detail::All, RUNTIMES_WAIT.min(interval))?)
}

/// The costly facts, only for processes that matter: active ones, those with a nice value first.
fn facts_wanted(observation: &Observation) -> FactsOptions {
    let mut active: Vec<(f64, u32)> = observation
        .tasks
        .iter()
        .filter(|task| !task.kernel_thread)
        .map(|task| {
            let niced = task.sched.is_some_and(|sched| sched.nice.get() != 0);
            let demand = task.cpu_pct + task.wait_pct.unwrap_or(0.0);
            (if niced { demand + 1000.0 } else { demand }, task.id.tgid)
        })
        .filter(|(demand, _)| *demand > 0.0)
        .collect();
    active.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut seen = BTreeSet::new();
    active.retain(|(_, tgid)| seen.insert(*tgid));
    let mut by_cpu = std::collections::BTreeMap::<u32, f64>::new();
    for task in observation.tasks.iter().filter(|task| !task.kernel_thread) {
        *by_cpu.entry(task.id.tgid).or_default() += task.cpu_pct;
    }
    let mut busiest: Vec<(f64, u32)> = by_cpu.into_iter().map(|(tgid, pct)| (pct, tgid)).collect();
    busiest.sort_by(|a, b| b.0.total_cmp(&a.0));
    FactsOptions {
        autogroups_of: active.into_iter().map(|(_, tgid)| tgid).take(AUTOGROUPS_OF).collect(),
        memory_of: busiest.into_iter().map(|(_, tgid)| tgid).take(MEMORY_OF).collect(),
    }
}

/// The document `evenkeel.check/v1`.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    interval_s: f64,
    #[serde(flatten)]
    report: &'a Report,
}

fn finding_table() -> Table<Finding> {
    Table::new(vec![
        Field::new("rule", "RULE", |f: &Finding| f.rule.as_str().into()),
        Field::new("status", "STATUS", |f: &Finding| f.status.name().into()),
        Field::new("severity", "SEVERITY", |f: &Finding| f.severity.name().into()),
        Field::new("subject", "SUBJECT", |f: &Finding| f.subject.as_str().into()),
        Field::new("evidence", "EVIDENCE", |f: &Finding| f.evidence.as_str().into()),
        Field::new("consequence", "CONSEQUENCE", |f: &Finding| f.consequence.as_deref().into()),
        Field::new("fix", "FIX", |f: &Finding| f.fix.as_deref().into()),
        Field::new("ignored", "IGNORED", |f: &Finding| f.ignored.as_deref().into()),
    ])
}

/// Colours, where they are wanted.
struct Paint(bool);

impl Paint {
    fn with(&self, code: &str, text: &str) -> String {
        let text = printable(text);
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text }
    }
}

/// Findings, the worst first, grouped by rule; then what is unknown, then sums.
fn text(report: &Report, observation: &Observation, facts: &HostFacts, all: bool, colour: bool) -> String {
    let paint = Paint(colour);
    let mut out = String::new();
    let release = facts.release.ok().map_or("unknown release", String::as_str);
    let _ = writeln!(
        out,
        "{}, Linux {release}, looked at {} in {} for {:.1} s",
        count(observation.host.cpus as usize, "CPU"),
        count(observation.tasks.len(), "task"),
        count(observation.groups.len(), "cgroup"),
        observation.interval_s
    );
    let mut failed: Vec<&Finding> =
        report.findings.iter().filter(|f| f.status == Status::Fail && f.ignored.is_none()).collect();
    // Stable: within a severity, in the order of the rules.
    failed.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in failed {
        let (name, code) = match finding.severity {
            Severity::Error => ("ERROR", "1;31"),
            Severity::Warning => ("WARNING", "1;33"),
            Severity::Info => ("info", "36"),
        };
        let _ = writeln!(
            out,
            "\n{}  {}  {}",
            paint.with(code, &format!("{name:<7}")),
            paint.with("1", &finding.subject),
            paint.with("2", &format!("[{}]", finding.rule))
        );
        let _ = writeln!(out, "  evidence     {}", wrap(&finding.evidence));
        if let Some(consequence) = &finding.consequence {
            let _ = writeln!(out, "  consequence  {}", wrap(consequence));
        }
        for (index, line) in finding.fix.iter().flat_map(|fix| fix.lines()).enumerate() {
            let label = if index == 0 { "fix" } else { "" };
            let line = if line.starts_with('#') { paint.with("2", line) } else { paint.with("32", line) };
            let _ = writeln!(out, "  {label:<11}  {line}");
        }
    }
    section(&mut out, &paint, "unknown", report, |f| f.status == Status::Unknown && f.ignored.is_none());
    section(&mut out, &paint, "ignored", report, |f| f.ignored.is_some());
    if all {
        section(&mut out, &paint, "passed", report, |f| f.status == Status::Pass);
    }
    let sums = report.summary;
    let worst = |severity| report.findings.iter().filter(|f| f.counts() && f.severity == severity).count();
    let (errors, warnings) = (worst(Severity::Error), worst(Severity::Warning));
    let _ = write!(
        out,
        "\n{} passed, {} failed ({errors} errors, {warnings} warnings, {} info), {} unknown",
        sums.pass,
        sums.fail,
        sums.fail.saturating_sub(errors + warnings),
        sums.unknown
    );
    if sums.ignored > 0 {
        let _ = write!(out, ", {} ignored", sums.ignored);
    }
    out.push_str(if all { "\n" } else { "; --all shows what passed\n" });
    out
}

/// A list of findings of one line each.
fn section(out: &mut String, paint: &Paint, title: &str, report: &Report, which: impl Fn(&Finding) -> bool) {
    let mut findings = report.findings.iter().filter(|finding| which(finding)).peekable();
    if findings.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint.with("1", title));
    for finding in findings {
        let subject =
            if finding.subject == "host" { String::new() } else { format!("{}: ", finding.subject) };
        let reason = finding.ignored.as_ref().map_or(String::new(), |reason| format!(" (ignored: {reason})"));
        let line = printable(&format!("{subject}{}{reason}", finding.evidence));
        let _ = writeln!(out, "  {:<22} {line}", finding.rule);
    }
}

/// Breaks prose at 96 columns, continued under its beginning.
fn wrap(text: &str) -> String {
    table::wrap(&printable(text), 96).trim_end().replace('\n', "\n               ")
}

fn list(format: Format) -> Outcome {
    let rules = evenkeel_audit::RULES;
    let table = Table::new(vec![
        Field::text("rule", "RULE", |rule: &Rule| rule.name),
        Field::text("severity", "SEVERITY", |rule: &Rule| rule.severity.name()),
        Field::text("about", "ABOUT", |rule: &Rule| rule.about),
    ]);
    match format {
        Format::Json => {
            outln!("{:#}", serde_json::json!({"schema": "evenkeel.rules/v1", "rules": table.json(rules)}))?;
        }
        Format::Csv => out!("{}", table.csv(rules))?,
        Format::Text | Format::Svg => {
            for rule in rules {
                outln!("{:<22} {:<8} {}", rule.name, rule.severity, rule.about)?;
            }
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use evenkeel_base::run::{GuaranteeStatus, RunRecord};

    use super::*;

    #[test]
    fn what_a_killed_agent_said_last_is_not_how_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let kept = |pid| {
            let guarantees = vec![GuaranteeStatus { name: "pid:7".into(), ..GuaranteeStatus::default() }];
            let mut store =
                Store::open(&dir.path().join(evenkeel_store::FILE_NAME), Default::default()).unwrap();
            store.begin_run(&RunRecord { pid, guarantees, ..RunRecord::default() }).unwrap();
            let mut expectations = Expectations::default();
            add_run(&mut expectations, Some(dir.path()), Default::default(), &Observation::default());
            (expectations.guarantees.len(), expectations.kept_by_run.len())
        };
        // Another agent is at work, and records nothing.
        let _lock = evenkeel_actuate::FileMedium::open(dir.path()).unwrap();
        assert_eq!((kept(u32::MAX), kept(std::process::id())), ((0, 0), (1, 1)));
        let shown = document(dir.path(), Sampling::Proc, MIN_INTERVAL).unwrap();
        let mut shown = shown["findings"].as_array().unwrap().iter();
        assert!(
            shown.any(|finding| finding["subject"] == "guarantee pid:7"),
            "nor is it kept from the dashboard"
        );
    }

    #[test]
    fn long_prose_is_broken_and_nothing_is_lost() {
        let long = "word ".repeat(60);
        let wrapped = wrap(long.trim());
        assert!(wrapped.lines().count() > 1);
        assert!(wrapped.lines().all(|line| line.trim().len() <= 96));
        assert_eq!(wrapped.split_whitespace().count(), 60);
    }
}
