//! How many trials each method of search needs in a table of trials that were really made:
//! `tune_replay TRIALS.csv[,TRIALS.csv..]..`
//!
//! Each argument is a service: tables of exhaustive searches of one file (`evenkeel tune --method exhaustive`), each of
//! which measured every point of the grid. Methods search that grid; a trial draws one of the point's measured runs, so
//! that methods meet the noise that was measured, too. A method knows only what was drawn; how good the point is that it
//! holds for the best is judged by the mean of all its runs.
//!
//! Told is what random search reaches with a quarter and half as many trials as the grid has points (median of
//! ten seeds), and after how many trials the others hold a point that is as good. Status 1 when Bayesian search needs
//! more than half of random's trials anywhere, 2 for tables that cannot be read.

use std::collections::BTreeMap;
use std::process::ExitCode;

use evenkeel_base::stats::{self, median};
use evenkeel_tune::search::{Domain, Method, Outcome, Parameter, Point, Rules, Search, Space, Value};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

/// Searches of each kind.
const SEEDS: u64 = 10;

/// A service: its grid, and the runs of each point by the indices of its levels.
struct Table {
    space: Space,
    runs: BTreeMap<Vec<usize>, Vec<Outcome>>,
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

/// One table: names of the settings, and rows of settings with what they gave.
struct Rows {
    names: Vec<String>,
    rows: Vec<(Vec<String>, Outcome)>,
}

fn read(path: &str) -> Result<Rows, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let mut lines = text.lines().map(fields);
    let head = lines.next().ok_or_else(|| format!("{path}: an empty table"))?;
    let at =
        |name: &str| head.iter().position(|h| h == name).ok_or_else(|| format!("{path}: no column {name}"));
    let (reason, worth, kept, objective) = (at("reason")?, at("worth")?, at("kept")?, at("throughput")?);
    // Settings are between the reason and the first reading, which is the objective.
    let names = head.get(reason + 1..objective).ok_or_else(|| format!("{path}: no settings"))?.to_vec();
    let rows = lines.enumerate().map(|(n, row)| {
        let cell = |at: usize| row.get(at).ok_or_else(|| format!("{path}:{}: too short", n + 2));
        let settings = (reason + 1..objective).map(|c| cell(c).cloned()).collect::<Result<_, _>>()?;
        let outcome = match cell(worth)?.parse::<f64>() {
            Ok(worth) => {
                let excess = vec![if cell(kept)? == "true" { -1.0 } else { 1.0 }];
                Outcome { excess, ..Outcome::of(-worth) }
            }
            Err(_) => Outcome::failed(),
        };
        Ok((settings, outcome))
    });
    Ok(Rows { names, rows: rows.collect::<Result<_, String>>()? })
}

fn table(paths: &str) -> Result<Table, String> {
    let mut tables = paths.split(',').map(read).collect::<Result<Vec<Rows>, String>>()?;
    let names = tables.first().map(|t| t.names.clone()).unwrap_or_default();
    if tables.iter().any(|t| t.names != names) {
        return Err(format!("{paths}: not tables of one file"));
    }
    let rows: Vec<(Vec<String>, Outcome)> =
        tables.iter_mut().flat_map(|t| std::mem::take(&mut t.rows)).collect();
    let levels: Vec<Vec<String>> = (0..names.len())
        .map(|column| {
            let mut values: Vec<String> = rows.iter().map(|(settings, _)| settings[column].clone()).collect();
            values.sort_by(|a, b| match (a.parse::<f64>(), b.parse::<f64>()) {
                (Ok(a), Ok(b)) => a.total_cmp(&b),
                _ => a.cmp(b),
            });
            values.dedup();
            values
        })
        .collect();
    let domain = |values: &Vec<String>| {
        if values.len() > 1 && values.iter().all(|v| v.parse::<f64>().is_ok()) {
            Domain::Integer { low: 0, high: values.len() as i64 - 1, log: false }
        } else {
            Domain::Choice { values: values.clone() }
        }
    };
    let parameters = names.iter().zip(&levels).map(|(n, v)| Parameter { name: n.clone(), domain: domain(v) });
    let space = Space::new(parameters.collect()).map_err(|e| format!("{paths}: {e}"))?;
    let mut runs: BTreeMap<Vec<usize>, Vec<Outcome>> = BTreeMap::new();
    for (settings, outcome) in rows {
        let key = settings.iter().zip(&levels);
        let key: Vec<usize> = key.filter_map(|(s, values)| values.iter().position(|v| v == s)).collect();
        runs.entry(key).or_default().push(outcome);
    }
    Ok(Table { space, runs })
}

