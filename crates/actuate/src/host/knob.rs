//! What can be set, and the form of its values.

use std::fmt;

use evenkeel_base::CpuSet;
use serde::{Deserialize, Serialize};

use super::HostError;

/// One property of the host's network.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "kebab-case")]
pub enum HostKnob {
    /// `net.core.rps_sock_flow_entries`: the table of sockets' flows, for RFS; 0 is off. A number.
    SockFlowEntries,
    /// CPUs packets of a receive queue are processed on (RPS). A CPU list, empty for off.
    RpsCpus {
        /// Link.
        link: String,
        /// Receive queue.
        queue: u32,
    },
    /// Entries of a receive queue's flow table (RFS). A number.
    RpsFlowCount {
        /// Link.
        link: String,
        /// Receive queue.
        queue: u32,
    },
    /// CPUs that send by a transmit queue (XPS). A CPU list, empty for off.
    XpsCpus {
        /// Link.
        link: String,
        /// Transmit queue.
        queue: u32,
    },
    /// CPUs an interrupt may be served on. A CPU list.
    IrqAffinity {
        /// Its number.
        irq: u32,
    },
    /// The root queueing discipline of a link: `default`, or `htb MAJOR:` for one of ours, which comes without classes.
    RootQdisc {
        /// Link.
        link: String,
    },
}

/// Handles of queueing disciplines of ours: `ee01:` and on.
pub const OUR_HANDLES: std::ops::RangeInclusive<u16> = 0xee01..=0xeeff;

impl HostKnob {
    /// The link it belongs to.
    pub fn link(&self) -> Option<&str> {
        match self {
            Self::RpsCpus { link, .. }
            | Self::RpsFlowCount { link, .. }
            | Self::XpsCpus { link, .. }
            | Self::RootQdisc { link } => Some(link),
            Self::SockFlowEntries | Self::IrqAffinity { .. } => None,
        }
    }

    /// The file under the host's root directory; `None` for a queueing discipline.
    pub fn file(&self) -> Option<String> {
        Some(match self {
            Self::SockFlowEntries => "proc/sys/net/core/rps_sock_flow_entries".into(),
            Self::RpsCpus { link, queue } => format!("sys/class/net/{link}/queues/rx-{queue}/rps_cpus"),
            Self::RpsFlowCount { link, queue } => {
                format!("sys/class/net/{link}/queues/rx-{queue}/rps_flow_cnt")
            }
            Self::XpsCpus { link, queue } => format!("sys/class/net/{link}/queues/tx-{queue}/xps_cpus"),
            Self::IrqAffinity { irq } => format!("proc/irq/{irq}/smp_affinity_list"),
            Self::RootQdisc { .. } => return None,
        })
    }

    /// Whether its file holds a hexadecimal mask.
    pub(super) fn is_mask(&self) -> bool {
        matches!(self, Self::RpsCpus { .. } | Self::XpsCpus { .. })
    }

    /// A value in the one form used for comparing: a CPU list, a number, a discipline.
    ///
    /// # Errors
    /// It is not a value of this knob.
    pub fn normal(&self, value: &str) -> Result<String, HostError> {
        let bad = |what: &str| HostError::Refused(format!("{self}: {value:?} is not {what}"));
        if let Some(link) = self.link()
            && (link.is_empty()
                || link.len() > 15
                || link.contains(['/', '\0', ' '])
                || link.starts_with('.'))
        {
            return Err(HostError::Refused(format!("{link:?} is not the name of a link")));
        }
        match self {
            Self::SockFlowEntries | Self::RpsFlowCount { .. } => {
                // The kernel rounds up to a power of two, on its own for the former.
                let number: u32 = value.trim().parse().map_err(|_| bad("a number"))?;
                let rounded = if number == 0 { Some(0) } else { number.checked_next_power_of_two() };
                rounded.filter(|n| *n <= 1 << 29).map(|n| n.to_string()).ok_or_else(|| bad("a table's size"))
            }
            Self::RpsCpus { .. } | Self::XpsCpus { .. } | Self::IrqAffinity { .. } => {
                let cpus: CpuSet = value.trim().parse().map_err(|_| bad("a list of CPUs"))?;
                if cpus.is_empty() && matches!(self, Self::IrqAffinity { .. }) {
                    return Err(bad("a CPU an interrupt could be served on"));
                }
                Ok(cpus.to_string())
            }
            Self::RootQdisc { .. } => {
                let value = value.trim();
                let handle = value.strip_prefix("htb ").and_then(|handle| handle.strip_suffix(':'));
                let ours = handle
                    .and_then(|handle| u16::from_str_radix(handle, 16).ok())
                    .is_some_and(|handle| OUR_HANDLES.contains(&handle));
                if value == "default" || ours {
                    Ok(value.to_owned())
                } else {
                    Err(bad("`default` or `htb ee01:`"))
                }
            }
        }
    }

    /// Why a value found could not be put back, if so: a discipline somebody configured has classes and parameters that
    /// deleting ours would not bring back.
    pub(super) fn cannot_be_put_back(&self, present: &str) -> Option<String> {
        let Self::RootQdisc { link } = self else { return None };
        if self.normal(present).is_ok() {
            return None;
        }
        Some(format!(
            "{link} has a queueing discipline that somebody set ({present}); it could not be put back as it is, so it is \
             left alone"
        ))
    }
}

impl fmt::Display for HostKnob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SockFlowEntries => f.write_str("net.core.rps_sock_flow_entries"),
            Self::RpsCpus { link, queue } => write!(f, "{link} rx-{queue} rps_cpus"),
            Self::RpsFlowCount { link, queue } => write!(f, "{link} rx-{queue} rps_flow_cnt"),
            Self::XpsCpus { link, queue } => write!(f, "{link} tx-{queue} xps_cpus"),
            Self::IrqAffinity { irq } => write!(f, "irq {irq} smp_affinity"),
            Self::RootQdisc { link } => write!(f, "{link} root qdisc"),
        }
    }
}
