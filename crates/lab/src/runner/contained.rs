//! What a tenant in a container or a pod is given.

use std::path::{Path, PathBuf};

use evenkeel_base::{CpuClaim, CpuShares, CpuWeight};

use super::groups::Wanted;
use crate::launch::Resources;

/// `cpu.stat` as a container sees its own.
pub(super) fn cpu_stat() -> Vec<PathBuf> {
    ["cpu.stat", "cpu/cpu.stat", "cpu,cpuacct/cpu.stat"]
        .map(|file| Path::new("/sys/fs/cgroup").join(file))
        .into()
}

/// Limits in a container runtime's numbers; on a `v2` host the weight is v2's.
pub(super) fn resources(wanted: &Wanted, v2: bool) -> Resources {
    let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let claim =
        |w| if v2 { CpuClaim::Weight(CpuWeight::new(w)) } else { CpuClaim::Shares(CpuShares::new(w)) };
    Resources {
        shares: wanted.weight.map(|w| claim(w).shares().into()),
        quota: wanted.quota.as_ref().and_then(|q| Some((int(q.quota_usec.value()?), int(q.period_usec)))),
        cpuset: wanted.cpus.as_ref().map(ToString::to_string),
        memory: wanted.memory_bytes.map(int),
    }
}
