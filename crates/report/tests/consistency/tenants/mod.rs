//! Tenants of network and CPU: the document and the terminal's text.

use evenkeel_lab::fairness::plan::Which;
use evenkeel_lab::fairness::record::{Cell, TenantsRecord};
use evenkeel_lab::fairness::study::study;

use crate::own::bias;
use crate::printed::average;
use crate::shared::{Random, count};

mod again;
mod document;
mod records;
/// What builds text and page from a study: the program's own file.
#[path = "../../../../evenkeel/src/cli/tenants/show.rs"]
mod show;

use again::{again, alpha, cells, deviation, due, each, feasible, over, point, rate, shares};
use document::{About, Document, Statement, follows, half_digit, read, terminal};
use records::{generated, planted};

/// A column of the document's table, of one repetition; `None` where this test has no second way.
type Column = fn(&Cell) -> Option<f64>;

fn per_weight(cell: &Cell) -> Option<Vec<f64>> {
    let cpu = cell.measured.cpu.as_ref()?;
    Some(shares(cell)?.iter().zip(&cpu.tenants).map(|(share, t)| share / t.weight as f64).collect())
}

fn index_of_jain(values: &[f64]) -> Option<f64> {
    let squares: f64 = values.iter().map(|v| v * v).sum();
    (squares > 0.0).then(|| values.iter().sum::<f64>().powi(2) / squares / values.len() as f64)
}

fn column(heading: &str) -> Option<Column> {
    Some(match heading {
        "transactions/s" => |c| c.measured.net.as_ref()?.transactions_per_s,
        "mbit/s" => |c| c.measured.net.as_ref()?.mbit_per_s,
        "latency mean, us" => |c| Some(c.measured.net.as_ref()?.latency?.mean_usec),
        "latency p50, us" => |c| Some(c.measured.net.as_ref()?.latency?.p50_usec),
        "latency p99, us" => |c| Some(c.measured.net.as_ref()?.latency?.p99_usec),
        "softirq %" => |c| c.measured.net.as_ref()?.host.softirq_pct,
        "cpu %" => |c| match (&c.measured.net, &c.measured.cpu) {
            (Some(net), _) => Some(net.host.per_cpu_pct.iter().sum()),
            (_, cpu) => Some(cpu.as_ref()?.per_cpu_pct.iter().sum()),
        },
        "others %" => |c| c.measured.cpu.as_ref()?.others_pct,
        "bias transactions %" => |c| bias(&each(c, "throughput")?),
        "bias latency %" => |c| bias(&each(c, "latency")?),
        "bias softirq %" => |c| bias(&each(c, "softirq")?),
        "bias cpu %" => |c| bias(&each(c, "CPU load").or_else(|| per_weight(c))?),
        "jain" => |c| index_of_jain(&each(c, "throughput").or_else(|| per_weight(c))?),
        _ => return None,
    })
}

/// Whether a cell of the table, `1.0 [0.9, 1.1]`, is what the record says; `None` where it is not reckoned.
fn cell_again(record: &TenantsRecord, label: &str, heading: &str, shown: &str) -> Option<Result<(), String>> {
    let ours = match heading {
        "weight error %" | "feasible error %" => {
            let point = point(record, label);
            let due = if heading.starts_with('w') { due(point) } else { feasible(record, point) };
            deviation(record, label, &due, 0.05, 1.0)
        }
        _ => {
            let of = column(heading)?;
            over(record, label, of).map(|s| (s.mean, s.interval(0.05)))
        }
    };
    let fail = || Some(Err(format!("{label}, {heading}: {ours:?}, but {shown} is printed")));
    let Some((value, [low, high])) = ours else {
        return if shown == "?" { Some(Ok(())) } else { fail() };
    };
    let parts: Vec<f64> = shown.split(['[', ']', ',', ' ']).filter_map(|p| p.parse().ok()).collect();
    let digits = shown.split(' ').next()?.split_once('.').map_or(0, |(_, d)| d.len() as i32);
    let same = |a: f64, b: f64| (a - b).abs() <= half_digit(digits) + 2e-4 * b.abs();
    let most = if heading == "jain" { 1.0 } else { f64::INFINITY };
    let right = match parts.as_slice() {
        // One repetition has no interval; a deviation of one is known to be no less than 0, which is no news.
        [one] => same(*one, value) && !(low.is_finite() && high.is_finite()),
        [one, a, b] => same(*one, value) && same(*a, low.max(0.0)) && same(*b, high.min(most)),
        _ => false,
    };
    if right { Some(Ok(())) } else { fail() }
}

