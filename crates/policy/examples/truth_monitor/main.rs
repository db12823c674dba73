//! Operating characteristics of what watches a change after the decision: `policy::monitor`, driven with a fake clock on a
//! host that is not there. Each row says how often something goes wrong, with the upper end of its 95 % interval.
//!
//! `cargo run --release -p evenkeel-policy --example truth_monitor [TRIALS [PART OF A NAME [THREADS]]]`; exit status 1 when a limit is
//! refuted.

#[path = "../../tests/truth/arguments.rs"]
mod arguments;
#[allow(dead_code)]
#[path = "../../tests/truth/host.rs"]
mod decision;
mod host;
mod rows;

use std::process::ExitCode;

fn main() -> ExitCode {
    let (trials, only, threads) = match arguments::read(std::env::args().skip(1)) {
        Ok(read) => read,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    println!("{:<58} {:>7} {:>7} {:>8} {:>7}", "", "trials", "wrong", "<= 95 %", "limit");
    let mut worst = ExitCode::SUCCESS;
    rows::run(trials, threads, &only, |row| {
        let verdict = match (row.refuted(), row.upper() <= row.limit) {
            (true, _) => "REFUTED",
            (false, true) => "",
            (false, false) => "open",
        };
        let share = 100.0 * row.wrong as f64 / row.trials.max(1) as f64;
        println!(
            "{:<58} {:>7} {share:>6.2}% {:>7.2}% {:>6.1}% {verdict:<8} {}",
            row.name,
            row.trials,
            100.0 * row.upper(),
            100.0 * row.limit,
            row.note
        );
        if row.refuted() {
            worst = ExitCode::FAILURE;
        }
    });
    worst
}
