//! A study as text, tables and page.

use std::fs;
use std::io;
use std::path::Path;

use evenkeel_base::run::Estimate;
use evenkeel_lab::fairness::plan::Which;
use evenkeel_lab::fairness::record::TenantsRecord;
use evenkeel_lab::fairness::study::{Row, Study, series};
use evenkeel_report::html::{TenantsPage, tenants};
use evenkeel_report::svg::{Line, LineChart};
use evenkeel_report::{Field, Table};

type Figure = (&'static str, &'static str, usize, fn(&Row) -> Option<Estimate>);

/// Every figure: name in documents, heading, decimals.
const FIGURES: [Figure; 15] = [
    ("transactions_per_s", "TRANS/S", 0, |r| r.transactions_per_s),
    ("mbit_per_s", "MBIT/S", 0, |r| r.mbit_per_s),
    ("latency_mean_usec", "MEAN US", 1, |r| r.latency_mean_usec),
    ("latency_p50_usec", "P50 US", 1, |r| r.latency_p50_usec),
    ("latency_p99_usec", "P99 US", 1, |r| r.latency_p99_usec),
    ("cpu_pct", "CPU %", 1, |r| r.cpu_pct),
    ("spread", "ON CPUS", 2, |r| r.spread),
    ("softirq_pct", "IRQ %", 1, |r| r.softirq_pct),
    ("bias_transactions_pct", "BIAS T %", 1, |r| r.bias_transactions_pct),
    ("bias_latency_pct", "BIAS L %", 1, |r| r.bias_latency_pct),
    ("bias_cpu_pct", "BIAS CPU %", 1, |r| r.bias_cpu_pct),
    ("bias_softirq_pct", "BIAS IRQ %", 1, |r| r.bias_softirq_pct),
    ("jain", "JAIN", 4, |r| r.jain),
    ("weight_error_pct", "OFF WEIGHT %", 2, |r| r.weight_error_pct),
    ("feasible_error_pct", "OFF FEASIBLE %", 2, |r| r.feasible_error_pct),
];

fn table(study: &Study) -> Table<Row> {
    let mut fields = vec![
        Field::text("point", "POINT", |row: &Row| row.series.clone()),
        Field::integer("tenants", "N", |row: &Row| i64::try_from(row.point.tenants).ok()),
    ];
    for (key, heading, decimals, of) in FIGURES {
        if study.rows.iter().any(|row| of(row).is_some()) {
            fields.push(Field::number(key, heading, decimals, move |row: &Row| of(row).map(|e| e.value)));
        }
    }
    if study.rows.iter().any(|row| row.of_bare_metal_pct.is_some()) {
        fields.push(Field::number("of_bare_metal_pct", "OF BARE %", 0, |row: &Row| row.of_bare_metal_pct));
    }
    Table::new(fields)
}

/// For people.
pub fn text(study: &Study) -> String {
    let mut out = format!("{}, begun {}\n\n", study.name, study.began);
    out += &table(study).text(&study.rows, None);
    out.push('\n');
    for verdict in &study.verdicts {
        out += &format!("* {verdict}\n");
    }
    for missed in missed(study) {
        out += &format!("! {missed}\n");
    }
    for (point, why) in &study.failed {
        out += &format!("x {point}: {}\n", why.lines().next().unwrap_or(""));
    }
    out
}

/// Every figure with its interval, comma-separated.
pub fn csv(study: &Study) -> String {
    let mut out = String::from("point,tenants,vcpus,rps,repetitions");
    for (key, ..) in FIGURES {
        out += &format!(",{key},{key}_low,{key}_high");
    }
    out += ",of_bare_metal_pct\n";
    for row in &study.rows {
        let vcpus = row.point.vcpus.map_or_else(String::new, |n| n.to_string());
        out += &format!(
            "\"{}\",{},{vcpus},{},{}",
            row.series, row.point.tenants, row.point.rps, row.repetitions
        );
        for (.., of) in FIGURES {
            let finite = |value: f64| if value.is_finite() { format!("{value:.4}") } else { String::new() };
            match of(row) {
                Some(e) => out += &format!(",{},{},{}", finite(e.value), finite(e.low), finite(e.high)),
                None => out += ",,,",
            }
        }
        out += &format!(",{}\n", row.of_bare_metal_pct.map_or_else(String::new, |pct| format!("{pct:.2}")));
    }
    out
}

/// Writes study, report and tables beside the record.
pub fn write(folder: &Path, record: &TenantsRecord, study: &Study) -> io::Result<()> {
    let json = serde_json::to_string_pretty(study).map_err(io::Error::other)?;
    fs::write(folder.join("study.json"), json + "\n")?;
    fs::write(folder.join("points.csv"), csv(study))?;
    fs::write(folder.join("report.md"), markdown(study))?;
    fs::write(folder.join("report.html"), tenants(&page(record, study)))
}