/// The table, the failures and the terminal's text against the record and the document.
fn rest_again(record: &TenantsRecord, document: &Document, text: &str, wrong: &mut Vec<String>) -> usize {
    let mut reckoned = 0;
    for row in &document.rows {
        for (heading, shown) in document.columns.iter().zip(row).skip(1) {
            let Some(result) = cell_again(record, &row[0], heading, shown) else { continue };
            reckoned += 1;
            wrong.extend(result.err());
        }
    }
    for failed in &document.failed {
        let (label, part) = failed
            .split_once(": ")
            .unwrap()
            .0
            .split_once(" (")
            .map_or((failed.as_str(), None), |p| (p.0, Some(p.1)));
        let label = if part.is_some() { label } else { label.rsplit_once(": ").unwrap().0 };
        let all: Vec<&Cell> =
            record.cells.iter().filter(|c| record.points[c.point].to_string() == label).collect();
        let bad = all.iter().filter(|c| c.failed.is_some()).count();
        let words = part.map(|p| p.split(')').next().unwrap().to_owned());
        let ours = (bad < all.len()).then(|| format!("{bad} of {} repetitions", all.len()));
        if words != ours {
            wrong.push(format!("{failed}: {bad} of {} failed", all.len()));
        }
        if document.rows.iter().any(|row| row[0] == label) && part.is_none() {
            wrong.push(format!("{failed}: it has a row"));
        }
        reckoned += 1;
    }
    let bare = text.lines().any(|l| l.contains("OF BARE %"));
    let (said, rows) = terminal(text, document.columns.len() + usize::from(bare));
    let statements: Vec<&str> = document.statements.iter().map(|s| s.text.as_str()).collect();
    if said != statements {
        wrong.push(format!("on the terminal {said:?}, in the document {statements:?}"));
    }
    if rows.len() != document.rows.len() {
        wrong.push(format!("{} rows on the terminal, {} in the document", rows.len(), document.rows.len()));
    }
    for (row, words) in document.rows.iter().zip(&rows) {
        let values = row[1..].iter().map(|v| v.split(' ').next().unwrap());
        if !values.eq(words[1..row.len()].iter().map(String::as_str))
            || words[0] != point(record, &row[0]).tenants.to_string()
        {
            wrong.push(format!("on the terminal {words:?}, in the document {row:?}"));
        }
        // Of bare metal with the same packet steering.
        let of = |label: &str| over(record, label, rate).map(|s| s.mean);
        let steered = if point(record, &row[0]).rps { ", RPS" } else { "" };
        let bare_rate = of(&format!("1 x bare metal{steered}")).filter(|_| bare);
        if let (Some(all), Some(own)) = (bare_rate, of(&row[0]))
            && !row[0].contains("bare metal")
        {
            reckoned += 1;
            let shown: Option<f64> = words[row.len()].parse().ok();
            if shown.is_none_or(|shown| (shown - 100.0 * own / all).abs() > half_digit(0)) {
                wrong.push(format!("{words:?}: {own} of {all}"));
            }
        }
    }
    reckoned
}

fn document(record: &TenantsRecord) -> Document {
    read(&show::page(record, &study(record)).markdown()).unwrap()
}

