//! No sentence about a search contradicts its trials: made-up trials go through the real result, text and page, and what
//! is *printed* is read back and reckoned again from the trials, by code that shares nothing with the tested one.
//!
//! `EVENKEEL_CONSISTENCY_RECORDS` sets the number of records (short by default).

use std::collections::BTreeMap;

use evenkeel_report::html;
use evenkeel_tune::{TrialRecord, page, result_of};

#[path = "consistency/made.rs"]
mod made;
#[path = "consistency/planted.rs"]
mod planted;
#[path = "../../report/tests/consistency/shared.rs"]
mod shared;
#[path = "../../report/tests/consistency/textbook.rs"]
mod textbook;

use made::{World, world};
use shared::{Random, Tally, count, one_line, text_of};
use textbook::{average, sample};

/// What the trials of one settings say.
struct Arm<'a> {
    words: String,
    trials: Vec<&'a TrialRecord>,
    workers: f64,
}

impl Arm<'_> {
    /// The runs that decide: those of the final comparison, else all.
    fn deciding(&self) -> Vec<&[f64]> {
        let of = |last: bool| {
            let mine = self.trials.iter().filter(move |t| !last || t.reason == "last-round");
            mine.filter_map(|t| t.values.as_deref()).collect::<Vec<_>>()
        };
        let last = of(true);
        if last.is_empty() { of(false) } else { last }
    }

    fn means(&self, quantity: usize) -> Option<f64> {
        let values: Vec<f64> = self.deciding().iter().map(|v| v[quantity]).collect();
        (!values.is_empty()).then(|| average(&values))
    }

    fn worth(&self, world: &World) -> Vec<f64> {
        let price = world.price_each() * self.workers;
        self.deciding().iter().map(|v| if world.max { v[0] - price } else { v[0] + price }).collect()
    }

    fn keeps(&self, world: &World) -> bool {
        let worked = self.trials.iter().filter(|t| t.values.is_some()).count();
        worked > 0
            && 2 * worked >= self.trials.len()
            && (world.constraint.is_none() || self.means(1).is_some_and(|p99| p99 <= 20.0))
    }

    fn in_last_round(&self) -> bool {
        self.trials.iter().any(|t| t.reason == "last-round")
    }
}

fn arms<'a>(records: &'a [TrialRecord]) -> Vec<Arm<'a>> {
    let mut out: Vec<Arm<'a>> = Vec::new();
    for record in records {
        let words = record.settings.words();
        match out.iter_mut().find(|a| a.trials[0].settings == record.settings) {
            Some(arm) => arm.trials.push(record),
            None => {
                out.push(Arm {
                    words,
                    trials: vec![record],
                    workers: record.settings.0["workers"].parse().unwrap(),
                });
            }
        }
    }
    out
}

/// Two numbers of four printed digits, or of an interval's end near them.
fn near(ours: f64, printed: f64, margin: f64) -> bool {
    (ours - printed).abs() <= 6e-4 * ours.abs().max(printed.abs()) + 3e-3 * margin.abs() + 1e-9
}

/// `12.3 rps [11, 13.5]` or `12.3 rps [no interval]`, then the rest.
fn figure(text: &str) -> Option<(f64, Option<[f64; 2]>, &str)> {
    let (value, rest) = text.split_once(" rps [")?;
    let (ends, rest) = rest.split_once(']')?;
    let interval = match ends {
        "no interval" => None,
        ends => {
            let (low, high) = ends.split_once(", ")?;
            Some([low.parse().ok()?, high.parse().ok()?])
        }
    };
    Some((value.parse().ok()?, interval, rest))
}

/// Cells of the rows of the page's table that follows a heading.
fn rows(page: &str, after: &str) -> Vec<Vec<String>> {
    let part = page.split_once(after).unwrap().1;
    let table = part.split_once("<table>").unwrap().1.split_once("</table>").unwrap().0;
    let row = |row: &str| row.split("<td").skip(1).map(|cell| text_of(&format!("<td{cell}"), "")).collect();
    table.split("<tr>").skip(1).map(row).filter(|cells: &Vec<String>| !cells.is_empty()).collect()
}