fn columns(study: &Study) -> Vec<Figure> {
    FIGURES.into_iter().filter(|(.., of)| study.rows.iter().any(|row| of(row).is_some())).collect()
}

fn heading(key: &str) -> String {
    key.replace("_per_s", "/s").replace("_pct", " %").replace("_usec", ", us").replace('_', " ")
}

fn cells(study: &Study) -> Vec<Vec<String>> {
    let columns = columns(study);
    let of_row = |row: &Row| {
        let mut cells = vec![row.point.to_string()];
        cells.extend(columns.iter().map(|(.., decimals, of)| match of(row) {
            Some(e) if e.low.is_finite() => {
                format!("{:.decimals$} ({:.decimals$} – {:.decimals$})", e.value, e.low.max(0.0), e.high)
            }
            Some(e) => format!("{:.decimals$}", e.value),
            None => "?".into(),
        }));
        cells
    };
    study.rows.iter().map(of_row).collect()
}

fn markdown(study: &Study) -> String {
    let columns = columns(study);
    let mut out = format!("# {}\n\nBegun {}.\n\n", study.name, study.began);
    for verdict in &study.verdicts {
        out += &format!("- {verdict}\n");
    }
    for missed in missed(study) {
        out += &format!("- Not as in the source: {missed}\n");
    }
    out += "\n| point |";
    columns.iter().for_each(|(key, ..)| out += &format!(" {} |", heading(key)));
    out += "\n|---|";
    out += &"---:|".repeat(columns.len());
    out.push('\n');
    for row in cells(study) {
        out += &format!("| {} |\n", row.join(" | "));
    }
    for (point, why) in &study.failed {
        out += &format!("\nWithout a result: {point}: {}\n", why.lines().next().unwrap_or(""));
    }
    out + &format!("\nSoftirq time is charged to tenants by: {}.\n", study.softirq_method)
}

fn missed(study: &Study) -> Vec<String> {
    let of = |r: &evenkeel_experiment::record::Requirement| {
        format!("{}: {}. {}", r.name, r.evidence, r.consequence)
    };
    study.requirements.iter().filter(|r| r.met != Some(true)).map(of).collect()
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
        (!points.is_empty()).then_some(Line { name, points })
    });
    LineChart { label: y.to_owned(), x: "tenants".into(), y: y.to_owned(), lines: lines.collect() }
}

/// Caption, label of the axis, and where the values are.
type Picture = (&'static str, &'static str, fn(&Row) -> Option<Estimate>);

fn page(record: &TenantsRecord, study: &Study) -> TenantsPage {
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
    let host = &study.host;
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
    let timing = &record.options.timing;
    let mut facts = vec![
        ("Processor".to_owned(), known(&host.cpu_model)),
        ("CPUs".into(), host.cpus.map_or_else(|| "unknown".into(), |n| n.to_string())),
        ("Kernel".into(), known(&host.kernel)),
        (
            "Measured".into(),
            format!(
                "{} windows of {:?} after {:?} of warm-up, {} repetitions",
                timing.windows, timing.window, timing.warmup, record.options.repetitions
            ),
        ),
    ];
    if net {
        facts.push(("Flows".into(), record.options.flows.to_string()));
        facts.push(("Traffic".into(), record.options.traffic.name().to_owned()));
    }
    let mut columns: Vec<String> = vec!["point".into()];
    columns.extend(self::columns(study).iter().map(|(key, ..)| heading(key)));
    TenantsPage {
        title: if net {
            "Do tenants get equal shares of the network?"
        } else {
            "Do weights hold between tenants?"
        }
        .into(),
        sub: format!("{} on {}, begun {}", study.name, known(&host.name), study.began),
        verdicts: study.verdicts.clone(),
        missed: missed(study),
        facts,
        charts: figures
            .iter()
            .filter(|(.., of)| study.rows.iter().any(|row| of(row).is_some()))
            .map(|(caption, y, of)| ((*caption).to_owned(), chart(study, y, *of)))
            .collect(),
        columns,
        rows: cells(study),
        failed: study.failed.clone(),
        method: method(net, study),
    }
}

fn method(net: bool, study: &Study) -> Vec<String> {
    let mut method = vec![
        "Values are means over repetitions, each with everything started anew; intervals are Student's t at 95 %. The \
         order of points turns from one repetition to the next."
            .to_owned(),
    ];
    if net {
        method.push(
            "A sender's namespace holds all flows and asks; each tenant answers in a namespace or machine of its own. \
             Between them is a switch in a third namespace, whose uplink stands for the host's network card: RPS is set \
             there. Bare metal is a server beside that uplink."
                .into(),
        );
        method.push(format!("Softirq time is charged to tenants by: {}.", study.softirq_method));
    } else {
        method.push(
            "Every tenant computes on as many threads as it has (v)CPUs and takes what it gets. Where so many threads \
             cannot use what a weight promises, shares are held against the feasible ones (exact weighted max-min)."
                .into(),
        );
    }
    method
}
