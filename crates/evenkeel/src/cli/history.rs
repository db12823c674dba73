//! `evenkeel history`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use evenkeel_report::demo::Moment;
use evenkeel_report::html::{self, RunPage};
use evenkeel_report::run::{self, DocumentKind};
use evenkeel_report::{Field, Table, Value, table, time};
use evenkeel_store::{Rates, RunId, Store, StoreError, StoredChange, StoredRun, Usage};
use serde_json::json;

use super::{Failure, Format, Global, Outcome};

/// List past runs; show one run's stages and changes, or who got the CPU over some time past.
///
/// Example: evenkeel history --since 10m --by container
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show this run: its number, or `last`.
    #[arg(long, value_name = "N", value_parser = parse_run, conflicts_with = "since")]
    run: Option<RunChoice>,
    /// With --run and -o csv: the changes rather than the stages.
    #[arg(long, requires = "run")]
    changes: bool,
    /// Show rates from the stored samples of this long ago until now, such as 10m or 2h.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    since: Option<Duration>,
    /// With --since: what to sum over.
    #[arg(long, value_enum, default_value_t = By::Process, requires = "since")]
    by: By,
    /// With --since: show at most this many lines, busiest first; 0 shows all.
    #[arg(long, value_name = "N", default_value_t = 40, requires = "since")]
    limit: usize,
    /// Write the page of a run (the last one, or --run) to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "since")]
    html: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunChoice {
    Last,
    Number(i64),
}

fn parse_run(text: &str) -> Result<RunChoice, String> {
    match text {
        "last" => Ok(RunChoice::Last),
        _ => text.parse().map(RunChoice::Number).map_err(|_| "a run's number, or `last`".to_owned()),
    }
}

/// What rates are summed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Processes (their threads together).
    Process,
    /// Threads.
    Thread,
    /// Containers.
    Container,
    /// Pods.
    Pod,
    /// cgroups, from their own counters: what ended in between is included.
    Cgroup,
    /// CPUs.
    Cpu,
}

/// Tasks drawn on a run's page.
const PAGE_TASKS: usize = 30;
/// Points of a page's timeline; more are averaged into fewer.
const PAGE_MOMENTS: usize = 600;

pub fn run(global: &Global, args: Args) -> Outcome {
    if global.output == Format::Svg {
        return Err(Failure::Usage(anyhow!("--output svg is for `topology`; use text, json or csv")));
    }
    if global.root.is_some() {
        return Err(Failure::Usage(anyhow!("a captured tree has no history; name a --state-dir instead")));
    }
    let path = global.state_dir.join(evenkeel_store::FILE_NAME);
    let Some(store) = Store::open_read_only(&path).map_err(failure)? else {
        return nothing(global, &args, &path);
    };
    let out = if let Some(since) = args.since {
        rates(global, &args, &store, since)?
    } else if let Some(file) = &args.html {
        let Some(run) = choose(&store, args.run.unwrap_or(RunChoice::Last)).map_err(failure)? else {
            return nothing(global, &args, &path);
        };
        let page = html::run(&page(&store, &run).map_err(failure)?);
        std::fs::write(file, page)
            .with_context(|| format!("cannot write {}", file.display()))
            .map_err(Failure::Cannot)?;
        format!("{}\n", file.display())
    } else if let Some(choice) = args.run {
        let Some(run) = choose(&store, choice).map_err(failure)? else {
            return nothing(global, &args, &path);
        };
        one(global, &args, &store, &run)?
    } else {
        list(global, &store)?
    };
    print(&out)
}

/// A run that is not there is the user's mistake, everything else the host's.
fn failure(error: StoreError) -> Failure {
    match error {
        StoreError::NoRun { .. } => Failure::Usage(error.into()),
        _ => Failure::Cannot(error.into()),
    }
}

fn print(out: &str) -> Outcome {
    std::io::stdout().write_all(out.as_bytes()).context("cannot write to stdout").map_err(Failure::Cannot)?;
    Ok(0)
}

fn pretty(document: &serde_json::Value) -> Result<String, Failure> {
    let text =
        serde_json::to_string_pretty(document).context("cannot write JSON").map_err(Failure::Cannot)?;
    Ok(text + "\n")
}

