//! The page of an experiment: one file, readable offline.

use evenkeel_base::run::Estimate;
use evenkeel_base::text::{bracketed, count};
use evenkeel_experiment::record::{Cell, Record, RunRecord};
use evenkeel_experiment::study::{Kind, PointStudy, Study, TenantStudy, Verdict};
use maud::{Markup, PreEscaped, html};

use super::charts::{self, Bar, ByUnits, Series, Track};
use super::figures::{
    begun_line, estimate, figure as number, host_line, known, limits, unpredicted, with_units,
};
use super::text::outcome;
use crate::html::{figure, page as whole};
use crate::time;

/// Points with pictures of their own; the tables have all.
const MOST_POINTS: usize = 12;
const MOST_ROWS: usize = 60;

const STYLE: &str = "
.yes{color:var(--good);font-weight:600}.no{color:var(--bad);font-weight:600}.q{color:var(--dim)}
td.verdict{max-width:60ch}table.small{font-size:12.5px}table.small td,table.small th{padding-right:14px}
";

pub fn page(record: &Record, study: &Study) -> String {
    let body = html! {
        style { (PreEscaped(charts::STYLE)) (PreEscaped(STYLE)) }
        header {
            h1 { (if study.title.is_empty() { &study.name } else { &study.title }) }
            p.sub { (begun_line(&study.name, &study.host, &study.began)) " · evenkeel " (study.version) }
        }
        div.answer id="answer" { @for text in answer(study) { p { (text) } } }
        @for missed in &study.missed { p.note { (missed) } }
        (verdicts(&study.verdicts))
        (sources(study))
        (readings(study))
        (overview(study))
        @if study.points.len() > 1 {
            nav { @for point in study.points.iter().take(MOST_POINTS) { a href={ "#point-" (point.index) } { (name(point)) } } }
        }
        @for point in study.points.iter().take(MOST_POINTS) { (of_point(record, point)) }
        @if study.points.len() > MOST_POINTS {
            p { "The other " (study.points.len() - MOST_POINTS) " points are in the overview above and in tenants.csv and runs.csv." }
        }
        (method(study))
    };
    whole(&format!("evenkeel lab: {}", study.name), &body)
}

fn name(point: &PointStudy) -> String {
    if point.label.is_empty() { "all tenants".to_owned() } else { point.label.clone() }
}

/// The most telling verdicts, at most three.
fn answer(study: &Study) -> Vec<&str> {
    let mut telling: Vec<&str> = study
        .verdicts
        .iter()
        .filter(|v| v.kind != Kind::Measuring)
        .take(3)
        .map(|v| v.text.as_str())
        .collect();
    if telling.is_empty() {
        telling.push("This record decides nothing by itself; see the figures below.");
    }
    telling
}

fn verdicts(verdicts: &[Verdict]) -> Markup {
    html! {
        @if !verdicts.is_empty() {
            h2 id="verdicts" { "Verdicts, each with its test" }
            div.wide { table {
                thead { tr { th { "Holds" } th { "Verdict" } th { "Test" } th.r { "Value" } th { "Held against" } } }
                tbody { @for v in verdicts { tr {
                    td class=(match v.holds { Some(true) => "yes", Some(false) if v.kind != Kind::Question => "no", _ => "q" }) { (outcome(v)) }
                    td.verdict { (v.text) }
                    td { (v.test.statistic) }
                    td.r {
                        @if v.test.value.is_some() { (known(v.test.value)) " " (v.test.unit) }
                        @if let Some([low, high]) = v.test.interval { span.iv { (bracketed(known(low), known(high))) } }
                    }
                    td { (v.test.bound) }
                } } }
            } }
        }
    }
}

fn sources(study: &Study) -> Markup {
    html! {
        @if !study.sources.is_empty() {
            h2 id="sources" { "Next to published measurements" }
            p.sub { "They were made on other machines, so ratios are compared. Predicted: what the model says of this host; ? where it has no say." }
            @for source in &study.sources {
                h3 { (source.title) }
                (figure(&format!("{}; {} with 95 % intervals.", source.quantity, study.made()), &charts::marks(
                    &source.rows.iter().take(MOST_ROWS).map(|r| {
                        let plain = |v: f64| Estimate { value: v, low: v, high: v };
                        (r.label.clone(), vec![r.source.map(plain), r.predicted.map(plain), r.measured])
                    }).collect::<Vec<_>>(),
                    &["published", "predicted", study.made()],
                    &source.quantity,
                )))
                details { summary { "As a table" } div.wide { table.small {
                    thead { tr { th { "" } th.r { "Published" } th.r { "Predicted" } th.r { (if study.made() == "measured" { "Measured" } else { "Simulated" }) } } }
                    tbody { @for r in &source.rows { tr {
                        td { (r.label) } td.r { (known(r.source)) } td.r { (known(r.predicted)) } td.r { (estimate(r.measured)) }
                    } } }
                } } }
            }
        }
    }
}

