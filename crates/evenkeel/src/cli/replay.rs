//! `evenkeel replay`: a recorded time once more, moment by moment.

use std::time::Duration;

use evenkeel_console as console;
use evenkeel_report::{Field, Table, Value, time};
use evenkeel_store::moments::{self, Busy, Kind, Moment};
use evenkeel_store::{Rates, Store};
use serde_json::json;

use super::history::{By, RunChoice, choose, failure, lines, no_runs, parse_run};
use super::{Format, Global, Outcome};

/// Replay a recorded time: who got the CPU, and when the loop tried, measured, decided and changed what.
///
/// By default the last run. On a terminal ten times as fast as it happened, else at once.
///
/// Example: evenkeel replay --run last --speed 20
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Replay this run: its number, or `last`.
    #[arg(long, value_name = "N", value_parser = parse_run, conflicts_with = "since")]
    run: Option<RunChoice>,
    /// Replay from this long ago until now, such as 10m or 2h, whichever runs there were.
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    since: Option<Duration>,
    /// How many times as fast as it happened; 0 is at once.
    #[arg(long, value_name = "FACTOR", value_parser = parse_speed)]
    speed: Option<f64>,
    /// What CPU is summed over.
    #[arg(long, value_enum, default_value_t = By::Process)]
    by: By,
    /// How many of these to show, busiest first.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 5)]
    lines: usize,
    /// Shortest time that a line of rates covers.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = super::duration)]
    step: Duration,
}

/// Speed on a terminal.
const SPEED: f64 = 10.0;
/// Longest pause between two lines.
const PAUSE: Duration = Duration::from_secs(3);

pub(super) fn parse_speed(text: &str) -> Result<f64, String> {
    let speed =
        text.trim_end_matches('x').parse::<f64>().ok().filter(|speed| speed.is_finite() && *speed >= 0.0);
    speed.ok_or_else(|| "a factor such as 10, or 0 for no pauses".to_owned())
}

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("a captured tree has no history; name a --state-dir instead")?;
    let path = global.state_dir.join(evenkeel_store::FILE_NAME);
    let store = Store::open_read_only(&path).map_err(failure)?;
    let choice = args.run.unwrap_or(RunChoice::Last);
    let (runs, span) = match (&store, args.since) {
        (None, _) => (Vec::new(), None),
        (Some(store), Some(since)) => {
            let now = Duration::from_nanos(evenkeel_linux::sys::wall_ns());
            let from = now.saturating_sub(since).as_nanos() as u64;
            let mut meant = Vec::new();
            for run in store.runs().map_err(failure)?.iter().rev() {
                if store.until_ns(run).map_err(failure)?.is_none_or(|until| until >= from) {
                    meant.push(run.id);
                }
            }
            (meant, Some((from, u64::MAX)))
        }
        (Some(store), None) => match choose(store, choice).map_err(failure)? {
            Some(run) => {
                let until = store.until_ns(&run).map_err(failure)?.unwrap_or(u64::MAX);
                (vec![run.id], Some((run.record.started_ns, until)))
            }
            None => (Vec::new(), None),
        },
    };
    let words = no_runs(&path, store.is_some());
    let (Some(store), Some(span)) = (store, span) else {
        return match (global.output, args.run) {
            (_, Some(RunChoice::Number(run))) => {
                Err(usage!("nothing recorded in {}: there is no run {run}", path.display()))
            }
            (Format::Json, _) => print(&document(&[], &[])),
            (Format::Csv, _) => print(&table().csv(&[])),
            _ => print(&words),
        };
    };
    let busiest = |rates: &Rates| -> Vec<Busy> {
        let lines = lines(rates, args.by).into_iter();
        lines.filter_map(|line| Some((line.title(), line.cpu_pct?, line.wait_pct))).collect()
    };
    let limits = moments::Limits { busiest: &busiest, lines: args.lines, step_s: args.step.as_secs_f64() };
    let (moments, damaged) = moments::read(&store, &runs, span, limits).map_err(failure)?;
    if damaged > 0 {
        tracing::warn!("{damaged} damaged blocks of samples are passed over");
    }
    match global.output {
        Format::Json => print(&document(&runs.iter().map(|run| run.0).collect::<Vec<_>>(), &moments)),
        Format::Csv => print(&table().csv(&moments)),
        Format::Text | Format::Svg => play(&moments, args.speed),
    }
}

fn print(out: &str) -> Outcome {
    out!("{out}")?;
    Ok(0)
}

fn document(runs: &[i64], moments: &[Moment]) -> String {
    let edge = |moment: Option<&Moment>| moment.and_then(|moment| time::rfc3339(moment.at_ns));
    let document = json!({
        "schema": "evenkeel.replay/v1",
        "runs": runs,
        "from": edge(moments.first()),
        "to": edge(moments.last()),
        "moments": table().json(moments),
    });
    format!("{document:#}\n")
}

fn each(moment: &Moment, of: impl Fn(&(u32, f64)) -> serde_json::Value) -> Value {
    Value::Json(moment.per_cpu_pct.iter().map(of).collect())
}