fn nothing(global: &Global, args: &Args, path: &Path) -> Outcome {
    if let (RunChoice::Number(run), true) = (args.run.unwrap_or(RunChoice::Last), args.run.is_some()) {
        return Err(Failure::Usage(anyhow!("nothing recorded in {}: there is no run {run}", path.display())));
    }
    match global.output {
        Format::Json => print(&pretty(
            &json!({ "schema": "evenkeel.history/v1", "runs": [], "store": null, "rates": null }),
        )?),
        Format::Csv => print(&run_table().csv(&[])),
        Format::Text | Format::Svg => print(&format!("Nothing recorded in {}.\n", path.display())),
    }
}

fn choose(store: &Store, choice: RunChoice) -> Result<Option<StoredRun>, StoreError> {
    match choice {
        RunChoice::Last => store.last_run(),
        RunChoice::Number(run) => store.run(RunId(run)).map(Some),
    }
}

fn run_table() -> Table<StoredRun> {
    let low_high = |name, pick: fn(&StoredRun) -> Option<f64>| {
        Field::number(name, name, 3, move |run: &StoredRun| pick(run)).documents_only()
    };
    Table::new(vec![
        Field::integer("run", "RUN", |run: &StoredRun| Some(run.id.0)),
        Field::text("started", "STARTED (UTC)", |run: &StoredRun| time::rfc3339(run.record.started_ns)),
        Field::new("seconds", "SECONDS", |run: &StoredRun| {
            let seconds = run.ended_ns.map(|end| end.saturating_sub(run.record.started_ns) as f64 / 1e9);
            seconds.map_or(Value::Unknown, Value::Number)
        })
        .right(),
        Field::new("scope", "SCOPE", |run: &StoredRun| Value::List(run.record.scope.clone())),
        Field::number("baseline", "BASELINE", 3, |run: &StoredRun| run.record.baseline.map(|e| e.value)),
        low_high("baseline_low", |run| run.record.baseline.map(|e| e.low)),
        low_high("baseline_high", |run| run.record.baseline.map(|e| e.high)),
        Field::number("now", "AT END", 3, |run: &StoredRun| run.record.now.map(|e| e.value)),
        low_high("now_low", |run| run.record.now.map(|e| e.low)),
        low_high("now_high", |run| run.record.now.map(|e| e.high)),
        Field::text("settings", "SETTINGS", |run: &StoredRun| run.record.settings.clone()),
        Field::text("outcome", "OUTCOME", |run: &StoredRun| run.outcome.clone()),
        Field::text("boot_id", "BOOT", |run: &StoredRun| run.boot_id.clone()).documents_only(),
    ])
}

fn usage_json(usage: &Usage) -> serde_json::Value {
    json!({
        "disk_bytes": usage.disk_bytes,
        "sample_bytes": usage.sample_bytes,
        "samples": { "full_rate": usage.samples[0], "ten_s": usage.samples[1], "sixty_s": usage.samples[2] },
        "oldest": usage.span_ns.and_then(|span| time::rfc3339(span.0)),
        "newest": usage.span_ns.and_then(|span| time::rfc3339(span.1)),
    })
}

fn list(global: &Global, store: &Store) -> Result<String, Failure> {
    let runs = store.runs().map_err(failure)?;
    let usage = store.usage().map_err(failure)?;
    let table = run_table();
    match global.output {
        Format::Json => pretty(&json!({
            "schema": "evenkeel.history/v1",
            "runs": table.json(&runs),
            "store": usage_json(&usage),
        })),
        Format::Csv => Ok(table.csv(&runs)),
        Format::Text | Format::Svg => {
            let mut text = if runs.is_empty() {
                "No runs recorded.\n".to_owned()
            } else {
                table.text(&runs, table::width(std::io::stdout().is_terminal()))
            };
            let span = usage.span_ns.map_or_else(String::new, |(first, last)| {
                format!(" from {} to {} UTC", time::short(first), time::short(last))
            });
            let [full, ten, sixty] = usage.samples;
            text.push_str(&format!(
                "\nSamples{span}: {full} at full rate, {ten} one in 10 s, {sixty} one in 60 s; {} on disk.\n",
                time::bytes(usage.disk_bytes)
            ));
            Ok(text)
        }
    }
}

