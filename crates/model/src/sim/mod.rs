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

mod balance;
mod engine;
mod fair;
mod groups;
mod load;
mod pelt;
mod queue;
mod report;
mod setup;
mod spec;
mod state;
#[cfg(test)]
mod tests;

pub use report::{GroupReport, Histogram, Report, Run, TaskReport};
pub use spec::{
    DutyKind, Generation, Group, Kernel, Load, Machine, Scenario, Setting, SpecError, Steal, Task, Timed,
};

/// Runs a scenario to its end.
pub fn simulate(scenario: &Scenario) -> Result<Report, SpecError> {
    scenario.check()?;
    Ok(engine::Sim::new(scenario).run())
}