/// The source's empty tables.
fn readings(study: &Study) -> Markup {
    html! {
        @if !study.readings.is_empty() {
            h2 id="readings" { "Reading files, by share of the machine" }
            p.sub { "The published study describes these tables and left them empty. Real time and CPU time in the kernel and in user mode, seconds." }
            div.wide { table.small {
                thead { tr { th { "File" } th { "Limit" } th.r { "Share, %" } th.r { "Real, s" } th.r { "Sys, s" } th.r { "User, s" } } }
                tbody { @for r in &study.readings { tr {
                    td { (if matches!(r.file.as_str(), "own" | "same") { format!("{} file", r.file) } else { r.file.clone() }) } td { (r.limit) } td.r { (number(r.share_pct)) }
                    td.r { (bound(r.cut_off)) (with_below(r.real_s)) } td.r { (with_below(r.sys_s)) } td.r { (with_below(r.user_s)) }
                } } }
            } }
        }
    }
}

/// Label of a row: the point where there are several, the tenant where there are several.
fn row_name(study: &Study, point: &PointStudy, tenant: &TenantStudy) -> String {
    match (study.points.len() > 1, point.tenants.len() > 1) {
        (true, true) => format!("{}: {}", point.label, with_units(tenant)),
        (true, false) => point.label.clone(),
        _ => with_units(tenant),
    }
}

fn overview(study: &Study) -> Markup {
    let rows: Vec<(String, &TenantStudy)> = study
        .points
        .iter()
        .flat_map(|point| point.tenants.iter().map(move |tenant| (row_name(study, point, tenant), tenant)))
        .collect();
    let cut = if rows.len() > MOST_ROWS {
        format!(" Shown are the first {MOST_ROWS} of {}.", rows.len())
    } else {
        String::new()
    };
    let boxes: Vec<_> =
        rows.iter().filter_map(|(n, t)| Some((n.clone(), t.run_s?))).take(MOST_ROWS).collect();
    let many_runs = boxes.iter().any(|(_, s)| s.n > 2);
    let elapsed: Vec<_> = rows
        .iter()
        .map(|(n, t)| (format!("{n}{}", if t.cut_off { " (cut off)" } else { "" }), vec![t.elapsed_s]))
        .filter(|(_, v)| v[0].is_some())
        .take(MOST_ROWS)
        .collect();
    let units: Vec<ByUnits> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() > 1)
        .take(8)
        .map(|p| ByUnits {
            name: name(p),
            points: p.tenants.iter().filter_map(|t| Some((t.units?, t.competing_per_s?))).collect(),
        })
        .filter(|s| s.points.windows(2).any(|w| w[0].0 != w[1].0))
        .collect();
    let alone: Vec<(u64, Estimate)> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() == 1)
        .filter_map(|p| Some((p.tenants[0].units?, p.tenants[0].events_per_s?.estimate())))
        .collect();
    let accounts: Vec<Bar> = rows.iter().filter_map(|(n, t)| account(n, t)).take(MOST_ROWS).collect();
    let costs: Vec<_> = rows
        .iter()
        .filter_map(|(n, t)| Some((n.clone(), vec![Some(t.cpu_ms_per_event?)])))
        .take(MOST_ROWS)
        .collect();
    html! {
        h2 id="overview" { "Overview" }
        @if study.points.len() > 1 && !elapsed.is_empty() {
            (figure(&format!("Time from a tenant's first start to its last end, mean of the repetitions with 95 % interval.{cut}"),
                &charts::marks(&elapsed, &["time"], "seconds")))
        }
        @if many_runs {
            (figure(&format!("Length of a run. Box: middle half; line: median; whiskers: 5th and 95th percentile; dots: least and greatest.{cut}"),
                &charts::boxes(&boxes, "length of a run, seconds")))
        }
        @if !units.is_empty() {
            (figure("Events a second by units, while all compete; both axes double from mark to mark. On a dashed line (through \
                     the median of its list) the rate is in proportion to the units. Bars are 95 % intervals.",
                &charts::by_units(&units, "events/s (each mark doubles)")))
        }
        @if alone.len() > 2 {
            (figure("Events a second of a tenant that is alone, by its units.",
                &charts::marks(&alone.iter().map(|(u, e)| (count(*u as usize, "unit"), vec![Some(*e)])).collect::<Vec<_>>(), &["alone"], "events a second")))
        }
        @if !accounts.is_empty() {
            (figure(&format!("Where each tenant's time went, mean of a repetition, all threads: CPU time in user mode and in the \
                     kernel, waiting for a CPU, throttled by the quota, stolen. The line is real time.{cut}"),
                &charts::bars(&accounts, &["user", "sys", "waited", "throttled", "stolen"], "real time", "seconds")))
        }
        @if costs.len() > 1 {
            (figure(&format!("CPU time for an event, user and kernel: what the same work costs.{cut}"),
                &charts::marks(&costs, &["CPU"], "CPU milliseconds an event")))
        }
    }
}