/// What was printed of one record.
struct Printed {
    how: String,
    answer: String,
    table: BTreeMap<String, Vec<String>>,
    notes: Vec<String>,
    page: String,
}

fn print(world: &World, records: &[TrialRecord]) -> Printed {
    let tune = world.tune();
    let shown = page(&tune, &result_of(&tune, records), records);
    let text = shown.text(100);
    let (head, table) = text.split_once("SETTING").unwrap();
    let (how, answer) = head.split_once("\n\n").unwrap();
    let (table, notes) = table.split_once("note: ").unwrap_or((table, ""));
    Printed {
        how: how.into(),
        answer: one_line(answer),
        table: table
            .lines()
            .skip(1)
            .map(|line| {
                let name = line.split([' ', ',']).next().unwrap().to_owned();
                let cells =
                    line.trim_start_matches(&*name).trim_start_matches(", rps").trim_start_matches(", ms");
                (name, cells.split_whitespace().map(str::to_owned).collect())
            })
            .collect(),
        notes: notes.split("note: ").map(one_line).filter(|n| !n.is_empty()).collect(),
        page: html::tune(&shown),
    }
}

/// Holds all that is printed of one record against its trials.
fn check(world: &World, records: &[TrialRecord], t: &mut Tally) {
    let p = print(world, records);
    let arms = arms(records);
    let present = arms.iter().find(|a| {
        world.present
            && a.workers == 1.0
            && (!world.real || a.trials[0].settings.0["ratio"].parse() == Ok(0.5))
    });
    t.seen("how");
    let counts = format!("{} search, {} trials of {} settings in ", world.method, records.len(), arms.len());
    let seconds: f64 = records.iter().map(|r| r.seconds).sum();
    t.hold(p.how.contains(&counts) && p.how.contains(&format!(" in {seconds:.0} s;")), || p.how.clone());
    let constraint = if world.constraint.is_some() { "; p99 < 20" } else { "" };
    let goal = if world.max { "max" } else { "min" };
    t.hold(p.how.ends_with(&format!("goal: {goal} throughput{constraint}")), || p.how.clone());
    let answer = text_of(p.page.split_once("id=\"answer\">").unwrap().1.split_once("</p>").unwrap().0, "");
    t.hold(answer == p.answer, || format!("the page says {answer:?}, the terminal {:?}", p.answer));
    let best = headline(world, &arms, present, &p, t);
    table(world, [present, best], &p, t);
    notes(world, records, [present, best], &arms, &p, t);
    let trials = rows(&p.page, "<summary>all trials");
    t.hold(trials.len() == records.len(), || format!("{} trials on the page", trials.len()));
    for (cells, record) in trials.iter().zip(records) {
        let price = world.price_each() * record.settings.0["workers"].parse::<f64>().unwrap();
        let right = match &record.values {
            Some(v) => {
                near(if world.max { v[0] - price } else { v[0] + price }, cells[1].parse().unwrap(), 0.0)
            }
            None => cells[1] == "failed",
        };
        t.hold(right && cells[2].starts_with(&record.settings.words()), || {
            format!("{cells:?} of {record:?}")
        });
    }
    let axis = p.page.split_once("<summary>all trials").unwrap().1;
    let named = if world.price == 0.0 { "throughput, rps" } else { "worth, rps" };
    t.hold(axis.contains(&format!(">{named}</th>")), || format!("trials are not said to be {named}"));
}