fn one(global: &Global, args: &Args, store: &Store, stored: &StoredRun) -> Result<String, Failure> {
    let changes = store.changes(stored.id).map_err(failure)?;
    let width = table::width(std::io::stdout().is_terminal());
    match global.output {
        Format::Json => {
            let mut document = run::document(&stored.record, DocumentKind::Run);
            document["run"] = json!(stored.id);
            document["boot_id"] = json!(stored.boot_id);
            document["ended"] = json!(stored.ended_ns.and_then(time::rfc3339));
            document["outcome"] = json!(stored.outcome);
            document["changes"] = json!(stored_change_json(&changes));
            document["trials"] = json!(store.trials(stored.id).map_err(failure)?);
            pretty(&document)
        }
        Format::Csv if args.changes => Ok(run::change_table(true).csv(changes.iter().map(|c| &c.change))),
        Format::Csv => Ok(run::stage_table().csv(&stored.record.stages)),
        Format::Text | Format::Svg => {
            let ended = match stored.ended_ns {
                Some(end) => format!(
                    "ended {} UTC ({})",
                    time::short(end),
                    stored.outcome.as_deref().unwrap_or("no outcome told")
                ),
                None => "not ended (running, or killed)".to_owned(),
            };
            let mut text = format!(
                "Run {}, started {} UTC, {ended}\n\n{}",
                stored.id.0,
                time::short(stored.record.started_ns),
                run::summary(&stored.record)
            );
            if !stored.record.stages.is_empty() {
                text.push('\n');
                text.push_str(&run::stage_table().text(&stored.record.stages, width));
            }
            for (heading, undone) in [("Changes in force", false), ("Changes taken back", true)] {
                let some: Vec<_> =
                    changes.iter().filter(|c| c.undone_ns.is_some() == undone).map(|c| &c.change).collect();
                if !some.is_empty() {
                    text.push_str(&format!("\n{heading}:\n"));
                    text.push_str(&run::change_table(true).text(some, width));
                }
            }
            if changes.is_empty() {
                text.push_str("\nNo changes were made.\n");
            }
            Ok(text)
        }
    }
}

fn stored_change_json(changes: &[StoredChange]) -> Vec<serde_json::Value> {
    let mut objects = run::change_table(true).json(changes.iter().map(|change| &change.change));
    for (object, change) in objects.iter_mut().zip(changes) {
        object["undone"] = json!(change.undone_ns.and_then(time::rfc3339));
    }
    objects
}

/// A line of rates.
#[derive(Debug, Default, Clone)]
struct Line {
    key: String,
    tgid: Option<i64>,
    tid: Option<i64>,
    container: Option<String>,
    cpu_pct: Option<f64>,
    wait_pct: Option<f64>,
    throttled_pct: Option<f64>,
    steal_pct: Option<f64>,
    voluntary_per_s: Option<f64>,
    involuntary_per_s: Option<f64>,
}

