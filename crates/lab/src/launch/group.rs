//! Cgroups of what is started: one at the top of each hierarchy that limits and counts CPU time.

use std::fs::File;

use evenkeel_base::{CpuClaim, CpuWeight, GroupRef};
use evenkeel_linux::group::Cgroup;

use super::LaunchError;
use crate::mounts::CgroupMounts;

/// Weight of a cgroup of this host, as cgroup v2 counts: shares on v1 by the same load weight, rounded. `None` when it is
/// gone.
pub fn weight_of(group: &GroupRef) -> Option<u64> {
    let mounts = CgroupMounts::find().ok().filter(|found| found.is_v2() == group.v2)?;
    let group = Cgroup::new(mounts.cpu_mount().join(group.path.trim_start_matches('/')), group.v2);
    group.weight()
}

/// A cgroup made by us; removed on drop.
#[derive(Debug)]
pub struct LabGroup {
    name: String,
    /// One in each hierarchy; the one with the cpu controller first.
    groups: Vec<Cgroup>,
    mounts: CgroupMounts,
    /// Controllers that were enabled for it at the top.
    enabled: Vec<&'static str>,
}

impl LabGroup {
    /// Makes it in every hierarchy; nothing is left when one fails.
    pub fn make(mounts: &CgroupMounts, name: &str) -> Result<Self, LaunchError> {
        let enabled = mounts.enable(&["cpu"])?;
        let mut made = Self { name: name.to_owned(), groups: Vec::new(), mounts: mounts.clone(), enabled };
        for mount in mounts.counting() {
            made.groups.push(Cgroup::make(mount, name, mounts.is_v2())?);
        }
        Ok(made)
    }

    /// Its name for readers and writers of its knobs.
    pub fn group_ref(&self) -> GroupRef {
        GroupRef { path: format!("/{}", self.name), v2: self.mounts.is_v2() }
    }

    /// The group in the hierarchy with the cpu controller.
    pub fn cpu(&self) -> &Cgroup {
        &self.groups[0]
    }

    /// The groups, one in each hierarchy; the one with the cpu controller first.
    pub fn groups(&self) -> &[Cgroup] {
        &self.groups
    }

    /// Gives it a weight, as cgroup v2 counts: 100 is the default, 1 to 10000. On v1 the shares of the same load weight.
    pub fn set_weight(&self, weight: u64) -> Result<(), LaunchError> {
        Ok(self.cpu().set_claim(CpuClaim::Weight(CpuWeight::new(weight)))?)
    }

    /// Takes a process in, with all its threads.
    pub fn admit(&self, pid: u32) -> Result<(), LaunchError> {
        self.groups.iter().try_for_each(|group| Ok(group.write("cgroup.procs", &pid.to_string())?))
    }

    /// CPU time used in it so far, that of members that have ended included, nanoseconds; `None` where not counted.
    pub(crate) fn usage_ns(&self) -> Option<u64> {
        self.groups.iter().find_map(Cgroup::usage_ns)
    }

    /// `cgroup.procs` in every hierarchy, open for writing.
    pub(crate) fn entrances(&self) -> Result<Vec<File>, LaunchError> {
        self.groups.iter().map(|group| Ok(group.entrance()?)).collect()
    }
}

impl Drop for LabGroup {
    fn drop(&mut self) {
        for group in &self.groups {
            group.remove();
        }
        self.mounts.disable(&self.enabled);
    }
}
