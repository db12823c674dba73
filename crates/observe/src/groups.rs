//! cgroups of the cpu controller: their counters with each sample, their weights and limits now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, CpuSet, GroupSample};
use evenkeel_linux::cgroupfs::{self, CpuStat};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_linux::{ReadError, Root, machine};

/// Limits older than this are read again even when no one asked.
const LIMITS_AGE: Duration = Duration::from_secs(5);
/// Groups whose descriptors are kept open at most (two each).
const KEEP_OPEN: usize = 2000;

/// Weight, bandwidth and CPUs of a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Limits {
    pub load_weight: Option<u64>,
    pub idle: bool,
    pub raw_weight: Option<u64>,
    pub quota: Option<CpuQuota>,
    pub cpuset: Option<CpuSet>,
}

#[derive(Debug, Default)]
struct Group {
    cpuset_path: Option<String>,
    cpuacct_path: Option<String>,
    cpu_stat: Option<OwnedFd>,
    usage: Option<OwnedFd>,
    limits: Option<(Limits, Instant)>,
}

/// The groups that own tasks, and their ancestors.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<String, Group>,
    buffer: Vec<u8>,
}

impl Groups {
    /// Takes note of the groups there are: path in the cpu hierarchy, with the paths of a member in cpuset and
    /// cpuacct. Ancestors are added; what is no longer there is forgotten.
    pub(crate) fn set<'a>(
        &mut self,
        places: impl Iterator<Item = (&'a str, Option<&'a str>, Option<&'a str>)>,
    ) {
        let mut wanted: BTreeMap<&str, (Option<&str>, Option<&str>)> = BTreeMap::new();
        for (path, cpuset, cpuacct) in places {
            let entry = wanted.entry(path).or_default();
            entry.0 = entry.0.or(cpuset);
            entry.1 = entry.1.or(cpuacct);
            let mut at = path;
            while let Some(parent) = cgroupfs::parent(at) {
                wanted.entry(parent).or_default();
                at = parent;
            }
        }
        self.groups.retain(|path, _| wanted.contains_key(path.as_str()));
        for (path, (cpuset, cpuacct)) in wanted {
            let group = self.groups.entry(path.to_owned()).or_default();
            if cpuset.is_some() && group.cpuset_path.as_deref() != cpuset {
                group.cpuset_path = cpuset.map(str::to_owned);
                group.limits = None;
            }
            if cpuacct.is_some() && group.cpuacct_path.as_deref() != cpuacct {
                group.cpuacct_path = cpuacct.map(str::to_owned);
                group.usage = None;
            }
        }
    }

    /// Reads the counters. A group that vanished meanwhile has none.
    pub(crate) fn sample(&mut self, root: &Root, hierarchies: &Hierarchies) -> Vec<GroupSample> {
        let Some(cpu) = &hierarchies.cpu else { return Vec::new() };
        self.buffer.resize(4096, 0);
        let mut samples = Vec::with_capacity(self.groups.len());
        let keep = root.is_live() && self.groups.len() <= KEEP_OPEN;
        for (path, group) in &mut self.groups {
            let file = root.path(format!("{}/cpu.stat", cpu.dir(path)));
            let stat = read_kept(root, &mut group.cpu_stat, &file, keep, &mut self.buffer)
                .and_then(|text| log(cgroupfs::parse_cpu_stat(text).map_err(|e| e.at(&file))))
                .unwrap_or_default();
            let usage_ns = match (&hierarchies.cpuacct, stat.usage_ns) {
                (_, Some(usage)) => Some(usage),
                (Some(cpuacct), None) => {
                    let at = group.cpuacct_path.as_deref().unwrap_or(path);
                    let file = root.path(format!("{}/cpuacct.usage", cpuacct.dir(at)));
                    // A task may be in the root of cpuacct while in a group of cpu: that usage is not the group's.
                    let own = at == path;
                    own.then(|| read_kept(root, &mut group.usage, &file, keep, &mut self.buffer))
                        .flatten()
                        .and_then(|text| log(cgroupfs::parse_number(text).map_err(|e| e.at(&file))))
                }
                (None, None) => None,
            };
            let CpuStat { nr_periods, nr_throttled, throttled_ns, .. } = stat;
            samples.push(GroupSample {
                path: path.clone(),
                usage_ns,
                nr_periods,
                nr_throttled,
                throttled_ns,
            });
        }
        samples
    }

    /// A group's limits; read again when `fresh` is wanted or they are old.
    pub(crate) fn limits(
        &mut self,
        root: &Root,
        hierarchies: &Hierarchies,
        path: &str,
        fresh: bool,
    ) -> Limits {
        let Some(cpu) = &hierarchies.cpu else { return Limits::default() };
        let now = Instant::now();
        let group = self.groups.entry(path.to_owned()).or_default();
        if let Some((limits, read)) = &group.limits
            && !fresh
            && now.duration_since(*read) < LIMITS_AGE
        {
            return limits.clone();
        }
        let limits = read_limits(root, cpu, hierarchies.cpuset.as_ref(), path, group.cpuset_path.as_deref());
        group.limits = Some((limits.clone(), now));
        limits
    }
}

pub(crate) fn with_ancestors<'a>(paths: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut all = BTreeSet::new();
    for path in paths {
        let mut at = Some(path);
        while let Some(path) = at.filter(|path| all.insert(*path)) {
            at = cgroupfs::parent(path);
        }
    }
    all
}

fn read_limits(
    root: &Root,
    cpu: &Hierarchy,
    cpuset: Option<&Hierarchy>,
    path: &str,
    cpuset_path: Option<&str>,
) -> Limits {
    let cpu_limits = log(cgroupfs::read_cpu_limits(root, cpu, path)).unwrap_or_default();
    let effective = cpuset.and_then(|cpuset| {
        // In a hierarchy of its own the group may be called otherwise: then its members tell, or nobody.
        let at = if cpuset == cpu { path } else { cpuset_path.unwrap_or(path) };
        log(cgroupfs::read_effective_cpus(root, cpuset, machine::bounding_group(at))).flatten()
    });
    Limits {
        load_weight: cpu_limits.load_weight,
        idle: cpu_limits.idle,
        raw_weight: cpu_limits.raw_weight,
        quota: cpu_limits.quota,
        cpuset: effective,
    }
}

/// Reads a file by a descriptor kept open, or opened now.
fn read_kept<'a>(
    root: &Root,
    kept: &mut Option<OwnedFd>,
    path: &Path,
    keep: bool,
    buffer: &'a mut [u8],
) -> Option<&'a str> {
    if kept.is_none() {
        *kept = root.open(path).ok();
    }
    let result = rustix::io::pread(kept.as_ref()?, &mut *buffer, 0);
    if result.is_err() || !keep {
        *kept = None;
    }
    std::str::from_utf8(&buffer[..result.ok()?]).ok()
}

/// A malformed or forbidden file is told once a read, and unknown.
fn log<T, E: Into<ReadError>>(result: Result<T, E>) -> Option<T> {
    match result.map_err(Into::into) {
        Ok(value) => Some(value),
        Err(error) => {
            if !error.is_gone() {
                tracing::warn!("{error}");
            }
            None
        }
    }
}
