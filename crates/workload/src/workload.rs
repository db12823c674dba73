//! What every workload gives.

use std::fmt::Debug;

use crate::load::{Context, FlowReport, LoadError};

/// A workload: parameters, and what each of its threads does.
pub trait Workload: Debug + Send + Sync {
    /// Checks what the command line's syntax cannot; the message says what to do.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// CPU time one thread wants, percent of one CPU; `None` where it takes what it gets.
    fn wanted_pct(&self) -> Option<f64> {
        None
    }

    /// Prepares what all threads share, before any of them starts.
    fn prepare(&mut self, _threads: u32) -> Result<(), LoadError> {
        Ok(())
    }

    /// Runs one thread until [`Context::over`]. Counts its events in the context.
    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError>;

    /// What its flows measured, for workloads over the network, once it has run.
    fn flows(&self) -> Option<FlowReport> {
        None
    }

    /// The command-line arguments, kind first, that give these parameters again.
    fn arguments(&self) -> Vec<String>;
}
