//! `evenkeel prove`: does the loop do good, and no harm, on random loads of known demand?

mod aa;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_agent::{Watcher, default_plan};
use evenkeel_base::run::Estimate;
use evenkeel_base::stats;
use evenkeel_base::text::bracketed;
use evenkeel_lab::mix::Mix;
use evenkeel_lab::tenant::Layout;
use evenkeel_linux::Root;
use evenkeel_report::demo::gap_closed;
use evenkeel_report::table::{Field, Table, width};
use serde_json::json;

use super::global::root_only;
use super::known::{Known, StageResult};
use super::sink::ConsoleSink;
use super::{Failure, Format, Global, Outcome};

/// Test the loop on random mixes of loads whose demand is known: does it end above the kernel's default, and never
/// below?
///
/// In each mix the loop decides. Then its choice, the kernel's default and SCHED_FIFO alternate until the difference is
/// known to within the margin. Exit status: 1 if a mix ended below its own default by more than its
/// interval (with --promises: if more than 1 % of the seconds were broken by more than 2 points; with --aa: if so many
/// kept refute an error rate of 5 %, or if fewer than three in four decisions reached their confirmation), if nothing could be
/// compared, or if it was interrupted.
///
/// Example: evenkeel prove --mixes 20 --seed 1
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of mixes; their seeds count up from --seed.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    mixes: u64,
    /// Seed of the first mix, or of the first decision.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Half-width of the interval of the difference at which a mix is done.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    margin: f64,
    /// Test decisions instead (docs/proof.md): N decisions about settings that change nothing, at most 45 s each.
    #[arg(long, value_name = "N", conflicts_with_all = ["mixes", "margin", "at_most", "promises"], value_parser = clap::value_parser!(u64).range(2..=10_000))]
    aa: Option<u64>,
    /// Test promised shares instead (docs/guarantees.md): 40/50/10 on one CPU, random sets on two, a spike.
    #[arg(long, value_enum, value_name = "WHICH")]
    promises: Option<super::promises::Which>,
    /// With --promises: where the loads run; repeatable.
    #[arg(long, value_enum, requires = "promises", value_name = "PLACE")]
    place: Vec<Layout>,
    /// With --promises: seconds judged in each scene, after five to settle.
    #[arg(long, requires = "promises", value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Longest time for the comparison of one mix.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = super::duration)]
    at_most: Duration,
}

/// Rounds of the comparison at least: fewer give no interval.
const MIN_ROUNDS: usize = 4;
/// A gap between default and ceiling below this is noise: nothing was there to be closed.
const NO_GAP: f64 = 0.01;

/// What came of one mix.
struct Row {
    mix: Mix,
    choice: String,
    why: String,
    decided_s: f64,
    rounds: usize,
    default: Option<Estimate>,
    choice_fulfilment: Option<Estimate>,
    ceiling: Option<Estimate>,
    gain: Option<Estimate>,
}

impl Row {
    fn gap(&self) -> Option<f64> {
        Some(self.ceiling?.value - self.default?.value)
    }

    /// Share of the gap closed; `None` where there was no gap to close.
    fn closed(&self) -> Option<f64> {
        self.gap().filter(|gap| *gap >= NO_GAP)?;
        gap_closed(Some(self.default?.value), Some(self.choice_fulfilment?.value), Some(self.ceiling?.value))
    }