#[test]
fn no_sentence_on_tenants_contradicts_its_figures() {
    let mut random = Random(23);
    let records = count(120);
    let (mut sentences, mut figures, mut undecided) = (0, 0, 0);
    let mut kinds: Vec<About> = Vec::new();
    let mut wrong: Vec<String> = Vec::new();
    for n in 0..records {
        let which = Which::ALL[n % 2];
        let record = generated(which, &mut random);
        let study = study(&record);
        let document = match read(&show::page(&record, &study).markdown()) {
            Ok(document) => document,
            Err(why) => {
                wrong.push(why);
                continue;
            }
        };
        let alpha = alpha(&record, &document.statements);
        for s in &document.statements {
            sentences += 1;
            undecided += usize::from(s.answer.is_none());
            if !kinds.contains(&s.about) {
                kinds.push(s.about);
            }
            wrong.extend(follows(s).err().map(|why| format!("({n}) {why}")));
            wrong.extend(again(&record, s, alpha).err().map(|why| format!("({n}) {why}")));
        }
        // No weight goes without a sentence.
        let known = record.points.iter().map(ToString::to_string).filter(|label| {
            let cells = cells(&record, label);
            !cells.is_empty() && cells.iter().all(|c| shares(c).is_some())
        });
        let about = |s: &&Statement| matches!(s.about, About::Weights | About::Infeasible);
        let (known, told) = (known.count(), document.statements.iter().filter(about).count());
        if known != told {
            wrong.push(format!("({n}) {told} sentences on {known} points"));
        }
        figures += rest_again(&record, &document, &show::text(&study), &mut wrong);
    }
    println!(
        "tenants: {records} records, {sentences} sentences ({undecided} undecided), all reckoned again, and {figures} figures of \
         tables; {} contradictions",
        wrong.len()
    );
    assert!(
        wrong.is_empty(),
        "{} contradictions, the first:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(8)].join("\n")
    );
    assert!(kinds.len() == 6 && undecided < sentences && figures > 10 * records, "{kinds:?}");
}

#[test]
fn planted_effects_on_tenants_are_found_and_nulls_are_not() {
    let mut random = Random(32);
    let rounds = (count(120) / 10).clamp(100, 400);
    for (kind, about, bound, side, planted_is) in [
        ("weights", About::Weights, 0.02, 1.0, false),
        ("bias", About::Bias, 0.10, 1.0, false),
        ("steering", About::Steering, 0.0, 1.0, true),
        ("steering", About::Steering, 0.0, -1.0, false),
    ] {
        let mut seen = |effect: f64| {
            let record = planted(kind, effect, 5, 0.004, &mut random);
            let all = document(&record).statements.into_iter();
            let own = |s: &Statement| s.about == about && !s.text.contains("equal weights");
            all.into_iter().find(own).unwrap_or_else(|| panic!("{kind}: no sentence"))
        };
        // Half the width of the interval printed, in the unit of the effect.
        let half = average(
            &(0..60)
                .map(|_| {
                    let [low, high] = seen(bound).interval.unwrap();
                    if kind == "steering" { (high / low).ln() / 2.0 } else { (high - low) / 200.0 }
                })
                .collect::<Vec<_>>(),
        );
        let found =
            (0..rounds).filter(|_| seen(bound + side * 2.0 * half).answer == Some(planted_is)).count();
        let open = (0..rounds).filter(|_| seen(bound).answer.is_none()).count();
        let absent = (0..rounds).filter(|_| seen(0.0).answer != Some(planted_is)).count();
        println!(
            "{kind} ({planted_is}): half width {half:.4}; planted found {found}, on the bound undecided {open}, null absent \
             {absent}, of {rounds}"
        );
        for (what, n) in [("found", found), ("undecided", open), ("absent", absent)] {
            assert!(n * 100 >= 95 * rounds, "{kind}: {what} {n} of {rounds}");
        }
    }
}

#[test]
fn the_reader_of_tenants_sees_a_contradiction() {
    let of = |figures: &str, answer: &str, more: &str| {
        let line = format!(
            "- Bias of latency between tenants is at most {figures} % (at 2 x veth); the published \"below 10 %\" for default \
             machines {answer} here.{more}\n"
        );
        follows(&read(&line).unwrap().statements[0])
    };
    assert!(of("3.0 \\[1.0, 5.0\\]", "holds", "").is_ok());
    assert!(of("94.4 \\[0.0, 1067.3\\]", "does not hold", "").unwrap_err().contains("says otherwise"));
    assert!(of("3.7 \\[0.0, 17.4\\]", "holds", "").unwrap_err().contains("says otherwise"));
    assert!(of("3.7 \\[no interval\\]", "holds", "").unwrap_err().contains("without an interval"));
    assert!(of("3.7 \\[-2.0, 8.0\\]", "holds", "").unwrap_err().contains("less than nothing"));
    assert!(of("3.7 \\[0.0, 17.4\\]", "may or may not hold", " Undecided: x.").is_ok());
    assert!(of("3.7 \\[0.0, 7.4\\]", "may or may not hold", " Undecided: x.").is_err());
    assert!(read("- All is well.\n").is_err());
}
