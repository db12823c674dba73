//! Facts about a task that cost a system call or a slow file each: affinity, class, nice, slice.

use evenkeel_base::{CpuSet, SchedAttr, TaskId};
use evenkeel_linux::sys::{self, RawSchedAttr};
use evenkeel_linux::{Root, pid_status};

/// File of a captured task with its `sched_getattr`: `policy flags nice priority runtime`.
pub(crate) const SCHED_FILE: &str = "evenkeel.sched";
/// File of a captured tree with the kernel's default slice, nanoseconds.
pub(crate) const DEFAULT_SLICE_FILE: &str = "evenkeel/default_slice_ns";

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OnDemandAttributes {
    pub affinity: Option<CpuSet>,
    pub sched: Option<SchedAttr>,
}

#[derive(Debug)]
pub(crate) struct OnDemand {
    root: Root,
    captured_slice: Option<u64>,
}

impl OnDemand {
    pub(crate) fn new(root: &Root) -> Self {
        let slice = if root.is_live() { None } else { root.read_optional(DEFAULT_SLICE_FILE).ok().flatten() };
        Self { root: root.clone(), captured_slice: slice.and_then(|text| text.trim().parse().ok()) }
    }

    /// Class, nice and slice need not be asked for where they are `known`.
    pub(crate) fn read(
        &self,
        id: TaskId,
        default_slice: Option<u64>,
        known: Option<SchedAttr>,
    ) -> OnDemandAttributes {
        if self.root.is_live() {
            let ask = || sys::sched_getattr(id.tid).ok().and_then(|raw| raw.decode(default_slice));
            return OnDemandAttributes { affinity: sys::getaffinity(id.tid).ok(), sched: known.or_else(ask) };
        }
        let dir = format!("proc/{}/task/{}", id.tgid, id.tid);
        let status = self.root.parse(format!("{dir}/status"), pid_status::parse);
        let raw = self.root.read(format!("{dir}/{SCHED_FILE}")).ok().and_then(|text| parse_sched(&text));
        OnDemandAttributes {
            affinity: status.ok().and_then(|status| status.cpus_allowed),
            sched: raw.and_then(|raw| raw.decode(self.captured_slice)),
        }
    }
}

/// The text of [`SCHED_FILE`].
pub(crate) fn format_sched(raw: &RawSchedAttr) -> String {
    format!("{} {} {} {} {}\n", raw.policy, raw.flags, raw.nice, raw.priority, raw.runtime)
}

pub(crate) fn parse_sched(text: &str) -> Option<RawSchedAttr> {
    let mut words = text.split_ascii_whitespace();
    Some(RawSchedAttr {
        policy: words.next()?.parse().ok()?,
        flags: words.next()?.parse().ok()?,
        nice: words.next()?.parse().ok()?,
        priority: words.next()?.parse().ok()?,
        runtime: words.next()?.parse().ok()?,
        ..RawSchedAttr::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_attribute_round_trips() {
        let raw =
            RawSchedAttr { policy: 3, flags: 1, nice: -4, runtime: 100_000_000, ..RawSchedAttr::default() };
        assert_eq!(parse_sched(&format_sched(&raw)), Some(raw));
        assert_eq!(parse_sched("3 1"), None);
    }
}
