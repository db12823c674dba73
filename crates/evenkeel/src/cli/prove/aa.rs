//! `evenkeel prove --aa`: how often does a decision keep what changes nothing?
//!
//! Levers propose the values that are there already, as many as ever; they are written, settled, guarded and decided about
//! by the same code as real ones. Whatever is kept is kept by mistake.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_agent::{Config, NoTrial, Watcher};
use evenkeel_base::stats::binomial;
use evenkeel_linux::Root;
use evenkeel_policy::trial::Decision;
use evenkeel_report::demo::{Kind, Scene};
use evenkeel_report::table::{Field, Table, Value, width};
use evenkeel_workload::Kind as LoadKind;
use serde_json::json;

use crate::cli::known::Known;
use crate::cli::sink::ConsoleSink;
use crate::cli::{Failure, Format, Global, Outcome, demo};

/// Share of decisions that may keep what does nothing, and the error probability at which a count refutes it.
const PROMISED: f64 = 0.05;
const REFUTED_AT: f64 = 0.02;
/// Error probability of the bound that is shown next to the count.
const BOUND_AT: f64 = 0.05;
/// Of so many asked for, so many must reach their confirmation.
const REACHED: (u64, u64) = (3, 4);
/// Time for the loads to run before a decision, and what it then takes at most: 45 s with start and end.
const SETTLE: Duration = Duration::from_secs(1);
const DECIDE: Duration = Duration::from_secs(20);
const CLOSER_LOOK: Duration = Duration::from_secs(20);
const MOST_LATE: Duration = Duration::from_secs(2);
/// Period of the loads: windows are as short as they may be, so that four candidates fit into the time.
const PERIOD: Duration = Duration::from_millis(40);
/// The loads take turns. With one cgroup each weights are written, too.
const LOADS: [(Scene, Kind, &str); 4] = [
    (Scene::OneCgroupJittered, Kind::Closed, "closed, one cgroup"),
    (Scene::CgroupEach, Kind::Closed, "closed, one cgroup each"),
    (Scene::OneCgroupJittered, Kind::Wall, "wall, one cgroup"),
    (Scene::CgroupEach, Kind::Wall, "wall, one cgroup each"),
];

/// What came of one decision.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    seed: u64,
    load: &'static str,
    candidates: usize,
    writes: u64,
    confirmed: bool,
    pairs: usize,
    evidence: f64,
    kept: Option<String>,
    why: String,
    seconds: f64,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tally {
    asked: u64,
    confirmed: u64,
    kept: u64,
}

evenkeel_base::named! {
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The count does not refute the promise.
    NotRefuted = "not refuted",
    Refuted = "refuted",
    /// Too few decisions reached their confirmation.
    NothingProved = "nothing proved",
}
}

impl Tally {
    fn of(asked: u64, rows: &[Row]) -> Self {
        let count = |is: fn(&Row) -> bool| rows.iter().filter(|row| row.confirmed && is(row)).count() as u64;
        Self { asked, confirmed: count(|_| true), kept: count(|row| row.kept.is_some()) }
    }

    /// Chance of so many kept, or more, if each is kept with the probability that is promised.
    fn chance(self) -> f64 {
        binomial::at_least(self.kept, self.confirmed, PROMISED)
    }

    /// Greatest share of kept ones that the count does not exclude.
    fn at_most(self) -> f64 {
        binomial::upper(self.kept, self.confirmed, BOUND_AT)
    }

    fn verdict(self) -> Verdict {
        let (of, all) = REACHED;
        if self.chance() < REFUTED_AT {
            Verdict::Refuted
        } else if self.confirmed * all < self.asked * of {
            Verdict::NothingProved
        } else {
            Verdict::NotRefuted
        }
    }

    fn words(self) -> String {
        let Self { asked, confirmed, kept } = self;
        let counts = format!(
            "{confirmed} of {asked} decisions reached their confirmation; {kept} kept what does nothing"
        );
        let verdict = self.verdict();
        if verdict == Verdict::NothingProved {
            return format!("{counts}. Nothing is proved: {} of {} must reach it.", REACHED.0, REACHED.1);
        }
        format!(
            "{counts}. At {:.0} % a decision the chance of so many or more is {:.1} %: that rate is {}. By this count alone \
             it is at most {:.0} % (95 %).",
            100.0 * PROMISED,
            100.0 * self.chance(),
            verdict.name(),
            100.0 * self.at_most(),
        )
    }
}

