//! A study as text, tables, picture and page.

use evenkeel_lab::neighbour::plan::{Arm, Batch, Service};
use evenkeel_lab::neighbour::study::{Row, Study};
use evenkeel_report::demo::Role;
use evenkeel_report::figure;
use evenkeel_report::figure::Figure;
use evenkeel_report::html::FiguresPage;
use evenkeel_report::lab::{begun_line, study_text};
use evenkeel_report::svg::{Across, Line, LineChart, line_chart, standalone};
use evenkeel_report::{Field, Table, Value};

const FIGURES: [Figure<Row>; 11] = [
    figure!(p50_usec, "P50 US", 0, false),
    figure!(p99_usec, "P99 US", 0, true),
    figure!(p999_usec, "P99.9 US", 0, true),
    figure!(latency_impact_pct, "LAT-IMP %", 0, true),
    figure!(isolation_pct, "ISOL %", 1, true),
    figure!(work_conserved_pct, "WORK-CSV %", 1, true),
    figure!(answered_per_s, "ANSWERED/S", 0, false),
    figure!(batch_pct, "BATCH %", 0, false),
    figure!(service_pct, "SERVICE %", 0, false),
    figure!(others_pct, "OTHERS %", 0, true),
    figure!(utilisation_pct, "BUSY %", 0, true),
];

pub fn text(study: &Study) -> String {
    let head = (study.name.as_str(), study.began.as_str());
    study_text(head, &people(study).text(&study.rows, None), &study.verdicts, &missed(study), &study.failed)
}

/// The columns that name a point.
fn names(study: &Study) -> Vec<Field<Row>> {
    let options = study.more.options.clone();
    let (service, batch) =
        (|row: &Row| row.point.service.to_string(), |row: &Row| row.point.batch.map(|b| b.to_string()));
    vec![
        Field::text("service", "SERVICE", service),
        Field::text("batch", "BATCH", batch),
        Field::integer("load_pct", "LOAD %", |row: &Row| Some(i64::from(row.point.load_pct))),
        Field::text("arm", "ARM", move |row: &Row| row.arm(&options)),
    ]
}

/// What people read: values with their intervals.
fn people(study: &Study) -> Table<Row> {
    let mut fields = names(study);
    for Figure { names, heading, decimals, of, .. } in FIGURES.into_iter().filter(|figure| figure.shown) {
        fields.push(Field::text(names[0], heading, move |row: &Row| match of(row) {
            Some(e) => Value::Text(e.in_words(decimals)),
            // A service alone has no impact and no batch; next to one everything should be known.
            None if row.point.batch.is_none() => Value::Absent,
            None => Value::Unknown,
        }));
    }
    Table::new(fields)
}

/// What programs read: every figure, and the ends of its interval.
pub fn table(study: &Study) -> Table<Row> {
    let mut fields = names(study);
    let repetitions = |row: &Row| i64::try_from(row.repetitions).ok();
    fields.push(Field::integer("repetitions", "N", repetitions));
    fields.push(Field::number("asked_pct", "ASKED %", 0, |row: &Row| row.asked_pct));
    fields.extend(FIGURES.iter().flat_map(Figure::fields));
    Table::new(fields)
}

fn missed(study: &Study) -> Vec<String> {
    let left: u64 = study.rows.iter().map(|row| row.not_restored).sum();
    let left = (left > 0).then(|| format!("evenkeel did NOT restore {left} settings, or found them changed"));
    study.missed().into_iter().chain(left).collect()
}

/// Whose colour the line of an arm has.
fn role(arm: Arm) -> Role {
    match arm {
        Arm::Alone | Arm::Default => Role::Default,
        Arm::Evenkeel => Role::Final,
        Arm::CpuIdle | Arm::Weight => Role::Recipe,
        Arm::SchedIdle => Role::Ceiling,
        Arm::Nice => Role::Trial,
    }
}

/// The 99th percentile over the CPU that is asked for, a line an arm; all begin with the service alone.
fn chart(study: &Study, service: Service, batch: Batch) -> LineChart {
    let point = |row: &Row| {
        let e = row.p99_usec?;
        Some((row.asked_pct?, e.value, Some([e.low, e.high])))
    };
    let alone = study.rows.iter().find(|row| (row.point.service, row.point.arm) == (service, Arm::Alone));
    let here = |row: &&Row| (row.point.service, row.point.batch) == (service, Some(batch));
    let mut lines: Vec<Line> = Vec::new();
    // What comes first of one colour is drawn without gaps: what is in force, not the way there.
    let (after, before): (Vec<&Row>, Vec<&Row>) =
        study.rows.iter().filter(here).partition(|row| !row.from_start);
    for row in after.into_iter().chain(before) {
        let name = row.arm(&study.more.options);
        let at = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            // The service alone is one point, so it has one interval.
            let first = lines.is_empty();
            let start = alone.and_then(point).map(|(x, y, interval)| (x, y, interval.filter(|_| first)));
            let points = start.into_iter().collect();
            lines.push(Line { name, points, role: Some(role(row.point.arm)) });
            lines.len() - 1
        });
        lines[at].points.extend(point(row));
    }
    LineChart {
        label: format!("99th percentile of {service} over the CPU asked for, next to {batch}"),
        x: "CPU asked for by service and batch, % of the machine (beyond 100 the CPUs are always busy)"
            .into(),
        y: "99th percentile, us".into(),
        across: Across::Linear,
        lines,
    }
}

