//! Events per second of the simulator on the two sizes its goals name.

use std::time::Instant;

use evenkeel_base::Topology;
use evenkeel_model::sim::{DutyKind, Kernel, Load, Machine, Scenario, Task, simulate};

fn run(name: &str, topology: Topology, tasks: usize, seconds: u64, release: (u32, u32)) {
    let mut s = Scenario::new(1);
    s.machine = Machine::new(topology);
    s.kernel = Kernel::release(release.0, release.1);
    s.duration_ns = seconds * 1_000_000_000;
    for i in 0..tasks {
        let percent = [5.0, 10.0, 15.0, 20.0, 25.0][i % 5] * if tasks == 50 { 1.0 } else { 0.256 };
        let load = Load::Duty { percent, period_ns: 100_000_000, jitter: 0.5, kind: DutyKind::Closed };
        s.tasks.push(Task::new(format!("t{i}"), None, load));
    }
    let start = Instant::now();
    match simulate(&s) {
        Ok(r) => {
            let took = start.elapsed().as_secs_f64();
            println!(
                "{name} on Linux {}.{}: {took:.2} s, {} events, {:.2} M events/s, fulfilment {:.3}",
                release.0,
                release.1,
                r.events,
                r.events as f64 / took / 1e6,
                r.fulfilment().unwrap_or(0.0)
            );
        }
        Err(error) => eprintln!("{name}: {error}"),
    }
}

fn main() {
    for release in [(6, 1), (6, 18)] {
        run("50 tasks, 10 CPUs, 600 s", Topology::synthetic(1, 1, 10, 1), 50, 600, release);
    }
    run("5000 tasks, 256 CPUs, 10 s", Topology::synthetic(2, 8, 8, 2), 5000, 10, (6, 18));
}