/// The sum of what is known; unknown when neither is.
fn sum(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

fn lines(rates: &Rates, by: By) -> Vec<Line> {
    match by {
        By::Cpu => {
            let lines = rates.cpus.iter().map(|cpu| Line {
                key: cpu.cpu.to_string(),
                cpu_pct: Some(cpu.busy_pct),
                steal_pct: cpu.steal_pct,
                ..Line::default()
            });
            return lines.collect();
        }
        By::Cgroup => {
            let lines = rates.groups.iter().map(|group| Line {
                key: group.path.clone(),
                cpu_pct: group.cpu_pct,
                throttled_pct: group.throttled_pct,
                ..Line::default()
            });
            return lines.collect();
        }
        _ => (),
    }
    let mut sums: BTreeMap<(String, u32, u64), Line> = BTreeMap::new();
    for task in &rates.tasks {
        let info = task.info.as_deref();
        let comm = || info.map_or_else(|| "?".to_owned(), |info| info.comm.clone());
        let (key, name) = match by {
            By::Process => ((String::new(), task.id.tgid, 0), comm()),
            By::Thread => ((String::new(), task.id.tid, task.id.start_time), comm()),
            By::Container => match info.and_then(|info| info.container.clone()) {
                Some(name) => ((name.clone(), 0, 0), name),
                None => continue,
            },
            _ => match info.and_then(|info| info.pod.clone()) {
                Some(name) => ((name.clone(), 0, 0), name),
                None => continue,
            },
        };
        let line = sums.entry(key).or_default();
        if line.key.is_empty() || task.id.tid == task.id.tgid {
            line.key = name;
        }
        if matches!(by, By::Process | By::Thread) {
            line.tgid = Some(i64::from(task.id.tgid));
            line.tid = (by == By::Thread).then_some(i64::from(task.id.tid));
            line.container = info.and_then(|info| info.container.clone());
        }
        line.cpu_pct = sum(line.cpu_pct, Some(task.cpu_pct));
        line.wait_pct = sum(line.wait_pct, task.wait_pct);
        line.voluntary_per_s = sum(line.voluntary_per_s, task.voluntary_per_s);
        line.involuntary_per_s = sum(line.involuntary_per_s, task.involuntary_per_s);
    }
    let mut lines: Vec<_> = sums.into_values().collect();
    lines.sort_by(|a, b| b.cpu_pct.unwrap_or(-1.0).total_cmp(&a.cpu_pct.unwrap_or(-1.0)));
    lines
}

fn line_table(by: By) -> Table<Line> {
    let mut fields = Vec::new();
    if matches!(by, By::Process | By::Thread) {
        fields.push(Field::integer("tgid", "PID", |line: &Line| line.tgid));
    }
    if by == By::Thread {
        fields.push(Field::integer("tid", "TID", |line: &Line| line.tid));
    }
    let (name, heading) = match by {
        By::Process | By::Thread => ("comm", "COMMAND"),
        By::Container => ("container", "CONTAINER"),
        By::Pod => ("pod", "POD"),
        By::Cgroup => ("cgroup", "CGROUP"),
        By::Cpu => ("cpu", "CPU"),
    };
    fields.push(Field::text(name, heading, |line: &Line| line.key.clone()));
    if matches!(by, By::Process | By::Thread) {
        fields.push(Field::text("container", "CONTAINER", |line: &Line| line.container.clone()));
    }
    fields.push(Field::number("cpu_pct", "CPU %", 1, |line: &Line| line.cpu_pct));
    match by {
        By::Cpu => fields.push(Field::number("steal_pct", "STEAL %", 1, |line: &Line| line.steal_pct)),
        By::Cgroup => {
            fields.push(Field::number("throttled_pct", "THROTTLED %", 1, |line: &Line| line.throttled_pct));
        }
        _ => {
            fields.push(Field::number("wait_pct", "WAIT %", 1, |line: &Line| line.wait_pct));
            fields.push(Field::number("voluntary_per_s", "VOL/S", 1, |line: &Line| line.voluntary_per_s));
            fields
                .push(Field::number("involuntary_per_s", "INVOL/S", 1, |line: &Line| line.involuntary_per_s));
        }
    }
    Table::new(fields)
}

fn rates(global: &Global, args: &Args, store: &Store, since: Duration) -> Result<String, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let from = now.saturating_sub(since).as_nanos() as u64;
    let rates = store.rates(from, u64::MAX).map_err(failure)?;
    let table = line_table(args.by);
    let Some(rates) = rates else {
        return match global.output {
            Format::Json => pretty(&json!({ "schema": "evenkeel.history/v1", "rates": null })),
            Format::Csv => Ok(table.csv(&[])),
            Format::Text | Format::Svg => Ok(format!(
                "Nothing recorded in the last {}: samples are kept while `evenkeel run` is at work.\n",
                humantime::format_duration(since)
            )),
        };
    };
    let mut lines = lines(&rates, args.by);
    if args.limit > 0 && args.by != By::Cpu {
        lines.truncate(args.limit);
    }
    if rates.damaged_blocks > 0 {
        eprintln!("evenkeel: {} damaged blocks of samples were passed over", rates.damaged_blocks);
    }
    match global.output {
        Format::Json => pretty(&json!({
            "schema": "evenkeel.history/v1",
            "rates": {
                "from": time::rfc3339(rates.from_ns),
                "to": time::rfc3339(rates.to_ns),
                "covered_s": rates.seconds,
                "samples": rates.samples,
                "rows": table.json(&lines),
            },
        })),
        Format::Csv => Ok(table.csv(&lines)),
        Format::Text | Format::Svg => Ok(format!(
            "{} to {} UTC, {} of it covered by {} samples; percent is of one CPU\n\n{}",
            time::short(rates.from_ns),
            time::short(rates.to_ns),
            time::length(rates.seconds),
            rates.samples,
            table.text(&lines, table::width(std::io::stdout().is_terminal()))
        )),
    }
}

