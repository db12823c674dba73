//! The simulator against a real kernel, the comparing half: simulates the mixes of a record and prints measured beside simulated.
//! The record is made by the example of the same name of `evenkeel-lab`; `make validate` runs both.
//!
//! ```text
//! validate RECORD [--set validation] [--cpus 2] [--kernel 6.18] [--runs 5] [--seeds 9] [-v]
//! validate --show "mix 1003" [--set validation]    prints a mix as an experiment file
//! ```

use std::error::Error;

use evenkeel_model::validation::{self, Comparison, RUNS, Record};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (mut record, mut show, mut set, mut verbose) = (None, None, "validation".to_owned(), false);
    let (mut cpus, mut kernel, mut runs, mut seeds) = (2, "6.18".to_owned(), RUNS as usize, 9);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--show" => show = Some(value()?),
            "--set" => set = value()?,
            "--cpus" => cpus = value()?.parse()?,
            "--kernel" => kernel = value()?,
            "--runs" => runs = value()?.parse()?,
            "--seeds" => seeds = value()?.parse()?,
            "-v" => verbose = true,
            other if other.starts_with('-') => return Err(format!("{other} is not known").into()),
            file => record = Some(file.to_owned()),
        }
    }
    let mixes = validation::set(&set, cpus, &kernel).ok_or("--set is validation or training")?;
    if let Some(name) = show {
        let mix = mixes.iter().find(|m| m.name == name).ok_or("no mix of this name")?;
        println!("{}", toml::to_string(mix)?);
        return Ok(());
    }
    let path = record.ok_or("the record\'s file is missing")?;
    let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {path}: {e}"))?;
    let mut records = Vec::<Record>::new();
    for (number, line) in text.lines().enumerate() {
        records.push(serde_json::from_str(line).map_err(|e| format!("{path}:{}: {e}", number + 1))?);
    }
    print(&validation::compare(&mixes, &records, runs, seeds)?, verbose);
    Ok(())
}

fn print(comparison: &Comparison, verbose: bool) {
    println!(
        "{:28} {:>22} {:>9} {:>7} {:>7}  settings",
        "mix", "fulfilment measured", "simulated", "median", "worst"
    );
    for line in &comparison.lines {
        let mut errors: Vec<f64> = line.errors().collect();
        errors.sort_by(f64::total_cmp);
        let [low, middle, high] = line.measured;
        println!(
            "{:28} {low:7.3} {middle:.3} {high:7.3} {:9.3} {:7.2} {:7.2}  {}",
            line.mix,
            line.simulated,
            errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN),
            errors.last().copied().unwrap_or(f64::NAN),
            line.settings
        );
        if verbose {
            for (index, (measured, simulated)) in line.tasks.iter().enumerate() {
                println!("      {index:3} {measured:7.2} {simulated:7.2} {:+7.2}", simulated - measured);
            }
        }
    }
    for pair in comparison.pairs.iter().filter(|p| !p.right) {
        println!("ranked wrongly: {} is better than {}", pair.better, pair.worse);
    }
    let errors = comparison.errors();
    let quantile = |share| comparison.error_quantile(share).unwrap_or(f64::NAN);
    println!(
        "{} mixes, {} tasks: error of a task's CPU median {:.2}, 90th percentile {:.2}, 95th {:.2}, worst {:.2} points \
         of a CPU (goal 1.5 and 4)",
        comparison.lines.len(),
        errors.len(),
        quantile(0.5),
        quantile(0.9),
        quantile(0.95),
        quantile(1.0)
    );
    let right = comparison.pairs.iter().filter(|p| p.right).count();
    println!(
        "levers: {right} of {} pairs whose measured intervals do not overlap ranked rightly{} (goal 90 %)",
        comparison.pairs.len(),
        comparison.ranked_right().map_or(String::new(), |share| format!(" ({:.0} %)", 100.0 * share))
    );
}
