//! The plain types everyone shares: CPU sets, task identities, nice values, weights, limits, topology,
//! raw samples, observations and plans. No I/O happens here.
//!
//! Units live in field names (`ran_ns`, `quota_usec`, `cpu_pct`); a `_pct` is percent of ONE CPU, so two busy
//! CPUs are 200. What is not known is `None`, never zero.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod change;
pub mod cpuset;
mod defaults;
pub mod facts;
pub mod file_error;
pub mod id;
pub mod limit;
mod matcher;
mod named;
pub mod observation;
pub mod promise;
pub mod run;
pub mod sample;
pub mod sched;
pub mod stats;
pub mod text;
pub mod topology;
pub mod waits;

pub use change::{
    Change, FollowingLimit, GroupRef, HostScheduler, Knob, NetKnob, Plan, Setting, Target, is_kubepods,
};
pub use cpuset::CpuSet;
pub use facts::{HostFacts, Known};
pub use file_error::{FileError, nearest};
pub use id::{BootId, TICK_NS, TaskId, UnitPath, is_at_or_below, is_of_user, is_unit_name, unit_of_path};
pub use limit::{CpuClaim, CpuQuota, CpuShares, CpuWeight, IDLE_LOAD_WEIGHT, Limit, load_weight};
pub use matcher::Matcher;
pub use observation::{
    BesideCpu, ContainerView, ExitedView, GroupView, HostView, NetworkRate, NetworkRates, NetworkUse,
    Observation, PodView, TaskView, VmView, is_pod_called,
};
pub use promise::PromiseState;
pub use sample::{CpuTimes, ExitedSample, GroupSample, Sample, TaskSample, may_have_run};
pub use sched::{Nice, SchedAttr, SchedPolicy};
pub use text::{cut, excerpt, printable, regex_fault};
pub use topology::{Cpu, Node, Topology};
pub use waits::Histogram;