    fn harmed(&self) -> bool {
        self.gain.is_some_and(|gain| gain.high < 0.0)
    }
}

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("prove runs on this host: --root does not go with it")?;
    root_only("prove makes cgroups and changes settings of its loads: run it as root")?;
    if let Some(decisions) = args.aa {
        return aa::prove(global, decisions, args.seed);
    }
    if let Some(which) = args.promises {
        use super::promises::Order;
        let both = vec![Layout::OneCgroup, Layout::CgroupEach];
        let places = if args.place.is_empty() { both } else { args.place };
        let order = Order { which, places, seconds: args.seconds, sets: args.mixes, seed: args.seed };
        return super::promises::run(global, &order);
    }
    let topology = evenkeel_observe::read_topology(&Root::host()).context("cannot read the machine")?;
    let cpus = topology.online.intersection(&topology.allowed).len() as u32;
    let mut sink = ConsoleSink::new()?;
    let mut rows = Vec::new();
    for seed in args.seed..args.seed.saturating_add(args.mixes) {
        let mix = Mix::random(seed, cpus);
        sink.lasting(&mix.to_string());
        let row = one(mix, &args, &mut sink)
            .map_err(|failure| not_alone(failure, &rows, |rows| print(global, rows, args.mixes)))?;
        if sink.stopping() {
            break;
        }
        let show = |e: Option<Estimate>| e.map_or_else(|| "?".to_owned(), |e| format!("{:.3}", e.value));
        sink.lasting(&format!(
            "  {}: default {} -> {} (ceiling {}), gain {}",
            row.choice,
            show(row.default),
            show(row.choice_fulfilment),
            show(row.ceiling),
            row.gain.map_or_else(
                || "?".to_owned(),
                |g| {
                    let [low, high] = [g.low, g.high].map(|end| format!("{end:+.3}"));
                    format!("{:+.3} {}", g.value, bracketed(low, high))
                }
            ),
        ));
        rows.push(row);
    }
    print(global, &rows, args.mixes)?;
    Ok(status(&rows, args.mixes))
}

/// Mixes that were not told apart at all, as loads ended or told nothing, are no proof; nor are those that were not run.
fn status(rows: &[Row], asked: u64) -> u8 {
    let interrupted = (rows.len() as u64) < asked;
    u8::from(interrupted || rows.iter().any(Row::harmed) || rows.iter().all(|row| row.gain.is_none()))
}

/// What came before a failure is shown, not lost with it.
pub(super) fn not_alone<R>(
    failure: Failure,
    before: &[R],
    show: impl FnOnce(&[R]) -> Result<(), Failure>,
) -> Failure {
    if !before.is_empty() {
        // The failure says more than a closed output.
        show(before).ok();
    }
    failure
}

fn one(mix: Mix, args: &Args, sink: &mut ConsoleSink) -> Result<Row, Failure> {
    let seed = mix.seed;
    let edit = |config: &mut evenkeel_agent::Config| config.rules.seed = seed;
    let mut known = Known::start(&mix.specs(), mix.place, edit, sink)?;
    known.settle(Duration::from_secs(1), sink);
    let began = Instant::now();
    let outcome = known.agent.decide(sink).map_err(super::loop_failed)?;
    let decided_s = began.elapsed().as_secs_f64();
    let plan = known.agent.plan().clone();
    let why = match &outcome {
        Ok(decision) => decision.verdicts[decision.winner].why.clone(),
        Err(no) => no.why(),
    };
    let longest = mix.tasks.iter().map(|t| t.period).max().unwrap_or(Duration::from_millis(100));
    let window = (longest * 6).clamp(Duration::from_millis(1500), Duration::from_secs(3));
    let settle = longest.clamp(Duration::from_millis(150), Duration::from_millis(500));
    let acts = !plan.is_default();
    let as_found = default_plan();
    let (mut default, mut choice, mut ceiling) = (Vec::new(), Vec::new(), Vec::new());
    let until = Instant::now() + args.at_most;
    let mut rounds = 0;
    while !sink.stopping() && (rounds < MIN_ROUNDS || Instant::now() < until) {
        // The order alternates, so that a drift of the host's speed weighs on both alike.
        let turns: [bool; 2] = if rounds % 2 == 0 { [false, true] } else { [true, false] };
        for ours in turns {
            if ours && !acts {
                continue;
            }
            known.agent.set(if ours { &plan } else { &as_found });
            known.settle(settle, sink);
            let result = known.stage(window, sink)?;
            if ours { &mut choice } else { &mut default }.extend(result.fulfilment);
        }
        if rounds < MIN_ROUNDS {
            let result: StageResult = known.ceiling(settle, window, sink)?;
            ceiling.extend(result.fulfilment);
        }
        rounds += 1;
        let settled =
            |values: &[f64]| stats::estimate(values).is_some_and(|e| e.high - e.value <= args.margin);
        let enough = if acts {
            difference(&choice, &default).is_some_and(|d| d.high - d.value <= args.margin)
        } else {
            settled(&default)
        };
        if rounds >= MIN_ROUNDS && enough {
            break;
        }
    }
    let default_estimate = stats::estimate(&default);
    let row = Row {
        choice: plan.name.clone(),
        why,
        decided_s,
        rounds,
        choice_fulfilment: if acts { stats::estimate(&choice) } else { default_estimate },
        default: default_estimate,
        ceiling: stats::estimate(&ceiling),
        gain: gain(acts, &choice, &default),
        mix,
    };
    known.end()?;
    Ok(row)
}

