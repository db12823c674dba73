//! A virtual machine as a target: the steal its guest sees, from the waits of its vCPU threads.

use evenkeel_base::{Sample, TaskSample, TaskView};
use evenkeel_report::why::Machine;

use super::document::{NS, Window};
use super::target::Aim;

/// What the guest of a `vm:` target sees; `None` for other targets.
pub(super) fn machine(window: &Window<'_>, aim: &Aim, text: &str) -> Option<Machine> {
    text.starts_with("vm:").then_some(())?;
    let is_vcpu = |task: &TaskView| {
        let vm = task.vm.and_then(|at| window.observation.vms.get(at as usize));
        vm.is_some_and(|vm| vm.vcpus.contains(&task.id.tid))
    };
    // The end's observation: at the start a guest may not have had all its vCPUs.
    let own = |task: &&TaskView| aim.tasks.iter().any(|known| known.id.tgid == task.id.tgid);
    let (vcpus, others): (Vec<&TaskView>, Vec<_>) =
        window.observation.tasks.iter().filter(own).partition(|task| is_vcpu(task));
    let counters = |sample: &Sample, task: &TaskView| {
        sample.tasks.binary_search_by_key(&task.id, |task| task.id).ok().map(|at| sample.tasks[at])
    };
    let pairs: Option<Vec<(TaskSample, TaskSample)>> =
        vcpus.iter().map(|task| counters(window.before, task).zip(counters(window.after, task))).collect();
    let pairs = pairs.filter(|pairs| !pairs.is_empty());
    let waited: Option<u64> = pairs.as_ref().and_then(|pairs| {
        pairs.iter().map(|(old, new)| Some(new.waited_ns?.saturating_sub(old.waited_ns?))).sum()
    });
    let ran: u64 = pairs.iter().flatten().map(|(old, new)| new.ran_ns.saturating_sub(old.ran_ns)).sum();
    let whole_s = window.wall_s() * vcpus.len() as f64;
    let steal = waited.map(|ns| ns as f64 * NS);
    Some(Machine {
        vcpus: vcpus.len(),
        other_threads: others.len(),
        vcpus_ran_s: ran as f64 * NS,
        steal_inside_s: steal,
        steal_inside_pct: steal.filter(|_| whole_s > 0.0).map(|steal| 100.0 * steal / whole_s),
        steal_clock: steal_clock(vcpus.iter().map(|task| task.comm.as_str())),
    })
}

/// Whether the vCPU threads are KVM's, by the names qemu gives them.
fn steal_clock<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<bool> {
    names.find_map(|name| {
        let accelerator = name.strip_prefix("CPU ")?.split_once('/')?.1;
        match accelerator {
            "KVM" => Some(true),
            "TCG" => Some(false),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_guests_have_no_steal_clock() {
        let of = |name: &'static str| steal_clock([name].into_iter());
        assert_eq!((of("CPU 0/KVM"), of("CPU 3/TCG"), of("fc_vcpu 1")), (Some(true), Some(false), None));
    }
}