fn table() -> Table<Moment> {
    Table::new(vec![
        Field::new("at", "AT (UTC)", |moment: &Moment| time::rfc3339(moment.at_ns).into()),
        Field::text("kind", "WHAT", |moment: &Moment| moment.kind.name()),
        Field::text("settings", "SETTINGS", |moment: &Moment| moment.settings.clone()),
        Field::new("seconds", "SECONDS", |moment: &Moment| {
            moment.seconds.map_or(Value::Absent, Value::Number)
        }),
        Field::new("cpu_pct", "CPU %", |moment: &Moment| moment.cpu_pct.map_or(Value::Absent, Value::Number)),
        Field::new("cpus", "CPUS", |moment: &Moment| each(moment, |(_, pct)| json!(pct))),
        // Where one is offline a place says nothing.
        Field::new("cpu_numbers", "CPU NUMBERS", |moment: &Moment| each(moment, |(cpu, _)| json!(cpu))),
        Field::new("busiest", "BUSIEST", |moment: &Moment| {
            let rows = moment.busiest.iter();
            Value::Json(rows.map(|row| json!({"name": row.0, "cpu_pct": row.1, "wait_pct": row.2})).collect())
        }),
        Field::text("text", "TEXT", |moment: &Moment| moment.text.clone()),
    ])
}

/// One line for each moment, with pauses as they were.
fn play(moments: &[Moment], speed: Option<f64>) -> Outcome {
    let out = console::results();
    let speed = speed.unwrap_or(if out.is_terminal() { SPEED } else { 0.0 });
    if moments.is_empty() {
        return print("Nothing was recorded in that time.\n");
    }
    let mut last: Option<u64> = None;
    for moment in moments {
        if let (Some(last), true) = (last, speed > 0.0) {
            let gap = moment.at_ns.saturating_sub(last) as f64 / 1e9 / speed;
            std::thread::sleep(Duration::try_from_secs_f64(gap).unwrap_or(PAUSE).min(PAUSE));
        }
        last = Some(moment.at_ns);
        let line = format!("{}  {}\n", time::short(moment.at_ns), line(moment));
        out!("{line}")?;
        if console::reader_gone() {
            break;
        }
    }
    Ok(0)
}

fn line(moment: &Moment) -> String {
    if moment.kind != Kind::Rates {
        return format!("{:<10} {}", moment.kind.name(), moment.text);
    }
    let cpus: Vec<String> = moment.per_cpu_pct.iter().map(|(_, pct)| format!("{pct:.0}")).collect();
    let busiest: Vec<String> = moment
        .busiest
        .iter()
        .map(|(name, pct, waited)| match waited {
            Some(waited) if *waited >= 0.5 => format!("{name} {pct:.0} (waits {waited:.0})"),
            _ => format!("{name} {pct:.0}"),
        })
        .collect();
    // Hosts have hundreds of CPUs: their sum, and each where there are few.
    let each = if (1..=8).contains(&cpus.len()) { format!(" ({})", cpus.join(" ")) } else { String::new() };
    format!(
        "{:<10} {} %{each} under {}: {}",
        moment.kind.name(),
        moment.cpu_pct.map_or_else(|| "?".to_owned(), |pct| format!("{pct:.0}")),
        moment.settings,
        if busiest.is_empty() { "no task".to_owned() } else { busiest.join(", ") }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_factors() {
        assert_eq!(parse_speed("20"), Ok(20.0));
        assert_eq!(parse_speed("0.5x"), Ok(0.5));
        for bad in ["", "-1", "fast", "inf", "NaN"] {
            assert!(parse_speed(bad).is_err(), "{bad}");
        }
    }

    fn moment(cpus: usize) -> Moment {
        Moment {
            at_ns: 0,
            kind: Kind::Rates,
            settings: "batch".into(),
            seconds: Some(1.0),
            cpu_pct: (cpus > 0).then_some(50.0 * cpus as f64),
            per_cpu_pct: (0..cpus as u32).map(|cpu| (2 * cpu, 50.0)).collect(),
            steal_pct: None,
            wait_pct: None,
            busiest: vec![("web".into(), 40.0, Some(3.0)), ("db".into(), 10.0, None)],
            text: String::new(),
        }
    }

    #[test]
    fn cpus_have_their_numbers_where_one_is_offline() {
        let document = table().json(&[moment(2)]);
        let moment = &document[0];
        assert_eq!((&moment["cpus"], &moment["cpu_numbers"]), (&json!([50.0, 50.0]), &json!([0, 2])));
    }

    #[test]
    fn many_cpus_are_only_summed_up() {
        assert_eq!(line(&moment(2)), "rates      100 % (50 50) under batch: web 40 (waits 3), db 10");
        assert_eq!(line(&moment(64)), "rates      3200 % under batch: web 40 (waits 3), db 10");
        assert_eq!(line(&moment(0)), "rates      ? % under batch: web 40 (waits 3), db 10", "not known");
    }
}