/// Every service with every batch that has rows.
fn scenes(study: &Study) -> Vec<(Service, Batch)> {
    let mut scenes: Vec<(Service, Batch)> =
        study.rows.iter().filter_map(|row| Some((row.point.service, row.point.batch?))).collect();
    scenes.dedup();
    scenes
}

/// The first picture as a file of its own; `None` where nothing can be drawn.
pub fn picture(study: &Study) -> Option<String> {
    let (service, batch) = *scenes(study).first()?;
    let svg = line_chart(&chart(study, service, batch));
    (!svg.is_empty()).then(|| standalone(&svg))
}

/// The page, which is the document, too.
pub fn page(study: &Study) -> FiguresPage {
    let options = &study.more.options;
    let caption = |service: Service, batch: Batch| {
        format!(
            "How long 99 % of the requests of {service} take at most, next to {batch}: lower is better, the first point is the \
             service alone. Bars are 95 % intervals."
        )
    };
    let charts = scenes(study).into_iter().map(|(s, b)| (caption(s, b), chart(study, s, b))).collect();
    let shown = || FIGURES.iter().filter(|figure| figure.shown);
    let columns = ["point".to_owned(), "n".into()].into_iter().chain(shown().map(Figure::title)).collect();
    let of_row = |row: &Row| {
        let figure = |f: &Figure<Row>| {
            let has_batch = row.point.batch.is_some();
            let none = if has_batch { "?" } else { "" };
            (f.of)(row).map_or_else(|| none.to_owned(), |e| e.in_words(f.decimals))
        };
        let name = format!("{}, {}", row.point.scene(), row.arm(options));
        [name, row.repetitions.to_string()].into_iter().chain(shown().map(figure)).collect()
    };
    let measured = format!(
        "{} s a cell after {} s of batch work, {} repetitions; evenkeel {} s from its start, then {} s",
        options.seconds, options.settle_s, options.repetitions, options.decide_s, options.seconds
    );
    let facts = [("Measured".to_owned(), measured)].into_iter().chain(study.rows.iter().filter_map(in_force));
    let facts = facts.collect();
    FiguresPage {
        title: "What does a service feel of batch work next to it?".into(),
        sub: begun_line(&study.name, &study.host, &study.began),
        verdicts: study.verdicts.clone(),
        missed: missed(study),
        facts,
        charts,
        columns,
        rows: study.rows.iter().map(of_row).collect(),
        failed: study.failed.clone(),
        method: method(),
    }
}

/// What evenkeel had in force at the end of each run of a point, and why.
fn in_force(row: &Row) -> Option<(String, String)> {
    let restored = match row.not_restored {
        0 => String::new(),
        n => format!(" {n} settings were NOT restored."),
    };
    let why: String = row.why.iter().map(|why| format!(" {why}.")).collect();
    let name = format!("Evenkeel's choice, {}", row.point.scene());
    (!row.settings.is_empty()).then(|| (name, format!("{}.{restored}{why}", row.settings.join(", "))))
}

fn method() -> Vec<String> {
    [
        "Service, clients and batch work have a cgroup each, of equal weight, next to each other, as containers have. Latency counts \
         from the instant at which a request was due, whatever became of earlier ones (an open loop); what is never answered counts \
         with the time it has waited.",
        "The terms are those of resctl-bench. Isolation (ISOL): requests answered of those that were due. Latency impact (LAT-IMP): how \
         much the 99th percentile is above that of the service alone. Work conserved (WORK-CSV): CPU time of batch work of what it gets \
         under the kernel's default at the same load. Both are of pairs from the same repetition; latencies are geometric means over \
         repetitions. Intervals are Student's t, in the tables at 95 % each; those of the sentences hold together at 95 % and are wider.",
        "nice and SCHED_IDLE of a task act among the tasks of its own cgroup: next to a service in another cgroup they are not expected to \
         do what cpu.idle or a least weight of the whole cgroup does.",
        "evenkeel is started with the measurement and told which cgroup is the service and which the batch. Its first seconds include \
         the trial, during which every second window is under the kernel's default.",
        "Points of a repetition are measured in random order, each with everything started again.",
    ]
    .map(str::to_owned)
    .to_vec()
}
