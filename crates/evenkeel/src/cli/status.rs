//! `evenkeel status`.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use evenkeel_actuate::{FileMedium, Holder};
use evenkeel_base::run::{KERNEL_DEFAULT, RunRecord};
use evenkeel_report::run::{self, DocumentKind};
use evenkeel_report::{table, time};
use evenkeel_store::{RunId, Store, StoredRun};
use serde::Serialize;
use serde_json::json;

use super::{Failure, Format, Global, Outcome};

/// Show whether an agent is at work, and what the last run did: settings and changes in force, fulfilment before and
/// now, the agent's own cost.
///
/// Exit status: 0 whether or not an agent runs (see `agent` in the JSON), 3 if the state directory cannot be read.
///
/// Example: evenkeel status -o json
#[derive(Debug, clap::Args)]
pub struct Args {}

/// How the last run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Its agent is at work.
    Running,
    /// It ended by itself or was stopped.
    Ended,
    /// It did not end, but its agent is gone.
    Killed,
    /// There is none.
    None,
}

impl State {
    fn of(run: Option<&StoredRun>, agent: Option<&Agent>) -> Self {
        match run {
            None => Self::None,
            Some(run) if run.ended_ns.is_some() => Self::Ended,
            // Without a legible pid in the lock, the newest run is taken to be the agent's.
            Some(run) => match agent {
                Some(Agent(Some(holder))) if holder.pid != run.record.pid => Self::Killed,
                Some(_) => Self::Running,
                None => Self::Killed,
            },
        }
    }
}

/// The process that holds the state directory's lock, as far as the lock tells.
#[derive(Debug)]
struct Agent(Option<Holder>);

fn read(state_dir: &Path) -> anyhow::Result<(Option<StoredRun>, Option<Agent>, State)> {
    let agent = FileMedium::holder(state_dir)
        .context("cannot tell whether an agent is running (run as root)")?
        .map(Agent);
    let store = Store::open_read_only(&state_dir.join(evenkeel_store::FILE_NAME))?;
    let mut last = store.map_or(Ok(None), |store| store.last_run())?;
    let state = State::of(last.as_ref(), agent.as_ref());
    let is_over = state == State::Ended || state == State::Killed && !has_journal(state_dir);
    if let Some(run) = last.as_mut().filter(|_| is_over) {
        // Nothing of it is in force but what could not be restored: what it brought is in the history.
        run.record.settings = KERNEL_DEFAULT.to_owned();
        (run.record.now, run.record.effect_now) = (None, None);
        if !has_journal(state_dir) {
            // `restore` has put back what was left.
            run.record.changes.clear();
        }
    }
    Ok((last, agent, state))
}

/// Whether changes may be in force that nobody has restored; so it is said where that cannot be told.
fn has_journal(state_dir: &Path) -> bool {
    FileMedium::journal(state_dir).try_exists().unwrap_or(true)
}

/// Whether the agent of this run is known to be at work.
pub(super) fn is_running(state_dir: &Path, run: &StoredRun) -> bool {
    let agent = FileMedium::holder(state_dir).ok().flatten().map(Agent);
    State::of(Some(run), agent.as_ref()) == State::Running
}

/// What `top` shows of it: in sentences, and the record while its agent is at work.
pub(super) fn at_work(state_dir: &Path) -> anyhow::Result<(String, Option<RunRecord>)> {
    let (last, agent, state) = read(state_dir)?;
    let mut headline = headline(state_dir, last.as_ref(), agent.as_ref(), state);
    // An agent that records no history is at work without a record.
    if agent.is_none() {
        headline += "Nothing is being changed. `evenkeel plan` shows what a loop would try; `evenkeel run` starts one.\n";
    }
    Ok((headline, last.filter(|_| state == State::Running).map(|run| run.record)))
}

/// What the agent at work says; `None` where there is none, or it records nothing.
pub(super) fn of_agent(state_dir: &Path) -> Option<RunRecord> {
    let (last, _, state) = read(state_dir).ok()?;
    last.filter(|_| state == State::Running).map(|run| run.record)
}

