//! What is never touched, whatever a plan or its author's scope says.

use evenkeel_base::{Change, HostScheduler, SchedPolicy, Setting, Target, TaskId};

use crate::host;
use crate::options::Options;

/// Whether a setting makes sense for its kind of target and is allowed at all.
pub(crate) fn change(change: &Change, options: &Options) -> Result<(), String> {
    let name = change.knob().name();
    match (&change.to, &change.target) {
        (Setting::Affinity(_) | Setting::Sched(_), Target::Task(_)) => {}
        (Setting::Net(value), Target::Net(knob)) => return host::normal(knob, value).map(drop),
        (Setting::Affinity(_) | Setting::Sched(_), _) => {
            return Err(format!("{name} is a property of tasks"));
        }
        (Setting::Net(_), _) | (_, Target::Net(_)) => {
            return Err(format!("{name} is no property of the network"));
        }
        (Setting::Scheduler(_), Target::Host) => {}
        (Setting::Scheduler(_), _) => return Err(format!("{name} is a property of the host")),
        (_, Target::Host) => return Err(format!("{name} is no property of the host")),
        (_, Target::Group(_)) => {}
        (_, Target::Task(_)) => return Err(format!("{name} is a property of cgroups")),
    }
    match &change.to {
        Setting::Affinity(cpus) | Setting::Cpuset(cpus) if cpus.is_empty() => {
            return Err("an empty set of CPUs".to_owned());
        }
        Setting::Sched(attr) if attr.policy == SchedPolicy::Deadline => {
            if !options.allow_deadline {
                return Err("the deadline policy was not allowed by the user".to_owned());
            }
            // Without the flag the kernel lets such a task start nothing (`sched_fork`).
            if attr.slice_ns.zip(attr.period_ns).is_none_or(|(runtime, period)| runtime > period)
                || !attr.reset_on_fork
            {
                return Err(
                    "a deadline without a time to run in its period, or one that children inherit".to_owned()
                );
            }
        }
        Setting::Sched(attr) if attr.policy.is_realtime() && !options.allow_realtime => {
            return Err("real-time policies were not allowed by the user".to_owned());
        }
        Setting::RtRuntime(_) if !options.allow_realtime => {
            return Err("real-time policies were not allowed by the user".to_owned());
        }
        Setting::Scheduler(HostScheduler::Program(name)) => {
            if !options.allow_scx {
                return Err("BPF schedulers were not allowed by the user".to_owned());
            }
            if !name.starts_with("scx_") || name.contains(['/', '\0']) {
                return Err(format!("{name:?} is not the name of a BPF scheduler's program"));
            }
        }
        Setting::Scheduler(HostScheduler::Other(name)) => {
            return Err(format!("the BPF scheduler {name} is another program's"));
        }
        _ => {}
    }
    match &change.target {
        Target::Group(group) if !is_proper_path(&group.path) => {
            Err(format!("{:?} is not a cgroup that may be changed", group.path))
        }
        _ => Ok(()),
    }
}

/// Whether a journal may say that this was found before a change of ours: the journal is a file, and what is written
/// back is written by root. Tasks that were real-time or nobody's to touch are never changed, so they have no original; nor has
/// a host with a BPF scheduler.
pub(crate) fn original(target: &Target, original: &Setting) -> Result<(), String> {
    // A real-time budget is a group's own and may be anything; a cpuset may be empty: it inherits.
    let may_be_found = match original {
        Setting::RtRuntime(_) => true,
        Setting::Cpuset(cpus) => cpus.is_empty(),
        _ => false,
    };
    let to = if may_be_found { Setting::GroupIdle(false) } else { original.clone() };
    change(&Change { target: target.clone(), to, why: String::new() }, &Options::default())?;
    match target {
        Target::Task(id) if id.tgid <= 1 || id.tid <= 1 => Err("pid 1".to_owned()),
        _ => Ok(()),
    }
}

/// Below the root of the hierarchy, and nowhere else.
fn is_proper_path(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|below| {
        !below.contains('\0') && below.split('/').all(|part| !matches!(part, "" | "." | ".."))
    })
}

/// Processes that are never touched; `own` is this one.
pub(crate) fn process(id: TaskId, own: u32) -> Result<(), String> {
    if id.tgid <= 1 || id.tid <= 1 {
        return Err("pid 1".to_owned());
    }
    if id.tgid == own {
        return Err("evenkeel itself".to_owned());
    }
    Ok(())
}

/// Tasks found real-time or deadline, or under a policy not known here. `by_us`: whether a policy is what we gave the task,
/// which is no obstacle.
pub(crate) fn policy(policy: Option<SchedPolicy>, by_us: impl Fn(SchedPolicy) -> bool) -> Result<(), String> {
    let Some(policy) = policy else {
        return Err("its scheduling policy is not known here".to_owned());
    };
    if policy.is_realtime() && !by_us(policy) {
        return Err(format!("a task found under the {policy} policy"));
    }
    Ok(())
}
