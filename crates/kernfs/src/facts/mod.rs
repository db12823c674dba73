//! Files an audit of the set-up reads: boot parameters, interrupts, autogroups, memory by node, frequency control,
//! cpusets.

pub mod autogroup;
pub mod boot;
pub mod cpufreq;
pub mod cpusets;
pub mod irq;
pub mod numa_maps;