pub fn run(global: &Global, _args: Args) -> Outcome {
    global.no_tree("a captured tree has no status; name a --state-dir instead")?;
    let (last, agent, state) = read(&global.state_dir).map_err(Failure::Cannot)?;
    let out = match global.output {
        Format::Json => json(last.as_ref(), agent.as_ref(), state),
        Format::Csv => {
            let changes = last.as_ref().map(|run| run.record.changes.as_slice()).unwrap_or_default();
            run::change_table(true).csv(changes)
        }
        Format::Text | Format::Svg => {
            let headline = headline(&global.state_dir, last.as_ref(), agent.as_ref(), state);
            let width = table::width(std::io::stdout().is_terminal());
            let record =
                last.map(|run| format!("\n{}", run::text(&run.record, state == State::Running, width)));
            headline + record.as_deref().unwrap_or_default()
        }
    };
    out!("{out}")?;
    Ok(0)
}

/// `evenkeel.status/v1`.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    of_run: run::Document<'a>,
    agent: Option<AgentDocument>,
    state: State,
    run: Option<RunId>,
    ended: Option<String>,
    outcome: Option<&'a str>,
}

#[derive(Serialize)]
struct AgentDocument {
    pid: Option<u32>,
    since: Option<String>,
}

fn json(last: Option<&StoredRun>, agent: Option<&Agent>, state: State) -> String {
    let empty = RunRecord::default();
    let of_agent = |Agent(holder): &Agent| AgentDocument {
        pid: holder.as_ref().map(|holder| holder.pid),
        since: holder.as_ref().and_then(|holder| time::rfc3339(holder.since.saturating_mul(1_000_000_000))),
    };
    let document = Document {
        of_run: run::Document::of(last.map_or(&empty, |run| &run.record), DocumentKind::Status),
        agent: agent.map(of_agent),
        state,
        run: last.map(|run| run.id),
        ended: last.and_then(|run| run.ended_ns).and_then(time::rfc3339),
        outcome: last.and_then(|run| run.outcome.as_deref()),
    };
    format!("{:#}\n", json!(document))
}

/// Who is at work, and the last run, in a line each.
fn headline(state_dir: &Path, last: Option<&StoredRun>, agent: Option<&Agent>, state: State) -> String {
    let is_left = agent.is_none() && has_journal(state_dir);
    let agent = match agent {
        None => "No agent is running.".to_owned(),
        Some(Agent(None)) => "An agent is running (its pid is not known).".to_owned(),
        Some(Agent(Some(holder))) => format!(
            "An agent is running: pid {}, since {} UTC.",
            holder.pid,
            time::short(holder.since.saturating_mul(1_000_000_000))
        ),
    };
    let Some(last) = last else {
        return format!("{agent}\nNothing recorded of any run in {}.\n", state_dir.display());
    };
    let started = time::short(last.record.started_ns);
    let headline = match state {
        State::Running | State::None => format!("Run {}, started {started} UTC:", last.id.0),
        State::Ended => format!(
            "Last run: {}, started {started} UTC, ended {} UTC ({}).{}",
            last.id.0,
            last.ended_ns.map_or_else(|| "?".to_owned(), time::short),
            last.outcome.as_deref().unwrap_or("?"),
            if is_left { " Changes are left: `evenkeel restore` puts them back." } else { "" }
        ),
        State::Killed => format!(
            "Last run: {}, started {started} UTC, did not end by itself{}",
            last.id.0,
            match has_journal(state_dir) {
                true => ". `evenkeel restore` puts back what it may have left.",
                false => "; nothing of it is left to restore.",
            }
        ),
    };
    format!("{agent}\n{headline}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_being_changed_only_while_no_agent_is_running() {
        let dir = tempfile::tempdir().unwrap();
        let words = || at_work(dir.path()).unwrap().0;
        assert!(words().contains("No agent is running.") && words().contains("Nothing is being changed."));
        let _lock = FileMedium::open(dir.path()).unwrap();
        assert!(words().starts_with("An agent is running") && !words().contains("Nothing is"), "{}", words());
    }
}