/// Gathers what a run's page shows.
fn page(store: &Store, stored: &StoredRun) -> Result<RunPage, StoreError> {
    let record = stored.record.clone();
    let from = record.started_ns;
    let to = stored.ended_ns.unwrap_or(u64::MAX);
    let mut notes = Vec::new();
    let mut moments: Vec<Moment> = Vec::new();
    let mut cpus: Vec<u32> = Vec::new();
    let mut last: Option<evenkeel_store::StoredSample> = None;
    for sample in store.samples(from, to)? {
        let next = match sample {
            Ok(next) => next,
            Err(error) if error.is_corrupt() => {
                notes.push(format!("a block of samples was passed over: {error}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(last) = last.take().filter(|last| last.session == next.session) {
            let ns = next.sample.monotonic_ns.saturating_sub(last.sample.monotonic_ns).max(1) as f64;
            cpus = next.sample.cpus.iter().map(|cpu| cpu.cpu).collect();
            let busy = |cpu: &evenkeel_base::CpuTimes| {
                let before = last.sample.cpus.iter().find(|before| before.cpu == cpu.cpu);
                before.map_or(0.0, |before| 100.0 * cpu.busy_ns.saturating_sub(before.busy_ns) as f64 / ns)
            };
            let per_cpu_pct: Vec<f64> = next.sample.cpus.iter().map(busy).collect();
            moments.push(Moment {
                t_s: next.sample.wall_ns.saturating_sub(from) as f64 / 1e9,
                total_pct: per_cpu_pct.iter().sum(),
                per_cpu_pct,
            });
        }
        last = Some(next);
    }
    if moments.is_empty() {
        notes.push("No samples of this run are kept: no pictures.".to_owned());
    }
    Ok(RunPage {
        tasks: page_tasks(store, &record)?,
        run: Some(stored.id.0),
        ended_ns: stored.ended_ns,
        outcome: stored.outcome.clone(),
        changes: store.changes(stored.id)?.into_iter().map(|c| (c.change, c.undone_ns)).collect(),
        timeline: fewer(moments, PAGE_MOMENTS),
        cpus,
        notes,
        record,
    })
}

/// A task's name, and what it got in the first and the last stage, percent of one CPU.
type FirstAndLast = (String, [Option<f64>; 2]);

/// The busiest tasks.
fn page_tasks(
    store: &Store,
    record: &evenkeel_base::run::RunRecord,
) -> Result<Vec<FirstAndLast>, StoreError> {
    let mut got: BTreeMap<evenkeel_base::TaskId, FirstAndLast> = BTreeMap::new();
    let Some((first, last)) = record.stages.first().zip(record.stages.last()) else { return Ok(Vec::new()) };
    for (index, stage) in [first, last].into_iter().enumerate() {
        let end = stage.started_ns.saturating_add((stage.seconds.max(0.0) * 1e9) as u64);
        let Some(rates) = store.rates(stage.started_ns, end)? else { continue };
        for task in rates.tasks {
            let comm = task.info.as_ref().map_or("?", |info| info.comm.as_str());
            let entry = got.entry(task.id).or_insert_with(|| (format!("{} {comm}", task.id), [None; 2]));
            entry.1[index] = Some(task.cpu_pct);
        }
    }
    let mut tasks: Vec<_> = got.into_values().collect();
    let most = |got: &[Option<f64>; 2]| got.iter().flatten().copied().fold(0.0, f64::max);
    tasks.sort_by(|a, b| most(&b.1).total_cmp(&most(&a.1)));
    tasks.truncate(PAGE_TASKS);
    Ok(tasks)
}

/// At most `most` moments: neighbours are averaged.
fn fewer(moments: Vec<Moment>, most: usize) -> Vec<Moment> {
    let group = moments.len().div_ceil(most.max(1)).max(1);
    if group == 1 {
        return moments;
    }
    let widths: BTreeSet<usize> = moments.iter().map(|m| m.per_cpu_pct.len()).collect();
    let width = widths.last().copied().unwrap_or(0);
    moments
        .chunks(group)
        .map(|chunk| {
            let count = chunk.len() as f64;
            let mean = |pick: &dyn Fn(&Moment) -> f64| chunk.iter().map(pick).sum::<f64>() / count;
            Moment {
                t_s: chunk.last().map_or(0.0, |m| m.t_s),
                total_pct: mean(&|m| m.total_pct),
                per_cpu_pct: (0..width)
                    .map(|cpu| mean(&|m| m.per_cpu_pct.get(cpu).copied().unwrap_or(0.0)))
                    .collect(),
            }
        })
        .collect()
}
