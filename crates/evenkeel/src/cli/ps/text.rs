//! `ps` for people: a table of tasks or processes, or a tree of owners with what is inside.

use std::fmt::Write as _;

use evenkeel_base::{ContainerView, NetworkRate, TaskView, cut};
use evenkeel_report::ps::{Row, Sum, View, class, limits, transferred};
use evenkeel_report::table::printable;
use evenkeel_report::{Field, Table, Value};

use super::{Args, By};
use crate::cli::show;

/// Lines shown when the user does not say how many.
const LINES: usize = 40;

/// A line of a tree: numbers of whatever it is.
struct Line {
    depth: usize,
    name: String,
    core: Value,
    cpu_pct: f64,
    wait_pct: Option<f64>,
    throttled_pct: Value,
    limits: String,
    /// What 99 % of a container's waits do not exceed; empty for what is none.
    p99: Value,
    /// Of a container with a network of its own, and its pod.
    network: Option<NetworkRate>,
}

pub fn render(view: &View<'_>, args: &Args) -> String {
    let host = &view.observation.host;
    let steal = host.steal_pct.map_or_else(|| "unknown".to_owned(), |pct| format!("{pct:.1} %"));
    let network = view.networks.host.map(|rate| format!(", network in/out {} bytes/s", transferred(rate)));
    let network = network.unwrap_or_default();
    let mut out = format!(
        "{} CPUs, busy {:.1} % of {} %, steal {steal}{network}, over {:.2} s\n",
        host.cpus,
        host.busy_pct,
        100 * host.cpus,
        view.observation.interval_s
    );
    let elsewhere = view.unattributed_pct();
    if elsewhere >= 5.0 {
        let _ = writeln!(
            out,
            "{elsewhere:.1} % were used by none of the tasks seen: by interrupts, tasks that ended meanwhile, or tasks that are not \
             visible from here"
        );
    }
    out.push('\n');
    let limit = args.lines.unwrap_or(if args.all { usize::MAX } else { LINES });
    let (body, shown, total) = match args.by {
        By::Task | By::Process => flat(view, args, limit),
        By::Container | By::Pod | By::Vm => tree(view, args, limit),
        By::Cpu => by_cpu(view, args, limit),
    };
    out.push_str(&body);
    if total == 0 {
        let what = match args.by {
            By::Container => "no containers found",
            By::Pod => "no pods found",
            By::Vm => "no virtual machines found",
            _ => "nothing ran or waited",
        };
        let _ = writeln!(out, "{what}");
    } else if shown < total {
        let _ = writeln!(out, "… {} more lines (-n {total} shows them)", total - shown);
    }
    out
}

fn flat(view: &View<'_>, args: &Args, limit: usize) -> (String, usize, usize) {
    let rows = if args.by == By::Task { &view.tasks } else { &view.processes };
    let rows: Vec<&Row> = rows.iter().filter(|row| args.all || row.busy()).collect();
    let shown = &rows[..rows.len().min(limit)];
    if shown.is_empty() {
        return (String::new(), 0, 0);
    }
    let width = show::width();
    (columns(args.by == By::Task, width).text(shown, width), shown.len(), rows.len())
}

/// From this width on there is room for every column.
const WIDE: u16 = 100;

/// A table for this width: a narrow one leaves out how often tasks switch and their class, as `top` does.
fn columns<'a>(threads: bool, width: Option<u16>) -> Table<&'a Row> {
    let wide = width.is_none_or(|width| width >= WIDE);
    let owner = match (wide, threads) {
        (true, _) => 26,
        (false, false) => 22,
        (false, true) => 13,
    };
    let mut fields =
        vec![Field::new("pid", "PID", |row: &&Row| Value::Integer(row.task.id.tgid.into())).right()];
    if threads {
        fields.push(Field::new("tid", "TID", |row: &&Row| Value::Integer(row.task.id.tid.into())).right());
    }
    fields.extend([
        Field::text("name", "NAME", |row: &&Row| cut(&row.task.comm, 16)),
        Field::new("core", "CORE", |row: &&Row| core(&row.task)).right(),
        Field::number("cpu_pct", "CPU %", 1, |row: &&Row| Some(row.task.cpu_pct)),
        Field::number("wait_pct", "WAIT %", 1, |row: &&Row| row.task.wait_pct),
        Field::number("throttled_pct", "THR %", 1, |row: &&Row| row.throttled_pct),
    ]);
    if wide {
        fields.extend([
            Field::number("voluntary", "VOL/s", 0, |row: &&Row| row.task.voluntary_per_s),
            Field::number("involuntary", "INV/s", 0, |row: &&Row| row.task.involuntary_per_s),
            Field::new("sched", "CLASS", |row: &&Row| {
                row.task.sched.map_or(Value::Unknown, |s| Value::Text(class(&s)))
            }),
        ]);
    }
    fields.push(Field::new("owner", "WHOSE", move |row: &&Row| match row.owner() {
        Value::Text(text) => Value::Text(cut(&text, owner)),
        other => other,
    }));
    Table::new(fields)
}

