//! `evenkeel restore`: restores what a run changed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_actuate::{
    ActuateError, Item, Linux, OpenError, Recovery, RestoreReport, is_all_cpus, lock_holder, restore,
};
use evenkeel_base::printable;
use evenkeel_base::text::count;
use evenkeel_base::{Setting, Target};
use evenkeel_report::{Field, Table, Value};
use serde::Serialize;

use super::show::pretty;
use super::{Failure, Format, Global, Outcome};

/// Restore everything a run changed and did not restore itself, such as after `kill -9`.
///
/// Every surviving task and cgroup gets its original value, and so do network settings that `evenkeel net` made. What
/// another program changed meanwhile is left alone and reported. Nothing to do is no error.
///
/// Exit status: 0 done; 1 conflicts or failures remain, a journal was damaged (it is kept aside), or a run is at work;
/// 3 not permitted, or the journal was written in another namespace (such as another container's): it is kept.
///
/// Example: evenkeel restore --stop
#[derive(Debug, clap::Args)]
pub struct Args {
    /// If a run, a `net limit` or an experiment is at work, ask it to end (SIGTERM; it restores its changes itself) and
    /// wait for it first.
    #[arg(long)]
    stop: bool,
    /// Restore what a run changed alone: what `net` and experiments set stays, and is not waited for.
    #[arg(long)]
    run_only: bool,
    /// How long --stop waits.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = super::duration)]
    wait: Duration,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("restore changes this host: --root does not go with it")?;
    let mut dirs = vec![global.state_dir.clone()];
    if !args.run_only {
        dirs.extend(lasting(global));
    }
    if args.stop {
        for dir in &dirs {
            stop(dir, args.wait)?;
        }
    }
    let mut total = Recovery::default();
    let mut problem: Option<Failure> = None;
    for dir in &dirs {
        match restore(dir, Linux::new().context("cannot look at the kernel")?) {
            Ok(recovery) => add(&mut total, recovery),
            Err(ActuateError::Damaged { path, line, recovery }) => {
                let kept = recovery.kept_aside.clone().unwrap_or_else(|| path.clone());
                add(&mut total, *recovery);
                let damaged = refused!(
                    "{} was damaged in line {line}: what is readable was restored; the file is kept as {}",
                    path.display(),
                    kept.display()
                );
                problem = Some(worse(problem, damaged));
            }
            // The others are restored all the same.
            Err(error @ ActuateError::Open(OpenError::Busy(_))) => {
                problem = Some(worse(problem, Failure::No(error.into())));
            }
            Err(error) => problem = Some(worse(problem, cannot(error, dir))),
        }
    }
    let removed = if args.run_only { 0 } else { remove_leftovers(global) };
    if removed > 0 {
        let what = "cgroups and directories removed that a killed demo, prove, lab or exec had made";
        total.report.notes.push(format!("{removed} {what}"));
    }
    let nothing = !total.left_behind && total.report.notes.is_empty() && problem.is_some();
    if !nothing {
        show(global.output, &total)?;
    }
    if let Some(problem) = problem {
        return Err(problem);
    }
    let report = &total.report;
    if !report.failed.is_empty() && report.failed.iter().all(is_denied) {
        return Err(cannot!(
            "{} could not be restored for lack of privilege: run as root (CAP_SYS_NICE, and write access to \
             the cgroups); the journal is kept",
            count(report.failed.len(), "value")
        ));
    }
    if !report.unseen.is_empty() {
        return Err(refused!(
            "could not be looked at, so the journal is kept and `evenkeel restore` looks again: {}",
            report.unseen.join("; ")
        ));
    }
    Ok(u8::from(!report.is_clean()))
}

/// Where the journals of what `net` set and of experiments are, which have lives of their own.
fn lasting(global: &Global) -> [PathBuf; 2] {
    [super::net::state(global), global.state_dir.join("lab")]
}

/// Removes what commands that make cgroups and directories of their own left when they were killed; how many. Their names
/// and records carry the maker's pid, so it is done only where every process can be seen.
fn remove_leftovers(global: &Global) -> usize {
    if !evenkeel_linux::process::sees_every_process().unwrap_or(false) {
        return 0;
    }
    let records = global.state_dir.join("exec");
    let of_exec = || std::fs::read_dir(&records).map_or(0, Iterator::count);
    let before = of_exec();
    evenkeel_exec::sweep(&records);
    let groups = evenkeel_lab::launch::sweep_stale();
    before.saturating_sub(of_exec()) + groups
}