/// The headline, sentence by sentence; gives the best.
fn headline<'a, 'b>(
    world: &World,
    arms: &'b [Arm<'a>],
    present: Option<&Arm<'_>>,
    p: &Printed,
    t: &mut Tally,
) -> Option<&'b Arm<'a>> {
    let mut sentences = p.answer.strip_suffix('.').unwrap_or(&p.answer).split(". ");
    let first = sentences.next().unwrap();
    t.seen("best");
    let keep: Vec<&Arm<'_>> = arms.iter().filter(|a| a.keeps(world)).collect();
    if let Some(n) = first.strip_prefix("No settings work and keep the constraints: ") {
        let trials: usize = arms.iter().map(|a| a.trials.len()).sum();
        t.hold(keep.is_empty() && n == format!("{trials} trials"), || p.answer.clone());
        return None;
    }
    let sign = if world.max { "less" } else { "plus" };
    let what = if world.price == 0.0 {
        "Best throughput: ".to_owned()
    } else {
        format!("Best worth (throughput {sign} the price of the settings): ")
    };
    let read = first.strip_prefix(&what).and_then(figure);
    let Some((value, ends, rest)) = read else {
        t.hold(false, || format!("not understood: {first}"));
        return None;
    };
    let words = rest.trim_start_matches(" with ");
    // Two settings may be the same but for digits that are not printed.
    let of_words = |a: &&Arm<'_>| a.words == words && a.means(0).is_some();
    let fits = |a: &&Arm<'_>| of_words(a) && near(average(&a.worth(world)), value, 0.0);
    let Some(best) = arms.iter().find(fits).or_else(|| arms.iter().find(of_words)) else {
        t.hold(false, || format!("no such settings: {words:?}"));
        return None;
    };
    t.hold(best.keeps(world), || format!("it does not keep the constraints: {first}"));
    let worth = sample(&best.worth(world)).unwrap();
    let (own, interval) = (worth.mean, worth.known(0.05));
    let reach = interval.map_or(0.0, |[low, high]| high - low);
    t.hold(near(own, value, 0.0), || format!("{own} is the best's, printed: {first}"));
    if let (Some(own), Some(printed)) = (interval, ends) {
        let right = (0..2).all(|i| near(own[i], printed[i], reach));
        t.hold(right, || format!("{own:?}, printed: {first}"));
    }
    t.hold(interval.is_none() || ends.is_some(), || format!("no interval is printed: {first}"));
    let compared = keep.iter().any(|a| a.in_last_round());
    for other in keep.iter().filter(|a| !compared || a.in_last_round()) {
        let theirs = average(&other.worth(world));
        let better = if world.max { theirs - own } else { own - theirs };
        t.hold(better <= 1e-9 * own.abs(), || format!("{} gave {theirs}: {first}", other.words));
    }
    for sentence in sentences {
        if let Some(why) = follow(world, (best, present, keep.len(), compared), sentence, p, t) {
            t.wrong.push(format!("{why}: {sentence}; all: {}", p.answer));
        }
    }
    let missing = present.is_some_and(|a| a.means(0).is_some() && a.words != best.words && !a.keeps(world));
    t.hold(missing == p.answer.contains("The present settings"), || {
        format!("present misses {missing}: {}", p.answer)
    });
    Some(best)
}

