//! How fast the simulator is on the two sizes its goals name, in events a second: the advisor's published case, 50 tasks on 10
//! CPUs, under four settings and two schedulers, ten minutes each; and a node of 256 CPUs with 5,000 tasks, ten seconds.
//! `cargo run --release -p evenkeel-model --example speed`.

use std::time::Instant;

use evenkeel_base::Topology;
use evenkeel_model::fleet;
use evenkeel_model::sim::{DutyKind, Kernel, Load, Machine, Scenario, SpecError, Task, simulate};

/// Tasks of 5, 10, 15, 20 and 25 % in turn, times `factor`.
fn tasks(s: &mut Scenario, count: usize, factor: f64, kind: DutyKind) {
    for i in 0..count {
        let percent = [5.0, 10.0, 15.0, 20.0, 25.0][i % 5] * factor;
        let load = Load::Duty { percent, period_ns: 100_000_000, jitter: 0.5, kind };
        s.tasks.push(Task::new(format!("t{i}"), None, load));
    }
}

/// Simulates and prints; what it prints last is how long that took.
fn run(name: &str, s: &Scenario) -> Result<f64, SpecError> {
    let start = Instant::now();
    let r = simulate(s)?;
    let took = start.elapsed().as_secs_f64();
    println!(
        "  {name:34} {:6.2} % of a CPU, fulfilment {:.3}   {took:5.2} s, {:8.0} k events, {:.2} M events/s",
        r.cpu_pct.iter().sum::<f64>() / r.cpu_pct.len() as f64,
        r.fulfilment().unwrap_or(f64::NAN),
        r.events as f64 / 1e3,
        r.events as f64 / took / 1e6,
    );
    Ok(took)
}

fn main() -> Result<(), SpecError> {
    let mut longest = 0.0f64;
    println!(
        "50 tasks of 5 to 25 % on 10 CPUs, periods of 100 ms +-50 %, ten minutes; use of a CPU, mean of ten"
    );
    for (total, factor) in [(750, 1.0), (950, 950.0 / 750.0)] {
        for (major, minor) in [(6, 1), (6, 18)] {
            for kind in [DutyKind::Closed, DutyKind::Wall] {
                let mut s = Scenario::new(10);
                s.kernel = Kernel::release(major, minor);
                s.duration_ns = 600_000_000_000;
                tasks(&mut s, 50, factor, kind);
                let generation = if minor == 1 { "CFS" } else { "EEVDF" };
                println!(
                    "{total} % wanted, {} loads, {generation} (Linux {major}.{minor})",
                    format!("{kind:?}").to_lowercase()
                );
                // What an advisor would choose after trials of ten seconds.
                let mut trial = s.clone();
                trial.duration_ns = 11_000_000_000;
                let choice = fleet::choose(&trial)?;
                let chosen = choice.map_or("nothing".to_owned(), |lever| lever.0.to_owned());
                longest = longest.max(run("kernel default", &s)?);
                let change = |change: &dyn Fn(&mut Scenario)| {
                    let mut s = s.clone();
                    change(&mut s);
                    s
                };
                longest = longest.max(run("placement", &change(&fleet::pin))?);
                let both = change(&|s| {
                    fleet::pin(s);
                    fleet::nice(s);
                });
                longest = longest.max(run("placement and nice", &both)?);
                let best = change(&|s| {
                    if let Some(lever) = choice {
                        lever.1(s);
                    }
                });
                longest = longest.max(run(&format!("evenkeel's choice: {chosen}"), &best)?);
            }
        }
    }
    println!("longest of them {longest:.2} s (goal 2 s)\n");
    println!("5,000 tasks on 256 CPUs (2 nodes, 16 caches, siblings), ten seconds (goal 60 s)");
    for (major, minor) in [(6, 1), (6, 18)] {
        let mut s = Scenario::new(1);
        s.machine = Machine::new(Topology::synthetic(2, 8, 8, 2));
        s.kernel = Kernel::release(major, minor);
        tasks(&mut s, 5_000, 0.256, DutyKind::Closed);
        run(&format!("Linux {major}.{minor}"), &s)?;
    }
    Ok(())
}
