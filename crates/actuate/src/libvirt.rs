//! A virtual machine's CPU share in libvirt's words, for `virsh`, so that what libvirt shows and applies again at the next start
//! stays true.
//!
//! On cgroup v2 libvirt's `cpu_shares` is `cpu.weight` (1 to 10000, 100 by default), on v1 `cpu.shares`. `global_*` limits
//! the whole machine, `vcpu_*` each vCPU, `emulator_*` the rest of the emulator, `iothread_*` each I/O thread. vCPUs
//! are told apart by cgroups of their own below the machine's: on v2 these are threaded cgroups, which libvirt makes
//! itself; nothing else may put a vCPU elsewhere. `virsh vcpupin` sets both the CPUs of such a cgroup and the thread's affinity.

use evenkeel_base::{CpuQuota, CpuSet, GroupRef, Setting};
use evenkeel_linux::machine::{self, Part};

/// The arguments of `virsh` that give a machine's cgroup this value while it runs; `None` where libvirt has no word for it.
///
/// Below a scope of systemd's, libvirt keeps quotas in a group of its own; the scope's quota is systemd's
/// (`virCgroupSetCpuCfsQuota`, unlike `virCgroupSetCpuShares`, takes the nested group). The machine is named by its number: its
/// group lacks what systemd does not allow in names.
pub fn arguments(group: &GroupRef, to: &Setting) -> Option<Vec<String>> {
    let place = machine::place(&group.path)?;
    let sets = match (to, place.part) {
        (Setting::Weight(weight), Part::Whole) => vec![format!("cpu_shares={weight}")],
        (Setting::Quota(CpuQuota { quota_usec, period_usec, burst_usec: 0 }), part)
            if part == Part::Inner || (part == Part::Whole && !place.by_systemd) =>
        {
            let quota = quota_usec.value().map_or("-1".to_owned(), |usec| usec.to_string());
            vec![format!("global_period={period_usec}"), format!("global_quota={quota}")]
        }
        _ => return None,
    };
    let mut all = vec!["schedinfo".to_owned(), place.id.to_string(), "--live".to_owned()];
    for set in sets {
        all.extend(["--set".to_owned(), set]);
    }
    Some(all)
}

/// Whether libvirt pins the thread in this cgroup by itself: a vCPU or an I/O thread.
pub fn is_pinnable(path: &str) -> bool {
    machine::place(path).is_some_and(|place| matches!(place.part, Part::Vcpu(_) | Part::IoThread(_)))
}

/// The arguments of `virsh` that pin the thread in this cgroup to these CPUs while its machine runs.
pub fn pin_arguments(path: &str, cpus: &CpuSet) -> Option<Vec<String>> {
    let place = machine::place(path)?;
    let (command, option, number) = match place.part {
        Part::Vcpu(number) => ("vcpupin", "--vcpu", number),
        Part::IoThread(number) => ("iothreadpin", "--iothread", number),
        _ => return None,
    };
    let (id, number, cpus) = (place.id.to_string(), number.to_string(), cpus.to_string());
    Some([command, &id, option, &number, "--cpulist", &cpus, "--live"].map(str::to_owned).to_vec())
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Limit;

    use super::*;

    const SCOPE: &str = "/machine.slice/machine-qemu\\x2d3\\x2dweb.scope";
    const PLAIN: &str = "/machine/qemu-3-web.libvirt-qemu";

    #[test]
    fn values_are_said_in_libvirts_words() {
        let words = |path: &str, to: &Setting| {
            arguments(&GroupRef { path: path.into(), v2: true }, to).map(|all| all.join(" "))
        };
        let weight = Setting::Weight(200);
        let half = CpuQuota { quota_usec: Limit::Value(50_000), ..CpuQuota::UNLIMITED };
        let inner = format!("{SCOPE}/libvirt");
        for path in [SCOPE, PLAIN] {
            assert_eq!(words(path, &weight).as_deref(), Some("schedinfo 3 --live --set cpu_shares=200"));
        }
        for path in [PLAIN, &inner] {
            let said = words(path, &Setting::Quota(half)).unwrap();
            assert_eq!(said, "schedinfo 3 --live --set global_period=100000 --set global_quota=50000");
            let said = words(path, &Setting::Quota(CpuQuota::UNLIMITED)).unwrap();
            assert!(said.ends_with("global_quota=-1"), "{said}");
        }
        // The scope's own quota is systemd's, and that below has no weight of libvirt's.
        assert_eq!((words(SCOPE, &Setting::Quota(half)), words(&inner, &weight)), (None, None));
        assert_eq!(words(PLAIN, &Setting::GroupIdle(true)), None);
        assert_eq!(words(PLAIN, &Setting::Quota(CpuQuota { burst_usec: 5, ..half })), None);
        assert_eq!(words(&format!("{PLAIN}/vcpu0"), &weight), None);
    }

    #[test]
    fn threads_are_pinned_in_libvirts_words() {
        let words = |path: &str| pin_arguments(path, &"0,2-3".parse().unwrap()).map(|all| all.join(" "));
        assert_eq!(
            words(&format!("{SCOPE}/libvirt/vcpu1")).as_deref(),
            Some("vcpupin 3 --vcpu 1 --cpulist 0,2-3 --live")
        );
        let io = format!("{PLAIN}/iothread2");
        assert_eq!(words(&io).as_deref(), Some("iothreadpin 3 --iothread 2 --cpulist 0,2-3 --live"));
        assert!(is_pinnable(&io));
        for other in [PLAIN.to_owned(), format!("{PLAIN}/emulator"), "/a/vcpu0".to_owned()] {
            assert!(words(&other).is_none() && !is_pinnable(&other), "{other}");
        }
    }
}
