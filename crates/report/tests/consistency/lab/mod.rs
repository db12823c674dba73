//! Built-in experiments of the laboratory.

use evenkeel_experiment::record::Record;
use evenkeel_experiment::study::study;
use evenkeel_lab::builtin::BUILTINS;
use evenkeel_report::lab;

use crate::printed::{average, follows, printed};
use crate::shared::{Random, count};

mod again;
mod readers;
mod records;

use again::again;
use records::{generated, pair};

/// What was seen of printed verdicts.
#[derive(Default)]
pub struct Tally {
    pub sentences: usize,
    pub reckoned: usize,
    pub undecided: usize,
    pub wrong: Vec<String>,
}

impl Tally {
    /// Studies and prints a record, and reads it back.
    pub fn judge(&mut self, name: &str, record: &Record) {
        let study = study(record);
        let table = printed(&lab::markdown(&study));
        assert_eq!(table.len(), study.verdicts.len(), "{name}");
        let shown = lab::text(&study, Some(100)).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(shown.contains("SYS s"), !study.readings.is_empty(), "{name}");
        for p in &table {
            self.sentences += 1;
            self.undecided += usize::from(p.holds == "?");
            let start: String = p.text.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
            if !shown.contains(&start) {
                self.wrong.push(format!("{name}: not on the terminal: {p:?}"));
            }
            self.wrong.extend(follows(p).err().map(|why| format!("{name}: {why}")));
            if let Some(result) = again(record, p) {
                self.reckoned += 1;
                self.wrong.extend(result.err().map(|why| format!("{name}: {why}")));
            }
        }
    }

    /// Says what was seen, and fails where anything was wrong.
    pub fn end(&self, what: &str) {
        let Self { sentences, reckoned, undecided, wrong } = self;
        println!(
            "{what}, {sentences} sentences ({undecided} undecided), {reckoned} figures reckoned again, {} contradictions",
            wrong.len()
        );
        let first = wrong[..wrong.len().min(5)].join("\n");
        assert!(wrong.is_empty(), "{} contradictions, the first:\n{first}", wrong.len());
        assert!(reckoned > &(sentences / 10) && undecided < sentences, "{reckoned} of {sentences}");
    }
}

#[test]
fn no_sentence_contradicts_its_figures() {
    let mut random = Random(14);
    let records = count(120);
    let mut tally = Tally::default();
    for n in 0..records {
        let builtin = &BUILTINS[n % BUILTINS.len()];
        tally.judge(&format!("{} ({n})", builtin.name), &generated(builtin, &mut random));
    }
    tally.end(&format!("{records} records"));
}

#[test]
fn planted_effects_are_found_and_nulls_are_not() {
    let mut random = Random(41);
    let rounds = (count(120) / 10).clamp(100, 400);
    for (kind, test, bound, planted_is) in [
        ("weights", "largest deviation of a share from its weight's", 0.02f64, "no"),
        ("quota", "CPU time an event", 1.05f64.ln(), "yes"),
        ("limit", "time without a limit over time under", 1.1f64.ln(), "yes"),
    ] {
        let n = 5;
        let noise = 0.004;
        let mut answer = |effect: f64| {
            let record = pair(kind, effect, n, noise, &mut random);
            let all = printed(&lab::markdown(&study(&record)));
            all.into_iter().find(|p| p.test.starts_with(test)).unwrap_or_else(|| panic!("{kind}: no verdict"))
        };
        // Half the width of the interval printed, in the unit of the effect.
        let half = average(
            &(0..60)
                .map(|_| {
                    let p = answer(bound);
                    let [low, high] = p.interval.unwrap().map(Option::unwrap);
                    if kind == "weights" { (high - low) / 200.0 } else { (high / low).ln() / 2.0 }
                })
                .collect::<Vec<_>>(),
        );
        let found = (0..rounds).filter(|_| answer(bound + 2.0 * half).holds == planted_is).count();
        let open = (0..rounds).filter(|_| answer(bound).holds == "?").count();
        let absent = (0..rounds).filter(|_| answer(0.0).holds != planted_is).count();
        println!(
            "{kind}: half width {half:.4}; planted found {found}, on the bound undecided {open}, null absent {absent}, of {rounds}"
        );
        for (what, n) in [("found", found), ("undecided", open), ("absent", absent)] {
            assert!(n * 100 >= 95 * rounds, "{kind}: {what} {n} of {rounds}");
        }
    }
}