/// Adds what another journal came to.
fn add(total: &mut Recovery, more: Recovery) {
    total.left_behind |= more.left_behind;
    total.pid = total.pid.or(more.pid.filter(|pid| *pid > 0));
    total.report.append(more.report);
}

/// Of several journals' problems one is the command's failure; the others are said.
fn worse(known: Option<Failure>, more: Failure) -> Failure {
    let (worst, other) = match (known, more) {
        (None, more) => return more,
        (Some(known @ Failure::Cannot(_)), more) => (known, more),
        (Some(known), more) => (more, known),
    };
    say!("evenkeel: {:#}", other.into_error());
    worst
}

fn is_denied(item: &Item) -> bool {
    item.note.as_deref().is_some_and(|note| note.starts_with("not permitted"))
}

fn cannot(error: ActuateError, dir: &Path) -> Failure {
    let denied = matches!(&error, ActuateError::Open(OpenError::Io { error, .. }) | ActuateError::Journal { error, .. }
        if error.kind() == io::ErrorKind::PermissionDenied);
    let error = anyhow::Error::from(error);
    Failure::Cannot(if denied {
        error.context(format!("no access to {}: run as root", dir.display()))
    } else {
        error
    })
}

/// Asks who is at work in a state directory to end, and waits until it has.
fn stop(dir: &Path, wait: Duration) -> Result<(), Failure> {
    let held = || lock_holder(dir).map_err(|error| cannot(error.into(), dir));
    let Some(holder) = held()? else { return Ok(()) };
    let Some(holder) = holder else {
        return Err(cannot!(
            "{} is locked, but no process to be seen here holds it: end it yourself; run this as root, in the pid \
             namespace of the run",
            dir.join("lock").display()
        ));
    };
    let pid = holder.pid;
    if pid <= 1 {
        return Err(cannot!("{} is held by pid {pid}", dir.join("lock").display()));
    }
    say!("asking pid {pid} to end, which holds {}", dir.join("lock").display());
    holder.terminate().map_err(|error| {
        Failure::Cannot(anyhow::Error::from(error).context(format!("cannot signal pid {pid}: run as root")))
    })?;
    let until = Instant::now() + wait;
    while held()?.is_some() {
        if Instant::now() > until {
            let wait = humantime::format_duration(wait);
            return Err(refused!("pid {pid} has not ended within {wait}; its changes are in place"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// One line of the result. `from` is what was found now, `to` the original.
#[derive(Debug, Serialize)]
struct Row<'a> {
    outcome: &'static str,
    tgid: Option<u32>,
    tid: Option<u32>,
    start_time: Option<u64>,
    group: Option<&'a str>,
    /// Property of the network.
    net: Option<String>,
    comm: Option<&'a str>,
    knob: &'static str,
    from: Option<String>,
    to: String,
    descendant: bool,
    note: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    /// A journal was there.
    left_behind: bool,
    /// Process that wrote it.
    pid: Option<u32>,
    items: Vec<Row<'a>>,
    notes: &'a [String],
}

fn rows(report: &RestoreReport) -> Vec<Row<'_>> {
    let kinds = [
        ("put back", &report.put_back),
        ("already back", &report.already),
        ("gone", &report.gone),
        ("conflict", &report.conflicts),
        ("failed", &report.failed),
    ];
    kinds.into_iter().flat_map(|(outcome, items)| items.iter().map(move |item| row(outcome, item))).collect()
}

fn row<'a>(outcome: &'static str, item: &'a Item) -> Row<'a> {
    let (task, group, net) = match &item.target {
        Target::Task(id) => (Some(id), None, None),
        Target::Group(group) => (None, Some(group.path.as_str()), None),
        Target::Net(knob) => (None, None, Some(knob.to_string())),
        Target::Host => (None, None, None),
    };
    Row {
        outcome,
        tgid: task.map(|id| id.tgid),
        tid: task.map(|id| id.tid),
        start_time: task.map(|id| id.start_time),
        group,
        net,
        comm: item.comm.as_deref(),
        knob: item.knob.name(),
        from: item.found.as_ref().map(words),
        to: words(&item.original),
        descendant: item.descendant,
        note: item.note.as_deref(),
    }
}

fn words(setting: &Setting) -> String {
    match setting {
        Setting::Affinity(cpus) if is_all_cpus(cpus) => "all cpus".to_owned(),
        other => other.to_string(),
    }
}

fn table<'a>() -> Table<Row<'a>> {
    Table::new(vec![
        Field::new("outcome", "OUTCOME", |row: &Row<'_>| row.outcome.into()),
        Field::integer("tgid", "TGID", |row: &Row<'_>| row.tgid.map(i64::from)),
        Field::integer("tid", "TID", |row: &Row<'_>| row.tid.map(i64::from)),
        Field::integer("start_time", "START", |row: &Row<'_>| i64::try_from(row.start_time?).ok()),
        Field::new("group", "GROUP", |row: &Row<'_>| row.group.into()),
        Field::new("comm", "COMMAND", |row: &Row<'_>| row.comm.into()),
        Field::new("knob", "KNOB", |row: &Row<'_>| row.knob.into()),
        Field::new("from", "FROM", |row: &Row<'_>| row.from.as_deref().into()),
        Field::new("to", "TO", |row: &Row<'_>| row.to.as_str().into()),
        Field::new("descendant", "DESCENDANT", |row: &Row<'_>| Value::Bool(row.descendant)),
        Field::new("note", "NOTE", |row: &Row<'_>| row.note.into()),
        Field::new("net", "NET", |row: &Row<'_>| row.net.as_deref().into()),
    ])
}

fn show(format: Format, recovery: &Recovery) -> Result<(), Failure> {
    let rows = rows(&recovery.report);
    match format {
        Format::Json => out!(
            "{}",
            pretty(&Document {
                schema: "evenkeel.restore/v1",
                left_behind: recovery.left_behind,
                pid: recovery.pid,
                items: rows,
                notes: &recovery.report.notes,
            })?
        ),
        Format::Csv => out!("{}", table().csv(&rows)),
        Format::Text | Format::Svg => text(recovery, &rows),
    }
}

fn text(recovery: &Recovery, rows: &[Row<'_>]) -> Result<(), Failure> {
    if !recovery.left_behind && recovery.report.notes.is_empty() {
        outln!("nothing to do: no run left changes behind")?;
    }
    let lines: Vec<[String; 5]> = rows
        .iter()
        .map(|row| {
            let who = match (row.group.or(row.net.as_deref()), row.tgid, row.tid) {
                (Some(name), ..) => printable(name),
                (None, Some(tgid), Some(tid)) if tgid != tid => format!("{tgid}/{tid}"),
                (None, Some(tgid), _) => tgid.to_string(),
                // What has no name and no number is the host's.
                _ => Target::Host.to_string(),
            };
            let name = row.comm.map_or(String::new(), |comm| format!(" {}", printable(comm)));
            let change = match (&row.from, row.outcome) {
                (Some(from), "put back") => format!("{from} -> {}", row.to),
                (Some(from), "conflict" | "failed") => format!("is {from}, was {}", row.to),
                _ => row.to.clone(),
            };
            let remark = if row.descendant { "inherited from its parent" } else { "" };
            let remark = row.note.unwrap_or(remark).to_owned();
            [row.outcome.to_owned(), format!("{who}{name}"), row.knob.to_owned(), change, remark]
        })
        .collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    for line in &lines {
        let mut text = String::new();
        for (field, width) in line.iter().zip(widths) {
            text.push_str(&format!("{field:<width$}  "));
        }
        text.push_str(&line[4]);
        outln!("{}", text.trim_end())?;
    }
    for note in &recovery.report.notes {
        outln!("note: {note}")?;
    }
    if recovery.left_behind {
        let report = &recovery.report;
        outln!(
            "{} put back, {} already back, {} gone, {}, {} failed",
            report.put_back.len(),
            report.already.len(),
            report.gone.len(),
            count(report.conflicts.len(), "conflict"),
            report.failed.len()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_something_may_not_be_done_is_worse_than_that_it_was_not() {
        let of = |known: Option<Failure>, more| match worse(known, more) {
            Failure::Cannot(error) => (3, error.to_string()),
            Failure::No(error) => (1, error.to_string()),
            Failure::Usage(error) => (2, error.to_string()),
        };
        assert_eq!(of(None, refused!("a")), (1, "a".to_owned()));
        assert_eq!(of(Some(refused!("a")), cannot!("b")), (3, "b".to_owned()));
        assert_eq!(of(Some(cannot!("a")), refused!("b")), (3, "a".to_owned()));
    }
}
