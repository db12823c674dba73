//! What the simulator says about plans before they are tried.

use evenkeel_base::{Observation, Plan};
use evenkeel_kernfs::Root;
use evenkeel_model::predict::{Host, Prediction};
use evenkeel_model::sim::Kernel;
use evenkeel_observe::read_kernel;

use crate::agent::Agent;

impl Agent {
    /// What each plan would do to the scope, from an observation with the slow facts of its tasks ([`Agent::study`]). `None`
    /// where nothing can be said: a scheduler that is not simulated, or no running tasks.
    pub fn predict(&self, observation: &Observation, plans: &[Plan]) -> Vec<Option<Prediction>> {
        let none = || plans.iter().map(|_| None).collect();
        let release = read_kernel(&Root::host()).release;
        let Some(mut kernel) = release.as_deref().and_then(Kernel::of) else { return none() };
        kernel.base_slice_ns = self.features().default_slice_ns;
        let host = Host::new(observation, kernel, |task| self.config.scope.has(task, observation));
        match host.predict(plans) {
            Ok(predictions) if predictions.len() == plans.len() => {
                predictions.into_iter().map(Some).collect()
            }
            Ok(_) => none(),
            Err(error) => {
                tracing::debug!("no prediction: {error}");
                none()
            }
        }
    }
}