fn account(name: &str, t: &TenantStudy) -> Option<Bar> {
    let value = |e: Option<Estimate>| e.map_or(0.0, |e| e.value.max(0.0));
    let (user, sys) = (t.user_s?.value, t.sys_s?.value);
    let throttled = value(t.throttled_s);
    let stolen = value(t.stolen_s);
    // The kernel's waits include throttled time.
    let waited = (value(t.waited_s) - throttled).max(0.0);
    // What an enforcer keeps back is waited for, too: no more than there is time for.
    let all = t.elapsed_s.map_or(f64::INFINITY, |e| e.value * f64::from(t.threads.max(1)));
    let waited = waited.min((all - user - sys - throttled - stolen).max(0.0));
    Some(Bar {
        name: name.to_owned(),
        parts: vec![user, sys, waited, throttled, stolen],
        against: t.elapsed_s.map(|e| e.value),
    })
}

fn of_point(record: &Record, point: &PointStudy) -> Markup {
    let cells: Vec<&Cell> =
        record.cells.iter().filter(|c| c.point.index == point.index && !c.tenants.is_empty()).collect();
    let runs_of =
        |index: usize| cells.iter().flat_map(move |c| c.tenants.get(index)).flat_map(|t| t.runs.iter());
    let labels: Vec<String> = point.tenants.iter().map(with_units).collect();
    let tracks: Vec<Track> = cells
        .first()
        .map(|cell| {
            cell.tenants
                .iter()
                .zip(&labels)
                .map(|(t, label)| Track {
                    name: label.clone(),
                    at: t.runs.iter().map(|r| r.start_s).collect(),
                    end: t.runs.last().map(|r| r.end_s),
                })
                .collect()
        })
        .unwrap_or_default();
    let window = cells
        .first()
        .and_then(|c| evenkeel_experiment::study::window::competing(c))
        .map(|w| [w.from_s, w.to_s]);
    let lengths: Vec<Series> = cells
        .first()
        .map(|cell| {
            cell.tenants
                .iter()
                .zip(&labels)
                .map(|(t, label)| Series {
                    name: label.clone(),
                    points: t.runs.iter().filter_map(|r| Some((r.start_s, r.length_s()?))).collect(),
                })
                .collect()
        })
        .unwrap_or_default();
    let groups: Vec<(String, Vec<f64>)> = labels
        .iter()
        .enumerate()
        .map(|(index, label)| (label.clone(), runs_of(index).filter_map(RunRecord::length_s).collect()))
        .take(24)
        .collect();
    let gaps: Vec<(String, Vec<f64>)> = labels
        .iter()
        .enumerate()
        .map(|(index, label)| {
            let own = cells.iter().flat_map(move |c| c.tenants.get(index));
            (
                label.clone(),
                own.flat_map(|t| t.runs.windows(2).map(|w| 1e3 * (w[1].start_s - w[0].end_s))).collect(),
            )
        })
        .take(24)
        .collect();
    let several = point.tenants.iter().any(|t| t.runs >= 3 * point.repetitions.max(1));
    let enough = groups.iter().any(|(_, v)| v.len() >= 8);
    let many = if labels.len() > 24 { " Shown are the first 24 tenants." } else { "" };
    let first = if cells.len() > 1 { ", first repetition" } else { "" };
    html! {
        h2 id={ "point-" (point.index) } { (name(point)) }
        @if let Some(why) = &point.unavailable { p.note { "Not available here: " (why) } }
        @for note in &point.notes { p.note { (note) } }
        @if several && tracks.len() > 1 {
            (figure(&format!("Start of every run{first}. Only the shaded window, in which all compete, says what a weight buys; a ring is a tenant's end."),
                &charts::starts(&tracks, window)))
        }
        @if several && lengths.iter().any(|one| !one.points.is_empty()) {
            (figure(&format!("Length of each run over time{first}."),
                &charts::points(&lengths, "start of the run, seconds from the release", "length, s", false)))
        }
        @if enough {
            (figure(&format!("Distribution of the length of a run, all repetitions.{many}"), &charts::histograms(&groups, "length of a run, seconds")))
            @if gaps.iter().any(|(_, v)| v.len() >= 8) {
                details { summary { "Time between runs" }
                    (figure(&format!("Distribution of the time between the end of a run and the start of the next.{many}"), &charts::histograms(&gaps, "gap, milliseconds")))
                }
            }
        }
        @if let Some(enforcer) = cells.first().and_then(|c| c.enforcer.as_ref()).filter(|e| !e.trace.is_empty()) {
            (figure(&format!("The steal emulator{first}: CPU wanted from it and given, percent of one CPU. It kept back {} s of {} s wanted.",
                number(enforcer.stolen_s), number(enforcer.demanded_s)),
                &charts::points(&[
                    Series { name: "wanted".into(), points: enforcer.trace.iter().map(|p| (p.at_s, p.demanded_pct)).collect() },
                    Series { name: "given".into(), points: enforcer.trace.iter().map(|p| (p.at_s, p.given_pct)).collect() },
                ], "seconds from the release", "% of one CPU", true)))
        }
        (table(point))
    }
}

