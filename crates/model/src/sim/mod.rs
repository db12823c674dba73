//! A discrete-event simulator of the Linux scheduler.
//!
//! It follows the kernel's rules where they decide who runs: weights, virtual deadlines and lag (EEVDF) or virtual
//! runtime (CFS), slices that are checked at ticks, wake-up preemption, delayed dequeue, per-CPU group shares,
//! bandwidth control, wake-up placement and load balancing. It does not model caches, interrupts or locks; a switch
//! and a migration cost a fixed amount of work. `docs/model.md` says where it differs from the kernel and how far off
//! it was found to be.
//!
//! ```
//! use evenkeel_model::sim::{Load, Scenario, Task, simulate};
//! let mut scenario = Scenario::new(1);
//! scenario.tasks = vec![Task::new("a", None, Load::Spin), Task::new("b", None, Load::Spin)];
//! let report = simulate(&scenario).unwrap();
//! assert!((report.tasks[0].got_pct - 50.0).abs() < 1.0);
//! ```

mod account;
mod balance;
mod change;
mod check;
mod engine;
mod fair;
mod groups;
mod load;
mod pelt;
mod place;
mod queue;
mod report;
mod setup;
mod spec;
mod state;
#[cfg(test)]
mod tests;
mod wake;

pub use check::SpecError;
pub use report::{GroupReport, Histogram, Report, Run, TaskReport};
pub use spec::{DutyKind, Generation, Group, Kernel, Load, Machine, Scenario, Setting, Steal, Task, Timed};

/// Runs a scenario to its end.
pub fn simulate(scenario: &Scenario) -> Result<Report, SpecError> {
    scenario.check()?;
    if scenario.machine.background_per_s > 0.0 {
        let with = with_background(scenario);
        let mut sim = engine::Sim::new(&with);
        // Kernel threads never end; whether all is done is up to the others.
        sim.work.alive = setup::alive(&scenario.tasks);
        let mut report = sim.run();
        report.tasks.truncate(scenario.tasks.len());
        return Ok(report);
    }
    Ok(engine::Sim::new(scenario).run())
}

/// The scenario with a kernel thread on each CPU behind its tasks.
fn with_background(scenario: &Scenario) -> Scenario {
    let mut s = scenario.clone();
    let period = 1e9 / s.machine.background_per_s;
    let percent = (s.machine.background_ns as f64 / period * 100.0).clamp(1e-6, 50.0);
    for cpu in s.machine.topology.online.iter() {
        let load = Load::Duty { percent, period_ns: period as u64, jitter: 0.9, kind: DutyKind::Closed };
        let mut task = Task::new(format!("kernel/{cpu}"), None, load);
        task.cpus = Some(evenkeel_base::CpuSet::single(cpu));
        s.tasks.push(task);
    }
    s
}
