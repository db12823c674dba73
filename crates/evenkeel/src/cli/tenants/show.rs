//! A study as text, tables and page. Nothing of the program's own: the consistency test of crate `report` reads it, too.

use evenkeel_base::run::Estimate;
use evenkeel_lab::fairness::plan::Which;
use evenkeel_lab::fairness::record::TenantsRecord;
use evenkeel_lab::fairness::study::{Row, Study, series};
use evenkeel_report::figure;
use evenkeel_report::figure::Figure;
use evenkeel_report::html::FiguresPage;
use evenkeel_report::lab::{begun_line, study_text};
use evenkeel_report::svg::{Across, Line, LineChart};
use evenkeel_report::{Field, Table, Value};

const FIGURES: [Figure<Row>; 16] = [
    figure!(transactions_per_s, "TRANS/S", 0),
    figure!(mbit_per_s, "MBIT/S", 0),
    figure!(latency_mean_usec, "MEAN US", 1),
    figure!(latency_p50_usec, "P50 US", 1),
    figure!(latency_p99_usec, "P99 US", 1),
    figure!(cpu_pct, "HOST %", 1),
    figure!(others_pct, "OTHERS %", 1),
    figure!(spread, "ON CPUS", 2),
    figure!(softirq_pct, "IRQ %", 1),
    figure!(bias_transactions_pct, "BIAS T %", 1),
    figure!(bias_latency_pct, "BIAS L %", 1),
    figure!(bias_cpu_pct, "BIAS CPU %", 1),
    figure!(bias_softirq_pct, "BIAS IRQ %", 1),
    figure!(jain, "JAIN", 4),
    figure!(weight_error_pct, "OFF WEIGHT %", 2),
    figure!(feasible_error_pct, "OFF FEASIBLE %", 2),
];

pub fn text(study: &Study) -> String {
    let head = (study.name.as_str(), study.began.as_str());
    study_text(head, &table(study).text(&study.rows, None), &study.verdicts, &study.missed(), &study.failed)
}

/// Every figure, those that any point has also for people.
pub fn table(study: &Study) -> Table<Row> {
    let shown = |field: Field<Row>, any: bool| if any { field } else { field.documents_only() };
    let mut fields = vec![
        Field::text("point", "POINT", |row: &Row| row.series.clone()),
        Field::integer("tenants", "N", |row: &Row| i64::try_from(row.point.tenants).ok()),
        Field::integer("vcpus", "", |row: &Row| row.point.vcpus.map(i64::from)).documents_only(),
        Field::new("rps", "", |row: &Row| Value::Bool(row.point.rps)).documents_only(),
        Field::integer("repetitions", "", |row: &Row| i64::try_from(row.repetitions).ok()).documents_only(),
    ];
    for figure in FIGURES {
        let [value, low, high] = figure.fields();
        fields.push(shown(value, study.rows.iter().any(|row| (figure.of)(row).is_some())));
        fields.extend([low.documents_only(), high.documents_only()]);
    }
    let bare = Field::number("of_bare_metal_pct", "OF BARE %", 0, |row: &Row| row.of_bare_metal_pct);
    fields.push(shown(bare, study.rows.iter().any(|row| row.of_bare_metal_pct.is_some())));
    Table::new(fields)
}

fn columns(study: &Study) -> Vec<Figure<Row>> {
    FIGURES.into_iter().filter(|figure| study.rows.iter().any(|row| (figure.of)(row).is_some())).collect()
}

/// A value with its interval, where it has one; none of these figures is below 0.
pub fn with_interval(e: &Estimate, decimals: usize) -> String {
    let low = if e.low.is_finite() { e.low.max(0.0) } else { e.low };
    Estimate { low, ..*e }.in_words(decimals)
}

fn chart(study: &Study, y: &str, of: fn(&Row) -> Option<Estimate>) -> LineChart {
    let lines = series(&study.rows).into_iter().filter_map(|name| {
        let mut points: Vec<_> = study
            .rows
            .iter()
            .filter(|row| row.series == name)
            .filter_map(|row| of(row).map(|e| (row.point.tenants as f64, e.value, Some([e.low, e.high]))))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then_some(Line { name, points, role: None })
    });
    LineChart {
        label: y.to_owned(),
        x: "tenants".into(),
        y: y.to_owned(),
        across: Across::Doubling,
        lines: lines.collect(),
    }
}

