//! How many trials each method of search needs in a table of trials that were really made: `tune_replay TRIALS.csv..`
//!
//! The table is that of an exhaustive search (`evenkeel tune --method exhaustive`). Methods search its grid; a trial is a
//! look at the table. Told is what random search reaches in a quarter and in half as many trials as the grid has points
//! (median of ten seeds), and after how many trials the others have reached that.

use std::collections::BTreeMap;
use std::process::ExitCode;

use evenkeel_policy::search::{Domain, Method, Outcome, Parameter, Point, Rules, Search, Space, Value};

struct Table {
    space: Space,
    loss: BTreeMap<Vec<usize>, Outcome>,
}

/// Fields of a line; quoted ones may hold commas.
fn fields(line: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(String::new()),
            c => out.last_mut().into_iter().for_each(|f| f.push(c)),
        }
    }
    out
}

fn read(path: &str) -> Result<Table, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let mut lines = text.lines().map(fields);
    let head = lines.next().ok_or("an empty table")?;
    let at =
        |name: &str| head.iter().position(|h| h == name).ok_or_else(|| format!("{path}: no column {name}"));
    let (reason, worth, kept) = (at("reason")?, at("worth")?, at("kept")?);
    // Settings are between the reason and the first reading; readings follow in the order of the file.
    let objective = at("throughput")?;
    let names = &head[reason + 1..objective];
    let rows: Vec<Vec<String>> = lines.filter(|row| row[reason] == "new").collect();
    let mut levels: Vec<Vec<String>> = Vec::new();
    for column in reason + 1..objective {
        let mut values: Vec<String> = rows.iter().map(|row| row[column].clone()).collect();
        values.sort_by(|a, b| match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(a), Ok(b)) => a.total_cmp(&b),
            _ => a.cmp(b),
        });
        values.dedup();
        levels.push(values);
    }
    let domain = |values: &Vec<String>| {
        if values.len() > 2 && values.iter().all(|v| v.parse::<f64>().is_ok()) {
            Domain::Integer { low: 0, high: values.len() as i64 - 1, log: false }
        } else {
            Domain::Choice { values: values.clone() }
        }
    };
    let parameters = names.iter().zip(&levels).map(|(n, v)| Parameter { name: n.clone(), domain: domain(v) });
    let space = Space::new(parameters.collect()).map_err(|e| e.to_string())?;
    let mut loss = BTreeMap::new();
    for row in &rows {
        let key = (reason + 1..objective).zip(&levels);
        let key: Vec<usize> =
            key.filter_map(|(c, values)| values.iter().position(|v| *v == row[c])).collect();
        let outcome = match row[worth].parse::<f64>() {
            Ok(worth) => {
                Outcome { excess: vec![if row[kept] == "true" { -1.0 } else { 1.0 }], ..Outcome::of(-worth) }
            }
            Err(_) => Outcome::failed(),
        };
        loss.insert(key, outcome);
    }
    Ok(Table { space, loss })
}

impl Table {
    /// The best worth known after each trial.
    fn walk(&self, method: Method, seed: u64, trials: usize) -> Vec<f64> {
        let key = |p: &Point| -> Vec<usize> {
            p.iter()
                .map(|v| {
                    if let Value::Integer(v) = v {
                        *v as usize
                    } else if let Value::Choice(v) = v {
                        *v
                    } else {
                        0
                    }
                })
                .collect()
        };
        let mut search = Search::new(self.space.clone(), method, Rules::exact(seed));
        let mut out = Vec::new();
        for left in (1..=trials).rev() {
            let Some(ask) = search.ask(Some(left)) else { break };
            let outcome = self.loss.get(&key(&ask.point)).cloned().unwrap_or_else(Outcome::failed);
            search.tell(&ask, outcome);
            out.push(search.history().best().and_then(|arm| arm.mean()).map_or(f64::NEG_INFINITY, |l| -l));
        }
        out
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n % 2 == 1 { values[n / 2] } else { (values[n / 2 - 1] + values[n / 2]) / 2.0 }
}

fn main() -> ExitCode {
    let mut missed = 0;
    for path in std::env::args().skip(1) {
        let table = match read(&path) {
            Ok(table) => table,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        };
        let points = table.loss.len();
        let best = table.loss.values().filter(|o| o.excess.iter().all(|e| *e <= 0.0)).filter_map(|o| o.loss);
        let best = -best.fold(f64::INFINITY, f64::min);
        println!("\n{path}: {points} measured points, best {best:.0}; medians of 10 seeds");
        println!(
            "{:>7} {:>10} {:>9} {:>9} {:>9} {:>11}",
            "random", "reach", "% of best", "bayesian", "gradient", "coordinate"
        );
        for trials in [points / 8, points / 4, points / 2] {
            let walks =
                |method, n| -> Vec<Vec<f64>> { (0..10).map(|seed| table.walk(method, seed, n)).collect() };
            let reach =
                median(walks(Method::Random, trials).iter().filter_map(|w| w.last().copied()).collect());
            let needed = |method| {
                let first = |w: &Vec<f64>| {
                    w.iter().position(|v| *v >= reach).map_or(f64::INFINITY, |i| i as f64 + 1.0)
                };
                median(walks(method, points).iter().map(first).collect())
            };
            let bayesian = needed(Method::Bayesian);
            println!(
                "{trials:>7} {reach:>10.0} {:>9.1} {bayesian:>9.1} {:>9.1} {:>11.1}",
                100.0 * reach / best,
                needed(Method::Gradient),
                needed(Method::Coordinate)
            );
            missed += u32::from(bayesian > trials as f64 / 2.0);
        }
    }
    println!("\nBayesian search needed more than half of random's trials in {missed} cases");
    ExitCode::from(u8::from(missed > 0))
}