/// What the choice gains over the default. Where that is the choice, nothing, if the loads said anything at all.
fn gain(acts: bool, choice: &[f64], default: &[f64]) -> Option<Estimate> {
    let nothing = Estimate { value: 0.0, low: 0.0, high: 0.0 };
    if acts { difference(choice, default) } else { stats::estimate(default).map(|_| nothing) }
}

fn difference(choice: &[f64], default: &[f64]) -> Option<Estimate> {
    stats::difference(choice, default, 0.05)
}

fn table() -> Table<Row> {
    let value = |e: Option<Estimate>| e.map(|e| e.value);
    let half = |e: Option<Estimate>| e.map(|e| e.high - e.value);
    Table::new(vec![
        Field::integer("seed", "SEED", |r: &Row| Some(r.mix.seed as i64)),
        Field::integer("tasks", "TASKS", |r: &Row| Some(r.mix.tasks.len() as i64)),
        Field::number("wanted_pct", "WANTED %", 0, |r: &Row| Some(r.mix.wanted_pct())),
        Field::text("mix", "MIX", |r: &Row| r.mix.to_string()).documents_only(),
        Field::text("choice", "CHOICE", |r: &Row| r.choice.clone()),
        Field::text("why", "WHY", |r: &Row| r.why.clone()).documents_only(),
        Field::number("decided_s", "DECIDED s", 0, |r: &Row| Some(r.decided_s)),
        Field::integer("rounds", "ROUNDS", |r: &Row| Some(r.rounds as i64)),
        Field::number("default_fulfilment", "BY DEFAULT", 3, move |r: &Row| value(r.default)),
        Field::number("choice_fulfilment", "BY CHOICE", 3, move |r: &Row| value(r.choice_fulfilment)),
        Field::number("realtime_ceiling", "CEILING", 3, move |r: &Row| value(r.ceiling)),
        Field::number("gain", "GAIN", 3, move |r: &Row| value(r.gain)),
        Field::number("gain_margin", "±95 %", 3, move |r: &Row| half(r.gain)),
        Field::number("gap_closed", "GAP CLOSED", 2, |r: &Row| r.closed()),
    ])
}

/// What came of all mixes.
struct Summary {
    harmed: Vec<u64>,
    /// Of how many mixes nothing is known.
    unknown: usize,
    with_a_gap: usize,
    median_closed: Option<f64>,
    wide: usize,
}

impl Summary {
    fn of(rows: &[Row]) -> Self {
        let closed = || rows.iter().filter_map(Row::closed);
        Self {
            harmed: rows.iter().filter(|r| r.harmed()).map(|r| r.mix.seed).collect(),
            unknown: rows.iter().filter(|r| r.gain.is_none()).count(),
            with_a_gap: closed().count(),
            median_closed: stats::median(closed()),
            wide: rows.iter().filter(|r| r.gain.is_some_and(|g| g.high - g.value > 0.0105)).count(),
        }
    }

