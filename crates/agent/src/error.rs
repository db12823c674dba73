//! Why the loop cannot run.

use evenkeel_actuate::ActuateError;
use evenkeel_observe::ObserveError;

/// Why the loop cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot observe this host: {0}")]
    Observe(#[from] ObserveError),
    #[error(
        "{task} is background work and belongs to the service {service}, too: leave it out of one of them (! excludes)"
    )]
    Overlap { task: String, service: String },
    /// Nothing can be changed.
    #[error(transparent)]
    Actuate(#[from] ActuateError),
    #[error("cannot change scheduling on this host: {0}")]
    Kernel(#[from] evenkeel_actuate::KernelError),
    #[error(
        "Linux {0} is older than 5.15: evenkeel changes nothing there. What reads works: check, ps, top, topology, serve, plan"
    )]
    OldKernel(String),
}