/// A sentence after the first; gives what is wrong.
fn follow(
    world: &World,
    (best, present, keep, compared): (&Arm<'_>, Option<&Arm<'_>>, usize, bool),
    sentence: &str,
    p: &Printed,
    t: &mut Tally,
) -> Option<&'static str> {
    t.reckoned += 1;
    let Some(present) = present else { return Some("there are no present settings") };
    if sentence.starts_with("These are the present settings") {
        t.seen("present is best");
        let said = sentence.contains("final comparison");
        return (present.words != best.words || said != best.in_last_round()).then_some("it is another");
    }
    if sentence.starts_with("The present settings fail in most trials") {
        t.seen("present misses");
        return present.keeps(world).then_some("they keep the constraints");
    }
    if let Some(rest) = sentence.strip_prefix("throughput itself ") {
        t.seen("throughput itself");
        let numbers: Vec<f64> = rest.split(' ').filter_map(|w| w.parse().ok()).collect();
        let (was, is) = (present.means(0)?, best.means(0)?);
        let right = match *numbers.as_slice() {
            [at] => rest.starts_with("stays") && near(was, at, 0.0) && near(is, at, 0.0),
            [from, to] => {
                let fell = rest.starts_with("falls") && to < from;
                (fell || rest.starts_with("rises") && to > from) && near(was, from, 0.0) && near(is, to, 0.0)
            }
            _ => false,
        };
        return (!right || world.price == 0.0).then_some("the readings say otherwise");
    }
    let of = if world.price == 0.0 { "" } else { " in worth" };
    let kinds = [
        ("gain", "Gain over the present settings"),
        ("worse", "It is worse than the present settings"),
        ("equal", "It is as good as the present settings"),
        ("undecided", "Whether it is better than the present settings"),
    ];
    let Some((kind, start)) = kinds.into_iter().find(|(_, start)| sentence.starts_with(start)) else {
        return Some("not understood");
    };
    t.seen(kind);
    let between = if kind == "undecided" { " is undecided: " } else { ": " };
    let Some((value, ends, rest)) =
        sentence[start.len()..].strip_prefix(&format!("{of}{between}")).and_then(figure)
    else {
        return Some("not understood");
    };
    // Picked from so many: each has its part of the 5 %.
    let picked = if compared { world.finalists } else { keep };
    let sign = if world.max { 1.0 } else { -1.0 };
    let turned = |arm: &Arm<'_>| arm.worth(world).into_iter().map(|w| sign * w).collect::<Vec<_>>();
    let (Some(ours), Some(theirs)) = (sample(&turned(best)), sample(&turned(present))) else {
        return Some("a gain of what has no values");
    };
    let alpha = 0.05 / picked.max(1) as f64;
    let (own, both) = ours.less(&theirs, alpha);
    let interval = ours.known(alpha).and(theirs.known(alpha)).map(|_| both);
    let size = ours.mean.abs() + theirs.mean.abs();
    if !near(own, value, 1e-9 * size) {
        return Some("the gain is another");
    }
    if interval.is_some() != ends.is_some() {
        return Some("an interval is there or not");
    }
    if let (Some(own), Some(printed)) = (interval, ends)
        && !(0..2).all(|i| near(own[i], printed[i], own[1] - own[0] + 1e-9 * size))
    {
        return Some("the interval is another");
    }
    let [low, high] = ends.unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
    let right = match kind {
        "gain" => value > 0.0 && low >= 0.0,
        "worse" => value < 0.0 && high <= 0.0,
        "equal" => [low, value, high] == [0.0; 3],
        _ => low <= 0.0 && high >= 0.0,
    };
    if !right {
        return Some("its own interval says otherwise");
    }
    if kind == "gain" && world.price == 0.0 {
        let pct: f64 = rest.strip_prefix(", ")?.strip_suffix(" %")?.parse().ok()?;
        let shown: f64 = p.table["throughput"][0].parse().ok()?;
        let ratio = 100.0 * value / shown.abs();
        t.hold((ratio - pct).abs() <= 0.06 + 2e-3 * ratio, || format!("{ratio} % by the table: {sentence}"));
    } else if !rest.is_empty() {
        return Some("a percentage of what has no meaning");
    }
    None
}

