//! Where what can be set is kept, and the form of its values.

use evenkeel_base::{CpuSet, NetKnob};

/// Handles of queueing disciplines of ours: `ee01:` and on.
pub const OUR_HANDLES: std::ops::RangeInclusive<u16> = 0xee01..=0xeeff;

/// The file under the host's root directory; `None` for a queueing discipline.
pub(super) fn file(knob: &NetKnob) -> Option<String> {
    Some(match knob {
        NetKnob::SockFlowEntries => "proc/sys/net/core/rps_sock_flow_entries".into(),
        NetKnob::RpsCpus { link, queue } => format!("sys/class/net/{link}/queues/rx-{queue}/rps_cpus"),
        NetKnob::RpsFlowCount { link, queue } => {
            format!("sys/class/net/{link}/queues/rx-{queue}/rps_flow_cnt")
        }
        NetKnob::XpsCpus { link, queue } => format!("sys/class/net/{link}/queues/tx-{queue}/xps_cpus"),
        NetKnob::IrqAffinity { irq } => format!("proc/irq/{irq}/smp_affinity_list"),
        NetKnob::RootQdisc { .. } => return None,
    })
}

/// Whether its file holds a hexadecimal mask.
pub(super) fn is_mask(knob: &NetKnob) -> bool {
    matches!(knob, NetKnob::RpsCpus { .. } | NetKnob::XpsCpus { .. })
}

/// A value in the one form used for comparing: a CPU list, a number, a discipline.
pub(crate) fn normal(knob: &NetKnob, value: &str) -> Result<String, String> {
    let bad = |what: &str| format!("{knob}: {value:?} is not {what}");
    if let Some(link) = knob.link()
        && (link.is_empty() || link.len() > 15 || link.contains(['/', '\0', ' ']) || link.starts_with('.'))
    {
        return Err(format!("{link:?} is not the name of a link"));
    }
    match knob {
        NetKnob::SockFlowEntries | NetKnob::RpsFlowCount { .. } => {
            // The kernel rounds up to a power of two, on its own for the former.
            let number: u32 = value.trim().parse().map_err(|_| bad("a number"))?;
            let rounded = if number == 0 { Some(0) } else { number.checked_next_power_of_two() };
            rounded.filter(|n| *n <= 1 << 29).map(|n| n.to_string()).ok_or_else(|| bad("a table's size"))
        }
        NetKnob::RpsCpus { .. } | NetKnob::XpsCpus { .. } | NetKnob::IrqAffinity { .. } => {
            let cpus: CpuSet = value.trim().parse().map_err(|_| bad("a list of CPUs"))?;
            if cpus.is_empty() && matches!(knob, NetKnob::IrqAffinity { .. }) {
                return Err(bad("a CPU an interrupt could be served on"));
            }
            Ok(cpus.to_string())
        }
        NetKnob::RootQdisc { .. } => {
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

/// Why a value found could not be restored, if so: a discipline somebody configured has classes and parameters that
/// deleting ours would not bring back.
pub(crate) fn cannot_be_put_back(knob: &NetKnob, present: &str) -> Option<String> {
    let NetKnob::RootQdisc { link } = knob else { return None };
    if normal(knob, present).is_ok() {
        return None;
    }
    Some(format!(
        "{link} has a queueing discipline that somebody set ({present}); it could not be restored as it is, so it is \
         left alone"
    ))
}
