//! A short look at the host: what a scope or a tier means just now.

use std::time::Duration;

use evenkeel_base::Observation;
use evenkeel_linux::Root;
use evenkeel_observe::{Detail, Observer, ObserverOptions, RUNTIMES_WAIT, Sampling};

/// Time in which it is seen who runs, to tell whether a scope is the whole host.
const GLANCE: Duration = Duration::from_millis(200);

/// Looks, with the names that runtimes give where those are wanted.
pub fn glance(names: bool, detail: &Detail) -> Result<Observation, evenkeel_observe::ObserveError> {
    let options = ObserverOptions { sampling: Sampling::Proc, ..ObserverOptions::default() };
    let mut observer = Observer::new(&Root::host(), options)?;
    if names {
        observer.wait_for_runtimes(RUNTIMES_WAIT);
    }
    let before = observer.sample()?;
    std::thread::sleep(GLANCE);
    let after = observer.sample()?;
    observer.observe(&before, &after, detail)
}