pub fn prove(global: &Global, asked: u64, first_seed: u64) -> Outcome {
    let topology = evenkeel_observe::read_topology(&Root::host()).context("cannot read the machine")?;
    let cpus = topology.online.intersection(&topology.allowed).len() as u32;
    let mut sink = ConsoleSink::new()?;
    let mut rows = Vec::new();
    for (number, seed) in (first_seed..first_seed.saturating_add(asked)).enumerate() {
        let row = one(LOADS[number % LOADS.len()], cpus, seed, &mut sink).map_err(|failure| {
            super::not_alone(failure, &rows, |rows| print(global, rows, Tally::of(asked, rows)))
        })?;
        if sink.stopping() {
            break;
        }
        let outcome = match (&row.kept, row.confirmed) {
            (Some(name), _) => format!("KEPT {name}: {}", row.why),
            (None, true) => format!("nothing kept after {} pairs", row.pairs),
            (None, false) => format!("no confirmation: {}", row.why),
        };
        sink.lasting(&format!("{} of {asked}, {}: {outcome} ({:.0} s)", number + 1, row.load, row.seconds));
        rows.push(row);
    }
    let tally = Tally::of(asked, &rows);
    print(global, &rows, tally)?;
    Ok(u8::from(tally.verdict() != Verdict::NotRefuted))
}

