//! Who got the CPU over some time past.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;

use evenkeel_base::{Histogram, TaskId};
use evenkeel_report::{Field, Table, table, time};
use evenkeel_store::{CpuRate, GroupRate, Rates, Store, StoreError};
use serde_json::json;

use super::{Args, failure, parquet, pretty};
use crate::cli::when::Span;
use crate::cli::{Failure, Format, Global};

/// What rates are summed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
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

/// A line of rates.
#[derive(Debug, Default, Clone)]
pub(crate) struct Line {
    pub key: String,
    tgid: Option<i64>,
    tid: Option<i64>,
    container: Option<String>,
    pod: Option<String>,
    pub cpu_pct: Option<f64>,
    pub wait_pct: Option<f64>,
    throttled_pct: Option<f64>,
    steal_pct: Option<f64>,
    voluntary_per_s: Option<f64>,
    involuntary_per_s: Option<f64>,
    /// Lengths of its waits, over whole minutes.
    waits: Option<Histogram>,
}

impl Line {
    /// A container after its pod, where it is in one.
    pub(crate) fn title(&self) -> String {
        self.pod.as_ref().map_or_else(|| self.key.clone(), |pod| format!("{pod}/{}", self.key))
    }
}

/// The sum of what is known; unknown when neither is.
fn sum(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

/// Who got what, busiest first.
pub(crate) fn lines(rates: &Rates, by: By) -> Vec<Line> {
    let mut lines = match by {
        By::Cpu => rates.cpus.iter().map(of_cpu).collect(),
        By::Cgroup => rates.groups.iter().map(of_group).collect(),
        _ => of_tasks(rates, by),
    };
    lines.sort_by(|a, b| b.cpu_pct.unwrap_or(-1.0).total_cmp(&a.cpu_pct.unwrap_or(-1.0)));
    lines
}

fn of_cpu(cpu: &CpuRate) -> Line {
    let (key, cpu_pct) = (cpu.cpu.to_string(), Some(cpu.busy_pct));
    Line { key, cpu_pct, steal_pct: cpu.steal_pct, ..Line::default() }
}

fn of_group(group: &GroupRate) -> Line {
    let GroupRate { path, cpu_pct, throttled_pct } = group.clone();
    Line { key: path, cpu_pct, throttled_pct, ..Line::default() }
}

fn of_tasks(rates: &Rates, by: By) -> Vec<Line> {
    // Over a day a number means several processes: a thread belongs to the one whose first thread began last before it.
    let mut began: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for task in rates.tasks.iter().filter(|task| task.id.tid == task.id.tgid) {
        began.entry(task.id.tgid).or_default().insert(task.id.start_time);
    }
    let process = |id: TaskId| {
        let began = began.get(&id.tgid).and_then(|all| all.range(..=id.start_time).next_back());
        (String::new(), id.tgid, began.copied().unwrap_or(0))
    };
    let mut sums: BTreeMap<(String, u32, u64), Line> = BTreeMap::new();
    for task in &rates.tasks {
        let info = task.info.as_deref();
        let comm = || info.map_or_else(|| "?".to_owned(), |info| info.comm.clone());
        let (key, name) = match by {
            By::Process => (process(task.id), comm()),
            By::Thread => ((String::new(), task.id.tid, task.id.start_time), comm()),
            By::Container => match info.and_then(|info| info.container.clone()) {
                // Many pods have a container of the same name.
                Some(name) => (
                    (format!("{name}\0{}", info.and_then(|info| info.pod.as_deref()).unwrap_or("")), 0, 0),
                    name,
                ),
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
        if by == By::Container {
            line.pod = info.and_then(|info| info.pod.clone());
        }
        line.cpu_pct = sum(line.cpu_pct, Some(task.cpu_pct));
        line.wait_pct = sum(line.wait_pct, task.wait_pct);
        line.voluntary_per_s = sum(line.voluntary_per_s, task.voluntary_per_s);
        line.involuntary_per_s = sum(line.involuntary_per_s, task.involuntary_per_s);
    }
    let mut lines: Vec<_> = sums.into_values().collect();
    // The cgroup's own counter has what ended in between, too.
    let own = match by {
        By::Container => rates.own_groups_pct(|info| Some((info.container.clone()?, info.pod.clone()))),
        By::Pod => rates.own_groups_pct(|info| Some((info.pod.clone()?, None))),
        _ => BTreeMap::new(),
    };
    for line in &mut lines {
        let counted = own.get(&(line.key.clone(), line.pod.clone()));
        line.cpu_pct = line.cpu_pct.map(|pct| pct.max(counted.copied().unwrap_or(0.0)));
    }
    lines
}

/// Fills in the lengths of containers' waits where the history has them.
fn add_waits(lines: &mut [Line], waits: &BTreeMap<String, Histogram>) {
    let mut named: BTreeMap<String, usize> = BTreeMap::new();
    lines.iter().for_each(|line| *named.entry(line.key.clone()).or_default() += 1);
    for line in &mut *lines {
        // They are counted by name alone: of two of one name neither's are known.
        line.waits = waits.get(&line.key).filter(|_| named.get(&line.key) == Some(&1)).cloned();
    }
}

/// The busiest of these, with the lengths of their waits where the history has them; and whether it has any. Whoever is not shown
/// counts for whose the waits of a name are.
fn shown(
    mut lines: Vec<Line>,
    limit: Option<usize>,
    waits: Option<&BTreeMap<String, Histogram>>,
) -> (Vec<Line>, bool) {
    if let Some(waits) = waits {
        add_waits(&mut lines, waits);
    }
    lines.truncate(limit.unwrap_or(usize::MAX));
    let lengths = lines.iter().any(|line| line.waits.is_some());
    (lines, lengths)
}

/// `lengths`: whether there are lengths of waits, for which text has columns then only.
pub(super) fn line_table(by: By, lengths: bool, pods: bool) -> Table<Line> {
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
    if by == By::Container {
        let pod = Field::text("pod", "POD", |line: &Line| line.pod.clone());
        fields.push(if pods { pod } else { pod.documents_only() });
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
    if by == By::Container {
        let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
        let column = |field: Field<Line>| if lengths { field } else { field.documents_only() };
        fields.extend([
            column(Field::number("wait_p50_ms", "WAIT P50 MS", 2, move |line: &Line| {
                ms(line.waits.as_ref()?.quantile(0.5))
            })),
            column(Field::number("wait_p99_ms", "P99 MS", 2, move |line: &Line| {
                ms(line.waits.as_ref()?.quantile(0.99))
            })),
            column(Field::number("wait_max_ms", "MAX MS", 2, move |line: &Line| {
                ms(line.waits.as_ref()?.longest())
            })),
            column(Field::integer("waits", "WAITS", |line: &Line| {
                i64::try_from(line.waits.as_ref()?.total()).ok()
            })),
        ]);
    }
    Table::new(fields)
}

/// How far samples of a thinned history are apart, and a little more.
const THINNED_NS: u64 = 61_000_000_000;

/// Of a thinned history a short time may hold one sample, or none: those next to it say what is known of it.
fn around(store: &Store, span: Span, to_ns: u64) -> Result<Option<Rates>, StoreError> {
    let (mut first, mut last) = (span.from_ns, to_ns);
    let samples = store.samples(first.saturating_sub(THINNED_NS), last.saturating_add(THINNED_NS))?;
    for at in samples.filter_map(Result::ok).map(|sample| sample.sample.wall_ns) {
        if at <= span.from_ns {
            first = at;
        } else if at >= to_ns && last == to_ns {
            last = at;
        }
    }
    let rates = store.rates(first, last)?;
    Ok(rates.filter(|rates| rates.from_ns < span.to_ns && rates.to_ns > span.from_ns))
}

pub(super) fn rates(global: &Global, args: &Args, store: &Store, span: Span) -> Result<String, Failure> {
    // Until now is to the last sample, also where the clock was set back since.
    let to_ns = args.to.map_or(u64::MAX, |_| span.to_ns);
    let rates = match store.rates(span.from_ns, to_ns).map_err(failure)? {
        Some(rates) => Some(rates),
        None => around(store, span, to_ns).map_err(failure)?,
    };
    let Some(rates) = rates else {
        let table = line_table(args.by, false, false);
        if let Some(file) = &args.parquet {
            return parquet::write(file, &table, &[], Vec::new());
        }
        return match global.output {
            Format::Json => pretty(&json!({ "schema": "evenkeel.history/v1", "rates": null })),
            Format::Csv => Ok(table.csv(&[])),
            Format::Text | Format::Svg => Ok(format!(
                "Nothing recorded from {} to {} UTC: samples are kept while `evenkeel run` or `serve` is at work.\n",
                time::short(span.from_ns),
                time::short(span.to_ns)
            )),
        };
    };
    let limit = (args.limit > 0 && args.by != By::Cpu).then_some(args.limit);
    let waits = match args.by {
        By::Container => Some(store.waits(span.from_ns, to_ns).map_err(failure)?),
        _ => None,
    };
    let mut all = lines(&rates, args.by);
    if args.by == By::Cpu {
        // All of them are shown.
        all.sort_by_key(|line| line.key.parse::<u32>().ok());
    }
    let count = all.len();
    let (lines, lengths) = shown(all, limit, waits.as_ref());
    let left_out = count - lines.len();
    let table = line_table(args.by, lengths, lines.iter().any(|line| line.pod.is_some()));
    if rates.damaged_blocks > 0 {
        say!("evenkeel: {} damaged blocks of samples were passed over", rates.damaged_blocks);
    }
    if let Some(file) = &args.parquet {
        let about = vec![
            ("from", time::instant(rates.from_ns)),
            ("to", time::instant(rates.to_ns)),
            ("covered_s", rates.seconds.to_string()),
        ];
        return parquet::write(file, &table, &lines, about);
    }
    match global.output {
        Format::Json => pretty(&json!({
            "schema": "evenkeel.history/v1",
            "rates": {
                "from": time::rfc3339(rates.from_ns),
                "to": time::rfc3339(rates.to_ns),
                "covered_s": rates.seconds,
                "samples": rates.samples,
                "left_out": left_out,
                "rows": table.json(&lines),
            },
        })),
        Format::Csv => Ok(table.csv(&lines)),
        Format::Text | Format::Svg => Ok(format!(
            "{} to {} UTC, {} of it covered by {} samples; percent is of one CPU\n\n{}{}",
            time::short(rates.from_ns),
            time::short(rates.to_ns),
            time::length(rates.seconds),
            rates.samples,
            table.text(&lines, table::width(std::io::stdout().is_terminal())),
            match left_out {
                0 => String::new(),
                more => format!("... and {more} more (--limit 0 shows all)\n"),
            }
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_store::{TaskInfo, TaskRate};

    use super::*;

    fn rates() -> Rates {
        let task = |tid: u32, pod: &str, cpu_pct| TaskRate {
            id: TaskId { tgid: tid, tid, start_time: 0 },
            info: Some(Arc::new(TaskInfo {
                comm: "app".into(),
                group: Some(format!("/{pod}/app")),
                container: Some("app".into()),
                pod: Some(pod.into()),
            })),
            cpu_pct,
            ..TaskRate::default()
        };
        let group = |path: &str, cpu_pct| GroupRate {
            path: path.into(),
            cpu_pct: Some(cpu_pct),
            throttled_pct: None,
        };
        Rates {
            tasks: vec![task(1, "shop", 30.0), task(2, "mail", 5.0)],
            // What came and went in mail's container was never in a sample.
            groups: vec![group("/shop/app", 30.0), group("/", 150.0), group("/mail/app", 80.0)],
            ..Rates::default()
        }
    }

    #[test]
    fn containers_of_one_name_in_two_pods_are_two_and_have_what_ended_in_them() {
        let lines = lines(&rates(), By::Container);
        let seen: Vec<_> =
            lines.iter().map(|line| (line.pod.as_deref().unwrap(), line.cpu_pct.unwrap())).collect();
        assert_eq!(seen, [("mail", 80.0), ("shop", 30.0)]);
        let waits = BTreeMap::from([("app".to_owned(), Histogram::default())]);
        let has_waits = |lines: &[Line], limit| shown(lines.to_vec(), limit, Some(&waits)).1;
        assert!(!has_waits(&lines, None), "whose of the two they are is not known");
        assert!(!has_waits(&lines, Some(1)), "nor where the other is not shown");
        assert!(has_waits(&lines[..1], None) && !shown(lines, None, None).1);
    }

    #[test]
    fn the_busiest_cgroups_and_cpus_come_first() {
        let cpu = |cpu, busy_pct| CpuRate { cpu, busy_pct, irq_pct: 0.0, steal_pct: None };
        let rates = Rates { cpus: vec![cpu(0, 5.0), cpu(1, 90.0)], ..rates() };
        let of = |by| lines(&rates, by).into_iter().map(|line| line.key).collect::<Vec<_>>();
        assert_eq!(of(By::Cgroup), ["/", "/mail/app", "/shop/app"]);
        assert_eq!(of(By::Cpu), ["1", "0"]);
    }

    #[test]
    fn two_processes_that_had_one_number_are_two() {
        let thread = |tid: u32, start_time, comm: &str, cpu_pct| {
            let mut task = rates().tasks.remove(0);
            task.id = TaskId { tgid: 7, tid, start_time };
            let info = Arc::unwrap_or_clone(task.info.unwrap());
            task.info = Some(Arc::new(TaskInfo { comm: comm.into(), ..info }));
            TaskRate { cpu_pct, ..task }
        };
        let tasks = vec![
            thread(7, 100, "make", 40.0),
            thread(8, 150, "make", 5.0),
            thread(7, 9000, "sshd", 1.0),
            thread(9, 9100, "sshd", 2.0),
        ];
        let lines = lines(&Rates { tasks, ..Rates::default() }, By::Process);
        let seen: Vec<_> = lines.iter().map(|line| (&*line.key, line.cpu_pct.unwrap())).collect();
        assert_eq!(seen, [("make", 45.0), ("sshd", 3.0)]);
    }
}
