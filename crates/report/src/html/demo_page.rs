//! The demonstration's page.

use evenkeel_base::text::bracketed;
use maud::{Markup, html};

use super::{figure, measured, page};
use crate::demo::{CoreMap, DemoReport, DemoRun, DemoStage, Role, Verdict, took};
use crate::svg::{self, Band, Mark, SummaryRow, TaskBars, Timeline};
use crate::time;

/// Loads shown in a picture; with more, rows could not be read.
const MAX_TASKS: usize = 50;

/// The page of a demonstration.
pub fn demo(report: &DemoReport) -> String {
    let body = html! {
        header {
            h1 { "Who got the CPU: kernel default, the published recipe, evenkeel" }
            p.sub {
                (report.cpus) " CPUs · Linux " (report.host.kernel) " · " (report.host.scheduler.to_uppercase())
                " · cgroup " (report.host.cgroup)
                @if let Some(started) = &report.started { " · " (time::to_the_second(started)) }
                @if let Some(took) = took(report) { " · took " (took) }
                " · evenkeel " (report.version)
            }
        }
        p.answer id="answer" { (report.answer()) " " (report.put_back.sentence()) }
        @for missed in &report.missed { p.note { (missed) } }
        (before_after(report))
        (figure(
            "Every run at a glance. A point is the fulfilment of all loads of a run together; further right is better. \
             The real-time ceiling is the same loads under SCHED_FIFO, which runs each to completion: shown for \
             comparison, not a setting evenkeel used unless you allowed it.",
            &svg::summary(&report.runs.iter().map(summary_row).collect::<Vec<_>>()),
        ))
        nav { @for (index, run) in report.runs.iter().enumerate() { a href={ "#run-" (index + 1) } { (run.title()) } } }
        @for (index, run) in report.runs.iter().enumerate() { (scene(index, run)) }
        (changes(report))
        (method(report))
    };
    page("evenkeel demo", &body)
}

fn before_after(report: &DemoReport) -> Markup {
    html! {
        div.wide { table id="before-after" {
            thead { tr {
                th { "Scene" } th { "Loads" } th.r { "Wanted, % of one CPU" } th.r { "Kernel default" }
                th.r { "Published recipe" } th.r { "evenkeel" } th.r { "Gain" } th.r { "Real-time ceiling" } th.r { "Gap closed" }
                th.r { "Decided after" } th { "Chosen" }
            } }
            tbody { @for run in &report.runs { tr {
                td { (run.scene.name()) } td { (run.kind.name()) }
                td.r { (format!("{:.0}", run.wanted_pct)) }
                td.r { (measured(run.default_fulfilment, run.default_interval)) }
                td.r { (measured(run.published_recipe_fulfilment, run.published_recipe_interval)) }
                td.r { (measured(run.final_fulfilment, run.final_interval)) }
                td.r {
                    span class=(match report.verdict(run) { Verdict::Better => "good", Verdict::Worse => "bad", Verdict::Unclear => "" }) {
                        (gain(report, run))
                    }
                }
                td.r { (measured(run.realtime_ceiling, run.realtime_ceiling_interval)) }
                td.r { (run.gap_closed_text().replace('-', "–")) }
                td.r { (run.seconds_to_settle.map_or_else(|| "?".to_owned(), |s| format!("{s:.1} s"))) }
                td { (breakable(&run.choice)) }
            } } }
        } }
        p.sub {
            "Fulfilment = CPU got / CPU wanted, all loads of a run together; below each value its 95 % interval. Gap \
             closed = (evenkeel − default) / (ceiling − default), where a gap was seen beyond its interval. Gain: evenkeel \
             less default within rounds; below it an interval with which those of all runs hold together at 95 %. Green or \
             red: that interval is above or below 0."
        }
    }
}

/// The name of settings, broken behind a plus where its column is narrow, not within a word.
fn breakable(settings: &str) -> Markup {
    html! {
        @for (index, part) in settings.split('+').enumerate() {
            @if index > 0 { "+" wbr; }
            (part)
        }
    }
}

fn gain(report: &DemoReport, run: &DemoRun) -> Markup {
    html! {
        @match report.gain(run) {
            Some(gain) => {
                (format!("{:+.3}", gain.value))
                span.iv { (bracketed(format_args!("{:+.4}", gain.low), format_args!("{:+.4}", gain.high))) }
            }
            None => { "?" }
        }
    }
}