/// Caption, label of the axis, and where the values are.
type Picture = (&'static str, &'static str, fn(&Row) -> Option<Estimate>);

/// The page, which is the document, too.
pub fn page(record: &TenantsRecord, study: &Study) -> FiguresPage {
    let net = record.options.which == Which::TenantsNet;
    let figures: &[Picture] = if net {
        &[
            ("Throughput: transactions of one byte, all flows together.", "transactions/s", |r| {
                r.transactions_per_s
            }),
            ("Throughput: payload received, all flows together.", "Mbit/s", |r| r.mbit_per_s),
            ("Latency, mean over all transactions.", "us", |r| r.latency_mean_usec),
            ("Latency that 99 % of transactions stay below.", "us", |r| r.latency_p99_usec),
            ("CPU load of the host, the sender included: it runs here, too.", "% of one CPU", |r| r.cpu_pct),
            ("Over how many CPUs the load is spread.", "CPUs", |r| r.spread),
            ("Interrupt time of the host.", "% of one CPU", |r| r.softirq_pct),
            ("Bias of throughput: (max - min) / mean over tenants.", "%", |r| r.bias_transactions_pct),
            ("Bias of mean latency.", "%", |r| r.bias_latency_pct),
            ("Bias of CPU time of the tenants' own processes.", "%", |r| r.bias_cpu_pct),
        ]
    } else {
        &[
            ("Largest deviation of a tenant's share of CPU time from its weight's.", "%", |r| {
                r.weight_error_pct
            }),
            ("Bias of CPU time over weight: (max - min) / mean over tenants.", "%", |r| r.bias_cpu_pct),
        ]
    };
    let timing = &record.options.timing;
    let (windows, repetitions) = (timing.windows.max(1), record.options.repetitions);
    let measured = match record.options.traffic.tool() {
        // It takes whole seconds, and its figures are of all of them.
        Some(_) => format!("{} s as the program counts them, without warm-up", timing.whole_s()),
        None => format!("{windows} windows of {:?} after {:?} of warm-up", timing.window, timing.warmup),
    };
    let mut facts = vec![("Measured".to_owned(), format!("{measured}, {repetitions} repetitions"))];
    if net {
        facts.push(("Flows".into(), record.options.flows.to_string()));
        facts.push(("Traffic".into(), record.options.traffic.name().to_owned()));
    }
    let columns = self::columns(study);
    let of_row = |row: &Row| {
        let figure =
            |f: &Figure<Row>| (f.of)(row).map_or_else(|| "?".into(), |e| with_interval(&e, f.decimals));
        [row.point.to_string()].into_iter().chain(columns.iter().map(figure)).collect()
    };
    FiguresPage {
        title: if net {
            "Do tenants get equal shares of the network?"
        } else {
            "Do weights hold between tenants?"
        }
        .into(),
        sub: begun_line(&study.name, &study.host, &study.began),
        verdicts: study.verdicts.clone(),
        missed: study.missed(),
        facts,
        charts: figures
            .iter()
            .filter(|(.., of)| study.rows.iter().any(|row| of(row).is_some()))
            .map(|(caption, y, of)| ((*caption).to_owned(), chart(study, y, *of)))
            .collect(),
        columns: ["point".to_owned()].into_iter().chain(columns.iter().map(Figure::title)).collect(),
        rows: study.rows.iter().map(of_row).collect(),
        failed: study.failed.clone(),
        method: method(net, study),
    }
}

fn method(net: bool, study: &Study) -> Vec<String> {
    let mut method = vec![
        "Values are means over repetitions, each with everything started again; intervals are Student's t, in the \
         tables at 95 % each; those of the sentences hold together at 95 % and are wider. The order of points changes from one \
         repetition to the next."
            .to_owned(),
    ];
    if net {
        method.push(
            "A sender's namespace holds all flows and asks; each tenant answers in a namespace or machine of its own. \
             Between them is a switch in a third namespace, whose uplink stands for the host's network card: RPS is set \
             there. Bare metal is a server next to that uplink."
                .into(),
        );
        method.push(format!("Softirq time is charged to tenants by: {}.", study.more.softirq_method));
    } else {
        method.push(
            "Every tenant computes on as many threads as it has (v)CPUs and takes what it gets. Where so many threads \
             cannot use what a weight promises, shares are held against the feasible ones (exact weighted max-min)."
                .into(),
        );
    }
    method
}
