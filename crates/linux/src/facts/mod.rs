//! Files an audit of the set-up reads: boot parameters, interrupts, autogroups, memory by node, frequency control,
//! cpusets, packet steering.

pub mod autogroup;
pub mod boot;
pub mod cpufreq;
pub mod cpusets;
pub mod irq;
pub mod network;
pub mod numa_maps;