fn table(point: &PointStudy) -> Markup {
    if point.tenants.is_empty() {
        return html! {};
    }
    let t = &point.together;
    html! {
        div.wide { table.small {
            thead { tr {
                th { "Tenant" } th { "Limits" } th { "Ran" } th.r { "Runs" } th.r { "Events/s, all runs" } th.r { "Events/s, competing" }
                th.r { "Share, %" } th.r { "Of weights, %" } th.r { "Feasible, %" } th.r { "Predicted events/s" }
                th.r { "Run, s" } th.r { "Predicted" } th.r { "Wait a run, ms" } th.r { "Elapsed, s" } th.r { "CPU, %" } th.r { "Waited, s" } th.r { "Throttled, s" } th.r { "Stolen, s" }
            } }
            tbody { @for t in &point.tenants { tr {
                td { (with_units(t)) @if !t.incomplete.is_empty() { span.iv.no { (t.incomplete.join("; ")) } } }
                td { (limits(t)) } td { (t.workload) } td.r { (t.runs) }
                td.r { (with_below(t.events_per_s.map(|s| s.estimate()))) }
                td.r { (with_below(t.competing_per_s)) }
                td.r { (with_below(t.share_pct)) }
                td.r { (known(t.weight_pct)) } td.r { (known(t.feasible_pct)) } td.r { (known(t.predicted_per_s)) }
                td.r { (with_below(t.run_s.map(|s| s.estimate()))) } td.r { (known(t.predicted_run_s)) }
                td.r { (known(t.wait_per_run_s.map(|w| w.value * 1e3))) }
                td.r { (bound(t.cut_off)) (with_below(t.elapsed_s)) }
                td.r { (known(t.cpu_pct.map(|c| c.value))) }
                td.r { (known(t.waited_s.map(|c| c.value))) }
                td.r { (known(t.throttled_s.map(|c| c.value))) }
                td.r { (known(t.stolen_s.map(|c| c.value))) }
            } } }
        } }
        p.sub {
            (count(point.repetitions, "repetition"))
            @if let Some([from, to]) = t.window_s { " · all compete from " (number(from)) " to " (number(to)) " s" }
            @if let Some(bias) = t.bias_pct { " · bias for weight " (number(bias)) " %" }
            @if let Some(jain) = t.jain { " · Jain index " (format!("{jain:.4}")) }
            @if let Some(line) = t.proportion { " · slope of log rate against log weight " (format!("{:.3}", line.slope)) }
            @if let Some(late) = t.woken_late_usec_max { " · last wake-up " (number(late / 1e3)) " ms after the release" }
            @for why in unpredicted(point) { " · no prediction: " (why) }
        }
    }
}

/// Before a time: of a run that was cut off only a lower bound is known.
fn bound(cut_off: bool) -> &'static str {
    if cut_off { "> " } else { "" }
}

fn with_below(e: Option<Estimate>) -> Markup {
    html! {
        (known(e.map(|e| e.value)))
        @if let Some(e) = e.filter(|e| e.low < e.high && e.low.is_finite()) { span.iv { (bracketed(number(e.low), number(e.high))) } }
    }
}

