//! Operating characteristics of the decision: how often what is kept that should not be, and how soon what should.
//! `make truth` prints the table; the decision is the agent's own component, with a clock and a host that are made up.
//!
//!     cargo run --release -p evenkeel-policy --example truth -- [TRIALS [PART OF A ROW'S NAME [THREADS]]]

#[path = "../../tests/truth/arguments.rs"]
mod arguments;
#[path = "../../tests/truth/host.rs"]
mod host;
#[path = "../../tests/truth/rows.rs"]
mod rows;

use evenkeel_base::stats::binomial;
use host::Tally;
use rows::{Goal, Row};

fn main() {
    let (trials, part, threads) = match arguments::read(std::env::args().skip(1)) {
        Ok(read) => read,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    println!(
        "{trials} trials a row; bounds are one-sided 95 % (Clopper-Pearson); a decision may take {:.0} s",
        host::BUDGET_S
    );
    println!(
        "{:<76} {:>7} {:>11} {:>8} {:>8} {:>9}  goal",
        "row", "kept", "bound", "decided", "in force", "confirmed"
    );
    let rows: Vec<Row> = rows::rows().into_iter().filter(|row| row.name.contains(&part)).collect();
    if rows.is_empty() {
        eprintln!("no row's name has {part:?} in it");
        std::process::exit(2);
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let missed = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let tally = Tally::of(&row.scene, trials, 1);
                    if !print(row, &tally) {
                        missed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner();
    println!("{missed} of {} rows miss their goal", rows.len());
    std::process::exit(i32::from(missed > 0));
}

/// One line; whether the row's goal is reached.
fn print(row: &Row, tally: &Tally) -> bool {
    let right = row.scene.gain > 0.0 && row.name.starts_with("power");
    let kept = if right { tally.kept_right() } else { tally.kept() };
    let pct = |share: f64| format!("{:.1} %", 100.0 * share);
    let share = kept as f64 / tally.trials as f64;
    let (low, high) = (binomial::lower(kept, tally.trials, 0.05), binomial::upper(kept, tally.trials, 0.05));
    let (decided_s, kept_s, in_force_s) = tally.median_s();
    let (reached, goal, seconds) = match row.goal {
        Goal::AtMost(most) => (high <= most, format!("<= {}", pct(most)), decided_s),
        Goal::AtLeast(least, within_s) => {
            let seconds = kept_s.unwrap_or(decided_s);
            (share >= least && seconds <= within_s, format!(">= {}, {within_s:.0} s", pct(least)), seconds)
        }
        Goal::Shown => (true, String::new(), if right { kept_s.unwrap_or(decided_s) } else { decided_s }),
    };
    let bound = if right { format!(">= {}", pct(low)) } else { format!("<= {}", pct(high)) };
    let confirmed = pct(tally.confirmed as f64 / tally.trials as f64);
    let mark = if reached { "" } else { "  MISSED" };
    let in_force = in_force_s.map_or_else(String::new, |s| format!("{s:.1} s"));
    println!(
        "{:<76} {:>7} {bound:>11} {:>8} {in_force:>8} {confirmed:>9}  {goal}{mark}",
        row.name,
        pct(share),
        format!("{seconds:.1} s")
    );
    reached
}