/// Length of the blocks that were compared, of all stages that were no trial.
fn block_s(report: &DemoReport) -> Option<f64> {
    let stages = report.runs.iter().flat_map(|run| &run.stages);
    let blocks: Vec<f64> =
        stages.filter(|stage| stage.role != Role::Trial).map(|stage| stage.seconds).collect();
    evenkeel_base::stats::median(blocks)
}

fn summary_row(run: &DemoRun) -> SummaryRow {
    let marks = [
        (Role::Default, run.default_fulfilment, run.default_interval),
        (Role::Recipe, run.published_recipe_fulfilment, run.published_recipe_interval),
        (Role::Final, run.final_fulfilment, run.final_interval),
        (Role::Ceiling, run.realtime_ceiling, run.realtime_ceiling_interval),
    ];
    SummaryRow {
        title: run.title().replace(" loads", ""),
        marks: marks
            .into_iter()
            .filter_map(|(role, value, interval)| Some(Mark { role, value: value?, interval }))
            .collect(),
        note: run.gap_closed_text(),
    }
}

fn scene(index: usize, run: &DemoRun) -> Markup {
    let cpus = run.core_map.as_ref().map(|map| map.cpus.clone()).unwrap_or_default();
    let bands = run.stages.iter().map(|stage| Band {
        name: stage.name.clone(),
        role: stage.role,
        start_s: stage.start_s,
        seconds: stage.seconds,
    });
    let timeline = svg::timeline(&Timeline {
        moments: &run.timeline,
        bands: bands.collect(),
        wanted_pct: Some(run.wanted_pct),
        cpus,
    });
    let shown = spread(run.tasks.len(), MAX_TASKS);
    let some = if shown.len() < run.tasks.len() {
        format!(" Shown are {} of the {} loads, evenly picked.", shown.len(), run.tasks.len())
    } else {
        String::new()
    };
    html! {
        h2 id={ "run-" (index + 1) } { (index + 1) ". " (run.title()) }
        p { (run.scene.about()) }
        @if !run.why.is_empty() { p { b { "Chosen: " (run.choice) } ": " (run.why.replace("->", "→")) } }
        @for missed in &run.missed { p.note { (missed) } }
        (figure("Utilisation. Above: all CPUs together, the dashed line is what the loads want. Below: each CPU. Coloured \
                 bands are the stages.", &timeline))
        (stages(&run.stages))
        @if !run.tasks.is_empty() {
            (figure(&format!("What each load wanted (pale) and got (bars) under each setting.{some}"), &svg::task_bars(&bars(run, &shown))))
        }
        @if let Some(map) = &run.core_map {
            (figure(&format!("Where each load ran: the stronger the colour, the more of its own CPU time on that CPU.{some}"),
                &svg::core_map(&pick(map, &shown), &shown.iter().map(|&task| run.tasks[task].name.clone()).collect::<Vec<_>>(),
                    ["Before: kernel default", &format!("After: {}", run.choice)])))
        }
    }
}

/// `most` of `0..count`, evenly spread.
fn spread(count: usize, most: usize) -> Vec<usize> {
    if count <= most { (0..count).collect() } else { (0..most).map(|n| n * count / most).collect() }
}

fn pick(map: &CoreMap, tasks: &[usize]) -> CoreMap {
    let rows = |rows: &[Vec<Option<f64>>]| {
        tasks.iter().map(|&task| rows.get(task).cloned().unwrap_or_default()).collect()
    };
    CoreMap { cpus: map.cpus.clone(), before: rows(&map.before), after: rows(&map.after) }
}

/// Bars for the settings worth comparing: means over the stages of each role, trials left out.
fn bars(run: &DemoRun, tasks: &[usize]) -> TaskBars {
    let shown: Vec<Role> = [Role::Default, Role::Recipe, Role::Final]
        .into_iter()
        .filter(|role| run.stages.iter().any(|stage| stage.role == *role))
        .collect();
    let name = |role: Role| match role {
        Role::Final => format!("evenkeel: {}", run.choice),
        role => role.name().to_owned(),
    };
    TaskBars {
        stages: shown.iter().map(|&role| (name(role), role)).collect(),
        tasks: tasks
            .iter()
            .filter_map(|&task| run.tasks.get(task))
            .map(|task| {
                let got = shown.iter().map(|&role| run.got_pct(task, role)).collect();
                (task.name.clone(), Some(task.wanted_pct), got)
            })
            .collect(),
    }
}

