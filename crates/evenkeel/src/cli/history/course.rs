//! The course of one container, pod, cgroup or process, step by step.

use std::io::IsTerminal;
use std::time::Duration;

use evenkeel_base::Matcher;
use evenkeel_report::{Field, Table, table, time};
use evenkeel_store::{Step, Store};
use serde_json::json;

use super::{Args, failure, parquet, pretty};
use crate::cli::when::Span;
use crate::cli::{Failure, Format, Global};

/// Steps at most.
const MOST: u64 = 10_000;
/// Lengths of waits are counted by minute, so that is the shortest step.
const MINUTE_S: u64 = 60;

/// A step, as options take it.
pub(super) fn step(text: &str) -> Result<Duration, String> {
    let step = crate::cli::duration(text)?;
    if step.is_zero() || step.subsec_nanos() != 0 || step.as_secs() % MINUTE_S != 0 {
        return Err("whole minutes, such as 1m or 1h".to_owned());
    }
    Ok(step)
}

/// `people`: for them, with columns of lengths of waits only where there are any.
pub(super) fn step_table(people: bool, lengths: bool) -> Table<Step> {
    let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
    let length = move |name, heading, pick: fn(&evenkeel_base::Histogram) -> Option<u64>| {
        Field::number(name, heading, 2, move |step: &Step| ms(step.waits.as_ref().and_then(pick)))
    };
    let column = |field: Field<Step>| if lengths { field } else { field.documents_only() };
    Table::new(vec![
        match people {
            true => Field::text("from", "FROM (UTC)", |step: &Step| time::short(step.from_ns)),
            false => Field::instant("from", "FROM (UTC)", |step: &Step| Some(step.from_ns)),
        },
        Field::number("covered_s", "COVERED S", 0, |step: &Step| Some(step.seconds)),
        Field::number("cpu_pct", "CPU %", 1, |step: &Step| step.cpu_pct),
        Field::number("wait_pct", "WAIT %", 1, |step: &Step| step.wait_pct),
        Field::number("throttled_pct", "THROTTLED %", 1, |step: &Step| step.throttled_pct),
        column(length("wait_p50_ms", "WAIT P50 MS", |waits| waits.quantile(0.5))),
        column(length("wait_p99_ms", "P99 MS", |waits| waits.quantile(0.99))),
        column(length("wait_max_ms", "MAX MS", |waits| waits.longest())),
        column(Field::integer("waits", "WAITS", |step: &Step| {
            i64::try_from(step.waits.as_ref()?.total()).ok()
        })),
    ])
}

pub(super) fn course(
    global: &Global,
    args: &Args,
    store: &Store,
    (text, who): (&str, &Matcher),
    span: Span,
) -> Result<String, Failure> {
    let every = args.every;
    let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
    let count = (span.to_ns - span.from_ns) / every_ns;
    if count >= MOST {
        let why = format!("{count} lines: at most {MOST}; a longer --every makes fewer");
        return Err(usage!(why));
    }
    let series = store.series(who, span.from_ns, span.to_ns, every_ns).map_err(failure)?;
    if series.damaged_blocks > 0 {
        say!("evenkeel: {} damaged blocks of samples were passed over", series.damaged_blocks);
    }
    if series.processes.len() > 1 {
        let named = |(first, comm): &(u64, Option<String>)| {
            format!(
                "{} from {}",
                evenkeel_base::printable(comm.as_deref().unwrap_or("?")),
                time::short(*first)
            )
        };
        let all: Vec<String> = series.processes.iter().map(named).collect();
        say!(
            "evenkeel: {} processes had this number, and each line counts those of its time: {} UTC",
            all.len(),
            all.join(", ")
        );
    }
    let steps = &series.steps;
    let known = steps.iter().filter(|step| step.cpu_pct.is_some()).count();
    let counted = steps.iter().any(|step| step.waits.is_some());
    if let Some(file) = &args.parquet {
        let about = vec![("of", text.to_owned()), ("every_s", every.as_secs().to_string())];
        return parquet::write(file, &step_table(false, true), steps, about);
    }
    let people = matches!(global.output, Format::Text | Format::Svg);
    let table = step_table(people, counted || !people);
    match global.output {
        Format::Json => pretty(&json!({
            "schema": "evenkeel.history/v1",
            "series": {
                "of": text,
                "from": time::rfc3339(span.from_ns),
                "to": time::rfc3339(span.to_ns),
                "every_s": every.as_secs(),
                "processes": series.processes.iter().map(|(first, comm)| json!({ "from": time::rfc3339(*first), "comm": comm })).collect::<Vec<_>>(),
                "rows": table.json(steps),
            },
        })),
        Format::Csv => Ok(table.csv(steps)),
        Format::Text | Format::Svg => {
            let mut text = format!(
                "{}, {} to {} UTC; {known} of {} lines known; percent is of one CPU; ? is unknown\n\n{}",
                evenkeel_base::printable(text).replace('\n', " "),
                time::short(span.from_ns),
                time::short(span.to_ns),
                steps.len(),
                table.text(steps, table::width(std::io::stdout().is_terminal()))
            );
            if known == 0 && steps.iter().any(|step| step.seconds > 0.0) {
                text.push_str("\nNothing of that name was seen then; `--by container` with the same time lists who was.\n");
            } else if !counted {
                text.push_str(match who {
                    Matcher::Container(_) => {
                        "\nLengths of waits were not counted then: `waits = true` under [run] counts them.\n"
                    }
                    _ => "\nLengths of waits are counted by container: --of container:NAME shows them.\n",
                });
            }
            Ok(text)
        }
    }
}