    fn words(&self, done: usize, asked: u64) -> String {
        let Self { harmed, unknown, with_a_gap, median_closed, wide } = self;
        let seeds = if harmed.is_empty() { String::new() } else { format!(" (seeds {harmed:?})") };
        let unknown = match unknown {
            0 => String::new(),
            n => format!(", {n} without a comparison"),
        };
        let mixes = match done as u64 == asked {
            true => format!("{done} mixes"),
            false => format!("Interrupted: {done} of {asked} mixes"),
        };
        format!(
            "{mixes}, {} below their default beyond the interval{seeds}{unknown}; {with_a_gap} with a gap of at least {NO_GAP} \
             to the ceiling, median gap closed {}; {wide} with an interval wider than ±0.01.",
            harmed.len(),
            median_closed.map_or_else(|| "unknown".to_owned(), |m| format!("{:.0} %", 100.0 * m)),
        )
    }
}

fn print(global: &Global, rows: &[Row], asked: u64) -> Result<(), Failure> {
    let summary = Summary::of(rows);
    match global.output {
        Format::Json => {
            let document = json!({
                "schema": "evenkeel.prove/v1", "mixes": table().json(rows), "asked": asked, "harmed": summary.harmed,
                "without_comparison": summary.unknown, "with_a_gap": summary.with_a_gap,
                "median_gap_closed": summary.median_closed, "wider_than_0_01": summary.wide,
            });
            outln!("{document:#}")?;
        }
        Format::Csv => out!("{}", table().csv(rows))?,
        Format::Text | Format::Svg => {
            out!("{}", table().text(rows, width(std::io::stdout().is_terminal())))?;
            outln!("\n{}", summary.words(rows.len(), asked))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gain: Option<f64>) -> Row {
        Row {
            mix: Mix::random(1, 2),
            choice: String::new(),
            why: String::new(),
            decided_s: 0.0,
            rounds: 4,
            default: None,
            choice_fulfilment: None,
            ceiling: None,
            gain: gain.map(|value| Estimate { value, low: value - 0.005, high: value + 0.005 }),
        }
    }

    #[test]
    fn headings_are_in_capitals_as_in_other_tables() {
        use crate::cli::{plan, promises};
        let headings = [
            table().text([], None),
            aa::table().text([], None),
            plan::table().text([], None),
            promises::table().text([], None),
        ];
        for heading in headings {
            let words = heading.split_whitespace().filter(|word| *word != "s");
            assert!(words.clone().all(|word| word == word.to_uppercase()), "{heading}");
            assert!(words.count() > 5, "{heading}");
        }
    }

    #[test]
    fn a_choice_that_is_the_default_gains_nothing_if_anything_is_known() {
        let known = [0.9, 0.91, 0.92, 0.9];
        let gained =
            |acts, choice: &[f64], default: &[f64]| gain(acts, choice, default).map(|gain| gain.value);
        assert_eq!(gained(false, &[], &known), Some(0.0));
        assert_eq!(
            (gained(false, &[], &[]), gained(true, &known, &[])),
            (None, None),
            "the loads told nothing"
        );
        assert!(gained(true, &[0.99, 1.0, 0.98, 0.99], &known) > Some(0.0));
    }

    #[test]
    fn a_failure_takes_nothing_with_it_that_came_before() {
        let shown = |before: &[u32]| {
            let mut shown = None;
            not_alone(refused!("not restored"), before, |rows| {
                shown = Some(rows.to_vec());
                Ok(())
            });
            shown
        };
        assert_eq!((shown(&[7, 8]), shown(&[])), (Some(vec![7, 8]), None));
    }

    #[test]
    fn what_was_interrupted_or_told_nothing_proves_nothing() {
        let whole = [row(Some(0.1)), row(None)];
        assert_eq!(status(&whole, 2), 0);
        let words = Summary::of(&whole).words(2, 2);
        assert!(
            words.starts_with("2 mixes, 0 below their default beyond the interval, 1 without a"),
            "{words}"
        );
        assert_eq!((status(&whole, 3), status(&[], 1), status(&[row(None)], 1)), (1, 1, 1));
        assert!(Summary::of(&whole).words(2, 3).starts_with("Interrupted: 2 of 3 mixes, "));
        assert_eq!(status(&[row(Some(-0.1))], 1), 1);
    }
}
