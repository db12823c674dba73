//! libvirt's view of a virtual machine's CPU share: `virsh schedinfo`, read and set, so that what libvirt shows and
//! applies again at the next start stays true.
//!
//! On cgroup v2 libvirt's `cpu_shares` is `cpu.weight` (1 to 10000, 100 by default), on v1 `cpu.shares`. `global_*` limits
//! the whole machine, `vcpu_*` each vCPU, `emulator_*` the rest of the emulator, `iothread_*` each I/O thread. vCPUs
//! are told apart by cgroups of their own below the machine's: on v2 these are threaded cgroups, which libvirt makes
//! itself; nothing else may put a vCPU elsewhere. `virsh vcpupin` sets both the CPUs of such a cgroup and the thread's affinity.

use evenkeel_base::{CpuQuota, CpuSet, GroupRef, Limit, Setting};
use evenkeel_linux::machine::{self, Part};
use serde::{Deserialize, Serialize};

/// What `virsh schedinfo DOMAIN` prints. Times are microseconds; a quota of [`Limit::Max`] is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedInfo {
    /// `cpu.weight` on cgroup v2, `cpu.shares` on v1.
    pub cpu_shares: Option<u64>,
    /// Of each vCPU.
    pub vcpu: Bandwidth,
    /// Of the emulator's other threads.
    pub emulator: Bandwidth,
    /// Of the whole machine.
    pub global: Bandwidth,
    /// Of each I/O thread.
    pub iothread: Bandwidth,
}

/// Period and quota; `None` where this libvirt does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Length of a period.
    pub period_usec: Option<u64>,
    /// CPU time in each period.
    pub quota_usec: Option<Limit<u64>>,
}

/// From this value on (`VIR_DOMAIN_CPU_QUOTA_MAX`, 18446744073709551) and for negative ones there is no limit.
const NO_QUOTA: i128 = 17_592_186_044_415;

/// Reads the output of `virsh schedinfo`. Lines that are not known are left out; a machine without cgroups has none.
///
/// # Errors
/// A value that is not a number, with its line.
pub fn parse_schedinfo(text: &str) -> Result<SchedInfo, String> {
    let mut info = SchedInfo::default();
    for (index, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if key == "Scheduler" || value.is_empty() {
            continue;
        }
        let number: i128 = match value.parse() {
            Ok(number) => number,
            Err(_) => {
                return Err(format!(
                    "virsh schedinfo, line {}: expected a number, found {line:?}",
                    index + 1
                ));
            }
        };
        let whole = u64::try_from(number).ok();
        let quota = Some(match whole {
            Some(usec) if number < NO_QUOTA => Limit::Value(usec),
            _ => Limit::Max,
        });
        match key {
            "cpu_shares" => info.cpu_shares = whole,
            "vcpu_period" => info.vcpu.period_usec = whole,
            "vcpu_quota" => info.vcpu.quota_usec = quota,
            "emulator_period" => info.emulator.period_usec = whole,
            "emulator_quota" => info.emulator.quota_usec = quota,
            "global_period" => info.global.period_usec = whole,
            "global_quota" => info.global.quota_usec = quota,
            "iothread_period" => info.iothread.period_usec = whole,
            "iothread_quota" => info.iothread.quota_usec = quota,
            _ => {}
        }
    }
    Ok(info)
}

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
    use super::*;
    use proptest::prelude::*;

    /// As printed by libvirt 9.0 (Debian 12) on cgroup v2.
    const PLAYED: &str = "Scheduler      : posix\ncpu_shares     : 100\nvcpu_period    : 100000\n\
        vcpu_quota     : 17592186044415\nemulator_period: 100000\nemulator_quota : 17592186044415\n\
        global_period  : 100000\nglobal_quota   : 50000\niothread_period: 100000\niothread_quota : -1\n\n";

    #[test]
    fn schedinfo_is_read() {
        let info = parse_schedinfo(PLAYED).unwrap();
        assert_eq!(info.cpu_shares, Some(100));
        assert_eq!(info.vcpu, Bandwidth { period_usec: Some(100_000), quota_usec: Some(Limit::Max) });
        assert_eq!(info.global.quota_usec, Some(Limit::Value(50_000)));
        assert_eq!(info.iothread.quota_usec, Some(Limit::Max));
        // An older one says 18446744073709551, and knows no I/O threads.
        let old = parse_schedinfo("cpu_shares     : 1024\nvcpu_quota     : 18446744073709551\n").unwrap();
        assert_eq!((old.vcpu.quota_usec, old.iothread.quota_usec), (Some(Limit::Max), None));
        assert!(parse_schedinfo("cpu_shares : many\n").unwrap_err().contains("line 1"));
    }

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

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([a-z_]{0,12}[ :]{0,3}-?[0-9]{0,22}\n|\\PC){0,12}", path in "/\\PC{0,40}") {
            let _ = parse_schedinfo(&text);
            let _ = arguments(&GroupRef { path, v2: false }, &Setting::Weight(2));
        }
    }
}