fn method(study: &Study) -> Markup {
    html! {
        h2 id="method" { "How this was " (study.made()) ", and what it does not show" }
        p {
            "Tenants were started beforehand and released together; each did its runs back to back. Rates of competing \
             tenants are taken from the window in which all of them still had work, since those that go on alone speed up. \
             Intervals are 95 %: Student's t over the repetitions, over the runs of a single one. Feasible shares \
             are exact weighted max-min shares for the weights, threads, quotas and CPUs given; the kernel's own balancing \
             differs from them by some percent."
        }
        p {
            "Waited is the kernel's run_delay, which includes throttled time; the bars show them apart. Wait of a run is the mean \
             run less the mean run of a tenant alone that did the same."
            @if let Some(o) = &study.overhead {
                " Alone a run took " (estimate(Some(o.alone_s))) " s (" (o.runs) " runs)"
                @if let Some(overhead) = o.overhead_s { ", an overhead of " (number(overhead * 1e3)) " ms beyond the time asked for" }
                "."
            }
        }
        dl {
            dt { "Host" } dd { (host_line(&study.host)) }
            @if let Some(cores) = study.host.cores { dt { "Cores" } dd { (cores) ", " (count(study.host.threads_per_core.unwrap_or(1) as usize, "thread")) " each, " (count(study.host.nodes.unwrap_or(1) as usize, "NUMA node")) } }
            @if let Some(memory) = study.host.memory_bytes { dt { "Memory" } dd { (time::bytes(memory)) } }
            @if let Some(rate) = study.host.primes_per_s { dt { "Primes alone" } dd { (number(rate)) " events/s" } }
            dt { "Cells" } dd { (study.cells[0]) " of " (study.cells[1]) }
            dt { "Finished" } dd { (study.finished.as_deref().unwrap_or("not yet")) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_experiment::record::{Account, Ended, Limits, Release, SCHEMA, TenantRecord};
    use evenkeel_experiment::study::study;

    /// A reader of files that the time limit ended after 7 s.
    fn cut_off(runs: Vec<RunRecord>) -> Record {
        let tenant = TenantRecord {
            name: "job".into(),
            units: None,
            place: "cgroup".into(),
            limits: Limits { quota_pct: Some(25.0), ..Limits::default() },
            workload: "sieve --from 1 --to 9 --read own".into(),
            threads: 1,
            runs_planned: 1,
            release: Release::default(),
            ended: Ended::TimeLimit("7 s".into()),
            total: Account { real_s: 7.0, ..Account::default() },
            runs,
        };
        let mut record = Record { schema: SCHEMA.into(), planned_cells: 1, ..Record::default() };
        record.host.cpus = Some(2);
        record.cells = vec![Cell { seconds: 7.0, tenants: vec![tenant], ..Cell::default() }];
        record
    }

    #[test]
    fn pictures_of_lengths_have_those_that_the_tables_have() {
        // Ten runs of half a second and one that was cut off; ten whose length no log tells.
        let run = |start_s: f64, end_s: f64| RunRecord { start_s, end_s, ..RunRecord::default() };
        let mut runs: Vec<_> = (0..10).map(|n| run(0.5 * f64::from(n), 0.5 * f64::from(n + 1))).collect();
        runs.push(RunRecord { cut_off: true, ..run(5.0, 7.0) });
        for (runs, shown) in [(runs, true), (vec![run(0.0, 0.0); 10], false)] {
            let record = cut_off(runs);
            let text = page(&record, &study(&record));
            for picture in ["Distribution of the length of a run", "Length of each run over time"] {
                assert_eq!(text.contains(picture), shown, "{picture}");
            }
            // The axis does not reach the 2 s of the one that was cut off.
            let lengths = text
                .split("Length of each run over time")
                .nth(1)
                .and_then(|rest| rest.split("</svg>").next());
            assert!(lengths.is_none_or(|svg| svg.contains("0.5") && !svg.contains("1.5")), "{lengths:?}");
        }
    }

    #[test]
    fn a_time_that_was_cut_off_is_a_bound_in_every_report() {
        let record = cut_off(vec![RunRecord { end_s: 7.0, ..RunRecord::default() }]);
        let study = study(&record);
        let twice = |text: &str, bound: &str| assert_eq!(text.matches(bound).count(), 2, "{text}");
        // Of the tenant, and of the reader of files that it is.
        twice(&page(&record, &study), "&gt; 7");
        twice(&crate::lab::markdown(&study), "more than 7");
        twice(&crate::lab::text(&study, None), ">7");
        let csv = crate::lab::csv_files(&record, &study);
        let tenants = &csv.iter().find(|(name, _)| *name == "tenants.csv").unwrap().1;
        assert!(
            tenants.lines().next().unwrap().ends_with(",cut_off") && tenants.ends_with(",true\n"),
            "{tenants}"
        );
    }
}
