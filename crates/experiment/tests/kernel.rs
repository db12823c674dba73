//! The simulator against a real kernel, as recorded: Linux 6.18 on two CPUs, every mix of the validation five times
//! (`scripts/validate.sh` measures again). None of these mixes was used to improve the simulator.

use evenkeel_experiment::validation::{self, RUNS, Record};

#[test]
fn what_tasks_get_and_how_levers_rank_is_as_on_the_kernel() {
    let records: Vec<Record> = include_str!("../data/kernel-6.18-2cpus.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mixes = validation::set("validation", 2, "6.18").unwrap();
    let c = validation::compare(&mixes, &records, RUNS as usize, 3).unwrap();
    let of = |share| c.error_quantile(share).unwrap();
    let pairs = c.pairs.len();
    println!(
        "{} mixes, {} tasks: median {:.2}, 95th percentile {:.2}, worst {:.2} points; levers {:?} of {pairs} pairs",
        c.lines.len(),
        c.errors().len(),
        of(0.5),
        of(0.95),
        of(1.0),
        c.ranked_right(),
    );
    assert_eq!(c.lines.len(), 56);
    // The goals are 1.5 and 4 points, and 90 % of the pairs; half of that is a change for the worse.
    assert!(of(0.5) <= 0.4 && of(0.95) <= 3.0, "{} {}", of(0.5), of(0.95));
    assert!(pairs >= 20 && c.ranked_right().unwrap() >= 0.95, "{:?}", c.pairs);
}
