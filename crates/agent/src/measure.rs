//! From two samples of the host to a measurement window.

use evenkeel_base::{Observation, Sample, TaskId, TaskSample};
use evenkeel_policy::window::{TaskWindow, Window};

use crate::scope::Scope;

/// The task with this identity, if there is one; what comes before it is passed over for good.
fn advance<'a>(tasks: &mut &'a [TaskSample], id: TaskId) -> Option<&'a TaskSample> {
    while let Some((first, rest)) = tasks.split_first() {
        match first.id.cmp(&id) {
            std::cmp::Ordering::Less => *tasks = rest,
            std::cmp::Ordering::Equal => return Some(first),
            std::cmp::Ordering::Greater => return None,
        }
    }
    None
}

/// The window between two samples. Tasks born in between count from their birth; tasks that ended in between are
/// only part of what the host as a whole used.
pub fn window(before: &Sample, after: &Sample, observation: &Observation, scope: &Scope) -> Window {
    let seconds = after.monotonic_ns.saturating_sub(before.monotonic_ns) as f64 / 1e9;
    // All three are ordered by identity.
    let (mut old, mut new) = (before.tasks.as_slice(), after.tasks.as_slice());
    let mut ours_ran = 0.0;
    let mut tasks = Vec::new();
    for view in &observation.tasks {
        let Some(now) = advance(&mut new, view.id) else { continue };
        let (ran0, waited0) = advance(&mut old, view.id).map_or((0, Some(0)), |t| (t.ran_ns, t.waited_ns));
        // A counter that ran backwards says nothing about this window.
        let Some(ran_ns) = now.ran_ns.checked_sub(ran0) else { continue };
        let waited_ns = now.waited_ns.zip(waited0).and_then(|(now, then)| now.checked_sub(then));
        let in_scope = scope.has(view, observation);
        let ran_s = ran_ns as f64 / 1e9;
        if in_scope {
            ours_ran += ran_s;
        }
        if ran_ns > 0 || waited_ns.is_some_and(|ns| ns > 0) {
            tasks.push(TaskWindow {
                id: view.id,
                in_scope,
                ran_s,
                waited_s: waited_ns.map(|ns| ns as f64 / 1e9),
            });
        }
    }
    let outside_ran_s = (!observation.host.per_cpu.is_empty())
        .then(|| (observation.host.busy_pct / 100.0 * seconds - ours_ran).max(0.0));
    Window { seconds, tasks, outside_ran_s }
}