fn stages(stages: &[DemoStage]) -> Markup {
    html! {
        details { summary { "Stages of this run (" (stages.len()) ")" } div.wide { table {
            thead { tr {
                th { "Stage" } th.r { "From" } th.r { "Length" } th.r { "Fulfilment" } th.r { "CPU got, %" } th { "Kept" } th { "What happened" }
            } }
            tbody { @for stage in stages { tr {
                td { span class={ "dot d-" (svg::role_class(stage.role)) } {} (stage.name) }
                td.r { (format!("{:.1} s", stage.start_s)) }
                td.r { (format!("{:.1} s", stage.seconds)) }
                td.r { (measured(stage.fulfilment, stage.fulfilment_interval)) }
                td.r { (stage.cpu_pct.map_or_else(|| "?".to_owned(), |pct| format!("{pct:.1}"))) }
                td { (match stage.kept { Some(true) => "kept", Some(false) => "taken back", None => "" }) }
                td { (stage.note) }
            } } }
        } } }
    }
}

fn changes(report: &DemoReport) -> Markup {
    html! {
        h2 id="changes" { "What was changed on the host, and restored" }
        p class=[(!report.put_back.left.is_empty()).then_some("bad")] { (report.put_back.sentence()) }
        @for (index, run) in report.runs.iter().enumerate() {
            @if run.changes.is_empty() {
                p { (index + 1) ". " (run.title()) ": nothing was changed in the end." }
            } @else {
                details { summary { (index + 1) ". " (run.title()) ": " (run.changes.len()) " changes in force at the end" }
                    div.wide { table {
                        thead { tr { th { "Target" } th { "Property" } th { "From" } th { "To" } th { "Why" } th { "Measured effect" } } }
                        tbody { @for change in &run.changes { tr {
                            td { (change.target) } td { (change.knob) } td { (change.from) } td { (change.to) }
                            td { (change.why) } td { (change.effect.as_deref().unwrap_or("?")) }
                        } } }
                    } }
                }
            }
        }
    }
}

fn method(report: &DemoReport) -> Markup {
    let host = &report.host;
    html! {
        h2 id="method" { "How this was measured, and what it does not show" }
        p {
            "The loads are built in and know what they want: each computes a set share of a CPU in every period. Closed \
             loads need a fixed amount of CPU time a period and finish late when they wait; wall loads compute until \
             a deadline and lose what others take. After evenkeel had chosen, the settings took turns in blocks"
            @if let Some(seconds) = block_s(report) { (format!(" of about {seconds:.1} seconds")) }
            ", in random order within each round. Fulfilment is what all loads got over what they \
             wanted, from the kernel's own counters: the mean over blocks with its 95 % interval. Settings are \
             compared within rounds, so that what comes and goes on the host meets all of them alike. The blocks \
             are not those that chose."
        }
        p {
            "evenkeel chose by trial: the present settings and the candidate alternated in short windows on the running \
             loads, and a candidate was kept only if it was better beyond the interval and cost no other task more \
             than its guard allows. Everything else was undone at once. At the end every change was restored and \
             read again."
        }
        p {
            "Limits: one host, a few seconds a setting, loads that only compute. Equal fixed periods fall into step and \
             flatter every setting. A longer slice for one task is a longer wait for another: throughput is shown here, \
             latency is what the guard watches. Absolute times on a virtual machine do not travel to other hosts; \
             ratios mostly do."
        }
        h3 { "Host" }
        dl {
            dt { "Kernel" } dd { (host.kernel) ", " (host.scheduler) }
            dt { "cgroup" } dd { (host.cgroup) }
            dt { "CPUs" } dd { (report.cpus) @if let Some(model) = &host.model { ", " (model) } }
            @if let Some(topology) = &host.topology { dt { "Topology" } dd { (topology) } }
            dt { "Containers" } dd { (host.runtime.as_deref().unwrap_or("no runtime; plain cgroups were used")) }
            @for (name, value) in &host.more { dt { (name) } dd { (value) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::breakable;

    #[test]
    fn settings_break_behind_a_plus() {
        assert_eq!(breakable("short first+nice+pull").into_string(), "short first+<wbr>nice+<wbr>pull");
        assert_eq!(breakable("kernel default").into_string(), "kernel default");
    }
}
