//! The rules, one file each. To add one: write its file with a `pub(super) const RULE`, name the module here and
//! register it in [`RULES`].

use super::Rule;

mod cpuset_mems;
mod cpuset_offline;
mod daemon_behind_batch;
mod governor;
mod guarantees;
mod isolated_as_expected;
mod isolated_irq;
mod isolated_pileup;
mod isolated_sibling;
mod isolated_task;
mod isolcpus_housekeeping;
mod kernel_features;
mod kubepods_weight;
mod net_receive_cpu;
mod net_rfs;
mod nice_ineffective;
mod nohz_rcu;
mod numa_services;
mod numa_task;
mod preemption_lazy;
mod pressure;
mod quota_hidden;
mod quota_period;
mod quota_threads;
mod quota_throttled;
mod quota_void;
mod realtime_unlimited;
mod shares_conversion;
mod shares_curves;
mod smt_pinned;
mod starved_group;
mod steal;
mod weight_ineffective;
mod weights_flat;
mod weights_spread;

/// Every rule, in the order of the report.
pub const RULES: &[Rule] = &[
    isolated_as_expected::RULE,
    isolated_task::RULE,
    isolated_irq::RULE,
    isolated_sibling::RULE,
    isolated_pileup::RULE,
    isolcpus_housekeeping::RULE,
    nohz_rcu::RULE,
    numa_task::RULE,
    numa_services::RULE,
    cpuset_offline::RULE,
    cpuset_mems::RULE,
    guarantees::RULE,
    nice_ineffective::RULE,
    quota_throttled::RULE,
    quota_threads::RULE,
    quota_hidden::RULE,
    quota_void::RULE,
    quota_period::RULE,
    weights_flat::RULE,
    weights_spread::RULE,
    weight_ineffective::RULE,
    starved_group::RULE,
    daemon_behind_batch::RULE,
    kubepods_weight::RULE,
    shares_conversion::RULE,
    shares_curves::RULE,
    steal::RULE,
    pressure::RULE,
    net_receive_cpu::RULE,
    net_rfs::RULE,
    governor::RULE,
    smt_pinned::RULE,
    realtime_unlimited::RULE,
    preemption_lazy::RULE,
    kernel_features::RULE,
];
