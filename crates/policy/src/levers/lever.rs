//! What a lever is, and what several of them use.

use std::collections::BTreeMap;

use evenkeel_base::{Change, FollowingLimit, Nice, SchedPolicy, TaskId};

use super::scene::Scene;
use super::scx::SCHEDULERS;

/// What the kernel offers and the user allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// A task may ask for its own slice (Linux 6.12 and later).
    pub task_slice: bool,
    /// The slice a task has by default, nanoseconds.
    pub default_slice_ns: Option<u64>,
    /// The user allowed real-time classes by name.
    pub realtime: bool,
    /// The user allowed `SCHED_DEADLINE` by name.
    pub deadline: bool,
    /// cgroup v1 with CONFIG_RT_GROUP_SCHED: a group needs `cpu.rt_runtime_us` before SCHED_FIFO is allowed in it.
    pub rt_groups: bool,
    /// Services are named, and the scope is background work that may wait.
    pub background: bool,
    /// Which of [`SCHEDULERS`] the user allowed by name, and this host can load.
    pub scx: [bool; SCHEDULERS.len()],
}

impl Features {
    /// Of a kernel since Linux 6.12 where nothing is allowed by name.
    pub const MODERN: Self = Self {
        task_slice: true,
        default_slice_ns: Some(2_800_000),
        realtime: false,
        deadline: false,
        rt_groups: true,
        background: false,
        scx: [false; SCHEDULERS.len()],
    };
}

/// Tasks below this load are left as they are: tuning them cannot matter and every change is a risk. Percent of a CPU.
pub const MIN_LOAD_PCT: f64 = 0.3;

/// A way to change CPU sharing.
#[derive(Debug, Clone, Copy)]
pub struct Lever {
    /// Short name, such as `batch+slice`.
    pub name: &'static str,
    /// What it does and why it may help.
    pub why: &'static str,
    /// The changes, relative to the state as in the baseline; `None` where the lever cannot act or would change nothing.
    pub propose: fn(&Scene<'_>) -> Option<Vec<Change>>,
    /// Tasks that make way, and for whom; instead of changes.
    pub make_way: fn(&Scene<'_>) -> (Vec<TaskId>, Vec<TaskId>),
    /// Those of its limits that follow what others leave of a quota.
    pub follow: fn(&Scene<'_>) -> Vec<FollowingLimit>,
}

impl Lever {
    /// What a lever has of its own is said in place of this.
    pub(super) const NOTHING: Self = Self {
        name: "",
        why: "",
        propose: |_| None,
        make_way: |_| (Vec::new(), Vec::new()),
        follow: |_| Vec::new(),
    };
}

/// The published recipe's name: greedy placement, then niceness in proportion to load.
pub const PUBLISHED_RECIPE: &str = "placement+nice";

/// Niceness in proportion to load within each cgroup, in the order of the scene's tasks: between cgroups nice does not
/// act, so each group is its own contest. Who is SCHED_IDLE keeps what it has.
pub(super) fn nice_within_groups(scene: &Scene<'_>) -> Vec<Nice> {
    let mut nice: Vec<Nice> = scene.tasks.iter().map(|s| s.found.nice).collect();
    let mut contests: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for (index, subject) in
        scene.tasks.iter().enumerate().filter(|(_, subject)| subject.found.policy.has_nice())
    {
        contests.entry(subject.task.group).or_default().push(index);
    }
    for members in contests.into_values().filter(|m| m.len() > 1) {
        let loads: Vec<f64> = members.iter().map(|&i| scene.tasks[i].load_pct).collect();
        let base: Vec<Nice> = members.iter().map(|&i| nice[i]).collect();
        for (&index, value) in members.iter().zip(crate::priority::proportional(&loads, &base)) {
            nice[index] = value;
        }
    }
    nice
}

/// SCHED_BATCH for an ordinary task; SCHED_IDLE stays what its owner made it.
pub(super) fn batch_policy(policy: SchedPolicy) -> SchedPolicy {
    if policy == SchedPolicy::Other { SchedPolicy::Batch } else { policy }
}

/// The name of what is tried only where the user allowed it by name.
pub const REALTIME: &str = "realtime";

/// The name of the lever for services, likewise.
pub const DEADLINE: &str = "deadline";