fn core(task: &TaskView) -> Value {
    task.cpu.map_or(Value::Unknown, |cpu| Value::Integer(cpu.into()))
}

fn process(row: &Row, depth: usize) -> Line {
    let threads = if row.threads > 1 { format!(" ({} threads)", row.threads) } else { String::new() };
    Line {
        depth,
        name: format!("{} {}{threads}", row.task.id.tgid, row.task.comm),
        core: core(&row.task),
        cpu_pct: row.task.cpu_pct,
        wait_pct: row.task.wait_pct,
        throttled_pct: row.throttled_pct.map_or(Value::Unknown, Value::Number),
        limits: String::new(),
        p99: Value::Text(String::new()),
        network: None,
    }
}

/// A container, pod or machine, with what it adds up to.
fn owner<T>(sum: &Sum<'_, T>, depth: usize, name: String) -> Line {
    Line {
        depth,
        name,
        core: Value::Text(String::new()),
        cpu_pct: sum.cpu_pct,
        wait_pct: sum.wait_pct,
        throttled_pct: sum.throttled_pct.map_or(Value::Unknown, Value::Number),
        limits: limits(sum.group),
        p99: Value::Text(String::new()),
        network: None,
    }
}

/// A container's longest waits but one percent; unknown without BPF, none where it never waited.
fn p99(waits: Option<&evenkeel_report::why::Waits>) -> Value {
    match waits {
        None => Value::Unknown,
        Some(waits) => {
            waits.p99_usec.map_or(Value::Absent, |usec| Value::Text(evenkeel_report::why::span(usec)))
        }
    }
}

fn tree(view: &View<'_>, args: &Args, limit: usize) -> (String, usize, usize) {
    let mut lines = Vec::new();
    let processes = |lines: &mut Vec<Line>, depth: usize, of: &dyn Fn(&TaskView) -> bool| {
        lines.extend(view.processes.iter().filter(|row| of(&row.task)).map(|row| process(row, depth)));
    };
    let containers = view.containers();
    let network = |sum: &Sum<'_, ContainerView>| view.networks.containers.get(&sum.what.id).copied();
    let container = |lines: &mut Vec<Line>, sum: &Sum<'_, ContainerView>, depth: usize| {
        let name = format!("{} ({})", cut(&sum.name, 32), sum.what.runtime);
        let (p99, network) = (p99(sum.waits.as_ref()), network(sum));
        lines.push(Line { p99, network, ..owner(sum, depth, name) });
        processes(lines, depth + 1, &|task| task.container == Some(sum.at));
    };
    match args.by {
        By::Container => {
            for at in order(containers.iter().map(|sum| sum.cpu_pct)) {
                container(&mut lines, &containers[at], 0);
            }
        }
        By::Pod => {
            let sums = view.pods();
            for at in order(sums.iter().map(|sum| sum.cpu_pct)) {
                let sum = &sums[at];
                let inside = |inside: &&Sum<'_, ContainerView>| inside.what.pod == Some(sum.at);
                // Its containers share one.
                let network = containers.iter().filter(inside).find_map(network);
                lines.push(Line { network, ..owner(sum, 0, sum.name.clone()) });
                for inside in containers.iter().filter(inside) {
                    container(&mut lines, inside, 1);
                }
                processes(&mut lines, 1, &|task| task.pod == Some(sum.at) && task.container.is_none());
            }
        }
        _ => {
            let sums = view.vms();
            for at in order(sums.iter().map(|sum| sum.cpu_pct)) {
                let sum = &sums[at];
                lines.push(owner(sum, 0, format!("{} (pid {})", sum.name, sum.what.pid)));
                let threads = view.tasks.iter().filter(|row| row.task.vm == Some(sum.at));
                let threads =
                    threads.filter(|row| args.all || row.busy() || sum.what.vcpus.contains(&row.task.id.tid));
                lines.extend(threads.map(|row| Line {
                    name: format!("{} {}", row.task.id.tid, row.task.comm),
                    ..process(row, 1)
                }));
            }
        }
    }
    let total = lines.len();
    lines.truncate(limit);
    if lines.is_empty() {
        return (String::new(), 0, total);
    }
    let mut fields = vec![
        Field::text("name", "NAME", |line: &Line| {
            format!("{}{}", "· ".repeat(line.depth), printable(&line.name))
        }),
        Field::new("core", "CORE", |line: &Line| line.core.clone()).right(),
        Field::number("cpu_pct", "CPU %", 1, |line: &Line| Some(line.cpu_pct)),
        Field::number("wait_pct", "WAIT %", 1, |line: &Line| line.wait_pct),
        Field::number("throttled_pct", "THR %", 1, |line: &Line| match line.throttled_pct {
            Value::Number(pct) => Some(pct),
            _ => None,
        }),
        Field::new("p99", "P99 WAIT", |line: &Line| line.p99.clone()).right(),
    ];
    if lines.iter().any(|line| line.network.is_some()) {
        let of = |line: &Line| Value::Text(line.network.map(transferred).unwrap_or_default());
        fields.push(Field::new("network", "NET IN/OUT", of).right());
    }
    fields.push(Field::text("limits", "LIMITS", |line: &Line| line.limits.clone()));
    let table = Table::new(fields);
    (table.text(&lines, show::width()), lines.len(), total)
}

