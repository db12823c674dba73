//! libvirt's view of a virtual machine's CPU share: `virsh schedinfo`, read and set, so that what libvirt shows and
//! applies again at the next start stays true.
//!
//! On cgroup v2 libvirt's `cpu_shares` is `cpu.weight` (1 to 10000, 100 by default), on v1 `cpu.shares`. `global_*` limits
//! the whole machine, `vcpu_*` each vCPU, `emulator_*` the rest of the emulator, `iothread_*` each I/O thread. vCPUs
//! are told apart by cgroups of their own below the machine's: on v2 these are threaded cgroups, which libvirt makes
//! itself; nothing else may put a vCPU elsewhere.

use evenkeel_base::{CpuQuota, GroupRef, Limit, Setting};
use evenkeel_linux::cgroup;
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

/// The machine whose own cgroup this is, as libvirt names it: `machine-qemu\x2d3\x2dweb\x2d1.scope` (systemd) or
/// `qemu-3-web-1.libvirt-qemu`. `None` for its vCPUs' groups below and for everything else.
pub fn domain(group: &GroupRef) -> Option<String> {
    let (_, last) = group.path.rsplit_once('/')?;
    // `virsh` would take a name that starts like an option for one.
    cgroup::machine(last).filter(|name| !name.starts_with('-'))
}

/// The arguments of `virsh` that give a machine this value while it runs; `None` where libvirt has no word for it.
pub fn arguments(domain: &str, to: &Setting) -> Option<Vec<String>> {
    let sets = match to {
        Setting::Weight(weight) => vec![format!("cpu_shares={weight}")],
        Setting::Quota(CpuQuota { quota_usec, period_usec, burst_usec: 0 }) => {
            let quota = quota_usec.value().map_or("-1".to_owned(), |usec| usec.to_string());
            vec![format!("global_period={period_usec}"), format!("global_quota={quota}")]
        }
        _ => return None,
    };
    let mut all = vec!["schedinfo".to_owned(), domain.to_owned(), "--live".to_owned()];
    for set in sets {
        all.extend(["--set".to_owned(), set]);
    }
    Some(all)
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

    #[test]
    fn a_machines_group_is_told_by_its_name() {
        let of = |path: &str| domain(&GroupRef { path: path.into(), v2: true });
        assert_eq!(of("/machine.slice/machine-qemu\\x2d3\\x2dweb\\x2d1.scope").as_deref(), Some("web-1"));
        assert_eq!(of("/machine/qemu-12-db.libvirt-qemu").as_deref(), Some("db"));
        for other in [
            "/machine.slice",
            "/machine.slice/machine-qemu\\x2d3\\x2dweb.scope/libvirt/vcpu0",
            "/machine.slice/machine-lxc\\x2d1\\x2dx.scope",
            "/machine/qemu-x-db.libvirt-qemu",
            "/machine/qemu-1---all.libvirt-qemu",
            "/a.scope",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn values_are_said_in_libvirts_words() {
        let words = |to: &Setting| arguments("web", to).map(|all| all.join(" "));
        assert_eq!(
            words(&Setting::Weight(200)).as_deref(),
            Some("schedinfo web --live --set cpu_shares=200")
        );
        let half = CpuQuota { quota_usec: Limit::Value(50_000), ..CpuQuota::UNLIMITED };
        let said = words(&Setting::Quota(half)).unwrap();
        assert_eq!(said, "schedinfo web --live --set global_period=100000 --set global_quota=50000");
        assert!(words(&Setting::Quota(CpuQuota::UNLIMITED)).unwrap().ends_with("global_quota=-1"));
        assert_eq!(words(&Setting::GroupIdle(true)), None);
        assert_eq!(words(&Setting::Quota(CpuQuota { burst_usec: 5, ..half })), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([a-z_]{0,12}[ :]{0,3}-?[0-9]{0,22}\n|\\PC){0,12}", path in "/\\PC{0,40}") {
            let _ = parse_schedinfo(&text);
            let _ = domain(&GroupRef { path, v2: false });
        }
    }
}