fn key(point: &Point) -> Vec<usize> {
    let index = |v: &Value| match v {
        Value::Integer(v) => usize::try_from(*v).unwrap_or(0),
        Value::Choice(v) => *v,
        Value::Real(_) => 0,
    };
    point.iter().map(index).collect()
}

impl Table {
    /// The mean worth of a point's runs; `None` where most of them failed or broke a constraint.
    fn worth(&self, key: &[usize]) -> Option<f64> {
        let runs = self.runs.get(key)?;
        let good = runs.iter().filter(|r| r.loss.is_some() && r.excess.iter().all(|e| *e <= 0.0)).count();
        let losses: Vec<f64> = runs.iter().filter_map(|r| r.loss).collect();
        if 2 * good <= runs.len() { None } else { stats::mean(&losses).map(|l| -l) }
    }

    /// How good the point is that a method holds for the best, after each trial.
    fn walk(&self, method: Method, seed: u64, trials: usize) -> Vec<f64> {
        let mut draw = Pcg32::seed_from_u64(seed + 1000);
        let mut search = Search::new(self.space.clone(), method, Rules::exact(seed));
        let mut out = Vec::new();
        for left in (1..=trials).rev() {
            let Some(ask) = search.ask(Some(left)) else { break };
            let runs = self.runs.get(&key(&ask.point)).map(Vec::as_slice).unwrap_or_default();
            let drawn = if runs.is_empty() { None } else { runs.get(draw.random_range(0..runs.len())) };
            search.tell(&ask, drawn.cloned().unwrap_or_else(Outcome::failed));
            let held = search.history().best().and_then(|arm| self.worth(&key(&arm.point)));
            out.push(held.unwrap_or(f64::NEG_INFINITY));
        }
        out
    }

    /// Spread of a single run (pooled standard deviation over points with several); `None` where nothing was run twice.
    fn noise(&self) -> Option<f64> {
        let (mut squares, mut freedom) = (0.0, 0usize);
        for runs in self.runs.values() {
            let losses: Vec<f64> = runs.iter().filter_map(|r| r.loss).collect();
            let Some(mean) = stats::mean(&losses) else { continue };
            squares += losses.iter().map(|l| (l - mean).powi(2)).sum::<f64>();
            freedom += losses.len() - 1;
        }
        (freedom > 0).then(|| (squares / freedom as f64).sqrt())
    }
}

/// Prints a service's table; gives in how many rows Bayesian search needed too many trials.
fn tell(paths: &str, table: &Table) -> Result<u32, String> {
    let points = table.runs.len();
    let mut worths: Vec<f64> = table.runs.keys().filter_map(|key| table.worth(key)).collect();
    worths.sort_by(f64::total_cmp);
    let (Some(best), Some(middle)) = (worths.last(), worths.get(worths.len() / 2)) else {
        return Err(format!("{paths}: no point works and keeps the constraints"));
    };
    let runs: usize = table.runs.values().map(Vec::len).sum();
    println!("\n{paths}: {runs} runs of {points} points, {} of which keep the constraints", worths.len());
    let noise = table.noise().map_or("unknown: nothing was run twice".to_owned(), |n| format!("{n:.0}"));
    println!("best {best:.0}, middle {middle:.0}; standard deviation of a run {noise}");
    println!("trials to hold a point as good as random search does, medians of {SEEDS} seeds:");
    println!(
        "{:>7} {:>10} {:>9} {:>9} {:>9} {:>11}",
        "random", "reach", "% of best", "bayesian", "gradient", "coordinate"
    );
    let mut missed = 0;
    for trials in [points / 4, points / 2] {
        let walks =
            |method, n| -> Vec<Vec<f64>> { (0..SEEDS).map(|seed| table.walk(method, seed, n)).collect() };
        let reach = median(walks(Method::Random, trials).iter().filter_map(|w| w.last().copied()));
        let reach = reach.unwrap_or(f64::NEG_INFINITY);
        let needed = |method| {
            let first =
                |w: &Vec<f64>| w.iter().position(|v| *v >= reach).map_or(f64::INFINITY, |i| i as f64 + 1.0);
            median(walks(method, points).iter().map(first)).unwrap_or(f64::INFINITY)
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
    Ok(missed)
}

fn main() -> ExitCode {
    let mut missed = 0;
    for paths in std::env::args().skip(1) {
        match table(&paths).and_then(|table| tell(&paths, &table)) {
            Ok(more) => missed += more,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        }
    }
    println!("\nBayesian search needed more than half of random's trials in {missed} cases");
    ExitCode::from(u8::from(missed > 0))
}