/// The table on the terminal and on the page.
fn table(world: &World, [present, best]: [Option<&Arm<'_>>; 2], p: &Printed, t: &mut Tally) {
    let shown = rows(&p.page, "<h2>Settings</h2>");
    t.hold(shown.len() == p.table.len(), || {
        format!("{} rows on the page, {} on the terminal", shown.len(), p.table.len())
    });
    let present = present.filter(|a| a.means(0).is_some());
    for cells in shown {
        let name = cells[0].split(',').next().unwrap();
        let on_terminal = &p.table[name];
        for (column, arm) in [present, best].into_iter().enumerate() {
            let cell = &cells[column + 1];
            let own = arm.and_then(|a| match name {
                "throughput" => a.means(0),
                "p99" => a.means(1),
                name => a.trials[0].settings.0[name].parse().ok(),
            });
            let right = match own {
                Some(own) => cell.parse().is_ok_and(|v: f64| near(own, v, 0.0)),
                None => cell == "-",
            };
            t.hold(right && *cell == on_terminal[column], || format!("{name}: {own:?} is printed as {cell}"));
            if world.constraint.is_some() && column == 1 && name == "p99" && cell != "-" {
                t.hold(cell.parse::<f64>().unwrap() <= 20.0, || format!("the best's p99 is {cell}"));
            }
        }
    }
}

fn notes(
    world: &World,
    records: &[TrialRecord],
    [present, best]: [Option<&Arm<'_>>; 2],
    arms: &[Arm<'_>],
    p: &Printed,
    t: &mut Tally,
) {
    let failures = records.iter().filter(|r| r.values.is_none()).count();
    let unconfirmed = best.is_some_and(|b| !b.in_last_round()) && arms.len() > 1;
    let about = |start: &str| p.notes.iter().find(|n| n.contains(start));
    t.hold((failures > 0) == about("trials failed").is_some(), || {
        format!("{failures} failed: {:?}", p.notes)
    });
    let lucky = about("without the final comparison").is_some();
    t.hold(unconfirmed == lucky, || {
        format!("picked and judged on the same runs: {unconfirmed}, {:?}", p.notes)
    });
    for note in &p.notes {
        t.seen("note");
        t.hold(p.page.contains("class=\"note\""), || "a note is not on the page".into());
        let right = if note.contains("trials failed") {
            let last = records.iter().rev().find_map(|r| r.error.as_deref()).unwrap();
            *note == format!("{failures} of {} trials failed; the last one: {last}", records.len())
        } else if let Some(words) =
            note.strip_prefix("no settings keep the constraints (p99 < 20); nearest: ")
        {
            let nearest = arms.iter().find(|a| a.words == words);
            let miss = |a: &Arm<'_>| a.means(1).map_or(f64::INFINITY, |p99| (p99 - 20.0).max(0.0));
            let works = |a: &&Arm<'_>| {
                2 * a.deciding().len() > 0
                    && a.trials.iter().filter(|r| r.values.is_some()).count() * 2 >= a.trials.len()
            };
            best.is_none()
                && nearest.is_some_and(|n| arms.iter().filter(works).all(|a| miss(n) <= miss(a) + 1e-9))
        } else if note == "no settings work" {
            best.is_none()
        } else if let Some((_, why)) = note.split_once("better than the present ones: Undecided: ") {
            // Repetitions of each: it is the one with fewer that lacks some.
            let fewest = [best, present].iter().flatten().map(|a| a.deciding().len()).min().unwrap_or(0);
            let more = why.split_once("about ").and_then(|(_, n)| n.split(' ').next()?.parse::<usize>().ok());
            p.answer.contains("undecided")
                && more.is_none_or(|n| n > fewest.min(world.trials) / 2 && n > 1)
                && why.contains("one repetition")
                    == p.answer.rsplit("undecided").next().unwrap().contains("no interval")
        } else {
            note.starts_with("without the final comparison")
        };
        t.hold(right, || format!("note: {note}; {}", p.answer));
    }
}

#[test]
fn no_sentence_contradicts_its_figures() {
    let mut random = Random(14);
    let (records, mut t, mut alike) = (count(150), Tally::default(), 0);
    for n in 0..records {
        let world = world(&mut random);
        let made = world.records(&world.tune(), &mut random);
        let before = t.wrong.len();
        // Settings are printed to four digits. Where two are the same then, the text does not tell which is meant.
        let mut words: Vec<String> = arms(&made).into_iter().map(|arm| arm.words).collect();
        let settings = words.len();
        words.sort();
        words.dedup();
        if words.len() < settings {
            alike += 1;
            continue;
        }
        check(&world, &made, &mut t);
        for wrong in &mut t.wrong[before..] {
            *wrong = format!("record {n}: {wrong}");
        }
    }
    println!(
        "{records} records, {} sentences {:?}, {} figures reckoned again, {} contradictions",
        t.sentences,
        t.kinds,
        t.reckoned,
        t.wrong.len()
    );
    let first = t.wrong[..t.wrong.len().min(6)].join("\n");
    assert!(t.wrong.is_empty(), "{} contradictions, the first:\n{first}", t.wrong.len());
    assert!(20 * alike <= records, "{alike} records with settings that print alike");
    assert!(t.reckoned > 2 * t.sentences, "{} of {}", t.reckoned, t.sentences);
    for kind in ["gain", "undecided", "present is best", "present misses", "throughput itself", "note"] {
        assert!(
            t.kinds.get(kind).is_some_and(|n| n * 100 >= records),
            "{kind} is hardly ever said: {:?}",
            t.kinds
        );
    }
}