fn one(
    (scene, kind, load): (Scene, Kind, &'static str),
    cpus: u32,
    seed: u64,
    sink: &mut ConsoleSink,
) -> Result<Row, Failure> {
    let edit = |config: &mut Config| {
        config.as_found = true;
        config.rules.always_confirm = true;
        config.rules.seed = seed;
        config.decide_within = DECIDE;
        config.closer_look = CLOSER_LOOK;
        config.most_late = MOST_LATE;
    };
    let began = Instant::now();
    let mut specs = demo::specs(scene, kind, cpus, seed);
    for spec in &mut specs {
        if let LoadKind::Duty(duty) = &mut spec.kind {
            duty.period = PERIOD;
        }
    }
    let mut known = Known::start(&specs, demo::place_of(scene, false), edit, sink)?;
    known.settle(SETTLE, sink);
    let before = known.agent.written();
    let outcome = known.agent.decide(sink).map_err(crate::cli::loop_failed)?;
    let writes = known.agent.written() - before;
    let in_force = known.agent.plan().name.clone();
    known.end()?;
    Ok(Row { seed, load, writes, seconds: began.elapsed().as_secs_f64(), ..row(&outcome, &in_force) })
}

/// What a decision says, with these settings in force afterwards.
fn row(outcome: &Result<Decision, NoTrial>, in_force: &str) -> Row {
    let verdicts = match outcome {
        Ok(decision) => &decision.verdicts[1..],
        Err(_) => &[],
    };
    let why = match outcome {
        // Who came furthest speaks for the decision.
        Ok(_) => verdicts.iter().max_by_key(|verdict| (verdict.kept, verdict.pairs)).map(|v| v.why.clone()),
        Err(no) => Some(no.why()),
    };
    Row {
        candidates: verdicts.len(),
        confirmed: outcome.as_ref().is_ok_and(|decision| decision.confirmed),
        pairs: verdicts.iter().map(|verdict| verdict.pairs).sum(),
        evidence: verdicts.iter().map(|verdict| verdict.evidence).fold(1.0, f64::max),
        kept: outcome.as_ref().is_ok_and(|decision| decision.winner != 0).then(|| in_force.to_owned()),
        why: why.unwrap_or_default(),
        ..Row::default()
    }
}

pub(super) fn table() -> Table<Row> {
    Table::new(vec![
        Field::integer("seed", "SEED", |r: &Row| Some(r.seed as i64)),
        Field::text("load", "LOAD", |r: &Row| r.load.to_owned()),
        Field::integer("candidates", "CANDIDATES", |r: &Row| Some(r.candidates as i64)),
        Field::integer("writes", "WRITES", |r: &Row| Some(r.writes as i64)),
        Field::new("confirmed", "CONFIRMED", |r: &Row| Value::Bool(r.confirmed)),
        Field::integer("pairs", "PAIRS", |r: &Row| Some(r.pairs as i64)),
        Field::number("evidence", "EVIDENCE", 1, |r: &Row| Some(r.evidence)),
        Field::new("kept", "KEPT", |r: &Row| r.kept.clone().map_or(Value::Absent, Value::Text)),
        Field::text("why", "WHY", |r: &Row| r.why.clone()).documents_only(),
        Field::number("seconds", "SECONDS", 0, |r: &Row| Some(r.seconds)),
    ])
}

fn document(rows: &[Row], tally: Tally) -> serde_json::Value {
    // Only decisions that reached their confirmation count.
    let aa = json!({ "decisions": tally.confirmed, "kept": tally.kept, "budget": PROMISED });
    json!({
        "schema": "evenkeel.prove-aa/v1", "aa": aa, "decisions": table().json(rows), "asked": tally.asked,
        "confirmed": tally.confirmed, "kept": tally.kept, "promised": PROMISED, "chance": tally.chance(),
        "at_most": tally.at_most(), "verdict": tally.verdict().name(),
    })
}

fn print(global: &Global, rows: &[Row], tally: Tally) -> Result<(), Failure> {
    match global.output {
        Format::Json => outln!("{:#}", document(rows, tally)),
        Format::Csv => out!("{}", table().csv(rows)),
        Format::Text | Format::Svg => {
            let width = width(std::io::stdout().is_terminal());
            outln!("{}\n{}", table().text(rows, width), tally.words())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(asked: u64, confirmed: u64, kept: u64) -> Verdict {
        Tally { asked, confirmed, kept }.verdict()
    }

    #[test]
    fn five_percent_is_refuted_by_six_of_forty_and_by_three_of_ten() {
        for (n, few, many) in [(40, 5, 6), (10, 2, 3), (2, 1, 2)] {
            assert_eq!(
                (verdict(n, n, few), verdict(n, n, many)),
                (Verdict::NotRefuted, Verdict::Refuted),
                "{n}"
            );
            assert_eq!(verdict(n, n, 0), Verdict::NotRefuted);
        }
        // Those that did not reach their confirmation do not count.
        assert_eq!((verdict(40, 30, 4), verdict(40, 30, 5)), (Verdict::NotRefuted, Verdict::Refuted));
    }

    #[test]
    fn the_document_has_what_counts_next_to_the_error_budget() {
        let document = document(&[], Tally { asked: 4, confirmed: 3, kept: 1 });
        assert_eq!(document["aa"], json!({ "decisions": 3, "kept": 1, "budget": 0.05 }));
    }

    #[test]
    fn three_of_four_must_reach_their_confirmation() {
        assert_eq!((verdict(40, 30, 0), verdict(40, 29, 0)), (Verdict::NotRefuted, Verdict::NothingProved));
        assert_eq!((verdict(2, 1, 0), verdict(10, 0, 0)), (Verdict::NothingProved, Verdict::NothingProved));
        // What refutes does so however few they are.
        assert_eq!(verdict(40, 3, 3), Verdict::Refuted);
    }

    #[test]
    fn words_say_what_the_status_says() {
        let words = |asked, confirmed, kept| Tally { asked, confirmed, kept }.words();
        let good = words(10, 10, 0);
        assert!(good.contains("is 100.0 %: that rate is not refuted"), "{good}");
        assert!(good.contains("at most 26 % (95 %)"), "{good}");
        let bad = words(10, 9, 3);
        assert!(bad.starts_with("9 of 10") && bad.contains("that rate is refuted"), "{bad}");
        let none = words(10, 7, 0);
        assert!(none.contains("Nothing is proved: 3 of 4 must") && !none.contains("chance"), "{none}");
    }

    #[test]
    fn only_confirmed_decisions_are_counted() {
        let idle = row(&Err(NoTrial::Calm(0.001)), "");
        assert!(!idle.confirmed && idle.why.contains("nothing to gain"), "{}", idle.why);
        let decided = |kept: bool| Row {
            confirmed: true,
            kept: kept.then(|| "weights (as found)".to_owned()),
            ..idle.clone()
        };
        let rows = [idle.clone(), decided(true), decided(false), decided(false)];
        assert_eq!(Tally::of(4, &rows), Tally { asked: 4, confirmed: 3, kept: 1 });
    }
}