/// Indices by falling value.
fn order(values: impl Iterator<Item = f64>) -> Vec<usize> {
    let mut order: Vec<(usize, f64)> = values.enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.into_iter().map(|(at, _)| at).collect()
}

fn by_cpu(view: &View<'_>, args: &Args, limit: usize) -> (String, usize, usize) {
    let mut lines: Vec<(String, Option<Row>)> = Vec::new();
    for cpu in &view.observation.host.per_cpu {
        let place = view.observation.topology.cpu(cpu.cpu);
        let star = if place.is_some_and(|cpu| cpu.isolated) { "*" } else { "" };
        let steal = cpu.steal_pct.map_or_else(|| "unknown".to_owned(), |pct| format!("{pct:.1} %"));
        let node = place.and_then(|cpu| cpu.node).map_or(String::new(), |node| format!(", node {node}"));
        lines.push((format!("CPU {}{star}: busy {:.1} %, steal {steal}{node}", cpu.cpu, cpu.busy_pct), None));
        let on = view.on_cpu(cpu.cpu).into_iter().filter(|row| args.all || row.task.cpu_pct >= 0.05);
        lines.extend(on.map(|row| (String::new(), Some(row.clone()))));
    }
    let total = lines.len();
    lines.truncate(limit);
    let shown = lines.len();
    let mut out = String::new();
    let mut rows: Vec<Row> = Vec::new();
    let flush = |rows: &mut Vec<Row>, out: &mut String| {
        if !rows.is_empty() {
            for line in cpu_tasks().text(&*rows, show::width().map(|width| width.saturating_sub(2))).lines() {
                let _ = writeln!(out, "  {line}");
            }
            rows.clear();
        }
    };
    for (title, row) in lines {
        match row {
            Some(row) => rows.push(row),
            None => {
                flush(&mut rows, &mut out);
                let _ = writeln!(out, "{title}");
            }
        }
    }
    flush(&mut rows, &mut out);
    (out, shown, total)
}

fn cpu_tasks() -> Table<Row> {
    Table::new(vec![
        Field::new("tid", "TID", |row: &Row| Value::Integer(row.task.id.tid.into())).right(),
        Field::text("name", "NAME", |row: &Row| cut(&row.task.comm, 16)),
        Field::number("cpu_pct", "CPU %", 1, |row: &Row| Some(row.task.cpu_pct)),
        Field::number("wait_pct", "WAIT %", 1, |row: &Row| row.task.wait_pct),
        Field::new("may run on", "MAY RUN ON", |row: &Row| {
            row.task.affinity.as_ref().map_or(Value::Unknown, |cpus| Value::Text(cpus.to_string()))
        }),
        Field::new("owner", "WHOSE", Row::owner),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::TaskId;

    #[test]
    fn a_line_fits_into_a_usual_terminal() {
        let task = TaskView {
            id: TaskId { tgid: 4_194_300, tid: 4_194_301, start_time: 1 },
            comm: "fifteen-letters".into(),
            cpu: Some(1023),
            cpu_pct: 12_345.6,
            wait_pct: Some(99_999.9),
            voluntary_per_s: Some(123_456.0),
            involuntary_per_s: Some(123_456.0),
            ..TaskView::default()
        };
        let unit = Some("a-service-whose-name-is-rather-long.service".to_owned());
        let row = Row {
            task,
            threads: 1,
            throttled_pct: Some(100.0),
            cgroup: None,
            container: None,
            pod: None,
            vm: None,
            unit,
            placed: true,
        };
        for (threads, width) in [(false, 80), (true, 80), (false, 110)] {
            let text = columns(threads, Some(width)).text([&&row], Some(width));
            assert_eq!(text.lines().count(), 2, "one line of heading, one of the task:\n{text}");
            assert!(text.lines().all(|line| line.chars().count() <= width.into()), "{text}");
            assert_eq!(text.contains("VOL/s"), width == 110, "{text}");
        }
    }
}
