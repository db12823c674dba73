//! Numbers of tasks, names of links and paths of cgroups mean what a journal says only where it was written.

use std::collections::{HashMap, HashSet};

use evenkeel_base::{Knob, Target};

use crate::kernel::{Kernel, KernelError, Namespaces};
use crate::undo::{Entry, still_there};

/// Which namespace is another one than the journal's, for entries to which that matters, and what to do. A cgroup that
/// is found where it was, by its inode, is the right one in any namespace; one that is not found anywhere on the host is gone.
///
/// # Errors
/// The kernel does not say whether a cgroup is there.
pub(crate) fn mismatch<K: Kernel>(
    kernel: &mut K,
    then: &Namespaces,
    entries: &[Entry],
) -> Result<Option<String>, KernelError> {
    let here = kernel.namespaces();
    let differ = |then: Option<u64>, here: Option<u64>| match (then, here) {
        (Some(then), Some(here)) if then != here => Some(then),
        _ => None,
    };
    // By hierarchy; read once, and only where a cgroup is not where it was.
    let mut every: HashMap<(bool, Knob), Option<HashSet<u64>>> = HashMap::new();
    for entry in entries {
        let (kind, option, other) = match &entry.target {
            Target::Task(_) => match differ(then.pid, here.pid) {
                None => ("time", "--time", differ(then.time, here.time)),
                other => ("pid", "--pid", other),
            },
            Target::Net(knob) if knob.link().is_some() => ("network", "--net", differ(then.net, here.net)),
            Target::Net(_) | Target::Host => continue,
            Target::Group(group) => match differ(then.cgroup, here.cgroup) {
                None => continue,
                Some(_) if still_there(kernel, entry)? => continue,
                other => {
                    let ids = every
                        .entry((group.v2, entry.knob))
                        .or_insert_with(|| kernel.every_cgroup(group, entry.knob));
                    if ids.as_ref().is_some_and(|ids| !ids.contains(&entry.origin.identity)) {
                        continue;
                    }
                    ("cgroup", "--cgroup", other)
                }
            },
        };
        if let Some(inode) = other {
            return Ok(Some(format!(
                "it was written in another {kind} namespace ({inode}): `lsns` there lists it with a process of it; run \
                 this by `nsenter {option} --target PID`, or, if that namespace is gone, remove the file"
            )));
        }
    }
    Ok(None)
}
